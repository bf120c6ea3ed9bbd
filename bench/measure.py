"""Rounds, taken in turns, and what they come to. Used by every row of the table."""

from __future__ import annotations

import gc
import math
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SCRATCH = ROOT / ".bench"
"""Inside the repository, so that every file of a run is on the same filesystem, and ignored by git."""

ROUNDS = 41
"""Many short ones rather than a few long ones: a neighbour that keeps the machine busy for a second then spoils a few
rounds of both sides, and the medians do not notice."""

Round = Callable[[], float]
"""Prepares untimed, works timed, and answers one number: a rate, or a cost."""


class Rounds(NamedTuple):
    """What each side measured; the nth of one was taken right beside the nth of the other."""

    ours: list[float]
    theirs: list[float]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ours) / statistics.median(self.theirs)

    @property
    def ratio_spread(self) -> tuple[float, float]:
        """The middle half of the ratios of neighbouring rounds."""
        return middle_half([ours / theirs for ours, theirs in zip(self.ours, self.theirs, strict=True)])


def in_turns(ours: Round, theirs: Round, rounds: int) -> Rounds:
    """Both sides warmed up, then A B, B A, A B, …: whatever else the machine does falls on both alike."""
    ours()
    theirs()
    measured = Rounds([], [])
    for number in range(rounds):
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            measured[side].append((ours, theirs)[side]())
    return measured


def rate(count: int, work: Callable[[], object]) -> float:
    """How many of `count` things `work` does in a second."""
    gc.collect()
    started = time.perf_counter()
    work()
    return count / (time.perf_counter() - started)


def middle_half(values: Sequence[float]) -> tuple[float, float]:
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return first, third


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent of all values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


@contextmanager
def scratch_folder() -> Generator[Path, None, None]:
    """A folder for one row's files, gone afterwards."""
    SCRATCH.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="run-", dir=SCRATCH))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
