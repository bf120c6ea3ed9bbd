"""Which database a command is about. Called by every command; makes the store, opens nothing.

The nearest place that names a URL or an app decides: the options, the environment, then pyproject.toml in the working
directory. Where one place names both, the URL says where and the app how.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, cast

import typer

from perdure.errors import ConfigError

if TYPE_CHECKING:
    from perdure.app import Perdure
    from perdure.store.protocols import Store

APP_VARIABLE = "PERDURE_APP"

Url = Annotated[
    str | None, typer.Option("--url", metavar="URL", help="The database: a path, sqlite:///path or postgresql://…")
]
App = Annotated[
    str | None, typer.Option("--app", metavar="MODULE:APP", help="The Perdure app to use, such as shop.jobs:app")
]


class Named(NamedTuple):
    """What one place says."""

    url: str | None
    app: str | None


@contextmanager
def database(url: str | None, app: str | None) -> Generator[Store, None, None]:
    """The store of the database the user means, closed in the end. Nothing is opened yet."""
    store = _store(_nearest(url, app))
    try:
        yield store
    finally:
        store.close()


def _store(named: Named) -> Store:
    from perdure.store.open import open_store

    found = None if named.app is None else load_app(named.app)
    if named.url is None:
        assert found is not None
        return found.store
    return open_store(named.url) if found is None else open_store(named.url, found.config.store_settings())


def _nearest(url: str | None, app: str | None) -> Named:
    from perdure.config import URL_VARIABLE

    for named in _places(url, app):
        if named.url or named.app:
            return Named(named.url or None, named.app or None)
    raise ConfigError(
        f"no database was named; give --url or --app, set {URL_VARIABLE} or {APP_VARIABLE}, or write url or app under"
        " [tool.perdure] in pyproject.toml",
        code="url_missing",
    )


def _places(url: str | None, app: str | None) -> Iterator[Named]:
    from perdure.config import URL_VARIABLE

    yield Named(url, app)
    yield Named(os.environ.get(URL_VARIABLE), os.environ.get(APP_VARIABLE))
    yield _project(Path("pyproject.toml"))


def _project(file: Path) -> Named:
    import tomllib

    try:
        with file.open("rb") as opened:
            content = tomllib.load(opened)
    except OSError:
        return Named(None, None)
    except ValueError as error:
        raise ConfigError(f"{file} cannot be read ({error}); correct it", code="pyproject_invalid") from error
    settings = _table(_table(content, "tool"), "perdure")
    url, app = settings.get("url"), settings.get("app")
    if not isinstance(url, str | None) or not isinstance(app, str | None):
        raise ConfigError(f"url and app under [tool.perdure] in {file} must be texts", code="pyproject_invalid")
    return Named(url, app)


def _table(content: Mapping[str, object], name: str) -> Mapping[str, object]:
    table = content.get(name, {})
    if not isinstance(table, dict):
        raise ConfigError(f"[{name}] in pyproject.toml must be a table", code="pyproject_invalid")
    return cast("Mapping[str, object]", table)


def load_app(name: str) -> Perdure:
    """The app that `module:name` means; the working directory is importable."""
    from perdure.app import Perdure

    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise ConfigError(f"{name!r} names no app; write module:name, such as shop.jobs:app", code="app_invalid")
    found: object = _imported(module_name)
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, Perdure):
        what = "nothing" if found is None else f"a {type(found).__name__}"
        raise ConfigError(
            f"{name} is {what}, not a Perdure app; write module:name for the variable that holds it, such as"
            " shop.jobs:app",
            code="app_invalid",
        )
    return found


def _imported(name: str) -> object:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(name)
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"the app's module {name!r} cannot be imported from {here} ({type(error).__name__}: {error})",
            code="app_import_failed",
        ) from error
