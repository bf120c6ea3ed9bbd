"""The wall clock jumps, the machine sleeps: nobody is declared dead and nothing is timed out because of it."""

from __future__ import annotations

import threading
from datetime import UTC, datetime

import pytest

from perdure import JobContext, Perdure
from perdure.clock import ManualClock, Micros, SystemClock
from perdure.ids import IdFactory, JobId, NodeId, RunId, timestamp_of
from perdure.job.model import Claim
from perdure.job.reports import Completed, Finish
from perdure.store.rows import Claimer, Lane, NewNode
from perdure.upkeep.rescue import Rescuer
from perdure.worker.heartbeat import Heartbeat
from perdure.worker.options import WorkerOptions
from tests.faults.scene import Scene, until
from tests.history import ended, started

DAY_S = 86_400
LEASE_S = 60.0


class JumpingClock(SystemClock):
    """The machine's clock, with a wall clock that somebody sets."""

    def __init__(self) -> None:
        self.ahead_s = 0

    def now(self) -> Micros:
        return Micros(super().now() + self.ahead_s * 1_000_000)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime(2026, 11, 15, tzinfo=UTC))


@pytest.fixture
def app(scene: Scene, clock: ManualClock) -> Perdure:
    app = scene.app(clock=clock, ids=IdFactory())

    @app.job(timeout=3600)
    def long(ctx: JobContext) -> None: ...

    return app


def registered(app: Perdure, lease_s: float | None = None) -> NodeId:
    """A node of another machine, as far as its row tells."""
    node = NodeId(app.ids.new())
    lease_us = None if lease_s is None else round(lease_s * 1_000_000)
    app.store.register(NewNode(node, app.clock.now(), lease_us=lease_us))
    return node


def claimed(app: Perdure, node: NodeId) -> Claim:
    claimer = Claimer(node, None, [RunId(app.ids.new())], round(LEASE_S * 1_000_000))
    (claim,) = app.store.claim([Lane("default", 1)], claimer, app.clock.now())
    return claim


def rescuer(app: Perdure, lease_s: float = LEASE_S) -> Rescuer:
    return Rescuer(app.parts(), WorkerOptions(lease_s=lease_s))


def watch(
    clock: ManualClock, observer: Rescuer, own: NodeId, seconds: int, beating: NodeId | None, app: Perdure
) -> int:
    """Look every second for so long, while that node beats as does the observer; answers how many jobs were taken."""
    taken = 0
    for second in range(seconds):
        clock.advance(seconds=1)
        for node in (own, beating):
            if node is not None and second % 10 == 0:
                assert app.store.beat(node, clock.now())
        taken += observer.look(own)
    return taken


def finish(app: Perdure, claim: Claim) -> None:
    app.store.finish([Finish(claim.live, Completed(), JobId(app.ids.new()))], app.clock.now())


# -- the wall clock jumps --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("days", [1, -1])
@pytest.mark.parametrize("has_looked_before", [True, False])
def test_a_run_is_not_closed_early_because_the_wall_clock_jumped(
    app: Perdure, clock: ManualClock, days: int, has_looked_before: bool
) -> None:
    own, other, observer = registered(app), registered(app), rescuer(app)
    if has_looked_before:
        watch(clock, observer, own, 5, other, app)
    job = app.enqueue("long")
    claim = claimed(app, other)

    clock.step(seconds=days * DAY_S)
    assert watch(clock, observer, own, 600, other, app) == 0
    assert app.existing(job).state == "running"
    finish(app, claim)
    assert app.existing(job).state == "completed"


def test_a_run_that_nobody_closes_is_closed_although_the_wall_clock_jumped(app: Perdure, clock: ManualClock) -> None:
    own, other, observer = registered(app), registered(app), rescuer(app)
    job = app.enqueue("long", retry=1)
    claimed(app, other)
    clock.step(seconds=DAY_S)
    assert watch(clock, observer, own, 3_700, other, app) == 1
    assert app.existing(job).error_type == "JobTimeout"


def test_an_overdue_run_is_closed_a_lease_after_its_time_out(app: Perdure, clock: ManualClock) -> None:
    own, other, observer = registered(app), registered(app), rescuer(app)
    watch(clock, observer, own, 5, other, app)
    job = app.enqueue("long", retry=1)
    claimed(app, other)
    assert watch(clock, observer, own, 3600 + 60, other, app) == 0
    assert watch(clock, observer, own, 65, other, app) == 1
    assert app.existing(job).state == "failed"


@pytest.mark.parametrize("days", [1, -1])
def test_a_jump_declares_nobody_dead(app: Perdure, scene: Scene, clock: ManualClock, days: int) -> None:
    own, other, observer = registered(app), registered(app), rescuer(app)
    watch(clock, observer, own, 5, other, app)
    clock.step(seconds=days * DAY_S)
    watch(clock, observer, own, 200, other, app)
    assert {node.id for node in app.store.live_nodes()} == {own, other}


def test_jobs_go_on_while_the_clock_jumps_to_and_fro(scene: Scene) -> None:
    clock = JumpingClock()
    app = scene.app(clock=clock, ids=IdFactory(lambda: clock.now() // 1000))
    held = threading.Event()

    @app.job(timeout=600)
    def long(ctx: JobContext) -> int:
        started(scene.notes, ctx)
        held.wait()
        ended(scene.notes, ctx)
        return ctx.attempt

    @app.job
    async def quick(ctx: JobContext) -> int:
        started(scene.notes, ctx)
        ended(scene.notes, ctx)
        return ctx.attempt

    (running,) = scene.sent(long.enqueue())
    seen = [running]
    with app.worker(concurrency=3).running(), scene.app(clock=clock).worker().running():
        until(lambda: app.existing(running).state == "running")
        (tomorrow,) = scene.sent(quick.options(delay=DAY_S - 3600).enqueue())
        for ahead_s in (-DAY_S, 0, DAY_S, -DAY_S):
            before = scene.sent(quick.enqueue())
            clock.ahead_s = ahead_s
            seen += scene.sent(*before, quick.enqueue(), quick.enqueue())
            assert [app.wait(job, 60).result for job in seen[1:]] == [1] * (len(seen) - 1)
            assert app.existing(running).state == "running"
        assert app.wait(tomorrow, 60).result == 1, "it was due when the clock was a day ahead"
        held.set()
        assert app.wait(running, 60).result == 1
    ids = [job.id for job in seen]
    assert len(set(ids)) == len(ids)
    assert all(abs(timestamp_of(job_id).timestamp() - datetime.now(UTC).timestamp()) < 2 * DAY_S for job_id in ids)


# -- the machine sleeps ----------------------------------------------------------------------------------------------


def test_an_observer_that_slept_declares_nobody_dead_at_once(app: Perdure, scene: Scene, clock: ManualClock) -> None:
    """While it slept, the others may have beaten as they should or slept with it: it cannot know."""
    own, other, observer = registered(app), registered(app), rescuer(app)
    watch(clock, observer, own, 30, other, app)
    job = app.enqueue("long")
    claim = claimed(app, other)
    clock.advance(hours=8)
    assert observer.look(own) == 0
    assert watch(clock, observer, own, 50, None, app) == 0
    assert app.store.beat(other, clock.now()), "it has been given a lease to wake up"
    assert app.existing(job).state == "running"
    finish(app, claim)


def test_a_node_that_never_wakes_up_is_declared_dead_a_lease_later(app: Perdure, clock: ManualClock) -> None:
    own, other, observer = registered(app), registered(app), rescuer(app)
    job = app.enqueue("long")
    claimed(app, other)
    clock.advance(hours=8)
    observer.look(own)
    assert watch(clock, observer, own, 65, None, app) == 1
    assert app.existing(job).state == "queued"
    assert not app.store.beat(other, clock.now())
    finish(app, claimed(app, own))


def test_the_time_a_machine_slept_is_not_charged_to_a_run(app: Perdure, clock: ManualClock) -> None:
    own, other, observer = registered(app), registered(app), rescuer(app)
    watch(clock, observer, own, 5, other, app)
    job = app.enqueue("long")
    claim = claimed(app, other)
    watch(clock, observer, own, 100, other, app)
    clock.advance(hours=8)
    assert watch(clock, observer, own, 600, other, app) == 0
    assert app.existing(job).state == "running"
    finish(app, claim)


class Steps:
    """What the heart knows of a node."""

    declared_dead = False
    turns = 0

    def __init__(self, node_id: NodeId) -> None:
        self.id = node_id

    def look_again(self) -> None: ...


def test_a_heart_that_slept_gives_the_store_thread_its_time(app: Perdure, clock: ManualClock) -> None:
    """Both threads wake up late; if the heart is first, the other has not hung."""
    node = Steps(registered(app))
    options = WorkerOptions(lease_s=LEASE_S, busy_timeout_s=0)
    heart = Heartbeat(node, app.parts()._replace(clock=clock), options, lambda: None)  # type: ignore[arg-type]
    assert heart.beat()
    clock.advance(hours=8)
    assert heart.beat()
    beats = 0
    while beats < 20 and heart.beat():
        clock.advance(seconds=10)
        beats += 1
    assert beats == 6, "it has hung for a whole lease now"


# -- leases of different lengths -------------------------------------------------------------------------------------


@pytest.mark.parametrize("lease_s", [LEASE_S, None])
def test_a_worker_with_a_short_lease_leaves_one_with_a_long_lease_alone(
    app: Perdure, clock: ManualClock, lease_s: float | None
) -> None:
    """It beats every ten seconds, which is twice the lease of the one that watches it."""
    own, other, observer = registered(app, 5), registered(app, lease_s), rescuer(app, lease_s=5)
    job = app.enqueue("long")
    claim = claimed(app, other)
    for _ in range(300):
        clock.advance(seconds=1)
        app.store.beat(own, clock.now())
        if clock.boottime() % 10 == 0:
            assert app.store.beat(other, clock.now())
        assert observer.look(own) == 0
    finish(app, claim)
    assert app.existing(job).attempts == 1


def test_a_run_is_given_the_lease_of_its_holder_beyond_its_time_out(app: Perdure, clock: ManualClock) -> None:
    own, other, observer = registered(app, 5), registered(app, LEASE_S), rescuer(app, lease_s=5)
    app.enqueue("long", retry=1)
    claim = claimed(app, other)
    assert claim.live.deadline_at == clock.now() + (3600 + LEASE_S) * 1_000_000
    observer.look(own)
    taken: list[float] = []
    for _ in range(3600 + 65):
        clock.advance(seconds=1)
        for node in (own, other):
            assert app.store.beat(node, clock.now())
        if observer.look(own):
            taken.append(clock.boottime())
    assert taken == [3600 + LEASE_S]
