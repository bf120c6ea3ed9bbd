"""Rows about enqueueing: one by one, from sixteen threads, and a thousand in a call."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from bench.floor import floor_at, same_shape
from bench.measure import in_turns, rate, scratch_folder
from bench.report import Figure, at_least, compared
from bench.sample import Desk, arguments

SINGLES = 150
THREADS, EACH = 16, 30
CALLS, PER_CALL = 2, 1_000


def single(rounds: int) -> list[Figure]:
    """One thread, one job and one commit at a time."""
    with scratch_folder() as folder:
        desk, floor = Desk(folder / "ours.db"), floor_at(folder / "floor.db", guarded=True)

        def theirs() -> float:
            jobs = floor.lay_out(SINGLES)
            return rate(SINGLES, lambda: floor.enqueue_each(jobs))

        measured = in_turns(lambda: rate(SINGLES, lambda: enqueue_each(desk, SINGLES)), theirs, rounds)
        floor.close()
        same_shape(folder / "ours.db", floor.path)
        desk.close()
    return [compared("enqueue", "single enqueue, one thread", measured, at_least(0.8, "floor"))]


def threads(rounds: int) -> list[Figure]:
    """Sixteen threads share commits; compared with one thread on a file of its own."""
    with scratch_folder() as folder:
        many, one = Desk(folder / "many.db"), Desk(folder / "one.db")
        measured = in_turns(lambda: together(many), lambda: rate(SINGLES, lambda: enqueue_each(one, SINGLES)), rounds)
        many.close()
        one.close()
    what = f"enqueue from {THREADS} threads"
    return [compared("threads", what, measured, at_least(2, "one thread"), "one thread")]


def bulk(rounds: int) -> list[Figure]:
    """A thousand jobs in a call."""
    with scratch_folder() as folder:
        desk, floor = Desk(folder / "ours.db"), floor_at(folder / "floor.db")

        def theirs() -> float:
            calls = [floor.lay_out(PER_CALL) for _ in range(CALLS)]
            return rate(CALLS * PER_CALL, lambda: [floor.enqueue_all(jobs) for jobs in calls])

        measured = in_turns(lambda: rate(CALLS * PER_CALL, lambda: enqueue_calls(desk)), theirs, rounds)
        floor.close()
        same_shape(folder / "ours.db", floor.path)
        desk.close()
    return [compared("many", f"enqueue_many, {PER_CALL:,} a call", measured, at_least(0.6, "floor"))]


def enqueue_each(desk: Desk, count: int) -> None:
    enqueue, given = desk.kind.enqueue, arguments()
    to, body = given["to"], given["body"]
    for _ in range(count):
        enqueue(to, body)


def enqueue_calls(desk: Desk) -> None:
    batch = [arguments() for _ in range(PER_CALL)]
    for _ in range(CALLS):
        desk.kind.enqueue_many(batch)


def together(desk: Desk) -> float:
    """The rate of all threads, from the moment they start at once until the last is done."""
    start = threading.Barrier(THREADS + 1)

    def work() -> None:
        start.wait()
        enqueue_each(desk, EACH)

    workers = [threading.Thread(target=work) for _ in range(THREADS)]
    for worker in workers:
        worker.start()
    start.wait()
    started = time.perf_counter()
    for worker in workers:
        worker.join()
    return THREADS * EACH / (time.perf_counter() - started)


def profile_single(path: Path) -> Callable[[], None]:
    desk = Desk(path)
    enqueue_each(desk, 100)
    return lambda: enqueue_each(desk, SINGLES)


def profile_bulk(path: Path) -> Callable[[], None]:
    desk = Desk(path)
    enqueue_calls(desk)
    return lambda: enqueue_calls(desk)
