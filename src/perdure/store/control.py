"""What people decide about jobs: cancel, pause, retry, supersede, edit, delete, move. Called by `app` through `store`.

Each reads the job, calls a pure function of `job/transitions`, and lets `write` store the result, guarded by the job's
version. A refusal is returned as an error to raise later, so that others in the same transaction are not disturbed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, cast

from perdure.clock import Micros
from perdure.errors import JobNotFound, KeyConflict, PerdureError, Remedy, TransitionRefused
from perdure.ids import FlowId, JobId, to_uuid
from perdure.job import transitions
from perdure.job.flow import Edge, FlowRow, Needs, TallyRow, Trait
from perdure.job.model import GAP, RESPACE, JobRow, LiveJob, NewJob, OutcomeRow, Transition, between
from perdure.job.states import FINAL, State, Verb
from perdure.job.views import Job
from perdure.limit.key import flow_key, keys_of, without
from perdure.store import read
from perdure.store.engine import Call, Op, Serialization, Tell
from perdure.store.enqueue import enqueue, holder_of, take_place
from perdure.store.follow import NOBODY, apply, lock_live, read_flow, settled_edges, unfilled
from perdure.store.permit import needing
from perdure.store.retention import Going, take_out
from perdure.store.rows import Edit, Place, not_found
from perdure.store.write import copy, insert_live, place, replace

Decide = Callable[[LiveJob, Micros], Transition | None]
Seen = Job | PerdureError


def change(job_id: JobId, verb: Verb, decide: Decide, now: Micros, expect_version: int | None = None) -> Op[Seen]:
    """Write what `decide` says about a live job. An ended job is refused, unless it ended that very way."""
    live = yield from read.live(job_id)
    if live is None:
        return (yield from _ended(job_id, verb))
    try:
        expect(live, expect_version)
        transition = decide(live, now)
    except TransitionRefused as refused:
        return refused
    if transition is not None:
        yield from apply([transition], now)
    return (yield from seen(job_id))


def seen(job_id: JobId) -> Op[Seen]:
    """The job as it is now, or the error that there is none."""
    job = yield from read.get(job_id)
    return job if job is not None else not_found(job_id)


def expect(live: LiveJob, version: int | None) -> None:
    """Refuse a decision that was made about an older version of the job."""
    if version is not None and live.version != version:
        raise TransitionRefused(
            f"job {to_uuid(live.job_id)} is at version {live.version}, not {version}: someone changed it; read it again"
            " and decide again",
            code="version_changed",
        )


def _ended(job_id: JobId, verb: Verb) -> Op[Seen]:
    """Cancelling a cancelled job, or superseding a superseded one, is a repeat; all else on an ended job is refused."""
    job = yield from read.get(job_id)
    if job is None:
        return not_found(job_id)
    if job.state not in FINAL:
        raise Serialization("the job was retried while it was being changed; the operation runs again")
    if (verb == Verb.CANCEL and job.state == State.CANCELLED) or (verb == Verb.SUPERSEDE and job.superseded_by):
        return job
    as_new = job.state not in (State.FAILED, State.CANCELLED)
    again = Remedy(
        f"app.retry(job{', as_new=True' * as_new}) runs it again",
        f"perdure retry {job.id}{' --as-new' * as_new}{{database}} runs it again",
    )
    return TransitionRefused(
        f"cannot {verb.words} job {job.id}: it is {job.state}, which is final",
        code=f"{verb}_refused",
        remedy=again,
    )


def supersede(job_id: JobId, replacement: NewJob, now: Micros) -> Op[Seen]:
    """Put another job in this one's place. A waiting job is cancelled, and the replacement waits for what it waited
    for; a running one is asked to stop, and the replacement waits for it. The replacement gets the business key in the
    same transaction.
    """
    live = yield from read.live(job_id)
    if live is None:
        return (yield from _ended(job_id, Verb.SUPERSEDE))
    if live.superseded_by is not None:
        return (yield from seen(job_id))
    transition = transitions.supersede(live, replacement.id, now)
    yield from apply([transition], now)
    running = transition.after is not None
    row = yield from read.row(job_id)
    assert row is not None
    replacement = _inheriting(replacement, row, live, blocked=running)
    if running and live.business_key is not None:
        yield Call("free_business_key", {"key": live.business_key, "job_id": job_id})
    inserted = yield from enqueue([replacement])
    if isinstance(inserted, PerdureError):
        raise inserted
    if inserted[0].deduplicated:
        raise KeyConflict(
            f"cannot supersede job {to_uuid(job_id)}: the replacement's key is already held by job {inserted[0].id}",
            code="supersede_conflict",
        )
    if live.waits_for:
        yield from _wait_instead(job_id, replacement, now)
    return (yield from seen(job_id))


def _wait_instead(old: JobId, replacement: NewJob, now: Micros) -> Op[None]:
    """The replacement waits for those that the old job waited for, besides its own."""
    own = {edge.depends_on for edge in replacement.after}
    parents = [parent for (parent,) in (yield Call("read_waits", {"job_id": old})).rows if parent not in own]
    lives = yield from lock_live([replacement.id])
    if not lives or not parents:
        return
    yield Tell("wait_instead", [(replacement.id, parent, old) for parent in parents])
    after = transitions.land(lives[0]._replace(waits_for=lives[0].waits_for + len(parents)), now)
    yield from apply([Transition(Verb.SUPERSEDE, lives[0], after=after)], now)


def _inheriting(new: NewJob, row: JobRow, old: LiveJob, *, blocked: bool) -> NewJob:
    """The replacement takes over the business key, unless it has its own, the place in a flow, with the permit that it
    needs there, and whoever waits for the old job; it waits for one that still runs."""
    new = new._replace(
        business_key=new.business_key or old.business_key,
        traits=old.traits | Trait.HAS_DEPENDENTS,
        flow_id=row.flow_id,
        sequence=row.sequence,
    )
    if row.flow_id is not None and flow_key(row.flow_id) in keys_of(row.limit_key):
        new = needing(new, flow_key(row.flow_id))
    return new._replace(after=(*new.after, Edge(old.job_id, "end"))) if blocked else new


def retry(job_id: JobId, now: Micros) -> Op[Seen]:
    """Open a new life for a failed or cancelled job. A job that is already in a later life is not changed."""
    live = yield from _read_to_revive(job_id)
    if live is not None:
        return (yield from _already_live(live))
    found = yield from _last(job_id)
    if isinstance(found, PerdureError):
        return found
    row, last = found
    refusal = _no_new_life(row, last)
    if refusal is not None:
        return refusal
    refusal = (yield from _acted_on(row, last)) or (yield from _flow_has_ended(row))
    if refusal is not None:
        return refusal
    taken = yield from revive(row, last, now)
    return taken if taken is not None else (yield from seen(job_id))


def revive(row: JobRow, last: OutcomeRow, now: Micros) -> Op[TransitionRefused | None]:
    """Open a new life for an ended job, which waits for what it has open edges to. A flow that had counted its end
    takes it back. TransitionRefused, as a value: its business key is taken, and nothing was written."""
    again = _reborn(row, last, row.id, now)._replace(waits_for=(yield from read.count_waits(row.id)))
    taken = yield from _take_key_again(again)
    if taken is not None:
        return taken
    yield from insert_live(transitions.retry(last, again, now))
    if row.flow_id is not None and row.sequence is not None:
        yield Tell("count_in_tally", [TallyRow.of(row.flow_id, NOBODY, last.state, -1)])
    for (flow_id,) in (yield Call("flows_filled_by", {"filled_by": row.id})).rows:
        yield Tell("fill_again", {"id": flow_id})
        yield Tell("count_in_tally", [unfilled(flow_id, last, -1)])
    return None


def _acted_on(row: JobRow, last: OutcomeRow) -> Op[TransitionRefused | None]:
    """Refuses where others went another way because this job did not succeed: they would have done so for nothing."""
    for edge in (yield from settled_edges(row.id)):
        if edge.needs != Needs.END:
            return TransitionRefused(
                f"cannot retry job {to_uuid(row.id)}: job {to_uuid(edge.job_id)} waited for it, and has acted on its"
                f" end ({last.state}){'; retry the whole flow' * (row.flow_id is not None)}",
                code=f"{Verb.RETRY}_refused",
                remedy=_as_new(row.id, "again as a new job"),
            )
    return None


def _flow_has_ended(row: JobRow) -> Op[TransitionRefused | None]:
    """Refuses where the end of the job was the end of its flow, or part of it, or of a flow that it fills. Those that
    have not ended are locked."""
    for flow_id in (yield from flows_of_end(row)):
        rows = (yield Call("lock_flow", {"id": flow_id})).rows
        if rows and FlowRow.read(rows[0]).finished_at is not None:
            flow = to_uuid(row.flow_id or flow_id)
            return TransitionRefused(
                f"cannot retry job {to_uuid(row.id)}: its flow {to_uuid(flow_id)} has ended",
                code=f"{Verb.RETRY}_refused",
                remedy=Remedy(
                    f"app.retry({str(flow)!r}) retries all of the flow that failed",
                    f"perdure retry {flow}{{database}} retries all of the flow that failed",
                ),
            )
    return None


def flows_of_end(row: JobRow) -> Op[list[FlowId]]:
    """The flows that the end of this job is a part of: those that it fills, and the one that counts it."""
    flows: list[FlowId] = [flow_id for (flow_id,) in (yield Call("flows_filled_by", {"filled_by": row.id})).rows]
    return flows if row.flow_id is None or row.sequence is None else [*flows, row.flow_id]


def retry_as_new(job_id: JobId, new_id: JobId, now: Micros) -> Op[Seen]:
    """A new job like an ended one, linked by retry_of. Works from any final state."""
    if (yield from _read_to_revive(job_id)) is not None:
        return TransitionRefused(
            f"cannot retry job {to_uuid(job_id)}: it has not ended yet; cancel it first, or wait for its end",
            code=f"{Verb.RETRY}_refused",
        )
    found = yield from _last(job_id)
    if isinstance(found, PerdureError):
        return found
    row, last = found
    again = _reborn(row, last, new_id, now)._replace(life=1, flow_id=None)
    if row.flow_id is not None:  # it leaves the flow
        again = again._replace(limit_key=without(row.limit_key, flow_key(row.flow_id)))
    again = again._replace(state=transitions.waiting_state(again, now))
    taken = yield from _take_key_again(again)
    if taken is not None:
        return taken
    again = again._replace(position=(yield from take_place(again.queue)))
    yield from copy(job_id, again, now, auto_retry_of=None, chain_step=0)
    return (yield from seen(new_id))


def _read_to_revive(job_id: JobId) -> Op[LiveJob | None]:
    """The live row. None: the job has ended, and nobody else revives or deletes it before this transaction ends."""
    live = yield from read.live(job_id)
    if live is not None:
        return live
    yield from read.row(job_id)  # locks it, if the database locks rows; another retry may just have released it
    return (yield from read.live(job_id))


def _already_live(live: LiveJob) -> Op[Seen]:
    if live.life > 1:
        return (yield from seen(live.job_id))
    return TransitionRefused(
        f"cannot retry job {to_uuid(live.job_id)}: it is {live.state} and has not ended yet; cancel it first, or wait"
        " for its end",
        code=f"{Verb.RETRY}_refused",
    )


def _last(job_id: JobId) -> Op[tuple[JobRow, OutcomeRow] | JobNotFound]:
    row = yield from read.row(job_id)
    outcomes = (yield Call("read_last_outcome", {"job_id": job_id})).rows
    if row is None or not outcomes:
        return not_found(job_id)
    return row, OutcomeRow._make(outcomes[0])


def _no_new_life(row: JobRow, last: OutcomeRow) -> TransitionRefused | None:
    remedy = None
    if last.successor is not None:
        why = f"job {to_uuid(last.successor)} already continues its work; retry the newest of the chain"
    elif last.superseded_by is not None:
        why, remedy = f"job {to_uuid(last.superseded_by)} took its place", _as_new(row.id, "anyway")
    elif last.state not in (State.FAILED, State.CANCELLED):
        why, remedy = f"it is {last.state}", _as_new(row.id, "again as a new job")
    else:
        return None
    return TransitionRefused(f"cannot retry job {to_uuid(row.id)}: {why}", code=f"{Verb.RETRY}_refused", remedy=remedy)


def _as_new(job_id: JobId, how: str) -> Remedy:
    command = f"perdure retry {to_uuid(job_id)} --as-new{{database}}"
    return Remedy(f"app.retry(job, as_new=True) runs it {how}", f"{command} runs it {how}")


def _reborn(row: JobRow, last: OutcomeRow, job_id: JobId, now: Micros) -> LiveJob:
    """A live row as enqueue would make it, from the cold row and the last outcome."""
    options: dict[str, Any] = json.loads(row.options) if row.options else {}
    return LiveJob(
        job_id=job_id,
        queue=row.queue,
        kind=row.kind,
        kind_version=row.kind_version,
        state=State.QUEUED.value,
        rank=last.rank,
        position=last.position,
        run_at=now,
        queued_at=now,
        started_at=None,
        attempts=0,
        crashes=0,
        life=last.life,
        max_attempts=last.max_attempts,
        as_new_job=int(options.get("as_new_job", False)),
        timeout_ms=options.get("timeout_ms"),
        node_id=None,
        run_id=None,
        claimed_at=None,
        deadline_at=None,
        waits_for=0,
        limit_key=row.limit_key,
        held_by=None,
        business_key=row.business_key,
        superseded_by=None,
        paused=0,
        cancel_requested=0,
        park_reason=None,
        last_error=None,
        flow_id=None if row.sequence is None else row.flow_id,
        traits=Trait.HAS_DEPENDENTS | Trait.FILLS | (Trait.HAS_CONDITION if row.refs is not None else 0),
        updated_at=now,
        version=1,
    )


def _take_key_again(live: LiveJob) -> Op[TransitionRefused | None]:
    if live.business_key is None:
        return None
    own = {"key": live.business_key, "job_id": live.job_id}
    if (yield Call("reserve_business_key", own)).changed:
        return None
    holder = yield from holder_of(live.business_key)
    if holder is None and (yield Call("reserve_business_key", own)).changed:
        return None
    name = "another job" if holder is None else holder.id
    return TransitionRefused(
        f"cannot retry job {to_uuid(live.job_id)}: its business key {live.business_key!r} is held by live job {name};"
        " wait for that one to end, or cancel it",
        code=f"{Verb.RETRY}_refused",
    )


def edit(edited: Edit, expect_version: int) -> Op[Seen]:
    """Change a job that was never claimed. `expect_version` is the version the edit was made from.

    In another queue it goes to the back: its old place has no meaning there.
    """
    job_id = edited.row.id
    live = yield from read.live(job_id)
    if live is None:
        return (yield from _ended(job_id, Verb.EDIT))
    try:
        expect(live, expect_version)
        transitions.require(Verb.EDIT, live)
        never_claimed(live)
    except TransitionRefused as refused:
        return refused
    after = edited.live
    if after.queue != live.queue:
        after = after._replace(position=(yield from take_place(after.queue)))
    yield from replace(live, after)
    row = edited.row
    written = (row.payload, row.secrets, row.params, row.options, row.principal, row.queue, row.kind_version)
    yield Call("edit_job", (*written, row.limit_key, row.id))
    yield Call("delete_tags", {"job_id": job_id})
    if edited.tags:
        yield Call("insert_tag", [(job_id, tag) for tag in edited.tags])
    return (yield from seen(job_id))


def never_claimed(live: LiveJob) -> None:
    """Refuse if a run may have seen the job's payload: the record must show what ran."""
    if live.started_at is not None or live.life > 1:
        raise TransitionRefused(
            f"cannot edit job {to_uuid(live.job_id)}: it was claimed before, and its record must show what ran;"
            " supersede it with a new job instead",
            code=f"{Verb.EDIT}_refused",
        )


def delete(job_id: JobId) -> Op[Seen]:
    """Remove an ended job with its runs, outcomes, tags, log lines and slot. Its idempotency key stays taken."""
    yield from read.row(job_id)  # locks it, if the database locks rows: nobody revives the job meanwhile
    job = yield from seen(job_id)
    if isinstance(job, PerdureError):
        return job
    if job.state not in FINAL:
        return TransitionRefused(
            f"cannot delete job {job.id}: it is {job.state}; cancel it first", code="delete_refused"
        )
    row = job.row
    if row.flow_id is not None and (yield from read_flow(row.flow_id)) is not None:
        return TransitionRefused(
            f"cannot delete job {job.id}: it belongs to flow {to_uuid(row.flow_id)}, and goes with it when it is old"
            " enough (retention)",
            code="delete_refused",
        )
    yield from take_out([Going(job_id, row.life, row.state, row.idempotency_key)])
    return job


def set_priority(job_id: JobId, rank: int, now: Micros, expect_version: int | None = None) -> Op[Job | PerdureError]:
    """Give a waiting job another priority; it becomes the last job of it. The same priority changes nothing."""
    live = yield from read.live(job_id)
    if live is None or live.rank == rank:
        return (yield from change(job_id, Verb.SET_PRIORITY, lambda _live, _now: None, now, expect_version))
    refused = _refusal(live, Verb.SET_PRIORITY, expect_version)
    if refused is not None:
        return refused
    position = yield from take_place(live.queue)
    return (
        yield from change(
            job_id,
            Verb.SET_PRIORITY,
            lambda row, at: transitions.place(row, rank, position, at, Verb.SET_PRIORITY),
            now,
            expect_version,
        )
    )


def move(job_id: JobId, to: Place, now: Micros, expect_version: int | None = None) -> Op[Job | PerdureError]:
    """Give a waiting job another place within its priority. If the gap is used up, at most 64 neighbours are moved."""
    live = yield from _alone_in_lane(job_id)
    if live is None:
        return (yield from change(job_id, Verb.MOVE, lambda _live, _now: None, now))
    refused = _refusal(live, Verb.MOVE, expect_version)
    if refused is not None:
        return refused
    position = yield from _position(live, to, now)
    if isinstance(position, PerdureError):
        return position
    if position is None:
        return (yield from seen(job_id))
    return (
        yield from change(
            job_id, Verb.MOVE, lambda row, at: transitions.place(row, row.rank, position, at), now, expect_version
        )
    )


def _alone_in_lane(job_id: JobId) -> Op[LiveJob | None]:
    """The live row, locked, while nobody else moves jobs of its queue: the two neighbours of a place must not move.
    The queue is locked first: its holder may need our row."""
    seen_in = yield from read.live_unlocked(job_id)
    if seen_in is not None:
        yield Call("lock_order", {"queue": seen_in.queue})
    live = yield from read.live(job_id)
    if live is not None and seen_in is not None and live.queue != seen_in.queue:
        raise Serialization("the job went to another queue while it was being moved; the move runs again")
    return live


def _refusal(live: LiveJob, verb: Verb, expect_version: int | None) -> TransitionRefused | None:
    """Checked before any place is taken or made, so that a refusal leaves nothing behind."""
    try:
        expect(live, expect_version)
        transitions.require(verb, live)
    except TransitionRefused as refused:
        return refused
    return None


def _position(live: LiveJob, to: Place, now: Micros) -> Op[int | PerdureError | None]:
    target_id = to.before or to.after
    if target_id == live.job_id:
        return None
    if target_id is not None:
        target = yield from _target(live, target_id)
        if isinstance(target, PerdureError):
            return target
        return (yield from _beside(live, target, now, in_front=to.before is not None))
    if to.front:
        lane = {"queue": live.queue, "rank": live.rank, "job_id": live.job_id}
        first = cast("int | None", (yield Call("first_in_rank", lane)).rows[0][0])
        return live.position if first is None or live.position < first else first - GAP
    return (yield from take_place(live.queue))


def _target(live: LiveJob, target_id: JobId) -> Op[LiveJob | PerdureError]:
    target = yield from read.live_unlocked(target_id)
    if target is None:
        ended = yield from seen(target_id)
        return not_found(target_id) if isinstance(ended, PerdureError) else _unfit(target_id, "it has ended")
    if not transitions.is_waiting(target):
        return _unfit(target_id, f"it is {target.state}")
    if target.queue != live.queue:
        return _unfit(target_id, f"it waits in queue {target.queue!r}, and this one in {live.queue!r}")
    if target.rank != live.rank:
        same = "gives both the same"
        remedy = Remedy(f"set_priority {same}", f"perdure priority {same}")
        return _unfit(target_id, "they have different priorities", remedy)
    return target


def _unfit(target_id: JobId, why: str, remedy: Remedy | None = None) -> TransitionRefused:
    return TransitionRefused(f"cannot move next to job {to_uuid(target_id)}: {why}", code="move_refused", remedy=remedy)


def _beside(live: LiveJob, target: LiveJob, now: Micros, *, in_front: bool) -> Op[int | PerdureError]:
    statement = "neighbours_before" if in_front else "neighbours_after"
    lane = {
        "queue": live.queue,
        "rank": live.rank,
        "job_id": live.job_id,
        "position": target.position,
        "other": target.job_id,
        "room": RESPACE + 1,
    }
    rows = (yield Call(statement, lane)).rows
    nearest = cast("int", rows[0][1]) if rows else None
    if nearest is None and not in_front:
        return (yield from take_place(live.queue))
    free = between(nearest, target.position) if in_front else between(target.position, nearest)
    if free is not None:
        return free
    made = yield from _respace(target.position, rows, now, in_front=in_front)
    if isinstance(made, int) and not in_front:
        pushed = made + GAP * (len(rows) + 1)  # at most: the next new job must not overtake those that were moved
        yield Call("keep_counter_ahead", {"queue": live.queue, "position": pushed})
    return made


def _respace(edge: int, rows: list[tuple[object, ...]], now: Micros, *, in_front: bool) -> Op[int | PerdureError]:
    """Spread the neighbours on one side of the gap over the room up to the first that is not moved."""
    sign = -1 if in_front else 1
    neighbours = cast("list[tuple[JobId, int, int]]", rows[:RESPACE])
    step = GAP
    if len(rows) > RESPACE:
        step = abs(cast("int", rows[RESPACE][1]) - edge) // (RESPACE + 2)
    if step < 1:
        return TransitionRefused(
            f"cannot move there: {RESPACE} jobs are too close together; move the job to the front or the back",
            code="gap_spent",
        )
    places = [(edge + sign * step * (nth + 2), job_id, version) for nth, (job_id, _, version) in enumerate(neighbours)]
    yield from place(places, now)
    return edge + sign * step
