"""`perdure top`, in a real terminal with real keys."""

from __future__ import annotations

import asyncio
from pathlib import Path

from perdure import Fail, JobContext, State
from perdure import Perdure as App
from perdure.cli.top import Top, keys_in
from tests.cli.terminal import Perdure, refusal, session

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
        assert "nowhere is no address" in first

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


def test_keys_come_as_bytes() -> None:
    assert keys_in(b"\x1b[A\x1bOBjkpq\r") == ["up", "down", "down", "up", "p", "q", "e"]
    assert keys_in("ü".encode()) != ["q"]
    assert keys_in(b"\x1b[C") == []
    assert keys_in(b"") == ["q"], "the terminal is gone"


def test_it_needs_a_terminal(perdure: Perdure, tmp_path: Path) -> None:
    assert "needs a terminal; perdure status --json" in refusal(perdure("top", "--url", "jobs.db", cwd=tmp_path))
