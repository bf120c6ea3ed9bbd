"""A queue moved from one database to another: what `perdure db copy` does. Called by the command line; asks the two
stores and the doctor.

In this order, so that after a kill anywhere the same command can be given again, and never two databases are open for
the same jobs: the target is marked as an unfinished copy; the source is closed and paused; every row is copied from one
snapshot; the copy is verified; the target is opened. The source stays closed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from perdure.clock import Micros
from perdure.errors import ConfigError, StoreError
from perdure.ids import IdFactory, JobId, to_uuid
from perdure.ops.doctor import Severity, examine
from perdure.ops.repairs import BATCH
from perdure.ops.workers import NodeState, about, node_state
from perdure.store.copy import COPY, MOVED, Closure, Row, mark
from perdure.store.engine import UniqueViolation
from perdure.store.store import SqlStore
from perdure.store.tables import Table, tables
from perdure.text import counted
from perdure.worker.liveness import ProcLiveness

OWN_AFFAIRS = ("node", "lock", "declaration")
"""Tables that a live worker writes without doing anything to a job."""
_SHOWN = 5


class Side(NamedTuple):
    """One of the two databases, and its name in messages and marks: without a password."""

    store: SqlStore
    name: str


class Progress(NamedTuple):
    """How far the copy of one table is."""

    table: str
    done: int
    of: int


Tell = Callable[[Progress], None]


def copy(source: Side, target: Side, tell: Tell, *, despite_workers: bool = False) -> dict[str, int]:
    """Move the queue. Returns how many rows each table has; empty: it has been moved there already. A refusal at the
    beginning has written nothing.

    A later error, or a kill, leaves the source closed and the target unfinished; the same call then begins anew.
    """
    now = source.store.clock.now()
    if _is_done(source, target):
        return {}
    _refuse_in_use(source, now, despite_workers=despite_workers)
    unfinished = _begin(source, target, now)
    closed = source.store.close_for(mark(MOVED, target.name), now, pause=True)
    counts = _transfer(source, target, tell)
    _count_again(target, counts)
    target.store.repair("raise_queue_counters", now, IdFactory(), BATCH)  # each database counts places in its own way
    _examine(source, target)
    _refuse_outrun(source, counts, despite_workers=despite_workers)
    target.store.reopen(unfinished, closed.since)
    return counts


def reopen(side: Side) -> Closure | None:
    """Let a database be used again that was closed by a copy. Returns why it was closed; None: it was open.

    Refuses an unfinished copy: jobs may be missing in it.
    """
    closed = side.store.closure()
    if closed is not None:
        if not closed.moved:
            raise closed.refusal(side.name)
        side.store.reopen(closed, closed.since)
    return closed


# -- may it begin ----------------------------------------------------------------------------------------------------


def _is_done(source: Side, target: Side) -> bool:
    """Whether the source was moved to this target. Refuses one that was moved elsewhere, or is itself unfinished."""
    closed = source.store.closure()
    if closed is None:
        return False
    if closed.why != mark(MOVED, target.name):
        raise closed.refusal(source.name)
    return target.store.closure() is None and any(target.store.count_rows().values())


def _refuse_in_use(source: Side, now: Micros, *, despite_workers: bool) -> None:
    held = source.store.active_reservations()
    if held:
        names = ", ".join(f"{one.queue} by {one.reserved_by}" for one in held)
        raise ConfigError(
            f"queues of {source.name} are reserved ({names}); let their holders finish first, see perdure reservations;"
            " nothing was written",
            code="copy_source_in_use",
        )
    liveness = ProcLiveness()
    live = [node for node in source.store.live_nodes() if node_state(node, now, liveness) is NodeState.LIVE]
    if live and not despite_workers:
        raise ConfigError(
            f"{counted(len(live), 'worker')} of {source.name} may be running jobs ({about(live, now)}); stop all"
            " workers first. One that was killed on another machine counts until its lease has passed (60 s). With"
            " --despite-workers the copy is made all the same, and what they run now runs again from the copy; nothing"
            " was written",
            code="copy_source_in_use",
        )


def _begin(source: Side, target: Side, now: Micros) -> Closure:
    """Mark the target as an unfinished copy of the source. It has to be empty, or to be one already."""
    found = target.store.closure()
    if found is None:
        _refuse_used(target)
    elif found.why != mark(COPY, source.name):
        raise found.refusal(target.name)
    else:
        _refuse_foreign_jobs(source, target)
        _empty(target)
    unfinished = target.store.close_for(mark(COPY, source.name), now, pause=False)
    if source.store.closure() == unfinished:
        target.store.reopen(unfinished, now)
        raise ConfigError(
            f"{source.name} and {target.name} are the same database; nothing was written", code="copy_same_database"
        )
    return unfinished


def _refuse_used(target: Side) -> None:
    used = {name: count for name, count in target.store.count_rows().items() if count}
    if used:
        found = ", ".join(f"{name} {count}" for name, count in used.items())
        raise ConfigError(
            f"{target.name} is not empty (rows: {found}); give a database that no app and no worker has used yet;"
            " nothing was written",
            code="copy_target_used",
        )


def _refuse_foreign_jobs(source: Side, target: Side) -> None:
    """Nothing that was acknowledged is removed: somebody may have had the target open since before the copy began."""
    foreign: list[JobId] = []
    target.store.send_job_ids(lambda ids: foreign.extend(source.store.unknown_jobs(ids)))
    if foreign:
        named = ", ".join(str(to_uuid(one)) for one in foreign[:_SHOWN])
        raise ConfigError(
            f"{target.name} is an unfinished copy, but has {counted(len(foreign), 'job')} that {source.name} does not"
            f" have ({named}): somebody enqueued there. Drop that copy if they do not matter, or take another database;"
            " nothing was written",
            code="copy_target_used",
        )


def _empty(target: Side) -> None:
    for name in tables():
        target.store.empty([name])  # each by itself: there may be millions of rows


# -- the rows --------------------------------------------------------------------------------------------------------


def _transfer(source: Side, target: Side, tell: Tell) -> dict[str, int]:
    """Copy every row of one snapshot. Returns how many it has, by table."""
    done: Counter[str] = Counter()
    counts: dict[str, int] = {}

    def begin(found: Mapping[str, int]) -> None:
        if done:  # the source's connection was lost, and this is another snapshot
            _empty(target)
        done.clear()
        counts.update(found)

    def take(table: Table, rows: list[Row]) -> None:
        try:
            target.store.fill(table, rows)
        except StoreError as error:
            raise _not_taken(error, table, source, target) from error
        done[table.name] += len(rows)
        tell(Progress(table.name, done[table.name], counts[table.name]))

    source.store.send(begin, take)
    return counts


def _not_taken(error: StoreError, table: Table, source: Side, target: Side) -> StoreError:
    if isinstance(error, UniqueViolation):
        return _differs(target, f"it has a row of {table.name} already that is to be copied")
    if type(error) is not StoreError:  # the database cannot be reached, is full, …
        return error
    return StoreError(
        f"a row of the table {table.name} does not fit into the target ({error.message}); another program has changed"
        f" it: see perdure doctor about {source.name}, put it right, and give the same command again",
        code="copy_row_invalid",
    )


# -- is it right -----------------------------------------------------------------------------------------------------


def _count_again(target: Side, counts: Mapping[str, int]) -> None:
    copied = target.store.count_rows()
    differing = [f"{name} {copied[name]} instead of {counts[name]}" for name in counts if copied[name] != counts[name]]
    if differing:
        raise _differs(target, f"rows of {', '.join(differing)}")


def _examine(source: Side, target: Side) -> None:
    """The copy has no violation that the source does not have."""
    found = _violations(target)
    worse = found - _violations(source) if found else found
    if worse:
        raise _differs(target, f"perdure doctor finds {', '.join(sorted(worse))}")


def _differs(target: Side, wrong: str) -> StoreError:
    return StoreError(
        f"the copy in {target.name} is not as it should be: {wrong}. Somebody may have written to it meanwhile; it"
        " stays closed. Stop whoever uses it, and give the same command again",
        code="copy_differs",
    )


def _violations(side: Side) -> set[str]:
    return {found.name for found in examine(side.store) if found.severity is Severity.VIOLATION}


def _refuse_outrun(source: Side, counts: Mapping[str, int], *, despite_workers: bool) -> None:
    """Nothing that was acknowledged is left behind: a process that had the source open before can still write there."""
    now = source.store.count_rows()
    looked_at = ["job", "idempotency_key"] if despite_workers else [name for name in counts if name not in OWN_AFFAIRS]
    changed = [f"{name} {counts[name]}, now {now[name]}" for name in looked_at if counts[name] != now[name]]
    if changed:
        raise StoreError(
            f"{source.name} was written to during the copy ({', '.join(changed)}); stop the processes that use it, and"
            " give the same command again. Both stay closed until then",
            code="copy_outrun",
        )
