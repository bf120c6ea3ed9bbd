"""What a worker finds when it starts: jobs that a dead one left behind come first, and it is recorded why."""

from __future__ import annotations

import logging
import threading

import pytest

from perdure import Job, JobContext, Perdure, State
from perdure.clock import to_datetime
from perdure.ids import NodeId, RunId, to_uuid
from perdure.store.rows import Claimer, Lane, NewNode
from perdure.upkeep.rescue import Rescuer
from perdure.worker.liveness import ProcLiveness
from perdure.worker.options import WorkerOptions
from tests.worker.patience import DEADLINE_S

NO_PID = 2**22 - 1


@pytest.fixture
def ran(app: Perdure) -> list[Job]:
    """The jobs in the order in which they were started."""
    ran: list[Job] = []

    @app.job
    def note(ctx: JobContext) -> None:
        ran.append(ctx.job)

    return ran


def left_behind(app: Perdure, jobs: int) -> NodeId:
    """Jobs held by a node of this machine whose process is gone."""
    node = NodeId(app.ids.new())
    app.enqueue_many([app.kinds.get("note").new() for _ in range(jobs)])
    app.store.register(NewNode(node, app.clock.now(), ProcLiveness().own()._replace(pid=NO_PID)))
    claimer = Claimer(node, None, [RunId(run_id) for run_id in app.ids.new_many(jobs)], 60_000_000)
    assert len(app.store.claim([Lane("default", jobs)], claimer, app.clock.now())) == jobs
    return node


def test_what_a_dead_worker_left_is_queued_before_the_first_claim(app: Perdure, ran: list[Job]) -> None:
    """So it has its old place again: in front of what came later."""
    left_behind(app, 2)
    app.enqueue("note")
    app.worker(concurrency=1).run(until_idle=True)

    assert [job.attempts for job in ran] == [2, 2, 1]
    assert ran == sorted(ran, key=lambda job: job.id)
    assert {job.state for job in app.jobs()} == {State.COMPLETED}


def test_all_that_ran_on_a_dead_worker_runs_at_once_again(app: Perdure) -> None:
    """Each waits for all the others: one after the other they would never end."""
    together = threading.Barrier(20)

    @app.job
    def note() -> None:
        together.wait(DEADLINE_S)

    left_behind(app, 20)
    app.worker(concurrency=20).run(until_idle=True)

    assert {(job.state, job.attempts) for job in app.jobs()} == {(State.COMPLETED, 2)}


@pytest.mark.parametrize("max_crashes", [2, 3])
def test_what_saw_two_workers_die_runs_one_at_a_time(app: Perdure, max_crashes: int) -> None:
    """And so does what may not see a second one die."""
    running: list[int] = []

    @app.job
    def note() -> None:
        running.append(len(list(app.jobs(state="running"))))

    left_behind(app, 4)
    for _ in range(max_crashes - 2):
        now, gone = app.clock.now(), NodeId(app.ids.new())
        Rescuer(app.parts(), WorkerOptions()).look(gone)
        app.store.register(NewNode(gone, now, ProcLiveness().own()._replace(pid=NO_PID)))
        run_ids = [RunId(run_id) for run_id in app.ids.new_many(4)]
        assert len(app.store.claim([Lane("default", 4)], Claimer(gone, None, run_ids, 60_000_000), now)) == 4
    app.worker(concurrency=4, max_crashes=max_crashes).run(until_idle=True)

    assert running == [1] * 4
    assert {(job.state, job.attempts) for job in app.jobs()} == {(State.COMPLETED, max_crashes)}


@pytest.mark.usefixtures("ran")
def test_a_recovered_run_ends_with_the_recovery_and_names_the_dead_node(app: Perdure) -> None:
    node = left_behind(app, 1)
    started = app.clock.now()
    app.worker().run(until_idle=True)

    (lost,) = app.runs(state="lost")
    told = f"node {to_uuid(node)} died while it ran this job"
    assert (lost.error_type, lost.error_message) == ("NodeLost", told)
    assert lost.finished_at is not None
    assert lost.finished_at >= to_datetime(started)


@pytest.mark.usefixtures("ran")
def test_a_recovery_is_logged_with_its_number_of_jobs(app: Perdure, caplog: pytest.LogCaptureFixture) -> None:
    node = to_uuid(left_behind(app, 3))
    with caplog.at_level(logging.WARNING, "perdure.worker"):
        app.worker().run(until_idle=True)

    assert [record.getMessage() for record in caplog.records] == [
        f"node {node} is dead: its process has ended; its jobs continue on other workers",
        f"rescued 3 jobs of node {node}",
    ]
