"""The history check can fail: forged notes and damaged databases, and each is complained about."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from perdure import JobContext, Perdure
from perdure.job.views import Job, Run
from tests import history

pytestmark = pytest.mark.damaged


class Scene:
    """An app whose handlers note what they do, and what was noted."""

    def __init__(self, folder: Path) -> None:
        self.notes = folder / "notes"
        self.app = Perdure(folder / "jobs.db", durability="normal")

        @self.app.job(retry=3)
        def good(ctx: JobContext) -> None:
            history.started(self.notes, ctx)
            history.ended(self.notes, ctx)

        @self.app.job(retry=1)
        def bad(ctx: JobContext) -> None:
            history.started(self.notes, ctx)
            raise ValueError("no")

        self.good, self.bad = good, bad

    def done(self) -> Job:
        """A job that was enqueued, noted and run."""
        job = self.good.enqueue()
        history.note(self.notes, "enqueued", job=job.id)
        self.app.worker().run(until_idle=True)
        return self.app.existing(job)

    def run(self, job: Job) -> Run:
        return next(self.app.runs(job))

    def forge(self, sql: str, *values: object) -> None:
        """Change the database behind everybody's back."""
        with self.app.transaction() as tx:
            tx.execute(sql, [value.bytes if isinstance(value, UUID) else value for value in values])

    def another_run(self, job: Job, state: str, attempt: int, life: int = 1) -> UUID:
        run_id = uuid4()
        self.forge(
            "INSERT INTO perdure_run (id, job_id, state, node_id, attempt, life, started_at, finished_at, wait_ms)"
            " VALUES (?, ?, ?, ?, ?, ?, 1, 2, 0)",
            run_id, job.id, state, uuid4(), attempt, life,
        )  # fmt: skip
        return run_id

    def problems(self, **how: bool) -> list[str]:
        return history.problems(self.notes, self.app, **how)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    scene.app.close()


def complaint(scene: Scene, **how: bool) -> str:
    """What the check says, in one text; it must say something."""
    found = scene.problems(**how)
    assert found
    return "\n".join(found)


# -- nothing to say --------------------------------------------------------------------------------------------------


def test_an_honest_history_has_no_problems(scene: Scene) -> None:
    for _ in range(3):
        scene.done()
    job = scene.bad.enqueue()
    history.note(scene.notes, "enqueued", job=job.id)
    scene.app.worker().run(until_idle=True)
    scene.app.retry(job)
    scene.app.worker().run(until_idle=True)
    assert scene.problems() == []
    assert len(history.events(scene.notes, "start")) == 5


def test_no_notes_at_all_are_no_problem(scene: Scene) -> None:
    assert scene.problems() == []


def test_runs_that_overlap_are_no_problem_where_the_first_was_taken_from_its_node(scene: Scene) -> None:
    job = scene.done()
    second, first = scene.run(job).id, scene.another_run(job, "lost", 1)
    scene.forge("UPDATE perdure_run SET attempt = 2 WHERE id = ?", second)
    scene.notes.unlink()
    history.note(scene.notes, "start", job=job.id, run=first)
    history.note(scene.notes, "start", job=job.id, run=second)
    history.note(scene.notes, "end", job=job.id, run=second)
    history.note(scene.notes, "end", job=job.id, run=first)
    assert scene.problems() == []


def test_what_was_deleted_may_be_gone(scene: Scene) -> None:
    job = scene.done()
    scene.app.delete(job)
    history.note(scene.notes, "deleted", job=job.id)
    assert scene.problems() == []


# -- lost ------------------------------------------------------------------------------------------------------------


def test_an_acknowledged_job_that_is_not_there_is_lost(scene: Scene) -> None:
    scene.done()
    history.note(scene.notes, "enqueued", job=uuid4())
    assert "was acknowledged and is gone" in complaint(scene)
    assert "was acknowledged and is gone" in complaint(scene, drained=False)


def test_a_job_that_has_not_ended_is_a_problem_once_everything_should_have(scene: Scene) -> None:
    history.note(scene.notes, "enqueued", job=scene.good.enqueue().id)
    assert scene.problems(drained=False) == []
    assert "is queued although everything should have ended" in complaint(scene)


def test_a_run_left_open_is_a_problem_once_everything_should_have_ended(scene: Scene) -> None:
    job = scene.done()
    scene.another_run(job, "running", 1)
    assert "is still open" in complaint(scene)


# -- unexpected ------------------------------------------------------------------------------------------------------


def test_a_handler_of_a_job_that_nobody_knows(scene: Scene) -> None:
    history.note(scene.notes, "start", job=uuid4(), run=uuid4())
    assert "which nobody knows" in complaint(scene)


def test_a_handler_without_a_recorded_run(scene: Scene) -> None:
    history.note(scene.notes, "start", job=scene.done().id, run=uuid4())
    assert "which is no recorded run of it" in complaint(scene)


def test_a_handler_that_ran_as_the_run_of_another_job(scene: Scene) -> None:
    one, other = scene.done(), scene.done()
    history.note(scene.notes, "end", job=one.id, run=scene.run(other).id)
    assert "which is no recorded run of it" in complaint(scene)


def test_a_handler_that_was_told_another_attempt_or_node(scene: Scene) -> None:
    job = scene.done()
    scene.forge("UPDATE perdure_run SET attempt = 2")
    assert "ran as attempt 1 and is recorded as attempt 2" in complaint(scene)
    scene.forge("UPDATE perdure_run SET attempt = 1, node_id = ?", uuid4())
    assert "is recorded for node" in complaint(scene)
    assert job.state == "completed"


def test_a_run_that_was_begun_twice_or_never(scene: Scene) -> None:
    job = scene.done()
    run = scene.run(job).id
    history.note(scene.notes, "start", job=job.id, run=run)
    assert f"run {run} started 2 times" in complaint(scene)
    scene.notes.unlink()
    history.note(scene.notes, "end", job=job.id, run=run)
    assert f"run {run} started 0 times" in complaint(scene)


# -- ends ------------------------------------------------------------------------------------------------------------


def test_two_runs_that_ended_the_same_life(scene: Scene) -> None:
    job = scene.done()
    scene.another_run(job, "completed", 2)
    assert "was ended by 2 runs" in complaint(scene, handlers_note=False)


def test_an_end_that_is_not_the_newest_runs(scene: Scene) -> None:
    job = scene.done()
    scene.another_run(job, "lost", 2)
    assert "was ended by attempt 1, and its newest was attempt 2" in complaint(scene)


def test_a_failure_that_is_not_the_newest_runs(scene: Scene) -> None:
    job = scene.bad.enqueue()
    scene.app.worker().run(until_idle=True)
    scene.forge("UPDATE perdure_outcome SET max_attempts = 2")
    scene.another_run(job, "lost", 2)
    assert "was ended by attempt 1, and its newest was attempt 2" in complaint(scene)


def test_a_completed_run_whose_job_goes_on(scene: Scene) -> None:
    job = scene.good.enqueue()
    scene.another_run(job, "completed", 1)
    assert "goes on (queued)" in complaint(scene, drained=False, handlers_note=False)


def test_a_job_that_completed_without_a_run(scene: Scene) -> None:
    scene.done()
    scene.notes.unlink()
    scene.forge("UPDATE perdure_run SET state = 'lost'")
    assert "ended as completed with 0 completed runs" in complaint(scene)
    scene.forge("DELETE FROM perdure_run")
    assert "is completed and was never run" in complaint(scene)


def test_a_completed_run_of_a_job_that_failed(scene: Scene) -> None:
    scene.done()
    scene.forge("UPDATE perdure_outcome SET state = 'failed'")
    assert "ended as failed with 1 completed runs" in complaint(scene)


def test_runs_of_a_life_that_never_was(scene: Scene) -> None:
    scene.another_run(scene.done(), "lost", 1, life=2)
    assert "of a life 2 that it never had" in complaint(scene)


def test_a_completed_run_whose_handler_did_not_come_to_its_end(scene: Scene) -> None:
    job = scene.done()
    lines = [line for line in scene.notes.read_text().splitlines() if line]
    scene.notes.write_text("\n".join(lines[:-1]))
    assert f"of job {job.id} is completed, but its handler never came to its end" in complaint(scene)
    scene.notes.write_text(lines[0])
    assert "never came to its end" in complaint(scene)
    assert scene.problems(handlers_note=False) == []


# -- repeats ---------------------------------------------------------------------------------------------------------


def test_the_same_attempt_made_twice(scene: Scene) -> None:
    job = scene.done()
    scene.another_run(job, "failed", 1)
    assert "attempt 1 of job" in complaint(scene)
    scene.forge("UPDATE perdure_run SET state = 'released' WHERE state = 'failed'")
    assert scene.problems() == []


def test_a_job_that_ran_again_without_a_reason(scene: Scene) -> None:
    job = scene.done()
    scene.forge("UPDATE perdure_run SET state = 'cancelled'")
    scene.another_run(job, "lost", 2)
    assert "which is cancelled" in complaint(scene)


def test_more_attempts_than_allowed(scene: Scene) -> None:
    job = scene.done()
    scene.forge("UPDATE perdure_run SET attempt = 4")
    for attempt in (1, 2, 3):
        scene.another_run(job, "failed", attempt)
    assert "had attempt 4 of 3" in complaint(scene)


@pytest.mark.parametrize("state", ["failed", "released"])
def test_a_job_that_ran_twice_at_once(scene: Scene, state: str) -> None:
    job = scene.done()
    second, first = scene.run(job).id, scene.another_run(job, state, 1)
    scene.forge("UPDATE perdure_run SET attempt = 2 WHERE id = ?", second)
    scene.notes.unlink()
    for event, run in (("start", first), ("start", second), ("end", first), ("end", second)):
        history.note(scene.notes, event, job=job.id, run=run)
    assert "ran twice at once" in complaint(scene)
    scene.notes.unlink()
    for event, run in (("start", first), ("end", first), ("start", second), ("end", second)):
        history.note(scene.notes, event, job=job.id, run=run)
    assert scene.problems() == []


# -- notes -----------------------------------------------------------------------------------------------------------

NOTER = """
import sys
from tests import history
for n in range(10**9):
    history.note(sys.argv[1], "start", job=n, run="x" * 3000)
    if n == 50:
        print(flush=True)
"""


def test_notes_of_many_processes_stay_whole_when_their_writers_are_killed(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    writers = [
        subprocess.Popen([sys.executable, "-c", NOTER, str(notes)], stdout=subprocess.PIPE, env=environment)
        for _ in range(3)
    ]
    for writer in writers:
        assert writer.stdout is not None
        writer.stdout.readline()
    for writer in writers:
        os.kill(writer.pid, signal.SIGKILL)
        writer.communicate()
    noted = history.events(notes)
    assert len(noted) >= 3 * 51
    assert {len(one["run"]) for one in noted} == {3000}
