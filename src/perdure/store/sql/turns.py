"""A worker's turn: what its runs report, what is due, and what it may start next, in one transaction."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.clock import Micros
from perdure.ids import NodeId, RunId
from perdure.job.model import LiveJob
from perdure.store.answers import Glance, Kinds, Notes, Turn, Turned
from perdure.store.away import Locked
from perdure.store.sql import claims, finishes, logs, recover
from perdure.store.sql.engine import BEGIN_PART, END_PART, UNDO_PART, Call, Op


def turn(wanted: Turn, now: Micros) -> Op[Turned]:
    """Finish, note, promote, claim. All of it or nothing, but for ends that wait for somebody's lock."""
    finished = (yield from finishes.finish(wanted.finishes, now)) if wanted.finishes else []
    again = (yield from finishes.finish_each(wanted.again, now)) if wanted.again else ()
    if wanted.notes is not None:
        yield from note(wanted.notes)
    promoted = (yield from recover.promote(now, wanted.promote)) if wanted.promote else 0
    if wanted.claimer is None:
        return Turned(finished, promoted, [], again=again)
    claimed = yield from claims.claim(wanted.lanes, wanted.claimer, now)
    return Turned(finished, promoted, *claimed, again)


def note(notes: Notes) -> Op[None]:
    """Keep what runs have to say. A run that has closed meanwhile keeps the metrics it closed with."""
    yield from logs.append(notes.lines)
    if notes.kept_from:
        yield Call("trim_log", [(mark.run_id, mark.line) for mark in notes.kept_from])
        yield from logs.append(notes.kept_from)
    for run_id, paths in notes.artifacts:
        yield from _note_artifacts(run_id, paths)
    if notes.metrics:
        yield Call("note_metrics", [(metrics, run_id) for run_id, metrics in notes.metrics])


def _note_artifacts(run_id: RunId, paths: Sequence[str]) -> Op[None]:
    """Not where the run is locked: it was taken from the node, and somebody is deleting its job."""
    yield BEGIN_PART
    try:
        yield from logs.append_artifacts(run_id, paths)
    except Locked:
        yield UNDO_PART
    yield END_PART


def glance(node_id: NodeId, kinds: Kinds | None, now: Micros) -> Op[Glance]:
    """What a turn of this node would find to do."""
    queues: list[str] = [name for (name,) in (yield Call("queues_with_work", {"now": now})).rows]
    parked = (yield Call("queues_with_parked", {"now": now})).rows
    for (name,) in parked:
        if name not in queues and (yield from claims.knows_a_parked_kind(name, kinds)):
            queues.append(name)
    ((next_due,),) = (yield Call("next_due")).rows
    due = Micros(int(next_due)) if isinstance(next_due, (int, float)) else None  # SQLite: a text is no time
    cancelled = [run_id for (run_id,) in (yield Call("cancelled_of_node", {"node_id": node_id})).rows]
    return Glance(tuple(queues), due, tuple(cancelled))


def held_by(node_id: NodeId) -> Op[list[LiveJob]]:
    """The running jobs that name this node."""
    rows = (yield Call("held_by_node", {"node_id": node_id})).rows
    return [LiveJob._make(row) for row in rows]


def overdue(now: Micros, limit: int) -> Op[list[LiveJob]]:
    """Running jobs past the time at which any node may close their run."""
    rows = (yield Call("overdue_jobs", {"now": now, "room": limit})).rows
    return [LiveJob._make(row) for row in rows]
