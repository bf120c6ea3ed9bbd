"""Databases of every sort, two of each: what is done with a database as a whole."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import product
from pathlib import Path

import pytest

from perdure import Perdure
from perdure.ops.copying import Progress, Side, copy
from perdure.store.open import open_store
from perdure.store.protocols import StoreSettings
from perdure.store.rows import LAST_ID
from perdure.store.store import SqlStore
from perdure.store.tables import Table, tables
from tests.conftest import SIZE
from tests.mariadb_server import MariaDBServer, mariadb_server, mariadb_url
from tests.postgres_server import PostgresServer, postgres_server, postgres_url
from tests.unit.patient import populate

__all__ = ["mariadb_server", "mariadb_url", "postgres_server", "postgres_url"]

Rows = dict[str, list[tuple[object, ...]]]

_MARKS = {"sqlite": [], "postgres": [pytest.mark.postgres], "mariadb": [pytest.mark.mariadb]}
_EVERY = list(product(_MARKS, _MARKS))
_USUAL = [*product(("sqlite", "postgres"), repeat=2), ("sqlite", "mariadb"), ("mariadb", "postgres")]
PAIRS = [
    pytest.param(source, target, marks=_MARKS[source] + _MARKS[target])
    for source, target in (_EVERY if SIZE == "full" else _USUAL)
]
"""From each sort of database to each; every day, MariaDB once as the source and once as the target."""


class Makers:
    """Makes databases that are at the newest schema and empty."""

    def __init__(self, folder: Path, request: pytest.FixtureRequest) -> None:
        self._folder = folder
        self._request = request
        self._made = 0

    def __call__(self, sort: str) -> str:
        """The URL of a new one."""
        if sort == "postgres":
            return self._postgres.new_upgraded()
        url = self._file() if sort == "sqlite" else self._mariadb.new_database()
        with closing(open_store(url)) as store:
            store.upgrade()
        return url

    def filled_again(self, sort: str, source: str) -> str:
        """One more like this one, which `fill` has filled."""
        if sort == "sqlite":
            return str(shutil.copy(source, self._file()))
        if sort == "postgres":
            return self._postgres.copy_of(source)
        url = self(sort)
        fill(url)
        return url

    @property
    def _postgres(self) -> PostgresServer:
        server: PostgresServer = self._request.getfixturevalue("postgres_server")
        return server

    @property
    def _mariadb(self) -> MariaDBServer:
        server: MariaDBServer = self._request.getfixturevalue("mariadb_server")
        return server

    def _file(self) -> str:
        self._made += 1
        return str(self._folder / f"{self._made}.db")


@pytest.fixture
def new(tmp_path: Path, request: pytest.FixtureRequest) -> Makers:
    return Makers(tmp_path, request)


def fill(url: str) -> None:
    """Two jobs in every situation; no worker is live, and no queue reserved any more."""
    app = Perdure(url)
    populate(app)
    declare(app)
    for held in app.store.active_reservations():
        app.store.close_reservation(held.id, "released", app.clock.now())
    [flow, *_] = app.store.flows("running", None, LAST_ID, 1)
    app.store.change_flow(flow.id, "pause", app.clock.now())  # which leaves a look to the workers
    app.close()


def declare(app: Perdure) -> None:
    """What `populate` leaves out: a schedule with slots, missed instants, the archive, a lease, a pause,
    a limit, a flow to be looked at."""
    daily = app.schedules.put("daily", "0 7 * * *", kind="work", payload={"n": 1})
    app.trigger("daily")
    app.lock("nightly", ttl=3600).acquire()
    app.queues.pause("side")
    assert isinstance(app.store, SqlStore)
    node, now = app.store.nodes(1)[0].id, app.clock.now()
    missed = [(daily.id.bytes, day, seen, day, None, "late") for day in (1, 2) for seen in (3, 4)]
    app.store.fill(tables()["missed"], missed)
    app.store.fill(tables()["declaration"], [("daily", node, "d", now)])
    archived = [(app.ids.new(), "work", "app", "mail", "completed", now, now, now, "{}") for _ in range(3)]
    app.store.fill(tables()["archive"], archived)
    app.limits.set("gpu", 2, new=True)
    app.store.take_hold("gpu", 1, app.ids.new(), now, 10**9)
    app.store.fill(tables()["start"], [("api", now, app.ids.new(), 1)])
    app.store.fill(tables()["todo"], [("look", app.ids.new(), app.ids.new(), None, now)])


@contextmanager
def side(url: str) -> Iterator[Side]:
    store = open_store(url, StoreSettings(closed_too=True))
    assert isinstance(store, SqlStore)
    try:
        yield Side(store, url)
    finally:
        store.close()


def copied(source: str, target: str, *, despite_workers: bool = True) -> dict[str, int]:
    """The queue moved. The nodes of `populate` beat a moment ago, so as if they lived."""
    with side(source) as left, side(target) as right:
        return copy(left, right, lambda _: None, despite_workers=despite_workers)


def rows_of(url: str) -> Rows:
    """Every row of every table as the copy sees it, without the mark."""
    found: Rows = {name: [] for name in tables()}

    def take(table: Table, rows: list[tuple[object, ...]]) -> None:
        found[table.name] += rows

    with side(url) as one:
        one.store.send(lambda _: None, take)
    return found


def compared(rows: Rows) -> Rows:
    """Without what each database has in its own way: the counters of places, and the pause of the source."""
    queues = [(name, paused, *rest) for name, _, paused, *rest in rows["queue"] if name != "*"]
    return {**rows, "queue": sorted(queues, key=repr)}


class Told:
    """Collects progress."""

    def __init__(self) -> None:
        self.steps: list[Progress] = []

    def __call__(self, step: Progress) -> None:
        self.steps.append(step)
