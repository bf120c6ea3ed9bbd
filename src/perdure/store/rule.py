"""What limits mean: declared by code, set and paused by hand, shown. Called through `store`; waiting jobs learn of a
change by a row of `limit_look`, which the turns of workers settle in portions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable

from perdure.clock import Micros
from perdure.job.model import LiveJob
from perdure.limit.key import bounds_of
from perdure.limit.room import Room, Sort
from perdure.store.engine import Call, Op, Tell
from perdure.store.limit import Keys
from perdure.store.rows import LINE_COUNTED, KeyState, LimitRule, LimitState
from perdure.store.write import ring

KEYS_SHOWN = 100
HOLDERS_SHOWN = 10


def declare_limits(rules: Iterable[LimitRule], sources: Collection[str], now: Micros) -> Op[int]:
    """Make these the limits of these sources (names of kinds): the newest code wins.

    A limit that none of its sources declares any more is gone, unless a number was set by hand: its line is let go.
    Returns how many limits have changed.
    """
    wanted = {rule.name: rule for rule in rules}
    known = {state.name: state for state in (yield from limits())}
    mine = set(sources)
    changed = 0
    for name in sorted({*wanted, *(name for name, state in known.items() if mine & set(_sources(state)))}):
        if name not in known:
            yield Tell("make_rule", {"name": name, "sort": Sort.AT_ONCE.value, "declared_by": "[]"})
        rows = (yield Call("read_rule", {"name": name})).rows
        if rows:
            changed += yield from _declare_one(LimitState._make(rows[0]), wanted.get(name), mine, now)
    return changed


def _declare_one(state: LimitState, rule: LimitRule | None, mine: set[str], now: Micros) -> Op[bool]:
    others = set(_sources(state)) - mine
    if rule is None and not others and state.set_most is None and state.paused_at is None:
        yield Call("drop_rule", {"name": state.name})
        yield from _look_at_all(state.name)
        return True
    declared = rule or LimitRule(state.name, state.sort, 0, state.per_us, state.burst)
    most = rule.most if rule is not None else (state.most if others else None)
    users: set[str] = set() if rule is None else set(rule.kinds) or mine
    now_by = json.dumps(sorted(others | users), ensure_ascii=False)
    if (declared.sort, most, declared.per_us, declared.burst, now_by) == (*state[1:5], state.declared_by):
        return False
    row = {"sort": declared.sort, "most": most, "per_us": declared.per_us, "burst": declared.burst}
    yield Call("declare_rule", {**row, "declared_by": now_by, "now": now, "name": state.name})
    if (declared.sort, most, declared.per_us, declared.burst) != state[1:5]:
        yield from _look_at_all(state.name)
        return True
    return False


def _sources(state: LimitState) -> list[str]:
    return list(json.loads(state.declared_by))


def set_limit(name: str, most: int, key: str | None, now: Micros) -> Op[None]:
    """By hand, for all keys of a limit or for one of them: at once, and for jobs that wait already."""
    yield from _by_hand(name, key, {"set_most": most, "set_at": now})


def reset_limit(name: str, key: str | None) -> Op[None]:
    """Back to what the code declares. A limit that no code declares is gone."""
    yield from _by_hand(name, key, {"set_most": None, "set_at": None})
    if key is None:
        rows = (yield Call("read_rule", {"name": name})).rows
        state = LimitState._make(rows[0])
        if state.most is None and state.paused_at is None:
            yield Call("drop_rule", {"name": name})


def pause_limit(name: str, key: str | None, paused_at: Micros | None) -> Op[None]:
    """Nothing of this limit, or of one key of it, starts until it is resumed (None); what runs continues."""
    yield from _by_hand(name, key, {"paused_at": paused_at})


def _by_hand(name: str, key: str | None, changes: dict[str, object]) -> Op[None]:
    if key is None:
        yield Tell("make_rule", {"name": name, "sort": Sort.AT_ONCE.value, "declared_by": "[]"})
        state = LimitState._make((yield Call("read_rule", {"name": name})).rows[0])
        row: dict[str, object] = {"set_most": state.set_most, "set_at": None, "paused_at": state.paused_at}
        yield Call("set_rule", {**row, **changes, "name": name})
        yield from _look_at_all(name)
        return
    yield Tell("make_key", {"key": key})
    _, *known = (yield Call("read_key", {"key": key})).rows[0]
    row = dict(zip(("set_most", "set_at", "paused_at"), known, strict=True))
    yield Call("set_key", {**row, **changes, "key": key})
    yield Tell("insert_look", {"look_id": _mark(key), "key": key, "whole": 0, "after": ""})
    yield from ring(["*"])


def _look_at_all(name: str) -> Op[None]:
    """From the start, also if somebody is in the middle of it."""
    look = {"look_id": _mark(name), "key": name}
    yield Call("drop_look", look)
    yield Tell("insert_look", {**look, "whole": 1, "after": ""})
    yield from ring(["*"])


def _mark(of: str) -> bytes:
    return hashlib.sha256(of.encode()).digest()[:16]


def limit_queue(queue: str, concurrency: int | None) -> Op[bool]:
    """How many jobs of a queue (`*`: of all queues) may run at once, over all workers. False: nothing changed."""
    yield Call("ensure_queue", {"queue": queue})
    if (yield Call("read_queue", {"queue": queue})).rows[0][2] == concurrency:
        return False
    yield Call("set_queue_limit", {"queue": queue, "concurrency": concurrency})
    yield from ring([queue])
    return True


# -- looking ---------------------------------------------------------------------------------------------------------


def limits() -> Op[list[LimitState]]:
    """Every limit that is declared or set, by name."""
    return [LimitState._make(row) for row in (yield Call("list_rules")).rows]


def limit_keys(name: str, now: Micros) -> Op[list[KeyState]]:
    """The keys of a limit that are in use, have a line, or were set by hand: the first 100 of each."""
    after, end = bounds_of(name)
    bounds = {"after": after, "end": end, "room": KEYS_SHOWN}
    found: set[str] = {name}
    for statement in ("keys_in_use", "keys_noted"):
        found.update(key for (key,) in (yield Call(statement, {"name": name, **bounds})).rows)
    found.update(key for (key,) in (yield Call("lines_of_limit", bounds)).rows)
    states: list[KeyState] = []
    for room in (yield from _rooms(found, now)).values():
        state = yield from _shown(room)
        if state.in_use or state.in_line or room.row.set_most is not None or room.row.paused_at is not None:
            states.append(state)
    return sorted(states)


def _rooms(of: Collection[str], now: Micros) -> Op[dict[str, Room]]:
    """Of keys that nobody locks: only to be shown."""
    keys = Keys(now)
    keys.locked = set(of)
    return (yield from keys.rooms(of))


def key_state(key: str, now: Micros) -> Op[KeyState]:
    """One key as it stands."""
    return (yield from _shown((yield from _rooms([key], now))[key]))


def line_ahead(live: LiveJob) -> Op[int]:
    """How many stand in line before this job; counted up to 1,000."""
    place = {"rank": live.rank, "position": live.position, "job_id": live.job_id, "cap": LINE_COUNTED}
    ((count,),) = (yield Call("count_line_ahead", {"key": live.held_by, "queue": live.queue, **place})).rows
    return int(count)


def _shown(room: Room) -> Op[KeyState]:
    row = room.row
    holders = (yield Call("holders_of_key", {"key": row.key, "room": HOLDERS_SHOWN})).rows
    ((blocks,),) = (yield Call("count_blocks_of_key", {"key": row.key, "now": room.now})).rows
    ((in_line,),) = (yield Call("count_line", {"key": row.key, "cap": LINE_COUNTED})).rows
    paused_at = row.paused_at if row.paused_at is not None else room.rule.paused_at
    ids = tuple(holder for (holder,) in holders)
    counts = (room.in_use, int(in_line))
    return KeyState(row.key, room.most, row.set_most, paused_at, _opens_at(room), *counts, ids, int(blocks))


def _opens_at(room: Room) -> Micros | None:
    """Of a rate: within a window from now, even if it says otherwise: workers put right what was written before the
    clock was set back."""
    if not room.is_rate or room.row.opens_at is None:
        return None
    return min(room.row.opens_at, Micros(room.now + room.per_us))
