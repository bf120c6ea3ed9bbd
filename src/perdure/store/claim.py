"""Claiming: jobs become runs. Called by the worker through `store`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from perdure.clock import Micros
from perdure.ids import RunId
from perdure.job import transitions
from perdure.job.model import Claim, LiveJob
from perdure.job.states import Park, Suspicion
from perdure.store.engine import Call, Op, Tell
from perdure.store.rows import Claimed, Claimer, Kinds, Lane
from perdure.store.write import apply, open_runs

ANY_CRASHES = 2**63 - 1
PARKED_AT_ONCE = 1_000
"""Jobs parked in one look at a lane: 0.1 s. A node that finds a million unknown jobs parks them over many turns; in one
transaction everybody else would wait for a minute, and the watchdog would think that the node hangs."""
Row = tuple[Any, ...]
"""A job as it was read: the columns of a LiveJob, then the rest of a Claim. It becomes one when it is claimed."""

_WIDTH = len(LiveJob._fields)
_JOB, _KIND, _VERSION, _RANK, _POSITION, _CRASHES, _ATTEMPTS, _MAX_ATTEMPTS = map(
    LiveJob._fields.index,
    ("job_id", "kind", "kind_version", "rank", "position", "crashes", "attempts", "max_attempts"),
)


def claim(lanes: Sequence[Lane], claimer: Claimer, now: Micros) -> Op[list[Claim]]:
    """See `take`."""
    return (yield from take(lanes, claimer, now)).claims


def take(lanes: Sequence[Lane], claimer: Claimer, now: Micros) -> Op[Claimed]:
    """Take up to `room` jobs per lane, in queue order, and open a run for each.

    Jobs that this node cannot run are parked, and the jobs behind them are taken instead. A queue that is named twice
    is one lane with the room of both.
    """
    found: list[Row] = []
    aside: list[LiveJob] = []
    for lane in _each_queue_once(lanes):
        room = min(lane.room, len(claimer.run_ids) - len(found))
        if room > 0:
            found += yield from _fill(lane._replace(room=room), claimer, now, found, aside)
    claims = [_start(row, run_id, claimer, now) for row, run_id in zip(found, claimer.run_ids, strict=False)]
    if claims:
        yield from open_runs(claims, claimer.node_id, now)
    return Claimed(claims, tuple(aside))


def has_room(lanes: Sequence[Lane], claimer: Claimer | None) -> bool:
    """Whether a claim would look for jobs."""
    return claimer is not None and bool(claimer.run_ids) and any(lane.room > 0 for lane in lanes)


def _each_queue_once(lanes: Sequence[Lane]) -> Sequence[Lane]:
    rooms: dict[str, int] = {}
    for queue, room in lanes:
        rooms[queue] = rooms.get(queue, 0) + max(0, room)
    return lanes if len(rooms) == len(lanes) else [Lane(queue, room) for queue, room in rooms.items()]


def _fill(lane: Lane, claimer: Claimer, now: Micros, before: Sequence[Row], aside: list[LiveJob]) -> Op[list[Row]]:
    """A suspect is taken only if no other job that has crashed runs beside it: else an innocent job could fail with
    the guilty one. Jobs that crashed once go first, all together.

    A job that may not run yet keeps its place, and jobs behind it are taken. Parked jobs are added to `aside`.
    """
    head = (yield from _head(lane, claimer, now, Suspicion.SUSPECT, aside))[: lane.room]
    if not any(row[_CRASHES] for row in head):
        return head
    company = max([claimer.company, *(_suspicion(row, claimer) for row in before)])
    if company is Suspicion.SUSPECT:
        return (yield from _head(lane, claimer, now, Suspicion.NONE, aside))[: lane.room]
    suspects = [row for row in head if _suspicion(row, claimer) is Suspicion.SUSPECT]
    if not suspects:
        return head
    others = (yield from _head(lane, claimer, now, Suspicion.CRASHED, aside))[: lane.room]
    if company or any(row[_CRASHES] for row in others):
        return others
    return sorted([suspects[0], *others], key=_place)[: lane.room]


def _suspicion(row: Row, claimer: Claimer) -> Suspicion:
    return transitions.suspicion(row[_CRASHES], row[_ATTEMPTS] + 1, row[_MAX_ATTEMPTS], claimer.max_crashes)


def _up_to(most: Suspicion, claimer: Claimer) -> dict[str, object]:
    """The same as parameters: how often a job may have crashed, and whether this may be its last run."""
    if most is Suspicion.SUSPECT:
        return {"most_crashes": ANY_CRASHES, "last_attempts": 1}
    at_large = min(transitions.CRASHES_AT_LARGE, claimer.max_crashes - 2) if most else 0
    return {"most_crashes": at_large, "last_attempts": 0}


def _head(lane: Lane, claimer: Claimer, now: Micros, most: Suspicion, aside: list[LiveJob]) -> Op[list[Row]]:
    """The jobs of a lane that this node can run, in order: at least as many as there is room for, if there are.

    Fewer if very many had to be parked: the jobs behind them are found next time.
    """
    more = _up_to(most, claimer)
    first_aside = yield Tell("next_parked_kind", {"queue": lane.queue, "kind": "", "kind_version": 0})
    queued = yield from _queued(lane, claimer, now, more, aside)
    parked = yield from _parked(lane, claimer, more, first_aside.rows)
    return sorted([*parked, *queued], key=_place) if parked else queued


def _queued(
    lane: Lane, claimer: Claimer, now: Micros, more: Mapping[str, object], aside: list[LiveJob]
) -> Op[list[Row]]:
    """Queued jobs that this node can run; others are parked."""
    count = 0
    while True:
        queued = yield from _read("claim_head", lane, claimer, more)
        kinds = claimer.kinds
        strangers = [] if kinds is None else [row for row in queued if kinds.get(row[_KIND], 0) < row[_VERSION]]
        if not strangers:
            return queued
        aside += yield from _park(strangers, cast("Kinds", kinds), now)
        count += len(strangers)
        if count >= PARKED_AT_ONCE:
            return [row for row in queued if row not in strangers]


def _parked(lane: Lane, claimer: Claimer, more: Mapping[str, object], first: Sequence[Row]) -> Op[list[Row]]:
    """Jobs another node set aside that this one can run. `first` is the first kind of them."""
    found: list[Row] = []
    rows = first
    while rows:
        name, version = cast("tuple[str, int]", rows[0])
        of_kind = {"kind": name, "kind_version": version}
        if claimer.kinds is None or claimer.kinds.get(name, 0) >= version:
            found += yield from _read("claim_parked", lane, claimer, {**more, **of_kind})
        rows = (yield Call("next_parked_kind", {"queue": lane.queue, **of_kind})).rows
    return found


def knows_a_parked_kind(queue: str, kinds: Kinds | None) -> Op[bool]:
    """Whether a job that another node set aside could be claimed by a node with these kinds."""
    name, version = "", 0
    while True:
        rows = (yield Call("next_parked_kind", {"queue": queue, "kind": name, "kind_version": version})).rows
        if not rows:
            return False
        name, version = rows[0]
        if kinds is None or kinds.get(name, 0) >= version:
            return True


def _read(name: str, lane: Lane, claimer: Claimer, more: Mapping[str, object]) -> Op[list[Row]]:
    params = {"queue": lane.queue, "room": lane.room, "node_id": claimer.node_id, **more}
    return (yield Call(name, params)).rows


def _park(strangers: Sequence[Row], kinds: Kinds, now: Micros) -> Op[list[LiveJob]]:
    lives = [LiveJob._make(row[:_WIDTH]) for row in strangers]
    parked = [
        transitions.park(live, Park.NEWER_VERSION if live.kind in kinds else Park.UNKNOWN_KIND, now) for live in lives
    ]
    yield from apply(parked, now)
    return [transition.after or transition.before for transition in parked]


def _place(row: Row) -> tuple[int, int, bytes]:
    return row[_RANK], row[_POSITION], row[_JOB]


def _start(row: Row, run_id: RunId, claimer: Claimer, now: Micros) -> Claim:
    return Claim(transitions.claim(row, run_id, claimer.node_id, now, claimer.lease_us), *row[_WIDTH:])
