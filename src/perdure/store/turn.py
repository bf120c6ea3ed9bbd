"""A worker's turn: finish runs, keep their notes, promote due jobs, claim the next ones, in one transaction. Called by
the worker through `store`; calls `finish` and `claim`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import cast

from perdure.clock import Micros
from perdure.ids import JobId, NodeId, RunId
from perdure.job.model import LiveJob, json_of, readable
from perdure.store import claim, finish
from perdure.store.engine import BEGIN_PART, END_PART, UNDO_PART, Call, Op
from perdure.store.protocols import Locked
from perdure.store.rows import Glance, Kinds, LogLine, Notes, Turn, Turned


def turn(wanted: Turn, now: Micros) -> Op[Turned]:
    """Finish, note, promote, claim. All of it or nothing, except finishes that wait for someone's lock."""
    finished = (yield from finish.finish(wanted.finishes, now)) if wanted.finishes else []
    again = (yield from finish.finish_each(wanted.again, now)) if wanted.again else ()
    if wanted.notes is not None:
        yield from note(wanted.notes)
    promoted = (yield from finish.promote(now, wanted.promote)) if wanted.promote else 0
    if wanted.claimer is None:
        return Turned(finished, promoted, [], again=again)
    claimed = yield from claim.take(wanted.lanes, wanted.claimer, now)
    return Turned(finished, promoted, *claimed, again)


def note(notes: Notes) -> Op[None]:
    """Write the notes of runs. A run that has closed meanwhile keeps the metrics it closed with."""
    yield from append_log(notes.lines)
    if notes.kept_from:
        yield Call("trim_log", [(mark.run_id, mark.line) for mark in notes.kept_from])
        yield from append_log(notes.kept_from)
    for run_id, paths in notes.artifacts:
        yield from _note_artifacts(run_id, paths)
    if notes.metrics:
        yield Call("note_metrics", [(metrics, run_id) for run_id, metrics in notes.metrics])


def _note_artifacts(run_id: RunId, paths: Sequence[str]) -> Op[None]:
    """Skipped if the run is locked: the node has lost it, and someone is deleting its job."""
    yield BEGIN_PART
    try:
        yield from append_artifacts(run_id, paths)
    except Locked:
        yield UNDO_PART
    yield END_PART


def glance(node_id: NodeId, kinds: Kinds | None) -> Op[Glance]:
    """What a turn of this node would find to do."""
    queues: list[str] = [name for (name,) in (yield Call("queues_with_work")).rows]
    parked = (yield Call("queues_with_parked")).rows
    for (name,) in parked:
        if name not in queues and (yield from claim.knows_a_parked_kind(name, kinds)):
            queues.append(name)
    ((next_due,),) = (yield Call("next_due")).rows
    due = Micros(int(next_due)) if isinstance(next_due, (int, float)) else None  # SQLite: a text is no time
    cancelled = [run_id for (run_id,) in (yield Call("cancelled_of_node", {"node_id": node_id})).rows]
    return Glance(tuple(queues), due, tuple(cancelled))


def held_by(node_id: NodeId) -> Op[list[LiveJob]]:
    """The running jobs of this node."""
    rows = (yield Call("held_by_node", {"node_id": node_id})).rows
    return [LiveJob._make(row) for row in rows]


def overdue(now: Micros, limit: int) -> Op[list[LiveJob]]:
    """Running jobs past the time at which any node may close their run."""
    rows = (yield Call("overdue_jobs", {"now": now, "room": limit})).rows
    return [LiveJob._make(row) for row in rows]


def append_log(lines: Sequence[LogLine]) -> Op[None]:
    """Keep these lines. An existing line is not changed, so a repeat after a lost reply is harmless."""
    if lines:
        yield Call("append_log", list(lines))


def log(job_id: JobId, after: LogLine | None, size: int) -> Op[list[LogLine]]:
    """The lines of all runs of a job in the order they were written, after `after`."""
    place = (after.run_id, after.line) if after else (b"\x00" * 16, -1)
    params = {"job_id": job_id, "after_run": place[0], "after_line": place[1], "page": size}
    rows = (yield Call("list_log", params)).rows
    return [readable(LogLine, row)[0] for row in rows]


def append_artifacts(run_id: RunId, artifacts: Sequence[str]) -> Op[bool]:
    """Add to a run's artifacts, even after it closed: the only change a closed run allows. False: no such run.

    Existing ones are not added again, so a repeat after a lost reply is harmless.
    """
    rows = (yield Call("read_artifacts", {"run_id": run_id})).rows
    if not rows:
        return False
    known = cast("str | None", rows[0][0])
    joined: list[str] = list(dict.fromkeys([*_listed(known), *artifacts]))
    yield Call("append_artifact", {"run_id": run_id, "artifacts": json.dumps(joined)})
    return True


def _listed(known: str | None) -> list[str]:
    """The existing artifacts; empty if the stored text is no list any more."""
    try:
        paths = json_of(known)
    except (TypeError, ValueError):
        return []
    return [path for path in cast("list[object]", paths) if isinstance(path, str)] if isinstance(paths, list) else []
