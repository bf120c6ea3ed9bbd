"""The row about the six questions: what `perdure status` asks, in a file with so many runs of one day."""

from __future__ import annotations

import sqlite3
import statistics
import struct
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.floor import make_file
from bench.measure import middle_half, scratch_folder
from bench.report import Figure, at_most
from bench.sample import Columns, Sample, take_sample
from perdure.clock import SystemClock
from perdure.ops.status import DAY_US, Asked, asked, status
from perdure.store.open import open_store

USUAL = 100_000
LARGE = 1_000_000
ROUNDS = 5
"""Few are enough: each takes long, and the limit is far from what is measured."""
CHUNK = 100_000


def answers(rounds: int, runs: int) -> list[Figure]:
    """The median time of each question. The file holds as many jobs that wait as runs that ended."""
    now = SystemClock().now()
    with scratch_folder() as folder:
        path = build(folder / "questions.db", runs, now, take_sample(folder / "sample.db"), {})
        store = open_store(str(path))
        figures = [_figure(name, ask, min(rounds, ROUNDS), runs) for name, ask in asked(store, now).items()]
        found = status(store, now)
        assert all(found[1:]), "a question found nothing to answer"
        store.close()
    return figures


def _figure(name: str, ask: Asked, rounds: int, runs: int) -> Figure:
    ask()
    taken = [milliseconds(ask) for _ in range(rounds)]
    middle = statistics.median(taken)
    return Figure(
        "questions",
        f"{name.replace('_', ' ')}? {runs:,} runs, as many wait",
        middle,
        "ms",
        middle_half(taken),
        f"{middle:.0f} ms",
        "",
        at_most(250, "ms") if runs <= USUAL else None,
        rounds={"ours": taken},
    )


def milliseconds(ask: Callable[[], object]) -> float:
    begun = time.perf_counter()
    ask()
    return (time.perf_counter() - begun) * 1e3


# -- the file --------------------------------------------------------------------------------------------------------

_KIND = "'kind-' || (i % 12)"
_ENDED: dict[str, str] = {
    "id": "nth_id(i)",
    "job_id": "nth_id(i)",
    "kind": _KIND,
    "business_key": "CASE WHEN i % 3 = 0 THEN 'customer-' || (i % 999) END",
    "position": "100 + 100 * i",
    "finished_at": "nth_time(i)",
    "started_at": "nth_time(i)",
    "duration_ms": "1 + i * 7919 % 60000",
    "wait_ms": "1 + i * 104729 % 5000",
}
_RUN_STATE = "CASE i % 50 WHEN 0 THEN 'failed' WHEN 1 THEN 'timed_out' WHEN 2 THEN 'lost' ELSE 'completed' END"
_END = "CASE WHEN i % 50 = 0 THEN 'failed' ELSE 'completed' END"
_LIVE_STATE = "CASE WHEN i % 1000 = 0 THEN 'parked' WHEN i % 3 = 0 THEN 'scheduled' ELSE 'queued' END"
"""The columns that differ from job to job, as SQL of its number; all else is as Perdure wrote it for one job."""


def build(path: Path, runs: int, now: int, sample: Sample, own: dict[str, str]) -> Path:
    """A file with so many jobs that ended, one run each, over the last day, and as many that came since and wait.

    `own`: columns that a row of the bench wants otherwise, as SQL of the job's number.
    """
    make_file(path)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous=OFF").fetchall()
    at = partial(_nth_time, now, runs)
    connection.create_function("nth_time", 1, at, deterministic=True)
    connection.create_function("nth_id", 1, lambda number: _nth_id(at(number), number), deterministic=True)
    _fill(connection, "job", sample.job | {"business_key": None}, range(2 * runs), own)
    _fill(connection, "run", sample.run, range(runs), {"state": _RUN_STATE})
    ends = {"state": _END, "error_type": "CASE WHEN i % 50 = 0 THEN 'ValueError' END"}
    _fill(connection, "outcome", sample.outcome | {"error_type": None}, range(runs), ends)
    waiting = own | {"state": _LIVE_STATE, "updated_at": "nth_time(i) - 600000000"}
    _fill(connection, "ready", sample.ready, range(runs, 2 * runs), waiting)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.close()
    return path


def _fill(connection: sqlite3.Connection, table: str, columns: Columns, numbers: range, own: dict[str, str]) -> None:
    """Rows for the jobs of these numbers, a chunk per transaction so that the log stays short."""
    written = _ENDED | own
    sql = f"""
        INSERT INTO perdure_{table} ({", ".join(columns)})
        WITH RECURSIVE n(i) AS (SELECT :first UNION ALL SELECT i + 1 FROM n WHERE i < :last)
        SELECT {", ".join(written.get(name, f":{name}") for name in columns)} FROM n
    """
    for first in numbers[::CHUNK]:
        last = min(first + CHUNK, numbers.stop) - 1
        connection.execute(sql, columns | {"first": first, "last": last})


def _nth_time(now: int, runs: int, number: int) -> int:
    """Those that ended are spread over the day before the last hour's end; those that wait came in a second after."""
    step_us = (DAY_US - 60_000_000) / runs
    return int(now - DAY_US + 1_000_000 + min(number, runs) * step_us + max(0, number - runs) * 1_000_000 / runs)


def _nth_id(at: int, number: int) -> bytes:
    """A UUIDv7 of that time; those of one millisecond rise, the other bits are scattered."""
    scattered = number * 0x9E37_79B9_7F4A_7C15 & 0x3FFF_FFFF_FFFF_FFFF
    return struct.pack(">QQ", at // 1_000 << 16 | 0x7000 | at % 1_000, 0x8000_0000_0000_0000 | scattered)
