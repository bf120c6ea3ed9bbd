"""The app of these tests, and what other processes do with it; started with `spawn`, each is a program of its own."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perdure import JobContext, Perdure, ReservationBusy, Retry

spawn = multiprocessing.get_context("spawn")

QUEUE = "gpu"


def made(url: str) -> Perdure:
    app = Perdure(url, durability="normal", auto_migrate=True)

    @app.job(queue=QUEUE)
    def work(n: int) -> int:
        return n * 2

    @app.job(queue=QUEUE, retry=Retry(2, backoff="none"))
    def broken() -> None:
        raise ValueError("no")

    @app.job(queue=QUEUE)
    async def gather(n: int) -> int:
        return n * 3

    @app.job(queue=QUEUE)
    def reserve(ctx: JobContext, queue: str) -> str:
        with app.reserve(queue, wait=0):
            return "held"

    return app


def started(target: Callable[..., Any], *args: object) -> Any:
    child = spawn.Process(target=target, args=args, daemon=True)
    child.start()
    return child


def take_turns(url: str, start: Any, times: int, file: str, into: Any) -> None:
    """Reserve the queue again and again. Inside, a file may exist only once: it is made exclusively, and removed."""
    app = made(url)
    start.wait()
    held = 0
    while held < times:
        try:
            with app.reserve(QUEUE, wait=60, expires=600):
                os.close(os.open(file, os.O_CREAT | os.O_EXCL))
                active = [row for row in app.store.active_reservations() if row.queue == QUEUE]
                Path(file).unlink()
                assert len(active) == 1
        except ReservationBusy:
            continue
        held += 1
    app.close()
    into.put(held)


def hold(url: str, queue: str, told: Any) -> None:
    """Reserve it, say so, and never let go."""
    app = made(url)
    with app.reserve(queue):
        told.set()
        threading.Event().wait()


def run_for_ever(url: str, told: Any) -> None:
    """Run a job directly that does not end by itself."""
    app = made(url)

    @app.job(queue=QUEUE)
    def endless(ctx: JobContext) -> None:
        told.set()
        while True:
            ctx.checkpoint()
            time.sleep(0.001)

    app.run_direct("endless")


def work_on(url: str, told: Any) -> None:
    """A worker with many small turns, until its process is killed."""
    app = made(url)
    app.worker(concurrency=2, poll_s=0.02).run(started=told.set)
