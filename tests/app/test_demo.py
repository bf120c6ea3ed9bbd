"""The demo's proof: silent where all is well, and a sentence for each thing that is not. (The command: tests/cli.)"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import pytest

from perdure import Fail, JobContext, Perdure, Retry, each
from perdure.cli.demo.report import Figures, percentile, prove


class Played(NamedTuple):
    app: Perdure
    figures: Figures
    starts: Path

    @property
    def problems(self) -> list[str]:
        return prove(self.app, self.figures, self.starts).problems

    def some(self, kind: str) -> UUID:
        return next(self.app.jobs(kind=kind)).id


@pytest.fixture
def played(app: Perdure, tmp_path: Path) -> Played:
    """A small play that went well: three jobs and a child; one is tried again, one fails for good."""

    @app.job
    def child() -> None: ...

    @app.job
    def parent(ctx: JobContext) -> None:
        ctx.enqueue(child)

    @app.job(retry=Retry(3, backoff="none"))
    def flaky(ctx: JobContext) -> None:
        if ctx.attempt == 1:
            raise OSError("not now")

    @app.job
    def doomed() -> None:
        raise Fail("never")

    accepted: list[Any] = [parent.enqueue(), flaky.enqueue(), doomed.enqueue()]
    app.worker().run(until_idle=True)
    starts = tmp_path / "starts"
    starts.write_text("".join(f"{run.id.hex}\n" for run in app.runs()))
    figures = Figures(accepted={job.id for job in accepted}, doomed={accepted[2].id}, parents=1)
    return Played(app, figures, starts)


def test_a_play_that_went_well_is_counted_and_has_no_problems(played: Played) -> None:
    proof = prove(*played)

    assert proof.problems == []
    assert (proof.jobs, proof.completed, proof.failed, proof.children) == (4, 3, 1, 1)
    assert (proof.runs, proof.starts, proof.failures, proof.lost) == (5, 5, 1, 0)
    assert (proof.violations, proof.checks > 20) == (0, True)


def test_an_accepted_job_that_is_not_there_is_a_problem(played: Played) -> None:
    played.figures.accepted.add(missing := uuid4())

    assert f"1 accepted jobs are missing, such as {missing}" in played.problems


def test_a_job_that_has_not_ended_is_a_problem(played: Played) -> None:
    waiting = played.app.enqueue("flaky")
    played.figures.accepted.add(waiting.id)

    assert played.problems == [f"1 jobs have not ended, such as {waiting.id}"]


def test_a_job_that_failed_and_should_not_have_is_a_problem(played: Played) -> None:
    played.figures.doomed.clear()

    assert played.problems == [f"1 jobs failed that should not have, such as {played.some('doomed')}"]


def test_a_job_that_should_have_failed_is_a_problem(played: Played) -> None:
    played.figures.doomed.add(job := played.some("flaky"))

    assert played.problems == [f"1 jobs did not fail that should have, such as {job}"]


def test_what_surprised_an_act_is_a_problem(played: Played) -> None:
    played.figures.surprises.append("the same idempotency key made two jobs")

    assert played.problems == ["the same idempotency key made two jobs"]


def test_a_missing_child_is_a_problem(played: Played) -> None:
    played.figures.parents = 2

    assert played.problems == ["2 jobs were to enqueue one child each, but there are 1 children"]


def test_starts_that_differ_from_the_record_are_problems(played: Played) -> None:
    first, second, *others = played.starts.read_text().split()
    unknown = uuid4()
    played.starts.write_text("\n".join([first, first, unknown.hex, *others]))

    assert played.problems == [
        f"1 runs were started twice, such as {UUID(first)}",
        f"1 starts of handlers are not recorded, such as run {unknown}",
        f"1 runs are recorded whose handler never began, such as {UUID(second)}",
    ]


def test_a_run_after_one_that_did_not_fail_is_a_problem(played: Played, path: Path) -> None:
    job = played.some("flaky")
    changed = "UPDATE perdure_run SET state = 'cancelled' WHERE job_id = ? AND attempt = 1"

    with tampered(path, changed, job):
        assert played.problems == [f"1 jobs ran again without a recorded reason, such as {job}"]


@pytest.fixture
def ticked(app: Perdure, tmp_path: Path) -> Iterator[Played]:
    """A minute of a schedule that was due every ten seconds: twice it was switched off, twice its last job waited."""

    @app.job
    def tick() -> None: ...

    with app.testing(start=datetime(2030, 1, 1, tzinfo=UTC)) as t:
        app.schedules.put("tick", kind=tick, every=10)
        for switch in (app.schedules.disable, app.schedules.enable, app.schedules.disable):
            t.advance(seconds=20)
            t.drain()
            switch("tick")
        starts = tmp_path / "starts"
        starts.write_text("".join(f"{run.id.hex}\n" for run in app.runs()))
        yield Played(app, Figures(), starts)


def test_planned_instants_are_counted_those_that_were_missed_with_the_reason(ticked: Played) -> None:
    proof = prove(*ticked)

    assert proof.problems == []
    assert (proof.planned, proof.taken, proof.missed) == (6, 2, {"overlap": 2, "disabled": 2})
    assert (proof.jobs, proof.completed, proof.children) == (2, 2, 0)


def test_a_planned_instant_without_a_job_is_a_problem(ticked: Played) -> None:
    (job,) = ticked.app.jobs(kind="tick", limit=1)
    ticked.app.delete(job)

    assert f"1 planned instants made no job, and no reason is recorded, such as {job.scheduled_for}" in ticked.problems


def test_a_planned_instant_with_two_jobs_is_a_problem(ticked: Played) -> None:
    (job,) = ticked.app.jobs(kind="tick", limit=1)
    ticked.app.retry(job, as_new=True)

    assert f"1 planned instants were taken more than once, such as {job.scheduled_for}" in ticked.problems


def test_a_job_for_an_instant_that_was_not_planned_is_a_problem(ticked: Played) -> None:
    job = ticked.app.trigger("tick", datetime(2030, 1, 1, 0, 0, 7, tzinfo=UTC))

    assert f"1 jobs are for instants that were not planned, such as {job.scheduled_for}" in ticked.problems


@pytest.fixture
def flowed(app: Perdure, tmp_path: Path) -> Played:
    """A workflow that went well: two parts, a join and a callback."""

    @app.job
    def part(number: int) -> int:
        return number

    @app.job
    def join() -> None: ...

    @app.job
    def announce() -> None: ...

    with app.workflow("film") as wf:
        parts = wf.map(part.new(each), over=[1, 2], name="parts")
        wf.add(join.new(), after=parts)
        wf.add(announce.new(), after=wf)
    app.worker().run(until_idle=True)
    starts = tmp_path / "starts"
    starts.write_text("".join(f"{run.id.hex}\n" for run in app.runs()))
    return Played(app, Figures(accepted={job.id for job in app.jobs()}), starts)


def test_joins_and_callbacks_are_counted(flowed: Played) -> None:
    proof = prove(*flowed)

    assert (proof.problems, proof.awaiting) == ([], 2)


@pytest.mark.parametrize("kind", ["join", "announce"])
def test_a_join_or_callback_that_lived_twice_is_a_problem(flowed: Played, path: Path, kind: str) -> None:
    job = flowed.some(kind)
    copied = "job_id, attempt, state, started_at, finished_at, node_id, wait_ms"
    again = (
        f"INSERT INTO perdure_run (id, life, {copied})"
        f" SELECT randomblob(16), 2, {copied} FROM perdure_run WHERE job_id = ?"
    )

    with tampered(path, again, job):
        assert f"job {job} waits for a workflow: it lived 2 times and completed 2 times" in flowed.problems


def test_a_join_that_never_ran_is_a_problem(flowed: Played, path: Path) -> None:
    job = flowed.some("join")

    with tampered(path, "DELETE FROM perdure_run WHERE job_id = ?", job):
        assert f"job {job} waits for a workflow: it lived 0 times and completed 0 times" in flowed.problems


def test_a_workflow_that_failed_is_a_problem(flowed: Played, path: Path) -> None:
    with tampered(path, "UPDATE perdure_flow SET state = 'failed' WHERE ? IS NOT NULL AND name = 'film'", UUID(int=0)):
        assert "the workflow film is failed, not completed" in flowed.problems


def test_what_the_doctor_finds_is_a_problem(played: Played, path: Path) -> None:
    with tampered(path, "UPDATE perdure_run SET life = 9 WHERE job_id = ?", played.some("doomed")):
        (problem,) = played.problems

    assert problem.startswith("doctor: ")


@contextmanager
def tampered(path: Path, change: str, job: UUID) -> Generator[None, None, None]:
    """The database changed by hand, and put right again for the look of the doctor at the end."""
    copy = path.with_name("before.db")
    with closing(sqlite3.connect(path)) as connection, closing(sqlite3.connect(copy)) as before:
        connection.backup(before)
        connection.execute(change, (job.bytes,))
        connection.commit()
        yield
        before.backup(connection)


@pytest.mark.parametrize(("percent", "expected"), [(50, 2.0), (75, 3.0), (95, 4.0), (99, 4.0), (1, 1.0)])
def test_a_percentile_is_a_value_that_was_measured(percent: int, expected: float) -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], percent) == expected
