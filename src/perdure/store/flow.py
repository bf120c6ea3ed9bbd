"""Flows: made with their jobs, filled, sealed, shown, decided about as a whole; and the work list, done in portions.

Called by `app` and the worker's turn through `store`. How members are counted and how a flow ends is in `follow`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, cast

from perdure.clock import Micros
from perdure.errors import FlowNotFound, KeyConflict, PerdureError, Remedy, TransitionRefused
from perdure.ids import FlowId, JobId, NodeId, to_uuid
from perdure.job import transitions
from perdure.job.flow import (
    NEVER_RAN,
    STOPPED,
    EdgeRow,
    EdgeState,
    FlowRow,
    FlowState,
    FlowVerb,
    NewFlow,
    Source,
    TallyRow,
)
from perdure.job.model import LiveJob, NewJob, OutcomeRow, Transition
from perdure.job.states import FINAL, State
from perdure.job.views import Job
from perdure.limit.key import flow_key
from perdure.store import read
from perdure.store.control import flows_of_end, revive
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
from perdure.store.enqueue import enqueue_bound, enqueue_members
from perdure.store.follow import (
    NOBODY,
    PORTION,
    End,
    apply,
    end_complete,
    follow,
    is_complete,
    last_ends,
    leave,
    limit_members,
    lock_live,
    read_flow,
    release,
    settle_edges,
    settled_edges,
    sources,
    with_counts,
)
from perdure.store.permit import needing
from perdure.store.protocols import Locked
from perdure.store.rows import FIRST_ID, Page, Spot
from perdure.store.statements import groups, whole_group

COUNTED = 1_000
"""How far the running members of a flow are counted."""
SETTLED_AT_ONCE = 20
"""How many entries of the work list a turn looks at; of the wide ones it does one portion."""

WIDE_TRIED = 4
"""So many of the wide ones are tried, if somebody has locked what the first of them need."""
UNBLOCKED_AT_ONCE = 100
SEVERAL = 2

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
    jobs = needing_permits(jobs, {flow.id for flow in flows if flow.at_once is not None})
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
        flow = yield from _locked(flow_id)
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
) -> Op[list[Job] | Refusal]:
    """Add jobs to an open flow. `perhaps_again`: those that are there already, by their ids, are returned as they are,
    marked `deduplicated`."""
    flow = yield from _locked(flow_id)
    if isinstance(flow, PerdureError):
        return flow
    if flow.finished_at is not None or flow.sealed_at is not None:
        return _takes_no_more(flow)
    known = (yield from _known(jobs)) if perhaps_again else {}
    new = [job for job in jobs if job.id not in known] if known else jobs
    if flow.at_once is not None:
        new = needing_permits(new, {flow_id})
    enqueued = (yield from enqueue_members(new)) if new else []
    if isinstance(enqueued, PerdureError):
        return enqueued
    if new:
        counted = sum(job.sequence is not None for job in new)
        yield Tell("count_in_tally", [TallyRow(flow_id, NodeId(flow_id), added=counted)])
        verb = yield from _standing(flow)
        if verb is not None:
            yield from share(new, {flow_id: verb}, now)
            seen = yield from _known(new, deduplicated=False)
            enqueued = [seen[job.id] for job in new]
    fresh = iter(enqueued)
    return [known.get(job.id) or next(fresh) for job in jobs] if known else enqueued


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


def share(new: Sequence[NewJob], decided: Mapping[FlowId, str], now: Micros) -> Op[None]:
    """Do to these members, which have just come, what was decided about their flows."""
    verbs = {
        job.id: decided[job.flow_id]
        for job in new
        if job.flow_id is not None and job.flow_id in decided and job.sequence is not None
    }
    written = [_DECISIONS[verbs[live.job_id]](live, now) for live in (yield from lock_live(verbs))]
    if any(written):
        yield from apply([one for one in written if one is not None], now)


def _known(jobs: Sequence[NewJob], *, deduplicated: bool = True) -> Op[dict[JobId, Job]]:
    """Those of these jobs that are there."""
    known: dict[JobId, Job] = {}
    for group in groups(jobs):
        for row in (yield Call("these_shown", whole_group(job.id for job in group))).rows:
            job = Job.read(row, deduplicated=deduplicated)
            known[job.row.id] = job
    return known


def seal_flow(flow_id: FlowId, now: Micros) -> Op[FlowRow | Refusal]:
    """No more members come from outside. A flow whose members have all ended, or that has none, ends now."""
    flow = yield from _locked(flow_id)
    if isinstance(flow, PerdureError):
        return flow
    yield Tell("seal_flow", {"now": now, "id": flow_id})
    yield from _look_twice(flow_id, now)
    return (yield from _seen(flow_id))


def _look_twice(flow_id: FlowId, now: Micros) -> Op[None]:
    """Whoever ends the last member at the same time does not see that the flow is sealed, nor do we see that end: where
    it goes on, a worker looks once more after this transaction."""
    yield from look([flow_id], now)
    flow = yield from read_flow(flow_id)
    if flow is not None and flow.finished_at is None:
        yield from leave([(flow_id, "look")], now)


def _locked(flow_id: FlowId) -> Op[FlowRow | FlowNotFound]:
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


def _seen(flow_id: FlowId) -> Op[FlowRow | Refusal]:
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
    rows = yield from _members(flow_id, (spot.position, spot.id), size)
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


def _members(flow_id: FlowId, after: Place, size: int) -> Op[list[tuple[int, JobId]]]:
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
    rows = yield from _members(flow_id, (after, b"\xff" * 16), size)
    found = yield from sources([job_id for _, job_id in rows])
    numbers = {number: found[job_id] for number, job_id in reversed(rows)}  # of a chain of jobs: the first leads to all
    return sorted((number, source) for number, source in numbers.items() if source.state is not None)


# -- deciding --------------------------------------------------------------------------------------------------------


def change_flow(flow_id: FlowId, verb: FlowVerb, now: Micros) -> Op[FlowRow | Refusal]:
    """Cancel, pause or resume all members. The first of them at once, the others by the workers, in portions."""
    flow = yield from _locked(flow_id)
    if isinstance(flow, PerdureError):
        return flow
    if flow.finished_at is not None:
        if verb == "cancel" and flow.state == FlowState.CANCELLED:
            return flow
        return TransitionRefused(
            f"cannot {verb} {flow.sort} {to_uuid(flow_id)}: it is {flow.state}, which is final", code=f"{verb}_refused"
        )
    yield from _mark(flow, verb, now)
    reached = yield from _portion(flow.id, verb, None, now)
    if reached is not None:
        yield Tell("insert_todo", (verb, flow.id, flow.id, reached, now))
    yield from _look_twice(flow.id, now)
    return (yield from _seen(flow_id))


_OPPOSITE = {"pause": "resume", "resume": "pause"}


def _mark(flow: FlowRow, verb: str, now: Micros) -> Op[None]:
    """Write down what was decided about the flow; what is left of an earlier decision to the contrary is forgotten."""
    yield Tell("mark_flow", _marked(flow, verb, now))
    if verb in _OPPOSITE:
        yield Tell("forget_todo", {"what": _OPPOSITE[verb], "subject": flow.id})


def _marked(flow: FlowRow, verb: str, now: Micros) -> tuple[object, ...]:
    """The parameters of `mark_flow`. "stop" is a matter of those that have not started: it leaves the flow as it is."""
    paused_at = {"pause": flow.paused_at or now, "resume": None}.get(verb, flow.paused_at)
    if verb != "cancel":
        return paused_at, flow.cancel_requested_at, flow.sealed_at, flow.id
    return paused_at, flow.cancel_requested_at or now, flow.sealed_at or now, flow.id


def _stop(live: LiveJob, now: Micros) -> Transition | None:
    if live.state == State.RUNNING:
        return None
    return transitions.unmet(live, "its flow stopped after a failure", now, STOPPED)


def _pause(live: LiveJob, now: Micros) -> Transition | None:
    return None if live.state == State.RUNNING else transitions.pause(live, now)


def _resume(live: LiveJob, now: Micros) -> Transition | None:
    return transitions.resume(live, now) if live.paused else None


_DECISIONS: dict[str, Callable[[LiveJob, Micros], Transition | None]] = {
    "cancel": transitions.cancel,
    "stop": _stop,
    "pause": _pause,
    "resume": _resume,
}


def _portion(flow_id: FlowId, verb: str, reached: str | None, now: Micros) -> Op[str | None]:
    """Decide about the next members. Returns how far it came; None: that were all, and inner flows are under way."""
    rows = yield from _members(flow_id, _place(reached), PORTION)
    decide = _DECISIONS[verb]
    decided = [decide(live, now) for live in (yield from lock_live(job_id for _, job_id in rows))]
    written = [one for one in decided if one is not None]
    if written:
        yield from apply(written, now)
    if len(rows) == PORTION:
        return f"{rows[-1][0]}:{rows[-1][1].hex()}"
    for inner in (yield from _inner_locked(flow_id)):
        if inner.finished_at is None:
            yield from _mark(inner, verb, now)
            yield from leave([(inner.id, verb)], now)
    return None


def _inner_locked(flow_id: FlowId) -> Op[list[FlowRow]]:
    """The flows directly inside this one, as they are until the transaction ends."""
    found: list[FlowRow] = []
    for inner in (yield from inner_flows(flow_id)):
        locked = yield from _locked(inner.id)
        found += [] if isinstance(locked, PerdureError) else [locked]
    return found


def _place(reached: str | None) -> Place:
    if reached is None:
        return -1, FIRST_ID
    number, _, job_id = reached.partition(":")
    return int(number), bytes.fromhex(job_id)


# -- retry -----------------------------------------------------------------------------------------------------------


def retry_flow(flow_id: FlowId, now: Micros, *, again: bool = False) -> Op[FlowRow | Refusal]:
    """Open a new life for the members that failed or were cancelled; those skipped because of them wait again."""
    flow = yield from _locked(flow_id)
    if isinstance(flow, PerdureError):
        return flow
    if not flow.failed and not flow.cancelled:
        return _no_retry(flow, "none of its members has failed or was cancelled")
    yield from _take_back(flow)
    retried = yield from _retry_all(flow, now, again=again)
    yield from look(retried, now)  # what failed may be gone
    return (yield from _seen(flow_id))


def _no_retry(flow: FlowRow, why: str, remedy: Remedy | None = None) -> TransitionRefused:
    said = f"cannot retry {flow.sort} {to_uuid(flow.id)}: {why}"
    return TransitionRefused(said, code="retry_refused", remedy=remedy)


def _again(flow: FlowRow) -> Remedy:
    then = "runs that one again too"
    return Remedy(f"app.retry(flow, again=True) {then}", f"perdure retry {to_uuid(flow.id)} --again{{database}} {then}")


def _retry_all(flow: FlowRow, now: Micros, *, again: bool) -> Op[list[FlowId]]:
    """Returns this flow and those inside that are retried with it. Raises what refuses it: then nothing of it may
    remain."""
    yield from _reopen(flow, now, again=again)
    retried = [flow.id]
    for inner in (yield from _inner_locked(flow.id)):
        if inner.failed or inner.cancelled:
            retried += yield from _retry_all(inner, now, again=again)
    if flow.filled_by is not None:
        yield from _revive_failed([flow.filled_by], now)
    revived, reached = yield from _revive_portion(flow.id, None, now)
    while not revived and reached is not None:  # else nothing would keep the flow from ending at once
        revived, reached = yield from _revive_portion(flow.id, reached, now)
    if reached is not None:
        yield Tell("insert_todo", ("retry", flow.id, flow.id, reached, now))
    return retried


def _take_back(flow: FlowRow) -> Op[None]:
    """What was decided about a flow that has not ended, and those inside, is not carried on."""
    if flow.finished_at is not None:
        return
    yield Tell("take_cancel_back", {"id": flow.id})
    for verb in ("cancel", "stop"):
        yield Tell("forget_todo", {"what": verb, "subject": flow.id})
    for inner in (yield from inner_flows(flow.id)):
        yield from _take_back(inner)


def _reopen(flow: FlowRow, now: Micros, *, again: bool) -> Op[None]:
    """A flow that has ended lives again, and so does the one around it; whoever waited for its end waits again."""
    if flow.finished_at is None:
        return
    if flow.key is not None:
        for (holder,) in (yield Call("flow_with_key", {"live_key": flow.key})).rows:
            raise _no_retry(flow, f"its key {flow.key!r} is held by flow {to_uuid(holder)}")
    yield from limit_members(flow.id, flow.at_once)
    try:
        yield Call("reopen_flow", {"live_key": flow.key, "id": flow.id})
    except UniqueViolation as taken:
        raise Serialization("the key was free, and then taken; the operation runs again") from taken
    if flow.parent_id is not None:
        outer = yield from _locked(flow.parent_id)
        if not isinstance(outer, PerdureError):
            yield from _reopen(outer, now, again=again)
            yield Tell("count_in_tally", [TallyRow.of(outer.id, NOBODY, flow.state, -1)])
    yield from _reopen_waiting(flow, now, again=again)


def _reopen_waiting(flow: FlowRow, now: Micros, *, again: bool) -> Op[None]:
    """The jobs that waited for the flow's end wait again. Raises if one of them has gone on and may not do so twice."""
    for edge in (yield from settled_edges(flow.id)):
        job = yield from read.get(edge.job_id)
        if job is None or _was_skipped(job.row.state, job.row.error_type):
            continue
        if job.state not in FINAL or not again:
            remedy = _again(flow) if job.state in FINAL else None
            raise _no_retry(flow, f"job {job.id} waited for its end and is {job.state}", remedy)
        yield Tell("open_edge", {"depends_on": flow.id, "job_id": edge.job_id})
        yield from _revive(edge.job_id, now)
        yield from _revive_behind([edge.job_id], now)
    yield from _revive_behind([flow.id], now)


def _has_acted(flow_id: FlowId) -> Op[bool]:
    """Whether a job that waited for the end of this flow has gone on."""
    waited = [edge.job_id for edge in (yield from settled_edges(flow_id))]
    found = yield from _how_ended(waited)
    return any(not _was_skipped(*found.get(job_id, (None, None))) for job_id in waited)


def _was_skipped(state: str | None, error_type: str | None) -> bool:
    return state == State.SKIPPED and error_type in NEVER_RAN


def _revive_portion(
    flow_id: FlowId, reached: str | None, now: Micros, *, strict: bool = True
) -> Op[tuple[int, str | None]]:
    """Revive the next members that failed, were cancelled or stopped, with those that were skipped because of them.
    Returns how many members that were, and how far it came; None: that were all."""
    rows = yield from _members(flow_id, _place(reached), PORTION)
    revived = yield from _revive_failed([job_id for _, job_id in rows], now, strict=strict)
    return revived, f"{rows[-1][0]}:{rows[-1][1].hex()}" if len(rows) == PORTION else None


def _revive_failed(ids: Sequence[JobId], now: Micros, *, strict: bool = True) -> Op[int]:
    """Those of these jobs that failed, were cancelled or stopped, with those that were skipped because of them."""
    found = yield from _how_ended(ids)
    revived = 0
    for job_id in ids:
        state, error_type = found.get(job_id, (None, None))
        if state not in (State.FAILED, State.CANCELLED) and error_type != STOPPED:
            continue
        revived += 1
        if not (yield Call("these_live", whole_group([job_id]))).rows:  # else it waited for one that was revived
            yield from _revive(job_id, now, strict=strict)
            yield from _revive_behind([job_id], now)
    return revived


def _how_ended(ids: Collection[JobId]) -> Op[dict[JobId, tuple[str, str | None]]]:
    """State and type of error of those of these jobs that have ended, and whose work no other one continues."""
    found: dict[JobId, tuple[str, str | None]] = {}
    for group in groups(sorted(ids)):
        these = whole_group(group)
        live = {job_id for (job_id,) in (yield Call("these_live", these)).rows}
        for job_id, state, _, error_type, _, successor, superseded_by in (yield from last_ends(group)):
            if job_id not in live and successor is None and superseded_by is None:
                found[job_id] = (state, error_type)
    return found


def _revive_behind(revived: Sequence[bytes], now: Micros) -> Op[None]:
    """Those that were skipped because of these jobs and flows, which live again, wait for them again; and so on."""
    room = PORTION
    line = list(revived)
    while line:
        parent = line.pop(0)
        if room <= 0:
            yield from leave([(parent, "revive")], now)
            continue
        again, reached = yield from _wait_again(parent, FIRST_ID, now)
        line += again
        room -= max(1, len(again))
        if reached is not None:
            yield Tell("insert_todo", ("revive", parent, parent, reached.hex(), now))


def _wait_again(parent: bytes, after: bytes, now: Micros) -> Op[tuple[list[JobId], bytes | None]]:
    """Open the edges of those that were skipped after the end of this one, and revive those that nothing else keeps
    from running. Returns those of them that others waited for, and how far it came; None: that were all."""
    edges = yield from settled_edges(parent, after)
    found = yield from _how_ended({edge.job_id for edge in edges})
    skipped = [edge.job_id for edge in edges if _was_skipped(*found.get(edge.job_id, (None, None)))]
    if skipped:
        yield Tell("open_edge", [(parent, job_id) for job_id in skipped])
    hopeless: set[JobId] = set()
    for group in groups(skipped):
        rows = map(EdgeRow._make, (yield Call("edges_of_jobs", whole_group(group))).rows)
        hopeless |= {edge.job_id for edge in rows if edge.state == EdgeState.UNMET}
    revived = [job_id for job_id in skipped if job_id not in hopeless]
    for job_id in revived:
        yield from _revive(job_id, now, strict=False)
    waited_for: list[JobId] = []
    for group in groups(revived):
        waited_for += [job_id for (job_id,) in (yield Call("with_settled_edges", whole_group(group))).rows]
    return waited_for, edges[-1].job_id if len(edges) == PORTION else None


def _revive(job_id: JobId, now: Micros, *, strict: bool = True) -> Op[None]:
    """Flows that count its end, or that it fills, live again with it. Raises if its business key is taken, or others
    have acted on the end of one of these flows; not `strict`: then it stays as it is."""
    row = yield from read.row(job_id)
    outcomes = (yield Call("read_last_outcome", {"job_id": job_id})).rows
    if row is None or not outcomes:
        return
    reopened: list[FlowId] = []
    for flow_id in (yield from flows_of_end(row)):
        flow = yield from _locked(flow_id)
        if isinstance(flow, PerdureError) or flow.finished_at is None:
            continue
        if not strict and not (yield from _may_live_again(flow)):
            return
        yield from _reopen(flow, now, again=False)
        reopened.append(flow_id)
    refusal = yield from revive(row, OutcomeRow._make(outcomes[0]), now)
    if refusal is not None:
        if strict:
            raise refusal
        yield from leave(((flow_id, "look") for flow_id in reopened), now)


def _may_live_again(flow: FlowRow | None) -> Op[bool]:
    """Whether nobody has acted on its end, nor on that of the flows around it, and nobody has their keys."""
    while flow is not None and flow.finished_at is not None:
        if (yield from _has_acted(flow.id)):
            return False
        if flow.key is not None and (yield Call("flow_with_key", {"live_key": flow.key})).rows:
            return False
        flow = None if flow.parent_id is None else (yield from read_flow(flow.parent_id))
    return True


# -- the work list ---------------------------------------------------------------------------------------------------


def rescue_flows(now: Micros) -> Op[int]:
    """Leave word of flows that are complete and have not ended: whoever was to look at them again is gone. Returns how
    many."""
    return (yield Call("look_for_complete", {"now": now})).changed


def look(flows: Iterable[FlowId], now: Micros) -> Op[None]:
    """End those of these flows that are complete, with all that follows from it. One that somebody has locked is left
    to the work list."""
    held, _ = yield from _look(flows, now)
    yield from leave(((flow_id, "look") for flow_id in held), now, NOBODY)


def look_if_free(flows: Sequence[FlowId], now: Micros) -> Op[bool]:
    """The same, where all of it is left to the work list if something that it needs is locked by somebody. Returns
    whether a failure has decided about a flow: see `begin_decisions`."""
    yield BEGIN_PART
    try:
        held, decided = yield from _look(flows, now)
        yield from leave(((flow_id, "look") for flow_id in held), now, NOBODY)
        yield Call("begin_writing")  # asks for nothing, but what was told is done when it returns
    except Locked:
        yield UNDO_PART
        yield from leave(((flow_id, "look") for flow_id in flows), now, NOBODY)
        decided = False
    yield END_PART
    return decided


def _look(flows: Iterable[FlowId], now: Micros) -> Op[tuple[list[FlowId], bool]]:
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
    decided = yield from settle_edges(rows, {flow.id: End(flow.state, is_flow=True)}, now)
    if len(rows) == PORTION:
        yield from leave([(flow.id, "unblock")], now)
    if not decided and not outer:
        return False
    followed = yield from follow(decided, now, outer)
    yield from leave(((one, "look") for one in sorted(followed.unfinished)), now, flow.id)
    return bool(followed.decided)


def settle(now: Micros) -> Op[bool]:
    """Go on with the work list: look at the flows it names, begin with what was decided about flows, let those go on
    that wait for many, and do one portion of what is wide. False: nothing could be done. Entries that need what
    somebody has locked stay: he may take his time.
    """
    looks = (yield Call("next_looks", {"room": SETTLED_AT_ONCE})).rows
    done = (yield from _unless_locked(_unblock_together(now))) is True
    for entry in looks:
        done |= (yield from _unless_locked(_go_on(entry, now))) is True
    done |= yield from begin_decisions(now)
    wide = () if done else (yield Call("next_wide_todo", {"room": WIDE_TRIED})).rows
    for entry in wide:
        went_on = yield from _unless_locked(_go_on(entry, now))
        if went_on is not None:
            return done | went_on
    return done


def begin_decisions(now: Micros) -> Op[bool]:
    """Do the first portion of every decision about a flow that nobody has begun with, and with them those about flows
    inside: claims of this transaction start none of their members. False: there was none, or all are locked."""
    done, found = False, True
    while found:
        found = False
        for entry in (yield Call("next_decisions", {"room": SETTLED_AT_ONCE})).rows:
            found |= (yield from _unless_locked(_go_on(entry, now))) is True
        done |= found
    return done


def _unless_locked(part: Op[bool]) -> Op[bool | None]:
    """None: it needs what somebody has locked, and nothing of it was written."""
    yield BEGIN_PART
    try:
        done = yield from part
        yield Call("begin_writing")  # asks for nothing, but what was told is done when it returns
    except Locked:
        yield UNDO_PART
        yield END_PART
        return None
    yield END_PART
    return done


def _go_on(row: tuple[Any, ...], now: Micros) -> Op[bool]:
    """With one entry. False: it could not be done."""
    what, subject, cause, reached = row
    entry = {"what": what, "subject": subject, "cause": cause}
    came_to = yield from _PARTS[what](subject, what, reached, now)
    if came_to is None:
        yield Tell("delete_todo", entry)
    elif came_to != reached:
        yield Tell("note_todo", {**entry, "reached": came_to})
    return came_to != reached or came_to is None


def _unblock_together(now: Micros) -> Op[bool]:
    """Where many have ended for whose dependents there was no room, decide about these in one go: each may have few.
    Returns whether there were several."""
    rows = (yield Call("next_unblocks", {"room": UNBLOCKED_AT_ONCE})).rows
    if len(rows) < SEVERAL:
        return False
    ends = yield from _ends_that_stay({subject for _, subject, _ in rows})
    if len(ends) < SEVERAL:
        return False
    yield Tell("delete_todo", [row for row in rows if row[1] in ends])
    followed = yield from follow((yield from release(ends, now)), now)
    yield from leave(((one, "look") for one in sorted(followed.unfinished)), now, rows[0][1])
    return True


def _ends_that_stay(subjects: set[bytes]) -> Op[dict[bytes, End]]:
    """How those of these jobs and flows ended that have. They are locked: nobody lets them live again until the
    transaction ends. Without those that somebody else has locked."""
    free: set[bytes] = set()
    for group in groups(sorted(subjects)):
        free.update(job_id for (job_id,) in (yield Call("lock_these_jobs", whole_group(group))).rows)
    for subject in sorted(subjects - free):
        if (yield Call("lock_flow_if_free", {"id": subject})).rows:
            free.add(subject)
    return {
        subject: End(known.state, known.error_type, is_flow=known.counts is not None)
        for subject, known in (yield from sources(free)).items()
        if known.state is not None
    }


HELD = "locked"
"""How far a look came at a flow that somebody has locked."""


def _look_once(subject: bytes, _: str, __: str | None, now: Micros) -> Op[str | None]:
    held = (yield from _look([FlowId(subject)], now))[0]
    return HELD if held else None


def _unblock(subject: bytes, _: str, reached: str | None, now: Micros) -> Op[str | None]:
    """The next dependents of what has ended."""
    ends = yield from _ends_that_stay({subject})
    if not ends:
        if (yield from sources([subject]))[subject].state is not None:
            raise Locked(f"{to_uuid(subject)} is locked")
        return None  # it lives again
    after = FIRST_ID if reached is None else bytes.fromhex(reached)
    rows = (yield Call("waiting_edges_from", {"subject": subject, "after": after, "room": PORTION})).rows
    decided = yield from settle_edges(rows, ends, now)
    followed = yield from follow(decided, now)
    yield from leave(((one, "look") for one in sorted(followed.unfinished)), now, subject)
    return rows[-1][1].hex() if len(rows) == PORTION else None


def _change(subject: bytes, verb: str, reached: str | None, now: Micros) -> Op[str | None]:
    flow = yield from _locked(FlowId(subject))
    if isinstance(flow, PerdureError) or flow.finished_at is not None:
        return None
    if reached is None:
        yield from _mark(flow, verb, now)
    elif verb == "cancel" and flow.cancel_requested_at is None:
        return None  # retried meanwhile
    came_to = yield from _portion(flow.id, verb, reached, now)
    if came_to is None:
        yield from _look_twice(flow.id, now)
    return came_to


def _retry(subject: bytes, _: str, reached: str | None, now: Micros) -> Op[str | None]:
    flow = yield from _locked(FlowId(subject))
    if isinstance(flow, PerdureError) or flow.finished_at is not None:
        return None  # those that were revived first have ended, and the flow with them
    return (yield from _revive_portion(flow.id, reached, now, strict=False))[1]


def _revive_more(subject: bytes, _: str, reached: str | None, now: Micros) -> Op[str | None]:
    """The next of those that were skipped because of this one. Where it has ended again, that decides about them."""
    after = FIRST_ID if reached is None else bytes.fromhex(reached)
    yield from lock_live([JobId(subject)])  # its end sees the edges that are opened here, or is seen below
    revived, came_to = yield from _wait_again(subject, after, now)
    yield from leave(((job_id, "revive") for job_id in revived), now)
    if (yield from sources([subject]))[subject].state is not None:
        yield from leave([(subject, "unblock")], now)
    return None if came_to is None else came_to.hex()


_PARTS: dict[str, Callable[[bytes, str, str | None, Micros], Op[str | None]]] = {
    "look": _look_once,
    "unblock": _unblock,
    **dict.fromkeys(_DECISIONS, _change),
    "retry": _retry,
    "revive": _revive_more,
}
