"""The kinds that the crash tests run, and the worker process that runs them.

Every handler notes its start and its end in the history, whose path is in the environment: children of workers find it
there too.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from perdure import Fail, JobContext, Limit, Perdure, Retry
from tests import history

DATABASE = "PERDURE_TEST_DATABASE"
HISTORY = "PERDURE_TEST_HISTORY"
LEASE_S = 2.0


class Place(NamedTuple):
    """Where a scene is: its database, and the path that its files are named after. On SQLite that is the database."""

    url: str
    path: Path

    @property
    def history(self) -> Path:
        return self.path.with_suffix(".history")

    @property
    def log(self) -> Path:
        return self.path.with_suffix(".log")


MANY = Retry(1_000, backoff="none")
"""For jobs that are killed again and again and must complete in the end."""


def started(ctx: JobContext) -> None:
    history.started(os.environ[HISTORY], ctx)


def ended(ctx: JobContext) -> None:
    history.ended(os.environ[HISTORY], ctx)


def note(event: str, **facts: object) -> None:
    history.note(os.environ[HISTORY], event, **facts)


# -- work ------------------------------------------------------------------------------------------------------------


async def nap(ctx: JobContext, ms: int) -> int:
    started(ctx)
    await asyncio.sleep(ms / 1000)
    ended(ctx)
    return ms


def work(ctx: JobContext, ms: int) -> int:
    started(ctx)
    time.sleep(ms / 1000)
    ended(ctx)
    return ms


def toil(ctx: JobContext, ms: int) -> int:
    """The same in a process of its own; goes on in small steps that are noted, so that a survivor is seen."""
    started(ctx)
    for step in range(ms):
        time.sleep(0.001)
        if step % 50 == 49:
            note("step", job=ctx.job_id, run=ctx.run_id, pid=os.getpid())
    ended(ctx)
    return ms


def breed(ctx: JobContext, children: int) -> None:
    """Asks for more jobs, with its completion."""
    started(ctx)
    for _ in range(children):
        ctx.enqueue(ctx.kind.app.draft("nap", {"ms": 0}, {}))
    ctx.log.info("asked for %d", children)
    ctx.metric(children=children)
    ended(ctx)


def falter(ctx: JobContext) -> None:
    """Fails in its first attempt."""
    started(ctx)
    if ctx.attempt == 1:
        raise RuntimeError("not the first time")
    ended(ctx)


def grow(ctx: JobContext, members: int) -> None:
    """Adds to its flow: to the batch that it fills, at once; and one that waits for it, with its completion."""
    started(ctx)
    draft = ctx.kind.app.draft
    ctx.flow["more"].add_many(draft("nap", {"ms": 0}, {}) for _ in range(members))
    ctx.flow.add(draft("work", {"ms": 0}, {}), after=ctx.job_id)
    ended(ctx)


def spoil(ctx: JobContext) -> None:
    """Fails for good."""
    started(ctx)
    raise Fail("it is spoiled")


def lift(ctx: JobContext, tenant: int, weight: int) -> None:
    """Of each tenant three at once, as heavy as they are, and four in all."""
    started(ctx)
    ended(ctx)


# -- trouble ---------------------------------------------------------------------------------------------------------


async def linger(ctx: JobContext) -> str:
    """The first attempt stays until it is stopped; the others return at once."""
    started(ctx)
    try:
        if ctx.attempt == 1:
            await asyncio.Event().wait()
    except asyncio.CancelledError:
        note("stopped", job=ctx.job_id, run=ctx.run_id, why=ctx.stop)
        raise
    ended(ctx)
    return f"attempt {ctx.attempt}"


def loiter(ctx: JobContext) -> str:
    """The same in a thread."""
    started(ctx)
    try:
        while ctx.attempt == 1:
            time.sleep(0.01)
    except BaseException:
        note("stopped", job=ctx.job_id, run=ctx.run_id, why=ctx.stop)
        raise
    ended(ctx)
    return f"attempt {ctx.attempt}"


def dawdle(ctx: JobContext, go: str) -> str:
    """The first attempt returns when there is a file called `go`; the others at once."""
    started(ctx)
    while ctx.attempt == 1 and not Path(go).exists():
        time.sleep(0.001)
    ended(ctx)
    return f"attempt {ctx.attempt}"


async def hog(ctx: JobContext, seconds: float) -> str:
    """The first attempt holds the interpreter: no other thread of the process gets to run Python code meanwhile."""
    started(ctx)
    if ctx.attempt == 1:
        ctypes.PyDLL(None).usleep(round(seconds * 1_000_000))
    ended(ctx)
    return f"attempt {ctx.attempt}"


def poison(ctx: JobContext, how: str) -> None:
    """Takes its process along, every time, when its neighbours have had the time to begin."""
    started(ctx)
    time.sleep(0.05)
    {"kill": lambda: os.kill(os.getpid(), signal.SIGKILL), "exit": lambda: os._exit(9), "abort": os.abort}[how]()


def pay(ctx: JobContext) -> None:
    """Writes a row of its own in the transaction that ends the job."""
    started(ctx)
    with ctx.transaction() as tx:
        tx.execute(f"INSERT INTO payment (job) VALUES ('{ctx.job_id}')")
        ended(ctx)


# -- processes -------------------------------------------------------------------------------------------------------


def app_on(url: str) -> Perdure:
    """An app on this database with all the kinds."""
    app = Perdure(url, durability="normal", lease_s=LEASE_S)
    for function in (nap, work, breed, falter, grow, spoil, linger, loiter, dawdle, hog, poison, pay):
        app.job(retry=MANY)(function)
    app.job(retry=MANY, isolation="process")(toil)
    app.job(retry=MANY, limit=[Limit("tenant", 3, by="tenant", weight="weight"), Limit("crane", 4)])(lift)
    return app


def begin(place: Place) -> Perdure:
    """In a new process: where to log and to note, and the app."""
    form = "%(asctime)s %(process)d %(threadName)s %(message)s"
    logging.basicConfig(filename=place.log, format=form, level=logging.INFO)
    os.environ[HISTORY] = str(place.history)
    os.environ[DATABASE] = place.url
    from tests.crash import isolated  # now that the environment says where

    return isolated.app


def serve(place: Place, options: dict[str, Any]) -> None:
    """A worker, until it is told to stop, or with `until_idle` until all is done."""
    until_idle = options.pop("until_idle", False)
    app = begin(place)
    sys.exit(app.worker(**{"concurrency": 8, "max_crashes": 1_000, **options}).run(until_idle=until_idle))
