"""What is going on, one query per question. Called by `ops/status` through `store`; changes nothing.

Each looks at `cap` rows of an index and no more, so that it costs the same however much there is.
"""

from __future__ import annotations

from perdure.clock import Micros
from perdure.job.model import readable
from perdure.store.answers import LAST_ID, USUAL_LEASE_US
from perdure.store.sql.engine import Call, Op
from perdure.store.tallies import (
    Duplicates,
    Durations,
    Failures,
    Gate,
    Hitch,
    Outstanding,
    Ran,
    Sameness,
    Stuck,
)


def outstanding(cap: int) -> Op[list[Outstanding]]:
    """The live jobs by kind, queue and state."""
    rows = (yield Call("ask_outstanding", {"cap": cap, "last_id": LAST_ID})).rows
    return [readable(Outstanding, row)[0] for row in rows]


def failures(since: Micros, cap: int) -> Op[list[Failures]]:
    """The jobs that failed by kind and type of error, the most frequent first."""
    return [readable(Failures, row)[0] for row in (yield Call("ask_failures", {"since": since, "cap": cap})).rows]


def count_failed(since: Micros, cap: int) -> Op[int]:
    """How many lives failed since then, if less than `cap`."""
    [(number,)] = (yield Call("count_failed", {"since": since, "cap": cap})).rows
    return int(number)


def stuck(now: Micros, stale: Micros, from_id: bytes, cap: int) -> Op[list[Stuck]]:
    """The jobs that do not get on by reason, kind and queue."""
    params = {"now": now, "stale": stale, "usual_lease": USUAL_LEASE_US, "from_id": from_id, "cap": cap}
    rows = (yield Call("ask_stuck", params)).rows
    return [readable(Stuck, (Hitch(reason), *rest))[0] for reason, *rest in rows]


def durations(from_id: bytes, cap: int) -> Op[list[Durations]]:
    """Percentiles of duration and wait by kind."""
    return [readable(Durations, row)[0] for row in (yield Call("ask_durations", {"from_id": from_id, "cap": cap})).rows]


def duplicates(from_id: bytes, cap: int, limit: int) -> Op[list[Duplicates]]:
    """Jobs that share a key, and jobs that were begun again after their node died; the most frequent first."""
    rows = (yield Call("ask_duplicates", {"from_id": from_id, "cap": cap, "page": limit})).rows
    return [readable(Duplicates, (Sameness(sort), *rest))[0] for sort, *rest in rows]


def ran(from_id: bytes, cap: int) -> Op[list[Ran]]:
    """The runs by kind and how they stand."""
    return [readable(Ran, row)[0] for row in (yield Call("ask_ran", {"from_id": from_id, "cap": cap})).rows]


def gates(queue: str) -> Op[list[Gate]]:
    """The queue, and the row that stands for every queue; each only where it was ever used."""
    return [readable(Gate, row)[0] for row in (yield Call("read_gates", {"queue": queue})).rows]
