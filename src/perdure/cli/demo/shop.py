"""The app of the demo, a small shop, and which jobs it gets. `steps` starts workers with it and enqueues its jobs.

Every start of a handler is also noted in a file outside the database; `report.prove` compares the two.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import cache

from perdure import Fail, JobContext, Limit, Perdure, Retry, each
from perdure.kind import Draft
from perdure.workflow import Workflow

LEDGER = "PERDURE_DEMO_LEDGER"
"""The environment variable that says where starts are noted."""
SHOP = "shop"
POST = "post"
EXPRESS = "express"
STUDIO = "studio"
CLIP_S = 0.1
PART_S = 0.4
PARTS = 3
ENCODERS = 2
"""So many parts of a film are encoded at a time, over all workers."""

app = Perdure(name="demo", lease_s=5)  # the file is set when it runs


@app.middleware
@contextmanager
def noted(ctx: JobContext) -> Generator[None, None, None]:
    """One line per start, in one write: what a killed process has noted stays."""
    os.write(_ledger(), f"{ctx.run_id.hex}\n".encode())
    yield


@cache
def _ledger() -> int:
    return os.open(os.environ.get(LEDGER, os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


@app.job(queue=SHOP)
async def fetch(page: int) -> int:
    """A coroutine that waits, as most do."""
    await asyncio.sleep(0.02)
    return page


@app.job(queue=SHOP)
def thumbnail(photo: int) -> str:
    """A plain function, in a thread."""
    time.sleep(0.02)
    return hashlib.pbkdf2_hmac("sha256", b"photo", str(photo).encode(), 2000).hex()


@app.job(queue=SHOP)
def render(clip: int) -> int:
    """The long ones, so that a worker is killed in the middle of something."""
    time.sleep(CLIP_S)
    return clip


@app.job(queue=SHOP, retry=Retry(5, backoff="fixed", base=0.3))
def charge(ctx: JobContext, order: int, card: str = "good") -> str:
    """Fails at first for one order in three; for good if the card has expired."""
    if card == "expired":
        raise Fail("the card has expired")
    if order % 3 == 0 and ctx.attempt == 1:
        raise ConnectionError("the bank did not answer")
    return f"charged for order {order}"


@app.job(queue=SHOP)
async def order(ctx: JobContext, number: int) -> int:
    """Its child is there if, and only if, this job completes."""
    ctx.enqueue(receipt, number)
    return number


@app.job(queue=POST)
async def receipt(number: int) -> int:
    return number


@app.job(queue=POST)
async def tick() -> None:
    """Made by the clock, while the other jobs run."""


@app.job(queue=SHOP, isolation="process")
def report(month: int) -> int:
    """In a process of its own, which could be killed without harm to the worker."""
    return sum(number * number for number in range(10_000 * (month % 12 + 1)))


@app.job(queue=EXPRESS)
async def ping(sent_at: float) -> float:
    """How long it took from the call of enqueue to here. The monotonic clock is the machine's, not the process's."""
    return time.monotonic() - sent_at


@app.job(queue=EXPRESS)
async def nothing() -> None:
    """What is left is the queue itself."""


@app.job(queue=STUDIO)
async def download(film: str) -> str:
    """The beginning of the workflow; its result is what the parts are made of."""
    return film


@app.job(queue=STUDIO, limit=Limit("encoders", ENCODERS))
def encode(film: str, part: int) -> str:
    """Long enough that a worker is killed in the middle of it."""
    time.sleep(PART_S)
    return f"{film} {part}"


@app.job(queue=STUDIO)
async def join(ctx: JobContext) -> list[str]:
    """The parts that it finds, in their order."""
    return [str(part) for part in ctx.results("parts")]


@app.job(queue=STUDIO)
async def announce(parts: list[str]) -> int:
    """The callback: it waits for the end of the whole workflow, which does not wait for it."""
    return len(parts)


FILM = "film"
"""The name of the workflow, and of what it downloads."""


def workflow() -> Workflow:
    """Written by this call, all of it or nothing."""
    with app.workflow(FILM) as wf:
        film = wf.add(download.new(FILM))
        parts = wf.map(encode.new(film.result, each), over=range(1, PARTS + 1), name="parts")
        joined = wf.add(join.new(), after=parts)
        wf.add(announce.new(joined.result), after=wf)
    return wf


CLIPS = 16
"""Long jobs in a row, that meet the kill: more than a worker runs at a time."""
KILL_AT = 0.3
"""The share of jobs that have ended when a worker is killed."""


def drafts(count: int) -> Iterator[Draft]:
    """This many jobs of all kinds, in the order in which they are to be run."""
    first_clip = int(count * KILL_AT)
    for number in range(count):
        in_clips = first_clip <= number < first_clip + CLIPS
        yield render.new(number) if in_clips else _draft(number)


def _draft(number: int) -> Draft:
    if number % 300 == 20:
        return report.new(number // 300)
    match number % 20:
        case 3 | 9 | 15:
            return thumbnail.new(number)
        case 5 | 12:
            return charge.new(number)
        case 7:
            return order.new(number)
        case _:
            return fetch.new(number)
