"""`perdure top`, in a real terminal with real keys."""

from __future__ import annotations

import asyncio
import os
import pty
import subprocess
import termios
from io import StringIO
from pathlib import Path
from select import select

from rich.console import Console

from perdure import Fail, JobContext, State
from perdure import Perdure as App
from perdure.cli.top import Top, keys_in
from tests.cli.terminal import PROGRAM, Perdure, refusal, session, surroundings

UP, DOWN = "\x1b[A", "\x1b[B"


def test_queues_and_jobs_are_decided_about_by_key(tmp_path: Path) -> None:
    app = App(tmp_path / "jobs.db", durability="normal")

    @app.job(queue="mail")
    def send(to: str) -> None:
        raise Fail(f"{to} is no address")

    failed = send.enqueue("nowhere")
    app.worker().run(until_idle=True)
    assert app.existing(failed).state is State.FAILED

    with session("top", "--url", "jobs.db", cwd=tmp_path) as terminal:
        first = terminal.see("q quit")
        assert "1 queue" in first
        assert "no workers" in first
        assert "Fail: nowhere is no address" in first

        terminal.press("p")
        terminal.see("queue mail is paused")
        assert app.queues.list()[0].paused
        terminal.press(DOWN)
        terminal.see("q quit")
        terminal.press("r")
        terminal.see("is queued")
        assert app.existing(failed).state is State.QUEUED
        terminal.press("p")  # it is gone from the screen: the queue is chosen again
        terminal.see("queue mail continues")
        assert not app.queues.list()[0].paused

        assert app.pause(failed).state is State.PAUSED
        terminal.see("paused")
        terminal.press("j")
        terminal.press("c")
        terminal.see("? y or n")
        terminal.press("n")
        terminal.see("Nothing was changed.")
        terminal.press("cy")
        terminal.see("is cancelled")
        assert app.existing(failed).state is State.CANCELLED
        terminal.press("q")
        assert terminal.end() == 0
    assert "Traceback" not in terminal.shown
    assert terminal.shown.rstrip().endswith("\x1b[?25h\x1b[?1049l"), "the screen is as it was"


def test_running_jobs_show_their_progress_and_can_be_asked_to_stop(tmp_path: Path) -> None:
    app = App(tmp_path / "jobs.db", durability="normal")

    @app.job
    async def crawl(ctx: JobContext) -> None:
        ctx.progress(3, 12, "the third page")
        await asyncio.Event().wait()

    job = crawl.enqueue()
    with app.worker().running(), session("top", "--url", "jobs.db", cwd=tmp_path) as terminal:
        terminal.see("3 of 12 (25 %), the third page")
        assert "1 worker" in terminal.shown
        terminal.press(DOWN)
        terminal.press("cy")
        terminal.see("running, asked to stop")
        terminal.press("\x03")  # Ctrl-C ends it too
        assert terminal.end() == 0
        assert app.wait(job, timeout=60).state is State.CANCELLED


def test_what_a_key_cannot_do_is_said(tmp_path: Path) -> None:
    app = App(tmp_path / "jobs.db", durability="normal")

    @app.job
    def send() -> None: ...

    top = Top(app)
    top.look()
    for key in ("up", "down", "p", "r", "c", "e", "x"):
        top.press(key)  # there is nothing to choose
    job = send.options(queue="b").enqueue()
    app.pause(job)
    top.look()
    said = []
    for key in ("c", "r", "e", "down", "r", "p"):
        top.press(key)
        top.look()
        said.append(top.said)
    assert said[:3] == ["choose a job to cancel", "choose a job to retry", "choose a job to explain"]
    assert said[4].startswith("cannot retry job ")
    assert said[4].endswith("[retry_refused]")
    assert said[5] == f"send {job.id.hex[-8:]} is queued"
    app.close()


def test_a_database_that_is_away_is_said_and_asked_again(tmp_path: Path) -> None:
    app = App(tmp_path / "jobs.db", durability="normal")
    app.store.upgrade()
    app.queues.pause("mail")
    top = Top(app)
    (tmp_path / "jobs.db").rename(tmp_path / "away.db")
    app.close()
    (tmp_path / "jobs.db").mkdir()
    top.look()
    assert "[database_path]" in top.said
    (tmp_path / "jobs.db").rmdir()
    (tmp_path / "away.db").rename(tmp_path / "jobs.db")
    top.look()
    top.press("p")
    assert top.said == "queue mail continues"
    app.close()


def test_the_rows_around_the_cursor_are_shown(tmp_path: Path) -> None:
    app = App(tmp_path / "jobs.db", durability="normal")
    for number in range(20):
        app.queues.pause(f"queue-{number:02}")
    top = Top(app)
    top.look()
    for _ in range(19):
        top.press("down")
    console = Console(width=80, file=StringIO())
    console.print(top.screen(80, 24))
    assert isinstance(console.file, StringIO)
    assert "queue-19" in console.file.getvalue()
    assert "queue-00" not in console.file.getvalue()
    app.close()


def test_the_keyboard_is_as_it_was(tmp_path: Path) -> None:
    App(tmp_path / "jobs.db").store.upgrade()
    terminal, other_end = pty.openpty()
    before = termios.tcgetattr(other_end)
    with subprocess.Popen(
        [*PROGRAM, "top", "--url", "jobs.db"],
        cwd=tmp_path,
        env=surroundings({"TERM": "xterm"}),
        stdin=other_end,
        stdout=other_end,
        stderr=other_end,
    ) as top:
        shown = b""
        while b"q quit" not in shown:
            shown += os.read(terminal, 4096)
        assert termios.tcgetattr(other_end) != before
        os.write(terminal, b"q")
        while top.poll() is None:
            if select([terminal], [], [], 0.1)[0]:
                os.read(terminal, 4096)
    assert termios.tcgetattr(other_end) == before
    os.close(terminal)
    os.close(other_end)


def test_keys_come_as_bytes() -> None:
    assert keys_in(b"\x1b[A\x1bOBjkpq\r") == ["up", "down", "down", "up", "p", "q", "e"]
    assert keys_in("ü".encode()) != ["q"]
    assert keys_in(b"\x1b[C") == []
    assert keys_in(b"") == ["q"], "the terminal is gone"


def test_it_needs_a_terminal(perdure: Perdure, tmp_path: Path) -> None:
    assert "needs a terminal; perdure status --json" in refusal(perdure("top", "--url", "jobs.db", cwd=tmp_path))
