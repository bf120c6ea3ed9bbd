"""What a job gets when nobody says anything, and what stays as it was while things happen to it."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from perdure import Perdure, Priority, Retry
from perdure.clock import Micros
from perdure.ids import JobId, NodeId, RunId
from perdure.job.model import Claim, Failure
from perdure.job.reports import Completed, Failed, Finish, Report
from perdure.store.rows import Claimer, Lane, LogLine, NewNode


@pytest.fixture
def app(tmp_path: Path) -> Any:
    app = Perdure(tmp_path / "jobs.db")
    yield app
    app.close()


def claimed(app: Perdure) -> Claim:
    node = NodeId(app.ids.new())
    app.store.register(NewNode(node, app.clock.now()))
    claimer = Claimer(node, None, [RunId(app.ids.new())], 60_000_000)
    [claim] = app.store.claim([Lane("default", 1)], claimer, app.clock.now())
    return claim


def report(app: Perdure, claim: Claim, what: Report) -> None:
    app.store.finish([Finish(claim.live, what, JobId(app.ids.new()))], app.clock.now())


def test_a_job_has_three_attempts(app: Perdure) -> None:
    @app.job
    def send() -> None: ...

    assert send.enqueue().max_attempts == 3


def test_an_acknowledged_job_is_on_the_disk(app: Perdure) -> None:
    runner: Any = app.store.runner  # type: ignore[attr-defined]  # beneath the protocol
    assert runner.database._writer.execute("PRAGMA synchronous").fetchone() == (2,)


def test_a_write_waits_five_seconds_for_its_turn(app: Perdure) -> None:
    runner: Any = app.store.runner  # type: ignore[attr-defined]  # beneath the protocol
    assert app.config.busy_timeout_s == 5
    assert runner.database._settings.busy_timeout_s == 5


def test_priorities_have_names(app: Perdure) -> None:
    @app.job
    def send(n: int) -> None: ...

    for priority in (Priority.LOWEST, Priority.CRITICAL, Priority.NORMAL):
        send.options(priority=priority).enqueue(int(priority))
    assert [job.payload for job in app.jobs(state="queued", queue="default")] == [{"n": 2}, {"n": 0}, {"n": -2}]


def test_a_retry_policy_is_stored_with_its_job(app: Perdure, tmp_path: Path) -> None:
    @app.job(retry=Retry(7, backoff="linear", base=3))
    def send() -> None: ...

    send.enqueue()
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
        [(options,)] = connection.execute("SELECT options FROM perdure_job").fetchall()
    assert Retry.from_json(json.loads(options)["retry"]) == Retry(7, backoff="linear", base=3)


def test_what_a_job_is_does_not_change_while_it_runs_fails_and_ends(app: Perdure) -> None:
    @app.job
    def send(n: int) -> None: ...

    job = send.enqueue(1)
    before = app.store.row(job.row.id)
    report(app, claimed(app), Failed(Failure("ValueError", "no")))
    assert app.store.row(job.row.id) == before
    report(app, claimed(app), Completed())
    assert app.store.row(job.row.id) == before


def test_queued_at_is_left_alone_by_claims_ways_back_and_the_end(app: Perdure) -> None:
    @app.job
    def send() -> None: ...

    queued_at = send.enqueue().queued_at
    report(app, claimed(app), Failed(Failure("ValueError", "no")))
    report(app, claimed(app), Completed())
    [job] = app.jobs()
    assert (job.attempts, job.queued_at) == (2, queued_at)


def test_updated_at_is_renewed_by_every_change(app: Perdure) -> None:
    @app.job
    def send() -> None: ...

    job = send.enqueue()
    seen = [_updated_at(app, job.row.id)]
    for change in (app.pause, app.resume, lambda job: app.set_priority(job, 3)):
        change(job)
        seen.append(_updated_at(app, job.row.id))
    assert seen == sorted(set(seen))


def _updated_at(app: Perdure, job_id: JobId) -> Micros:
    live = app.store.live(job_id)
    assert live is not None
    return live.updated_at


def test_the_log_of_a_job_is_read_in_the_order_it_was_written(app: Perdure) -> None:
    @app.job
    def send() -> None: ...

    job = send.enqueue()
    claim = claimed(app)
    lines = [LogLine(claim.run_id, n, claim.job_id, app.clock.now(), "info", f"line {n}") for n in range(450)]
    app.store.append_log(lines)
    assert [line.message for line in app.logs(job)] == [f"line {n}" for n in range(450)]
