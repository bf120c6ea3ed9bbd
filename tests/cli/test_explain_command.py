"""`perdure explain ID`: one sentence, what it rests on, and what to type next."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.cli.target import completed, database_options, worker_command
from perdure.clock import ManualClock, SystemClock
from perdure.ids import JobId, to_uuid
from perdure.job.model import Failure
from perdure.job.reports import Failed
from perdure.job.states import FINAL, State
from perdure.ops import doctor
from perdure.testing.contract.rig import Rig
from perdure.testing.contract.states import in_state
from tests.cli.terminal import Perdure, process, refusal, started

SHOP = """
import threading
from perdure import Perdure

app = Perdure("jobs.db")

@app.job(name="send")
def send(n: int) -> None:
    with open("begun", "wb"):
        threading.Event().wait()
"""


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(f"sqlite:///{tmp_path}/jobs.db")
    rig.clock = ManualClock(SystemClock().now())
    yield rig
    findings = doctor.examine(rig.store, rig.now)
    rig.close()
    assert doctor.is_healthy(findings), findings


def lines(out: str) -> list[str]:
    return [re.sub(r" {2,}", "  ", line.strip()) for line in out.splitlines()]


def text(job_id: JobId) -> str:
    return str(to_uuid(job_id))


def test_of_a_job_that_has_ended_the_sentence_says_how(perdure: Perdure, rig: Rig, tmp_path: Path) -> None:
    claim = rig.start(kind="send", max_attempts=1)
    rig.finish(claim, Failed(Failure("ValueError", "no such address\nlook it up")))

    sentence, *_ = lines(perdure("explain", text(claim.job_id), "--url", "jobs.db", cwd=tmp_path).out)
    assert sentence == "send failed after 1 attempt with ValueError: no such address."


@pytest.mark.parametrize("command", ["explain", "job", "runs"])
def test_a_password_in_an_error_is_not_printed(perdure: Perdure, rig: Rig, tmp_path: Path, command: str) -> None:
    claim = rig.start(kind="send", max_attempts=1)
    rig.finish(claim, Failed(Failure("OSError", "postgresql://me:hunter2@db/shop is away.", "  at hunter2:hunter2@x")))

    out = perdure(command, text(claim.job_id), "--url", "jobs.db", cwd=tmp_path).out
    assert "postgresql://me:***@db/shop is away." in out
    assert "me:hunter2" not in out
    assert ".." not in out


def test_one_sentence_a_table_and_the_next_command(perdure: Perdure, rig: Rig, tmp_path: Path) -> None:
    job_id = rig.enqueue(kind="send", queue="mail")
    rig.store.pause_queue("mail", rig.now)

    ran = perdure("explain", text(job_id), "--url", "jobs.db", cwd=tmp_path)
    sentence, blank, *table = lines(ran.out)
    assert ran.status == 0
    assert re.fullmatch(r"send is queued: queue 'mail' is paused since .* UTC\.", sentence)
    assert blank == ""
    assert f"job  {text(job_id)}" in table
    assert "jobs ahead  0" in table
    assert "who could run it  no worker is live" in table
    assert table[-1] == "next  perdure queues resume mail --url jobs.db"


def test_the_command_it_names_is_one_that_helps(perdure: Perdure, rig: Rig, tmp_path: Path) -> None:
    job_id = in_state(rig, State.PAUSED, kind="send")
    named = perdure("explain", text(job_id), "--json", "--url", "jobs.db", cwd=tmp_path).json()["command"]

    assert perdure(*named.split()[1:], cwd=tmp_path).status == 0, "as it is, without anything added"
    assert rig.job(job_id).state == State.QUEUED


def test_where_nobody_has_to_do_anything_it_says_what_happens(perdure: Perdure, rig: Rig, tmp_path: Path) -> None:
    job_id = rig.enqueue(delay_s=3_600)

    out = perdure("explain", text(job_id), "--url", "jobs.db", cwd=tmp_path).out
    assert lines(out)[-1] == "next  It is queued then."


def test_a_tail_of_the_id_is_enough(perdure: Perdure, rig: Rig, tmp_path: Path) -> None:
    job_id = rig.enqueue(kind="send")

    assert text(job_id) in perdure("explain", text(job_id)[-6:], "--url", "jobs.db", cwd=tmp_path).out


@pytest.mark.parametrize("state", sorted(State))
def test_every_state_is_explained_in_80_columns(perdure: Perdure, rig: Rig, tmp_path: Path, state: State) -> None:
    job_id = in_state(rig, state, kind="send")

    ran = perdure("explain", text(job_id), "--url", "jobs.db", cwd=tmp_path, COLUMNS="80")
    assert ran.status == 0
    sentence, *table = ran.out.splitlines()
    assert re.match(rf"send (was )?{state} after " if state in FINAL else f"send is {state}: ", sentence)
    assert all(len(line.rstrip()) <= 80 for line in table)


def test_json_has_stable_keys(perdure: Perdure, rig: Rig, tmp_path: Path) -> None:
    job_id = rig.enqueue(kind="send", queue="mail")

    found = perdure("explain", text(job_id), "--json", "--url", "jobs.db", cwd=tmp_path).json()
    assert list(found) == ["id", "state", "why", "next", "command", "facts"]
    assert (found["id"], found["state"], found["why"]) == (text(job_id), "queued", "no worker is registered")
    assert found["facts"][:2] == [{"name": "kind", "text": "send"}, {"name": "queue", "text": "mail"}]


def test_a_worker_that_was_killed_is_not_waited_for(rig: Rig, tmp_path: Path) -> None:
    """The real thing: the only worker, killed in the middle of a job."""
    (tmp_path / "shop.py").write_text(SHOP, "utf-8")
    os.mkfifo(tmp_path / "begun")
    with started("worker", "shop:app", "--concurrency", "1", cwd=tmp_path) as it:
        running, waiting = rig.enqueue(kind="send"), rig.enqueue(kind="send")
        with (tmp_path / "begun").open("rb"):  # until the job opens the other end
            it.kill()
            it.communicate()

    found = [process("explain", text(each), "--url", "jobs.db", cwd=tmp_path).out for each in (running, waiting)]
    assert "but the process of that node has ended." in found[0].splitlines()[0]
    assert "the process of the only worker for it has ended" in found[1].splitlines()[0]
    assert all(lines(out)[-1] == "next  perdure worker shop:app --url jobs.db" for out in found)


PROJECT = '[tool.perdure]\napp = "shop:app"\n'


@pytest.mark.parametrize(
    ("given", "project", "command"),
    [
        (((), {"PERDURE_APP": "shop:app"}), "", "perdure worker"),
        (((), {}), PROJECT, "perdure worker"),
        (((), {"PERDURE_URL": "jobs.db"}), PROJECT, "perdure worker"),
        ((("--app", "shop"), {}), "", "perdure worker shop"),
        ((("--app", "shop", "--url", "jobs.db"), {}), "", "perdure worker shop --url jobs.db"),
        ((("--url", "jobs.db"), {"PERDURE_APP": "shop:app"}), "", "perdure worker --url jobs.db"),
        ((("--url", "jobs.db"), {}), "", "perdure worker shop:app --url jobs.db"),
        (((), {"PERDURE_URL": "jobs.db"}), "", 'perdure worker shop:app --url "$PERDURE_URL"'),
        (((), {}), '[tool.perdure]\nurl = "jobs.db"\n', "perdure worker shop:app --url jobs.db"),
    ],
)
def test_the_worker_it_asks_for_is_the_one_that_works_as_typed_here(
    perdure: Perdure,
    rig: Rig,
    tmp_path: Path,
    given: tuple[tuple[str, ...], dict[str, str]],
    project: str,
    command: str,
) -> None:
    options, environment = given
    job = text(rig.enqueue(kind="send"))
    (tmp_path / "shop.py").write_text(SHOP, "utf-8")
    (tmp_path / "pyproject.toml").write_text(project, "utf-8")

    assert perdure("explain", job, "--json", *options, cwd=tmp_path, **environment).json()["command"] == command
    shown = perdure("job", job, "--json", *options, cwd=tmp_path, **environment).json()
    assert shown["explanation"]["command"] == command
    assert command in perdure("nodes", *options, cwd=tmp_path, **environment).out


def test_a_password_is_in_no_command_that_is_offered() -> None:
    url = "postgresql://shop:hunter2@db.example.org/shop"

    offered = [worker_command(url, "shop"), completed("perdure retry 3fa2", url, None), database_options(url, "shop")]
    assert [command for command in offered if "hunter2" in command or "db.example.org" not in command] == []


def test_where_no_app_is_known_its_place_is_left_open(perdure: Perdure, rig: Rig, tmp_path: Path) -> None:
    job = text(rig.enqueue(kind="send"))

    out = perdure("explain", job, "--url", "jobs.db", cwd=tmp_path).out
    assert lines(out)[-1] == "next  perdure worker MODULE:APP --url jobs.db"


def test_an_error_cannot_talk_to_the_terminal(perdure: Perdure, rig: Rig, tmp_path: Path) -> None:
    claim = rig.start()
    rig.finish(claim, Failed(Failure("E", "first\n\x1b]0;title\x07", permanent=True)))

    out = perdure("explain", text(claim.job_id), "--url", "jobs.db", cwd=tmp_path).out
    assert "\x1b" not in out
    assert "first" in out.splitlines()[0]


def test_what_is_not_there_is_refused_in_one_line(perdure: Perdure, rig: Rig, tmp_path: Path) -> None:
    rig.enqueue()
    nobody = text(JobId(rig.ids.new()))

    assert "there is no job" in refusal(perdure("explain", nobody, "--url", "jobs.db", cwd=tmp_path))
    assert "is not an id" in refusal(perdure("explain", "hello", "--url", "jobs.db", cwd=tmp_path))


def test_the_real_program_explains(rig: Rig, tmp_path: Path) -> None:
    job_id = rig.enqueue(kind="send")

    ran = process("explain", text(job_id), "--url", "jobs.db", cwd=tmp_path)
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.startswith("send is queued: no worker is registered.\n")
