"""Another process holds the write lock for long. What has run is kept and written afterwards; running goes on."""

from __future__ import annotations

import sqlite3
import threading
import time
from contextlib import closing, suppress
from datetime import UTC, datetime

import pytest

from perdure import JobContext
from perdure.clock import ManualClock
from perdure.errors import DatabaseBusy
from perdure.ids import NodeId
from perdure.store.rows import NewNode
from perdure.upkeep.rescue import Rescuer
from perdure.worker.heartbeat import BEATS_PER_LEASE
from perdure.worker.options import WorkerOptions
from perdure.worker.worker import EXIT_LEFT_BEHIND
from tests.faults.scene import Listener, Scene, count, program, said, tell, until
from tests.history import ended, started

REFUSALS = "the database could not be reached"


def test_a_worker_outlives_a_locked_database(scene: Scene, listener: Listener, full_size: bool) -> None:
    """Small: until the worker has been refused three times. Full: 8 s, with the default time-out."""
    app = scene.app(**({} if full_size else {"busy_timeout_s": 0.2}))
    gate = threading.Event()

    @app.job
    def plain(ctx: JobContext, n: int) -> int:
        started(scene.notes, ctx)
        gate.wait()
        ended(scene.notes, ctx)
        return n

    @app.job
    async def quick(ctx: JobContext, n: int) -> int:
        started(scene.notes, ctx)
        ended(scene.notes, ctx)
        return n

    jobs = scene.sent(*plain.enqueue_many([{"n": n} for n in range(4)]))
    with app.worker(concurrency=4).running():
        until(lambda: count(app, "running") == 4)
        later = scene.sent(*quick.enqueue_many([{"n": n} for n in range(20)]))
        with program("hold_the_lock", scene.path) as locker:
            assert said(locker) == "locked"
            gate.set()  # the four end now, and nobody can write that down
            if full_size:
                time.sleep(8)  # the fault itself
            else:
                until(lambda: listener.heard(REFUSALS) >= 3)
            assert {app.existing(job).state for job in jobs} == {"running"}
            assert all(app.existing(job).attempts == 1 for job in jobs)
            tell(locker)
            assert said(locker) == "released"
        assert [app.wait(job, 60).result for job in jobs] == [0, 1, 2, 3]
        assert [app.wait(job, 60).result for job in later] == list(range(20))
    assert listener.heard(REFUSALS) >= 1
    assert [run.state for run in app.runs()] == ["completed"] * 24, "nothing was run again"


def test_a_worker_that_is_stopped_while_the_database_is_locked_leaves_its_jobs_to_the_next(
    scene: Scene, listener: Listener
) -> None:
    """The outcome cannot be written any more, so the job runs again elsewhere: once, and with a recorded reason."""
    app = scene.app(busy_timeout_s=0.1, lease_s=1.5)
    may_end = threading.Event()

    @app.job
    def plain(ctx: JobContext) -> int:
        started(scene.notes, ctx)
        may_end.wait()
        ended(scene.notes, ctx)
        return ctx.attempt

    (job,) = scene.sent(plain.enqueue())
    worker = app.worker(grace_s=0.5)
    with program("hold_the_lock_when_told", scene.path) as locker:
        with worker.running():
            until(lambda: count(app, "running") == 1)
            tell(locker, "lock")
            assert said(locker) == "locked"
            may_end.set()
            until(lambda: listener.heard(REFUSALS) >= 1)
        assert (app.existing(job).state, worker.exit_code) == ("running", EXIT_LEFT_BEHIND)
        tell(locker)
        assert said(locker) == "released"
    with app.worker().running():
        assert app.wait(job, 60).result == 2
    assert [run.state for run in app.runs(job)] == ["completed", "lost"]


class Member:
    """A worker's heart and its rescuer, by a clock that the test sets."""

    def __init__(self, scene: Scene, clock: ManualClock, lease_s: float) -> None:
        self.app = scene.app(busy_timeout_s=0.01, lease_s=lease_s, clock=clock)
        self.id = NodeId(self.app.ids.new())
        self.app.store.register(NewNode(self.id, clock.now(), lease_us=round(lease_s * 1_000_000)))
        self._clock = clock
        self._beat_every_s = lease_s / BEATS_PER_LEASE
        self._next_beat = clock.boottime() + self._beat_every_s
        self._rescuer = Rescuer(self.app.parts()._replace(clock=clock), WorkerOptions(lease_s=lease_s))

    def beat(self) -> None:
        if self._clock.boottime() >= self._next_beat:
            self._next_beat = self._clock.boottime() + self._beat_every_s
            with suppress(DatabaseBusy):
                self.app.store.beat(self.id, self._clock.now())

    def look(self) -> None:
        with suppress(DatabaseBusy):
            self._rescuer.look(self.id)


@pytest.mark.parametrize("leases", [(60.0, 60.0), (60.0, 5.0), (5.0, 60.0)])
@pytest.mark.parametrize("locked_s", [15, 80])
def test_workers_that_could_not_beat_because_of_a_lock_do_not_declare_each_other_dead(
    scene: Scene, leases: tuple[float, float], locked_s: int
) -> None:
    """Each looks first once the lock is gone, when the other has not had the time to beat."""
    clock = ManualClock(datetime(2026, 11, 15, tzinfo=UTC))
    crew = [Member(scene, clock, lease_s) for lease_s in leases]

    def pass_time(seconds: int) -> None:
        for _ in range(seconds):
            clock.advance(seconds=1)
            for one in crew:
                one.look()
            for one in crew:
                one.beat()

    pass_time(30)
    with closing(sqlite3.connect(scene.path, isolation_level=None)) as locker:
        locker.execute("BEGIN IMMEDIATE")
        pass_time(locked_s)
        locker.execute("ROLLBACK")
    pass_time(30)

    assert {node.id for node in crew[0].app.store.live_nodes()} == {one.id for one in crew}
