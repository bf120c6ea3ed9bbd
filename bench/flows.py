"""The rows about flows, each beside the same jobs without a flow: a batch, many edges into one job, a graph in layers,
a chain, and one job that many wait for.

Run as a module it is a process of one of these rows: `python -m bench.flows SIDE URL JOBS` fills a database of its own,
drains it, and prints how many jobs a second were enqueued, and how many drained; other sides print what their row is
about.
"""

from __future__ import annotations

import logging
import random
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import cache, partial
from itertools import count, pairwise
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

from bench.drain import CONCURRENCY
from bench.measure import ROOT, Rounds, middle_half, percentile, scratch_folder
from bench.report import Figure, Target, at_least, at_most, compared
from bench.servers import server
from perdure import Fail, Job, Perdure, Planned

FILLS_THE_CACHE = 25_000
"""After so many jobs SQLite's cache of the file, of 8 MB, is full: no batch has to do with how it fills."""
JOBS = {False: 20_000, True: 100_000}
GRAPH = {False: 2_000, True: 10_000}
CHAIN = {False: 1_000, True: 10_000}
SERVER_JOBS = {False: 10_000, True: 100_000}
ROUNDS = 5
LAYERS, PARENTS = 20, 3
WARM_UP = 100
"""So many jobs of the same sort come before the clock starts: the first of a sort, and the first worker, load modules
and prepare statements."""
WORKERS = 8


def on_sqlite(large: bool) -> list[Figure]:
    """A batch, a fan-in and a graph beside as many plain jobs."""
    jobs, graph = JOBS[large], GRAPH[large]
    batch, plain = _in_turns("batch", "plain", jobs)
    into, _ = _in_turns("into", "plain", jobs)
    layers, few = _in_turns("layers", "plain", graph)
    what = f"a batch of {jobs:,} with a callback"
    graph_of = f"a graph of {graph:,} jobs in {LAYERS} layers, {PARENTS} parents each"
    return [
        compared("batch-enqueue", f"{what}: enqueued", _rates(batch, plain, 0), at_least(0.9, "plain"), "plain"),
        compared("batch-drain", f"{what}: drained", _rates(batch, plain, 1), at_least(0.95, "plain"), "plain"),
        compared(
            "fan-in", f"{jobs:,} edges into one job: drained", _rates(into, plain, 1), at_least(0.85, "plain"), "plain"
        ),
        compared("graph-enqueue", f"{graph_of}: enqueued", _rates(layers, few, 0), at_least(0.4, "plain"), "plain"),
        compared("graph-drain", "… drained", _rates(layers, few, 1), at_least(0.55, "plain"), "plain"),
    ]


def memory(large: bool) -> list[Figure]:
    """What a process that fills a batch keeps for itself, after all its members and after a tenth of them."""
    jobs = JOBS[large]
    with scratch_folder() as folder:
        tenth, end = _asked("memory", f"{folder}/jobs.db", jobs)
    grown = (end / tenth - 1) * 100
    shown = f"{end:.1f} MB at the end", f"{tenth:.1f} MB after a tenth"
    what = f"private memory over a batch of {jobs:,} filled"
    return [Figure("batch-memory", what, grown, "%", (grown, grown), *shown, Target(10, False, "≤ 10 %"))]


def chain(large: bool) -> list[Figure]:
    """Jobs one after the other, with nothing beside them."""
    jobs = CHAIN[large]
    with scratch_folder() as folder:
        told = [_asked("chain", f"{folder}/{number}.db", jobs) for number in range(ROUNDS)]
    rates, steps = [rate for _, rate in told], [step for step, _ in told]
    rate, step = median(rates), median(steps)
    what, rounds = f"a chain of {jobs:,} jobs: steps", f"{ROUNDS} chains"
    return [
        Figure("chain", what, rate, "/s", middle_half(rates), rounds, "", Target(1_000, True, "≥ 1,000 /s")),
        Figure("chain-step", "… from start to start", step, "ms", middle_half(steps), rounds, "", at_most(2, "ms")),
    ]


WIDE = {
    "out": "one job that {} wait for completes",
    "skip": "one job that {} wait for fails, and they are skipped",
    "cancel": "a batch of {} is cancelled",
}


def wide(large: bool) -> list[Figure]:
    """One end that many wait for, and one decision about many: what single enqueues beside it have to wait, and how
    long a transaction holds the file."""
    return [figure for side in WIDE for figure in _beside(side, JOBS[large])]


def _beside(side: str, jobs: int) -> list[Figure]:
    with scratch_folder() as folder:
        told = _told(side, f"{folder}/jobs.db", jobs)
    p99, highest, longest, usual, enqueues = told
    what = WIDE[side].format(f"{jobs:,}")
    shown = f"longest {highest:.1f} ms", f"{enqueues:,.0f} enqueues"
    return [
        Figure(f"wide-{side}", f"{what}: an enqueue beside it, p99", p99, "ms", (p99, p99), *shown, at_most(50, "ms")),
        Figure(
            f"wide-{side}-transaction",
            "… its longest transaction",
            longest,
            "ms",
            (usual, longest),
            f"p50 {usual:.1f} ms",
            "",
            at_most(50, "ms"),
        ),
    ]


def on_postgres(large: bool) -> list[Figure]:
    """Many worker processes that end the members of one batch."""
    rates = Rounds([], [])
    jobs = SERVER_JOBS[large]
    with server() as started:
        for _ in range(ROUNDS):
            for side, name in zip(rates, ("batch", "plain"), strict=True):
                side.append(_drained_by_many(name, started.new_database(), jobs))
    what = f"PostgreSQL: {WORKERS} workers, 10 jobs at a time, a batch of {jobs:,}"
    return [compared("batch-postgres", what, rates, at_least(0.75, "plain"), "plain")]


def _rates(ours: list[tuple[float, float]], theirs: list[tuple[float, float]], part: int) -> Rounds:
    return Rounds([pair[part] for pair in ours], [pair[part] for pair in theirs])


def _in_turns(ours: str, theirs: str, jobs: int) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    measured: tuple[list[tuple[float, float]], list[tuple[float, float]]] = ([], [])
    with scratch_folder() as folder:
        for number in range(ROUNDS):
            for side, name in zip(measured, (ours, theirs), strict=True):
                side.append(_asked(name, f"{folder}/{name}-{number}.db", jobs))
    return measured


def _asked(side: str, url: str, jobs: int) -> tuple[float, float]:
    first, second = _told(side, url, jobs)
    return first, second


def _told(side: str, url: str, jobs: int) -> list[float]:
    command = [sys.executable, "-m", "bench.flows", side, url, str(jobs)]
    told = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [float(one) for one in told.split()]


def _drained_by_many(side: str, url: str, jobs: int) -> float:
    app = Perdure(url, auto_migrate=True)
    FILLS[side](app, declare(app), jobs)
    app.close()
    return jobs / drained_by("bench.flows", "worker", url, "0")


def drained_by(*command: str) -> float:
    """The seconds that as many workers need for all there is, each a process. All wait for a line on their input, so
    that the start of Python is not timed."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", *command], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(WORKERS)
    ]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    started = time.perf_counter()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        process.communicate()
    return time.perf_counter() - started


# -- the processes ---------------------------------------------------------------------------------------------------


def declare(app: Perdure) -> Any:
    @app.job
    async def step() -> None: ...

    return step


def plain(app: Perdure, step: Any, jobs: int) -> list[Job]:
    portion = min(1_000, jobs)
    return [job for _ in range(0, jobs, portion) for job in app.enqueue_many([step.new() for _ in range(portion)])]


def batch(app: Perdure, step: Any, jobs: int) -> None:
    with app.batch("b", on_success=step.new()) as filled:
        for _ in range(jobs):
            filled.add(step.new())


def into(app: Perdure, step: Any, jobs: int) -> None:
    step.options(after=plain(app, step, jobs)).enqueue()


@cache
def drawn(jobs: int) -> list[list[int]]:
    """The parents of each job, as places in the layer before. They are drawn before the clock starts."""
    dice = random.Random(1)
    wide = jobs // LAYERS
    first: list[list[int]] = [[] for _ in range(wide)]
    return first + [dice.sample(range(wide), PARENTS) for _ in range(jobs - wide)]


def layers(app: Perdure, step: Any, jobs: int) -> None:
    wide = jobs // LAYERS
    parents = drawn(jobs)
    before: list[Planned[None]] = []
    with app.workflow("w") as flow:
        for first in range(0, jobs, wide):
            layer = parents[first : first + wide]
            before = [flow.add(step.new(), after=[before[place] for place in places]) for places in layer]


def chained(app: Perdure, step: Any, jobs: int) -> None:
    app.chain(*[step.new() for _ in range(jobs)])


FILLS: dict[str, Callable[[Perdure, Any, int], object]] = {
    "plain": plain,
    "batch": batch,
    "into": into,
    "layers": layers,
    "chain": chained,
}


def main(side: str, url: str, jobs: int) -> None:
    logging.disable(logging.CRITICAL)
    if side == "worker":
        _work(url)
        return
    if side in WIDE:
        vars(sqlite3)["connect"] = partial(sqlite3.connect, factory=Timed)
    app = Perdure(url, auto_migrate=True)
    step = declare(app)
    if side in WIDE:
        print(*_beside_the_wide(app, step, jobs, side))
    elif side == "memory":
        print(*_memory(app, step, jobs))
    else:
        print(*_filled_and_drained(app, step, jobs, side))


def _filled_and_drained(app: Perdure, step: Any, jobs: int, side: str) -> tuple[float, float]:
    """Jobs a second; of a chain, which is enqueued in one go, the milliseconds of a step instead of the first."""
    FILLS[side](app, step, WARM_UP)
    app.worker(concurrency=CONCURRENCY).run(until_idle=True)
    drawn(jobs)
    began = time.perf_counter()
    FILLS[side](app, step, jobs)
    filled = time.perf_counter()
    app.worker(concurrency=CONCURRENCY).run(until_idle=True)
    drained = jobs / (time.perf_counter() - filled)
    if side != "chain":
        return jobs / (filled - began), drained
    starts = sorted(run.row.started_at for run in app.runs())
    return median([(later - start) / 1e3 for start, later in pairwise(starts[WARM_UP:])]), drained


def _work(url: str) -> None:
    app = Perdure(url)
    declare(app)
    worker = app.worker(concurrency=10)
    print("ready", flush=True)
    sys.stdin.readline()
    worker.run(until_idle=True)


def _memory(app: Perdure, step: Any, jobs: int) -> tuple[float, float]:
    tenth = 0.0
    batch(app, step, FILLS_THE_CACHE)
    with app.batch("b", on_success=step.new()) as filled:
        for number in range(jobs):
            filled.add(step.new())
            if number == jobs // 10:
                tenth = _private_mb()
    return tenth, _private_mb()


def _private_mb() -> float:
    """What the process has for itself. The pages of its files, which the kernel shares among all, grow with those."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) * 1024 / 1e6


class Timed(sqlite3.Connection):
    """Notes how long each transaction of the worker held the file, in milliseconds."""

    noted: ClassVar[list[float]] = []
    _began = 0.0

    def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
        cursor = super().execute(sql, *args)
        if sql == "BEGIN IMMEDIATE":
            self._began = time.perf_counter()
        elif sql == "COMMIT" and self._began and threading.current_thread().name == "perdure-store":
            self.noted.append((time.perf_counter() - self._began) * 1e3)
        return cursor


def _beside_the_wide(app: Perdure, step: Any, jobs: int, side: str) -> tuple[float, float, float, float, int]:
    """Single enqueues while a worker sees to all these jobs, and runs none of them: p99 and longest; its transactions:
    longest and p50; how many enqueues. All in milliseconds."""
    begin, is_over = _wide_scene(app, step, jobs, side)
    waits: list[float] = []
    with app.worker(queues=["root"]).running():
        begin()
        for number in count():
            began = time.perf_counter()
            step.enqueue()
            waits.append((time.perf_counter() - began) * 1e3)
            if number % 50 == 0 and is_over():
                break
    return percentile(waits, 99), max(waits), max(Timed.noted), percentile(Timed.noted, 50), len(waits)


def _wide_scene(app: Perdure, step: Any, jobs: int, side: str) -> tuple[Callable[[], object], Callable[[], bool]]:
    """All that is there before; what begins it, and whether it is over."""
    if side == "cancel":
        with app.batch("b") as batch:
            for _ in range(jobs):
                batch.add(step.new())
        return lambda: app.cancel(batch), lambda: app.flows.existing(batch).is_final

    @app.job(queue="root")
    async def root() -> None:
        if side == "skip":
            raise Fail("all that wait for it are skipped")

    first = root.enqueue()
    for _ in range(0, jobs, 1_000):
        step.options(after=first).enqueue_many([{}] * 1_000)
    return lambda: None, lambda: next(app.jobs(state="blocked", limit=1), None) is None


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
