"""Which database a command is about. Called by every command; asks `discovery`, makes the store.

Where one place names both, the URL says where and the app how. Suggested commands are completed here for the same
database.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from itertools import pairwise, takewhile
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.completion import offer_jobs
from perdure.cli.discovery import APP_VARIABLE, Named, hint_databases_here, load_app, only_app_here, places
from perdure.cli.render import go_by
from perdure.errors import ConfigError

if TYPE_CHECKING:
    from perdure.app import Perdure
    from perdure.store.protocols import Store


Url = Annotated[
    str | None, typer.Option("--url", metavar="URL", help="The database: a path, postgresql://… or mysql://…")
]
App = Annotated[
    str | None, typer.Option("--app", metavar="MODULE:APP", help="The Perdure app to use, such as shop.jobs:app")
]
AppArgument = Annotated[
    str | None, typer.Argument(metavar="MODULE:APP", help="The app, such as shop.jobs:app; else --app or PERDURE_APP.")
]
JobName = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="The job's id, or the last 4 or more characters of it.", autocompletion=offer_jobs
    ),
]
JobNames = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ID", help="Ids of jobs, or the last 4 or more characters of them.", autocompletion=offer_jobs
    ),
]


@contextmanager
def database(url: str | None, app: str | None, *, closed_too: bool = False) -> Generator[Store, None, None]:
    """The store of the database the user means, closed in the end. Nothing is opened yet.

    `closed_too`: even if it was closed by perdure db copy, it can be written to.
    """
    from perdure.store.protocols import clock_of

    store = _store(_nearest(url, app), closed_too=closed_too)
    go_by(clock_of(store))
    try:
        yield store
    finally:
        store.close()


@contextmanager
def existing_database(url: str | None, app: str | None) -> Generator[Store, None, None]:
    """The same for a database that is there already: a mistyped path is an error, not a new database."""
    with database(url, app) as store:
        store.require_current()
        yield store


@contextmanager
def existing_app(url: str | None, app: str | None) -> Generator[Perdure, None, None]:
    """An app on the database the user means, which has to be there: the one named, else one without kinds."""
    from perdure.app import Perdure

    named = _nearest(url, app)
    found = Perdure(named.url) if named.app is None else load_app(named.app)[0]
    if named.url is not None:
        found.url = named.url
    go_by(found.clock)
    try:
        found.store.require_current()
        yield found
    finally:
        found.close()


def _store(named: Named, *, closed_too: bool = False) -> Store:
    from perdure.store.open import DEFAULTS, open_store

    found = None if named.app is None else load_app(named.app)[0]
    if found is not None and named.url is None and not closed_too:
        return found.store
    settings = DEFAULTS if found is None else found.config.store_settings()
    url = named.url if found is None or named.url is not None else found.url
    assert url is not None
    return open_store(url, settings._replace(closed_too=closed_too))


def _nearest(url: str | None, app: str | None) -> Named:
    from perdure.config import URL_VARIABLE

    for named in places(url, app):
        if named.url or named.app:
            return Named(named.url or None, named.app or None)
    raise ConfigError(
        f"no database was named; give --url or --app, set {URL_VARIABLE} or {APP_VARIABLE}, or write url or app under"
        f" [tool.perdure] in pyproject.toml{hint_databases_here()}",
        code="url_missing",
    )


def app_name(argument: str | None, option: str | None) -> str | None:
    """The app, where a command takes it as its argument too."""
    if argument is not None and option is not None:
        raise typer.BadParameter("name the app once: as the argument, or with --app")
    return argument or option


def named_app(url: str | None, app: str | None) -> Perdure | None:
    """The app that the nearest place names, with its `imports=` imported. None: none is named anywhere."""
    from perdure.cli.discovery import find_app

    if not any(named.app for named in places(url, app)):
        return None
    found, _ = find_app(url, app)
    found.import_kinds()
    return found


def database_options(url: str | None, app: str | None) -> str:
    """The options that a command needs to be about the same database: those that were given, or none."""
    return (f" --url {_url(url)}" if url else "") + (f" --app {quote(app)}" if app else "")


def database_options_in(arguments: Sequence[str]) -> str:
    """The same for a command that has failed, from its arguments. Of an option that is given twice the last counts."""
    given: dict[str, str] = {}
    for argument, following in pairwise([*takewhile(lambda each: each != "--", arguments), ""]):
        name, equals, value = argument.partition("=")
        if name in ("--url", "--app"):
            given[name] = value if equals else following
    return database_options(given.get("--url"), given.get("--app"))


def completed(command: str, url: str | None, app: str | None) -> str:
    """A command that `ops` suggests, for this database, and with the app that is meant instead of MODULE:APP."""
    from perdure.ops.explain import START_A_WORKER

    if command.startswith(START_A_WORKER):
        return worker_command(url, app) + command.removeprefix(START_A_WORKER)
    return command + database_options(url, app)


def worker_command(url: str | None, app: str | None) -> str:
    """The command for a worker on this database: short where the app is named anywhere."""
    if app or any(named.app for named in places(url, app)):
        name, database = app, f" --url {_url(url)}" if url else ""
    else:
        name, database = only_app_here() or "MODULE:APP", _elsewhere(url)
    return "perdure worker" + (f" {quote(name)}" if name else "") + database


def _elsewhere(url: str | None) -> str:
    """An app that is named by the command alone uses its own database, whatever the environment says."""
    from perdure.config import URL_VARIABLE

    if url is None and os.environ.get(URL_VARIABLE):
        return f' --url "${URL_VARIABLE}"'
    found = next((named.url for named in places(url, None) if named.url), None)
    return f" --url {_url(found)}" if found else ""


def _url(url: str) -> str:
    from perdure.store.open import without_password

    return quote(without_password(url))
