"""Flows: made with their jobs, filled, sealed, shown, and ended when they are complete.

Called by `app` and the worker's turn through `store`. How members are counted is in `follow`, what is done to a whole
flow in `whole_flow`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import cast

from perdure.clock import Micros
from perdure.errors import FlowNotFound, KeyConflict, PerdureError, TransitionRefused
from perdure.ids import FlowId, JobId, NodeId, to_uuid
from perdure.job import transitions
from perdure.job.flow import STOPPED, EdgeRow, FlowRow, FlowState, NewFlow, Source, TallyRow
from perdure.job.model import LiveJob, NewJob, Transition
from perdure.job.states import State
from perdure.job.views import Job
from perdure.limit.key import flow_key
from perdure.store.engine import (
    BEGIN_PART,
    END_PART,
    RELEASE,
    ROLLBACK_TO,
    SAVEPOINT,
    UNDO_PART,
    Call,
    Op,
    Serialization,
    Tell,
    UniqueViolation,
)
from perdure.store.enqueue import enqueue_bound, insert_members
from perdure.store.follow import (
    NOBODY,
    PORTION,
    End,
    apply,
    end_complete,
    follow,
    is_complete,
    leave,
    limit_members,
    lock_live,
    read_flow,
    settle_edges,
    sources,
    with_counts,
)
from perdure.store.permit import needing
from perdure.store.protocols import Locked
from perdure.store.rows import FIRST_ID, Page, Spot
from perdure.store.statements import groups, whole_group

COUNTED = 1_000
"""How far the running members of a flow are counted."""

Refusal = PerdureError


# -- new flows and members -------------------------------------------------------------------------------------------


def start_flows(
    flows: Sequence[NewFlow], jobs: Sequence[NewJob], conflict: str = "raise"
) -> Op[tuple[FlowRow, list[Job]] | Refusal]:
    """Insert these flows, the outermost first, and these jobs, with what each of them waits for: all or nothing."""
    first = flows[0]
    ids = [flow.id for flow in flows]
    totals = Counter(job.flow_id for job in jobs if job.flow_id is not None and job.sequence is not None)
    totals.update(flow.parent_id for flow in flows if flow.parent_id is not None)
    refusal = yield from _add_to_others(totals, ids)
    if refusal is not None:
        return refusal
    holder = yield from _insert_flows(flows, totals)
    if holder is not None:
        taken = yield from shown(holder)
        assert taken is not None
        return (taken, []) if conflict == "return" else _key_taken(first, taken)
    for other in totals.keys() - set(ids):
        yield Tell("count_in_tally", [TallyRow(other, NodeId(other), added=totals[other])])
    for flow in flows:
        yield from limit_members(flow.id, flow.at_once)
    limited = {flow.id for flow in flows if flow.at_once is not None}
    if limited:
        jobs = needing_permits(jobs, limited)
    fillers = [flow.filled_by for flow in flows if flow.filled_by is not None]
    enqueued = (yield from enqueue_bound(jobs, ids, fillers)) if jobs else []
    if isinstance(enqueued, PerdureError):
        raise enqueued  # the flows are written already: nothing of them may remain
    yield from look(ids, first.created_at)
    for flow in flows:
        if flow.open and flow.filled_by is None:  # changes nothing: who may not fill it must not leave it open for ever
            yield Tell("fill_again", {"id": flow.id})
    started = yield from shown(first.id)
    assert started is not None
    return started, enqueued


def _add_to_others(totals: Counter[FlowId], made: Sequence[FlowId]) -> Op[Refusal | None]:
    """Lock the flows that exist and get new members. Refuses if one of them is not there, or has ended."""
    for flow_id in sorted(totals.keys() - set(made)):
        flow = yield from locked(flow_id)
        if isinstance(flow, PerdureError):
            return flow
        if flow.finished_at is not None:
            return _takes_no_more(flow)
    return None


def _takes_no_more(flow: FlowRow) -> TransitionRefused:
    was = "cancelled" if flow.cancel_requested_at else "sealed" if flow.finished_at is None else "ended"
    return TransitionRefused(
        f"cannot add to {flow.sort} {to_uuid(flow.id)}: it is {was}; start a new one", code="flow_sealed"
    )


def _insert_flows(flows: Sequence[NewFlow], totals: Counter[FlowId]) -> Op[FlowId | None]:
    """Returns the flow that has the key of one of them, and then nothing is written."""
    keyed = [flow for flow in flows if flow.key is not None]
    for _ in range(2):
        for flow in keyed:
            for (holder,) in (yield Call("flow_with_key", {"live_key": flow.key})).rows:
                return cast("FlowId", holder)
        yield SAVEPOINT
        try:
            yield Call("insert_flow", [(*_flow_row(flow, totals[flow.id]), flow.key) for flow in flows])
        except UniqueViolation:
            yield ROLLBACK_TO
            yield RELEASE
            continue  # somebody was faster: found in the next round
        yield RELEASE
        return None
    raise Serialization("a key was free, then taken, then free again; the operation runs again")


def _flow_row(new: NewFlow, total: int) -> tuple[object, ...]:
    row = FlowRow(
        id=new.id,
        sort=new.sort,
        name=new.name,
        owner=new.owner,
        key=new.key,
        parent_id=new.parent_id,
        filled_by=new.filled_by,
        on_failure=new.on_failure,
        at_once=new.at_once,
        properties=new.properties,
        principal=new.principal,
        state=FlowState.RUNNING.value,
        attempt=1,
        total=total,
        completed=0,
        failed=0,
        cancelled=0,
        skipped=0,
        run_ms=0,
        wait_ms=0,
        attempts=0,
        created_at=new.created_at,
        sealed_at=None if new.open else new.created_at,
        paused_at=None,
        cancel_requested_at=None,
        finished_at=None,
    )
    return row[:-1]


def _key_taken(new: NewFlow, holder: FlowRow) -> KeyConflict:
    return KeyConflict(
        f"key {new.key!r} is held by {holder.sort} {to_uuid(holder.id)}, which has not ended; wait for it, cancel it,"
        ' or use conflict="return" to get it',
        code="flow_key_taken",
    )


def add_members(
    flow_id: FlowId, jobs: Sequence[NewJob], now: Micros, *, perhaps_again: bool = False
) -> Op[int | Refusal]:
    """Add jobs to an open flow. `perhaps_again`: those that are there already, by their ids, are left as they are.
    Returns how many were not there."""
    flow = yield from locked(flow_id)
    if isinstance(flow, PerdureError):
        return flow
    if flow.finished_at is not None or flow.sealed_at is not None:
        return _takes_no_more(flow)
    new = (yield from _unknown(jobs)) if perhaps_again else jobs
    if not new:
        return 0
    if flow.at_once is not None:
        new = needing_permits(new, {flow_id})
    refusal = yield from insert_members(new)
    if refusal is not None:
        return refusal
    counted = sum(job.sequence is not None for job in new)
    yield Tell("count_in_tally", [TallyRow(flow_id, NodeId(flow_id), added=counted)])
    verb = yield from _standing(flow)
    if verb is not None:
        yield from share(new, {flow_id: verb}, now)
    return len(new)


def needing_permits(jobs: Sequence[NewJob], flows: Collection[FlowId]) -> list[NewJob]:
    """Of these flows only so many members run at once: each needs a permit of its flow."""
    return [
        needing(job, flow_key(job.flow_id))
        if job.flow_id is not None and job.flow_id in flows and job.sequence is not None
        else job
        for job in jobs
    ]


def grown(jobs: Sequence[NewJob]) -> Op[tuple[list[NewJob], dict[FlowId, str]]]:
    """Jobs that handlers add to their flows, as those flows have them; and what was decided about which of the flows,
    to be shared by these jobs. Who decides from now on has to wait until they are there."""
    limited: set[FlowId] = set()
    decided: dict[FlowId, str] = {}
    for group in groups(sorted({job.flow_id for job in jobs if job.flow_id is not None})):
        for flow in map(FlowRow.read, (yield Call("share_these_flows", whole_group(group))).rows):
            if flow.at_once is not None:
                limited.add(flow.id)
            verb = yield from _standing(flow)
            if verb is not None:
                decided[flow.id] = verb
    return needing_permits(jobs, limited), decided


def _unknown(jobs: Sequence[NewJob]) -> Op[list[NewJob]]:
    """Those of these jobs that are not there yet."""
    known: set[JobId] = set()
    for group in groups(jobs):
        known.update(job_id for (job_id,) in (yield Call("jobs_there", whole_group(job.id for job in group))).rows)
    return [job for job in jobs if job.id not in known]


def _standing(flow: FlowRow) -> Op[str | None]:
    """What was decided about a flow, and goes for members that come later too."""
    if flow.cancel_requested_at is not None:
        return "cancel"
    around: FlowRow | None = flow
    while around is not None:
        counted = (yield from read_flow(around.id)) if around.on_failure == "stop" else None
        if counted is not None and counted.failed > 0:
            return "stop"
        around = None if around.parent_id is None else (yield from read_flow(around.parent_id))
    return "pause" if flow.paused_at is not None else None


def _stop(live: LiveJob, now: Micros) -> Transition | None:
    if live.state == State.RUNNING:
        return None
    return transitions.unmet(live, "its flow stopped after a failure", now, STOPPED)


def _pause(live: LiveJob, now: Micros) -> Transition | None:
    return None if live.state == State.RUNNING else transitions.pause(live, now)


def _resume(live: LiveJob, now: Micros) -> Transition | None:
    return transitions.resume(live, now) if live.paused else None


DECISIONS: dict[str, Callable[[LiveJob, Micros], Transition | None]] = {
    "cancel": transitions.cancel,
    "stop": _stop,
    "pause": _pause,
    "resume": _resume,
}


def share(new: Sequence[NewJob], decided: Mapping[FlowId, str], now: Micros) -> Op[None]:
    """Do to these members, which have just come, what was decided about their flows."""
    verbs = {
        job.id: decided[job.flow_id]
        for job in new
        if job.flow_id is not None and job.flow_id in decided and job.sequence is not None
    }
    written = [DECISIONS[verbs[live.job_id]](live, now) for live in (yield from lock_live(verbs))]
    if any(written):
        yield from apply([one for one in written if one is not None], now)


def seal_flow(flow_id: FlowId, now: Micros) -> Op[FlowRow | Refusal]:
    """No more members come from outside. A flow whose members have all ended, or that has none, ends now."""
    flow = yield from locked(flow_id)
    if isinstance(flow, PerdureError):
        return flow
    yield Tell("seal_flow", {"now": now, "id": flow_id})
    yield from look_twice(flow_id, now)
    return (yield from seen(flow_id))


def look_twice(flow_id: FlowId, now: Micros) -> Op[None]:
    """Whoever ends the last member at the same time does not see that the flow is sealed, nor do we see that end: where
    it goes on, a worker looks once more after this transaction."""
    yield from look([flow_id], now)
    flow = yield from read_flow(flow_id)
    if flow is not None and flow.finished_at is None:
        yield from leave([(flow_id, "look")], now)


def locked(flow_id: FlowId) -> Op[FlowRow | FlowNotFound]:
    rows = (yield Call("lock_flow", {"id": flow_id})).rows
    return (yield from with_counts(FlowRow.read(rows[0]))) if rows else flow_not_found(flow_id)


def flow_not_found(flow_id: bytes) -> FlowNotFound:
    return FlowNotFound(
        f"there is no flow {to_uuid(flow_id)}; check the id and the database, and whether it was pruned"
    )


# -- looking ---------------------------------------------------------------------------------------------------------


def shown(flow_id: FlowId) -> Op[FlowRow | None]:
    """The flow as it is now. None: there is no such flow."""
    flow = yield from read_flow(flow_id)
    if flow is None or flow.finished_at is not None:
        return flow
    running = (yield Call("count_running_of_flow", {"flow_id": flow_id, "cap": COUNTED})).rows[0][0]
    return flow._replace(running=running)


def seen(flow_id: FlowId) -> Op[FlowRow | Refusal]:
    return (yield from shown(flow_id)) or flow_not_found(flow_id)


def flows(state: str | None, name: str | None, below: bytes, size: int) -> Op[list[FlowRow]]:
    """Up to `size` flows that fit, newest first, with ids below `below`; the flows inside others are left out."""
    params = {"below": below, "state": state, "name": name, "page": size}
    listing = "list_flows" if state in (None, FlowState.COMPLETED) else "list_flows_in_state"
    return (yield from _counted((yield Call(listing, params)).rows))


def inner_flows(flow_id: FlowId) -> Op[list[FlowRow]]:
    """The flows directly inside this one, in the order of their making."""
    return (yield from _counted((yield Call("list_inner_flows", {"parent_id": flow_id})).rows))


def _counted(rows: Sequence[tuple[object, ...]]) -> Op[list[FlowRow]]:
    found: list[FlowRow] = []
    for row in rows:
        found += [(yield from with_counts(FlowRow.read(row)))]
    return found


def flow_jobs(flow_id: FlowId, state: str | None, after: Spot | None, size: int) -> Op[Page[Job]]:
    """The jobs that belong to this flow (not to those inside it), by their number; callbacks first."""
    ids: list[JobId] = []
    if after is None:
        ids = [job_id for (job_id,) in (yield Call("list_callbacks", {"flow_id": flow_id, "page": size})).rows]
    spot = after or Spot(FIRST_ID, position=-1)
    rows = yield from members_of(flow_id, (spot.position, spot.id), size)
    ids += [job_id for _, job_id in rows]
    jobs: dict[bytes, Job] = {}
    for group in groups(ids):
        for row in (yield Call("these_shown", whole_group(group))).rows:
            job = Job.read(row)
            jobs[job.row.id] = job
    fitting = [jobs[job_id] for job_id in ids if job_id in jobs and state in (None, jobs[job_id].row.state)]
    following = Spot(rows[-1][1], position=rows[-1][0]) if len(rows) == size else None
    return Page(fitting, following)


Place = tuple[int, bytes]


def members_of(flow_id: FlowId, after: Place, size: int) -> Op[list[tuple[int, JobId]]]:
    params = {"flow_id": flow_id, "sequence": after[0], "id": after[1], "page": size}
    return cast("list[tuple[int, JobId]]", (yield Call("list_members", params)).rows)


def flow_edges(flow_id: FlowId, after: Spot | None, size: int) -> Op[Page[EdgeRow]]:
    """What the jobs of this flow wait for, or waited for: of `size` jobs at a time, in the order of `flow_jobs`."""
    page = yield from flow_jobs(flow_id, None, after, size)
    order = {job.row.id: place for place, job in enumerate(page.items)}
    edges: list[EdgeRow] = []
    for group in groups(list(order)):
        edges += map(EdgeRow._make, (yield Call("edges_of_jobs", whole_group(group))).rows)
    return Page(sorted(edges, key=lambda edge: order[edge.job_id]), page.next)


def results(flow_id: FlowId, after: int, size: int) -> Op[list[tuple[int, Source]]]:
    """How the members with numbers above `after` ended, by number."""
    rows = yield from members_of(flow_id, (after, b"\xff" * 16), size)
    found = yield from sources([job_id for _, job_id in rows])
    numbers = {number: found[job_id] for number, job_id in reversed(rows)}  # of a chain of jobs: the first leads to all
    return sorted((number, source) for number, source in numbers.items() if source.state is not None)


# -- ends --------------------------------------------------------------------------------------------------------------


def look(flows: Iterable[FlowId], now: Micros) -> Op[None]:
    """End those of these flows that are complete, with all that follows from it. One that somebody has locked is left
    to the work list."""
    held, _ = yield from end_these(flows, now)
    yield from leave(((flow_id, "look") for flow_id in held), now, NOBODY)


def look_if_free(flows: Sequence[FlowId], now: Micros) -> Op[bool]:
    """The same, where all of it is left to the work list if something that it needs is locked by somebody. Returns
    whether a failure has decided about a flow: see `begin_decisions`."""
    yield BEGIN_PART
    try:
        held, decided = yield from end_these(flows, now)
        yield from leave(((flow_id, "look") for flow_id in held), now, NOBODY)
        yield Call("begin_writing")  # asks for nothing, but what was told is done when it returns
    except Locked:
        yield UNDO_PART
        yield from leave(((flow_id, "look") for flow_id in flows), now, NOBODY)
        decided = False
    yield END_PART
    return decided


def end_these(flows: Iterable[FlowId], now: Micros) -> Op[tuple[list[FlowId], bool]]:
    """Returns those that are complete, but locked by somebody; and whether the end of one was a failure that decides
    about a flow around it."""
    seen = yield from end_complete(flows, now)
    decided = False
    for flow in seen:
        if flow.finished_at is not None:
            decided |= yield from _after(flow, now)
    return [flow.id for flow in seen if flow.finished_at is None and is_complete(flow)], decided


def _after(flow: FlowRow, now: Micros) -> Op[bool]:
    # not in the row of nobody, which a caller's own transaction may have locked
    outer = [] if flow.parent_id is None else [TallyRow.of(flow.parent_id, NodeId(flow.id), flow.state)]
    rows = (yield Call("waiting_edges", (*whole_group([flow.id]), PORTION))).rows
    settled = yield from settle_edges(rows, {flow.id: End(flow.state, is_flow=True)}, now)
    if len(rows) == PORTION:
        yield from leave([(flow.id, "unblock")], now)
    if not settled.skipped and not outer:
        return False
    followed = yield from follow(settled.skipped, now, outer)
    yield from leave(((one, "look") for one in sorted(followed.unfinished)), now, flow.id)
    return bool(followed.decided)
