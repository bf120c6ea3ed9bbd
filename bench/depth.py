"""The row about depth: what a claim costs in a file full of other jobs, against one with a thousand."""

from __future__ import annotations

import hashlib
import sqlite3
import statistics
import struct
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench.floor import make_file
from bench.measure import SCRATCH, in_turns, scratch_folder
from bench.report import Figure, at_most, ratio_figure
from bench.sample import QUEUE, Columns, Desk, Sample, arguments, take_sample
from perdure.store.migrate import migrations_of
from perdure.store.sqlite.statements import STATEMENTS

ROOM = 10
CLAIMS = 10
CHUNK = 100_000
YEAR_US = 365 * 24 * 3600 * 1_000_000


class Jobs(NamedTuple):
    """How many jobs of each sort a file holds."""

    queued: int
    scheduled: int = 0
    finished: int = 0

    def __str__(self) -> str:
        return f"{_short(self.queued)} queued + {_short(self.scheduled)} scheduled + {_short(self.finished)} finished"


FEW = Jobs(1_000)
USUAL = Jobs(100_000, 100_000, 500_000)
LARGE = Jobs(1_000_000, 1_000_000, 5_000_000)


def claim_cost(rounds: int, jobs: Jobs) -> list[Figure]:
    """The median cost of a claim of ten, in its own transaction, on both files in turns."""
    with scratch_folder() as folder:
        sample = take_sample(folder / "sample.db")
        path = _kept_file(jobs, sample)
        deep, few = Desk(path), Desk(_build(folder / "few.db", FEW, sample))
        measured = in_turns(lambda: cost_us(deep), lambda: cost_us(few), rounds)
        plan = _plan(path)
        deep.close()
        few.close()
    target = at_most(1.3, "× with 1 k jobs")
    found = ratio_figure("depth", f"claim of {ROOM}: {jobs}", measured, target, "1 k queued", microseconds)
    return [replace(found, notes=plan)]


def cost_us(desk: Desk) -> float:
    """Claims from the head of the queue; outside the timing the jobs are completed and as many put at its back."""
    costs: list[float] = []
    for _ in range(CLAIMS):
        begun = time.perf_counter()
        claims = desk.claim(ROOM)
        costs.append((time.perf_counter() - begun) * 1e6)
        assert len(claims) == ROOM, "the file ran out of queued jobs"
        desk.finish(claims)
        desk.kind.enqueue_many([arguments()] * ROOM)
    return statistics.median(costs)


def _plan(path: Path) -> tuple[str, ...]:
    """How SQLite looks for the head of a lane."""
    statement = STATEMENTS["claim_head"]
    connection = sqlite3.connect(path)
    try:
        rows = connection.execute(f"EXPLAIN QUERY PLAN {statement.sql}", [None] * len(statement.names)).fetchall()
    finally:
        connection.close()
    steps = [str(row[3]) for row in rows]
    found = [step for step in steps if "perdure_ready_claim" in step]
    return tuple(f"plan: {step}" for step in found or ["the claim index is NOT used", *steps])


# -- the files -------------------------------------------------------------------------------------------------------


def _kept_file(jobs: Jobs, sample: Sample) -> Path:
    """The deep file from an earlier run, or a new one. The name holds the schema: another schema, another file."""
    steps = "".join(step.checksum for step in migrations_of("sqlite"))
    digest = hashlib.sha256(f"{steps}{tuple(jobs)}".encode()).hexdigest()[:12]
    path = SCRATCH / f"depth-{sum(jobs)}-{digest}.db"
    if not path.exists():
        for stale in SCRATCH.glob(f"depth-{sum(jobs)}-*"):
            stale.unlink()
        with scratch_folder() as folder:
            _build(folder / "depth.db", jobs, sample).rename(path)
    return path


def _build(path: Path, jobs: Jobs, sample: Sample) -> Path:
    """A file with so many jobs, each with the rows Perdure would have written. The oldest are the finished ones."""
    make_file(path)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous=OFF").fetchall()
    last_year, next_year = (time.time_ns() // 1_000 + years * YEAR_US for years in (-1, 1))
    connection.create_function("nth_id", 1, partial(_nth_id, last_year // 1_000), deterministic=True)
    queued_from = jobs.finished + jobs.scheduled
    later = sample.ready | {"state": "scheduled", "run_at": next_year}
    _fill(connection, "job", sample.job, range(sum(jobs)))
    _fill(connection, "run", sample.run, range(jobs.finished))
    _fill(connection, "outcome", sample.outcome, range(jobs.finished))
    _fill(connection, "ready", later, range(jobs.finished, queued_from))
    _fill(connection, "ready", sample.ready, range(queued_from, sum(jobs)))
    connection.execute("UPDATE perdure_queue SET next_position = ? WHERE name = ?", (100 * sum(jobs) + 100, QUEUE))
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.close()
    return path


_OWN = {"id": "nth_id(i)", "job_id": "nth_id(i)", "position": "100 + 100 * i"}
"""The columns that differ from job to job, as SQL of its number. A run may have its job's id: it is another table."""


def _fill(connection: sqlite3.Connection, table: str, columns: Columns, numbers: range) -> None:
    """Rows for the jobs of these numbers, a chunk per transaction so that the log stays short."""
    sql = f"""
        INSERT INTO perdure_{table} ({", ".join(columns)})
        WITH RECURSIVE n(i) AS (SELECT :first UNION ALL SELECT i + 1 FROM n WHERE i < :last)
        SELECT {", ".join(_OWN.get(name, f":{name}") for name in columns)} FROM n
    """
    for first in numbers[::CHUNK]:
        last = min(first + CHUNK, numbers.stop) - 1
        connection.execute(sql, columns | {"first": first, "last": last})


def _nth_id(start_ms: int, number: int) -> bytes:
    """A UUIDv7 that rises with the number: four a millisecond, the other bits scattered."""
    scattered = number * 0x9E37_79B9_7F4A_7C15 & 0x3FFF_FFFF_FFFF_FFFF
    return struct.pack(">QQ", start_ms + number // 4 << 16 | 0x7000 | number % 4, 0x8000_0000_0000_0000 | scattered)


def microseconds(value: float) -> str:
    return f"{value:,.0f} µs"


def _short(count: int) -> str:
    return f"{count / 1_000_000:g} M" if count >= 1_000_000 else f"{count / 1_000:g} k"


def profile_claims(path: Path) -> Callable[[], object]:
    sample = take_sample(path.with_name("sample.db"))
    desk = Desk(_build(path, FEW, sample))
    cost_us(desk)
    return lambda: cost_us(desk)
