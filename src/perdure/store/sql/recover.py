"""Promote and rescue: jobs whose time has come, and jobs whose node is gone. Called by every worker's turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from perdure.clock import Micros
from perdure.ids import JobId, NodeId
from perdure.job import transitions
from perdure.job.model import Failure, LiveJob, Transition
from perdure.store.answers import Rescued
from perdure.store.sql import finishes
from perdure.store.sql.apply import apply
from perdure.store.sql.engine import Call, Op, Serialization


def promote(now: Micros, limit: int) -> Op[int]:
    """Queue up to `limit` scheduled jobs that are due. Less than `limit`: there are no more for now."""
    wanted: dict[str, object] = {"now": now, "room": limit}
    return len((yield from _each("due_jobs", wanted, lambda live: transitions.promote(live, now), now)))


def rescue(
    node_id: NodeId,
    failure: Failure,
    max_crashes: int,
    next_ids: Sequence[JobId],
    now: Micros,
    only: JobId | None = None,
) -> Op[list[Rescued]]:
    """Take back up to len(next_ids) jobs of a node that was declared dead. May be repeated by anyone."""
    spare = iter(next_ids)
    wanted: dict[str, object] = {"node_id": node_id, "room": len(next_ids), "job_id": only}
    decided = yield from _each(
        "running_of_node",
        wanted,
        lambda live: transitions.rescue(live, failure, max_crashes, now, next(spare)),
        now,
    )
    return [Rescued(transition.before, finishes.applied(transition)) for transition in decided]


DAMAGED = "a value in this job's row is one that no worker can handle; perdure doctor names it: cancel it, enqueue anew"


def set_aside(now: Micros) -> Op[int]:
    """Park the live jobs that no worker can handle, because somebody else has written into their rows. How many."""
    parked = (yield Call("set_aside_damaged", {"reason": DAMAGED, "now": now})).changed
    if parked:
        yield Call("close_open_runs", {"now": now, "error_type": "Unreadable", "error_message": DAMAGED})
    return parked


def _each(
    statement: str, params: dict[str, object], decide: Callable[[LiveJob], Transition | None], now: Micros
) -> Op[list[Transition]]:
    rows = (yield Call(statement, params)).rows
    decided = [t for t in (decide(LiveJob._make(row)) for row in rows) if t is not None]
    if decided and not (yield from apply(decided, now)):
        raise Serialization("jobs changed between reading and writing them; the operation is tried again")
    return decided
