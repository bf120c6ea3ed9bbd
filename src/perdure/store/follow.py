"""Writes what was decided about jobs, and what follows from their ends: dependents go on or are skipped, flows count
their members and end.

Called by every operation that changes live jobs; the rows of jobs are written by `write`. A job without dependents and
outside of flows costs nothing here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from perdure.clock import Micros
from perdure.ids import FlowId, JobId, NodeId, to_uuid
from perdure.job import references, transitions
from perdure.job.flow import EdgeRow, EdgeState, FlowRow, Needs, Source, TallyRow, Trait, end_state, is_met
from perdure.job.model import LiveJob, OutcomeRow, Transition, Waiter
from perdure.job.states import State
from perdure.limit.key import flow_key
from perdure.store.engine import Blob, Call, Op, Tell
from perdure.store.rows import FIRST_ID
from perdure.store.statements import groups, whole_group
from perdure.store.write import change, unblock

PORTION = 500
"""How many dependents or members one transaction looks after: some 10 ms. The others are left to the work list."""
EDGES_AT_ONCE = 5 * PORTION
"""How many edges one turn decides: five each of the 500 jobs that it may end; of one job no more than a portion."""
NOBODY = NodeId(bytes(16))
"""Who counts the ends of jobs that no node held."""
_ACTS = frozenset(("stop", "cancel", "pause"))


class End(NamedTuple):
    """How a job or flow ended that others wait for."""

    state: str
    error_type: str | None = None
    is_flow: bool = False


Ends = dict[bytes, End]


class Flows(NamedTuple):
    """The flows that ends were counted in, and that have not ended."""

    unfinished: set[FlowId]
    """All of them. Two transactions that end the last members of a flow at the same time do not see each other, so each
    flow is looked at once more, in a later transaction."""
    decided: set[FlowId]
    """Those that a failure stops, cancels or pauses. Word is left of it; a transaction that claims begins with it
    before."""

    @classmethod
    def none(cls) -> Flows:
        return cls(set(), set())

    def add(self, others: Flows) -> None:
        self.unfinished.update(others.unfinished)
        self.decided.update(others.decided)


class Settled(NamedTuple):
    """What became of jobs that waited for what has ended, and is written."""

    jobs: int
    """About so many was decided."""
    skipped: Sequence[Transition]
    """Those of them that ended thereby."""


def apply(batch: Sequence[Transition], now: Micros) -> Op[None]:
    """Write these transitions, of different jobs, each as it was read. `Outrun`: one of them has changed since."""
    if (yield from change(batch, now)):
        flows = yield from follow(batch, now)
        yield from look_again(flows.unfinished, batch[0].before.job_id, now)


def follow(batch: Sequence[Transition], now: Micros, added: Iterable[TallyRow] = ()) -> Op[Flows]:
    """What the ends among these transitions, which are written, mean for others. `added`: members that came with them.

    Returns flows that the caller has to see to.
    """
    who = next((decided.before.node_id for decided in batch if decided.before.node_id is not None), NOBODY)
    tally = _Tally(who, added)
    ends = yield from _note(batch, tally, now)
    flows = Flows.none()
    room = EDGES_AT_ONCE
    while ends or tally.rows:
        if ends and room > 0:
            settled = yield from release(ends, now, room)
            room -= max(1, settled.jobs)
            ends = yield from _note(settled.skipped, tally, now)
            continue
        if ends:
            yield from leave(((what, "unblock") for what in ends), now)
            ends = {}
        counted, failing = yield from tally.write()
        for flow in (yield from end_complete(counted, now, failing)):
            if flow.finished_at is None:
                flows.unfinished.add(flow.id)
                if flow.id in failing and flow.on_failure in _ACTS:
                    flows.decided.add(flow.id)
                continue
            flows.unfinished.discard(flow.id)
            ends[flow.id] = End(flow.state, is_flow=True)
            if flow.parent_id is not None:
                tally.count(TallyRow.of(flow.parent_id, who, flow.state), flow.id)
    return flows


def _note(batch: Sequence[Transition], tally: _Tally, now: Micros) -> Op[Ends]:
    """Count those that have ended, hand over what an heir continues, seal what they filled. Returns the ends that
    others may wait for."""
    ends: Ends = {}
    for decided in batch:
        live, outcome = decided.before, decided.outcome
        if outcome is None or (live.flow_id is None and not live.traits):
            continue
        heir, end = None, None
        if decided.successor is not None or outcome.superseded_by is not None:
            heir, end = yield from _continued_by(decided)
        if live.traits & Trait.FILLS:
            yield from _stop_filling(outcome, None if end else heir, tally, now)
        if heir is not None:
            yield Tell("move_edges", {"depends_on": live.job_id, "new_owner": heir})
        elif live.flow_id is not None:
            tally.count_end(live.flow_id, decided)
        if heir is not None and end is not None:
            ends[heir] = end
        if live.traits & Trait.HAS_DEPENDENTS:
            ends[live.job_id] = End(outcome.state, outcome.error_type)
    return ends


def _continued_by(decided: Transition) -> Op[tuple[JobId | None, End | None]]:
    """Who continues the work of this job, which has ended, and how that one has ended, if it has. One that lives does
    so until this transaction ends."""
    outcome = decided.outcome
    assert outcome is not None
    if decided.successor is not None or outcome.superseded_by is None:
        return outcome.successor, None
    heir = outcome.superseded_by
    while True:
        lives = yield from lock_live([heir])
        ends = yield from last_ends([heir])
        if lives or not ends:
            return heir, None
        _, state, _, error_type, _, successor, superseded_by = ends[0]
        following = successor or superseded_by
        if following is None:
            return heir, End(state, error_type)
        heir = following


def _stop_filling(filler: OutcomeRow, heir: JobId | None, tally: _Tally, now: Micros) -> Op[None]:
    if heir is not None:
        yield Tell("fill_by_another", {"new_owner": heir, "filled_by": filler.job_id})
        return
    for (flow_id,) in (yield Call("flows_filled_by", {"filled_by": filler.job_id})).rows:
        yield Tell("seal_flow", {"now": now, "id": flow_id})
        yield from leave([(flow_id, "look")], now, filler.job_id)  # also if this node dies: it may have counted nothing
        tally.count(unfilled(flow_id, filler)._replace(node_id=tally.who), filler.job_id)


def unfilled(flow_id: FlowId, filler: OutcomeRow, count: int = 1) -> TallyRow:
    """Where the job that fills a flow does not succeed, its end counts as that of a member: whoever needs the success
    of the flow must not go on with a part of it."""
    if is_met(Needs.SUCCESS, filler.state, filler.error_type):
        return TallyRow(flow_id, NOBODY)
    state = State.FAILED if filler.state == State.FAILED else State.CANCELLED
    return TallyRow.of(flow_id, NOBODY, state, count)._replace(added=count)


class _Tally:
    """What is to be added to the counts of flows, by flow and node, and for each flow one of the jobs that failed.

    `who` counts all that this transaction decides: if that node dies before it has looked again, others look at all
    flows that it has counted in.
    """

    def __init__(self, who: NodeId, added: Iterable[TallyRow]) -> None:
        self.who = who
        self.rows: defaultdict[tuple[FlowId, NodeId], list[int]] = defaultdict(_nothing)
        self._failed: dict[FlowId, bytes] = {}
        for row in added:
            self.count(row, row.flow_id)

    def count(self, row: TallyRow, cause: bytes) -> None:
        counts = self.rows[row[:2]]
        for at, number in enumerate(row[2:]):
            counts[at] += number
        if row.failed:
            self._failed[row.flow_id] = cause

    def count_end(self, flow_id: FlowId, ended: Transition) -> None:
        """The end of a member: this runs for every one of them."""
        live, outcome, run = ended.before, ended.outcome, ended.run
        assert outcome is not None
        counts = self.rows[flow_id, live.node_id or self.who]
        counts[_AT[outcome.state]] += 1
        counts[_ATTEMPTS] += outcome.attempts
        if run is not None:
            counts[_RUN_MS] += run.duration_ms or 0
        if outcome.started_at is not None:
            due = live.run_at if live.run_at <= outcome.started_at else outcome.queued_at  # a retry has another one
            counts[_WAIT_MS] += max(0, outcome.started_at - max(due, outcome.queued_at)) // 1000
        if outcome.state == _FAILED:
            self._failed[flow_id] = live.job_id

    def write(self) -> Op[tuple[set[FlowId], dict[FlowId, bytes]]]:
        """Write and forget them. Returns the flows they are about, and in which something failed."""
        counted, failed = dict(self.rows), self._failed
        self.rows.clear()
        self._failed = {}
        rows = [(*whose, *counts) for whose, counts in sorted(counted.items()) if any(counts)]
        if rows:
            yield Tell("count_in_tally", rows)
        return {flow_id for flow_id, _ in counted}, failed


def _nothing() -> list[int]:
    return [0] * len(TallyRow._fields[2:])


_AT = {name: at for at, name in enumerate(TallyRow._fields[2:])}
_RUN_MS, _WAIT_MS, _ATTEMPTS = _AT["run_ms"], _AT["wait_ms"], _AT["attempts"]
_FAILED = State.FAILED.value


# -- dependents ------------------------------------------------------------------------------------------------------


def release(ends: Ends, now: Micros, room: int = PORTION) -> Op[Settled]:
    """Decide the edges to what has ended: jobs that wait for nothing more may start, those whose need is not met are
    skipped.

    Edges for which there is no room are left to the work list.
    """
    rows: list[tuple[bytes, JobId, str]] = []
    for group in groups(sorted(ends)):
        left = min(PORTION, room - len(rows))
        found = (yield Call("waiting_edges", (*whole_group(group), left))).rows if left else []
        if len(found) == left:
            last = found[-1][0] if found else FIRST_ID
            yield from leave(((parent, "unblock") for parent in group if parent >= last), now)
        rows += found
    return (yield from settle_edges(rows, ends, now))


def settle_edges(rows: Sequence[tuple[bytes, JobId, str]], ends: Mapping[bytes, End], now: Micros) -> Op[Settled]:
    """Decide these edges, and what becomes of the jobs that waited."""
    decided: list[tuple[str, Blob, Blob]] = []
    edges: dict[JobId, int] = {}
    unmet: dict[JobId, str] = {}
    for parent, job_id, needs in rows:
        end = ends[parent]
        met = is_met(needs, end.state, end.error_type)
        decided.append((_MET if met else _UNMET, Blob(parent), Blob(job_id)))
        edges[job_id] = edges.get(job_id, 0) + 1
        if not met and job_id not in unmet:
            unmet[job_id] = why_unmet(parent, needs, end)
    if decided:
        yield Tell("settle_edge", decided, len(decided))
    if len(unmet) == len(edges):
        return Settled(len(edges), (yield from _skip(unmet, now)))
    waiters = yield from _lock_waiters(edges)  # all of them, by id: others lock them in the same order
    freed = [transitions.unblock(one, now, edges[one.job_id]) for one in waiters if one.job_id not in unmet]
    unmet |= yield from _broken_conditions(freed)
    yield from unblock([one for one in freed if one.job_id not in unmet] if unmet else freed, now)
    return Settled(len(waiters), (yield from _skip(unmet, now)))


_MET, _UNMET = EdgeState.MET.value, EdgeState.UNMET.value


def _skip(unmet: Mapping[JobId, str], now: Micros) -> Op[list[Transition]]:
    """End these jobs, which cannot run, for these reasons."""
    skipped = [transitions.unmet(live, unmet[live.job_id], now) for live in (yield from lock_live(unmet))]
    if skipped:
        yield from change(skipped, now)
    return skipped


def why_unmet(parent: bytes, needs: str, end: End) -> str:
    """The reason why a job is skipped that waited for this one."""
    need = {Needs.SUCCESS: "the success", Needs.FAILURE: "the failure"}.get(Needs(needs), "the end")
    was = f"was {end.state}" if end.state in (State.CANCELLED, State.SKIPPED) else end.state
    return f"it needs {need} of {'flow' if end.is_flow else 'job'} {to_uuid(parent)}, which {was}"


def settled_edges(parent: bytes, after: bytes = FIRST_ID) -> Op[list[EdgeRow]]:
    """The first of those that waited for this one, with ids above `after`, and how that was decided."""
    rows = (yield Call("settled_edges", {"depends_on": parent, "after": after, "room": PORTION})).rows
    return list(map(EdgeRow._make, rows))


def _broken_conditions(freed: Sequence[Waiter]) -> Op[dict[JobId, str]]:
    """Those of these jobs that nothing keeps waiting any more, but whose condition does not hold; and why."""
    asked = [one.job_id for one in freed if one.traits & Trait.HAS_CONDITION and not one.waits_for]
    refs: dict[JobId, str] = {}
    for group in groups(asked):
        refs |= dict((yield Call("these_refs", whole_group(group))).rows)
    if not refs:
        return {}
    found = yield from sources({source for text in refs.values() for source in references.sources_of(text)})
    reasons = {job_id: references.why_not(text, found) for job_id, text in refs.items()}
    return {job_id: why for job_id, why in reasons.items() if why}


def _lock_waiters(ids: Iterable[JobId]) -> Op[list[Waiter]]:
    """The same as `lock_live`, of which only this much is read."""
    found: list[Waiter] = []
    for group in groups(sorted(ids)):
        found += map(Waiter._make, (yield Call("lock_these_waiters", whole_group(group))).rows)
    return found


def lock_live(ids: Iterable[JobId]) -> Op[list[LiveJob]]:
    """Those of these jobs that are live, locked if the database locks rows, by id."""
    found: list[LiveJob] = []
    for group in groups(sorted(ids)):
        found += map(LiveJob._make, (yield Call("lock_these_live", whole_group(group))).rows)
    return found


def last_ends(group: Collection[bytes]) -> Op[list[tuple[Any, ...]]]:
    """How the newest life of each of these jobs, as many as a group may have, ended; also of those that live again."""
    rows = (yield Call("these_ends", whole_group(group))).rows
    return list({row[0]: row for row in rows}.values())


def sources(ids: Collection[bytes]) -> Op[dict[bytes, Source]]:
    """What is known of these jobs and flows. Of a job whose work another one continues, what that one made."""
    found: dict[bytes, Source] = {}
    heirs = {one: one for one in ids}
    asked = set(ids)
    while asked:
        successors: dict[bytes, bytes] = {}
        for group in groups(sorted(asked)):
            these = whole_group(group)
            live = {job_id for (job_id,) in (yield Call("these_live", these)).rows}
            for job_id, *end, successor, superseded_by in (yield from last_ends(group)):
                heir = successor or superseded_by
                if job_id in live:
                    continue
                if heir is not None:
                    successors[job_id] = heir
                else:
                    found[job_id] = Source(*end)
            for row in (yield Call("these_flows", these)).rows:
                flow = yield from with_counts(FlowRow.read(row))
                state = flow.state if flow.finished_at is not None else None
                found[flow.id] = Source(state, counts=flow)
        heirs = {one: successors.get(now, now) for one, now in heirs.items()}
        asked = set(successors.values())
    return {one: found.get(heirs[one], Source(None)) for one in ids}


# -- flows -----------------------------------------------------------------------------------------------------------


def end_complete(
    flows: Iterable[FlowId], now: Micros, failing: Mapping[FlowId, bytes] | None = None
) -> Op[list[FlowRow]]:
    """End those of these flows that are complete. Returns them all, as they are then, but for those that had ended
    before. One that is complete and has not ended is locked by somebody: it has to be looked at later."""
    seen: list[FlowRow] = []
    for flow_id in sorted(flows):
        flow = yield from read_flow(flow_id)
        if flow is None or flow.finished_at is not None:
            continue
        if failing and flow_id in failing and flow.on_failure in _ACTS:
            yield from leave([(flow_id, flow.on_failure)], now, failing[flow_id])
        looked_at = (yield from _ended(flow, now)) if is_complete(flow) else flow
        if looked_at is not None:
            seen.append(looked_at)
    return seen


def is_complete(flow: FlowRow) -> bool:
    """Whether no more members come, and all have ended."""
    return flow.sealed_at is not None and flow.ended >= flow.total


def _ended(flow: FlowRow, now: Micros) -> Op[FlowRow | None]:
    """Ends it, if nobody has locked it, who may be about to wait for it or to retry one of its members. Counted again
    under the lock: only then is it known that nobody has. None: somebody else has ended it since it was read, and has
    seen to what follows."""
    rows = (yield Call("lock_flow_if_free", {"id": flow.id})).rows
    if not rows:
        return flow
    flow = yield from with_counts(FlowRow.read(rows[0]))
    if flow.finished_at is not None:
        return None
    if not is_complete(flow):
        return flow
    state = end_state(flow.failed, flow.cancelled, flow.on_failure)
    ended = flow._replace(state=state.value, finished_at=now)
    yield Tell("end_flow", ended._asdict())
    if flow.at_once is not None:
        yield Tell("drop_key", {"key": flow_key(flow.id)})
    yield Tell("delete_tallies", {"flow_id": flow.id})
    return ended


def limit_members(flow_id: FlowId, at_once: int | None) -> Op[None]:
    """Let only so many members of a flow run at once."""
    if at_once is not None:
        key = flow_key(flow_id)
        yield Tell("make_key", {"key": key})
        yield Tell("set_key", {"set_most": at_once, "set_at": None, "paused_at": None, "key": key})


def read_flow(flow_id: FlowId) -> Op[FlowRow | None]:
    """The flow with its counts as they are now. None: there is no such flow."""
    for row in (yield Call("read_flow", {"id": flow_id})).rows:
        flow = FlowRow.read(row[:-_COUNTS])
        return flow if flow.finished_at is not None or row[-1] is None else _summed(flow, row[-_COUNTS:])
    return None


_COUNTS = len(TallyRow._fields[2:])


def with_counts(flow: FlowRow) -> Op[FlowRow]:
    """The same flow with what its tallies say added to it."""
    if flow.finished_at is not None:
        return flow
    for row in (yield Call("tallies_of_flow", {"flow_id": flow.id})).rows:
        return _summed(flow, row)
    return flow


def _summed(flow: FlowRow, tally: Sequence[object]) -> FlowRow:
    added, completed, failed, cancelled, skipped, run_ms, wait_ms, attempts = (int(cast("int", n)) for n in tally)
    return flow._replace(
        total=flow.total + added,
        completed=flow.completed + completed,
        failed=flow.failed + failed,
        cancelled=flow.cancelled + cancelled,
        skipped=flow.skipped + skipped,
        run_ms=flow.run_ms + run_ms,
        wait_ms=flow.wait_ms + wait_ms,
        attempts=flow.attempts + attempts,
    )


# -- the work list ---------------------------------------------------------------------------------------------------


def leave(work: Iterable[tuple[bytes, str]], now: Micros, cause: bytes | None = None) -> Op[None]:
    """Put work on the list: what it is about, and what is to be done. The next turn of any worker goes on with it."""
    rows = [(what, subject, cause or subject, None, now) for subject, what in dict.fromkeys(work)]
    if rows:
        yield Tell("insert_todo", rows)


def look_again(flows: Iterable[FlowId], cause: JobId, now: Micros) -> Op[None]:
    """Leave a second look at these flows to the workers."""
    yield from leave(((flow_id, "look") for flow_id in sorted(flows)), now, cause)
