"""`perdure demo` as a stranger runs it: proves its claims, and leaves nothing behind, however it ends."""

from __future__ import annotations

import os
import pty
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from perdure import Perdure, State
from perdure.cli.demo import report, shop
from perdure.cli.demo.steps import PINGS, WAITING
from perdure.ops.doctor import examine
from tests.cli.terminal import SOURCE, Ran, process, surroundings

JOBS = 200
WORKFLOW = 3 + shop.PARTS
DEMO = [sys.executable, "-P", "-m", "perdure", "demo", "--jobs", str(JOBS)]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kept") / "kept.db"


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, kept: Path) -> Ran:
    """One whole demo that keeps its database; the folder it may use is empty afterwards.

    It sends itself a SIGINT in the moment in which the file is made.
    """
    folder, site = tmp_path_factory.mktemp("temporary"), tmp_path_factory.mktemp("site")
    (site / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "def hook(event, arguments):\n"
        "    if event == 'open' and str(arguments[0]).endswith('kept.db'):\n"
        f"        os.close(os.open({str(kept.with_name('signalled'))!r}, os.O_CREAT))\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.addaudithook(hook)\n"
    )
    ran = process(
        *("demo", "--jobs", str(JOBS), "--keep", str(kept)),
        cwd=folder,
        TMPDIR=str(folder),
        COLUMNS="80",
        PATH="/usr/bin:/bin",
        PYTHONPATH=f"{site}:{SOURCE}",
    )
    assert_nothing_left(folder)
    return ran


def figures(ran: Ran) -> dict[str, int]:
    """The counts in the closing table."""
    rows = re.findall(r"^ (\w[\w, ]+?) {2,}([\d,]+)  ", ran.out, re.MULTILINE)
    return {name: int(value.replace(",", "")) for name, value in rows}


def ticks(ran: Ran) -> int:
    """How many planned instants made a job, according to the closing table."""
    found = re.search(r"instants: (\d+) made one job each", sentences(ran))
    assert found is not None
    return int(found[1])


def sentences(ran: Ran) -> str:
    return " ".join(ran.out.split())


def test_it_ends_well_and_says_what_was_proven(ran: Ran) -> None:
    assert (ran.status, ran.err) == (0, "")
    assert "no accepted job was lost, none ran twice without a recorded reason" in sentences(ran)
    assert "The idempotency key order-17 was used twice, and there is one job of it." in sentences(ran)
    assert "no worker is registered" in sentences(ran)
    assert re.search(r"was behind 201 others. Moved to the front, it started \d+ ms after", sentences(ran))


def test_its_counts_add_up(ran: Ran) -> None:
    counts = figures(ran)
    parents = 1 + sum(draft.kind.name == "order" for draft in shop.drafts(JOBS))

    assert counts["jobs accepted"] == JOBS + 2 + WORKFLOW + 1 + PINGS + JOBS + WAITING
    assert counts["jobs ended"] == counts["jobs accepted"] + parents + ticks(ran)
    assert counts["attempts"] == counts["jobs ended"] + counts["retried"]
    assert counts["handler starts"] <= counts["attempts"]
    assert counts["doctor"] == 0


def test_a_worker_was_killed_with_jobs_in_hand_and_all_of_them_were_rescued(ran: Ran) -> None:
    killed = re.search(r"Killed worker (\d+) with SIGKILL, (\d+) jobs in hand", sentences(ran))
    rescued = re.search(r"Worker (\d+) noticed and took back (\d+) of (\d+) jobs", sentences(ran))

    assert killed is not None
    assert rescued is not None
    assert killed[1] != rescued[1]
    assert int(killed[2]) >= 1
    assert killed[2] == rescued[2] == rescued[3]
    assert f"All {killed[2]} rescued jobs were completed by worker {rescued[1]}." in sentences(ran)


def test_a_schedule_went_on_though_a_worker_was_killed(ran: Ran, kept: Path) -> None:
    killed = re.search(r"Killed worker (\d+)", sentences(ran))
    made = re.search(r"Worker (\d+) made (none|\d+) of them .* the others went on and made (\d+)", sentences(ran))
    app = Perdure(kept)
    missed = sum(stretch.count or 0 for stretch in app.schedules.missed("tick"))

    assert killed is not None
    assert made is not None
    assert killed[1] == made[1]
    assert int(made[3]) >= 1
    assert ticks(ran) == int(made[2].replace("none", "0")) + int(made[3]) == len(app.schedules.slots("tick"))
    assert figures(ran)["planned"] == ticks(ran) + missed
    assert "every planned instant is accounted for" in sentences(ran)
    app.close()


def test_a_workflow_survived_the_kill_of_its_worker(ran: Ran, kept: Path) -> None:
    killed = re.search(r"Killed worker (\d+) with SIGKILL, in the middle of (\d) parts?\.", sentences(ran))
    carried = re.search(r"Worker (\d+) ran them again and went on .* perdure flow (\w+) draws", sentences(ran))
    assert killed is not None
    assert carried is not None
    app = Perdure(kept)
    (flow,) = app.flows.list()
    runs = {kind: list(app.runs(kind=kind)) for kind in ("download", "encode", "join", "announce")}

    assert killed[1] != carried[1]
    assert 1 <= int(killed[2]) <= shop.ENCODERS
    assert str(flow.id).endswith(carried[2])
    assert flow.state == "completed"
    assert Counter(run.state for run in runs["encode"]) == {"completed": shop.PARTS, "lost": int(killed[2])}
    for kind in ("join", "announce"):
        assert [(run.life, run.attempt, run.state) for run in runs[kind]] == [(1, 1, "completed")]
    assert figures(ran)["join, callback"] == 2
    assert "the join and the callback of the workflow had one life each" in sentences(ran)
    app.close()


def test_the_workflow_is_drawn_as_the_command_that_it_names_draws_it(ran: Ran, kept: Path) -> None:
    named = re.search(r"perdure flow (\w+)", sentences(ran))
    assert named is not None

    shown = process("flow", named[1], "--url", str(kept), cwd=kept.parent)
    graph = shown.out[shown.out.index("✓") :].splitlines()

    assert len(graph) == WORKFLOW + 1  # the batch of its parts has a line too
    assert "\n".join(f"{' ' * (report.LABEL + 2)}{line}" for line in graph) in ran.out


def test_a_queue_was_reserved_while_jobs_waited_in_it(ran: Ran, kept: Path) -> None:
    app = Perdure(kept)
    (reservation,) = app.reservations()

    assert f"reserved the queue express, with {WAITING} jobs waiting," in sentences(ran)
    assert (reservation.queue, reservation.status) == (shop.EXPRESS, "released")
    app.close()


def test_it_prints_plainly_where_there_is_no_terminal_and_fits_eighty_columns(ran: Ran) -> None:
    assert "\x1b" not in ran.out
    assert max(len(line) for line in ran.out.splitlines() if sys.executable not in line) <= 80


def test_the_commands_it_ends_with_work_as_they_are_printed(ran: Ran, kept: Path, tmp_path: Path) -> None:
    commands = [line.strip() for line in ran.out.splitlines() if " -m perdure " in line]
    environment = surroundings({"PATH": "/usr/bin:/bin"})
    done = [subprocess.run(["sh", "-c", one], cwd=tmp_path, env=environment, check=True) for one in commands]

    assert [command.partition(" -m perdure ")[2] for command in commands] == [f"status --url {kept}", "init", "--help"]
    assert len(done) == 3
    assert (tmp_path / "jobs.py").exists()
    assert not re.search(r"\w\.md\b|docs/", ran.out), "an installation has no such files"


def test_where_the_program_is_on_the_path_its_name_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "perdure").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    report.print_next_steps(report.Screen(plain=True), None)

    assert re.findall(r"^ +(perdure .*)$", capsys.readouterr().out, re.MULTILINE) == ["perdure init", "perdure --help"]


def test_the_kept_database_is_whole_and_holds_what_was_told(ran: Ran, kept: Path) -> None:
    app = Perdure(kept)
    lost = list(app.runs(state="lost"))
    (failed,) = app.jobs(state="failed")

    assert f"perdure status --url {kept}" in ran.out
    assert [path.name for path in kept.parent.iterdir() if "kept" not in path.name] == ["signalled"]
    assert sum(1 for _ in app.jobs()) == figures(ran)["jobs ended"]
    assert len(lost) == figures(ran)["retried"] - sum(1 for run in app.runs(state="failed") if run.job_id != failed.id)
    assert failed.error == "the card has expired"
    assert {job.state for job in app.jobs(kind=shop.report.name)} == {State.COMPLETED}
    assert [found.name for found in examine(app.store) if found.severity == "violation"] == []
    app.close()


@pytest.mark.damaged
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--keep", "there.db"), "there.db is there already"),
        (("--keep", "nowhere/new.db"), "nowhere is no folder"),
        (("--jobs", "1"), "--jobs"),
    ],
)
def test_wrong_input_is_refused_before_anything_is_done(
    tmp_path: Path, arguments: tuple[str, ...], complaint: str
) -> None:
    (tmp_path / "there.db").write_text("mine")

    ran = process("demo", *arguments, cwd=tmp_path, TMPDIR=str(tmp_path))

    assert (ran.status, ran.out) == (2, "")
    assert complaint in ran.err
    assert [path.name for path in tmp_path.iterdir()] == ["there.db"]


def test_a_worker_that_does_not_start_is_shown_with_the_end_of_its_log(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import os, sys\nif 'worker' in sys.orig_argv:\n    os.write(2, b'no worker today')\n    os._exit(9)\n"
    )
    (tmp_path / "temporary").mkdir()

    ran = process(
        "demo", "--jobs", "100", cwd=tmp_path, TMPDIR=str(tmp_path / "temporary"), PYTHONPATH=f"{site}:{SOURCE}"
    )

    assert ran.status == 2
    assert re.search(r"worker \d+ ended with status 9; the end of its log:\n +no worker today", ran.err)
    assert_nothing_left(tmp_path / "temporary")


def test_a_job_that_disappears_makes_it_exit_with_1(tmp_path: Path) -> None:
    with started(tmp_path, stdout=subprocess.PIPE) as demo:
        assert demo.stdout is not None
        read_until(demo.stdout, b"latency")
        (path,) = tmp_path.glob("perdure-demo-*/jobs.db")
        with sqlite3.connect(path, timeout=30) as connection:
            connection.execute(
                "DELETE FROM perdure_job WHERE id = (SELECT MIN(id) FROM perdure_job WHERE kind = 'fetch')"
            )
        connection.close()
        out = " ".join(demo.stdout.read().decode().split())

    assert demo.returncode == 1
    assert "PROBLEM 1 accepted jobs are missing" in out
    assert "doctor: " in out
    assert "proven" not in out
    assert_nothing_left(tmp_path)


@pytest.mark.parametrize(
    ("stage", "number"),
    [
        (b"perdure ", signal.SIGINT),  # enqueueing
        (b"explain", signal.SIGTERM),  # starting two workers
        (b"reorder", signal.SIGINT),  # both at work
        (b"rescue", signal.SIGHUP),  # one dead, one at work, two starting
        (b"middle of", signal.SIGTERM),  # one dead with parts of a workflow in hand
        (b"sprint", signal.SIGTERM),  # reserving a queue
    ],
)
def test_a_signal_at_any_stage_leaves_nothing_behind(tmp_path: Path, stage: bytes, number: signal.Signals) -> None:
    with started(tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as demo:
        assert demo.stdout is not None
        read_until(demo.stdout, stage)
        demo.send_signal(number)
        demo.send_signal(number)  # who is impatient changes nothing
        out, err = demo.communicate(timeout=60)

    assert demo.returncode == 128 + number, (out, err)
    assert err.decode() == f"perdure demo: ended by {number.name}; nothing is left behind\n"
    assert_nothing_left(tmp_path)


@pytest.mark.parametrize("stage", [b"reorder", b"rescue"])  # two at work; one dead, one at work, two starting
def test_a_demo_that_is_killed_takes_its_workers_along(tmp_path: Path, stage: bytes) -> None:
    with started(tmp_path, stdout=subprocess.PIPE) as demo:
        assert demo.stdout is not None
        read_until(demo.stdout, stage)
        demo.kill()

    assert demo.returncode == -signal.SIGKILL
    assert_no_process_left(tmp_path)


def test_a_signal_while_the_database_is_kept_comes_too_late(ran: Ran, kept: Path) -> None:
    assert kept.with_name("signalled").exists()
    assert (ran.status, ran.err) == (0, "")
    assert f"perdure status --url {kept}" in ran.out
    assert kept.exists()


def test_ctrl_c_in_a_terminal_leaves_no_half_drawn_display(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    with started(tmp_path, stdout=theirs, stderr=theirs, TERM="xterm") as demo, os.fdopen(ours, "rb", 0) as terminal:
        os.close(theirs)
        seen = read_until(terminal, b"SIGKILL")
        demo.send_signal(signal.SIGINT)
        for chunk in chunks(terminal):
            seen += chunk

    assert demo.returncode == 130
    assert b"in hand" in seen
    assert seen.rindex(b"\x1b[?25h") > seen.rindex(b"\x1b[?25l")  # the cursor is shown again
    assert seen.endswith(b"perdure demo: ended by SIGINT; nothing is left behind\r\n")
    assert_nothing_left(tmp_path)


# -- a demo to interfere with ----------------------------------------------------------------------------------------


def started(folder: Path, *, stdout: int, stderr: int | None = None, **environment: str) -> subprocess.Popen[bytes]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PERDURE_", "NO_COLOR"))}
    hangup = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored, and the demo would inherit that
    try:
        return subprocess.Popen(
            DEMO,
            cwd=folder,
            env=clean | {"PYTHONPATH": str(SOURCE), "TMPDIR": str(folder), "COLUMNS": "80", **environment},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
        )
    finally:
        signal.signal(signal.SIGHUP, hangup)


def chunks(stream: IO[bytes]) -> Iterator[bytes]:
    """What comes, as it comes. A terminal whose last writer has gone answers with an error."""
    try:
        while chunk := os.read(stream.fileno(), 65_536):
            yield chunk
    except OSError:
        return


def read_until(stream: IO[bytes], word: bytes) -> bytes:
    seen = b""
    for chunk in chunks(stream):
        seen += chunk
        if word in seen:
            return seen
    raise AssertionError(f"{word!r} was not said in {seen!r}")


def assert_nothing_left(folder: Path) -> None:
    assert list(folder.glob("perdure-demo-*")) == []
    assert_no_process_left(folder)


def assert_no_process_left(folder: Path) -> None:
    """None that was started for it: every one of them has the folder's name in its environment.

    Workers end a moment after a killed demo, and the processes of handlers a moment after a killed worker.
    """
    deadline = time.monotonic() + 30
    while (left := processes_of(folder)) and time.monotonic() < deadline:
        time.sleep(0.02)
    for pid in left:
        os.kill(pid, signal.SIGKILL)  # the test has failed; the machine is not to suffer for it
    assert left == {}


def processes_of(folder: Path) -> dict[int, str]:
    mine, found = str(folder).encode(), dict[int, str]()
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if mine in (place / "environ").read_bytes():
                found[int(place.name)] = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
    return found
