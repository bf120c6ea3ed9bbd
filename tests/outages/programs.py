"""What other processes do in these tests: `python -m tests.outages.programs <name> <arguments>`.

Each is a function; its arguments are texts. They say in lines what they have done, and stop when their input ends.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path

from perdure import JobContext, Perdure, Retry, StoreError
from perdure.ids import NodeId
from perdure.store.admin import beat
from perdure.store.engine import Op
from perdure.store.rows import NewNode
from perdure.store.store import SqlStore
from tests import history


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def declare(app: Perdure, notes: str | Path) -> None:
    """A job that takes a moment, and one that goes on until there is a file."""

    @app.job(retry=Retry(100, backoff="none"))
    async def step(ctx: JobContext, n: int) -> int:
        history.started(notes, ctx)
        await asyncio.sleep(0.002)
        history.ended(notes, ctx)
        return n

    @app.job(retry=Retry(100, backoff="none"))
    def linger(ctx: JobContext, until: str) -> int:
        history.started(notes, ctx)
        while not Path(until).exists():
            time.sleep(0.02)
        history.ended(notes, ctx)
        return ctx.attempt


def work(url: str, notes: str, lease_s: str, concurrency: str) -> None:
    """A worker, until told to stop."""
    logging.basicConfig(filename=f"{notes}.{os.getpid()}.log", level=logging.INFO, format="%(asctime)s %(message)s")
    app = Perdure(url, lease_s=float(lease_s))
    declare(app, notes)
    with app.worker(concurrency=int(concurrency)).running():
        say("ready")
        sys.stdin.read()
    say("stopped")


def enqueue(url: str, notes: str, name: str) -> None:
    """One job after the other, until told to stop. Whatever error there is, the same job is enqueued again under its
    key; once that has returned, it is acknowledged."""
    app = Perdure(url)
    declare(app, notes)
    told = threading.Event()

    def listen() -> None:
        sys.stdin.read()
        told.set()

    threading.Thread(target=listen, daemon=True).start()
    say("ready")
    n = errors = 0
    while not told.is_set():
        try:
            job = app.enqueue("step", {"n": n}, idempotency_key=f"{name} {n}", conflict="return")
        except StoreError:
            errors += 1
            told.wait(0.05)
            continue
        history.note(notes, "enqueued", job=job.id, by=name)
        n += 1
        told.wait(0.002)
    say(n, errors)


def stand_still(url: str, notes: str) -> None:
    """A node that is stopped in the middle of its beat, when its row is locked."""
    app = Perdure(url)
    node = NodeId(app.ids.new())
    app.store.register(NewNode(node, app.clock.now()))
    say(node.hex())

    def beat_and_stop() -> Op[None]:
        yield from beat(node, app.clock.now())
        os.kill(os.getpid(), signal.SIGSTOP)

    assert isinstance(app.store, SqlStore)
    app.store.runner.write(beat_and_stop)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
