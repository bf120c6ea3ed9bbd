"""The work list: what is too wide for one transaction, or waits for somebody's lock. Done in portions by `turn`.

Whoever leaves word (`follow.leave`) names what is to be done, about which job or flow, and why; any node does it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perdure.clock import Micros
from perdure.errors import PerdureError
from perdure.ids import FlowId, JobId, to_uuid
from perdure.store.engine import BEGIN_PART, END_PART, UNDO_PART, Call, Op, Tell
from perdure.store.flow import DECISIONS, end_these, locked, look_twice
from perdure.store.follow import PORTION, End, follow, leave, lock_live, release, settle_edges, sources
from perdure.store.protocols import Locked
from perdure.store.rows import FIRST_ID
from perdure.store.statements import groups, whole_group
from perdure.store.whole_flow import change_portion, mark, revive_portion, wait_again

SETTLED_AT_ONCE = 20
"""How many entries of the work list a turn looks at; of the wide ones it does one portion."""
WIDE_TRIED = 4
"""So many of the wide ones are tried, if somebody has locked what the first of them need."""
UNBLOCKED_AT_ONCE = 100
SEVERAL = 2


def rescue_flows(now: Micros) -> Op[int]:
    """Leave word of flows that are complete and have not ended: whoever was to look at them again is gone. Returns how
    many."""
    return (yield Call("look_for_complete", {"now": now})).changed


def settle(now: Micros) -> Op[bool]:
    """Go on with the work list: look at the flows it names, begin with what was decided about flows, let those go on
    that wait for many, and do one portion of what is wide. False: nothing could be done. Entries that need what
    somebody has locked stay: he may take his time.
    """
    looks = (yield Call("next_looks", {"room": SETTLED_AT_ONCE})).rows
    done = (yield from _unless_locked(_unblock_together(now))) is True
    for entry in looks:
        done |= (yield from _unless_locked(_go_on(entry, now))) is True
    done |= yield from begin_decisions(now)
    wide = () if done else (yield Call("next_wide_todo", {"room": WIDE_TRIED})).rows
    for entry in wide:
        went_on = yield from _unless_locked(_go_on(entry, now))
        if went_on is not None:
            return done | went_on
    return done


def begin_decisions(now: Micros) -> Op[bool]:
    """Do the first portion of every decision about a flow that nobody has begun with, and with them those about flows
    inside: claims of this transaction start none of their members. False: there was none, or all are locked."""
    done, found = False, True
    while found:
        found = False
        for entry in (yield Call("next_decisions", {"room": SETTLED_AT_ONCE})).rows:
            found |= (yield from _unless_locked(_go_on(entry, now))) is True
        done |= found
    return done


def _unless_locked(part: Op[bool]) -> Op[bool | None]:
    """None: it needs what somebody has locked, and nothing of it was written."""
    yield BEGIN_PART
    try:
        done = yield from part
        yield Call("begin_writing")  # asks for nothing, but what was told is done when it returns
    except Locked:
        yield UNDO_PART
        yield END_PART
        return None
    yield END_PART
    return done


def _go_on(row: tuple[Any, ...], now: Micros) -> Op[bool]:
    """With one entry. False: it could not be done."""
    what, subject, cause, reached = row
    entry = {"what": what, "subject": subject, "cause": cause}
    came_to = yield from _PARTS[what](subject, what, reached, now)
    if came_to is None:
        yield Tell("delete_todo", entry)
    elif came_to != reached:
        yield Tell("note_todo", {**entry, "reached": came_to})
    return came_to != reached or came_to is None


def _unblock_together(now: Micros) -> Op[bool]:
    """Where many have ended for whose dependents there was no room, decide about these in one go: each may have few.
    Returns whether there were several."""
    rows = (yield Call("next_unblocks", {"room": UNBLOCKED_AT_ONCE})).rows
    if len(rows) < SEVERAL:
        return False
    ends = yield from _ends_that_stay({subject for _, subject, _ in rows})
    if len(ends) < SEVERAL:
        return False
    yield Tell("delete_todo", [row for row in rows if row[1] in ends])
    followed = yield from follow((yield from release(ends, now)).skipped, now)
    yield from leave(((one, "look") for one in sorted(followed.unfinished)), now, rows[0][1])
    return True


def _ends_that_stay(subjects: set[bytes]) -> Op[dict[bytes, End]]:
    """How those of these jobs and flows ended that have. They are locked: nobody lets them live again until the
    transaction ends. Without those that somebody else has locked."""
    free: set[bytes] = set()
    for group in groups(sorted(subjects)):
        free.update(job_id for (job_id,) in (yield Call("lock_these_jobs", whole_group(group))).rows)
    for subject in sorted(subjects - free):
        if (yield Call("lock_flow_if_free", {"id": subject})).rows:
            free.add(subject)
    return {
        subject: End(known.state, known.error_type, is_flow=known.counts is not None)
        for subject, known in (yield from sources(free)).items()
        if known.state is not None
    }


HELD = "locked"
"""How far a look came at a flow that somebody has locked."""


def _look_once(subject: bytes, _: str, __: str | None, now: Micros) -> Op[str | None]:
    held = (yield from end_these([FlowId(subject)], now))[0]
    return HELD if held else None


def _unblock(subject: bytes, _: str, reached: str | None, now: Micros) -> Op[str | None]:
    """The next dependents of what has ended."""
    ends = yield from _ends_that_stay({subject})
    if not ends:
        if (yield from sources([subject]))[subject].state is not None:
            raise Locked(f"{to_uuid(subject)} is locked")
        return None  # it lives again
    after = FIRST_ID if reached is None else bytes.fromhex(reached)
    rows = (yield Call("waiting_edges_from", {"subject": subject, "after": after, "room": PORTION})).rows
    settled = yield from settle_edges(rows, ends, now)
    followed = yield from follow(settled.skipped, now)
    yield from leave(((one, "look") for one in sorted(followed.unfinished)), now, subject)
    return rows[-1][1].hex() if len(rows) == PORTION else None


def _change(subject: bytes, verb: str, reached: str | None, now: Micros) -> Op[str | None]:
    flow = yield from locked(FlowId(subject))
    if isinstance(flow, PerdureError) or flow.finished_at is not None:
        return None
    if reached is None:
        yield from mark(flow, verb, now)
    elif verb == "cancel" and flow.cancel_requested_at is None:
        return None  # retried meanwhile
    came_to = yield from change_portion(flow.id, verb, reached, now)
    if came_to is None:
        yield from look_twice(flow.id, now)
    return came_to


def _retry(subject: bytes, _: str, reached: str | None, now: Micros) -> Op[str | None]:
    flow = yield from locked(FlowId(subject))
    if isinstance(flow, PerdureError) or flow.finished_at is not None:
        return None  # those that were revived first have ended, and the flow with them
    return (yield from revive_portion(flow.id, reached, now, strict=False))[1]


def _revive_more(subject: bytes, _: str, reached: str | None, now: Micros) -> Op[str | None]:
    """The next of those that were skipped because of this one. Where it has ended again, that decides about them."""
    after = FIRST_ID if reached is None else bytes.fromhex(reached)
    yield from lock_live([JobId(subject)])  # its end sees the edges that are opened here, or is seen below
    revived, came_to = yield from wait_again(subject, after, now)
    yield from leave(((job_id, "revive") for job_id in revived), now)
    if (yield from sources([subject]))[subject].state is not None:
        yield from leave([(subject, "unblock")], now)
    return None if came_to is None else came_to.hex()


_PARTS: dict[str, Callable[[bytes, str, str | None, Micros], Op[str | None]]] = {
    "look": _look_once,
    "unblock": _unblock,
    **dict.fromkeys(DECISIONS, _change),
    "retry": _retry,
    "revive": _revive_more,
}
