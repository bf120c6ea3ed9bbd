"""Queues: listing, pausing and resuming whole lanes. Called by `app.queues` through `store`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from perdure.clock import Micros
from perdure.job.model import readable
from perdure.store.answers import QueueRow
from perdure.store.sql.engine import Call, Op

EVERYTHING = "*"

COUNTED = 10_000
"""How far jobs are counted that are due later, of all queues together; and how far those that are set aside."""
COUNTED_TOGETHER = 25_000
CAPS = (10_000, 5_000, 2_000, 1_000, 500, 200, 100)
"""How far the queued jobs of a queue are counted: the first that keeps all queues below that, or the last."""


def listing() -> Op[list[QueueRow]]:
    """Every queue ever used, by name; `*` (everything) is among them once it was paused."""
    rows = (yield Call("list_queues")).rows
    cap = next((cap for cap in CAPS if cap * len(rows) <= COUNTED_TOGETHER), CAPS[-1])
    queued: dict[str, int] = dict((yield Call("count_queued", {"cap": cap + 1})).rows)
    others: dict[str, Counter[str]] = {"running": Counter(), "scheduled": Counter(), "aside": Counter()}
    for sort, queue, number in (yield Call("count_not_queued", {"cap": COUNTED + 1})).rows:
        others[sort][queue] += number
    uncounted = any(others[sort].total() > COUNTED for sort in ("scheduled", "aside"))
    return [_counted(row, queued.get(row[0], 0), others, cap, uncounted=uncounted) for row in rows]


def _counted(
    row: Sequence[Any], queued: int, others: Mapping[str, Counter[str]], cap: int, *, uncounted: bool
) -> QueueRow:
    name, paused_at, concurrency, reserved_until = row
    more = queued > cap
    queued = min(queued, cap)
    live = queued + sum(counts[name] for counts in others.values())
    running = others["running"][name]
    counted = (name, paused_at, concurrency, reserved_until, queued, running, live, more, more or uncounted)
    return readable(QueueRow, counted)[0]


def set_paused(queue: str, paused_at: Micros | None) -> Op[bool]:
    """From the commit on no claim takes a job of a paused queue; jobs that run go on. A repeat keeps the first time.

    False: it was a repeat.
    """
    yield Call("ensure_queue", {"queue": queue})
    paused_since = (yield Call("read_queue", {"queue": queue})).rows[0][1]
    if (paused_since is None) == (paused_at is None):
        return False
    yield Call("set_queue_pause", {"queue": queue, "paused_at": paused_at})
    return True
