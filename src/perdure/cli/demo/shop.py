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

from perdure import Fail, JobContext, Perdure, Retry
from perdure.kind import Draft

LEDGER = "PERDURE_DEMO_LEDGER"
"""The environment variable that says where starts are noted."""
SHOP = "shop"
POST = "post"
EXPRESS = "express"
CLIP_S = 0.1

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


CLIPS = 16
"""Long jobs in a row, that meet the kill. Rescued jobs run one at a time, so not too many."""
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
