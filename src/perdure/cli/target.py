"""Which database a command is about. Called by every command; asks `discovery`, makes the store, opens nothing.

The nearest place that names a URL or an app decides: the options, the environment, then pyproject.toml in the working
directory. Where one place names both, the URL says where and the app how.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.discovery import APP_VARIABLE, Named, load_app, places
from perdure.errors import ConfigError

if TYPE_CHECKING:
    from perdure.store.protocols import Store

Url = Annotated[
    str | None, typer.Option("--url", metavar="URL", help="The database: a path, sqlite:///path or postgresql://…")
]
App = Annotated[
    str | None, typer.Option("--app", metavar="MODULE:APP", help="The Perdure app to use, such as shop.jobs:app")
]


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

    for named in places(url, app):
        if named.url or named.app:
            return Named(named.url or None, named.app or None)
    raise ConfigError(
        f"no database was named; give --url or --app, set {URL_VARIABLE} or {APP_VARIABLE}, or write url or app under"
        " [tool.perdure] in pyproject.toml",
        code="url_missing",
    )
