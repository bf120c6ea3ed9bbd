"""What is decided about whole flows: cancel, pause, resume, retry. The first members at once, the others in portions.

Called by `app` through `store`, and by the work list (`todo`), which goes on with what was begun here.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from perdure.clock import Micros
from perdure.errors import PerdureError, Remedy, TransitionRefused
from perdure.ids import FlowId, JobId, to_uuid
from perdure.job.flow import NEVER_RAN, STOPPED, EdgeRow, EdgeState, FlowRow, FlowState, FlowVerb, TallyRow
from perdure.job.model import OutcomeRow
from perdure.job.states import FINAL, State
from perdure.store import read
from perdure.store.control import flows_of_end, revive
from perdure.store.engine import Call, Op, Serialization, Tell, UniqueViolation
from perdure.store.flow import DECISIONS, Place, Refusal, inner_flows, locked, look, look_twice, members_of, seen
from perdure.store.follow import (
    NOBODY,
    PORTION,
    apply,
    last_ends,
    leave,
    limit_members,
    lock_live,
    read_flow,
    settled_edges,
)
from perdure.store.rows import FIRST_ID
from perdure.store.statements import groups, whole_group

# -- deciding --------------------------------------------------------------------------------------------------------


def change_flow(flow_id: FlowId, verb: FlowVerb, now: Micros) -> Op[FlowRow | Refusal]:
    """Cancel, pause or resume all members. The first of them at once, the others by the workers, in portions."""
    flow = yield from locked(flow_id)
    if isinstance(flow, PerdureError):
        return flow
    if flow.finished_at is not None:
        if verb == "cancel" and flow.state == FlowState.CANCELLED:
            return flow
        return TransitionRefused(
            f"cannot {verb} {flow.sort} {to_uuid(flow_id)}: it is {flow.state}, which is final", code=f"{verb}_refused"
        )
    yield from mark(flow, verb, now)
    reached = yield from change_portion(flow.id, verb, None, now)
    if reached is not None:
        yield Tell("insert_todo", (verb, flow.id, flow.id, reached, now))
    yield from look_twice(flow.id, now)
    return (yield from seen(flow_id))


_OPPOSITE = {"pause": "resume", "resume": "pause"}


def mark(flow: FlowRow, verb: str, now: Micros) -> Op[None]:
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


def change_portion(flow_id: FlowId, verb: str, reached: str | None, now: Micros) -> Op[str | None]:
    """Decide about the next members. Returns how far it came; None: that were all, and inner flows are under way."""
    rows = yield from members_of(flow_id, _place(reached), PORTION)
    decide = DECISIONS[verb]
    decided = [decide(live, now) for live in (yield from lock_live(job_id for _, job_id in rows))]
    written = [one for one in decided if one is not None]
    if written:
        yield from apply(written, now)
    if len(rows) == PORTION:
        return f"{rows[-1][0]}:{rows[-1][1].hex()}"
    for inner in (yield from _innerlocked(flow_id)):
        if inner.finished_at is None:
            yield from mark(inner, verb, now)
            yield from leave([(inner.id, verb)], now)
    return None


def _innerlocked(flow_id: FlowId) -> Op[list[FlowRow]]:
    """The flows directly inside this one, as they are until the transaction ends."""
    found: list[FlowRow] = []
    for inner in (yield from inner_flows(flow_id)):
        as_it_is = yield from locked(inner.id)
        found += [] if isinstance(as_it_is, PerdureError) else [as_it_is]
    return found


def _place(reached: str | None) -> Place:
    if reached is None:
        return -1, FIRST_ID
    number, _, job_id = reached.partition(":")
    return int(number), bytes.fromhex(job_id)


# -- retry -----------------------------------------------------------------------------------------------------------


def retry_flow(flow_id: FlowId, now: Micros, *, again: bool = False) -> Op[FlowRow | Refusal]:
    """Open a new life for the members that failed or were cancelled; those skipped because of them wait again."""
    flow = yield from locked(flow_id)
    if isinstance(flow, PerdureError):
        return flow
    if not flow.failed and not flow.cancelled:
        return _no_retry(flow, "none of its members has failed or was cancelled")
    yield from _take_back(flow)
    retried = yield from _retry_all(flow, now, again=again)
    yield from look(retried, now)  # what failed may be gone
    return (yield from seen(flow_id))


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
    for inner in (yield from _innerlocked(flow.id)):
        if inner.failed or inner.cancelled:
            retried += yield from _retry_all(inner, now, again=again)
    if flow.filled_by is not None:
        yield from _revive_failed([flow.filled_by], now)
    revived, reached = yield from revive_portion(flow.id, None, now)
    while not revived and reached is not None:  # else nothing would keep the flow from ending at once
        revived, reached = yield from revive_portion(flow.id, reached, now)
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
        outer = yield from locked(flow.parent_id)
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


def revive_portion(
    flow_id: FlowId, reached: str | None, now: Micros, *, strict: bool = True
) -> Op[tuple[int, str | None]]:
    """Revive the next members that failed, were cancelled or stopped, with those that were skipped because of them.
    Returns how many members that were, and how far it came; None: that were all."""
    rows = yield from members_of(flow_id, _place(reached), PORTION)
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
        again, reached = yield from wait_again(parent, FIRST_ID, now)
        line += again
        room -= max(1, len(again))
        if reached is not None:
            yield Tell("insert_todo", ("revive", parent, parent, reached.hex(), now))


def wait_again(parent: bytes, after: bytes, now: Micros) -> Op[tuple[list[JobId], bytes | None]]:
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
        flow = yield from locked(flow_id)
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
