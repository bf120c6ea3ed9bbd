"""Limits and rates: permits of running jobs, and the lines of jobs that found a key full. Called by `claim` (who
starts) and `turn` (whom to look at again); the rules and decisions are in `limit/`; who leaves is in `permit`.

What keeps lines moving: **for every key and queue, if the first of the line would fit, some job of that key in that
queue is awake** (held, in no line), or a row of `limit_look` says that somebody has to look, or the key opens by the
clock. It holds at every commit. Whoever decides "full", or wakes, has locked the key, and read it in a later statement.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import takewhile
from operator import itemgetter
from typing import Any, NamedTuple, cast

from perdure.clock import Micros
from perdure.job.model import LiveJob
from perdure.limit.key import bounds_of, keys_of, name_of, needs_of, shown
from perdure.limit.room import NO_RULE, PLENTY, Candidate, KeyRow, Room, RuleRow, Sort, decide
from perdure.store.engine import RELEASE, ROLLBACK_TO, SAVEPOINT, Blob, Call, Op, Tell
from perdure.store.protocols import Locked
from perdure.store.rows import HOLD_LEASE_US, Kinds, Lane
from perdure.store.write import stand_in_line, wake

LOOKED_AT_ONCE = 500
"""Keys looked at in one turn, when a limit has changed that many jobs wait for."""
READ_ONE_BY_ONE = 4
"""Up to so many lines are read one by one, each as far as there is room; more of them together, the first of each."""

Row = tuple[Any, ...]
"""A job as a claim has read it: the columns of a LiveJob, then the rest of a Claim. It becomes one when claimed."""

_JOB, _RANK, _POSITION, _LIMIT, _HELD_BY, _VERSION, _CRASHES, _KIND, _KIND_VERSION = map(
    LiveJob._fields.index,
    ("job_id", "rank", "position", "limit_key", "held_by", "version", "crashes", "kind", "kind_version"),
)

place: Callable[[Row], tuple[int, int, bytes]] = itemgetter(_RANK, _POSITION, _JOB)
"""Where a job stands in its queue."""


# -- keys ------------------------------------------------------------------------------------------------------------


class Keys:
    """The keys that a transaction has locked, and what it knows of them."""

    def __init__(self, now: Micros) -> None:
        self.now = now
        self.locked: set[str] = set()
        self._rules: dict[str, RuleRow] = {}
        self._asked: set[str] = set()

    def lock(self, wanted: Collection[str]) -> Op[None]:
        """Lock these, in order. With some locked already, only those that are free: two turns must not wait for each
        other. None of them where somebody holds one for longer than we wait: others go on without them."""
        missing: list[str] = sorted(set(wanted) - self.locked)
        if not missing:
            return
        if self.locked:
            self.locked |= _locked((yield Call("try_keys", {"keys": listed(missing)})).rows, missing)
            yield from self._make([key for key in missing if key not in self.locked])
            return
        yield SAVEPOINT
        try:
            locked: set[str] = set()
            while missing:
                locked |= _locked((yield Call("lock_keys", {"keys": listed(missing)})).rows, missing)
                missing = [key for key in missing if key not in locked]
        except Locked:
            yield ROLLBACK_TO
        else:
            self.locked = locked
        yield RELEASE

    def _make(self, missing: Sequence[str]) -> Op[None]:
        """Those of these keys that have no row are free too, unless somebody is just making one."""
        if not missing:
            return
        yield SAVEPOINT
        try:
            made = yield Call("make_keys", {"keys": listed(missing)})
        except Locked:
            yield ROLLBACK_TO
        else:
            if made.changed:
                self.locked |= _locked((yield Call("try_keys", {"keys": listed(missing)})).rows, missing)
        yield RELEASE

    def rooms(self, of: Iterable[str]) -> Op[dict[str, Room]]:
        """What is free of those of these keys that are locked."""
        keys = sorted(set(of) & self.locked)
        if not keys:
            return {}
        names = {key: name_of(key) for key in keys}
        yield from self._learn(set(names.values()))
        rooms: dict[str, Room] = {}
        for row in (yield Call("read_keys", {"keys": listed(keys), "now": self.now})).rows:
            rule = self._rules.get(names[row[0]], NO_RULE)
            started = None
            if rule.sort == Sort.SLIDING and rule.per_us is not None:
                window = {"since": self.now - rule.per_us, "until": self.now + rule.per_us}
                ((started,),) = (yield Call("count_starts", {"key": row[0], **window})).rows
            rooms[row[0]] = Room(rule, KeyRow._make((*row, started)), self.now)
        return rooms

    def _learn(self, names: set[str]) -> Op[None]:
        """What these limits mean, asked once in a transaction."""
        unknown = names - self._asked
        if unknown:
            self._asked |= unknown
            rows = (yield Call("read_rules", {"keys": listed(sorted(unknown))})).rows
            self._rules |= {row[0]: RuleRow._make(row) for row in rows}

    def certain(self, lined_up: list[tuple[Row, str]]) -> Op[list[tuple[Row, str]]]:
        """Those of these jobs, which found a key full, whose limits mean what they meant, and do so until the
        transaction ends: whoever changes a limit looks at all its lines afterwards, and must see them all."""
        names = {name_of(key) for _, key in lined_up}
        if not names:
            return lined_up
        rows = (yield Call("share_rules", {"keys": listed(sorted(names))})).rows
        now_true = {row[0]: RuleRow._make(row) for row in rows}
        return [(row, key) for row, key in lined_up if now_true.get(name_of(key)) == self._rules.get(name_of(key))]


def _locked(rows: Sequence[tuple[str]], wanted: Iterable[str]) -> set[str]:
    return set(wanted) if rows == [("*",)] else {key for (key,) in rows}


listed = json.dumps
"""Keys, or lines as pairs of a key and a queue, as a parameter."""


# -- who starts ------------------------------------------------------------------------------------------------------


class Found(NamedTuple):
    """The jobs in front of a claim in one lane, in order; the lane's room is what the claim may take of it."""

    lane: Lane
    rows: list[Row]


class Admitted(NamedTuple):
    """Who starts, lane by lane; how many were put in line; and the keys that still have room and a line."""

    rows: list[list[Row]]
    lined_up: int
    open: set[str]


def admit(
    found: Sequence[Found],
    looks: Collection[str],
    keys: Keys,
    most: int,
    reading: Mapping[str, object],
    kinds: Kinds | None,
) -> Op[Admitted]:
    """Give permits to those that may start, `most` at most, and put the others in line. All permits of a job or none.

    `looks`: keys that have become free, whose lines are to be looked at. `reading`: the parameters of a claim's reads.
    `kinds`: those that the node can run; None: all.
    """
    wanted = {key for lane in found for row in lane.rows for key in keys_of(row[_LIMIT])}
    yield from keys.lock(wanted.union(looks))
    if looks:
        wanted.update(key for (key,) in (yield Call("keys_in_line", {"keys": listed(list(looks))})).rows)
    rooms = yield from keys.rooms(wanted)
    chosen: list[list[Row]] = []
    lined_up: list[tuple[Row, str]] = []
    for lane in found:
        heads, seen = yield from _heads(lane, rooms, keys, reading, kinds)
        rows = [*lane.rows, *(head for head in heads if _is_reached(head, lane))]
        start, wait = _choose(rows, min(most, lane.lane.room), rooms, seen)
        most -= len(start)
        chosen.append(start)
        lined_up += [(row, key) for row, key in wait if row[_HELD_BY] != key]
    lined_up = yield from keys.certain(lined_up)
    yield from _drop_expired(rooms.values(), keys.now)
    yield from _write(chosen, lined_up, rooms, keys.now)
    grown = {key for _, key in lined_up}
    has_more = {key for key, room in rooms.items() if room.left > 0 and (room.row.first_queue or key in grown)}
    return Admitted(chosen, len(lined_up), has_more)


def _choose(
    rows: list[Row], most: int, rooms: Mapping[str, Room], seen: Mapping[str, tuple[int, int, bytes]]
) -> tuple[list[Row], list[tuple[Row, str]]]:
    """Rows whose keys somebody else has locked are left as they are."""
    ready = sorted([row for row in rows if all(map(rooms.__contains__, keys_of(row[_LIMIT])))], key=place)
    candidates = [Candidate(place(row), needs_of(row[_LIMIT]), row[_HELD_BY]) for row in ready]
    start, wait = decide(candidates, rooms, most, seen)
    return [ready[number] for number in start], [(ready[number], key) for number, key in wait.items()]


def _heads(
    lane: Found, rooms: dict[str, Room], keys: Keys, reading: Mapping[str, object], kinds: Kinds | None
) -> Op[tuple[list[Row], dict[str, tuple[int, int, bytes]]]]:
    """Who stands first in this lane's lines of keys that have room; and up to where each line that goes on was read.

    Not those that have crashed or that this node cannot run, nor anybody behind them: they are woken, so that the next
    claim sees who would run beside them, or sets them aside."""
    is_sound = partial(_is_sound, kinds)
    queue, room = lane.lane
    lines = [key for key, state in rooms.items() if state.left > 0 and _has_line(state, queue)]
    if not lines or room <= 0:
        return [], {}
    rows: list[Row] = []
    seen: dict[str, tuple[int, int, bytes]] = {}
    read = {**reading, "queue": queue}
    if len(lines) <= READ_ONE_BY_ONE:
        for key in lines:
            count = min(room, rooms[key].left)
            line = (yield Call("claim_line", {**read, "key": key, "room": count})).rows
            sound = list(takewhile(is_sound, line))
            rows += sound
            if len(line) == count or len(sound) < len(line):
                seen[key] = place(line[min(len(sound), len(line) - 1)])
    else:
        for start in range(0, len(lines), LOOKED_AT_ONCE):
            part = [(key, queue) for key in lines[start : start + LOOKED_AT_ONCE]]
            rows += (yield Call("claim_line_heads", {**read, "lines": listed(part)})).rows
        seen = {row[_HELD_BY]: place(row) for row in rows}
        rows = list(filter(is_sound, rows))
    others = {key for row in rows for key in keys_of(row[_LIMIT])} - rooms.keys()
    if others:
        yield from keys.lock(others)
        rooms.update((yield from keys.rooms(others)))
    return rows, seen


def _is_reached(head: Row, lane: Found) -> bool:
    """Not one behind the last job that the claim has read: others of its key, which are awake, may be before it. The
    next round reads further."""
    return len(lane.rows) < lane.lane.room or place(head) < place(lane.rows[-1])


def _is_sound(kinds: Kinds | None, row: Row) -> bool:
    return not row[_CRASHES] and (kinds is None or kinds.get(row[_KIND], 0) >= row[_KIND_VERSION])


def _has_line(state: Room, queue: str) -> bool:
    """Whether there may be a line in this queue."""
    first = state.row.first_queue
    return first is not None and first <= queue


def _write(
    chosen: Sequence[Sequence[Row]], lined_up: Sequence[tuple[Row, str]], rooms: Mapping[str, Room], now: Micros
) -> Op[None]:
    permits: list[tuple[object, ...]] = []
    starts: list[tuple[object, ...]] = []
    for rows in chosen:
        for row in rows:
            for key, asked in needs_of(row[_LIMIT]):
                room = rooms[key]
                if not room.is_rate:
                    permits.append((key, Blob(row[_JOB]), room.weight(asked) or asked))
                elif room.rule.sort == Sort.SLIDING:
                    starts.append((key, now, Blob(_start_id(row)), room.weight(asked)))
    if lined_up:
        yield from stand_in_line([(key, now, Blob(row[_JOB]), row[_VERSION]) for row, key in lined_up])
    if permits:
        yield Tell("insert_permit", permits)
    yield from _spend(starts, [room for room in rooms.values() if room.is_rate and room.taken], now)
    yield from _note_openings(lined_up, rooms, now)


def _drop_expired(rooms: Iterable[Room], now: Micros) -> Op[None]:
    """Places of blocks whose leases have ended are given away here: nobody renews them afterwards, whose clock is
    behind, or who read it before."""
    for room in rooms:
        opens_at = room.row.opens_at
        if not room.is_rate and opens_at is not None and opens_at <= now:
            yield Tell("drop_expired_holds", {"key": room.row.key, "now": now})
            yield Tell("note_leases", {"key": room.row.key})


def _start_id(row: Row) -> bytes:
    """A job starts once from a version, but perhaps twice at the same instant of a clock."""
    return hashlib.sha256(b"%b %d" % (row[_JOB], row[_VERSION])).digest()[:16]


def _spend(starts: Sequence[tuple[object, ...]], rates: Sequence[Room], now: Micros) -> Op[None]:
    if starts:
        yield Tell("insert_start", starts)
    for room in rates:
        key = room.row.key
        if room.rule.sort == Sort.SLIDING:
            yield Tell("forget_starts", {"key": key, "since": now - room.per_us, "until": now + room.per_us})
        else:
            since, spent = room.spent_since()
            yield Tell("make_key", {"key": key})
            yield Tell("note_spent", {"key": key, "since_at": since, "spent": spent})


def _note_openings(lined_up: Sequence[tuple[Row, str]], rooms: Mapping[str, Room], now: Micros) -> Op[None]:
    """When the first of those that wait for a rate fits. Of a line that was there before it may be heavier than 1: then
    it is found out when the key opens."""
    weights: dict[str, int] = {}
    for row, key in lined_up:
        weights.setdefault(key, next(need.weight for need in needs_of(row[_LIMIT]) if need.key == key))
    for key, room in rooms.items():
        if room.is_rate and (key in weights or (room.left <= 0 and room.row.first_queue is not None)):
            yield from _note_opening(room, 1 if room.row.first_queue is not None else weights[key], now)


def _note_opening(room: Room, asked: int, now: Micros) -> Op[None]:
    starts: list[tuple[Micros, int]] = []
    key = room.row.key
    if room.rule.sort == Sort.SLIDING:
        window = {"since": now - room.per_us, "until": now + room.per_us, "room": room.weight(asked) + 1}
        starts = cast("list[tuple[Micros, int]]", (yield Call("first_starts", {"key": key, **window})).rows)
    opens_at = room.opens_at(asked, starts)
    if opens_at is not None:
        yield Tell("make_key", {"key": key})
        yield Tell("note_opening", {"key": key, "opens_at": opens_at})


# -- who is looked at again ------------------------------------------------------------------------------------------


def keep_moving(of: Collection[str], keys: Keys) -> Op[int]:
    """Wake the first of every line of these keys that would fit. Returns how many jobs were woken.

    Where somebody has locked the first of a line, word is left of it: he may leave that job where it stands."""
    woken, passed_over = yield from _move(of, keys)
    if passed_over:
        yield Tell("insert_look", [(_look_id(key, keys.now), key, 0, "") for key in sorted(passed_over)])
    return woken


def _look_id(key: str, now: Micros) -> bytes:
    """Each time another one: whoever looks at this moment deletes the word that was left before."""
    return hashlib.sha256(f"{key} {now}".encode()).digest()[:16]


def _move(of: Collection[str], keys: Keys) -> Op[tuple[int, set[str]]]:
    """Also returns the keys where the first of a line was locked by somebody."""
    yield from keys.lock(of)
    rooms = yield from keys.rooms(of)
    lines: list[tuple[str, str]] = []
    for key, room in rooms.items():
        if room.left > 0:
            lines += [(key, queue) for queue in (yield from _queues(room.row))]
        elif room.is_rate and room.row.first_queue is not None:  # the clock of whoever noted when it opens was behind
            yield from _note_opening(room, 1, keys.now)
    return (yield from _wake(lines, rooms, keys.now))


def _queues(row: KeyRow) -> Op[list[str]]:
    """The queues in which a key has a line."""
    queues = [] if row.first_queue is None else [row.first_queue]
    while queues:
        ((queue,),) = (yield Call("next_queue_of_line", {"key": row.key, "queue": queues[-1]})).rows
        if queue is None:
            break
        queues.append(cast("str", queue))
    return queues


def _wake(lines: Sequence[tuple[str, str]], rooms: Mapping[str, Room], now: Micros) -> Op[tuple[int, set[str]]]:
    woken: list[tuple[object, ...]] = []
    seen: set[tuple[str, str]] = set()
    queues: list[str] = []
    for start in range(0, len(lines), LOOKED_AT_ONCE):
        part = listed(lines[start : start + LOOKED_AT_ONCE])
        for key, queue, job_id, version, text in (yield Call("fronts_of_lines", {"lines": part})).rows:
            seen.add((key, queue))
            asked = next((need.weight for need in needs_of(text) if need.key == key), 0)
            if rooms[key].fits(asked):
                woken.append((now, Blob(job_id), version))
                queues.append(queue)
            else:
                yield from _note_opening(rooms[key], asked, now)
    if woken:
        yield from wake(woken, queues)
    return len(woken), {line[0] for line in lines if line not in seen}


def settle(keys: Keys) -> Op[int]:
    """Look at the lines that somebody has left word of. Returns how many keys were looked at, up to 500.

    Word of a key that somebody else has locked stays, or the first of whose line: it is taken again.
    """
    looks = (yield Call("take_looks", {"room": LOOKED_AT_ONCE})).rows
    wanted: list[tuple[Row, list[str]]] = []
    for row in looks:
        _, key, whole, after = row
        wanted.append((row, (yield from _lines_of_limit(key, after or key)) if whole else []))
    every = {key for (_, of, *_), lines in wanted for key in (of, *lines)}
    _, passed_over = yield from _move(every, keys)
    looked_at = (every & keys.locked) - passed_over
    seen = [(look_id, key, lines) for (look_id, key, *_), lines in wanted if looked_at.issuperset((key, *lines))]
    done = [(look_id, key) for look_id, key, lines in seen if len(lines) < LOOKED_AT_ONCE]
    if done:
        yield Tell("drop_look", done)
    further = [(lines[-1], look_id, key) for look_id, key, lines in seen if len(lines) == LOOKED_AT_ONCE]
    if further:
        yield Tell("note_look", further)
    return len(looked_at)


def _lines_of_limit(name: str, after: str) -> Op[list[str]]:
    """The next keys of values of a limit that have lines."""
    lowest, end = bounds_of(name)
    bounds = {"after": max(after, lowest), "end": end, "room": LOOKED_AT_ONCE}
    return [key for (key,) in (yield Call("lines_of_limit", bounds)).rows]


def open_due(keys: Keys, now: Micros) -> Op[int]:
    """Wake the lines of keys that open by the clock. Returns how many keys did."""
    due = [key for (key,) in (yield Call("due_keys", {"now": now, "room": LOOKED_AT_ONCE})).rows]
    if not due:
        return 0
    yield from keys.lock(due)
    opened = [key for key in due if key in keys.locked]
    for key in opened:
        yield Tell("drop_expired_holds", {"key": key, "now": now})
        yield Tell("note_leases", {"key": key})
    yield from keep_moving(opened, keys)
    return len(opened)


def reopen(late: Collection[str], now: Micros) -> Op[int]:
    """Look anew at keys that open later than they can: the clock was set back since that was written. Returns how many.

    A block that still holds its place renews it within the lease that it has from now on."""
    keys = Keys(now)
    yield from keys.lock(late)
    opened = sorted(keys.locked.intersection(late))
    for key in opened:
        yield Tell("shorten_holds", {"key": key, "lease_until": now + HOLD_LEASE_US})
        yield Tell("note_leases", {"key": key})
    yield from keep_moving(opened, keys)
    return len(opened)


# -- blocks that hold a place ----------------------------------------------------------------------------------------


def take_hold(key: str, weight: int, holder: bytes, now: Micros, lease_us: int) -> Op[bool]:
    """Take a place for a block of code, until it gives it back or its lease ends. False: there is no room."""
    keys = Keys(now)
    yield from keys.lock([key])
    rooms = yield from keys.rooms([key])
    room = rooms.get(key)
    if room is None or not room.fits(weight):
        return False
    counted = room.take(weight)
    yield from _drop_expired([room], now)
    if not room.is_rate:
        hold = {"key": key, "holder": holder, "weight": counted, "lease_until": now + lease_us}
        yield Call("insert_hold", hold)
        yield Tell("make_key", {"key": key})
        yield Tell("note_leases", {"key": key})
        return True
    starts = [(key, now, Blob(holder), counted)] if room.rule.sort == Sort.SLIDING else []
    yield from _spend(starts, [room], now)
    return True


def renew_hold(key: str, holder: bytes, now: Micros, lease_us: int) -> Op[bool]:
    """False: the lease has ended, and somebody may have the place. Of a rate there is nothing to renew.

    Raises Locked where somebody holds the key for longer than we wait: he may be giving the place away."""
    keys = Keys(now)
    yield from keys.lock([key])
    room = (yield from keys.rooms([key])).get(key)
    if room is None:
        raise Locked(f"limit {shown(key)} is locked")
    hold = {"lease_until": now + lease_us, "key": key, "holder": holder, "now": now}
    return room.is_rate or (yield Call("renew_hold", hold)).changed == 1


def drop_hold(key: str, holder: bytes) -> Op[None]:
    """Give the place back, and leave word that the line is to be looked at."""
    yield Call("free_permit", {"key": key, "holder": holder})
    yield Tell("insert_look", {"look_id": holder, "key": key, "whole": 0, "after": ""})
    yield Tell("ring", {"queue": "*"})


# -- queues with a limit ---------------------------------------------------------------------------------------------


class Rooms:
    """How many more jobs of each queue may run, where a queue has a limit. Counted once in a claim, under a lock."""

    def __init__(self) -> None:
        self.limited = False
        """Some lane has a limit. Until then nothing is counted."""
        self._free: dict[str, int] = {}
        self._counted = False

    def of(self, queue: str) -> Op[int]:
        """What is free of this queue, and of all queues together."""
        if self.limited and not self._counted:
            yield Call("lock_rooms")
            self._free = dict((yield Call("count_rooms")).rows)
            self._counted = True
        return max(0, min(self._free.get(queue, PLENTY), self.of_all()))

    def of_all(self) -> int:
        return self._free.get("*", PLENTY)

    def left_in(self, queues: Iterable[str]) -> list[str]:
        """Those of these queues, and `*`, that have a limit and still have room."""
        return [queue for queue in (*queues, "*") if self._free.get(queue, 0) > 0 and self.of_all() > 0]

    def take(self, queue: str, count: int) -> None:
        for name in (queue, "*"):
            if name in self._free:
                self._free[name] -= count
