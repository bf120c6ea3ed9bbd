"""Rows about a worker that empties a queue: beside Huey and beside the bare driver. One process each, same durability.

Run as a module it is one of those processes: `python -m bench.drain async|threads|huey-4|floor PATH JOBS`; it fills a
file of its own, drains it, and prints how many jobs a second that were.
"""

from __future__ import annotations

import logging
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from statistics import median

from bench.cycle import BATCH, fill
from bench.floor import floor_at
from bench.measure import ROOT, Rounds, scratch_folder
from bench.report import Figure, Target, at_least, compared
from perdure import Perdure

JOBS = 50_000
HUEY_JOBS = 5_000  # it keeps its pace however many there are; more would only take longer
FLAT_JOBS = {False: 100_000, True: 1_000_000}
CONCURRENCY = 500
THREADS = 50
HUEYS = ("huey-1", "huey-4", "huey-8")  # by threads; the best of them is the one to beat
ROUNDS = 5
FLATNESS = Target(10, False, "± 10 %")


def against_huey(_rounds: int) -> list[Figure]:
    """Async no-ops and plain functions in threads, each beside the best of Huey's settings and beside the floor."""
    with scratch_folder() as folder:
        numbers = count()

        def measured(side: str, jobs: int) -> float:
            return _asked(side, folder / f"{next(numbers)}.db", jobs)

        sides = {side: list[float]() for side in (*HUEYS, "floor", "async", "threads")}
        for _ in range(ROUNDS):
            for side, rates in sides.items():
                rates.append(measured(side, HUEY_JOBS if side in HUEYS else JOBS))
    best = max(HUEYS, key=lambda side: median(sides[side]))
    name = f"Huey ({best.removeprefix('huey-')} of 1, 4, 8 threads)"
    what = f"drain of {JOBS:,} no-op async jobs"
    plain = f"drain of {JOBS:,} no-op functions in threads"
    asynchronous, threads, huey = sides["async"], sides["threads"], sides[best]
    return [
        compared("drain", what, Rounds(asynchronous, huey), at_least(8, "Huey"), name),
        compared(
            "drain-floor", "… beside the bare driver", Rounds(asynchronous, sides["floor"]), at_least(0.5, "floor")
        ),
        compared("drain-threads", plain, Rounds(threads, huey), at_least(5, "Huey"), name),
    ]


def flat_memory(large: bool) -> list[Figure]:
    """Resident memory after a tenth of the jobs, and after all of them."""
    jobs = FLAT_JOBS[large]
    with scratch_folder() as folder:
        early, late = _asked_pair("memory", folder / "jobs.db", jobs)
    growth = (late - early) / early * 100
    return [
        Figure(
            "memory",
            f"resident memory over {jobs:,} jobs drained",
            growth,
            "%",
            (growth, growth),
            f"{late:.1f} MB at the end",
            f"{early:.1f} MB after a tenth",
            FLATNESS,
        )
    ]


def _asked(side: str, path: Path, jobs: int) -> float:
    return float(_output(side, path, jobs))


def _asked_pair(side: str, path: Path, jobs: int) -> tuple[float, float]:
    first, second = _output(side, path, jobs).split()
    return float(first), float(second)


def _output(side: str, path: Path, jobs: int) -> str:
    command = [sys.executable, "-m", "bench.drain", side, str(path), str(jobs)]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


# -- the processes ---------------------------------------------------------------------------------------------------


def main(side: str, path: Path, jobs: int) -> None:
    logging.disable(logging.CRITICAL)
    if side.startswith("huey"):
        print(huey(path, jobs, int(side.removeprefix("huey-"))))
    elif side == "floor":
        print(floor(path, jobs))
    elif side == "memory":
        print(*memory(path, jobs))
    else:
        print(perdure(path, jobs, side))


def perdure(path: Path, jobs: int, side: str) -> float:
    app = Perdure(path)
    _fill_ours(app, jobs, side)
    worker = app.worker(concurrency=CONCURRENCY if side == "async" else THREADS)
    started = time.perf_counter()
    worker.run(until_idle=True)
    return jobs / (time.perf_counter() - started)


def memory(path: Path, jobs: int) -> tuple[float, float]:
    """Megabytes after a tenth of the jobs and after all."""
    app = Perdure(path)
    seen = count(1)
    early = threading.Event()
    megabytes: list[float] = []

    def noted() -> None:
        if next(seen) == jobs // 10:
            megabytes.append(resident_mb())
            early.set()

    _fill_ours(app, jobs, "async", noted)
    app.worker(concurrency=CONCURRENCY).run(until_idle=True)
    return megabytes[0], resident_mb()


def _fill_ours(app: Perdure, jobs: int, side: str, each: Callable[[], None] = lambda: None) -> None:
    @app.job
    async def aside() -> None:
        each()

    @app.job
    def plain() -> None: ...

    kind = aside if side == "async" else plain
    for _ in range(0, jobs, 1_000):
        kind.enqueue_many([{}] * 1_000)


def huey(path: Path, jobs: int, workers: int) -> float:
    """Huey with fsync on, which is how it has to be set not to lose jobs either; results are not kept."""
    from huey import SqliteHuey  # type: ignore[import-untyped]  # pyright: ignore[reportMissingTypeStubs]

    queue = SqliteHuey(filename=str(path), fsync=True, results=False)

    @queue.task()
    def plain() -> None: ...

    for _ in range(jobs):
        plain()
    consumer = queue.create_consumer(workers=workers, periodic=False, initial_delay=0.001, max_delay=0.01, backoff=1.0)
    started = time.perf_counter()
    consumer.start()
    while queue.pending_count():
        time.sleep(0.002)
    taken = time.perf_counter() - started
    consumer.stop(graceful=True)
    return jobs / taken


def floor(path: Path, jobs: int) -> float:
    bare = floor_at(path)
    fill(bare, jobs)
    run_ids = iter(bare.run_ids(jobs))
    started = time.perf_counter()
    for _ in range(0, jobs, BATCH):
        bare.cycle(run_ids, BATCH)
    taken = time.perf_counter() - started
    bare.close()
    return jobs / taken


def resident_mb() -> float:
    with Path("/proc/self/statm").open() as statm:
        return int(statm.read().split()[1]) * resource.getpagesize() / 1e6


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
