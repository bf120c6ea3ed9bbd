"""`worker.health()`: how a worker is, as data for probes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure import Perdure, State
from perdure.clock import SystemClock
from perdure.upkeep.rescue import LOOKS
from perdure.worker.health import problem_of
from perdure.worker.heartbeat import BEATS_PER_LEASE
from tests.worker.patience import eventually, seen_by_the_doctor


class Stuck(SystemClock):
    """A clock that the store thread hangs on while it is `stuck`."""

    def __init__(self) -> None:
        self.stuck = threading.Event()
        self.freed = threading.Event()

    def boottime(self) -> float:
        if self.stuck.is_set() and threading.current_thread().name == "perdure-store":
            self.freed.wait()
        return super().boottime()


class Ahead(SystemClock):
    """A clock that can be put forward."""

    ahead_s = 0.0

    def boottime(self) -> float:
        return super().boottime() + self.ahead_s


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    clock = Stuck()
    yield clock
    clock.freed.set()


def test_the_life_of_a_worker_can_be_seen(app: Perdure) -> None:
    entered, go = threading.Event(), threading.Event()
    during: list[str] = []

    @app.job
    def hold() -> None:
        entered.set()
        go.wait(60)

    hold.enqueue()
    worker = app.worker(before_start=lambda: during.append(worker.health().status))
    before = worker.health()
    with worker.running():
        assert entered.wait(60)
        eventually(lambda: worker.health().turn_age_s is not None)
        running = worker.health()
        worker.stop()
        stopping = worker.health()
        go.set()
    after = worker.health()

    assert (before.status, before.healthy, before.node_id) == ("starting", False, None)
    assert during == ["starting"]
    assert (running.status, running.healthy, running.running, running.problem) == ("running", True, 1, None)
    assert running.node_id is not None
    assert (stopping.status, stopping.healthy) == ("stopping", True)
    assert (after.status, after.healthy, after.running) == ("stopped", False, 0)


def test_the_heartbeat_can_be_seen(path: Path) -> None:
    app = Perdure(path, durability="normal", lease_s=0.6, busy_timeout_s=0.2)
    with app.worker().running() as worker:
        eventually(lambda: worker.health().beat_age_s is not None)
        (node,) = app.store.live_nodes()
        assert node.beat > 0
    seen_by_the_doctor(app)


def test_a_blocked_event_loop_is_reported_until_it_turns_again(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = Ahead()
    app = Perdure(path, durability="normal", clock=clock)
    entered, go = threading.Event(), threading.Event()

    @app.job
    async def block() -> None:
        entered.set()
        go.wait(60)

    job = block.enqueue()
    with app.worker().running() as worker:
        assert entered.wait(60)
        eventually(lambda: worker.health().loop_blocked_s > 0)
        clock.ahead_s = 6.0
        health = worker.health()
        eventually(lambda: "blocked the event loop" in caplog.text)
        go.set()
        app.wait(job, timeout=60)
        eventually(lambda: worker.health().healthy)

    assert not health.healthy
    assert "blocked the event loop for 6 s" in (health.problem or "")
    seen_by_the_doctor(app)


def test_a_worker_whose_store_thread_hangs_gives_up_and_leaves_its_host_alone(path: Path, stuck: Stuck) -> None:
    """Its jobs are interrupted, it beats no more, and another worker goes on with them."""
    app = Perdure(path, durability="normal", lease_s=0.6, busy_timeout_s=0.2, clock=stuck)
    other = Perdure(path, durability="normal", lease_s=0.6, busy_timeout_s=0.2)
    entered, cancelled = threading.Event(), threading.Event()

    @app.job(name="hold")
    async def hold_here() -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    @other.job(name="hold")
    async def hold_there() -> str:
        return "done"

    job = hold_here.enqueue()
    with app.worker(grace_s=0).running() as worker:
        assert entered.wait(60)
        stuck.stuck.set()
        eventually(lambda: worker.health().status == "hung")
        health = worker.health()
        assert (health.healthy, worker.exit_code) == (False, 75)
        assert "does not move" in (health.problem or "")
        assert cancelled.wait(60)
        with other.worker().running():
            assert hold_there.wait(job, timeout=60) == "done"
        assert app.store.nodes(10)[-1].stop_reason == "unknown"
    assert worker.health().status == "hung"

    stuck.freed.set()
    eventually(lambda: not any(thread.name == "perdure-store" for thread in threading.enumerate()))
    assert other.existing(job).state is State.COMPLETED
    app.close()
    seen_by_the_doctor(other)


@pytest.mark.parametrize(
    ("turn_age_s", "beat_age_s", "loop_blocked_s", "told"),
    [
        (1.0, 1.0, 0.0, None),
        (None, None, 0.0, None),
        (61.0, 1.0, 0.0, "the database has not been reached for 61 s"),
        (61.0, 61.0, 9.0, "no heartbeat could be written for 61 s"),
        (1.0, 1.0, 5.1, "blocked the event loop for 5 s"),
        (1.0, 1.0, 4.9, None),
    ],
)
def test_the_worst_problem_is_told(
    turn_age_s: float | None, beat_age_s: float | None, loop_blocked_s: float, told: str | None
) -> None:
    problem = problem_of("running", 60.0, turn_age_s, beat_age_s, loop_blocked_s)

    assert problem is None if told is None else told in (problem or "")


def test_a_node_beats_twice_between_the_looks_of_others() -> None:
    """Others look at least three times in a lease, and must see another beat each time."""
    assert BEATS_PER_LEASE >= 2 * LOOKS
