"""Which app a command is about, and how it is imported. Called by `target` and `worker`; imports the user's module.

The places are asked in order: the command's arguments, the environment, pyproject.toml in the working directory. What
to say when there is no such app comes from `instead`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple, cast

from perdure.cli import instead
from perdure.errors import ConfigError

if TYPE_CHECKING:
    from perdure.app import Perdure

APP_VARIABLE = "PERDURE_APP"


class Named(NamedTuple):
    """What one place says."""

    url: str | None
    app: str | None


def places(url: str | None, app: str | None) -> Iterator[Named]:
    """What each place says, the nearest first."""
    from perdure.config import URL_VARIABLE

    yield Named(url, app)
    yield Named(os.environ.get(URL_VARIABLE), os.environ.get(APP_VARIABLE))
    yield _project(Path("pyproject.toml"))


def find_app(url: str | None, app: str | None) -> tuple[Perdure, str]:
    """The app that the nearest place names, and its whole name. A URL named there or nearer is its database."""
    for named in places(url, app):
        url = url or named.url
        if not named.app:
            continue
        found, name = _loaded(named.app)
        if url:
            found.url = url
        return found, name
    raise ConfigError(
        f"no app was named; give module:app or --app, set {APP_VARIABLE}, or write app under [tool.perdure] in"
        f" pyproject.toml{instead.of_nothing()}",
        code="app_not_found",
    )


def load_app(name: str) -> Perdure:
    """The app that `module:name` means, or the one in `module`. The working directory is importable."""
    return _loaded(name)[0]


def _loaded(name: str) -> tuple[Perdure, str]:
    """The app, and its name with the variable it was found in."""
    from perdure.app import Perdure

    module_name, colon, attribute = name.partition(":")
    if not module_name or (colon and not attribute):
        raise ConfigError(f"{name!r} names no app; write module:name, such as shop.jobs:app", code="app_invalid")
    module = _imported(module_name)
    if not colon:
        app, variable = _only_app(module)
        return app, f"{module_name}:{variable}"
    found: object = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            what = f"there is no {attribute!r} in {module_name}"
            raise ConfigError(f"{what}; {instead.of_name(module, attribute, _apps(module))}", code="app_not_found")
        found = getattr(found, part)
    if not isinstance(found, Perdure):
        what = f"{name} is of type {type(found).__name__}, not a Perdure app"
        raise ConfigError(f"{what}; {instead.in_module(module, _apps(module))}", code="app_invalid")
    return found, name


def _only_app(module: ModuleType) -> tuple[Perdure, str]:
    """The app of a module that was named alone, and its variable: `app`, or the only one there is."""
    apps = _apps(module)
    name = "app" if "app" in apps else next(iter(apps), "")
    if name == "app" or len(set(map(id, apps.values()))) == 1:
        return apps[name], name
    raise ConfigError(
        f"{module.__name__} does not say which app is meant; {instead.in_module(module, apps)}",
        code="app_not_found",
    )


def _apps(module: ModuleType) -> dict[str, Perdure]:
    from perdure.app import Perdure

    return {name: value for name, value in vars(module).items() if isinstance(value, Perdure)}


def _imported(name: str) -> ModuleType:
    if name.endswith(".py") or "/" in name:
        dotted = name.removesuffix(".py").strip("./").replace("/", ".")
        raise ConfigError(f"{name!r} is a file; name the module instead, such as {dotted}", code="app_invalid")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(name)
    except (Exception, SystemExit) as error:
        raise ConfigError(_why_not(name, here, error), code="app_import_failed") from error


def _why_not(name: str, here: str, error: BaseException) -> str:
    """Either there is no such module, or it is there and fails."""
    missing = (
        isinstance(error, ModuleNotFoundError) and error.name is not None and f"{name}.".startswith(f"{error.name}.")
    )
    if missing or (isinstance(error, TypeError | ValueError) and not instead.is_module_name(name)):
        return f"there is no module {name!r} to import from {here}{instead.of_module(name)}"
    where = instead.line_of(error)
    return f"the module {name!r} fails when it is imported ({type(error).__name__}: {error}){where}"


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
    for name in settings:
        if name not in ("url", "app"):
            what = f"[tool.perdure] in {file} has {name!r}, which means nothing; there are url and app"
            raise ConfigError(what, code="pyproject_invalid")
    url, app = settings.get("url"), settings.get("app")
    if not isinstance(url, str | None) or not isinstance(app, str | None):
        raise ConfigError(f"url and app under [tool.perdure] in {file} must be texts", code="pyproject_invalid")
    return Named(url, app)


def _table(content: Mapping[str, object], name: str) -> Mapping[str, object]:
    table = content.get(name, {})
    if not isinstance(table, dict):
        raise ConfigError(f"[{name}] in pyproject.toml must be a table", code="pyproject_invalid")
    return cast("Mapping[str, object]", table)
