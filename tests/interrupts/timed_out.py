"""A worker whose handlers are stopped by their time-outs again and again while they use the app in every way.

Prints as JSON how the jobs ended. Run by test_timeouts with a URL and the number of jobs of each kind.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from typing import Any

from perdure import JobContext, Perdure, Retry
from tests.interrupts.elsewhere import commit_elsewhere

app = Perdure(sys.argv[1], auto_migrate=True)
limits: dict[str, Any] = {"timeout": 0.01, "retry": Retry(max_attempts=1)}
FOR_EVER_S = 60


@app.job(queue="noise")
def note(who: str) -> None: ...


@app.job(**limits)
def enqueues() -> None:
    started = time.monotonic()
    while time.monotonic() < started + FOR_EVER_S:
        note.enqueue("enqueues")


@app.job(**limits)
def reads() -> None:
    started = time.monotonic()
    while time.monotonic() < started + FOR_EVER_S:
        list(app.jobs(limit=3))


@app.job(**limits)
def in_blocks() -> None:
    started = time.monotonic()
    while time.monotonic() < started + FOR_EVER_S:
        with app.transaction() as tx:
            tx.execute("SELECT 1")
            note.enqueue("in_blocks")


@app.job(**limits)
def in_its_own_block(ctx: JobContext) -> None:
    with ctx.transaction() as tx:
        started = time.monotonic()
        while time.monotonic() < started + FOR_EVER_S:
            tx.execute("SELECT 1")
            note.enqueue("in_its_own_block")


@app.job(**limits)
def begins_its_own_block(ctx: JobContext) -> None:
    time.sleep(0.008)  # so that the time-out comes while the block is being entered or left
    with ctx.transaction() as tx:
        tx.execute("SELECT 1")


@app.job(**limits)
def starts_threads() -> None:
    started = time.monotonic()
    while time.monotonic() < started + FOR_EVER_S:
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()


KINDS: list[Any] = [enqueues, reads, in_blocks, in_its_own_block, begins_its_own_block, starts_threads]


def main(url: str, number: int) -> dict[str, object]:
    for _ in range(number):
        app.enqueue_many([kind.new() for kind in KINDS])
    over = threading.Event()
    elsewhere = threading.Thread(target=commit_elsewhere, args=(url, over), daemon=True)
    elsewhere.start()
    app.worker(queues=["default"], concurrency=6).run(until_idle=True)
    over.set()
    elsewhere.join()
    note.enqueue("after")
    ended = Counter(f"{job.kind} {job.state}" for job in app.jobs(queue="default"))
    why = Counter(run.error_type for run in app.runs() if run.error_type is not None)
    return {"ended": ended, "why": why}


if __name__ == "__main__":
    json.dump(main(sys.argv[1], int(sys.argv[2])), sys.stdout)
