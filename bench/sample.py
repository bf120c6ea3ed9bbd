"""The job that every row enqueues, and the rows Perdure makes of it: the floor writes the same ones."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, NamedTuple

from perdure import Perdure
from perdure.clock import Clock
from perdure.ids import NodeId, RunId
from perdure.job.model import Claim, RunStats
from perdure.job.reports import Completed, Finish
from perdure.kind import Kind
from perdure.store.rows import Claimer, Lane, NewNode

QUEUE = "bench"
RESULT = '"ok"'
LEASE_US = 60_000_000
TELLING = RunStats(duration_ms=1)

Columns = dict[str, Any]


class Desk:
    """Perdure's side: an app on one database with the kind that is measured, and a node that claims."""

    def __init__(self, where: Path | str, clock: Clock | None = None) -> None:
        self.app = Perdure(where, clock=clock, auto_migrate=True)
        self.kind = _declare(self.app)
        self._kinds = self.app.kinds.versions()
        self.node = NodeId(self.app.ids.new())
        self.app.store.register(NewNode(self.node, self.app.clock.now()))

    def claim(self, room: int) -> list[Claim]:
        """One claim as a worker makes it."""
        app = self.app
        run_ids = [RunId(run_id) for run_id in app.ids.new_many(room)]
        return app.store.claim([Lane(QUEUE, room)], Claimer(self.node, self._kinds, run_ids, LEASE_US), app.clock.now())

    def finish(self, claims: list[Claim]) -> None:
        """One batch of finishes as a worker makes it: every job completed, with a result."""
        app = self.app
        next_ids = app.ids.new_many(len(claims))
        reports = [
            Finish(claim.live, Completed(RESULT), next_id, TELLING)  # type: ignore[arg-type]
            for claim, next_id in zip(claims, next_ids, strict=True)
        ]
        app.store.finish(reports, app.clock.now())

    def close(self) -> None:
        self.app.close()


def _declare(app: Perdure) -> Kind[[str, str], None, [str, str], None]:
    @app.job(queue=QUEUE, name="send")
    def send(to: str, body: str) -> None: ...

    return send


def arguments(payload_bytes: int = 100) -> dict[str, str]:
    """Arguments whose JSON is that long."""
    empty = len('{"to":"someone@example.org","body":""}')
    return {"to": "someone@example.org", "body": "x" * (payload_bytes - empty)}


class Sample(NamedTuple):
    """One job's rows as Perdure wrote them, by column, without those that are NULL.

    Leaving them out makes the floor lower: the driver takes half a microsecond to bind a None.
    """

    job: Columns
    ready: Columns
    run: Columns
    outcome: Columns


def take_sample(path: Path, payload_bytes: int = 100) -> Sample:
    """Run one job through Perdure and read what that left in each table."""
    desk = Desk(path)
    desk.kind.enqueue_many([arguments(payload_bytes)])
    enqueued = {table: only_row(path, table) for table in ("job", "ready")}
    desk.finish(desk.claim(1))
    ended = {table: only_row(path, table) for table in ("run", "outcome")}
    desk.close()
    return Sample(**enqueued, **ended)


def only_row(path: Path, table: str) -> Columns:
    """The row of a table that has one, without what is NULL."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.row_factory = sqlite3.Row
    try:
        (row,) = connection.execute(f"SELECT * FROM perdure_{table}").fetchall()
    finally:
        connection.close()
    return {name: row[name] for name in row.keys() if row[name] is not None}  # noqa: SIM118 - a Row iterates its values
