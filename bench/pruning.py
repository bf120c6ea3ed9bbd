"""The row about pruning: a worker empties a queue while jobs that ended long ago are removed from the same file.

Run as a module it is one of its processes: `python -m bench.pruning fill|alone|pruning PATH`; the last two drain a copy
of what the first has made, and print how many jobs a second that were, and how many were removed.
"""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

from bench.drain import CONCURRENCY, JOBS, ROUNDS
from bench.measure import ROOT, Rounds, scratch_folder
from bench.report import Figure, at_least, compared
from perdure import Perdure
from perdure.clock import ManualClock
from perdure.ids import IdFactory
from perdure.job.reports import Completed
from perdure.testing.contract.rig import Rig
from perdure.upkeep.retention import Prune

OLD = 60_000
"""More than are removed while the queue is emptied."""


def while_pruning(_rounds: int) -> list[Figure]:
    """The same drain with and without the built-in pruning beside it, in turns."""
    with scratch_folder() as folder:
        made = folder / "made.db"
        _output("fill", made)
        numbers = count()

        def measured(side: str) -> list[float]:
            path = folder / f"{next(numbers)}.db"
            shutil.copy(made, path)
            return [float(word) for word in _output(side, path).split()]

        rounds, removed = Rounds([], []), list[float]()
        for _ in range(ROUNDS):
            rounds.theirs.append(measured("alone")[0])
            ours, gone = measured("pruning")
            rounds.ours.append(ours)
            removed.append(gone)
    what = f"drain of {JOBS:,} async jobs while {min(removed):,.0f}+ old ones are pruned"
    return [compared("pruning", what, rounds, at_least(0.8, "alone"), "alone")]


def _output(side: str, path: Path) -> str:
    command = [sys.executable, "-m", "bench.pruning", side, str(path)]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


# -- the processes ---------------------------------------------------------------------------------------------------


def main(side: str, path: Path) -> None:
    logging.disable(logging.CRITICAL)
    if side == "fill":
        fill(path)
    else:
        print(*drain(path, prunes=side == "pruning"))


def app_on(path: Path) -> Perdure:
    app = Perdure(path)

    @app.job
    async def aside() -> None: ...

    return app


def fill(path: Path) -> None:
    """Jobs that ended a hundred days ago, and jobs that wait."""
    rig = Rig(str(path))
    clock = rig.clock = ManualClock(datetime.now(UTC) - timedelta(days=100))
    rig.ids = IdFactory(lambda: clock.now() // 1_000, pause=lambda: clock.advance(milliseconds=1))
    for _ in range(0, OLD, 1_000):
        rig.enqueue_many(1_000)
        rig.store.finish([rig.report(claim, Completed()) for claim in rig.claim(1_000)], rig.now)
    rig.close()
    app = app_on(path)
    aside = app.kinds.get("aside")
    for _ in range(0, JOBS, 1_000):
        aside.enqueue_many([{}] * 1_000)
    app.close()


def drain(path: Path, *, prunes: bool) -> tuple[float, int]:
    """Jobs a second, and how many were removed meanwhile."""
    app = app_on(path)
    over = threading.Event()
    work = Prune(app.store, app.clock, app.config.retention)
    work.begin(app.clock.now())

    def prune() -> None:
        while not over.wait(work.rest_s) and work.step() is None:
            pass

    pruning = threading.Thread(target=prune, daemon=True)
    worker = app.worker(concurrency=CONCURRENCY)
    started = time.perf_counter()
    if prunes:
        pruning.start()
    worker.run(until_idle=True)
    rate = JOBS / (time.perf_counter() - started)
    over.set()
    if prunes:
        pruning.join()
    return rate, OLD + JOBS - _ended(app)


def _ended(app: Perdure) -> int:
    with app.transaction() as tx:
        return int(tx.execute("SELECT COUNT(*) FROM perdure_outcome").fetchone()[0])


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
