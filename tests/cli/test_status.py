"""`perdure status`: six questions, each with its answer, for people, for programs, and live."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from perdure.cli.status import Space, screen, space_for, table
from perdure.clock import ManualClock, Micros, SystemClock
from perdure.ids import IdFactory, to_uuid
from perdure.job.model import Failure, RunStats
from perdure.job.reports import Completed, Failed
from perdure.job.states import State
from perdure.ops import doctor
from perdure.ops.progress import progress_text, said_in
from perdure.ops.status import HOUR_US, Status, status
from perdure.store.rows import Hindrance, Notes, Turn
from perdure.testing.contract.rig import BROKEN, Rig
from perdure.testing.contract.schedules import new_schedule
from perdure.testing.contract.states import in_state
from tests.cli.terminal import PROGRAM, SOURCE, Perdure, in_a_terminal, refusal, session, started, surroundings

QUESTIONS = [
    "What is stuck?",
    "What failed in the last 24 hours, and why?",
    "What is outstanding?",
    "What ran in the last hour?",
    "How long do jobs take?",
    "Are there duplicates?",
]
"""In the order in which they are answered: what needs someone comes first."""
DEADLINE_S = 60
LEAVE_SCREEN = b"\x1b[?1049l"


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """A database as jobs.db whose clock stands ten minutes back: what waits there now has waited long."""
    rig = Rig(f"sqlite:///{tmp_path}/jobs.db")
    rig.clock = ManualClock(Micros(SystemClock().now() - 600_000_000))
    yield rig
    findings = doctor.examine(rig.store, rig.now)
    rig.close()
    assert doctor.is_healthy(findings), findings


def answer(out: str, question: str) -> list[str]:
    """The lines below a question, with two blanks between columns; or what is said beside it."""
    lines = [re.sub(r" {2,}", "  ", line.strip()) for line in out.splitlines()]
    beside = [line.removeprefix(f"{question}  ") for line in lines if line.startswith(f"{question}  ")]
    if beside:
        return beside
    below = lines[lines.index(question) + 1 :]
    return below[: below.index("")] if "" in below else below


def busy(rig: Rig) -> None:
    """Something to tell for every question."""
    for kind, wanted in (("send", 3), ("report", 1)):
        rig.enqueue_many(wanted, kind=kind, queue="mail")
    rig.finish(rig.start(kind="send", business_key="order 7"), Completed(), RunStats(duration_ms=1_500))
    rig.finish(rig.start(kind="send", business_key="order 7"), Completed(), RunStats(duration_ms=0))
    broken = Failure("ValueError", "no such address\nsecond line", permanent=True)
    rig.finish(rig.start(kind="send"), Failed(broken))
    rig.finish(rig.start(kind="send", max_attempts=2), Failed(BROKEN, 3_600_000_000))


def test_a_new_database_answers_all_six_with_nothing(perdure: Perdure, rig: Rig, tmp_path: Path) -> None:
    ran = perdure("status", "--url", "jobs.db", cwd=tmp_path)
    rig.store.upgrade()
    assert "there is no database" in refusal(ran)

    ran = perdure("status", "--url", "jobs.db", cwd=tmp_path)
    assert ran.status == 0
    assert [line.partition("?")[0] + "?" for line in ran.out.splitlines() if "?" in line] == QUESTIONS
    assert ran.out.startswith("0 stuck, 0 failed, 0 running, 0 waiting\n")
    assert answer(ran.out, "What is outstanding?") == ["Nothing: no job waits or runs."]
    assert answer(ran.out, "Are there duplicates?") == ["None."]


def test_each_question_is_answered_below_its_heading(perdure: Perdure, rig: Rig, tmp_path: Path) -> None:
    busy(rig)
    out = perdure("status", "--url", "jobs.db", cwd=tmp_path).out
    stuck, failed, outstanding, ran, durations, duplicates = (answer(out, question) for question in QUESTIONS)
    assert out.startswith("1 stuck, 1 failed, 0 running, 5 waiting\n")

    assert outstanding[0] == "kind  queue  queued  scheduled  oldest"
    assert "send  mail  3  -  10 min" in outstanding
    assert "report  mail  1  -  10 min" in outstanding
    assert failed == [
        "kind  jobs  last  error",
        "send  1  10 min  ValueError: no such address",
        "perdure jobs --state failed --kind send --url jobs.db",
    ]
    head = rig.in_order("mail")[0]
    assert stuck == [
        "kind  queue  jobs  for  why",
        "send  mail  1  10 min  first in queue, nobody takes it",
        f"perdure explain {to_uuid(head)} --url jobs.db",
    ]
    assert durations == [
        "kind  runs  p50  p95  p99  wait p50  p95  p99",
        "send  2  <1 ms  1.5 s  1.5 s  <1 ms  <1 ms  <1 ms",
    ]
    assert duplicates == [
        "kind  jobs  what they share",
        "send  2  business key order 7",
        "perdure jobs --business-key 'order 7' --url jobs.db",
    ]
    assert ran == ["kind  runs  completed  failed  retried  lost  other  running", "send  4  2  1  1  -  -  -"]


@pytest.mark.parametrize(
    ("hours_ago", "is_of_the_day", "is_of_the_hour"), [(0.9, 1, 1), (1.1, 1, 0), (23, 1, 0), (25, 0, 0)]
)
def test_each_question_looks_back_as_far_as_it_says(
    rig: Rig, hours_ago: float, is_of_the_day: int, is_of_the_hour: int
) -> None:
    rig.ids = IdFactory(lambda: rig.now // 1_000)  # which say when a job was made, and a run begun
    for _ in range(2):
        rig.finish(rig.start(kind="send", business_key="order 7"), Completed(), RunStats(duration_ms=5))
    rig.finish(rig.start(kind="send"), Failed(Failure("ValueError", "no such address", permanent=True)))
    rig.clock.advance(hours=hours_ago)

    found = status(rig.store, rig.now)

    assert len(found.failed) == found.failed_lives == is_of_the_day
    assert len(found.durations) == len(found.duplicates) == is_of_the_day
    assert [row.runs for row in found.ran] == [3] * is_of_the_hour


def test_what_began_before_the_runs_of_the_last_hour_does_not_help_a_queue(rig: Rig) -> None:
    """However long the patience: of earlier runs it is not known whether all were looked at."""
    rig.ids = IdFactory(lambda: rig.now // 1_000)
    rig.enqueue(queue=rig.queue)
    rig.clock.advance(hours=2)
    rig.finish(rig.start(queue=rig.queue, priority=1), Completed())

    for hours, stuck in ((0.9, 0), (0.2, 1)):
        rig.clock.advance(hours=hours)
        assert len(status(rig.store, rig.now, 2 * HOUR_US).stuck) == stuck


@pytest.mark.parametrize("paused", ["night shift", "*"])
def test_the_way_out_of_a_paused_queue_is_named_by_explain(
    perdure: Perdure, rig: Rig, tmp_path: Path, paused: str
) -> None:
    job_id = rig.enqueue(queue="night shift")
    rig.store.pause_queue(paused, rig.now)

    out = perdure("status", "--url", "jobs.db", cwd=tmp_path).out
    command = f"perdure explain {to_uuid(job_id)} --url jobs.db"
    assert command in answer(out, "What is stuck?")
    assert f"perdure queues resume '{paused}' --url jobs.db" in perdure(*command.split()[1:], cwd=tmp_path).out


def test_parked_jobs_are_stuck(perdure: Perdure, rig: Rig, tmp_path: Path) -> None:
    job_id = in_state(rig, State.PARKED, kind="send", queue=rig.queue)

    stuck = answer(perdure("status", "--url", "jobs.db", cwd=tmp_path).out, "What is stuck?")
    assert "no worker here can run it" in stuck[1]
    assert stuck[2] == f"perdure explain {to_uuid(job_id)} --url jobs.db"
    by_environment = perdure("status", cwd=tmp_path, PERDURE_URL="jobs.db").out
    assert answer(by_environment, "What is stuck?")[2] == f"perdure explain {to_uuid(job_id)}", "nothing to repeat"


def test_the_first_line_counts_all_that_are_stuck(perdure: Perdure, rig: Rig, tmp_path: Path) -> None:
    for _ in range(2):
        in_state(rig, State.PARKED, kind="send", queue=rig.queue)
    assert perdure("status", "--url", "jobs.db", cwd=tmp_path).out.startswith("2 stuck, ")


def test_how_long_is_too_long_can_be_said(perdure: Perdure, rig: Rig, tmp_path: Path) -> None:
    rig.enqueue()

    patient = perdure("status", "--stuck-after", "3600", "--url", "jobs.db", cwd=tmp_path)
    assert answer(patient.out, "What is stuck?") == ["Nothing."]
    assert len(answer(perdure("status", "--url", "jobs.db", cwd=tmp_path).out, "What is stuck?")) == 3
    assert perdure("status", "--stuck-after", "0", "--url", "jobs.db", cwd=tmp_path).status == 2


def test_a_first_run_that_takes_long_is_not_called_slower_than_usual(
    perdure: Perdure, rig: Rig, tmp_path: Path
) -> None:
    rig.start(kind="send")
    rig.store.beat(rig.node, SystemClock().now())

    stuck = answer(perdure("status", "--url", "jobs.db", cwd=tmp_path, COLUMNS="80").out, "What is stuck?")
    assert stuck[1].endswith("running long, none to compare it with")


def test_a_job_of_a_worker_not_heard_of_is_stuck(perdure: Perdure, rig: Rig, tmp_path: Path) -> None:
    rig.start(kind="send")

    stuck = answer(perdure("status", "--url", "jobs.db", cwd=tmp_path, COLUMNS="80").out, "What is stuck?")
    assert stuck[1].endswith("on a worker not heard of for long")


def test_it_is_not_complete_if_more_failed_than_is_looked_at(
    perdure: Perdure, rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if none of them is shown: one that was left out might be."""
    claim = rig.start()
    rig.finish(claim, Failed(Failure("E", "it broke", permanent=True)))
    rig.store.retry(claim.job_id, rig.now)
    rig.finish(rig.claim_one(), Completed())
    assert perdure("status", "--json", "--url", "jobs.db", cwd=tmp_path).json()["complete"] is True

    monkeypatch.setattr("perdure.ops.status.FAILED_LOOKED_AT", 1)
    found = perdure("status", "--json", "--url", "jobs.db", cwd=tmp_path).json()
    assert (found["complete"], found["failed"]) == (False, [])
    assert "There may be more than is counted" in perdure("status", "--url", "jobs.db", cwd=tmp_path).out


def test_everything_fits_into_80_columns(perdure: Perdure, rig: Rig, tmp_path: Path) -> None:
    long = "shop.orders.jobs.send_a_reminder_to_every_customer"
    rig.enqueue_many(12_345, kind=long, queue="a-queue-with-a-long-name")
    busy(rig)
    for state in (State.FAILED, State.RUNNING, State.PAUSED, State.SCHEDULED, State.PARKED):
        in_state(rig, state, kind=long)

    out = perdure("status", "--url", "jobs.db", cwd=tmp_path, COLUMNS="80").out
    assert [line for line in out.splitlines() if len(line.rstrip()) > 80 and "perdure " not in line] == []
    assert re.search(r"shop\.order.*…  a-queue-.*…  12,345 .* 10 min$", out, re.MULTILINE)
    assert all(head in out for head in (" oldest", " error", " why", " wait p50", " what they share", " running\n"))


def test_long_answers_are_cut_and_say_so(perdure: Perdure, rig: Rig, tmp_path: Path) -> None:
    for number in range(13):
        rig.enqueue(kind=f"kind-{number:02}")

    out = perdure("status", "--url", "jobs.db", cwd=tmp_path).out
    assert answer(out, "What is outstanding?")[-1] == "and 3 more; --json shows all"


def test_what_a_job_brought_along_cannot_talk_to_the_terminal(perdure: Perdure, rig: Rig, tmp_path: Path) -> None:
    rig.finish(rig.start(kind="ev\x1b[31mil"), Failed(Failure("E", "\x1b]0;title\x07", permanent=True)))

    assert "\x1b" not in perdure("status", "--url", "jobs.db", cwd=tmp_path).out


@pytest.mark.parametrize("queue", ["gpu", "*"])
def test_a_reservation_is_shown_above_the_questions(perdure: Perdure, rig: Rig, tmp_path: Path, queue: str) -> None:
    rig.reserve(queue, lasts_s=1_000)
    _, first, *_ = perdure("status", "--url", "jobs.db", cwd=tmp_path).out.splitlines()

    name = "Every queue" if queue == "*" else "Queue gpu"
    assert re.fullmatch(rf"{name} is reserved by ann since 10 min, until \d+-\d+-\d+ \d+:\d+:\d+ UTC\.", first)


def test_json_has_the_documented_keys(perdure: Perdure, rig: Rig, tmp_path: Path) -> None:
    busy(rig)
    rig.reserve("gpu")
    rig.start(kind="send")
    assert rig.store.save_schedule(new_schedule(rig, next_trigger_at=Micros(rig.now - HOUR_US)), None)
    rig.start_flow(2)
    rig.store.pause_limit("api", None, rig.now)
    found = perdure("status", "--json", "--url", "jobs.db", cwd=tmp_path).json()

    questions = ["outstanding", "failed", "stuck", "durations", "duplicates", "ran"]
    others = ["running", "reservations", "schedules", "flows", "limits", "hindrances"]
    assert list(found) == ["at", "complete", *questions, *others]
    assert found["complete"] is True
    page = (SOURCE.parent / "docs" / "status.md").read_text("utf-8")
    for question, rows in list(found.items())[2:]:
        (documented,) = re.findall(rf"^\| `{question}` \| (.*) \|$", page, re.MULTILINE)
        if question != "hindrances":  # a file has none
            assert re.findall(r"`(\w+)`", documented) == list(rows[0])
    assert found["failed"][0]["error"] == "no such address\nsecond line"
    assert found["stuck"][0]["since"].endswith("Z")


def test_flows_and_paused_limits_are_told(perdure: Perdure, rig: Rig, tmp_path: Path) -> None:
    assert "flows" not in perdure("status", "--url", "jobs.db", cwd=tmp_path).out
    rig.start_flow(2)
    rig.finish(rig.claim_one(), Completed())
    rig.store.pause_limit("api", None, rig.now)

    out = perdure("status", "--url", "jobs.db", cwd=tmp_path).out

    assert re.search(r"Which flows have not ended\?\n.*\n\w{8} +workflow +nightly .* 1 of 2\n", out)
    assert "Limit api is paused.\n  perdure limits resume api --url jobs.db" in out


# -- live ------------------------------------------------------------------------------------------------------------


def read_until(descriptor: int, wanted: bytes) -> bytes:
    """What comes out until it holds `wanted`."""
    seen, end = b"", time.monotonic() + DEADLINE_S
    while wanted not in seen:
        ready, _, _ = select.select([descriptor], [], [], max(0, end - time.monotonic()))
        assert ready, f"waited in vain for {wanted!r} after {seen[-2000:]!r}"
        seen += os.read(descriptor, 65536)
    return seen


def test_watching_goes_on_with_what_is_new(rig: Rig, tmp_path: Path) -> None:
    rig.enqueue(kind="early")
    shown, terminal = pty.openpty()
    wide = surroundings({"TERM": "xterm", "COLUMNS": "80", "LINES": "50"})
    with subprocess.Popen(
        [*PROGRAM, "status", "--url", "jobs.db", "--watch"], cwd=tmp_path, stdout=terminal, env=wide
    ) as it:
        try:
            read_until(shown, b"early")
            rig.enqueue(kind="late")
            read_until(shown, b"late")
        finally:
            it.send_signal(signal.SIGINT)
            end = read_until(shown, LEAVE_SCREEN)
    assert it.returncode == 0
    assert b"Traceback" not in end
    os.close(terminal)
    os.close(shown)


def test_all_six_are_seen_in_24_lines_and_ctrl_c_ends_it_well(rig: Rig, tmp_path: Path) -> None:
    busy(rig)

    small = {"TERM": "xterm", "LINES": "24", "COLUMNS": "80"}
    asked = ("status", "--watch", "--url", "jobs.db")
    ran = in_a_terminal(*asked, cwd=tmp_path, prompt=QUESTIONS[-1], typed="\x03", **small)
    assert ran.status == 0
    assert all(question in ran.out for question in QUESTIONS)
    assert "Traceback" not in ran.out


def lines_of(found: Status, width: int, height: int) -> list[str]:
    console = Console(width=width, file=StringIO())
    console.print(screen(found, space_for(found, width, height, " --url jobs.db")))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [30, 40, 80])
@pytest.mark.parametrize("kinds", [1, 30])
def test_in_a_small_terminal_every_question_has_its_line_and_its_rows(rig: Rig, width: int, kinds: int) -> None:
    busy(rig)
    rig.start(kind="send")
    for number in range(kinds):
        rig.enqueue(kind=f"kind {number}", queue="other")

    lines = lines_of(status(rig.store, SystemClock().now()), width, 24)

    assert len(lines) <= 24
    asked = [line[:12] for line in lines if line.startswith(("What", "How", "Are"))]
    assert asked == [each[:12] for each in [*QUESTIONS[:2], "What runs now?", *QUESTIONS[2:]]]


ALL_QUESTIONS = [*QUESTIONS[:2], "What runs now?", "Which flows have not ended?", *QUESTIONS[2:]]


def trouble(rig: Rig) -> None:
    """Something to tell above the questions, too, and a flow and a running job between them."""
    busy(rig)
    rig.start(kind="send")
    rig.start_flow(2)
    rig.reserve("gpu")
    assert rig.store.save_schedule(new_schedule(rig, next_trigger_at=Micros(rig.now - HOUR_US)), None)
    rig.store.pause_limit("api", None, rig.now)


def worst(rig: Rig) -> Status:
    """Everything that can be told at once, also what only a server or a great number of jobs has."""
    trouble(rig)
    found = status(rig.store, SystemClock().now())
    assert all(found[1:7])
    assert found.running
    assert found.flows
    assert found.reservations
    assert found.schedules
    assert found.limits
    slot = Hindrance("slot", "standby\n2", 0, "physical")
    return found._replace(hindrances=[slot] * 5, failed_lives=10**9)


def asked(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith(("What", "Which", "How", "Are"))]


@pytest.mark.parametrize("width", [20, 30, 40, 80, 200])
def test_with_everything_to_tell_each_question_has_its_line_and_the_first_ones_have_rows(rig: Rig, width: int) -> None:
    found = worst(rig)
    for height in (23, 24):
        lines = lines_of(found, width, height)
        assert height - 3 < len(lines) <= height
        assert [line[:12] for line in asked(lines)] == [question[:12] for question in ALL_QUESTIONS]
        assert lines[0].startswith("2 stuck, 1 failed")
        without = [line for line in asked(lines) if "no room" in line]
        assert width < 80 or without == asked(lines)[-2:]
    assert "How long do jobs take?  no room for the answer; --json has it" in lines_of(found, 80, 23)
    assert "See perdure reservations (1), schedules (1), limits (1); dead rows: --json" in lines_of(found, 80, 23)


def test_what_is_told_above_the_questions_has_its_own_lines_while_there_is_room(rig: Rig) -> None:
    found = worst(rig)
    assert any(line.startswith("See perdure") for line in lines_of(found, 80, 29))
    lines = lines_of(found, 80, 30)
    beginnings = [line.split()[0] for line in lines[:6]]
    assert beginnings == ["2", "Queue", "Schedules:", "Limit", "Dead", "There"]
    assert not any("no room" in line for line in lines)


@pytest.mark.parametrize("width", [20, 80])
def test_no_screen_is_too_small_and_the_first_lines_stay(rig: Rig, width: int) -> None:
    found = worst(rig)
    for height in (1, 2, 3, 6, 9, 10, 11, 12, 16, 20, 27, 40):
        lines = lines_of(found, width, height)
        assert len(lines) <= height
        assert [line[:12] for line in asked(lines)] == [
            question[:12] for question in ALL_QUESTIONS[: len(asked(lines))]
        ]
        assert lines[0].startswith("2 stuck, 1 failed")


def test_texts_that_are_folded_are_counted_by_words(rig: Rig) -> None:
    """A text of 100 letters may take three lines of 40 where its words are long."""
    row = rig.reserve("gpu")._replace(reserved_by="the nightly import of " + "everything_there_is_in_the_shop " * 3)
    rig.enqueue_many(3)
    found = status(rig.store, rig.now)._replace(reservations=[row])
    for width in range(40, 120, 3):
        for height in (16, 24):
            assert len(lines_of(found, width, height)) <= height


@pytest.mark.parametrize("height", [23, 30, 50])
def test_hints_that_the_terminal_folds_are_counted(rig: Rig, height: int) -> None:
    busy(rig)
    found = status(rig.store, SystemClock().now())
    console = Console(width=1_000, file=StringIO())
    console.print(screen(found, space_for(found, 80, height, f" --url {'x' * 200}")))
    assert isinstance(console.file, StringIO)
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]
    assert sum(max(1, -(-len(line) // 80)) for line in lines) <= height
    assert height < 50 or any(line.endswith("xx") for line in lines)


def test_a_line_break_in_a_name_takes_no_line(rig: Rig) -> None:
    for _ in range(2):
        rig.finish(rig.start(kind="send", business_key="order\n7"), Completed(), RunStats(duration_ms=5))
    lines = lines_of(status(rig.store, rig.now), 80, 20)
    assert any("business key order 7" in line for line in lines)
    assert len(lines) <= 20


def test_with_everything_to_tell_the_prompt_has_a_line_too(rig: Rig, tmp_path: Path) -> None:
    trouble(rig)
    with session("status", "--url", "jobs.db", cwd=tmp_path) as terminal:
        assert terminal.end() == 0
    assert terminal.shown.startswith("2 stuck, 1 failed")
    assert ALL_QUESTIONS[-1] in terminal.shown
    assert terminal.shown.count("\n") <= 23


def test_the_prompt_has_a_line_too(rig: Rig, tmp_path: Path) -> None:
    for number in range(70):
        rig.enqueue(kind=f"kind-{number}")
    with session("status", "--url", "jobs.db", cwd=tmp_path) as terminal:
        assert terminal.end() == 0
    assert terminal.shown.count("\n") == 23


def test_in_a_narrow_terminal_what_is_wrong_stays(rig: Rig) -> None:
    in_state(rig, State.PARKED, kind="send", queue=rig.queue)
    (heading,) = [one for one in lines_of(status(rig.store, SystemClock().now()), 20, 40) if "why" in one]
    assert heading.split() == ["kind", "jobs", "why"]


def test_texts_are_cut_and_numbers_are_not() -> None:
    console = Console(width=23, file=StringIO())
    console.print(*table(("kind", "runs"), [("a-long-name", "1,234,567,890")], Space(23)))
    assert isinstance(console.file, StringIO)
    assert console.file.getvalue().splitlines()[1] == "a-long-…  1,234,567,890"


def test_a_large_terminal_is_used_as_a_whole(rig: Rig) -> None:
    for number in range(70):
        rig.enqueue(kind=f"kind-{number}")
    found = status(rig.store, SystemClock().now())

    for height in (30, 50, 70):
        assert len(lines_of(found, 100, height)) == height
    assert len([line for line in lines_of(found, 100, 200) if line.startswith("kind-")]) == 71, (
        "each, and the stuck one"
    )


def test_what_runs_now_is_shown_with_its_progress(perdure: Perdure, rig: Rig, tmp_path: Path) -> None:
    quiet, told = rig.start(kind="send"), rig.start(kind="import")
    metrics = json.dumps({"rows": 3, "progress": {"done": 1500, "total": 6000, "note": "page\n2"}})
    rig.store.turn(Turn(notes=Notes(metrics=[(told.run_id, metrics)])), rig.now)
    short = str(to_uuid(told.job_id))[-8:]

    out = perdure("status", "--url", "jobs.db", cwd=tmp_path).out
    assert answer(out, "What runs now?") == [
        "job  kind  try  for  progress",
        f"{short}  import  1/3  10 min  1,500 of 6,000 (25 %), page 2",
        f"{str(to_uuid(quiet.job_id))[-8:]}  send  1/3  10 min  -",
    ]
    asked = {command: perdure(command, short, "--url", "jobs.db", cwd=tmp_path).out for command in ("job", "explain")}
    asked["jobs"] = perdure("jobs", "--url", "jobs.db", cwd=tmp_path).out
    for command, shown in asked.items():
        assert "1,500 of 6,000 (25 %), page 2" in shown, command
    (of_it,) = [
        each for each in perdure("status", "--json", "--url", "jobs.db", cwd=tmp_path).json()["running"]
        if each["kind"] == "import"
    ]  # fmt: skip
    assert of_it["progress"] == {"done": 1500, "total": 6000, "note": "page\n2"}


@pytest.mark.parametrize(
    ("metrics", "shown"),
    [
        ({"progress": {"done": 3}}, "3"),
        ({"progress": {"done": 0.5, "total": 2.0, "note": ""}}, "0.5 of 2.0 (25 %)"),
        ({"progress": {"done": 1, "total": 0}}, "1 of 0"),
        ({"progress": {"done": 1, "total": "many"}}, "1"),
        ({"progress": {"done": "a lot"}}, None),
        ({"progress": [1, 2]}, None),
        ({}, None),
        (None, None),
    ],
)
def test_progress_that_another_program_has_written_is_taken_as_far_as_it_can_be(metrics: object, shown: object) -> None:
    progress = said_in(metrics)
    assert (None if progress is None else progress_text(progress)) == shown


def test_watching_with_json_prints_a_line_each_time(rig: Rig, tmp_path: Path) -> None:
    rig.enqueue(kind="early")
    with started("status", "--watch", "--json", "--url", "jobs.db", cwd=tmp_path) as watcher:
        assert watcher.stdout is not None
        first, second = (json.loads(watcher.stdout.readline()) for _ in range(2))
        watcher.send_signal(signal.SIGINT)
        _, errors = watcher.communicate()
    assert (watcher.returncode, errors) == (0, "")
    assert first["at"] < second["at"]
    assert first["outstanding"] == second["outstanding"] != []


def test_watching_without_a_terminal_prints_once(perdure: Perdure, rig: Rig, tmp_path: Path) -> None:
    rig.enqueue()

    ran = perdure("status", "--watch", "--url", "jobs.db", cwd=tmp_path)
    assert ran.status == 0
    assert ran.out.count(QUESTIONS[0]) == 1
