"""Forty and more wrong command lines: one sentence that says what to do, a code, status 2, and nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure import Perdure as App
from tests.app.contents import contents
from tests.cli.terminal import Perdure, refusal

WRONG: list[tuple[str, str, str]] = [
    # nothing, or another word, in place of a command
    ("job", "usage_error", "ID is missing: The job's id, or the last 4"),
    ("jbos", "usage_error", "did you mean perdure jobs?"),
    ("flower", "usage_error", "did you mean perdure top?"),
    ("requeue 12345678", "usage_error", "did you mean perdure retry?"),
    ("queues stop mail", "usage_error", "did you mean perdure queues pause?"),
    ("schedules delete daily", "usage_error", "did you mean perdure schedules remove NAME?"),
    ("db migrate", "usage_error", "did you mean perdure db upgrade?"),
    # options
    ("jobs --stat failed", "usage_error", "did you mean --state"),
    ("jobs --status failed", "usage_error", "write --state failed,parked"),
    ("enqueue send to=ann --countdown 10", "usage_error", "write --delay 10s"),
    ("enqueue send to=ann --eta tomorrow", "usage_error", "write --run-at 2026"),
    ("-A shop worker", "usage_error", "write --app MODULE:APP"),
    ("worker -l info", "usage_error", "write --log-level info"),
    ("worker -Q mail", "usage_error", "write --queue NAME, once for each"),
    ("worker --burst", "usage_error", "write --until-idle"),
    ("worker --concurrency many", "usage_error", "--concurrency must be a whole number, at least 1"),
    ("worker --concurrency 0", "usage_error", "at least 1, not '0'"),
    ("worker --log-level loud", "usage_error", "must be one of debug, info, warning, error"),
    ("worker shop:app --app shop:app", "usage_error", "name the app once"),
    ("status --stuck-after soon", "usage_error", "must be a whole number, at least 1"),
    ("jobs --limit", "usage_error", "requires an argument"),
    # values
    ("jobs --state faild", "filter_invalid", "did you mean failed?"),
    ("jobs --state failed,,parked", "filter_invalid", "there are paused, blocked"),
    ("runs --state queued", "filter_invalid", "there are running, completed"),
    ("archive --state running", "filter_invalid", "there are cancelled, completed"),
    ("jobs --since yesterday", "time_invalid", "write 2h (two hours ago) or 2026"),
    ("enqueue send to=ann --delay soon", "time_invalid", "write 90, 90s, 10m, 2h or 3d"),
    ("enqueue send to=ann --run-at noon", "time_invalid", "write 2026-01-31T12:00Z"),
    ("enqueue send to=ann --delay 1h --run-at 2030-01-01T00:00Z", "usage_error", "give --delay or --run-at, not both"),
    # kinds and arguments
    ("enqueue sned to=ann", "kind_unknown", "did you mean 'send'?"),
    ("enqueue send", "payload_invalid", "to is missing; it takes to: str"),
    ("enqueue send ann", "payload_invalid", "write name=value"),
    ("enqueue send to=ann countdown=10", "payload_invalid", "(write --delay 10s)"),
    ("enqueue send to=ann copies=many", "payload_invalid", "copies must be a whole number"),
    ("enqueue send --payload {to:ann}", "payload_invalid", "write it as '{"),
    ("enqueue send to=ann --queue *", "name_invalid", "means all queues"),
    ("enqueue send to=ann --priority high", "usage_error", "must be a whole number"),
    # jobs
    ("job 12", "id_invalid", "at least its last 4 characters"),
    ("explain nobody", "id_invalid", "at least its last 4 characters"),
    ("job 00000000", "job_not_found", "perdure jobs lists them"),
    ("cancel", "usage_error", "by id, or choose them with a filter"),
    ("cancel 12345678 --kind send", "usage_error", "not both"),
    ("retry --state completed --yes", "filter_invalid", "retry takes failed, cancelled jobs"),
    ("retry --kind send --as-new", "usage_error", "--as-new takes jobs by id"),
    ("cancel --kind send", "not_confirmed", "add --yes to do it"),
    ("purge --yes", "usage_error", "--state completed, failed, cancelled or skipped"),
    ("move 12345678", "usage_error", "one of --to front, --to back"),
    # queues, schedules, databases
    ("queues pause mial", "queue_unknown", "did you mean 'mail'?"),
    ("queues limit mial 40", "queue_unknown", "did you mean 'mail'? --new limits one that is still to come"),
    ("queues limit mail", "usage_error", "NUMBER is missing: How many of its jobs at once"),
    ("queues limit mail 0", "concurrency_invalid", "a whole number from 1 on, or none"),
    ("queues limit mail all", "concurrency_invalid", "a whole number from 1 on, or none"),
    # limits and flows
    ("limits show tenat", "limit_unknown", "perdure limits set NAME NUMBER --new makes one"),
    ("limits set tenat 4", "limit_unknown", "perdure limits set NAME NUMBER --new makes one"),
    ("limits pause tenat", "limit_unknown", "perdure limits set NAME NUMBER --new makes one"),
    ("limits resume tenat", "limit_unknown", "perdure limits set NAME NUMBER --new makes one"),
    ("limits reset tenat", "limit_unknown", "perdure limits set NAME NUMBER --new makes one"),
    ("limits set tenat", "usage_error", "NUMBER is missing: How many at once"),
    ("limits set tenat x --new", "usage_error", "a whole number, not 'x'"),
    ("limits set tenat 0 --new", "limit_rule_invalid", "a whole number from 1 to"),
    ("flow", "usage_error", "ID is missing: The flow's id, or the last 4"),
    ("flow nightly", "flow_not_found", "perdure flows lists them"),
    ("flow 00000000", "flow_not_found", "perdure flows lists them"),
    ("seal nightly", "flow_not_found", "perdure flows lists them"),
    ("flows --state queued", "filter_invalid", '"running", "completed", "failed" or "cancelled"'),
    ("jobs --flow nightly", "flow_not_found", "perdure flows lists them"),
    ("jobs --flow nightly --follow", "usage_error", "perdure flow ID shows how a flow stands"),
    ("cancel --flow nightly", "usage_error", "there is no option --flow"),
    ("schedules show dialy", "schedule_unknown", "perdure schedules lists them"),
    ("schedules add daily 99 --kind send to=ann", "cron_invalid", "needs 5 (minute, hour"),
    ("schedules preview 99", "schedule_unknown", "perdure schedules lists them"),
    ("trigger daily", "schedule_unknown", "perdure schedules lists them"),
    ("jobs --url nowhere.db", "database_missing", "perdure db upgrade"),
    ("jobs --url oracle://localhost/shop", "url_unsupported", "give a path, sqlite:///path"),
    ("jobs --app shop:ap", "app_not_found", "did you mean shop:app?"),
    ("jobs --app shp:app", "app_import_failed", "did you mean shop?"),
    ("top", "usage_error", "perdure status --json is for programs"),
]


@pytest.fixture
def shop(here: App) -> App:
    here.enqueue("send", {"to": "ann"})
    return here


def test_there_are_forty() -> None:
    assert len({line for line, _, _ in WRONG}) >= 40


@pytest.mark.parametrize(("line", "code", "what_to_do"), WRONG, ids=[line for line, _, _ in WRONG])
def test_it_is_refused_in_one_sentence(
    perdure: Perdure, shop: App, folder: Path, line: str, code: str, what_to_do: str
) -> None:
    files, rows = sorted(folder.iterdir()), contents(folder / "shop.db")

    said = refusal(perdure(*line.split(), cwd=folder, PERDURE_APP="shop:app"))

    assert said.endswith(f"[{code}]")
    assert what_to_do in said
    assert contents(folder / "shop.db") == rows
    assert {file.name for file in folder.iterdir()} - {file.name for file in files} <= {"__pycache__"}
