"""The floor on PostgreSQL: the same rows into the same tables by bare psycopg. Used by `servers` and `waiting`."""

from __future__ import annotations

import time
import uuid
from typing import IO, Any, Self

import psycopg

from bench.sample import QUEUE
from perdure.ids import IdFactory

_HEAD = """
SELECT
    r.job_id, r.rank, r.position, r.run_at, r.queued_at, r.max_attempts, r.kind, r.kind_version, r.crashes, r.life,
    r.as_new_job, r.timeout_ms, r.limit_key, r.business_key, r.last_error, r.flow_id, r.traits, r.started_at,
    r.attempts, r.updated_at, r.version, j.payload, j.secrets, j.params, j.options, j.principal, j.owner, j.created_at,
    j.refs
FROM perdure.ready AS r JOIN perdure.job AS j ON j.id = r.job_id
WHERE r.queue = %s AND r.state = 'queued'
ORDER BY r.rank, r.position, r.job_id
LIMIT %s
FOR UPDATE OF r SKIP LOCKED
"""  # all that a worker is given of a job
_CLAIM = """
UPDATE perdure.ready AS r
SET state = 'running', attempts = attempts + 1, started_at = %s, node_id = %s, run_id = v.run_id, claimed_at = %s,
    updated_at = %s, version = version + 1
FROM unnest(%s::uuid[], %s::uuid[]) AS v (job_id, run_id)
WHERE r.job_id = v.job_id
"""
_OPEN_RUN = """
INSERT INTO perdure.run (id, job_id, state, node_id, attempt, life, started_at, wait_ms)
SELECT v.id, v.job_id, 'running', %s, 1, 1, %s, v.wait_ms
FROM unnest(%s::uuid[], %s::uuid[], %s::bigint[]) AS v (id, job_id, wait_ms)
"""
_CLOSE_RUN = """
UPDATE perdure.run SET state = 'completed', finished_at = %s, duration_ms = 1
WHERE id = ANY (%s::uuid[])
"""
_OUTCOME = """
INSERT INTO perdure.outcome (
    job_id, life, state, finished_at, rank, position, run_at, queued_at, started_at, attempts, crashes, max_attempts,
    result, version
)
SELECT v.job_id, 1, 'completed', %s, v.rank, v.position, v.run_at, v.queued_at, %s, 1, 0, v.max_attempts, 'null', 3
FROM unnest(%s::uuid[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[])
    AS v (job_id, rank, position, run_at, queued_at, max_attempts)
"""
_END = "DELETE FROM perdure.ready WHERE job_id = ANY (%s::uuid[])"


class PostgresFloor:
    """A writer with nothing around it: ends one batch and claims the next in the same transaction, as a worker does."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self._cursor = self._connection.cursor(binary=True)
        self._ids = IdFactory()
        self._node = uuid.UUID(bytes=self._ids.new())

    def close(self) -> None:
        self._connection.close()

    def drain(self, room: int) -> None:
        head: list[Any] = []
        runs: list[uuid.UUID] = []
        started = 0
        while True:
            execute, now = self._cursor.execute, time.time_ns() // 1000
            execute("BEGIN")
            if head:
                self._complete(head, runs, started, now)
            head = execute(_HEAD, (QUEUE, room)).fetchall()
            runs = [uuid.UUID(bytes=run_id) for run_id in self._ids.new_many(len(head))]
            if head:
                jobs = [row[0] for row in head]
                execute(_CLAIM, (now, self._node, now, now, jobs, runs))
                execute(_OPEN_RUN, (self._node, now, runs, jobs, [(now - row[3]) // 1000 for row in head]))
            execute("COMMIT")
            started = now
            if not head:
                return

    def _complete(self, head: list[Any], runs: list[uuid.UUID], started: int, now: int) -> None:
        execute = self._cursor.execute
        execute(_END, ([row[0] for row in head],))
        execute(_CLOSE_RUN, (now, runs))
        columns = [list(column) for column in zip(*[row[:6] for row in head], strict=True)]
        execute(_OUTCOME, (now, started, *columns))


# -- one job at a time, and a worker that is woken -------------------------------------------------------------------

_CHANNEL = "floor"
_NEW_JOB = """
INSERT INTO perdure.job (id, kind, kind_version, owner, queue, payload, chain_attempt, created_at)
VALUES (%s, 'touch', 1, 'floor', 'floor', '{}', 1, %s)
"""
_NEW_READY = """
INSERT INTO perdure.ready (
    job_id, queue, kind, kind_version, state, rank, position, run_at, queued_at, attempts, crashes, life, max_attempts,
    as_new_job, waits_for, paused, cancel_requested, updated_at, version
)
VALUES (%s, 'floor', 'touch', 1, 'queued', 0, nextval('perdure.position'), %s, %s, 0, 0, 1, 3, 0, 0, 0, 0, %s, 1)
"""


class Enqueuer:
    """Enqueues a job and notifies whoever listens: two rows and a NOTIFY, in one exchange and its commit."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url)
        self._ids = IdFactory()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def enqueue(self) -> None:
        now, job_id = time.time_ns() // 1000, uuid.UUID(bytes=self._ids.new())
        with self._connection.pipeline():
            self._connection.execute(_NEW_JOB, (job_id, now))
            self._connection.execute(_NEW_READY, (job_id, now, now, now))
            self._connection.execute(f"NOTIFY {_CHANNEL}".encode())
            self._connection.commit()


def listen(url: str, to: IO[str]) -> None:
    """Claim each job when notified of it, and print when that has committed. Does not return."""
    ids = IdFactory()
    node = uuid.UUID(bytes=ids.new())
    with psycopg.connect(url, autocommit=True) as listening, psycopg.connect(url) as connection:
        listening.execute(f"LISTEN {_CHANNEL}".encode())
        print("ready", file=to, flush=True)
        for _ in listening.notifies():
            now, run_id = time.time_ns() // 1000, uuid.UUID(bytes=ids.new())
            ((job_id, *_),) = connection.execute(_HEAD, ("floor", 1)).fetchall()
            with connection.pipeline():
                connection.execute(_CLAIM, (now, node, now, now, [job_id], [run_id]))
                connection.execute(_OPEN_RUN, (node, now, [run_id], [job_id], [0]))
                connection.commit()
            print("touch", time.monotonic_ns(), file=to, flush=True)
