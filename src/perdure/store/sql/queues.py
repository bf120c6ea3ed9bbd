"""Queues: listing, pausing and resuming whole lanes. Called by `app.queues` through `store`."""

from __future__ import annotations

from perdure.clock import Micros
from perdure.store.answers import QueueRow
from perdure.store.sql.engine import Call, Op

EVERYTHING = "*"


def listing() -> Op[list[QueueRow]]:
    """Every queue ever used, by name; `*` (everything) is among them once it was paused."""
    rows = (yield Call("list_queues")).rows
    return [QueueRow._make(row) for row in rows]


def set_paused(queue: str, paused_at: Micros | None) -> Op[None]:
    """From the commit on no claim takes a job of a paused queue; jobs that run go on. A repeat keeps the first time."""
    yield Call("ensure_queue", {"queue": queue})
    row = QueueRow._make((yield Call("read_queue", {"queue": queue})).rows[0])
    if (row.paused_at is None) != (paused_at is None):
        yield Call("set_queue_pause", {"queue": queue, "paused_at": paused_at})
