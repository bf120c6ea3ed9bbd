"""Claiming: jobs become runs. Called by the worker through `store`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import cast

from perdure.clock import Micros
from perdure.ids import RunId
from perdure.job import transitions
from perdure.job.model import QUEUED, Claim, LiveJob
from perdure.job.states import Park, State, Suspicion
from perdure.store.engine import Call, Op, Tell
from perdure.store.follow import apply
from perdure.store.limit import Found, Keys, Rooms, Row, admit, keep_moving, place
from perdure.store.rows import Claimed, Claimer, Kinds, Lane
from perdure.store.write import open_runs, ring

ANY_CRASHES = 2**63 - 1
PARKED_AT_ONCE = 1_000
"""Jobs parked in one look at a lane: 0.1 s. A node that finds a million unknown jobs parks them over many turns; in one
transaction everybody else would wait for a minute, and the watchdog would think that the node hangs."""
LINED_UP_AT_ONCE = 1_000
"""Jobs put in line by one claim, for the same reason."""
Reads = Callable[[Lane, Claimer, Mapping[str, object]], Op[list[Row]]]
"""Reads the front of a lane."""

_WIDTH = len(LiveJob._fields)
_FIRST_KNOWN = LiveJob._fields.index("queue")
_KNOWN = tuple(QUEUED.values())
_KNOWN_AWAKE = tuple({**QUEUED, "state": State.HELD.value}.values())
_KIND, _VERSION, _CRASHES, _ATTEMPTS, _MAX_ATTEMPTS, _LIMIT = map(
    LiveJob._fields.index, ("kind", "kind_version", "crashes", "attempts", "max_attempts", "limit_key")
)


def claim(lanes: Sequence[Lane], claimer: Claimer, now: Micros) -> Op[list[Claim]]:
    """See `take`."""
    return (yield from take(lanes, claimer, now)).claims


def take(
    lanes: Sequence[Lane], claimer: Claimer, now: Micros, keys: Keys | None = None, looks: Collection[str] = ()
) -> Op[Claimed]:
    """Take up to `room` jobs per lane, in queue order, and open a run for each.

    Jobs that this node cannot run are parked, those whose limits are full are put in line, and the jobs behind them are
    taken instead. A queue that is named twice is one lane with the room of both. `keys`: those that the transaction has
    locked already; `looks`: those that have become free in it, which are seen to if they can be locked.
    """
    lanes = _each_queue_once(lanes)
    claims: list[Claim] = []
    before: list[Row] = []
    aside: list[LiveJob] = []
    rooms, keys = Rooms(), keys or Keys(now)
    touched: set[str] = set()
    lined_up = 0
    while True:
        found = yield from _find(lanes, claimer, now, before, aside, rooms)
        chosen, more = [lane.rows for lane in found], False
        if looks or any(row[_LIMIT] is not None for rows in chosen for row in rows):
            reserved = sum(map(len, chosen))  # what was found has been taken out of the rooms already
            most = min(len(claimer.run_ids) - len(claims), rooms.of_all() + reserved)
            chosen, newly, open_keys = yield from admit(found, looks, keys, most, _reading(claimer), claimer.kinds)
            touched |= open_keys
            lined_up += newly
            has_started = any(chosen)
            more = (newly > 0 or (has_started and bool(open_keys))) and lined_up < LINED_UP_AT_ONCE
            looks = open_keys
        fresh = [row for rows in chosen for row in rows]
        spare = claimer.run_ids[len(claims) : len(claims) + len(fresh)]
        started = [_start(row, run_id, claimer, now) for row, run_id in zip(fresh, spare, strict=False)]
        if started:
            yield from open_runs(started, claimer.node_id, now)
        claims += started
        before += fresh
        lanes = [lane._replace(room=lane.room - len(rows)) for lane, rows in zip(lanes, chosen, strict=True)]
        for (lane, rows), those in zip(found, chosen, strict=True):
            rooms.take(lane.queue, len(those) - len(rows))
        if not more or not has_room(lanes, claimer) or len(claims) == len(claimer.run_ids):
            break
    if touched:
        yield from keep_moving(touched, keys)
    if rooms.limited and not has_room(lanes, claimer._replace(run_ids=claimer.run_ids[len(claims) :])):
        yield from ring(rooms.left_in([lane.queue for lane in lanes]))  # others may take more
    return Claimed(claims, tuple(aside))


def _find(
    lanes: Sequence[Lane], claimer: Claimer, now: Micros, before: Sequence[Row], aside: list[LiveJob], rooms: Rooms
) -> Op[list[Found]]:
    """The jobs in front of the claim, lane by lane: no more than there is room for."""
    found: list[Found] = []
    rows = list(before)
    for lane in lanes:
        room = min(lane.room, len(claimer.run_ids) - len(rows))
        here: list[Row] = []
        if room > 0:
            here = yield from _fill(lane._replace(room=room), claimer, now, rows, aside, rooms)
            room = min(room, (yield from rooms.of(lane.queue)))
            here = here[:room]
            rooms.take(lane.queue, len(here))
        found.append(Found(lane._replace(room=max(0, room)), here))
        rows += here
    return found


def has_room(lanes: Sequence[Lane], claimer: Claimer | None) -> bool:
    """Whether a claim would look for jobs."""
    return claimer is not None and bool(claimer.run_ids) and any(lane.room > 0 for lane in lanes)


def _each_queue_once(lanes: Sequence[Lane]) -> Sequence[Lane]:
    rooms: dict[str, int] = {}
    for queue, room in lanes:
        rooms[queue] = rooms.get(queue, 0) + max(0, room)
    return lanes if len(rooms) == len(lanes) else [Lane(queue, room) for queue, room in rooms.items()]


def _fill(
    lane: Lane, claimer: Claimer, now: Micros, before: Sequence[Row], aside: list[LiveJob], rooms: Rooms
) -> Op[list[Row]]:
    """A suspect is taken only if no other job that has crashed runs beside it: else an innocent job could fail with
    the guilty one. Jobs that crashed once go first, all together.

    A job that may not run yet keeps its place, and jobs behind it are taken. Parked jobs are added to `aside`.
    """
    head = (yield from _head(lane, claimer, now, Suspicion.SUSPECT, aside, rooms))[: lane.room]
    if not any(row[_CRASHES] for row in head):
        return head
    company = max([claimer.company, *(_suspicion(row, claimer) for row in before)])
    if company is Suspicion.SUSPECT:
        return (yield from _head(lane, claimer, now, Suspicion.NONE, aside, rooms))[: lane.room]
    suspects = [row for row in head if _suspicion(row, claimer) is Suspicion.SUSPECT]
    if not suspects:
        return head
    others = (yield from _head(lane, claimer, now, Suspicion.CRASHED, aside, rooms))[: lane.room]
    if company or any(row[_CRASHES] for row in others):
        return others
    return sorted([suspects[0], *others], key=place)[: lane.room]


def _suspicion(row: Row, claimer: Claimer) -> Suspicion:
    return transitions.suspicion(row[_CRASHES], row[_ATTEMPTS] + 1, row[_MAX_ATTEMPTS], claimer.max_crashes)


def _up_to(most: Suspicion, claimer: Claimer) -> dict[str, object]:
    """The same as parameters: how often a job may have crashed, and whether this may be its last run."""
    if most is Suspicion.SUSPECT:
        return {"most_crashes": ANY_CRASHES, "last_attempts": 1}
    at_large = min(transitions.CRASHES_AT_LARGE, claimer.max_crashes - 2) if most else 0
    return {"most_crashes": at_large, "last_attempts": 0}


def _head(
    lane: Lane, claimer: Claimer, now: Micros, most: Suspicion, aside: list[LiveJob], rooms: Rooms
) -> Op[list[Row]]:
    """The jobs of a lane that this node can run, in order: at least as many as there is room for, if there are.

    Fewer if very many had to be parked: the jobs behind them are found next time.
    """
    more = _up_to(most, claimer)
    besides = yield Tell("aside_of_lane", {"queue": lane.queue})
    queued = yield from _able(_queued, lane, claimer, now, more, aside)
    if not besides.rows:
        return queued
    sorts = {sort: (name, number) for sort, name, number in besides.rows}
    rooms.limited |= "at_most" in sorts
    if "awake" in sorts:
        queued = [*queued, *(yield from _able(_awake, lane, claimer, now, more, aside))]
    if "parked" in sorts:
        queued = [*queued, *(yield from _parked(lane, claimer, more, [sorts["parked"]]))]
    return sorted(queued, key=place)


def _able(
    read: Reads, lane: Lane, claimer: Claimer, now: Micros, more: Mapping[str, object], aside: list[LiveJob]
) -> Op[list[Row]]:
    """Jobs that wait for nothing but a claim, or for a permit, and that this node can run; others are parked."""
    count = 0
    while True:
        queued = yield from read(lane, claimer, more)
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


def _reading(claimer: Claimer) -> dict[str, object]:
    """What reading a line needs to know besides the lane: all that stand in it."""
    return {"node_id": claimer.node_id, **_up_to(Suspicion.SUSPECT, claimer)}


def _queued(lane: Lane, claimer: Claimer, more: Mapping[str, object]) -> Op[list[Row]]:
    rows = yield from _read("claim_head", lane, claimer, more)
    return _whole(rows, (lane.queue, *_KNOWN))


def _awake(lane: Lane, claimer: Claimer, more: Mapping[str, object]) -> Op[list[Row]]:
    rows = yield from _read("claim_awake", lane, claimer, more)
    return _whole(rows, (lane.queue, *_KNOWN_AWAKE))


def _whole(rows: Sequence[Row], known: Row) -> list[Row]:
    """These rows with what is the same in all of them."""
    return [(*row[:_FIRST_KNOWN], *known, *row[_FIRST_KNOWN:]) for row in rows]


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


def _start(row: Row, run_id: RunId, claimer: Claimer, now: Micros) -> Claim:
    return Claim(transitions.claim(row, run_id, claimer.node_id, now, claimer.lease_us), *row[_WIDTH:])
