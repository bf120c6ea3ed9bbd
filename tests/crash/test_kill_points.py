"""SIGKILL at every statement boundary of claim, finish and rescue, and of all that is done for flows and limits, one
after the other: nothing is ever half done."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import pytest

from perdure import Job, State
from tests.conftest import SIZE
from tests.crash import points
from tests.crash.handlers import Place
from tests.crash.workers import Scene, ended, kill

Doing = Callable[[Place, int, Path], None]

AT_ONCE = 4
"""Deaths that are died beside each other, each on a file of its own."""


def killed_everywhere(scene: Scene, doing: Doing, look: Callable[[Scene], None], everyday: int = 1) -> list[str]:
    """Die at the first boundary, the second, …, until it comes to its end alive. Answers the boundaries.

    `everyday`: where there are many of them, only one of so many is tried every day.
    """
    last: list[str] = []
    step = scene.thrift if SIZE == "full" else max(scene.thrift, everyday)
    for first in count(1, AT_ONCE * step):
        copies = {nth: scene.copy(f"{nth}") for nth in range(first, first + AT_ONCE * step, step)}
        exits = killed_at(copies, doing)
        for nth, copy in copies.items():
            last = max(last, boundaries_of(copy), key=len)
            checked(copy, nth, look)
            copy.close()
        if 0 in exits:
            break
    print(f"{len(last)} boundaries")  # noqa: T201 - shown with -s
    return last


def assert_passed(boundaries: list[str], *parts: str, times: int = 1) -> None:
    """On PostgreSQL statements are sent together, and cannot be told from each other."""
    if "sent" not in boundaries:
        for part in parts:
            assert sum(line.startswith(part) for line in boundaries) >= times, part


def killed_at(copies: dict[int, Scene], doing: Doing) -> list[int | None]:
    """Each copy's process dies at the boundary of its number. When all are dead, a new worker each does the rest."""
    doomed = [copy.process(doing, copy.place, nth, copy.reached) for nth, copy in copies.items()]
    for process, copy in zip(doomed, copies.values(), strict=True):
        ended(process)
        assert process.exitcode in (0, -signal.SIGKILL), f"{process.exitcode}\n{copy.log.read_text()}"
        copy.check(drained=False)
    for drainer in [copy.worker(until_idle=True) for copy in copies.values()]:
        ended(drainer)
        assert drainer.exitcode == 0
    return [process.exitcode for process in doomed]


def checked(copy: Scene, nth: int, look: Callable[[Scene], None]) -> None:
    try:
        look(copy)
        copy.check()
    except AssertionError as error:
        raise AssertionError(f"killed at boundary {nth}: {boundaries_of(copy)}\n{copy.log.read_text()}") from error


def boundaries_of(copy: Scene) -> list[str]:
    return copy.reached.read_text().splitlines() if copy.reached.exists() else []


def completed(*jobs: Job) -> Callable[[Scene], None]:
    def look(scene: Scene) -> None:
        for job in map(scene.now, jobs):
            assert job.state == State.COMPLETED, job.error

    return look


def test_claims_and_finishes_are_whole_wherever_the_worker_dies(scene: Scene) -> None:
    jobs = [*scene.enqueue("work", ms=0), *scene.enqueue("breed", children=2), *scene.enqueue("falter")]

    def look(scene: Scene) -> None:
        completed(*jobs)(scene)
        assert len(list(scene.app.jobs(kind="nap", state="completed"))) == 2

    boundaries = killed_everywhere(scene, points.take_turns, look)
    assert_passed(boundaries, "before COMMIT", "after COMMIT", "before INSERT run", "before INSERT outcome", times=2)
    scene.drain()


def test_a_handlers_own_rows_and_its_end_are_one_wherever_the_worker_dies(scene: Scene) -> None:
    scene.execute("CREATE TABLE payment (job TEXT)")
    jobs = scene.enqueue("pay", times=2)

    def look(scene: Scene) -> None:
        completed(*jobs)(scene)
        with scene.app.transaction() as tx:
            paid = [job for (job,) in tx.execute("SELECT job FROM payment").fetchall()]
        assert sorted(paid) == sorted(str(job.id) for job in jobs)

    boundaries = killed_everywhere(scene, points.take_turns, look)
    assert_passed(boundaries, "before INSERT INTO payment")
    scene.drain()


@pytest.fixture
def left_behind(scene: Scene) -> list[Job]:
    """Jobs of a worker that was killed."""
    jobs = scene.enqueue("work", times=3, ms=0)
    ready = scene.path.with_suffix(".ready")
    holder = scene.process(points.hold, scene.place, ready)
    scene.until(ready.exists, "the jobs are claimed")
    kill(holder)
    return jobs


def test_a_rescue_is_whole_wherever_the_rescuer_dies(scene: Scene, left_behind: list[Job]) -> None:
    def look(scene: Scene) -> None:
        completed(*left_behind)(scene)
        assert sorted(len(list(scene.app.runs(job))) for job in left_behind) == [1, 2, 2]
        assert sum(run.state == "lost" for run in scene.app.runs()) == 2

    boundaries = killed_everywhere(scene, points.take_back, look)
    assert_passed(boundaries, "before UPDATE node", "before UPDATE run")
    scene.drain()


def test_a_slot_has_one_job_wherever_the_worker_that_takes_it_dies(scene: Scene) -> None:
    past = datetime(2020, 1, 1, tzinfo=UTC)
    for name in ("a", "b"):
        scene.app.schedules.put(name, at=past, kind="work", payload={"ms": 0})

    def look(scene: Scene) -> None:
        assert [job.state for job in scene.app.jobs()] == [State.COMPLETED] * 2
        for name in ("a", "b"):
            [slot] = scene.app.schedules.slots(name)
            assert (slot.scheduled_for, slot.status) == (past, "completed")
            assert scene.app.schedules.missed(name) == []

    boundaries = killed_everywhere(scene, points.fire, look)
    assert_passed(boundaries, "before UPDATE schedule", "before INSERT slot", "before INSERT job")
    scene.drain()


def test_nothing_is_left_wherever_a_node_without_jobs_dies(scene: Scene) -> None:
    jobs = scene.enqueue("work", times=2, ms=0)

    def look(scene: Scene) -> None:
        completed(*jobs)(scene)
        assert None not in points.stop_reasons(scene.app).values()
        assert all(len(list(scene.app.runs(job))) == 1 for job in jobs)

    killed_everywhere(scene, points.live_and_leave, look)
    scene.drain()


# -- flows -----------------------------------------------------------------------------------------------------------


def ended_as_planned(scene: Scene) -> None:
    """How the flow of `start_workflow` ends, wherever somebody died: each job has one life, and nothing waits."""
    [flow] = scene.app.flows.list(name="workflow")
    assert (flow.state, flow.total, flow.completed, flow.failed, flow.skipped) == ("failed", 7, 5, 1, 1)
    graph = scene.app.flows.graph(flow.id)
    assert {inner.flow.name: inner.flow.state for inner in graph.inner} == {"more": "completed", "part": "failed"}
    jobs = [job for one in (flow.id, *(inner.flow.id for inner in graph.inner)) for job in scene.app.flows.jobs(one)]
    assert Counter((job.kind, str(job.state)) for job in jobs) == {
        ("grow", "completed"): 1,
        ("nap", "completed"): 2,  # which it added
        ("work", "completed"): 4,  # the join, what it added too, what waits for the failure of a part and of the whole
        ("spoil", "failed"): 1,
        ("work", "skipped"): 4,  # what the part did not come to, what waits for a success of it and of the whole
    }
    for job in jobs:
        runs = [run.state for run in scene.app.runs(job) if run.state != "lost"]
        assert runs == ([] if job.state == State.SKIPPED else [str(job.state)])


def test_a_flow_is_there_whole_or_not_at_all_wherever_its_maker_dies(scene: Scene) -> None:
    def look(scene: Scene) -> None:
        if list(scene.app.flows.list(name="workflow")):
            ended_as_planned(scene)
        else:
            assert list(scene.app.jobs()) == []
        for batch in scene.app.flows.list(name="batch"):
            jobs = Counter(str(job.state) for job in scene.app.flows.jobs(batch.id))
            if batch.is_open:  # shown so; its callback waits
                assert jobs.pop("blocked") == 1
                assert jobs == Counter(completed=batch.completed)
                scene.app.flows.seal(batch.id)
                scene.drain()
            else:
                assert (batch.total, jobs) == (3, {"completed": 4})

    boundaries = killed_everywhere(scene, points.start_flows, look, everyday=8)
    assert_passed(boundaries, "before INSERT flow", "before INSERT job", "before INSERT edge", "before UPDATE flow")
    points.start_workflow(scene.app)
    scene.drain()


def test_a_flow_ends_once_wherever_a_worker_dies(scene: Scene) -> None:
    points.start_workflow(scene.app)
    boundaries = killed_everywhere(scene, points.take_turns, ended_as_planned, everyday=12)
    assert_passed(boundaries, "before UPDATE edge", "before INSERT tally", "before UPDATE flow", "before DELETE todo")
    scene.drain()
    ended_as_planned(scene)


def test_a_flow_is_cancelled_once_wherever_somebody_dies(scene: Scene) -> None:
    points.start_workflow(scene.app)

    def look(scene: Scene) -> None:
        [flow] = scene.app.flows.list(name="workflow")
        if flow.state == "cancelled":
            assert {str(job.state) for job in scene.app.jobs()} <= {"cancelled", "skipped"}
        else:
            ended_as_planned(scene)

    boundaries = killed_everywhere(scene, points.cancel_flow, look, everyday=6)
    assert_passed(boundaries, "before UPDATE flow", "before INSERT outcome")
    scene.drain()


# -- limits ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def lifts(scene: Scene) -> list[Job]:
    """Two tenants, more of each than may run."""
    return [job for weight in (2, 1, 3, 1) for job in scene.enqueue("lift", times=1, tenant=weight % 2, weight=weight)]


def free_again(jobs: list[Job]) -> Callable[[Scene], None]:
    """All have completed, and no permit is left."""

    def look(scene: Scene) -> None:
        completed(*jobs)(scene)
        for name in ("tenant", "crane"):
            assert [(key.in_use, key.in_line) for key in scene.app.limits.show(name)] in ([], [(0, 0)])

    return look


def test_permits_come_and_go_with_runs_wherever_the_worker_dies(scene: Scene, lifts: list[Job]) -> None:
    boundaries = killed_everywhere(scene, points.take_turns, free_again(lifts), everyday=8)
    assert_passed(boundaries, "before INSERT permit", "before DELETE permit")
    scene.drain()


def test_a_rescue_frees_permits_wherever_the_rescuer_dies(scene: Scene, lifts: list[Job]) -> None:
    ready = scene.path.with_suffix(".ready")
    holder = scene.process(points.hold, scene.place, ready)
    scene.until(ready.exists, "the jobs are claimed")
    kill(holder)
    assert [key.in_use for key in scene.app.limits.show("crane")] == [2]

    boundaries = killed_everywhere(scene, points.take_back, free_again(lifts), everyday=2)
    assert_passed(boundaries, "before DELETE permit", "before INSERT limit_look")
    scene.drain()


@pytest.mark.full
def test_a_worker_with_all_its_threads_may_die_at_any_statement_of_its_life(
    scene: Scene, left_behind: list[Job]
) -> None:
    jobs = [*left_behind, *scene.enqueue("nap", times=4, ms=400), *scene.enqueue("breed", children=2)]
    killed_everywhere(scene, points.whole_life, completed(*jobs))
    scene.drain()
