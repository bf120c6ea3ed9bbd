"""How often a node looks and how long it waits after errors, by a clock that the test moves; how runs are measured."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from perdure import Limit, Perdure, State
from perdure.clock import ManualClock, Micros, SystemClock
from perdure.ids import JobId
from perdure.job.model import Failure
from perdure.job.reports import Finish, TimedOut
from perdure.worker.node import Node
from perdure.worker.options import WorkerOptions
from perdure.worker.run import Assignment, Inbox
from perdure.worker.signals import Stop
from perdure.worker.worker import Pools
from tests.worker.bodies import last_run
from tests.worker.patience import DEADLINE_S, seen_by_the_doctor


class Bench:
    """A node whose turns the test makes, on a clock that it moves."""

    def __init__(self, path: Path) -> None:
        self.clock = ManualClock(datetime(2030, 1, 1, tzinfo=UTC))
        self.app = Perdure(path, durability="normal", clock=self.clock, busy_timeout_s=0.01)
        self.ended = threading.Event()
        inbox = Inbox(self.ended.set)
        self.pools = Pools(inbox)
        self.node = Node(self.app.parts(), WorkerOptions(), self.pools, inbox)

    def turn_until_written(self) -> None:
        """What runs, runs to its end."""
        assert self.ended.wait(60)
        self.node.turn()
        assert self.node.is_empty


@pytest.fixture
def bench(path: Path) -> Iterator[Bench]:
    bench = Bench(path)
    yield bench
    assert bench.pools.close(60)
    bench.node.sign_off()
    seen_by_the_doctor(bench.app)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Somebody else writes, and does not come to an end."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


def test_a_node_that_nobody_rings_looks_every_second(bench: Bench) -> None:
    @bench.app.job
    def note() -> None: ...

    bench.node.register()
    assert bench.node.turn() == 1.0

    job = note.enqueue()
    bench.clock.advance(milliseconds=999)
    bench.node.turn()
    assert bench.app.existing(job).state is State.QUEUED

    bench.clock.advance(milliseconds=1)
    bench.node.turn()
    bench.turn_until_written()
    assert bench.app.existing(job).state is State.COMPLETED


def test_pauses_after_errors_double_up_to_four_seconds_and_begin_anew_after_a_success(bench: Bench, path: Path) -> None:
    @bench.app.job
    def note() -> None: ...

    bench.node.register()
    note.enqueue()
    with locked(path):
        pauses = [bench.node.turn() for _ in range(11)]
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 4, 4, 4, 4, 4])

    bench.node.turn()
    bench.turn_until_written()
    note.enqueue()
    bench.node.look_again()
    with locked(path):
        assert bench.node.turn() == pytest.approx(0.1)
    bench.ended.clear()
    bench.node.turn()
    bench.turn_until_written()


def test_a_node_is_back_when_the_next_job_is_due(bench: Bench) -> None:
    @bench.app.job
    def note() -> None: ...

    bench.node.register()
    note.options(delay=0.25).enqueue()

    assert bench.node.turn() == pytest.approx(0.25)


def test_the_turn_that_writes_the_end_of_a_limited_job_starts_the_next_of_its_line(bench: Bench) -> None:
    """Not a later one: between a place that is free and the next start are one transaction and no pause."""

    @bench.app.job(limit=Limit("printer", 1))
    def print_it() -> None: ...

    bench.node.register()
    first, second = print_it.enqueue_many([{}, {}])
    bench.node.turn()
    assert bench.ended.wait(60)
    bench.ended.clear()

    bench.node.turn()
    assert bench.app.existing(first).state is State.COMPLETED
    assert [task.claim.live.job_id for task in bench.node.held.values()] == [second.row.id]
    bench.turn_until_written()


def test_a_node_is_idle_only_once_what_it_ran_is_written(bench: Bench) -> None:
    may_end = threading.Event()

    @bench.app.job
    def wait() -> None:
        assert may_end.wait(60)

    bench.node.register()
    wait.enqueue()
    bench.node.turn()
    bench.node.look_again()
    bench.node.turn()  # nothing more is queued
    assert not bench.node.is_idle

    may_end.set()
    assert bench.ended.wait(60)
    assert not bench.node.is_idle
    bench.node.turn()
    bench.node.turn()
    assert bench.node.is_idle


def test_a_node_that_claims_nothing_writes_nothing_when_something_is_due(bench: Bench, path: Path) -> None:
    @bench.app.job
    def note() -> None: ...

    bench.node.register()
    note.options(delay=5).enqueue()
    bench.node.turn()
    bench.clock.advance(seconds=10)
    bench.node.accepting = False
    with locked(path):
        bench.node.turn()
        assert not bench.node.in_trouble
    bench.node.accepting = True
    bench.node.turn()  # it is queued
    bench.node.turn()  # and claimed
    bench.turn_until_written()


def test_a_node_declared_dead_is_somebody_new_only_once_the_database_knows_it(bench: Bench, path: Path) -> None:
    bench.node.register()
    before = bench.node.id
    bench.app.store.stop(before, "unknown", bench.clock.now())
    bench.node.declared_dead = True
    with locked(path):
        bench.node.turn()
        assert bench.node.in_trouble
    assert bench.node.id == before

    bench.node.turn()
    assert not bench.node.declared_dead
    assert [node.id for node in bench.app.store.live_nodes()] == [bench.node.id]


def told(task: Assignment) -> Stop | None:
    return task.ctx.stop


@contextmanager
def running(bench: Bench) -> Iterator[Assignment]:
    """A job that runs, and that nothing can interrupt until the block is left."""
    began, may_end = threading.Event(), threading.Event()

    @bench.app.job
    def wait() -> None:
        began.set()
        may_end.wait(DEADLINE_S)

    bench.node.register()
    wait.enqueue()
    bench.node.turn()
    assert began.wait(DEADLINE_S)
    [task] = bench.node.held.values()
    assert told(task) is None
    yield task
    may_end.set()
    assert bench.ended.wait(DEADLINE_S)
    bench.node.turn()
    assert bench.node.is_empty


def test_a_node_that_comes_back_stops_what_it_ran_at_once(bench: Bench) -> None:
    """Not only when it next compares what it runs with the database, which is a lease later."""
    with running(bench) as task:
        bench.app.store.stop(bench.node.id, "unknown", bench.clock.now())
        bench.node.declared_dead = True
        bench.node.turn()
        assert told(task) is Stop.LOST
        bench.node.accepting = False


def test_a_node_that_nobody_took_for_dead_stops_a_run_that_was_closed_within_a_lease(bench: Bench) -> None:
    with running(bench) as task:
        closing = Finish(
            task.claim.live, TimedOut(Failure("JobTimeout", "closed by another")), JobId(bench.app.ids.new())
        )
        bench.app.store.finish([closing], bench.clock.now())
        bench.node.accepting = False
        bench.clock.advance(seconds=59)
        bench.node.turn()
        assert told(task) is None
        bench.clock.advance(seconds=1)
        bench.node.turn()
        assert told(task) is Stop.LOST
        assert not bench.node.declared_dead


def test_a_node_says_its_lease_when_it_registers_and_when_it_comes_back(bench: Bench) -> None:
    bench.node.register()
    before = bench.node.id
    bench.app.store.stop(before, "unknown", bench.clock.now())
    bench.node.declared_dead = True
    bench.node.turn()

    assert bench.node.id != before
    assert [node.lease_us for node in bench.app.store.nodes(9)] == [60_000_000] * 2


@pytest.mark.parametrize(("crashes", "together"), [(1, 4), (2, 2)])
def test_while_a_suspect_runs_no_other_comes_beside_it(bench: Bench, path: Path, crashes: int, together: int) -> None:
    """Turn after turn, not only in the one that claimed it; who never saw a node die does come."""
    began, may_end = threading.Semaphore(0), threading.Event()

    @bench.app.job
    def wait() -> None:
        began.release()
        may_end.wait(DEADLINE_S)

    bench.node.register()
    wait.enqueue_many([{}] * 3)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE perdure_ready SET crashes = ?", (crashes,))
    wait.enqueue()
    for _ in range(5):
        bench.node.turn()
        bench.node.look_again()
        bench.clock.advance(seconds=1)
    assert len(bench.node.held) == together

    for _ in range(together):
        assert began.acquire(timeout=DEADLINE_S)
    may_end.set()
    while not (bench.node.is_empty and bench.node.is_idle):
        bench.node.turn()


class Jumping(SystemClock):
    """The machine's clock, with a wall clock that somebody sets."""

    ahead_us = 0

    def now(self) -> Micros:
        return Micros(super().now() + self.ahead_us)


def test_a_runs_duration_is_not_measured_by_the_wall_clock(path: Path) -> None:
    clock = Jumping()
    app = Perdure(path, durability="normal", clock=clock)
    inside: list[float] = []

    @app.job
    def slow() -> None:
        began = time.monotonic()
        clock.ahead_us = 3_600_000_000
        while time.monotonic() - began < 0.005:
            pass
        inside.append(time.monotonic() - began)

    job = slow.enqueue()
    began = time.monotonic()
    app.worker().run(until_idle=True)
    outside = time.monotonic() - began

    run = last_run(app, job)
    assert run.finished_at is not None
    assert run.finished_at - run.started_at > timedelta(hours=1)
    assert run.duration_ms is not None
    assert int(inside[0] * 1_000) <= run.duration_ms <= outside * 1_000
    seen_by_the_doctor(app)
