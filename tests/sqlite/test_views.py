"""What a person sees in the sqlite3 shell: text ids, ISO times, states, and no secrets."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from perdure import Perdure
from tests.app import by_hand

ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")

Rows = Callable[[str], list[dict[str, Any]]]


@pytest.fixture
def rows(path: Path) -> Rows:
    def read(view: str) -> list[dict[str, Any]]:
        with closing(sqlite3.connect(path)) as connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(f"SELECT * FROM {view}")]

    return read


def test_a_waiting_job_is_shown_as_the_app_shows_it(app: Perdure, send: Any, rows: Rows) -> None:
    job = send.options(priority=3, business_key="b", idempotency_key="i", principal="ada", params={"p": 1}).enqueue("a")
    (row,) = rows("perdure_jobs")
    assert (row["id"], row["kind"], row["queue"], row["state"]) == (str(job.id), "send", "default", "queued")
    assert (row["priority"], row["position"], row["attempts"]) == (job.priority, job.position, 0)
    assert (row["business_key"], row["idempotency_key"], row["principal"]) == ("b", "i", "ada")
    assert (row["payload"], row["params"], row["job_type"]) == ('{"to":"a"}', '{"p":1}', "single")


def test_times_are_iso_in_utc_to_the_microsecond(app: Perdure, send: Any, rows: Rows) -> None:
    job = send.enqueue("a")
    by_hand.complete(app, '"ok"')
    ended = app.existing(job)
    (row,) = rows("perdure_jobs")
    for column in ("created_at", "queued_at", "run_at", "started_at", "finished_at"):
        moment = getattr(ended, column)
        assert row[column] == moment.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
        assert ISO.fullmatch(row[column])


def test_an_ended_job_is_shown_with_its_result(app: Perdure, send: Any, rows: Rows) -> None:
    send.enqueue("a")
    by_hand.complete(app, '"ok"')
    (row,) = rows("perdure_jobs")
    assert (row["state"], row["result"], row["attempts"]) == ("completed", '"ok"', 1)


def test_a_retried_job_is_shown_once_and_live(app: Perdure, send: Any, rows: Rows) -> None:
    job = send.options(retry=1).enqueue("a")
    by_hand.fail(app)
    app.retry(job)
    (row,) = rows("perdure_jobs")
    assert (row["state"], row["finished_at"]) == ("queued", None)


def test_links_between_jobs_are_text(app: Perdure, send: Any, rows: Rows) -> None:
    job = send.enqueue("a")
    old = app.supersede(job, send.new("b"))
    again = app.retry(old, as_new=True)
    shown = {row["id"]: row for row in rows("perdure_jobs")}
    assert shown[str(old.id)]["superseded_by"] == str(old.superseded_by)
    assert shown[str(again.id)]["retry_of"] == str(old.id)


def test_a_member_of_a_flow_is_shown_as_one(app: Perdure, send: Any, rows: Rows) -> None:
    alone = send.enqueue("a")
    chain = app.chain(send.new("b"))
    with app.batch("import") as batch:
        batch.add(send.new("c"))
    shown = [(row["job_type"], row["flow_id"]) for row in rows("perdure_jobs")]
    assert sorted(shown, key=str) == [("batch_child", str(batch.id)), ("chain", str(chain.id)), ("single", None)]
    assert alone.flow_id is None


def test_runs_are_shown_with_what_they_were_given(app: Perdure, send: Any, rows: Rows) -> None:
    job = send.options(retry=1).enqueue("a")
    by_hand.fail(app, "out of stamps")
    (row,) = rows("perdure_runs")
    (run,) = app.runs(job)
    assert (row["run_id"], row["job_id"], row["node_id"]) == (str(run.id), str(job.id), str(run.node_id))
    assert (row["state"], row["attempt"], row["life"], row["kind"]) == ("failed", 1, 1, "send")
    assert (row["params_snapshot"], row["error_message"]) == ('{"to":"a"}', "out of stamps")
    assert ISO.fullmatch(row["started_at"])
    assert ISO.fullmatch(row["finished_at"])


def test_a_run_names_the_template_as_it_was(app: Perdure, send: Any, rows: Rows) -> None:
    made = app.templates.put("news", "send", {"to": "a"}, description="to all")
    app.templates.enqueue("news")
    by_hand.complete(app)
    app.templates.put("news", "send", {"to": "b"})
    (run,) = rows("perdure_runs")
    newest, used = sorted(rows("perdure_templates"), key=lambda row: -row["version"])
    assert (run["template_id"], run["template_version"]) == (used["id"], used["version"]) == (str(made.id), 1)
    assert (used["name"], used["latest"], used["kind"], used["payload"]) == ("news", 2, "send", '{"to":"a"}')
    assert (used["description"], used["archived_at"]) == ("to all", None)
    assert (newest["version"], newest["payload"]) == (2, '{"to":"b"}')
    assert ISO.fullmatch(used["written_at"])


def test_no_view_has_the_secrets(app: Perdure, rows: Rows) -> None:
    @app.job
    def login(user: str, password: SecretStr) -> None: ...

    login.enqueue("ada", SecretStr("hunter2"))
    by_hand.complete(app)
    app.templates.put("ada", "login", {"user": "ada", "password": SecretStr("hunter2")})
    for view in ("perdure_jobs", "perdure_runs", "perdure_templates"):
        (row,) = rows(view)
        assert "secrets" not in row
        assert "hunter2" not in str(row)
