"""What new jobs wait for: looked up before they are inserted, written with them. Called by `enqueue`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from perdure.clock import Micros
from perdure.errors import InvalidInput, KeyConflict
from perdure.ids import FlowId, JobId, to_uuid
from perdure.job import references, transitions
from perdure.job.flow import Edge, EdgeRow, EdgeState, FlowRow, Source, Trait, is_met
from perdure.job.model import LiveJob, NewJob
from perdure.job.states import State
from perdure.job.views import Job
from perdure.store import read
from perdure.store.engine import Blob, Call, Op, Tell
from perdure.store.follow import End, apply, last_ends, lock_live, read_flow, sources, why_unmet
from perdure.store.statements import groups, whole_group
from perdure.store.write import flag

LOOKED_THROUGH = 10_000
"""How many jobs are looked at for one that waits for its own flow."""


class Parents(NamedTuple):
    """Those that new jobs wait for. None of them can end before the transaction does."""

    heirs: Mapping[bytes, bytes]
    """Each of them, and who continues its work: in most cases itself."""
    lives: Sequence[LiveJob]
    ends: Mapping[bytes, End]
    """How those ended that have."""


class Waiting(NamedTuple):
    """A new job as it is inserted, with its edges as they are written: parent, job, needs, state. `why_not`: it is
    skipped at once, for this reason."""

    new: NewJob
    edges: Sequence[tuple[Blob, Blob, str, str]] = ()
    why_not: str | None = None


def look_up(new: Sequence[NewJob], made_with: Collection[bytes]) -> Op[Parents | InvalidInput]:
    """Find and lock those that these jobs wait for, besides each other and the flows that are made with them."""
    known = {job.id for job in new}.union(made_with)
    heirs = {edge.depends_on: edge.depends_on for job in new for edge in job.after if edge.depends_on not in known}
    lives: list[LiveJob] = []
    ends: dict[bytes, End] = {}
    asked, seen = set(heirs), set[bytes]()
    while asked:
        ended, running = yield from _lock_flows(asked)
        locked = yield from lock_live(JobId(one) for one in asked)
        rest = asked - ended.keys() - running - {live.job_id for live in locked}
        found, successors = yield from _ended(rest)
        unknown = rest - found.keys() - successors.keys()
        if unknown:
            return _unknown(min(unknown))
        replaced = _replaced(locked, known)
        successors |= replaced
        lives += [live for live in locked if live.job_id not in replaced]
        ends |= ended | found
        seen |= asked
        heirs = {first: successors.get(now, now) for first, now in heirs.items()}
        asked = set(successors.values()) - seen
    return Parents(heirs, lives, ends)


def refuse_cycles(new: Sequence[NewJob], parents: Parents) -> Op[InvalidInput | None]:
    """A member must not wait for its flow or one around it, nor for a job that does: neither would ever start."""
    go_on = {live.job_id for live in parents.lives if live.state != _BLOCKED}
    may_wait = set(parents.heirs.values()) - go_on - parents.ends.keys()
    waits: dict[FlowId, set[bytes]] = {}
    for job in new if may_wait else ():
        if job.flow_id is not None and job.sequence is not None:
            heirs = {parents.heirs.get(edge.depends_on, b"") for edge in job.after}
            waits.setdefault(job.flow_id, set()).update(heirs & may_wait)
    for flow_id, awaited in waits.items():
        if awaited and (yield from _leads_to(awaited, (yield from _around(flow_id)))):
            return InvalidInput(
                f"a member of flow {to_uuid(flow_id)} cannot wait for that flow, for one around it, or for a job that"
                " waits for one of them: neither would ever start",
                code="flow_cycle",
            )
    return None


def _around(flow_id: FlowId) -> Op[set[bytes]]:
    """This flow, and those around it."""
    found: set[bytes] = set()
    flow = yield from read_flow(flow_id)
    while flow is not None:
        found.add(flow.id)
        flow = None if flow.parent_id is None else (yield from read_flow(flow.parent_id))
    return found


def _leads_to(awaited: Collection[bytes], flows: Collection[bytes]) -> Op[bool]:
    """Whether one of these jobs and flows, or of those that the jobs wait for, and so on, is one of these flows."""
    seen: set[bytes] = set()
    ahead = set(awaited)
    while ahead and len(seen) < LOOKED_THROUGH:
        if not ahead.isdisjoint(flows):
            return True
        seen |= ahead
        found: set[bytes] = set()
        for group in groups(sorted(ahead)):
            rows = map(EdgeRow._make, (yield Call("edges_of_jobs", whole_group(group))).rows)
            found.update(edge.depends_on for edge in rows if edge.state == _WAITING)
        ahead = found - seen
    return False


def _lock_flows(ids: Collection[bytes]) -> Op[tuple[dict[bytes, End], set[bytes]]]:
    """Which of these are flows: how those ended that have, and those that have not. Before any job is locked: whoever
    decides about a whole flow locks it before its members."""
    ended: dict[bytes, End] = {}
    running: set[bytes] = set()
    for group in groups(sorted(ids)):
        for flow in map(FlowRow.read, (yield Call("lock_these_flows", whole_group(group))).rows):
            if flow.finished_at is None:
                running.add(flow.id)
            else:
                ended[flow.id] = End(flow.state, is_flow=True)
    return ended, running


def _ended(ids: Collection[bytes]) -> Op[tuple[dict[bytes, End], dict[bytes, bytes]]]:
    """Of these jobs, how each ended, and who continues the work of which."""
    found: dict[bytes, End] = {}
    successors: dict[bytes, bytes] = {}
    for group in groups(sorted(ids)):
        for job_id, state, _, error_type, _, successor, superseded_by in (yield from last_ends(group)):
            heir = successor or superseded_by
            if heir is None:
                found[job_id] = End(state, error_type)
            else:
                successors[job_id] = heir
    return found, successors


def _replaced(lives: Sequence[LiveJob], known: Collection[bytes]) -> dict[bytes, bytes]:
    """Those that run and were superseded, and by whom: whoever is to wait for them waits for that one from the start,
    and not twice if he waits for it anyway. The replacement itself waits for no more than their end."""
    found = {live.job_id: live.superseded_by for live in lives}
    return {job_id: heir for job_id, heir in found.items() if heir is not None and heir not in known}


def _unknown(parent: bytes) -> InvalidInput:
    return InvalidInput(
        f"cannot wait for {to_uuid(parent)}: there is no such job or flow; check the id and the database, and whether"
        " it was deleted or archived",
        code="parent_unknown",
    )


def bound(new: Sequence[NewJob], parents: Parents, fillers: Collection[bytes]) -> Op[list[Waiting]]:
    """These jobs as they are to be inserted. `fillers`: jobs whose ends seal a flow."""
    depended_on = {edge.depends_on for job in new for edge in job.after}
    waiting = [_waiting(job, parents, depended_on, fillers) for job in new]
    asked = [one for one in waiting if _asks_now(one)]
    if not asked:
        return waiting
    found = yield from sources({source for one in asked for source in references.sources_of(one.new.refs or "")})
    return [_checked(one, found) if _asks_now(one) else one for one in waiting]


def _waiting(job: NewJob, parents: Parents, depended_on: Collection[bytes], fillers: Collection[bytes]) -> Waiting:
    traits = job.traits
    if job.id in depended_on:
        traits |= Trait.HAS_DEPENDENTS
    if job.id in fillers:
        traits |= Trait.FILLS
    if job.refs is not None and references.has_condition(job.refs):
        traits |= Trait.HAS_CONDITION
    after = _strictest(job.after, parents)
    job_id = Blob(job.id)
    if not parents.ends:  # most are of the same call
        edges = [(Blob(parent), job_id, needs, _WAITING) for parent, needs in after]
        return Waiting(_bound(job, len(edges), traits), edges)
    states = [_state(edge, parents) for edge in after]
    edges = [(Blob(edge.depends_on), job_id, edge.needs, state) for edge, state in zip(after, states, strict=True)]
    unmet = next((edge for edge, state in zip(after, states, strict=True) if state == _UNMET), None)
    why_not = None if unmet is None else why_unmet(unmet.depends_on, unmet.needs, parents.ends[unmet.depends_on])
    return Waiting(_bound(job, states.count(_WAITING), traits), edges, why_not)


def _bound(job: NewJob, waits_for: int, traits: int) -> NewJob:
    """A _replace costs four times as much."""
    state = _BLOCKED if waits_for else job.state
    between = job[_STATE + 1 : _WAITS_FOR], job[_WAITS_FOR + 1 : _TRAITS]
    return NewJob._make((*job[:_STATE], state, *between[0], waits_for, *between[1], traits))


_BLOCKED = State.BLOCKED.value
_STATE, _WAITS_FOR, _TRAITS = map(NewJob._fields.index, ("state", "waits_for", "traits"))


def _strictest(after: Sequence[Edge], parents: Parents) -> Collection[Edge]:
    """Each parent once: what needs a certain end is not met by every end."""
    if not parents.heirs and len({edge.depends_on for edge in after}) == len(after):
        return after
    edges: dict[bytes, Edge] = {}
    for edge in after:
        parent = parents.heirs.get(edge.depends_on, edge.depends_on)
        if parent not in edges or edges[parent].needs == "end":
            edges[parent] = Edge(parent, edge.needs)
    return edges.values()


def _state(edge: Edge, parents: Parents) -> str:
    end = parents.ends.get(edge.depends_on)
    if end is None:
        return _WAITING
    return _MET if is_met(edge.needs, end.state, end.error_type) else _UNMET


_WAITING, _MET, _UNMET = EdgeState.WAITING.value, EdgeState.MET.value, EdgeState.UNMET.value


def _asks_now(one: Waiting) -> bool:
    return one.why_not is None and not one.new.waits_for and bool(one.new.traits & Trait.HAS_CONDITION)


def _checked(one: Waiting, found: Mapping[bytes, Source]) -> Waiting:
    refs = one.new.refs or ""
    return one if references.holds(refs, found) else one._replace(why_not=references.why_not(refs, found))


def write(waiting: Sequence[Waiting], parents: Parents, jobs: Sequence[Job], now: Micros) -> Op[list[Job]]:
    """Write the edges of these jobs, which are inserted, and skip those that cannot run. Returns the jobs as they are
    then."""
    inserted = [one for one, job in zip(waiting, jobs, strict=True) if not job.deduplicated]
    if len(inserted) < len(jobs):
        _refuse_strangers(waiting, jobs)
    rows = [edge for one in inserted for edge in one.edges]
    if rows:
        yield Tell("insert_edge", rows)
    yield from flag(parents.lives, Trait.HAS_DEPENDENTS, now)
    reasons = {one.new.id: one.why_not for one in inserted if one.why_not is not None}
    if not reasons:
        return list(jobs)
    lives = yield from lock_live(reasons)
    yield from apply([transitions.unmet(live, reasons[live.job_id], now) for live in lives], now)
    seen: list[Job] = []
    for job in jobs:
        skipped = (yield from read.get(job.row.id)) if job.row.id in reasons else None
        seen += [skipped or job]
    return seen


def _refuse_strangers(waiting: Sequence[Waiting], jobs: Sequence[Job]) -> None:
    """A key that is taken gives a job that others of this call know nothing of."""
    strangers: dict[bytes, Job] = {one.new.id: job for one, job in zip(waiting, jobs, strict=True) if job.deduplicated}
    for one in waiting:
        for parent, *_ in one.edges:
            if bytes(parent) in strangers:
                raise _taken(strangers[bytes(parent)])
        if one.new.id in strangers and one.new.flow_id is not None:
            raise _taken(strangers[one.new.id])


def _taken(job: Job) -> KeyConflict:
    return KeyConflict(
        f"a key of this {job.kind} job is taken by job {job.id}, which belongs to no flow of this call, so nothing was"
        " written; leave the key out, or wait for that job with after=",
        code="flow_key_taken",
    )
