"""Commands that are offered to the user, as they work when typed here: with the database that this command was given.

Used by `explain`, `job`, `nodes` and `status`, and for errors. `ops` does not know how its answers are asked for.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise, takewhile
from shlex import quote

from perdure.cli.discovery import places
from perdure.cli.instead import only_app_here


def options_of(url: str | None, app: str | None) -> str:
    """What has to follow a command so that it is about the same database: the options that were typed, or nothing."""
    return (f" --url {_url(url)}" if url else "") + (f" --app {quote(app)}" if app else "")


def options_in(arguments: Sequence[str]) -> str:
    """The same for a command that has failed, from what was typed. Of an option that is given twice the last counts."""
    typed: dict[str, str] = {}
    for argument, following in pairwise([*takewhile(lambda each: each != "--", arguments), ""]):
        name, equals, value = argument.partition("=")
        if name in ("--url", "--app"):
            typed[name] = value if equals else following
    return options_of(typed.get("--url"), typed.get("--app"))


def as_typed(command: str, url: str | None, app: str | None) -> str:
    """A remedy of `ops`, with the app that is meant in the place of MODULE:APP."""
    from perdure.ops.explain import START_A_WORKER

    if command.startswith(START_A_WORKER):
        return start_a_worker(url, app) + command.removeprefix(START_A_WORKER)
    return command + options_of(url, app)


def start_a_worker(url: str | None, app: str | None) -> str:
    """The command for a worker on this database: as short as it may be where the app is named anywhere."""
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
