"""A database in which pairs are played, and what must be true after each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import psycopg

from perdure import Perdure
from perdure.job import transitions
from perdure.job.reports import Completed
from perdure.job.states import State, Verb
from perdure.store.open import open_store
from perdure.store.protocols import Store
from perdure.store.rows import JobFilter
from perdure.store.store import SqlStore
from perdure.testing.contract.rig import Rig
from tests import history
from tests.hurried_doctor import Ask, HurriedDoctor, on_mariadb, on_postgres
from tests.interleaving.pairs import Pair
from tests.interleaving.stage import TO_THE_END, Order, Side, Stage, last_moments, sample
from tests.mariadb_server import connected, flavour_of

Make = Callable[[Rig], Pair]


class Dialect(NamedTuple):
    """What differs between servers."""

    server: str
    """The fixture that starts one."""
    doctor: Callable[[str], AbstractContextManager[HurriedDoctor]]
    """Who comes to the database with this URL after each play."""
    waiting: Callable[[Ask], int]
    """How many transactions wait for a lock, now."""
    small: Callable[[Sequence[int], str], list[Order]]
    """The orders of a pair that are played at small size."""
    soon: str | None = None
    """Lets the database tell of a deadlock soon. None: it does."""


@contextmanager
def _doctor_on_postgres(url: str) -> Iterator[HurriedDoctor]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield on_postgres(connection)


@contextmanager
def _doctor_on_mariadb(url: str) -> Iterator[HurriedDoctor]:
    with closing(connected(url, autocommit=True)) as connection:
        yield on_mariadb(connection, flavour_of(connection))


def _waiting_on_postgres(ask: Ask) -> int:
    # Not pg_stat_activity: whoever lets go of a lock grants it, but the waiter says so only when it is awake.
    [(number,)] = ask("SELECT COUNT(DISTINCT pid) FROM pg_locks WHERE NOT granted")
    return int(number)


def _waiting_on_mariadb(ask: Ask) -> int:
    # Not innodb_trx or innodb_lock_waits: they show the state of a while ago as long as they are read every 0.1 s. What
    # stands before the list is about the last deadlock.
    [(_, _, status)] = ask("SHOW ENGINE INNODB STATUS")
    _, _, transactions = str(status).partition("\nLIST OF TRANSACTIONS")
    return transactions.count("\nLOCK WAIT ")


DIALECTS = {
    "postgres": Dialect(
        "postgres_server",
        _doctor_on_postgres,
        _waiting_on_postgres,
        sample,
        "DO $$BEGIN EXECUTE format('ALTER DATABASE %I SET deadlock_timeout = 20', current_database()); END$$",
    ),
    "mariadb": Dialect("mariadb_server", _doctor_on_mariadb, _waiting_on_mariadb, last_moments),
}


class Theatre:
    """One database, emptied before every play."""

    def __init__(self, dialect: Dialect, url: str, notes: Path, doctor: HurriedDoctor) -> None:
        self.dialect = dialect
        self._notes = notes
        self._doctor = doctor
        self._app = Perdure(url, auto_migrate=True)
        self._app.store.upgrade()
        if dialect.soon is not None:
            with self._app.transaction() as tx:
                tx.execute(dialect.soon)
        self._url = url
        self._store = open_store(url)
        self._sides = [open_store(url), open_store(url)]
        runners = [side.runner for side in self._sides if isinstance(side, SqlStore)]
        self._stage = Stage((runners[0], runners[1]), self.waiting)

    def close(self) -> None:
        for store in (self._store, *self._sides):
            store.close()
        self._app.close()

    def rig(self) -> Rig:
        """For a test of its own, with nothing in the database."""
        rig = Rig(self._url, lambda _: self._store)
        rig.clear()
        return rig

    def another(self) -> Store:
        """Somebody else's connection."""
        return self._sides[0]

    def waiting(self) -> int:
        """How many transactions wait for a lock, now."""
        return self.dialect.waiting(self._doctor.ask)

    # -- plays -------------------------------------------------------------------------------------------------------

    def steps_of(self, make: Make) -> tuple[int, int]:
        """How many steps each takes when nobody is in its way."""
        one, two = (self.play(make, Order(first, TO_THE_END, TO_THE_END)) for first in (0, 1))
        return one[0], two[1]

    def play(self, make: Make, order: Order) -> tuple[int, int]:
        """Once, in this order. Returns how many steps each took; fails if anything is not as it must be."""
        rig = self.rig()
        pair = make(rig)
        (one, two), trace = self._stage.play((pair.first, pair.second), order)
        try:
            assert pair.may_wait or not (one.waited or two.waited), "one waited for a lock of the other"
            self._doctor.require_health(self._app.store)  # at first: what follows could mend it
            pair.check(one.answer, two.answer)
            _drain(rig)
            self._explain()
        except AssertionError as error:
            told = "\n  ".join(trace)
            raise AssertionError(f"{error}\n{_said(one)}\n{_said(two)}\nin this order:\n  {told}") from error
        return one.taken, two.taken

    def _explain(self) -> None:
        """All has ended, and in a way that can be explained."""
        assert history.problems(self._notes, self._app, handlers_note=False) == []


def _said(side: Side) -> str:
    return f"the {side.name} was told {side.answer!r}"


def _drain(rig: Rig) -> None:
    """Bring to its end whatever is left: nothing waits for somebody who has gone."""
    for held in rig.store.active_reservations():
        rig.store.close_reservation(held.id, "released", rig.now)
    for queue in rig.store.queues():
        rig.store.pause_queue(queue.name, None)
    for left in rig.store.live_nodes():
        rig.crash(left.id, max_crashes=99)
    queues = {job.row.queue for job in rig.listed(JobFilter(), 1_000)}
    node = rig.register()
    for _ in range(20):  # a chain of jobs that wait for each other has fewer
        rig.clock.advance(hours=1)
        rig.settle()
        rig.store.promote(rig.now, 100)
        for job in rig.listed(JobFilter(state=State.PARKED), 100):
            rig.change(job.row.id, Verb.RESUME, transitions.resume)
        taken = [claim for queue in queues for claim in rig.claim(10, queue=queue, node=node, max_crashes=99)]
        if not taken:
            return
        rig.store.finish([rig.report(claim, Completed()) for claim in taken], rig.now)
