"""SIGTERM at every stage, to real processes: what becomes of the jobs, and what the process exits with."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import pytest

from perdure import Job, Perdure, State
from perdure.worker.worker import EXIT_LEFT_BEHIND
from tests.worker.patience import eventually, seen_by_the_doctor
from tests.worker.processes import process, worker

SHOP = """
import asyncio, threading, time
from perdure import JobContext, Perdure

app = Perdure("jobs.db", durability="normal")

def say(text):
    print(text, flush=True)

@app.job
async def quick() -> None: ...

@app.job
async def waiting() -> None:
    say("entered")
    await asyncio.Event().wait()

@app.job
async def listening(ctx: JobContext) -> str:
    say("entered")
    while not ctx.should_stop:
        await asyncio.sleep(0.01)
    return "finished"

@app.job
def checking(ctx: JobContext) -> None:
    say("entered")
    while True:
        ctx.checkpoint()
        time.sleep(0.01)

@app.job
def looping() -> None:
    say("entered")
    while True:
        time.sleep(0.01)

@app.job
def stuck() -> None:
    told = False
    while True:
        try:
            if not told:
                told = True
                say("entered")
            threading.Event().wait()
        except BaseException:
            pass

@app.job
async def stuck_in_a_thread_of_the_loop() -> None:
    say("entered")
    await asyncio.to_thread(threading.Event().wait)

@app.job
async def stubborn() -> None:
    say("entered")  # no cancel can come before the first await
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            say("shrugged")
"""


@pytest.fixture
def shop(tmp_path: Path, path: Path) -> Perdure:
    """The same app here: its handlers do nothing but end, so that what was released can be run to its end."""
    (tmp_path / "shop.py").write_text(SHOP)
    app = Perdure(path, durability="normal")
    for name in SHOP.split("def ")[2:]:

        def done() -> str:
            return "done here"

        app.job(name=name.partition("(")[0])(done)
    return app


def enqueued(shop: Perdure, kind: str) -> Job:
    return shop.enqueue(kind)


def ends(shop: Perdure) -> list[str | None]:
    return [node.stop_reason for node in shop.store.nodes(10)]


def finish_here(shop: Perdure, job: Job) -> Job:
    """Let another worker do what is left; answers the job in the end."""
    assert shop.worker().run(until_idle=True) == 0
    return shop.existing(job)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_worker_ends_cleanly(shop: Perdure, tmp_path: Path, number: signal.Signals) -> None:
    with worker("shop:app", cwd=tmp_path) as process:
        process.send(number)
        assert process.ended() == 0

    assert ends(shop) == ["clean_shutdown"]
    seen_by_the_doctor(shop)


def test_a_worker_that_is_just_claiming_loses_nothing_and_runs_nothing_twice(shop: Perdure, tmp_path: Path) -> None:
    drafts = [shop.kinds.get("quick").new() for _ in range(3_000)]
    shop.enqueue_many(drafts)
    with worker("shop:app", cwd=tmp_path) as process:
        process.send(signal.SIGTERM)
        assert process.ended() == 0

    left = Counter(job.state for job in shop.jobs())
    assert set(left) <= {State.QUEUED, State.COMPLETED}
    assert shop.worker().run(until_idle=True) == 0
    assert Counter((job.state, job.attempts) for job in shop.jobs()) == {(State.COMPLETED, 1): 3_000}
    seen_by_the_doctor(shop)


def test_a_handler_that_listens_finishes_within_the_grace(shop: Perdure, tmp_path: Path) -> None:
    job = enqueued(shop, "listening")
    with worker("shop:app", cwd=tmp_path) as process:
        process.until("entered")
        process.send(signal.SIGTERM)
        assert process.ended() == 0

    assert shop.existing(job).result == "finished"
    assert ends(shop) == ["clean_shutdown"]
    seen_by_the_doctor(shop)


@pytest.mark.parametrize(("kind", "attempts"), [("waiting", 1), ("looping", 1), ("checking", 0)])
def test_after_the_grace_a_handler_is_interrupted_and_its_job_released(
    shop: Perdure, tmp_path: Path, kind: str, attempts: int
) -> None:
    """A handler that left at a checkpoint gets its attempt back; one that was interrupted in the middle has used it."""
    job = enqueued(shop, kind)
    with worker("shop:app", "--grace", "0.1", cwd=tmp_path) as process:
        process.until("entered")
        process.send(signal.SIGTERM)
        assert process.ended() == 0

    released = shop.existing(job)
    assert (released.state, released.attempts, released.position) == (State.QUEUED, attempts, job.position)
    assert ends(shop) == ["clean_shutdown"]
    assert finish_here(shop, job).result == "done here"
    seen_by_the_doctor(shop)


def test_a_second_signal_does_not_wait_for_the_grace(shop: Perdure, tmp_path: Path) -> None:
    job = enqueued(shop, "waiting")
    with worker("shop:app", "--grace", "3600", cwd=tmp_path) as process:
        process.until("entered")
        process.send(signal.SIGTERM)
        process.until("stopping; one job has 3600 s")
        process.send(signal.SIGTERM)
        assert process.ended() == 0

    assert (shop.existing(job).state, ends(shop)) == (State.QUEUED, ["clean_shutdown"])
    assert finish_here(shop, job).result == "done here"
    seen_by_the_doctor(shop)


@pytest.mark.parametrize("kind", ["stuck", "stubborn"])
def test_a_handler_that_cannot_be_stopped_is_left_and_its_job_rescued(shop: Perdure, tmp_path: Path, kind: str) -> None:
    job = enqueued(shop, kind)
    with worker("shop:app", "--grace", "3600", cwd=tmp_path) as process:
        process.until("entered")
        process.send(signal.SIGTERM)
        process.until("stopping")
        process.send(signal.SIGINT)
        assert process.ended() == EXIT_LEFT_BEHIND

    assert "handlers that did not end: 1" in process.said()
    assert (shop.existing(job).state, ends(shop)) == (State.RUNNING, [None])
    assert finish_here(shop, job).result == "done here"
    assert ends(shop) == ["clean_shutdown", "crash"]
    seen_by_the_doctor(shop)


def test_a_thread_left_behind_by_the_event_loop_does_not_keep_the_process(shop: Perdure, tmp_path: Path) -> None:
    job = enqueued(shop, "stuck_in_a_thread_of_the_loop")
    with worker("shop:app", "--grace", "0", cwd=tmp_path) as process:
        process.until("entered")
        process.send(signal.SIGTERM)
        assert process.ended() == EXIT_LEFT_BEHIND

    assert shop.existing(job).state is State.QUEUED
    assert finish_here(shop, job).result == "done here"
    seen_by_the_doctor(shop)


SLOW = """
import sys
from perdure import Perdure

app = Perdure("jobs.db", durability="normal")

def wait(said):
    print(said, flush=True)
    sys.stdin.readline()

print("exit", app.worker({hook}=lambda: wait("in the hook")).run({until}), flush=True)
"""


def test_a_signal_while_the_worker_starts_ends_it_when_it_has(shop: Perdure, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW.format(hook="before_start", until=""))
    with process("slow.py", cwd=tmp_path) as started:
        started.until("in the hook")
        started.send(signal.SIGTERM)
        started.type("go\n")
        started.until("exit 0")
        assert started.ended() == 0

    assert ends(shop) == ["clean_shutdown"]
    seen_by_the_doctor(shop)


def test_a_third_signal_ends_the_process_whatever_it_does(shop: Perdure, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW.format(hook="after_stop", until="until_idle=True"))
    with process("slow.py", cwd=tmp_path) as started:
        started.until("in the hook")
        eventually(lambda: started.has_ended_of(signal.SIGTERM))  # signals sent at once become one
        assert started.ended() == -signal.SIGTERM

    assert ends(shop) == ["clean_shutdown"]
    seen_by_the_doctor(shop)
