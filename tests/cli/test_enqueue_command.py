"""`perdure enqueue`: arguments by name or as JSON, checked against the kind; options; and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from perdure import Perdure as App
from tests.cli.terminal import Perdure, refusal

APP = {"PERDURE_APP": "shop:app"}


@pytest.mark.parametrize(
    ("arguments", "payload"),
    [
        (["send", "to=ann"], {"to": "ann"}),
        (["send", "to=123", "copies=2"], {"to": "123", "copies": 2}),
        (["send", "to=a=b"], {"to": "a=b"}),
        (["send", "to="], {"to": ""}),
        (["send", "--payload", '{"to": "ann", "copies": 3}'], {"to": "ann", "copies": 3}),
        (["resize", "width=80", "note=null"], {"width": 80, "note": None}),
        (["resize", "width=80", "note=two words"], {"width": 80, "note": "two words"}),
        (["resize", "width=80", 'note="5"'], {"width": 80, "note": "5"}),
        (["resize", "width=80", "note=5"], {"width": 80, "note": "5"}),
        (["scale", "width=80"], {"width": 80}),
    ],
)
def test_values_are_json_or_text(
    perdure: Perdure, here: App, folder: Path, arguments: list[str], payload: dict[str, object]
) -> None:
    ran = perdure("enqueue", *arguments, cwd=folder, **APP)

    [job] = here.jobs()
    assert ran.out == f"{job.id} {job.kind}: queued in {job.queue}\n"
    assert job.payload == payload


def test_every_option_arrives(perdure: Perdure, here: App, folder: Path) -> None:
    options = ["-q", "slow", "--priority", "-3", "--key", "k", "--business-key", "b", "-t", "x", "--tag", "y"]

    told = perdure("enqueue", "send", "to=ann", *options, "--delay", "2h", "--json", cwd=folder, **APP).json()

    [job] = here.jobs()
    assert told["id"] == str(job.id)
    assert (job.queue, job.priority, job.idempotency_key, job.business_key) == ("slow", -3, "k", "b")
    assert job.tags == ("x", "y")
    assert job.state == "scheduled"
    assert timedelta(hours=1, minutes=59) < job.run_at - datetime.now(UTC) <= timedelta(hours=2)


def test_a_time_without_a_zone_is_utc(perdure: Perdure, here: App, folder: Path) -> None:
    perdure("enqueue", "send", "to=ann", "--run-at", "2999-01-31T12:00", cwd=folder, **APP)

    assert next(here.jobs()).run_at == datetime(2999, 1, 31, 12, tzinfo=UTC)


def test_a_secret_is_not_printed(perdure: Perdure, here: App, folder: Path) -> None:
    ran = perdure("enqueue", "send", "to=ann", "token=hunter2", "--json", cwd=folder, **APP)

    assert "hunter2" not in ran.out
    row = here.store.row(next(here.jobs()).row.id)
    assert row is not None
    assert row.secrets == '{"token":"hunter2"}'


def test_a_secret_of_digits_is_text_too(perdure: Perdure, here: App, folder: Path) -> None:
    assert perdure("enqueue", "send", "to=ann", "token=1234", cwd=folder, **APP).status == 0

    row = here.store.row(next(here.jobs()).row.id)
    assert row is not None
    assert row.secrets == '{"token":"1234"}'


def test_the_same_key_again_is_the_same_job(perdure: Perdure, here: App, folder: Path) -> None:
    perdure("enqueue", "send", "to=ann", "--key", "k", cwd=folder, **APP)
    ran = perdure("enqueue", "send", "to=ann", "--key", "k", cwd=folder, **APP)

    [job] = here.jobs()
    assert ran.out == f"{job.id} send: was enqueued before, queued\n"


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["sned", "to=ann"], "kind_unknown", "did you mean 'send'"),
        (["send"], "payload_invalid", "send: to is missing; it takes to: str, token: secret str (optional)"),
        (["send", "too=ann"], "payload_invalid", "too is none of its arguments"),
        (["resize", "width=wide"], "payload_invalid", "width must be a whole number, not 'wide'; it takes width: int"),
        (["resize", "width"], "payload_invalid", "write name=value"),
        (["resize", "=5"], "payload_invalid", "write name=value"),
        (["resize", "width=1", "width=2"], "payload_invalid", "given twice"),
        (["resize", "--payload", "{"], "payload_invalid", "no JSON"),
        (["resize", "--payload", "[1]"], "payload_invalid", "JSON object"),
        (["resize", "width=1", "--payload", "{}"], "usage_error", "not both"),
        (["resize", "width=1", "--delay", "soon"], "time_invalid", "--delay"),
        (["resize", "width=1", "--run-at", "1h"], "time_invalid", "--run-at"),
        (
            ["resize", "width=1", "--delay", "1", "--run-at", "2999-01-01"],
            "usage_error",
            "give --delay or --run-at, not both",
        ),
        (["resize", "width=1", "--delay", "9999999999999"], "time_invalid", "is too long; 100000d is the most"),
        (["resize", "width=1", "--queue", ""], "name_empty", "perdure: --queue is empty"),
        (["resize", "width=1", "--key", ""], "name_empty", "perdure: --key is empty"),
        (["resize", "width=1", "--tag", ""], "name_empty", "perdure: --tag is empty"),
        (["resize", "width=1", "--priority", "9999999999"], "priority_invalid", "perdure: --priority must be a whole"),
        (["resize", "width=1", "--priority", "high"], "usage_error", "--priority must be a whole number, not 'high'"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_written(
    perdure: Perdure, here: App, folder: Path, arguments: list[str], code: str, told: str
) -> None:
    line = refusal(perdure("enqueue", *arguments, cwd=folder, **APP))

    assert f"[{code}]" in line
    assert told in line
    assert list(here.jobs()) == []


def test_a_business_key_that_is_taken_says_which_command_frees_it(perdure: Perdure, here: App, folder: Path) -> None:
    held = here.enqueue("resize", {"width": 1}, business_key="b")

    line = refusal(perdure("enqueue", "resize", "width=2", "--business-key", "b", cwd=folder, **APP))

    assert f"cancel it with perdure cancel {held.id} [business_key_taken]" in line
    assert "conflict=" not in line


def test_without_an_app_it_says_that_it_needs_one(perdure: Perdure, folder: Path) -> None:
    line = refusal(perdure("enqueue", "send", "to=ann", cwd=folder, PERDURE_URL="shop.db"))

    assert "--app MODULE:APP" in line
    assert "perdure init" in line
    assert "[app_not_found]" in line
