"""What becomes of jobs: finish (a run reports), promote (the time has come), rescue (the node is dead).

Called by `turn`, and by worker and rescue through `store`; written by `write`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from perdure.clock import Micros
from perdure.errors import KeyConflict
from perdure.ids import JobId, NodeId
from perdure.job import transitions
from perdure.job.model import Failure, LiveJob, OutcomeRow, Transition
from perdure.job.reports import Finish, after_run
from perdure.job.states import State, Verb
from perdure.store import read
from perdure.store.engine import BEGIN_PART, END_PART, UNDO_PART, Call, Op
from perdure.store.enqueue import enqueue
from perdure.store.protocols import Locked
from perdure.store.rows import Finished, FinishStatus, Rescued
from perdure.store.write import apply, apply_to_read


def finish(batch: Sequence[Finish], now: Micros) -> Op[list[Finished]]:
    """Write what these runs report, each guarded by the run that holds the job.

    All at once if every run still holds its job as it was claimed; otherwise one by one, each on the job as it is now.
    A run that lost its job changes nothing; one that needs what someone else has locked does not stop the others.
    """
    decided = [after_run(entry, entry.live, now) for entry in batch]
    if (yield from _write(batch, decided, now)) is FinishStatus.APPLIED:
        return [applied(transition) for transition in decided]
    return (yield from finish_each(batch, now))


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
    transition = after_run(entry, live, now)
    status = yield from _write([entry], [transition], now)
    return applied(transition) if status is FinishStatus.APPLIED else Finished(status)


def _write(batch: Sequence[Finish], decided: Sequence[Transition], now: Micros) -> Op[FinishStatus]:
    """All of it, or nothing: a guard failed (LOST), or someone has locked what one of them needs (WAITS)."""
    yield BEGIN_PART
    try:
        if (yield from apply(decided, now)):
            yield from _enqueue_children(batch, decided)
            yield END_PART
            return FinishStatus.APPLIED
        status = FinishStatus.LOST
    except Locked:
        status = FinishStatus.WAITS
    yield UNDO_PART
    yield END_PART
    return status


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
    if not rows or rows[0] != (after_run(entry, entry.live, now).run_state, entry.live.node_id):
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
        yield from apply_to_read(decided, now)
    return decided
