"""`perdure jobs`, `job`, `runs` and `logs`: what is there, by filter, by the tail of an id, and as it comes."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from perdure import Perdure as App
from perdure.cli.filters import moment_of
from perdure.cli.render import KNOWN
from perdure.ids import IdFactory
from perdure.ops import lookup
from perdure.ops.forms import JOB_KEYS, RUN_KEYS
from tests.cli.terminal import Perdure, refusal, started


def tail_of(id: UUID, length: int = 8) -> str:
    return id.hex[-length:]


@pytest.fixture
def database() -> dict[str, str]:
    return {"PERDURE_URL": "shop.db"}


@pytest.fixture
def ran(here: App) -> App:
    """The shop after a day: one mail sent, one that could not be, one for later, and one that waits."""
    here.kinds.get("send").options(tags=["digest"], business_key="b-1").enqueue(to="ann", token="hunter2")
    here.kinds.get("send").options(idempotency_key="k-1").enqueue(to="nobody")
    here.worker(poll_s=0.02).run(until_idle=True)
    here.kinds.get("resize").options(delay=3600, priority=5).enqueue(width=80)
    here.kinds.get("resize").enqueue(width=90, note="\x1b[31mred\x1b[0m")
    return here


def one(app: App, **filters: Any) -> Any:
    [job] = app.jobs(**filters)
    return job


@pytest.mark.parametrize(
    ("options", "payloads"),
    [
        ([], [90, 80, "nobody", "ann"]),
        (["--limit", "2"], [90, 80]),
        (["--state", "failed"], ["nobody"]),
        (["--queue", "mail"], ["nobody", "ann"]),
        (["--kind", "resize", "--state", "queued"], [90]),
        (["--tag", "digest"], ["ann"]),
        (["--business-key", "b-1"], ["ann"]),
        (["--owner", "perdure", "-n", "1"], [90]),
        (["--owner", "someone"], []),
        (["--since", "1h"], [90, 80, "nobody", "ann"]),
        (["--until", "1h"], []),
        (["--since", "2001-01-31", "--until", "2001-02-01T12:00+02:00"], []),
    ],
)
def test_jobs_are_listed_by_filter(
    perdure: Perdure, options: list[str], payloads: list[object], ran: App, folder: Path, database: dict[str, str]
) -> None:
    found = perdure("jobs", *options, "--json", cwd=folder, **database).json()

    assert [next(iter(job["payload"].values())) for job in found] == payloads


def test_a_listed_job_has_all_its_fields_as_json_and_no_secret(
    perdure: Perdure, ran: App, folder: Path, database: dict[str, str]
) -> None:
    listed = perdure("jobs", "--tag", "digest", "--json", cwd=folder, **database)

    [job] = listed.json()
    stored = one(ran, tag="digest")
    assert tuple(job) == JOB_KEYS
    assert job["id"] == str(stored.id)
    assert job["created_at"] == f"{stored.created_at:%Y-%m-%dT%H:%M:%S.%f}Z"
    assert job["tags"] == ["digest"]
    assert (job["state"], job["result"], job["attempts"]) == ("completed", "sent to ann", 1)
    assert "hunter2" not in listed.out


def test_in_80_columns_a_list_is_one_line_each_with_tails_to_name_jobs_by(
    perdure: Perdure, ran: App, folder: Path, database: dict[str, str]
) -> None:
    out = perdure("jobs", cwd=folder, COLUMNS="80", **database).out.splitlines()

    assert max(map(len, out)) <= 80
    assert len(out) == 2 + 4
    for job, line in zip(ran.jobs(), out[2:], strict=True):
        words = line.split()
        assert words[:4] == [tail_of(job.id), job.kind, job.queue, job.state]
    assert "ValueError" in out[4]
    assert "due in 60 min" in out[3]


def test_a_wide_terminal_shows_whole_ids(perdure: Perdure, ran: App, folder: Path, database: dict[str, str]) -> None:
    out = perdure("jobs", cwd=folder, COLUMNS="160", **database).out

    assert all(str(job.id) in out for job in ran.jobs())


def test_that_there_are_more_is_said(perdure: Perdure, ran: App, folder: Path, database: dict[str, str]) -> None:
    assert "--limit" in perdure("jobs", "-n", "3", cwd=folder, **database).out
    assert "--limit" not in perdure("jobs", "-n", "4", cwd=folder, **database).out


def test_nothing_found_is_said_and_no_error(perdure: Perdure, ran: App, folder: Path, database: dict[str, str]) -> None:
    assert perdure("jobs", "--state", "parked", cwd=folder, **database)[:2] == (0, "No jobs like that.\n")


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--state", "lost"], "filter_invalid"),
        (["--since", "5 minutes"], "time_invalid"),
        (["--since", "99999999999d"], "time_invalid"),
        (["--until", "tomorrow"], "time_invalid"),
        (["--limit", "9223372036854775807"], "usage_error"),
    ],
)
def test_a_filter_that_makes_no_sense_is_refused(
    perdure: Perdure, options: list[str], code: str, ran: App, folder: Path, database: dict[str, str]
) -> None:
    assert f"[{code}]" in refusal(perdure("jobs", *options, cwd=folder, **database))


@pytest.mark.parametrize("form", ["{id}", "{hex}", "{tail}", "{TAIL}", "{dashed}"])
def test_a_job_is_named_by_its_id_or_the_tail_of_it(
    perdure: Perdure, form: str, ran: App, folder: Path, database: dict[str, str]
) -> None:
    job = one(ran, state="failed").id
    text = form.format(id=job, hex=job.hex, tail=job.hex[-6:], TAIL=job.hex[-10:].upper(), dashed=str(job)[-15:])

    assert perdure("job", text, "--json", cwd=folder, **database).json()["id"] == str(job)


def test_a_tail_of_several_is_refused_with_all_of_them(
    perdure: Perdure, here: App, folder: Path, database: dict[str, str]
) -> None:
    here.ids = IdFactory(randomness=lambda size: b"\x07" * size)
    twins = [here.enqueue("resize", {"width": n}) for n in range(2)]

    tail = tail_of(twins[0].id, 6)
    assert tail == tail_of(twins[1].id, 6)
    line = refusal(perdure("job", tail, cwd=folder, **database))

    assert "[id_ambiguous]" in line
    for twin in twins:
        assert f"{twin.id} (resize, queued)" in line


def test_a_tail_of_none_says_how_far_was_looked(
    perdure: Perdure, ran: App, folder: Path, database: dict[str, str]
) -> None:
    taken = {job.id.hex[-4:] for job in ran.jobs()}
    free = next(f"{n:04x}" for n in range(2**16) if f"{n:04x}" not in taken)

    line = refusal(perdure("job", free, cwd=folder, **database))

    assert "newest 10,000 jobs" in line
    assert "[job_not_found]" in line


def test_beyond_that_only_the_whole_id_finds_a_job(
    perdure: Perdure, ran: App, folder: Path, database: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup, "LOOKED_THROUGH", 2)
    *_, oldest = ran.jobs()

    assert "[job_not_found]" in refusal(perdure("job", tail_of(oldest.id), cwd=folder, **database))
    assert perdure("job", str(oldest.id), cwd=folder, **database).status == 0


@pytest.mark.parametrize("text", ["abc", "xyzt", "", "-" * 40, "a" * 33])
def test_what_is_no_id_is_refused(
    perdure: Perdure, text: str, ran: App, folder: Path, database: dict[str, str]
) -> None:
    assert "[id_invalid]" in refusal(perdure("job", "--", text, cwd=folder, **database))


def test_everything_about_one_job_is_shown(perdure: Perdure, ran: App, folder: Path, database: dict[str, str]) -> None:
    sent, failed = one(ran, tag="digest"), one(ran, state="failed")

    of_sent = perdure("job", str(sent.id), cwd=folder, COLUMNS="80", **database).out
    of_failed = perdure("job", str(failed.id), cwd=folder, COLUMNS="80", **database).out

    for told in (str(sent.id), "completed", "digest", "b-1", '"sent to ann"', "ann", "token  ***"):
        assert told in of_sent
    assert "hunter2" not in of_sent
    for told in ("k-1", "2 of 2", "there is no such address:", "look it up"):
        assert told in of_failed
    assert f"perdure retry {failed.id}" in of_failed
    assert of_failed.count("ValueError: there is") >= 3  # the error, why it ended, and each run
    assert max(map(len, of_failed.splitlines())) <= 80
    assert "\ntraceback of attempt 2\nTraceback (most recent call last):\n" in of_failed
    assert 'raise ValueError("there is no such address' in of_failed
    assert "raceback" not in of_sent


def test_as_json_a_job_comes_with_runs_explanation_and_hidden_secrets(
    perdure: Perdure, ran: App, folder: Path, database: dict[str, str]
) -> None:
    job = perdure("job", str(one(ran, tag="digest").id), "--json", cwd=folder, **database).json()

    assert job["payload"] == {"to": "ann", "token": "***"}
    assert [run["state"] for run in job["runs"]] == ["completed"]
    assert "completed" in job["explanation"]["why"]


def test_nothing_a_job_carries_can_talk_to_the_terminal(
    perdure: Perdure, ran: App, folder: Path, database: dict[str, str]
) -> None:
    out = perdure("job", str(one(ran, kind="resize", state="queued").id), cwd=folder, **database).out

    assert "\\x1b[31mred" in out
    assert "\x1b" not in out


def test_runs_are_listed_of_all_jobs_and_of_one(
    perdure: Perdure, ran: App, folder: Path, database: dict[str, str]
) -> None:
    failed = one(ran, state="failed")

    every = perdure("runs", "--json", cwd=folder, **database).json()
    of_one = perdure("runs", tail_of(failed.id), "--json", cwd=folder, **database).json()
    completed = perdure("runs", "--state", "completed", "--kind", "send", "--json", cwd=folder, **database).json()

    assert len(every) == 3
    assert tuple(every[0]) == RUN_KEYS
    assert [(run["attempt"], run["state"]) for run in of_one] == [(2, "failed"), (1, "failed")]
    assert [run["job_id"] for run in completed] == [str(one(ran, tag="digest").id)]
    assert "[filter_invalid]" in refusal(perdure("runs", "--state", "queued", cwd=folder, **database))
    assert perdure("runs", "--since", "2999-01-01", cwd=folder, **database).out == "No runs like that.\n"


def test_runs_fit_into_80_columns(perdure: Perdure, ran: App, folder: Path, database: dict[str, str]) -> None:
    out = perdure("runs", cwd=folder, COLUMNS="80", **database).out.splitlines()

    assert len(out) == 2 + 3
    assert max(map(len, out)) <= 80
    assert all(word in "".join(out) for word in ("failed", "completed", "ValueError: there"))


def test_logs_are_printed_in_order(perdure: Perdure, ran: App, folder: Path, database: dict[str, str]) -> None:
    failed = one(ran, state="failed")

    text = perdure("logs", tail_of(failed.id), cwd=folder, **database).out
    lines = perdure("logs", tail_of(failed.id), "--json", cwd=folder, **database).json()
    none = perdure("logs", str(one(ran, state="scheduled").id), cwd=folder, **database).out

    assert text.count("INFO    sending to nobody") == 2
    assert [(line["level"], line["message"]) for line in lines] == [("INFO", "sending to nobody")] * 2
    assert none == "Nothing was logged.\n"


NO_MIAL = "no queue is called 'mial'; did you mean 'mail'?"
NO_SNED = "no job is of a kind called 'sned'; did you mean 'send'?"


@pytest.mark.parametrize(
    ("filters", "told"),
    [
        (("--state", "parked"), "No jobs like that."),
        (("--queue", "mial"), f"No jobs like that: {NO_MIAL}"),
        (("--queue", "nosuch"), "No jobs like that: no queue is called 'nosuch'; there are default, mail."),
        (("--kind", "sned"), f"No jobs like that: {NO_SNED}"),
        (("--kind", "nosuch"), "No jobs like that: no job is of a kind called 'nosuch'; there are resize, send."),
        (("--kind", "send", "--queue", "default"), "No jobs like that."),
        (("--kind", "sned", "--queue", "mial"), f"No jobs like that: {NO_MIAL} And {NO_SNED}"),
    ],
)
def test_an_empty_answer_says_what_is_not_there(
    perdure: Perdure, ran: App, folder: Path, database: dict[str, str], filters: tuple[str, ...], told: str
) -> None:
    listed = perdure("jobs", *filters, cwd=folder, **database)

    assert (listed.status, listed.out) == (0, f"{told}\n")
    assert perdure("jobs", *filters, "--json", cwd=folder, **database).json() == []


def test_a_kind_of_the_app_without_jobs_is_not_called_unknown(perdure: Perdure, here: App, folder: Path) -> None:
    here.enqueue("send", {"to": "ann"})

    listed = perdure("runs", "--kind", "resize", cwd=folder, PERDURE_APP="shop:app")

    assert listed.out == "No runs like that: there has been no job of kind 'resize' yet.\n"


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (
            ("jobs", "--state", "fialed"),
            "--state 'fialed' is no state; did you mean failed? There are paused, blocked,",
        ),
        (("jobs", "--state", "lost"), "--state 'lost' is no state; there are paused, blocked,"),
        (("runs", "--state", "lots"), "--state 'lots' is no state; did you mean lost? There are running, completed,"),
        (("cancel", "--state", "fialed", "--yes"), "--state 'fialed' is no state; did you mean failed?"),
    ],
)
def test_a_mistyped_state_is_refused_with_what_was_meant(
    perdure: Perdure, here: App, folder: Path, database: dict[str, str], command: tuple[str, ...], told: str
) -> None:
    here.enqueue("send", {"to": "ann"})

    line = refusal(perdure(*command, cwd=folder, **database))

    assert told in line
    assert "[filter_invalid]" in line


def test_following_logs_ends_with_the_job(perdure: Perdure, ran: App, folder: Path, database: dict[str, str]) -> None:
    ended = one(ran, state="failed")

    followed = perdure("logs", str(ended.id), "--follow", "--json", cwd=folder, **database)

    assert followed.status == 0
    assert [json.loads(line)["message"] for line in followed.out.splitlines()] == ["sending to nobody"] * 2


def test_following_prints_what_is_there_then_what_comes_and_what_changes(here: App, folder: Path) -> None:
    first = here.enqueue("resize", {"width": 1})

    with started("jobs", "--follow", "--json", cwd=folder, PERDURE_URL="shop.db") as going_on:
        assert going_on.stdout is not None
        seen = [json.loads(going_on.stdout.readline())]
        second = here.enqueue("resize", {"width": 2})
        seen.append(json.loads(going_on.stdout.readline()))
        here.pause(first)
        seen.append(json.loads(going_on.stdout.readline()))
        going_on.send_signal(signal.SIGINT)

    assert [(job["id"], job["state"]) for job in seen] == [
        (str(first.id), "queued"),
        (str(second.id), "queued"),
        (str(first.id), "paused"),
    ]


@pytest.mark.parametrize("command", ["jobs", "runs"])
def test_how_far_back_changes_are_seen_is_said(perdure: Perdure, folder: Path, command: str) -> None:
    said = " ".join(perdure(command, "--help", cwd=folder).out.split())

    assert f"Changes are seen in the newest {KNOWN} or so." in said


def test_a_line_that_follows_shows_the_state_in_40_columns_too(here: App, folder: Path) -> None:
    job = here.enqueue("resize", {"width": 1}, queue="a queue with a rather long name")

    with started("jobs", "--follow", cwd=folder, PERDURE_URL="shop.db", COLUMNS="40") as going_on:
        assert going_on.stdout is not None
        line = going_on.stdout.readline()
        going_on.send_signal(signal.SIGINT)

    assert line.split()[1:] == [tail_of(job.id), "resize", "queued"]


def test_following_runs_prints_their_starts_and_ends(here: App, folder: Path) -> None:
    job = here.enqueue("resize", {"width": 1})

    with started("runs", "--follow", cwd=folder, PERDURE_URL="shop.db", COLUMNS="80") as going_on:
        assert going_on.stdout is not None
        here.worker(poll_s=0.02).run(until_idle=True)
        line = going_on.stdout.readline()
        while "completed" not in line:  # it may have been seen running before
            line = going_on.stdout.readline()
        going_on.send_signal(signal.SIGINT)

    assert tail_of(job.id) in line


def test_a_time_without_a_zone_is_utc_wherever_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert moment_of("2026-01-31T12:00", "--since").isoformat() == "2026-01-31T12:00:00+00:00"
    finally:
        monkeypatch.undo()
        time.tzset()
