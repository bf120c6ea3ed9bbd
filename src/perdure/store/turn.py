"""What a worker writes: its turn (ends of runs, their notes, promotions and claims in one transaction), and rescues.

Called by worker and rescue through `store`; calls `claim` and `write`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, cast

from perdure.clock import Micros
from perdure.errors import PerdureError
from perdure.ids import FlowId, JobId, NodeId, RunId
from perdure.job import transitions
from perdure.job.flow import TallyRow
from perdure.job.model import Failure, LiveJob, NewJob, OutcomeRow, Transition, json_of, readable
from perdure.job.reports import Finish
from perdure.job.states import State, Verb
from perdure.store import claim, limit, permit, read
from perdure.store.engine import BEGIN_PART, END_PART, UNDO_PART, Call, Op, Outrun, Tell
from perdure.store.enqueue import enqueue
from perdure.store.flow import grown, look_if_free, share
from perdure.store.follow import NOBODY, Flows, apply, follow, look_again
from perdure.store.protocols import Locked
from perdure.store.rows import Finished, FinishStatus, Glance, Kinds, LogLine, Notes, Rescued, Turn, Turned
from perdure.store.todo import begin_decisions, settle
from perdure.store.write import change


def turn(wanted: Turn, now: Micros) -> Op[Turned]:
    """Finish, see to flows, note, promote, claim. All of it or nothing, except finishes that wait for someone's lock.

    The finishes are written at once if every run still holds its job as it was claimed; otherwise one by one, each on
    the job as it is now. A run that lost its job changes nothing; one that needs what someone else has locked does not
    stop the others.
    """
    keys = limit.Keys(now)
    if not wanted.finishes:
        return (yield from _go_on(wanted, [], Flows.none(), now, keys))
    yield BEGIN_PART
    try:
        turned = yield from _turn_at_once(wanted, now, keys)
    except (Outrun, Locked):
        yield UNDO_PART
        yield END_PART
        flows = Flows.none()
        finished = yield from finish_each(wanted.finishes, now, flows)
        return (yield from _go_on(wanted, finished, flows, now, limit.Keys(now)))
    yield END_PART
    return turned


def _turn_at_once(wanted: Turn, now: Micros, keys: limit.Keys) -> Op[Turned]:
    """Where claims follow, the finishes are confirmed with the first of them, and permits that have become free are
    taken by them."""
    decided = [transitions.after_run(entry, entry.live, now) for entry in wanted.finishes]
    claims = claim.has_room(wanted.lanes, wanted.claimer)
    leaving = permit.left(decided) if claims else ()
    yield from change(decided, now, leaving if claims else None)
    added = yield from _enqueue_children(wanted.finishes, decided, now)
    flows = yield from follow(decided, now, added)
    if not claims or wanted.notes is not None or wanted.again:
        yield Call("begin_writing")  # asks for nothing, but what was told is done when it returns
    return (yield from _go_on(wanted, [applied(transition) for transition in decided], flows, now, keys, leaving))


def _go_on(
    wanted: Turn,
    finished: list[Finished],
    flows: Flows,
    now: Micros,
    keys: limit.Keys,
    leaving: Sequence[Transition] = (),
) -> Op[Turned]:
    """`flows`: those that the finishes were counted in, to be looked at again by the next turn. `keys`: those that the
    turn locks; `leaving`: the finishes that gave permits back, whose lines the claim looks at."""
    again = (yield from finish_each(wanted.again, now, flows)) if wanted.again else ()
    decided = bool(wanted.flows) and (yield from look_if_free(wanted.flows, now))
    settled = wanted.settle and (yield from settle(now))
    if (decided or flows.decided) and not wanted.settle:  # before the claims: of a flow that stops nobody starts
        settled = yield from begin_decisions(now)
    if wanted.notes is not None:
        yield from note(wanted.notes)
    promoted = (yield from promote(now, wanted.promote, keys)) if wanted.promote else 0
    if wanted.settle and (yield from limit.settle(keys)):
        settled = True
    if wanted.claimer is None:
        return Turned(finished, promoted, [], again=again, flows=tuple(flows.unfinished), settled=settled)
    claimed = yield from claim.take(wanted.lanes, wanted.claimer, now, keys, permit.keys_left(leaving))
    yield from permit.leave_word(leaving, seen_to=keys.locked)
    return Turned(finished, promoted, *claimed, again, tuple(flows.unfinished), settled)


# -- ends of runs ----------------------------------------------------------------------------------------------------


def finish(batch: Sequence[Finish], now: Micros) -> Op[list[Finished]]:
    """Write what these runs report: a turn with nothing else in it."""
    turned = yield from turn(Turn(batch), now)
    if turned.flows:
        yield from look_again(turned.flows, batch[0].live.job_id, now)
    return turned.finished


def finish_each(batch: Sequence[Finish], now: Micros, flows: Flows) -> Op[list[Finished]]:
    """The same, one by one from the start. Adds the flows that are to be looked at again."""
    finished: list[Finished] = []
    for entry in batch:
        finished += [(yield from _finish_one(entry, now, flows))]
    return finished


def _finish_one(entry: Finish, now: Micros, flows: Flows) -> Op[Finished]:
    rows = (yield Call("read_live_if_free", {"job_id": entry.live.job_id})).rows
    live = LiveJob._make(rows[0]) if rows else (yield from read.live_unlocked(entry.live.job_id))
    if live is None or live.run_id != entry.live.run_id:
        return (yield from _too_late(entry, live, now))
    if not rows:  # it is this run's, but someone has locked it
        return Finished(FinishStatus.WAITS)
    return (yield from _write(entry, transitions.after_run(entry, live, now), now, flows))


def _write(entry: Finish, transition: Transition, now: Micros, flows: Flows) -> Op[Finished]:
    """All of it, or nothing: the job has changed meanwhile (LOST), or someone has locked what it needs (WAITS)."""
    yield BEGIN_PART
    try:
        yield from change([transition], now)
        added = yield from _enqueue_children([entry], [transition], now)
        counted = yield from follow([transition], now, added)
        yield Call("end_part")
        flows.add(counted)
        return applied(transition)
    except Outrun:
        status = FinishStatus.LOST
    except Locked:
        status = FinishStatus.WAITS
    yield UNDO_PART
    yield END_PART
    return Finished(status)


def _enqueue_children(batch: Sequence[Finish], decided: Sequence[Transition], now: Micros) -> Op[list[TallyRow]]:
    """Enqueue what the handlers of completed jobs asked for. KeyConflict: nothing of the whole batch remains.

    New members are counted first: one may end at once, and its flow must not end before the others. Returns what is to
    be taken out of the counts again, because another job has its key.
    """
    wanted = [
        (child, entry.live.node_id or NOBODY)
        for entry, transition in zip(batch, decided, strict=True)
        if entry.children and transition.verb is Verb.COMPLETE
        for child in entry.children
    ]
    if not wanted:
        return []
    members = [_added(child, node_id) for child, node_id in wanted]
    counted = Counter(row for row in members if row is not None)
    if counted:
        yield Tell("count_in_tally", [row._replace(added=count) for row, count in sorted(counted.items())])
    children = [child for child, _ in wanted]
    about: dict[FlowId, str] = {}
    if counted:
        children, about = yield from grown(children)
    enqueued = yield from enqueue(children)
    if isinstance(enqueued, PerdureError):
        raise enqueued
    if about:
        yield from share(children, about, now)
    return [
        row._replace(added=-1)
        for row, job in zip(members, enqueued, strict=True)
        if row is not None and job.deduplicated
    ]


def _added(child: NewJob, node_id: NodeId) -> TallyRow | None:
    is_member = child.flow_id is not None and child.sequence is not None
    return TallyRow(cast("FlowId", child.flow_id), node_id, added=1) if is_member else None


def _too_late(entry: Finish, live: LiveJob | None, now: Micros) -> Op[Finished]:
    """The run no longer holds the job: this very report was written before, or someone else decided."""
    rows = (yield Call("read_run_state", {"run_id": entry.live.run_id})).rows
    if not rows or rows[0] != (transitions.after_run(entry, entry.live, now).run_state, entry.live.node_id):
        return Finished(FinishStatus.LOST)
    # The answer that was lost told which flows are to be looked at again.
    yield Tell("look_for_node", {"now": now, "node_id": entry.live.node_id})
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


def promote(now: Micros, most: int, keys: limit.Keys | None = None) -> Op[int]:
    """Queue up to `most` scheduled jobs that are due, and wake the lines of rates that have room again. Returns how
    many jobs and lines. Fewer than `most`: there are no more for now."""
    wanted: dict[str, object] = {"now": now, "room": most}
    jobs = yield from _each("due_jobs", wanted, lambda live: transitions.promote(live, now), now)
    return len(jobs) + (yield from limit.open_due(keys or limit.Keys(now), now))


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
    if any(transition.outcome is not None for transition in decided):
        yield from begin_decisions(now)  # the next claim may be that of any node
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
    found: dict[str, list[Any]] = {"due": [], "cancelled": [], "work": [], "parked": [], "todo": []}
    found |= {"awake": [], "opens": []}
    for sort, *news in (yield Call("glance", {"node_id": node_id})).rows:
        found[sort] += [value for value in news if value is not None]
    queues: list[str] = list(dict.fromkeys([*found["work"], *found["awake"]]))
    for name in found["parked"]:
        if name not in queues and (yield from claim.knows_a_parked_kind(name, kinds)):
            queues.append(name)
    # SQLite: a text is none
    due = min((Micros(int(at)) for at in found["due"] + found["opens"] if isinstance(at, (int, float))), default=None)
    return Glance(tuple(queues), due, tuple(found["cancelled"]), bool(found["todo"]))


def held_by(node_id: NodeId) -> Op[list[LiveJob]]:
    """The running jobs of this node."""
    rows = (yield Call("held_by_node", {"node_id": node_id})).rows
    return [LiveJob._make(row) for row in rows]


def overdue(now: Micros, limit: int) -> Op[list[LiveJob]]:
    """Running jobs past the time at which any node may close their run."""
    rows = (yield Call("overdue_jobs", {"now": now, "room": limit})).rows
    return [LiveJob._make(row) for row in rows]
