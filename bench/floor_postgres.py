"""The floor on PostgreSQL: the same rows into the same tables by bare psycopg, with arrays. Used by `postgres`."""

from __future__ import annotations

import time
import uuid
from typing import Any

import psycopg

from bench.sample import QUEUE
from perdure.ids import IdFactory

_HEAD = """
SELECT
    r.job_id, r.rank, r.position, r.run_at, r.queued_at, r.max_attempts, r.queue, r.kind, r.kind_version, r.state,
    r.started_at, r.attempts, r.crashes, r.life, r.as_new_job, r.timeout_ms, r.node_id, r.run_id, r.claimed_at,
    r.deadline_at, r.waits_for, r.limit_key, r.business_key, r.superseded_by, r.paused, r.cancel_requested,
    r.park_reason, r.last_error, r.updated_at, r.version, j.payload, j.secrets, j.params, j.options, j.principal,
    j.owner, j.created_at
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
