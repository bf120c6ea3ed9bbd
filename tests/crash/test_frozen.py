"""Workers that stand still for longer than their lease: others take their jobs, and they wake to change nothing."""

from __future__ import annotations

import signal
from functools import partial
from multiprocessing.context import ForkServerProcess

import pytest

from perdure import Job, State
from perdure.ids import to_uuid
from tests.crash import points
from tests.crash.handlers import LEASE_S
from tests.crash.workers import Scene, ended, is_frozen, send

pytestmark = pytest.mark.parametrize("databases", ["sqlite"], indirect=True)


def nodes_of(scene: Scene, pid: int | None) -> list[tuple[str, str | None]]:
    """The nodes that a process has been, oldest first, and why each stopped."""
    rows = sorted(node for node in scene.app.store.nodes(100) if node.pid == pid)
    return [(str(to_uuid(node.id)), node.stop_reason) for node in rows]


def runs_of(scene: Scene, job: Job) -> list[str]:
    return [run.state.value for run in sorted(scene.app.runs(job), key=lambda run: run.attempt)]


def has_come_back(scene: Scene, pid: int | None) -> bool:
    return len(nodes_of(scene, pid)) == 2


@pytest.mark.parametrize("kind", ["linger", "loiter"])
def test_a_zombie_is_stopped_and_comes_back_as_another_node(scene: Scene, kind: str) -> None:
    (job,) = scene.enqueue(kind)
    zombie = scene.worker()
    scene.until(lambda: scene.noted("start", job), "the job runs")
    scene.freeze(zombie)
    other = scene.worker(queues=["default"])
    scene.until(lambda: scene.now(job).is_final, "another worker has done the job")
    ended_as = scene.now(job)
    send(zombie, signal.SIGCONT)
    scene.until(lambda: scene.noted("stopped", job), "the zombie's handler is stopped")
    scene.until(lambda: has_come_back(scene, zombie.pid), "the zombie has come back")
    (later,) = scene.enqueue("nap", queue="aside", ms=0)  # the other one does not serve this queue
    scene.until(lambda: scene.now(later).is_final, "the zombie works again")
    for worker in (zombie, other):
        send(worker, signal.SIGTERM)
        worker.join()
        assert worker.exitcode == 0

    assert scene.now(job) == ended_as
    assert ended_as.result == "attempt 2"
    assert runs_of(scene, job) == ["lost", "completed"]
    assert scene.noted("stopped", job)[0]["why"] == "lost"
    assert [reason for _, reason in nodes_of(scene, zombie.pid)] == ["unknown", "clean_shutdown"]
    assert scene.noted("start", later)[0]["node"] == nodes_of(scene, zombie.pid)[1][0]


@pytest.mark.parametrize("other_is_there", [True, False], ids=["watched by another", "found by a new one"])
def test_the_report_of_a_frozen_worker_comes_too_late_and_changes_nothing(scene: Scene, other_is_there: bool) -> None:
    go = scene.path.with_suffix(".go")
    (job,) = scene.enqueue("dawdle", go=str(go))
    zombie = scene.worker()
    others = [scene.worker(queues=["aside"])] if other_is_there else []
    scene.until(lambda: scene.noted("start", job), "the job runs")
    scene.freeze(zombie)
    others += [scene.worker()]
    scene.until(lambda: scene.now(job).is_final, "another worker has done the job")
    ended_as = scene.now(job)
    go.touch()
    send(zombie, signal.SIGCONT)
    scene.until(lambda: "the job had been taken from this node" in scene.log.read_text(), "the zombie has reported")
    for worker in (zombie, *others):
        send(worker, signal.SIGTERM)
        worker.join()
        assert worker.exitcode == 0

    assert scene.now(job) == ended_as
    assert ended_as.result == "attempt 2"
    assert runs_of(scene, job) == ["lost", "completed"]


def test_a_zombie_that_nobody_missed_just_goes_on(scene: Scene) -> None:
    go = scene.path.with_suffix(".go")
    (job,) = scene.enqueue("dawdle", go=str(go))
    worker = scene.worker()
    scene.until(lambda: scene.noted("start", job), "the job runs")
    scene.freeze(worker)
    beat = scene.app.store.live_nodes()[0].beat
    scene.until(lambda: silent_for_a_lease(scene), "a lease has passed")
    go.touch()
    send(worker, signal.SIGCONT)
    scene.until(lambda: scene.now(job).is_final, "the job ends")
    scene.until(lambda: scene.app.store.live_nodes()[0].beat > beat, "it beats again")
    send(worker, signal.SIGTERM)
    worker.join()

    assert worker.exitcode == 0
    assert scene.now(job).result == "attempt 1"
    assert runs_of(scene, job) == ["completed"]
    assert nodes_of(scene, worker.pid)[0][1] == "clean_shutdown"


def test_a_zombie_that_slept_before_or_after_any_transaction_changes_nothing(scene: Scene) -> None:
    jobs = [*scene.enqueue("work", ms=0), *scene.enqueue("breed", children=2), *scene.enqueue("falter")]
    awake = scene.copy("awake")
    ended(awake.process(points.sleep_between, awake.place, 0, awake.reached))
    places = len(awake.reached.read_text().splitlines())
    copies = [scene.copy(f"{nth}") for nth in range(1, places + 1)]
    sleepers = [copy.process(points.sleep_between, copy.place, nth, copy.reached) for nth, copy in enumerate(copies, 1)]
    for copy, sleeper in zip(copies, sleepers, strict=True):
        copy.until(partial(is_frozen, sleeper), "it sleeps")
        (node,) = copy.app.store.live_nodes()
        assert copy.app.store.stop(node.id, "unknown", copy.app.clock.now(), node.beat)
    for drainer in [copy.worker(until_idle=True) for copy in copies]:
        ended(drainer)
    for copy, sleeper in zip(copies, sleepers, strict=True):
        before = {job.id: job for job in copy.app.jobs()}
        assert {before[job.id].state for job in jobs} == {State.COMPLETED}
        send(sleeper, signal.SIGCONT)
        ended(sleeper)
        assert sleeper.exitcode == 0
        assert {job.id: job for job in copy.app.jobs()} == before
    for every in (awake, *copies):
        every.check()
    assert places >= 6
    scene.drain()


def silent_for_a_lease(scene: Scene) -> bool:
    (node,) = scene.app.store.live_nodes()
    return scene.app.clock.now() - node.beat_at > 1.2 * LEASE_S * 1_000_000


def test_a_job_that_holds_the_interpreter_is_not_lost_if_nobody_else_is_there(
    scene: Scene,
) -> None:
    (job,) = scene.enqueue("hog", seconds=1.4 * LEASE_S)
    scene.drain()

    assert scene.now(job).result == "attempt 1"
    assert runs_of(scene, job) == ["completed"]


def test_a_job_that_holds_the_interpreter_ends_once_although_its_node_is_declared_dead(scene: Scene) -> None:
    # Held just while another thread writes, it keeps all others from writing too, and nobody can take it: then again.
    jobs = (hogged_beside_another(scene) for _ in range(5))
    job = next(job for job in jobs if runs_of(scene, job) != ["completed"])

    assert runs_of(scene, job) == ["lost", "completed"]
    assert scene.now(job).result == "attempt 2"


def hogged_beside_another(scene: Scene) -> Job:
    (job,) = scene.enqueue("hog", seconds=3 * LEASE_S)
    innocent = scene.enqueue("nap", times=3, ms=100)
    hogging = scene.worker()
    scene.until(lambda: scene.noted("start", job), "the job runs")
    other = scene.worker()
    scene.until(lambda: finished(scene, job, hogging), "both have come to an end with it")
    scene.until(scene.is_done, "all is done")
    for worker in (hogging, other):
        send(worker, signal.SIGTERM)
        worker.join()
        assert worker.exitcode == 0
    assert {scene.now(one).state for one in innocent} == {State.COMPLETED}
    return job


def finished(scene: Scene, job: Job, hogging: ForkServerProcess) -> bool:
    """The job has ended, and so has every handler of it; whoever was declared dead has come back."""
    starts = len(scene.noted("start", job))
    is_over = scene.now(job).is_final and len(scene.noted("end", job)) == starts
    return is_over and (starts == 1 or has_come_back(scene, hogging.pid))
