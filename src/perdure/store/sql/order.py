"""Moving jobs inside their queue. Called by `app` through `store`; the arithmetic is in `job/ordering`."""

from __future__ import annotations

from typing import cast

from perdure.clock import Micros
from perdure.errors import PerdureError, Remedy, TransitionRefused
from perdure.ids import JobId, to_uuid
from perdure.job import transitions
from perdure.job.job import Job
from perdure.job.model import LiveJob
from perdure.job.ordering import GAP, RESPACE, between
from perdure.job.states import Verb
from perdure.store.answers import Place, not_found
from perdure.store.sql.apply import look_at_live, read_live
from perdure.store.sql.control import change, expect, seen
from perdure.store.sql.engine import Call, Op, Serialization
from perdure.store.sql.jobs import take_place


def set_priority(job_id: JobId, rank: int, now: Micros, expect_version: int | None) -> Op[Job | PerdureError]:
    """Give a waiting job another priority; it goes to the back of it. The same priority again changes nothing."""
    live = yield from read_live(job_id)
    if live is None or live.rank == rank:
        return (yield from change(job_id, Verb.SET_PRIORITY, lambda _live, _now: None, now, expect_version))
    refused = _refusal(live, Verb.SET_PRIORITY, expect_version)
    if refused is not None:
        return refused
    position = yield from take_place(live.queue)
    return (
        yield from change(
            job_id,
            Verb.SET_PRIORITY,
            lambda row, at: transitions.place(row, rank, position, at, Verb.SET_PRIORITY),
            now,
            expect_version,
        )
    )


def move(job_id: JobId, to: Place, now: Micros, expect_version: int | None) -> Op[Job | PerdureError]:
    """Give a waiting job another place within its priority; where the gap is spent, at most 64 neighbours shift."""
    live = yield from _alone_in_lane(job_id)
    if live is None:
        return (yield from change(job_id, Verb.MOVE, lambda _live, _now: None, now))
    refused = _refusal(live, Verb.MOVE, expect_version)
    if refused is not None:
        return refused
    position = yield from _position(live, to, now)
    if isinstance(position, PerdureError):
        return position
    if position is None:
        return (yield from seen(job_id))
    return (
        yield from change(
            job_id, Verb.MOVE, lambda row, at: transitions.place(row, row.rank, position, at), now, expect_version
        )
    )


def _alone_in_lane(job_id: JobId) -> Op[LiveJob | None]:
    """The live row, locked, while nobody else moves jobs of its queue: a place between two jobs is one only as long as
    these stay where they are. The queue first: whoever has it may need our row."""
    seen_in = yield from look_at_live(job_id)
    if seen_in is not None:
        yield Call("lock_order", {"queue": seen_in.queue})
    live = yield from read_live(job_id)
    if live is not None and seen_in is not None and live.queue != seen_in.queue:
        raise Serialization("the job went to another queue while it was to be moved; the move is tried again")
    return live


def _refusal(live: LiveJob, verb: Verb, expect_version: int | None) -> TransitionRefused | None:
    """Asked before any place is taken or made, so that a refusal leaves nothing behind."""
    try:
        expect(live, expect_version)
        transitions.require(verb, live)
    except TransitionRefused as refused:
        return refused
    return None


def _position(live: LiveJob, to: Place, now: Micros) -> Op[int | PerdureError | None]:
    target_id = to.before or to.after
    if target_id == live.job_id:
        return None
    if target_id is not None:
        target = yield from _target(live, target_id)
        if isinstance(target, PerdureError):
            return target
        return (yield from _beside(live, target, now, in_front=to.before is not None))
    if to.front:
        lane = {"queue": live.queue, "rank": live.rank, "job_id": live.job_id}
        first = cast("int | None", (yield Call("first_in_rank", lane)).rows[0][0])
        return live.position if first is None or live.position < first else first - GAP
    return (yield from take_place(live.queue))


def _target(live: LiveJob, target_id: JobId) -> Op[LiveJob | PerdureError]:
    target = yield from look_at_live(target_id)
    if target is None:
        ended = yield from seen(target_id)
        return not_found(target_id) if isinstance(ended, PerdureError) else _unfit(target_id, "it has ended")
    if not transitions.is_waiting(target):
        return _unfit(target_id, f"it is {target.state}")
    if target.queue != live.queue:
        return _unfit(target_id, f"it waits in queue {target.queue!r}, and this one in {live.queue!r}")
    if target.rank != live.rank:
        same = "gives both the same"
        remedy = Remedy(f"set_priority {same}", f"perdure priority {same}")
        return _unfit(target_id, "they have different priorities", remedy)
    return target


def _unfit(target_id: JobId, why: str, remedy: Remedy | None = None) -> TransitionRefused:
    return TransitionRefused(f"cannot move next to job {to_uuid(target_id)}: {why}", code="move_refused", remedy=remedy)


def _beside(live: LiveJob, target: LiveJob, now: Micros, *, in_front: bool) -> Op[int | PerdureError]:
    statement = "neighbours_before" if in_front else "neighbours_after"
    lane = {
        "queue": live.queue,
        "rank": live.rank,
        "job_id": live.job_id,
        "position": target.position,
        "other": target.job_id,
        "room": RESPACE + 1,
    }
    rows = (yield Call(statement, lane)).rows
    nearest = cast("int", rows[0][1]) if rows else None
    if nearest is None and not in_front:
        return (yield from take_place(live.queue))
    free = between(nearest, target.position) if in_front else between(target.position, nearest)
    if free is not None:
        return free
    made = yield from _respace(target.position, rows, now, in_front=in_front)
    if isinstance(made, int) and not in_front:
        pushed = made + GAP * (len(rows) + 1)  # at most: the next job enqueued must not overtake those that shifted
        yield Call("keep_counter_ahead", {"queue": live.queue, "position": pushed})
    return made


def _respace(edge: int, rows: list[tuple[object, ...]], now: Micros, *, in_front: bool) -> Op[int | PerdureError]:
    """Spread the neighbours on one side of the spent gap over the room up to the first that stays where it is."""
    sign = -1 if in_front else 1
    neighbours = cast("list[tuple[JobId, int, int]]", rows[:RESPACE])
    step = GAP
    if len(rows) > RESPACE:
        step = abs(cast("int", rows[RESPACE][1]) - edge) // (RESPACE + 2)
    if step < 1:
        return TransitionRefused(
            f"cannot move there: {RESPACE} jobs stand too close together; move the job to the front or the back",
            code="gap_spent",
        )
    places = [
        (edge + sign * step * (nth + 2), now, job_id, version) for nth, (job_id, _, version) in enumerate(neighbours)
    ]
    if (yield Call("respace", places)).changed != len(places):
        raise Serialization("the neighbours changed while a place was made between them; the move is tried again")
    return edge + sign * step
