"""Rows about limits and rates with whole workers: many processes on PostgreSQL, from a free permit to the next start,
from enqueue to start with room in two limits, and how many starts a rate lets through.

Run as a module it is a worker process of one of these rows: `python -m bench.permits URL SIDE`. It waits for a line on
its input, and works until nothing is left; on the side `ring` it prints when each job started, until it is killed.
"""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import time
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from queue import SimpleQueue
from typing import Any

from bench.flows import WORKERS, drained_by
from bench.measure import ROOT, Rounds, in_turns, middle_half, percentile, scratch_folder
from bench.report import Figure, Target, at_least, at_most, compared, ratio_figure
from bench.servers import server
from bench.waiting import waited_until
from perdure import Limit, Perdure, Rate

AT_ONCE, NAP_S = 40, 0.05
NAPS, NO_OPS = 4_000, 5_000
ROUNDS = 3
ASKED = 200
PAUSE_S = 0.005
MOST, PER_S, BURST = 50, 1, 10
WINDOWS = 6


# -- many workers on PostgreSQL --------------------------------------------------------------------------------------


def on_postgres(_rounds: int) -> list[Figure]:
    """Figure 8: one key, and more room than it has: jobs that take their time, and jobs that take none."""
    with server() as started:
        naps = [_by_the_record("nap", started.new_database(), NAPS) for _ in range(ROUNDS)]
        rates = Rounds([], [])
        for _ in range(ROUNDS):
            for side, name in zip(rates, ("limited", "plain"), strict=True):
                side.append(_drained(name, started.new_database(), NO_OPS))
    allowed = AT_ONCE / NAP_S
    what = f"PostgreSQL: {WORKERS} workers, one key with limit {AT_ONCE}"
    return [
        compared(
            "limits-postgres-naps",
            f"{what}, jobs of {NAP_S * 1e3:.0f} ms",
            Rounds(naps, [allowed] * ROUNDS),
            at_least(0.8, "what the limit allows"),
            "what the limit allows",
        ),
        compared("limits-postgres", f"{what}, no-op jobs", rates, at_least(0.25, "no limit"), "no limit"),
    ]


def _drained(side: str, url: str, jobs: int) -> float:
    _fill(side, url, jobs)
    return jobs / drained_by("bench.permits", url, side)


def _by_the_record(side: str, url: str, jobs: int) -> float:
    """From the first start to the last end: without the start of the workers, and what they do before they stop."""
    _fill(side, url, jobs)
    drained_by("bench.permits", url, side)
    app = Perdure(url)
    runs = [run.row for run in app.runs()]
    app.close()
    assert len(runs) == jobs
    return jobs / ((max(run.finished_at or 0 for run in runs) - min(run.started_at for run in runs)) / 1e6)


def _fill(side: str, url: str, jobs: int) -> None:
    app = Perdure(url, auto_migrate=True)
    kind = declare(app)[side]
    for start in range(0, jobs, 1_000):
        kind.enqueue_many([{}] * min(1_000, jobs - start))
    app.close()


# -- from a free permit to the next start ----------------------------------------------------------------------------


def latency(_rounds: int) -> list[Figure]:
    """Figure 13: in the same process from the last line of a handler until the first line of the next in line; in
    another process from the call that gives a place back."""
    with scratch_folder() as folder:
        same = _same_process(str(folder / "same.db"))
        other = _another_process(str(folder / "other.db"))
    return [*_waits("same", "in the same process", same, 3), *_waits("other", "in another process", other, 6)]


def _waits(name: str, where: str, waits: list[float], p50: float) -> list[Figure]:
    shown = f"p50 {percentile(waits, 50):.2f} ms, max {max(waits):.1f} ms", f"{len(waits)} permits"
    what, spread = f"a free permit → the next start {where}", middle_half(waits)
    middle, high = percentile(waits, 50), percentile(waits, 99)
    return [
        Figure(f"permit-{name}", f"{what}, p50", middle, "ms", spread, *shown, at_most(p50, "ms")),
        Figure(f"permit-{name}-p99", f"{what}, p99", high, "ms", spread, *shown, at_most(25, "ms")),
    ]


def _same_process(url: str) -> list[float]:
    app = Perdure(url)
    times: list[tuple[int, int]] = []

    @app.job(limit=Limit("one", 1))
    async def touch() -> None:
        started = time.monotonic_ns()
        await asyncio.sleep(PAUSE_S)  # the worker has gone to sleep again
        times.append((started, time.monotonic_ns()))

    touch.enqueue_many([{}] * (ASKED + 1))
    app.worker().run(until_idle=True)
    app.close()
    return [(started - ended) / 1e6 for (_, ended), (started, _) in pairwise(times)]


def _another_process(url: str) -> list[float]:
    app = Perdure(url)
    ring = declare(app)["ring"]
    worker = subprocess.Popen(
        [sys.executable, "-m", "bench.permits", url, "ring"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert worker.stdout is not None
    try:
        assert worker.stdout.readline() == "ready\n"
        waits: list[float] = []
        for _ in range(ASKED + 1):
            with app.limits.hold("bell"):
                ring.enqueue()
                time.sleep(2 * PAUSE_S)  # it stands in line, and the worker sleeps
                freed = time.monotonic_ns()
            waits.append((int(worker.stdout.readline()) - freed) / 1e6)
    finally:
        worker.kill()
        worker.communicate()
        app.close()
    return waits[1:]  # the first one waits for the start of the worker


# -- room in two limits ----------------------------------------------------------------------------------------------


def two_limits(_rounds: int) -> list[Figure]:
    """From the call of enqueue until the handler's first line, beside an idle worker: a job with two limits that have
    room, and one without, in turns."""
    starts: SimpleQueue[int] = SimpleQueue()
    with scratch_folder() as folder:
        app = Perdure(folder / "jobs.db")

        @app.job(limit=[Limit("first", AT_ONCE), Limit("second", AT_ONCE)])
        async def limited() -> None:
            starts.put(time.monotonic_ns())

        @app.job
        async def plain() -> None:
            starts.put(time.monotonic_ns())

        with app.worker().running():
            waits = in_turns(
                lambda: waited_until(limited.enqueue, starts.get),
                lambda: waited_until(plain.enqueue, starts.get),
                ASKED,
            )
        app.close()
    what, target = "enqueue → start with two limits that have room", at_most(1.2, "× without")
    return [ratio_figure("two-limits", what, waits, target, "without", lambda value: f"{value:.2f} ms")]


# -- rates -----------------------------------------------------------------------------------------------------------


def rates(_rounds: int) -> list[Figure]:
    """Figure 11: the starts that are in the record, while more jobs wait than may start."""
    sliding = _starts(Rate("r", MOST, per=PER_S))
    bucket = _starts(Rate("r", MOST, per=PER_S, algorithm="bucket", burst=BURST))
    windows = [bisect_left(sliding, start + PER_S * 10**6) - number for number, start in enumerate(sliding)]
    whole = [count for count, start in zip(windows, sliding, strict=True) if start + PER_S * 10**6 <= sliding[-1]]
    highest, spread = max(windows), middle_half([float(count) for count in whole])
    pace = (len(sliding) - MOST) / ((sliding[-1] - sliding[0]) / 1e6) * PER_S
    excess = _excess(bucket)
    what, shown = f"a rate of {MOST} in {PER_S} s, sliding", (f"{len(sliding)} starts", f"{len(whole)} windows")
    return [
        Figure("rate-sliding", f"{what}: most starts in a window", highest, "", spread, *shown, at_most(MOST, "")),
        Figure(
            "rate-saturated",
            "… starts a window while jobs wait",
            pace,
            "",
            spread,
            *shown,
            Target(0.95 * MOST, True, f"≥ {0.95 * MOST:g}"),
        ),
        Figure(
            "rate-bucket",
            f"a rate of {MOST} in {PER_S} s, bucket with burst {BURST}: starts above {MOST} t + {BURST} in any time t",
            excess,
            "",
            (excess, excess),
            f"{len(bucket)} starts",
            "",
            at_most(0, ""),
        ),
    ]


def _starts(rate: Rate) -> list[int]:
    """When the jobs of two workers started, in microseconds, by the record."""
    with scratch_folder() as folder:
        app = Perdure(folder / "jobs.db")
        app.job(rate=rate, name="touch")(_touch)
        app.kinds.get("touch").enqueue_many([{}] * (MOST * WINDOWS))
        other = Perdure(folder / "jobs.db")
        other.job(rate=rate, name="touch")(_touch)
        with app.worker().running(), other.worker().running():
            while next(app.jobs(state="held", limit=1), None) is not None:
                time.sleep(0.05)
        starts: list[int] = sorted(run.row.started_at for run in app.runs())
        other.close()
        app.close()
    return starts


async def _touch() -> None: ...


def _excess(starts: Sequence[int]) -> float:
    """By how many starts any stretch of the record is above what the rate allows in it. Up to 0: never."""
    worst = -float("inf")
    for first, begin in enumerate(starts):
        for last in range(first, len(starts)):
            allowed = MOST * (starts[last] - begin) / (PER_S * 1e6) + BURST
            worst = max(worst, last - first + 1 - allowed)
    return worst


# -- the processes ---------------------------------------------------------------------------------------------------


def declare(app: Perdure) -> dict[str, Any]:
    """The kinds of each side."""

    @app.job(limit=Limit("one", AT_ONCE))
    async def nap() -> None:
        await asyncio.sleep(NAP_S)

    @app.job(limit=Limit("one", AT_ONCE))
    async def limited() -> None: ...

    @app.job
    async def plain() -> None: ...

    return {"nap": nap, "limited": limited, "plain": plain, "ring": declare_ring(app)}


def declare_ring(app: Perdure) -> Any:
    @app.job(limit=Limit("bell", 1))
    async def ring() -> None:
        print(time.monotonic_ns(), flush=True)

    return ring


def main(url: str, side: str) -> None:
    logging.disable(logging.CRITICAL)
    app = Perdure(url)
    declare(app)
    app.queues.list()  # connected
    worker = app.worker(concurrency=10)
    print("ready", flush=True)
    if side == "ring":
        worker.run()
    sys.stdin.readline()
    worker.run(until_idle=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
