"""A queue on its way to another database: rows as they are, page by page from one snapshot, and the mark that keeps
others from writing. Called by `ops/copying` through `store`; the runners look at the mark when they open a database.

The rows of `ready` are written here too, not by `write`: nothing is decided about them, and nobody else uses the
database that they are written to.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, cast

from perdure.clock import Micros
from perdure.errors import DatabaseUnavailable
from perdure.ids import JobId
from perdure.store.admin import EVERYTHING, pause_queue
from perdure.store.engine import Call, Op, Tell
from perdure.store.rows import Fact, Verdict
from perdure.store.statements import groups, whole_group
from perdure.store.tables import Table, tables
from perdure.text import moment

MARK = "perdure.closed"
"""The name of the lease that says why a database is closed. It never expires."""
_FOR_EVER = 2**62
MOVED, COPY = "moved to ", "copy of "
_LONGEST = 200
"""Of a mark: what every database takes as the owner of a lease."""

FIRST_ROOM, MOST_ROOM = 100, 2_000
PAGE_CHARACTERS = 2_000_000
"""About so much text is held at a time, however large the payloads are."""

Row = tuple[Any, ...]
Take = Callable[[Table, list[Row]], None]


class Closure(NamedTuple):
    """Why nobody may write to a database. `why`: MOVED or COPY, and the other database."""

    why: str
    since: Micros

    @property
    def moved(self) -> bool:
        return self.why.startswith(MOVED)

    @property
    def other(self) -> str:
        return self.why.removeprefix(MOVED).removeprefix(COPY)

    @property
    def fact(self) -> Fact:
        """For people who look at the database."""
        note = "use that database; see perdure db reopen" if self.moved else "give the same perdure db copy again"
        return Fact("closed", f"{self.why}, since {moment(self.since)}", Verdict.WARNING, note)

    def refusal(self, where: str) -> DatabaseUnavailable:
        """The error for whoever wants to write."""
        if self.moved:
            return DatabaseUnavailable(
                f"{where} is closed: its jobs were moved to {self.other}, beginning at {moment(self.since)}; use that"
                " database. If it was given up, run perdure db reopen here; nothing was written",
                code="database_moved",
            )
        return DatabaseUnavailable(
            f"{where} is an unfinished copy of {self.other}; run the same perdure db copy again to finish it, or drop"
            " the copy; nothing was written",
            code="copy_unfinished",
        )


def mark(sort: str, other: str) -> str:
    """The text of a mark: why a database is closed because of the other one."""
    return (sort + other)[:_LONGEST]


def closure() -> Op[Closure | None]:
    """Why the database is closed. None: it is open."""
    rows = (yield Call("read_mark", {"name": MARK})).rows
    return Closure(*rows[0]) if rows else None


def close(why: str, now: Micros, *, pause: bool) -> Op[Closure]:
    """From now on no process that opens the database can write to it. `pause`: nor do those claim that have it open.

    Keeps what was there: a repeat, or a pause by somebody else.
    """
    found = yield from closure()
    if found is None:
        found = Closure(why, now)
        yield Call("fill:lock", (MARK, why, now, _FOR_EVER))
    if pause:
        yield from pause_queue(EVERYTHING, found.since)
    return found


def reopen(closed: Closure, paused_at: Micros) -> Op[None]:
    """Take the mark away, and the pause of all queues if it was made at that moment: by `close`."""
    yield Call("release_lock", {"name": MARK, "owner": closed.why})
    rows = (yield Call("read_queue", {"queue": EVERYTHING})).rows
    if rows and rows[0][1] == paused_at:
        yield Call("set_queue_pause", {"queue": EVERYTHING, "paused_at": None})


# -- rows ------------------------------------------------------------------------------------------------------------


def count_rows() -> Op[dict[str, int]]:
    """How many rows each table has, without the mark."""
    counts: dict[str, int] = {}
    for name in tables():
        counts[name] = cast("int", (yield Call(f"count:{name}")).rows[0][0])
    counts["lock"] -= (yield from closure()) is not None
    return counts


def send(begin: Callable[[dict[str, int]], None], take: Take) -> Op[None]:
    """Give every row of every table to `take`, a page at a time and each once, as one snapshot has them.

    `begin` gets the counts of that snapshot first; it is called again if all begins anew.
    """
    counts = yield from count_rows()
    begin(counts)
    for table in tables().values():
        after, room = None, FIRST_ROOM
        while rows := (yield from _page("page", table, after, room)):
            after, room = _key(table, rows[-1]), _next_room(room, rows)
            kept = rows if table.name != "lock" else [row for row in rows if row[0] != MARK]
            if kept:
                take(table, kept)


def send_job_ids(take: Callable[[list[JobId]], None]) -> Op[None]:
    """Give the id of every job to `take`, a page at a time."""
    job, after = tables()["job"], None
    while rows := (yield from _page("keys", job, after, MOST_ROOM)):
        after = rows[-1]
        take([row[0] for row in rows])


def unknown_jobs(ids: Sequence[JobId]) -> Op[list[JobId]]:
    """Those of these that are no jobs here."""
    known: set[JobId] = set()
    for group in groups(ids):
        known.update(job_id for (job_id,) in (yield Call("known_jobs", whole_group(group))).rows)
    return [job_id for job_id in ids if job_id not in known]


def fill(table: Table, rows: Sequence[Row]) -> Op[None]:
    """Write these rows as they are."""
    yield Call(f"fill:{table.name}", rows)


def empty(names: Collection[str]) -> Op[None]:
    """Remove every row of these tables, except the mark."""
    closed = (yield from closure()) if "lock" in names else None
    for name in names:
        yield Tell(f"empty:{name}")
    if closed is not None:
        yield Call("fill:lock", (MARK, closed.why, closed.since, _FOR_EVER))


def _page(verb: str, table: Table, after: Row | None, room: int) -> Op[list[Row]]:
    """The next rows by key; fewer than `room`: the last ones. See `whole_table` for its steps."""
    if after is None:
        return (yield Call(f"{verb}:{table.name}:0", {"room": room})).rows
    rows: list[Row] = []
    for shared in range(len(table.key), 0, -1):
        key = dict(zip(table.key[:shared], after, strict=False))
        rows += (yield Call(f"{verb}:{table.name}:{shared}", {**key, "room": room - len(rows)})).rows
        if len(rows) == room:
            break
    return rows


def _key(table: Table, row: Row) -> Row:
    return tuple(row[table.columns.index(column)] for column in table.key)


def _next_room(room: int, rows: Sequence[Row]) -> int:
    """How many rows the next page may have: those of this one may have been larger than the ones before."""
    size = sum(len(value) for row in rows for value in row if isinstance(value, str)) or 1
    return max(1, min(MOST_ROOM, 2 * room, len(rows) * PAGE_CHARACTERS // size))
