"""Rescuers at the same time, rescuers that decided on what is no longer true, and workers that look like dead ones."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from perdure import Job, Perdure, State
from perdure.clock import Micros
from perdure.ids import JobId, NodeId, RunId
from perdure.job.model import LiveJob
from perdure.job.reports import Completed, Finish
from perdure.store.rows import Claimer, FinishStatus, Lane, NewNode, NodeRow
from perdure.store.store import SqlStore
from perdure.upkeep.rescue import Rescuer
from perdure.worker.liveness import ProcLiveness
from perdure.worker.options import WorkerOptions
from tests import history
from tests.crash import handlers, points
from tests.crash.handlers import Place
from tests.crash.workers import Scene, ended, kill

NEVER = 1_000_000.0
LEASE_S = 2.0


class Between(SqlStore):
    """A store that lets something happen between what a rescuer reads and what it writes."""

    def __init__(self, app: Perdure, happens: Callable[[str], object]) -> None:
        assert isinstance(app.store, SqlStore)
        super().__init__(app.store.runner)
        self._happens = happens

    def live_nodes(self) -> list[NodeRow]:
        return self._after("live_nodes", super().live_nodes())

    def nodes_left_behind(self) -> list[NodeId]:
        return self._after("nodes_left_behind", super().nodes_left_behind())

    def overdue(self, now: Micros, limit: int) -> list[LiveJob]:
        return self._after("overdue", super().overdue(now, limit))

    def _after(self, name: str, answer: Any) -> Any:
        self._happens(name)
        return answer


class Clock:
    """Both clocks stand still until the test lets time pass."""

    def __init__(self, app: Perdure) -> None:
        self._began = app.clock.now()
        self.at = 0.0

    def now(self) -> Micros:
        return Micros(self._began + round(self.at * 1_000_000))

    def boottime(self) -> float:
        return self.at

    def pass_(self, seconds: float) -> None:
        self.at += seconds


def rescuer(app: Perdure, happens: Callable[[str], object], clock: Any = None, lease_s: float = NEVER) -> Rescuer:
    store = Between(app, happens)
    return Rescuer(
        app.parts()._replace(store=store, clock=clock or app.clock), WorkerOptions(lease_s=lease_s, max_crashes=1_000)
    )


def dead_holder(scene: Scene, jobs: int) -> list[Job]:
    """Jobs, all of them held by workers that were killed."""
    enqueued = scene.enqueue("work", times=jobs, ms=0)
    for number in range(jobs // 2):
        ready = scene.path.with_suffix(f".ready{number}")
        holder = scene.process(points.hold, scene.place, ready)
        scene.until(ready.exists, "the jobs are claimed")
        kill(holder)
    return enqueued


def charged_once(scene: Scene, jobs: list[Job]) -> None:
    scene.drain()
    for job in jobs:
        assert [run.state.value for run in scene.app.runs(job)].count("lost") == 1
        assert (scene.now(job).state, scene.now(job).attempts) == (State.COMPLETED, 2)


# -- at the same time ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["live_nodes", "nodes_left_behind"])
def test_two_rescuers_that_saw_the_same_take_each_job_back_once(scene: Scene, where: str) -> None:
    jobs = dead_holder(scene, 8)
    both = threading.Barrier(2)
    happens: Callable[[str], object] = lambda name: both.wait() if name == where else None  # noqa: E731
    own = NodeId(scene.app.ids.new())
    with ThreadPoolExecutor(2) as pool:
        looking = [pool.submit(rescuer(scene.app, happens).look, own) for _ in range(2)]
        assert sum(look.result() for look in looking) == len(jobs)
    charged_once(scene, jobs)


def test_rescuers_in_several_processes_take_each_job_back_once(scene: Scene) -> None:
    jobs = dead_holder(scene, 8)
    go = scene.path.with_suffix(".go")
    rescuers = [scene.process(look_when_told, scene.place, go) for _ in range(4)]
    go.touch()
    for process in rescuers:
        ended(process)
        assert process.exitcode == 0
    taken = [one["jobs"] for one in scene.noted("rescued")]
    assert (len(taken), sum(taken)) == (4, len(jobs))
    charged_once(scene, jobs)


def look_when_told(place: Place, go: Path) -> None:
    app = handlers.begin(place)
    rescuing = points.rescuer_of(app)
    app.store.queues()
    while not go.exists():
        pass
    handlers.note("rescued", jobs=rescuing.look(NodeId(app.ids.new())))


# -- too late --------------------------------------------------------------------------------------------------------


def registered(scene: Scene) -> NodeId:
    """A node of this very process."""
    node = NodeId(scene.app.ids.new())
    own = ProcLiveness().own()
    scene.app.store.register(NewNode(node, scene.app.clock.now(), own, lease_us=round(LEASE_S * 1_000_000)))
    return node


def claimed_here(scene: Scene, **options: Any) -> tuple[NodeId, LiveJob, Job]:
    """A job that this very process holds, so that nobody can see it die."""
    app = scene.app
    draft = app.draft("work", {"ms": 0}, options)  # type: ignore[arg-type]
    (job,) = app.enqueue_many([draft])
    history.note(scene.history, "enqueued", job=job.id)
    node = registered(scene)
    claimer = Claimer(node, None, [RunId(app.ids.new())], 0)
    (claim,) = app.store.claim([Lane("default", 1)], claimer, app.clock.now())
    facts = {"job": job.id, "run": claim.run_id.hex()}
    history.note(scene.history, "start", **facts)
    history.note(scene.history, "end", **facts)
    return node, claim.live, job


def finish(scene: Scene, live: LiveJob) -> FinishStatus:
    app = scene.app
    report = Finish(live, Completed('"in time"'), JobId(app.ids.new()))
    (finished,) = app.store.finish([report], app.clock.now())
    return finished.status


def test_a_node_that_beats_after_the_rescuers_look_is_not_declared_dead(scene: Scene) -> None:
    node, live, job = claimed_here(scene)
    beaten = False

    def beat(name: str) -> None:
        if name == "live_nodes" and clock.at == LEASE_S:
            nonlocal beaten
            beaten = scene.app.store.beat(node, scene.app.clock.now())

    clock = Clock(scene.app)
    late = rescuer(scene.app, beat, clock, lease_s=LEASE_S)
    own = registered(scene)
    while not beaten:
        assert late.look(own) == 0
        clock.pass_(0.5)
        scene.app.store.beat(own, clock.now())
    assert [row.stop_reason for row in scene.app.store.nodes(10)] == [None, None]
    assert finish(scene, live) is FinishStatus.APPLIED
    assert scene.now(job).result == "in time"


def test_the_same_node_without_that_beat_is_declared_dead(scene: Scene) -> None:
    _, live, job = claimed_here(scene)
    clock = Clock(scene.app)
    patient = rescuer(scene.app, lambda _: None, clock, lease_s=LEASE_S)
    own = registered(scene)
    while not patient.look(own):
        clock.pass_(0.5)
        scene.app.store.beat(own, clock.now())
    assert clock.at == LEASE_S
    assert finish(scene, live) is FinishStatus.LOST
    scene.drain()
    assert scene.now(job).attempts == 2


def test_a_job_that_ends_after_the_rescuers_look_stays_ended(scene: Scene) -> None:
    node, live, job = claimed_here(scene)
    assert scene.app.store.stop(node, "unknown", scene.app.clock.now())
    answers: list[FinishStatus] = []

    def end(name: str) -> None:
        if name == "nodes_left_behind":
            answers.append(finish(scene, live))

    assert rescuer(scene.app, end).look(NodeId(scene.app.ids.new())) == 0
    assert answers == [FinishStatus.APPLIED]
    assert scene.now(job).result == "in time"
    assert [run.state.value for run in scene.app.runs(job)] == ["completed"]


def test_a_job_that_ends_just_before_it_is_closed_as_overdue_stays_ended(scene: Scene) -> None:
    node, _, first = claimed_here(scene, timeout=0.5)
    needed = looks_at_overdue(scene, node, until=lambda _: scene.now(first).state is not State.RUNNING)
    scene.app.cancel(first)
    node, live, second = claimed_here(scene, timeout=0.5)
    answers: list[FinishStatus] = []

    def end_in_the_last(look: int) -> bool:
        if look == needed:
            answers.append(finish(scene, live))
        return look > needed

    looks_at_overdue(scene, node, until=end_in_the_last)
    assert answers == [FinishStatus.APPLIED]
    assert scene.now(second).result == "in time"
    assert [run.state.value for run in scene.app.runs(first)] == ["timed_out"]
    assert [run.state.value for run in scene.app.runs(second)] == ["completed"]


def looks_at_overdue(scene: Scene, node: NodeId, until: Callable[[int], bool]) -> int:
    """A rescuer looks and looks while the node lives; `until` is asked after it has read and before it writes.

    Answers in which look it wrote, or was told to stop.
    """
    clock, own = Clock(scene.app), registered(scene)
    look = 0
    over = False

    def happens(name: str) -> None:
        nonlocal over
        if name == "live_nodes":
            for one in (node, own):
                scene.app.store.beat(one, clock.now())
        if name == "overdue":
            over = until(look)

    late = rescuer(scene.app, happens, clock, lease_s=LEASE_S)
    while not over:
        look += 1
        assert look < 1_000, "the run was never closed"
        clock.pass_(0.25)
        late.look(own)
    return look - 1


# -- the same host and pid -------------------------------------------------------------------------------------------


def test_a_worker_with_the_pid_of_a_dead_one_knows_that_it_is_another(scene: Scene) -> None:
    jobs = scene.enqueue("work", times=2, ms=0)
    process = scene.process(be_my_own_successor, scene.place)
    ended(process)
    assert process.exitcode == 0

    old, new = sorted(scene.app.store.nodes(10))
    assert (old.host, old.pid) == (new.host, new.pid)
    assert (old.stop_reason, new.stop_reason) == ("crash", "clean_shutdown")
    charged_once(scene, jobs)


def be_my_own_successor(place: Place) -> None:
    """Leave jobs behind as a process of this pid that started earlier, then start as a worker."""
    app = handlers.begin(place)
    node = NodeId(app.ids.new())
    earlier = ProcLiveness().own()._replace(process_start="1")
    app.store.register(NewNode(node, app.clock.now(), earlier))
    claimer = Claimer(node, None, [RunId(run_id) for run_id in app.ids.new_many(2)], 0)
    assert len(app.store.claim([Lane("default", 2)], claimer, app.clock.now())) == 2
    raise SystemExit(app.worker().run(until_idle=True))
