"""The floor: the same rows into the same tables by the bare `sqlite3` driver. No library code in its timed parts.

Its file is made by Perdure's own migration, so tables and indexes are the same. The rows are laid out beforehand; what
is timed is BEGIN, the statements, COMMIT, and the checkpoints that keep the log short.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from bench.sample import QUEUE, RESULT, Columns, Desk, Sample, take_sample
from perdure.ids import IdFactory
from perdure.store.sqlite.wal import affected

GAP = 100
FRAMES = 1_000  # between checkpoints, as Perdure has it
TABLES = ("job", "ready", "run", "outcome", "queue")

_ADVANCE = "UPDATE perdure_queue SET next_position = next_position + ? WHERE name = ?"
_POSITION = "SELECT next_position FROM perdure_queue WHERE name = ?"  # RETURNING would take twice as long
_HEAD = """
SELECT
    r.job_id, r.rank, r.position, r.run_at, r.queued_at, r.kind, r.kind_version, r.crashes, r.life, r.max_attempts,
    r.as_new_job, r.timeout_ms, r.limit_key, r.business_key, r.last_error, r.flow_id, r.traits, r.started_at,
    r.attempts, r.updated_at, r.version, j.payload, j.secrets, j.params, j.options, j.principal, j.owner, j.created_at,
    j.refs
FROM perdure_ready AS r JOIN perdure_job AS j ON j.id = r.job_id
WHERE r.queue = ? AND r.state = 'queued'
ORDER BY r.rank, r.position, r.job_id
LIMIT ?
"""  # all that a worker is given of a job
_CLAIM = """
UPDATE perdure_ready
SET state = 'running', attempts = attempts + 1, started_at = ?1, node_id = ?2, run_id = ?3, claimed_at = ?1,
    updated_at = ?1, version = version + 1
WHERE job_id = ?4
"""
_OPEN_RUN = """
INSERT INTO perdure_run (id, job_id, state, node_id, attempt, life, started_at, wait_ms)
VALUES (?, ?, 'running', ?, 1, 1, ?, ?)
"""
_CLOSE_RUN = "UPDATE perdure_run SET state = 'completed', finished_at = ?, duration_ms = 1 WHERE id = ?"
_OUTCOME = """
INSERT INTO perdure_outcome (
    job_id, life, state, finished_at, rank, position, run_at, queued_at, started_at, attempts, crashes, max_attempts,
    result, version
)
VALUES (?, 1, 'completed', ?, ?, ?, ?, ?, ?, 1, 0, ?, ?, 3)
"""
_END = "DELETE FROM perdure_ready WHERE job_id = ?"


class LaidOut(NamedTuple):
    """A job ready to be written: its cold row, and its hot row before and behind the position."""

    job: tuple[object, ...]
    before: tuple[object, ...]
    behind: tuple[object, ...]


class Floor:
    """A writer with nothing around it. `guarded`: it checkpoints as Perdure must on an affected SQLite."""

    def __init__(self, path: Path, sample: Sample, *, guarded: bool = False) -> None:
        self.path = path
        self.sample = sample
        self._ids = IdFactory()
        self._node = self._ids.new()
        self._connection = _open(path)
        self._holder = _open(path) if guarded and affected(sqlite3.sqlite_version_info[:3]) else None
        if self._holder is not None:
            self._connection.execute("PRAGMA wal_autocheckpoint=0").fetchall()
            self._holder.execute("PRAGMA wal_autocheckpoint=0").fetchall()
        self._insert_job = insert_into("job", sample.job)
        self._insert_ready = insert_into("ready", sample.ready)
        self._commits = 0
        self._due = 20

    # -- untimed -----------------------------------------------------------------------------------------------------

    def lay_out(self, count: int) -> list[LaidOut]:
        """The rows of so many jobs, with ids and times of their own."""
        now = _now()
        at = {"created_at": now, "run_at": now, "queued_at": now, "updated_at": now}
        return [self._laid_out(job_id, at) for job_id in self._ids.new_many(count)]

    def _laid_out(self, job_id: bytes, at: Columns) -> LaidOut:
        ready = changed(self.sample.ready, {"job_id": job_id, **at})
        place = list(self.sample.ready).index("position")
        return LaidOut(changed(self.sample.job, {"id": job_id, **at}), ready[:place], ready[place + 1 :])

    def run_ids(self, count: int) -> list[bytes]:
        return self._ids.new_many(count)

    def tidy(self) -> None:
        """Begin with an empty log."""
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        if self._holder is not None:
            self._holder.close()
        self._connection.close()

    # -- timed -------------------------------------------------------------------------------------------------------

    def enqueue_each(self, jobs: Sequence[LaidOut]) -> None:
        """Every job in a transaction of its own."""
        execute = self._connection.execute
        for job, before, behind in jobs:
            execute("BEGIN IMMEDIATE")
            execute(_ADVANCE, (GAP, QUEUE))
            ((following,),) = execute(_POSITION, (QUEUE,)).fetchall()
            execute(self._insert_job, job)
            execute(self._insert_ready, (*before, following - GAP, *behind))
            execute("COMMIT")
            self._committed()

    def enqueue_all(self, jobs: Sequence[LaidOut]) -> None:
        """All jobs in one transaction."""
        self._connection.execute("BEGIN IMMEDIATE")
        self._insert(jobs)
        self._connection.execute("COMMIT")
        self._committed()

    def _insert(self, jobs: Sequence[LaidOut]) -> None:
        connection = self._connection
        connection.execute(_ADVANCE, (GAP * len(jobs), QUEUE))
        ((following,),) = connection.execute(_POSITION, (QUEUE,)).fetchall()
        places = range(following - GAP * len(jobs), following, GAP)
        connection.executemany(self._insert_job, [job.job for job in jobs])
        connection.executemany(
            self._insert_ready,
            [(*job.before, place, *job.behind) for job, place in zip(jobs, places, strict=True)],
        )

    def cycle(self, run_ids: Iterator[bytes], room: int) -> int:
        """Claim a batch in one transaction, complete it in another; answers how many jobs that were."""
        connection, now = self._connection, _now()
        connection.execute("BEGIN IMMEDIATE")
        head = connection.execute(_HEAD, (QUEUE, room)).fetchall()
        runs = list(islice(run_ids, len(head)))
        pairs = list(zip(head, runs, strict=True))
        connection.executemany(_CLAIM, [(now, self._node, run, row[0]) for row, run in pairs])
        connection.executemany(
            _OPEN_RUN, [(run, row[0], self._node, now, (now - row[3]) // 1000) for row, run in pairs]
        )
        connection.execute("COMMIT")
        self._committed()
        self._complete(head, runs, now, _now())
        return len(head)

    def _complete(self, head: list[Any], runs: list[bytes], started: int, now: int) -> None:
        connection, budget = self._connection, self.sample.ready["max_attempts"]
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(_END, [row[:1] for row in head])
        connection.executemany(_CLOSE_RUN, [(now, run) for run in runs])
        connection.executemany(
            _OUTCOME,
            [(row[0], now, *row[1:5], started, budget, RESULT) for row in head],
        )
        connection.execute("COMMIT")
        self._committed()

    def _committed(self) -> None:
        """The guarded checkpoint, every ~1,000 frames. Each one tells how many commits the next 1,000 will take."""
        self._commits += 1
        if self._holder is None or self._commits < self._due:
            return
        self._holder.execute("BEGIN IMMEDIATE")
        ((_, frames, _),) = self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        self._holder.execute("ROLLBACK")
        self._due = max(1, round(self._commits * FRAMES / max(1, frames)))
        self._commits = 0


def floor_at(path: Path, payload_bytes: int = 100, *, guarded: bool = False) -> Floor:
    """A floor on a new file at Perdure's newest schema, with Perdure's rows to write."""
    sample = take_sample(path.with_name(f"sample-{path.name}"), payload_bytes)
    make_file(path)
    return Floor(path, sample, guarded=guarded)


def make_file(path: Path) -> None:
    """An empty file with Perdure's tables, and the queue that is used."""
    Desk(path).close()
    connection = _open(path)
    connection.execute("INSERT INTO perdure_queue (name, next_position) VALUES (?, 100)", (QUEUE,))
    connection.close()


def same_shape(one: Path, other: Path, tables: Sequence[str] = TABLES) -> None:
    """Refuse figures of a floor that did not write as many rows as Perdure, with as many values in every column."""
    for table in tables:
        ours, theirs = _shape(one, table), _shape(other, table)
        if ours != theirs:
            raise SystemExit(f"The floor does not write what Perdure writes to {table}: {theirs}, and Perdure {ours}.")


def _shape(path: Path, table: str) -> dict[str, int]:
    connection = _open(path)
    try:
        names = [row[1] for row in connection.execute(f"PRAGMA table_info(perdure_{table})")]
        counts = connection.execute(f"SELECT {', '.join(f'COUNT({name})' for name in names)} FROM perdure_{table}")
        return dict(zip(names, counts.fetchone(), strict=True))
    finally:
        connection.close()


def _open(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    for pragma in ("journal_mode=WAL", "synchronous=FULL"):
        connection.execute(f"PRAGMA {pragma}").fetchall()
    return connection


def insert_into(table: str, columns: Columns) -> str:
    return f"INSERT INTO perdure_{table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"


def changed(columns: Columns, changes: Columns) -> tuple[object, ...]:
    return tuple((columns | {name: value for name, value in changes.items() if name in columns}).values())


def _now() -> int:
    return time.time_ns() // 1000
