"""Which database, and which job, a command is about. Called by every command; asks `discovery`, makes the store.

The nearest place that names a URL or an app decides: the options, the environment, then pyproject.toml in the working
directory. Where one place names both, the URL says where and the app how.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.discovery import APP_VARIABLE, Named, load_app, places
from perdure.cli.instead import databases_here
from perdure.errors import ConfigError, InvalidInput, JobNotFound, shown

if TYPE_CHECKING:
    from perdure.app import Perdure
    from perdure.job.views import Job
    from perdure.store.protocols import Store

Url = Annotated[
    str | None, typer.Option("--url", metavar="URL", help="The database: a path, sqlite:///path or postgresql://…")
]
App = Annotated[
    str | None, typer.Option("--app", metavar="MODULE:APP", help="The Perdure app to use, such as shop.jobs:app")
]
JobName = Annotated[str, typer.Argument(metavar="ID", help="The job's id, or the last 4 or more characters of it.")]
JobNames = Annotated[
    list[str] | None, typer.Argument(metavar="ID", help="Ids of jobs, or the last 4 or more characters of them.")
]

SHORTEST_TAIL = 4
LOOKED_THROUGH = 10_000
"""A tail is looked for among this many of the newest jobs; older ones are found by their whole id."""
_CANDIDATES = 5


@contextmanager
def database(url: str | None, app: str | None) -> Generator[Store, None, None]:
    """The store of the database the user means, closed in the end. Nothing is opened yet."""
    store = _store(_nearest(url, app))
    try:
        yield store
    finally:
        store.close()


@contextmanager
def existing(url: str | None, app: str | None) -> Generator[Store, None, None]:
    """The same for a database that is there already: a mistyped path is an error, not a new database."""
    from perdure.ops.database import require_current

    with database(url, app) as store:
        require_current(store)
        yield store


@contextmanager
def front_door(url: str | None, app: str | None) -> Generator[Perdure, None, None]:
    """An app on the database the user means, which has to be there: the one named, else one without kinds."""
    from perdure.app import Perdure
    from perdure.ops.database import require_current

    named = _nearest(url, app)
    if named.app is None:
        door = Perdure(named.url)
    else:
        door = load_app(named.app)
        if named.url is not None:
            door.url = named.url
    try:
        require_current(door.store)
        yield door
    finally:
        door.close()


def find_job(place: Store | Perdure, text: str) -> Job:
    """The job with this id, or whose id ends with this. JobNotFound: there is none. InvalidInput: there are several.

    A tail is looked for among the newest 10,000 jobs.
    """
    return find_jobs(place, [text])[0]


def find_jobs(place: Store | Perdure, texts: Sequence[str]) -> list[Job]:
    """The same for several at once, in the order named; all of them or an error."""
    from perdure.app import Perdure

    store = place.store if isinstance(place, Perdure) else place
    tails = {text: _tail(text) for text in texts}
    found = _by_tail(store, {tail for tail in tails.values() if len(tail) < 32})
    return [_whole(store, text) if len(tail) == 32 else _only(text, found[tail]) for text, tail in tails.items()]


def _tail(text: str) -> str:
    """The hexadecimal digits of what may be an id or its tail."""
    tail = text.strip().replace("-", "").lower()
    if not SHORTEST_TAIL <= len(tail) <= 32 or not set(tail) <= set("0123456789abcdef"):
        raise InvalidInput(
            f"{shown(text)} is not an id; give a job's id, or at least its last {SHORTEST_TAIL} characters",
            code="id_invalid",
        )
    return tail


def _whole(store: Store, text: str) -> Job:
    from perdure.ids import JobId, parse_id
    from perdure.store.rows import not_found

    job_id = JobId(parse_id(text.strip()))
    found = store.get(job_id)
    if found is None:
        raise not_found(job_id)
    return found


def _by_tail(store: Store, tails: set[str]) -> dict[str, list[Job]]:
    """For each tail the newest jobs that end with it, found in one pass."""
    from perdure.listing import pages
    from perdure.store.rows import JobFilter

    found: dict[str, list[Job]] = {tail: [] for tail in tails}
    if not tails:
        return found
    everything = JobFilter()
    for job in islice(pages(lambda spot, size: store.jobs(everything, spot, size), None), LOOKED_THROUGH):
        digits = job.row.id.hex()
        for tail in tails:
            if digits.endswith(tail):
                found[tail].append(job)
    return found


def _only(text: str, candidates: Sequence[Job]) -> Job:
    if len(candidates) == 1:
        return candidates[0]
    if not candidates:
        raise JobNotFound(
            f"none of the newest {LOOKED_THROUGH:,} jobs has an id that ends with {shown(text)}; older ones are found"
            " by their whole id, and perdure jobs lists them"
        )
    listed = ", ".join(f"{job.id} ({job.kind}, {job.state})" for job in candidates[:_CANDIDATES])
    more = f" and {len(candidates) - _CANDIDATES} more" if len(candidates) > _CANDIDATES else ""
    raise InvalidInput(
        f"{len(candidates)} jobs have an id that ends with {shown(text)}: {listed}{more}; give more of it",
        code="id_ambiguous",
    )


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
        f" [tool.perdure] in pyproject.toml{databases_here()}",
        code="url_missing",
    )


def named_app(url: str | None, app: str | None) -> Perdure | None:
    """The app that the nearest place names, with its `imports=` imported. None: none is named anywhere."""
    from perdure.cli.discovery import find_app
    from perdure.verbs.working import import_kinds

    if not any(named.app for named in places(url, app)):
        return None
    found, _ = find_app(url, app)
    import_kinds(found)
    return found
