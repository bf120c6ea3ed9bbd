"""What a worker writes: its turn (ends of runs, their notes, promotions and claims in one transaction), and rescues.

Called by worker and rescue through `store`; calls `claim` and `write`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, cast

from perdure.clock import Micros
from perdure.errors import KeyConflict
from perdure.ids import JobId, NodeId, RunId
from perdure.job import transitions
from perdure.job.model import Failure, LiveJob, OutcomeRow, Transition, json_of, readable
from perdure.job.reports import Finish
from perdure.job.states import State, Verb
from perdure.store import claim, read
from perdure.store.engine import BEGIN_PART, END_PART, UNDO_PART, Call, Op, Outrun, Tell
from perdure.store.enqueue import enqueue
from perdure.store.protocols import Locked
from perdure.store.rows import Finished, FinishStatus, Glance, Kinds, LogLine, Notes, Rescued, Turn, Turned
from perdure.store.write import apply, apply_alone, unblock_dependents


def turn(wanted: Turn, now: Micros) -> Op[Turned]:
    """Finish, note, promote, claim. All of it or nothing, except finishes that wait for someone's lock.

    The finishes are written at once if every run still holds its job as it was claimed; otherwise one by one, each on
    the job as it is now. A run that lost its job changes nothing; one that needs what someone else has locked does not
    stop the others.
    """
    if not wanted.finishes:
        return (yield from _go_on(wanted, [], now))
    yield BEGIN_PART
    try:
        turned = yield from _turn_at_once(wanted, now)
    except (Outrun, Locked):
        yield UNDO_PART
        yield END_PART
        return (yield from _go_on(wanted, (yield from finish_each(wanted.finishes, now)), now))
    yield END_PART
    return turned


def _turn_at_once(wanted: Turn, now: Micros) -> Op[Turned]:
    """Where claims follow, the finishes are confirmed with the first of them."""
    decided = [transitions.after_run(entry, entry.live, now) for entry in wanted.finishes]
    yield from apply_alone(decided, now)
    yield from _enqueue_children(wanted.finishes, decided)
    looks = wanted.notes is None and not wanted.again and claim.has_room(wanted.lanes, wanted.claimer)
    edges = yield (Tell if looks else Call)("any_edge")
    turned = yield from _go_on(wanted, [applied(transition) for transition in decided], now)
    if edges.rows:
        yield from unblock_dependents(decided, now)
    return turned


def _go_on(wanted: Turn, finished: list[Finished], now: Micros) -> Op[Turned]:
    again = (yield from finish_each(wanted.again, now)) if wanted.again else ()
    if wanted.notes is not None:
        yield from note(wanted.notes)
    promoted = (yield from promote(now, wanted.promote)) if wanted.promote else 0
    if wanted.claimer is None:
        return Turned(finished, promoted, [], again=again)
    claimed = yield from claim.take(wanted.lanes, wanted.claimer, now)
    return Turned(finished, promoted, *claimed, again)


# -- ends of runs ----------------------------------------------------------------------------------------------------


def finish(batch: Sequence[Finish], now: Micros) -> Op[list[Finished]]:
    """Write what these runs report: a turn with nothing else in it."""
    return (yield from turn(Turn(batch), now)).finished


def finish_each(batch: Sequence[Finish], now: Micros) -> Op[list[Finished]]:
    """The same, one by one from the start."""
    finished: list[Finished] = []
    for entry in batch:
        finished += [(yield from _finish_one(entry, now))]
    return finished


def _finish_one(entry: Finish, now: Micros) -> Op[Finished]:
    rows = (yield Call("read_live_if_free", {"job_id": entry.live.job_id})).rows
    live = LiveJob._make(rows[0]) if rows else (yield from read.live_unlocked(entry.live.job_id))
    if live is None or live.run_id != entry.live.run_id:
        return (yield from _too_late(entry, live, now))
    if not rows:  # it is this run's, but someone has locked it
        return Finished(FinishStatus.WAITS)
    return (yield from _write(entry, transitions.after_run(entry, live, now), now))


def _write(entry: Finish, transition: Transition, now: Micros) -> Op[Finished]:
    """All of it, or nothing: the job has changed meanwhile (LOST), or someone has locked what it needs (WAITS)."""
    yield BEGIN_PART
    try:
        yield from apply([transition], now)
        yield from _enqueue_children([entry], [transition])
        yield Call("end_part")
        return applied(transition)
    except Outrun:
        status = FinishStatus.LOST
    except Locked:
        status = FinishStatus.WAITS
    yield UNDO_PART
    yield END_PART
    return Finished(status)


def _enqueue_children(batch: Sequence[Finish], decided: Sequence[Transition]) -> Op[None]:
    """Enqueue what the handlers of completed jobs asked for. KeyConflict: nothing of the whole batch remains."""
    wanted = [
        child
        for entry, transition in zip(batch, decided, strict=True)
        if entry.children and transition.verb is Verb.COMPLETE
        for child in entry.children
    ]
    if wanted:
        enqueued = yield from enqueue(wanted)
        if isinstance(enqueued, KeyConflict):
            raise enqueued


def _too_late(entry: Finish, live: LiveJob | None, now: Micros) -> Op[Finished]:
    """The run no longer holds the job: this very report was written before, or someone else decided."""
    rows = (yield Call("read_run_state", {"run_id": entry.live.run_id})).rows
    if not rows or rows[0] != (transitions.after_run(entry, entry.live, now).run_state, entry.live.node_id):
        return Finished(FinishStatus.LOST)
    if live is not None:
        return Finished(FinishStatus.ALREADY, State(live.state))
    ended = (yield Call("read_last_outcome", {"job_id": entry.live.job_id})).rows
    if not ended:
        return Finished(FinishStatus.ALREADY)
    outcome = OutcomeRow._make(ended[0])
    return Finished(FinishStatus.ALREADY, State(outcome.state), has_successor=outcome.successor is not None)


def applied(transition: Transition) -> Finished:
    """The result of a transition that was written."""
    row = transition.after or transition.outcome
    assert row is not None
    return _APPLIED[row.state] if transition.successor is None else _FOLLOWED[row.state]


_APPLIED = {state.value: Finished(FinishStatus.APPLIED, state) for state in State}
_FOLLOWED = {state.value: Finished(FinishStatus.APPLIED, state, has_successor=True) for state in State}


# -- promote, rescue -------------------------------------------------------------------------------------------------


def promote(now: Micros, limit: int) -> Op[int]:
    """Queue up to `limit` scheduled jobs that are due. Fewer than `limit`: there are no more for now."""
    wanted: dict[str, object] = {"now": now, "room": limit}
    return len((yield from _each("due_jobs", wanted, lambda live: transitions.promote(live, now), now)))


def rescue(
    node_id: NodeId,
    failure: Failure,
    max_crashes: int,
    next_ids: Sequence[JobId],
    now: Micros,
    only: JobId | None = None,
) -> Op[list[Rescued]]:
    """Take back up to len(next_ids) jobs of a node that was declared dead. May be repeated by anyone."""
    spare = iter(next_ids)
    wanted: dict[str, object] = {"node_id": node_id, "room": len(next_ids), "job_id": only}
    decided = yield from _each(
        "running_of_node",
        wanted,
        lambda live: transitions.rescue(live, failure, max_crashes, now, next(spare)),
        now,
    )
    return [Rescued(transition.before, applied(transition)) for transition in decided]


def _each(
    statement: str, params: dict[str, object], decide: Callable[[LiveJob], Transition | None], now: Micros
) -> Op[list[Transition]]:
    rows = (yield Call(statement, params)).rows
    decided = [t for t in (decide(LiveJob._make(row)) for row in rows) if t is not None]
    if decided:
        yield from apply(decided, now)
    return decided


# -- notes of runs ---------------------------------------------------------------------------------------------------


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


# -- looking ---------------------------------------------------------------------------------------------------------


def glance(node_id: NodeId, kinds: Kinds | None) -> Op[Glance]:
    """What a turn of this node would find to do."""
    found: dict[str, list[Any]] = {"due": [], "cancelled": [], "work": [], "parked": []}
    for sort, *news in (yield Call("glance", {"node_id": node_id})).rows:
        found[sort] += [value for value in news if value is not None]
    queues: list[str] = found["work"]
    for name in found["parked"]:
        if name not in queues and (yield from claim.knows_a_parked_kind(name, kinds)):
            queues.append(name)
    due = next((Micros(int(at)) for at in found["due"] if isinstance(at, (int, float))), None)  # SQLite: a text is none
    return Glance(tuple(queues), due, tuple(found["cancelled"]))


def held_by(node_id: NodeId) -> Op[list[LiveJob]]:
    """The running jobs of this node."""
    rows = (yield Call("held_by_node", {"node_id": node_id})).rows
    return [LiveJob._make(row) for row in rows]


def overdue(now: Micros, limit: int) -> Op[list[LiveJob]]:
    """Running jobs past the time at which any node may close their run."""
    rows = (yield Call("overdue_jobs", {"now": now, "room": limit})).rows
    return [LiveJob._make(row) for row in rows]
