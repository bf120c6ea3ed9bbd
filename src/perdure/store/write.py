"""The only writer of `ready`: new jobs, claims, changes, ends, moves and repairs. Called by every operation.

Every change of a live job is written by a function of this file, through the statements of `sql/write.sql`, and guarded
by the version that the decision was based on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from perdure.clock import Micros
from perdure.ids import JobId, NodeId
from perdure.job.model import GAP, Claim, LiveJob, NewJob, Origin, OutcomeRow, RunClosing, Transition
from perdure.job.states import State, Verb
from perdure.job.views import Job
from perdure.limit.key import keys_of
from perdure.store import permit
from perdure.store.engine import Blob, Call, Op, Tell

AWAKE = 10
"""So many jobs that come together and need the same are looked at by claims; the others stand in line."""


# -- new jobs --------------------------------------------------------------------------------------------------------


def insert(new: Sequence[NewJob], positions: Sequence[int]) -> Op[None]:
    """Insert all of these jobs at these places. Their keys are already reserved."""
    if all(map(_is_plain, new)):
        yield Tell("insert_plain_job", list(map(_plain_job_row, new)))
        yield Tell("insert_plain_ready", list(map(_plain_ready_row, new, positions)))
    elif all(map(_is_plain_member, new)):
        yield Tell("insert_member_job", list(map(_member_job_row, new)))
        yield Tell("insert_member_ready", list(map(_member_ready_row, new, positions)))
    else:
        yield Tell("insert_job", list(map(_job_row, new)))
        lines = _lines(new, positions)
        rows = [_ready_row(job, place, lines.get(job.id)) for job, place in zip(new, positions, strict=True)]
        yield Tell("insert_ready", rows)
    tags = [(job.id, tag) for job in new for tag in job.plan.tags]
    if tags:
        yield Tell("insert_tag", tags)


def insert_one(new: NewJob) -> Op[list[Job]]:
    """Insert one job at the back of its queue: the most common case, with as little overhead as possible."""
    queue = new.plan.queue
    taken = yield "take_places", (GAP, queue)
    if not taken.changed:
        taken = yield "make_queue_with_room", (queue, GAP)
    ((following,),) = taken.rows or (yield "read_next_position", (queue,)).rows
    position: int = following - GAP
    if _is_plain(new):
        yield Tell("insert_plain_job", (Blob(new.id), *new.plan[:4], new.payload, new.created_at))
        yield Tell("insert_plain_ready", _plain_ready_row(new, position))
    else:
        yield Tell("insert_job", _job_row(new))
        yield Tell("insert_ready", _ready_row(new, position))
    if new.plan.tags:
        yield Tell("insert_tag", [(new.id, tag) for tag in new.plan.tags])
    return [Job.fresh(new, position)]


def _is_plain(new: NewJob) -> bool:
    return _is_bare(new) and not new.waits_for and new.flow_id is None and not new.traits


def _is_plain_member(new: NewJob) -> bool:
    return _is_bare(new) and new.sequence is not None


def _is_bare(new: NewJob) -> bool:
    return (
        new.plan.plain
        and new.secrets is None
        and new.parent_id is None
        and new.origin is None
        and new.idempotency_key is None
        and new.business_key is None
        and new.refs is None
    )


def _plain_job_row(new: NewJob) -> tuple[object, ...]:
    return (Blob(new.id), *new.plan[:4], new.payload, new.created_at)


def _member_job_row(new: NewJob) -> tuple[object, ...]:
    return (*_plain_job_row(new), new.flow_id, new.sequence)


def _job_row(new: NewJob) -> tuple[object, ...]:
    plan = new.plan
    head, shown, keys_of = plan[:4], plan[4:7], (new.idempotency_key, new.business_key)
    origin = new.origin or Origin()
    rest = (*origin, new.flow_id, new.sequence, new.refs, plan.limit_key)
    return (new.id, *head, new.payload, new.secrets, *shown, *keys_of, new.parent_id, new.created_at, *rest)


def _plain_ready_row(new: NewJob, position: int) -> tuple[object, ...]:
    job_id, plan, _, _, created_at, run_at, state, *_ = new
    kind, kind_version, _, queue, _, _, _, rank, max_attempts, as_new_job, *_ = plan
    start = (Blob(job_id), queue, kind, kind_version, state, rank, position, run_at, created_at)
    return (*start, max_attempts, as_new_job)


def _member_ready_row(new: NewJob, position: int) -> tuple[object, ...]:
    return (*_plain_ready_row(new, position), new.waits_for, new.flow_id, new.traits)


def _lines(new: Sequence[NewJob], positions: Sequence[int]) -> dict[JobId, str]:
    """Those of many jobs of one key that stand in its line from the start: no claim has to look at each of them.

    Whether the key is full is not asked. The first of those that need the same in the same queue stay awake, and
    whoever looks at them sees to the line too: that is all that `limit` asks for.
    """
    counts = Counter([(job.plan.limit_key, job.plan.queue) for job in new if job.state == State.HELD])
    many = {alike: keys_of(alike[0])[0] for alike, count in counts.items() if count > AWAKE}
    if not many:
        return {}
    limited: dict[tuple[str | None, str], list[tuple[int, int, JobId]]] = {alike: [] for alike in many}
    for job, position in zip(new, positions, strict=True):
        alike = (job.plan.limit_key, job.plan.queue)
        if alike in many and job.state == State.HELD:
            limited[alike].append((job.plan.rank, position, job.id))
    return {job_id: many[alike] for alike, jobs in limited.items() for *_, job_id in sorted(jobs)[AWAKE:]}


def _ready_row(new: NewJob, position: int, held_by: str | None = None) -> tuple[object, ...]:
    plan = new.plan
    return (
        *_plain_ready_row(new, position),
        plan.timeout_ms,
        new.waits_for,
        plan.limit_key,
        new.business_key,
        None if new.sequence is None else new.flow_id,
        new.traits,
        held_by,
    )


# -- claims ----------------------------------------------------------------------------------------------------------


def open_runs(claims: Sequence[Claim], node: NodeId, now: Micros) -> Op[None]:
    """Set these jobs to running, as each claim says, and open a run for each."""
    updates: list[tuple[object, ...]] = []
    runs: list[tuple[object, ...]] = []
    node_id = Blob(node)
    for job in claims:
        live = job.live
        job_id, run_id = Blob(live.job_id), Blob(job.run_id)
        updates.append((live.started_at, node_id, run_id, now, live.deadline_at, job_id, live.version - 1))
        waited = max(0, now - max(live.run_at, live.queued_at)) // 1000
        runs.append((run_id, job_id, node_id, live.attempts, live.life, now, waited))
    yield Tell("claim_ready", updates, len(updates))
    yield Tell("insert_run", runs)


def stand_in_line(rows: Sequence[tuple[object, ...]]) -> Op[None]:
    """Put jobs in the lines of keys that they found full: key, time, job, version."""
    yield Tell("stand_in_line", list(rows), len(rows))


def wake(rows: Sequence[tuple[object, ...]], queues: Iterable[str]) -> Op[None]:
    """Let the next claim look at these jobs of lines in these queues: time, job, version."""
    yield Tell("wake", list(rows), len(rows))
    yield from ring(queues)


# -- changes and ends ------------------------------------------------------------------------------------------------


def change(batch: Sequence[Transition], now: Micros, to_claim: Sequence[Transition] | None = None) -> Op[bool]:
    """Write these transitions, of different jobs, each as it was read, without a question. True: some of the jobs end,
    and `follow` knows what that means for others. `Outrun`: one of them has changed since.

    `to_claim`: those that give permits back (`permit.left`), where the claim of this transaction looks at who waits for
    the room that becomes free, of a key or of a queue; None: word is left of it.

    One batch per table: hot rows (the guards), permits, runs, outcomes, then keys of the ended jobs.
    """
    yield from _change_rows(batch)
    leaving = permit.left(batch) if to_claim is None else to_claim
    if leaving:
        yield from permit.free(leaving)
        if to_claim is None:
            yield from permit.leave_word(leaving)
    if to_claim is None:
        yield from _ring_for_room(t.before.queue for t in batch if t.run is not None)
    yield from _close_runs([t.run for t in batch if t.run is not None])
    ended = [t for t in batch if t.outcome is not None]
    if ended:
        yield from _insert_outcomes([t.outcome for t in batch if t.outcome is not None])
        yield from _insert_successors(ended, now)
        yield from _free_keys(ended)
    return bool(ended)


def _change_rows(batch: Sequence[Transition]) -> Op[None]:
    ended = [t.before for t in batch if t.after is None]
    by_run = [(Blob(live.job_id), Blob(live.run_id), live.version) for live in ended if live.run_id is not None]
    if by_run:
        yield Tell("delete_ready_of_run", by_run, len(by_run))
    by_version = [(live.job_id, live.version) for live in ended if live.run_id is None]
    if by_version:
        yield Tell("delete_ready", by_version, len(by_version))
    unblocked = [_unblocked(t.after, t.before.version) for t in batch if t.after is not None and t.verb is Verb.UNBLOCK]
    if unblocked:
        yield Tell("unblock_ready", unblocked, len(unblocked))
    updates = [_update(t.after, t.before.version) for t in batch if t.after is not None and t.verb is not Verb.UNBLOCK]
    if updates:
        yield Tell("update_ready", updates, len(updates))
    if unblocked or updates:
        yield from ring(t.after.queue for t in batch if t.after is not None and _is_news(t.before, t.after))


def _is_news(before: LiveJob, after: LiveJob) -> bool:
    """Whether a worker that sleeps should hear of it: a job may start, or its run is to stop."""
    return after.state == State.QUEUED or after.cancel_requested > before.cancel_requested


def ring(queues: Iterable[str]) -> Op[None]:
    """Wake the workers that sleep and serve one of these queues, when the transaction commits."""
    for queue in dict.fromkeys(queues):
        yield Tell("ring", {"queue": queue})


def _ring_for_room(queues: Iterable[str]) -> Op[None]:
    """Runs of these queues have ended: where a queue has a limit, the next job may start."""
    names = dict.fromkeys(queues)
    for queue in (*names, "*") if names else ():
        yield Tell("ring_if_limited", {"queue": queue})


def _close_runs(closings: Sequence[RunClosing]) -> Op[None]:
    """Most runs have only a duration to record; the others bind six more columns."""
    plain = [
        (run.state, run.finished_at, run.duration_ms, Blob(run.run_id)) for run in closings if run[3:9] == _SIX_EMPTY
    ]
    if plain:
        yield Tell("close_run_plainly", plain, len(plain))
    if len(plain) < len(closings):
        detailed = [run for run in closings if run[3:9] != _SIX_EMPTY]
        yield Tell("close_run", detailed, len(detailed))


def _insert_outcomes(outcomes: Sequence[OutcomeRow]) -> Op[None]:
    plain = [(Blob(end[0]), *end[1:13], end.version) for end in outcomes if end[13:17] == _FOUR_EMPTY]
    if plain:
        yield Tell("insert_plain_outcome", plain)
    if len(plain) < len(outcomes):
        yield Tell("insert_outcome", [end for end in outcomes if end[13:17] != _FOUR_EMPTY])


_SIX_EMPTY = (None,) * 6
_FOUR_EMPTY = (None,) * 4


def _unblocked(after: LiveJob, expected: int) -> tuple[object, ...]:
    return after.waits_for, after.state, after.queued_at, after.updated_at, after.job_id, expected


def _update(after: LiveJob, expected: int) -> tuple[object, ...]:
    return (*after[1:], after.job_id, expected)


def _insert_successors(ended: Sequence[Transition], now: Micros) -> Op[None]:
    for transition in ended:
        if transition.successor is not None:
            live, source = transition.successor
            yield from copy(source, live, now, auto_retry_of=source, chain_step=1)


def copy(source: JobId, live: LiveJob, now: Micros, *, auto_retry_of: JobId | None, chain_step: int) -> Op[None]:
    """A job like `source` with the id of `live`, linked to it by retry_of."""
    yield Tell(
        "copy_job",
        {
            "id": live.job_id,
            "auto_retry_of": auto_retry_of,
            "chain_step": chain_step,
            "created_at": now,
            "limit_key": live.limit_key,
            "source": source,
        },
    )
    yield Tell("copy_tags", {"id": live.job_id, "source": source})
    yield from insert_live(live)


def _free_keys(ended: Sequence[Transition]) -> Op[None]:
    for transition in ended:
        live = transition.before
        if live.business_key is None:
            continue
        own = {"key": live.business_key, "job_id": live.job_id}
        if transition.successor is not None:
            yield Tell("move_business_key", own | {"new_owner": transition.successor.live.job_id})
        else:
            yield Tell("free_business_key", own)


# -- by hand ---------------------------------------------------------------------------------------------------------


def insert_live(live: LiveJob) -> Op[None]:
    """Insert a live row unchanged: a new life of a job that has ended."""
    yield Tell("insert_live", live)
    yield from ring([live.queue])


def replace(before: LiveJob, after: LiveJob) -> Op[None]:
    """Another row for the same job.

    Not an UPDATE: a claim that has read the old payload and waits for our lock (servers) would then take the new row
    with the old payload.
    """
    yield from permit.leave_word(permit.left([Transition(Verb.EDIT, before)]))
    yield Tell("delete_ready", (before.job_id, before.version), 1)
    yield from insert_live(after)


def flag(lives: Iterable[LiveJob], trait: int, now: Micros) -> Op[None]:
    """Their ends have more to look after: see `Trait`."""
    rows = [(live.traits | trait, now, live.job_id, live.version) for live in lives if not live.traits & trait]
    if rows:
        yield Tell("flag_ready", rows, len(rows))


def place(places: Sequence[tuple[int, JobId, int]], now: Micros) -> Op[None]:
    """Give these jobs, at these versions, other positions."""
    rows = [(position, now, job_id, version) for position, job_id, version in places]
    yield Tell("respace", rows, len(rows))


def remove_ended() -> Op[int]:
    """Remove live rows of lives that have ended (a repair). Returns how many."""
    return (yield Call("delete_ended_ready")).changed


DAMAGED = "no worker can handle a value in this job's row; perdure doctor names it: cancel the job and enqueue it again"


def set_aside(now: Micros) -> Op[int]:
    """Park the live jobs whose rows another program has damaged, so that no worker can run them. Returns how many."""
    parked = (yield Call("set_aside_damaged", {"reason": DAMAGED, "now": now})).changed
    if parked:
        yield Call("close_open_runs", {"now": now, "error_type": "Unreadable", "error_message": DAMAGED})
    return parked
