"""Random sequences of operations on a store and on the `model`, compared after every step. Needs hypothesis."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast, get_args

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from perdure.errors import InvalidInput, KeyConflict, PerdureError
from perdure.ids import JobId
from perdure.job.flow import Edge, FlowVerb, NeedsName, NewFlow, OnFailure
from perdure.job.model import Claim, NewJob, rank_of
from perdure.job.reports import Cancelled, Completed, Failed, Released, Report, Skipped, Snoozed, TimedOut
from perdure.job.states import Suspicion
from perdure.limit.key import Need, key_of, name_of, written
from perdure.ops import doctor
from perdure.store.rows import JobFilter, Lane, LimitRule, Place, RunFilter, Turn
from perdure.testing.contract.model import Entry, Flow, Limit, Model, Refused
from perdure.testing.contract.rig import BROKEN, HOPELESS, NONE, Rig, Wish

FULL = os.environ.get("PERDURE_TEST_SIZE") == "full"
SECOND = 1_000_000

REPORTS: dict[str, Callable[[int], Report]] = {
    "completed": lambda _: Completed(),
    "cancelled": lambda _: Cancelled(),
    "skipped": lambda _: Skipped(),
    "fail": lambda delay: Failed(BROKEN, delay),
    "fail for good": lambda _: Failed(HOPELESS),
    "time out": lambda delay: TimedOut(BROKEN, delay),
    "snooze": Snoozed,
    "release": lambda _: Released(),
    "interrupt": lambda _: Released(counts=True),
}

_NONE: MultipleResults[JobId] = multiple()

priorities = st.sampled_from((0, 0, 1))
delays = st.sampled_from((0, 0, 5 * SECOND, 20 * SECOND))
needs = st.sampled_from(get_args(NeedsName))
FEW = 5
CHANGES = ("set", "reset", "declare", "forget", "pause", "resume")


def run(rig: Rig, machine: type[StoreMachine]) -> None:
    """Search for a sequence on which the rig's store and the model differ; the error shows the shortest one found."""
    opens = {"open_rig": staticmethod(lambda: Rig(rig.url, rig.opener))}
    run_state_machine_as_test(
        cast("type[StoreMachine]", type(machine.__name__, (machine,), opens)),
        settings=settings(
            max_examples=_examples(rig.url),
            stateful_step_count=40,
            deadline=None,
            database=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
        ),
    )


def _examples(url: str) -> int:
    """How many sequences of each sort to run. Usually fewer on a server, where each takes three times as long."""
    if FULL:
        return 1_000
    return 7 if url.startswith(("postgres", "mysql", "mariadb")) else 30


class StoreMachine(RuleBasedStateMachine):
    """One store, one queue, and the model of it."""

    jobs = Bundle("jobs")
    claims = Bundle("claims")

    def open_rig(self) -> Rig:
        raise NotImplementedError

    @initialize(target=jobs, delayed=st.lists(delays, min_size=4, max_size=6))
    def begin(self, delayed: list[int]) -> Any:
        """Start with some jobs of one priority in the queue: an empty one shows little."""
        return multiple(*self.begun(delayed))

    def begun(self, delayed: list[int]) -> list[JobId]:
        self.rig = self.open_rig()
        self.model = Model(self.rig.now)
        return [*(self.enqueue_one(delay=delay, max_attempts=5) for delay in delayed), *self.prepare()]

    def prepare(self) -> list[JobId]:
        """What else is there from the start. Returns the jobs of it."""
        return []

    def teardown(self) -> None:
        if hasattr(self, "rig"):
            self.rig.clear()
            self.rig.close()

    # -- rules -------------------------------------------------------------------------------------------------------

    @rule(
        target=jobs,
        priority=priorities,
        delay=delays,
        max_attempts=st.integers(1, 5),
        key=st.sampled_from((None, "a", "b")),
        conflict=st.sampled_from(("raise", "return")),
        idempotency=st.sampled_from((None, None, "x", "y")),
    )
    def enqueue(
        self, priority: int, delay: int, max_attempts: int, key: str | None, conflict: str, idempotency: str | None
    ) -> Any:
        known = self.model.idempotency.get(idempotency or "") or self.model.holders.get(key or "")
        if known is None:
            return self.enqueue_one(priority, delay, max_attempts, key, idempotency)
        new = self._new(priority, delay, max_attempts, key, idempotency, conflict)
        try:
            [job] = self.rig.store.enqueue([new])
        except KeyConflict:
            assert conflict == "raise"
            assert idempotency not in self.model.idempotency
        else:
            assert (job.row.id, job.deduplicated) == (known, True)
        return _NONE

    def enqueue_one(
        self,
        priority: int = 0,
        delay: int = 0,
        max_attempts: int = 3,
        key: str | None = None,
        idempotency: str | None = None,
    ) -> JobId:
        """A job whose keys are free: it is inserted behind all others."""
        [job] = self.rig.store.enqueue([self._new(priority, delay, max_attempts, key, idempotency)])
        assert not job.deduplicated
        assert self.model.is_at_the_back(job.position, of=self.model.jobs.values())
        entry = Entry(job.row.id, rank_of(priority), job.position, self.model.now + delay, max_attempts, key)
        self.model.add(entry)
        if idempotency is not None:
            self.model.idempotency[idempotency] = entry.id
        if entry.key is not None:
            self.model.holders[entry.key] = entry.id
        return entry.id

    def _new(
        self,
        priority: int,
        delay: int,
        max_attempts: int,
        key: str | None,
        idempotency: str | None,
        conflict: str = "raise",
    ) -> NewJob:
        wish: Wish = {"priority": priority, "delay_s": delay / SECOND, "max_attempts": max_attempts}
        if key is not None:
            wish |= {"business_key": self.rig.key(key), "conflict": conflict}
        if idempotency is not None:
            wish["idempotency_key"] = self.rig.key(idempotency)
        return self.rig.new(**wish)

    @rule(target=claims, room=st.integers(1, 3), company=st.sampled_from(Suspicion))
    def claim(self, room: int, company: Suspicion) -> Any:
        return multiple(*self._started(room, self.rig.claim(room, company=company), company))

    def _started(self, room: int, claims: list[Claim], company: Suspicion = Suspicion.NONE) -> list[Claim]:
        """What a claim with this room has returned is what the model says."""
        expected = self.model.claimable(room, company)
        assert [claim.job_id for claim in claims] == [job.id for job in expected]
        for job, claim in zip(expected, claims, strict=True):
            self.model.start(job, claim.run_id)
        return claims

    @rule(target=claims, claim=claims, what=st.sampled_from(sorted(REPORTS)), delay=delays, room=st.integers(0, 3))
    def a_turn(self, claim: Claim, what: str, delay: int, room: int) -> Any:
        return self.turn(claim, what, delay, room)

    def turn(self, claim: Claim, what: str, delay: int, room: int) -> Any:
        """Finish one, promote, claim: the claim can take what the first parts have queued."""
        job = self.model.jobs[claim.job_id]
        known = len(self.model.todo)
        answer = self.model.report(job, claim.run_id, what, delay)
        state_then = job.state
        if self._has_decided(known):
            self.model.settle()  # nobody of a flow that stops is claimed after that
        promoted = self.model.promote(2)
        wanted = Turn(
            finishes=[self.rig.report(claim, REPORTS[what](delay))],
            promote=2,
            lanes=[Lane(self.rig.queue, room)],
            claimer=self.rig.claimer(3),
        )
        [finished], count, claims, *_ = self.rig.store.turn(wanted, self.rig.now)
        assert finished.status == answer
        assert answer == "lost" or finished.state == state_then
        self._promoted(promoted, count)
        return multiple(*self._started(room, claims))

    def _promoted(self, expected: int, found: int) -> None:
        assert found == expected

    @rule()
    def a_stranger_comes_by(self) -> None:
        assert self.rig.claim(2, node=self.rig.register(), kinds=NONE) == []
        self.model.park_all()
        self._set_aside()

    def _set_aside(self) -> None:
        """A node that knows no kind has claimed."""

    @rule(what=st.sampled_from(sorted(REPORTS)), delay=delays)
    def claim_and_finish(self, what: str, delay: int) -> None:
        for claim in self._started(1, self.rig.claim(1)):
            self._finish(claim, what, delay)

    @rule(claim=claims, what=st.sampled_from(sorted(REPORTS)), delay=delays)
    def finish(self, claim: Claim, what: str, delay: int) -> None:
        self._finish(claim, what, delay)

    @rule(claim=consumes(claims), what=st.sampled_from(("completed", "fail", "release")), delay=delays)
    def finish_for_the_last_time(self, claim: Claim, what: str, delay: int) -> None:
        self._finish(claim, what, delay)

    def _finish(self, claim: Claim, what: str, delay: int) -> None:
        job = self.model.jobs[claim.job_id]
        known = len(self.model.todo)
        expected = self.model.report(job, claim.run_id, what, delay)
        answer = self.rig.finish(claim, REPORTS[what](delay))
        assert answer.status == expected
        assert answer.state == (None if expected == "lost" else job.state)
        self._settle_what_was_decided(known)

    def _settle_what_was_decided(self, known: int) -> None:
        """The store has begun with what a failure decides about flows."""
        if self._has_decided(known):
            self.rig.settle()
            self.model.settle()

    def _has_decided(self, known: int) -> bool:
        """Whether there is more to be done about flows than was known before."""
        return any(flow.state == "running" for _, flow in self.model.todo[known:])

    @rule(seconds=st.sampled_from((1, 5, 20)), limit=st.integers(1, 3))
    def time_passes_and_jobs_are_promoted(self, seconds: int, limit: int) -> None:
        self.rig.clock.advance(seconds=seconds)
        self.model.now = self.rig.now
        self._promoted(self.model.promote(limit), self.rig.store.promote(self.rig.now, limit))

    @rule()
    def the_node_dies(self) -> None:
        old, self.rig = self.rig, self._successor_of(self.rig)
        old.store.stop(old.node, "crash", old.now)
        known = len(self.model.todo)
        assert old.rescue(old.node) == self.model.crash()
        self._settle_what_was_decided(known)

    def _successor_of(self, old: Rig) -> Rig:
        """The same store, queue and clock under another node."""
        rig = self.open_rig()
        rig.clock, rig.ids, rig.mark, rig.queue, rig.kind = old.clock, old.ids, old.mark, old.queue, old.kind
        return rig

    @rule(job_id=jobs, verb=st.sampled_from(("cancel", "pause", "resume", "retry")))
    def decide_by_hand(self, job_id: JobId, verb: str) -> None:
        acts: dict[str, Callable[[JobId], object]] = {
            "cancel": self.rig.cancel,
            "pause": self.rig.pause,
            "resume": self.rig.resume,
            "retry": lambda known: self.rig.store.retry(known, self.rig.now),
        }
        self._by_hand(job_id, getattr(self.model, verb), acts[verb])

    def _by_hand(self, job_id: JobId, decide: Callable[[Entry], None], act: Callable[[JobId], object]) -> bool:
        """Whether the verb was possible; store and model must agree on it."""
        possible, refusal = True, None
        try:
            decide(self.model.jobs[job_id])
        except Refused:
            possible = False
        try:
            act(job_id)
        except PerdureError as error:
            refusal = error
        assert possible == (refusal is None), refusal or "the store did not refuse"
        return possible

    @rule(job_id=jobs, priority=priorities)
    def set_priority(self, job_id: JobId, priority: int) -> None:
        job, rank = self.model.jobs[job_id], rank_of(priority)
        if not job.is_final and job.rank == rank:
            assert self.rig.store.set_priority(job_id, rank, self.rig.now).position == job.position
        elif self._by_hand(
            job_id, self.model.may_be_placed, lambda known: self.rig.store.set_priority(known, rank, self.rig.now)
        ):
            job.rank, job.position = rank, self.rig.live(job_id).position
            others = [other for other in self.model.jobs.values() if other is not job]
            assert self.model.is_at_the_back(job.position, of=others)

    @rule(job_id=jobs, target_id=jobs, where=st.sampled_from(("front", "back", "before", "after")))
    def move(self, job_id: JobId, target_id: JobId, where: str) -> None:
        job, target = self.model.jobs[job_id], self.model.jobs[target_id]
        if where in ("front", "back"):
            self._move_to_an_end(job, front=where == "front")
        elif job is not target:
            self._move_next_to(job, target, before=where == "before")

    def _move_to_an_end(self, job: Entry, *, front: bool) -> None:
        if self._move(job, Place(front=front), possible=job.is_waiting) and job.state == "queued":
            lane = [other for other in self.model.queued() if other.rank == job.rank]
            assert lane[0 if front else -1] is job

    def _move_next_to(self, job: Entry, target: Entry, *, before: bool) -> None:
        place = Place(before=target.id) if before else Place(after=target.id)
        if self._move(job, place, possible=job.is_waiting and target.is_waiting and job.rank == target.rank):
            lane = [other for other in self.model.queued() if other.rank == job.rank and other not in (job, target)]
            line = sorted((*lane, job, target), key=lambda other: other.place)
            assert line.index(target) - line.index(job) == (1 if before else -1)

    def _move(self, job: Entry, place: Place, *, possible: bool) -> bool:
        """Whether it was moved. All other queued jobs must keep their order, whatever their positions are now."""
        others = [other for other in self.model.queued() if other is not job]

        def decide(_: Entry) -> None:
            if not possible:
                raise Refused

        if self._by_hand(job.id, decide, lambda job_id: self.rig.store.move(job_id, place, self.rig.now)):
            for other in (*others, job):
                other.position = self.rig.live(other.id).position
        assert sorted(others, key=lambda other: other.place) == others
        return possible

    # -- after every step --------------------------------------------------------------------------------------------

    @invariant()
    def store_and_model_agree(self) -> None:
        if not hasattr(self, "rig"):
            return
        jobs = {job.row.id: job for job in self.rig.listed(JobFilter(queue=self.rig.queue), 1_000)}
        runs = Counter(run.row.job_id for run in self.rig.all_runs(RunFilter(kind=self.rig.kind)))
        assert jobs.keys() == self.model.jobs.keys()
        for job_id, entry in self.model.jobs.items():
            job = jobs[job_id]
            found = (job.state, job.row.rank, job.position, job.attempts, job.crashes, job.life, runs[job_id])
            assert found == (entry.state, *entry.place[:2], entry.attempts, entry.crashes, entry.life, entry.runs)
            assert job.cancel_requested == (entry.cancel_requested and not entry.is_final)
        assert self.rig.in_order() == [job.id for job in self.model.queued()]


class FlowMachine(StoreMachine):
    """Also edges and flows: what waits for what, who is counted where, and what a failed member does to the others."""

    @initialize(target=StoreMachine.jobs, delayed=st.lists(delays, max_size=2))
    def begin(self, delayed: list[int]) -> Any:
        return multiple(*self.begun(delayed))

    def prepare(self) -> list[JobId]:
        """An open flow, and one with another one inside, that fails with it."""
        batch = self.start(size=2, on_failure="continue", is_chain=False, is_open=True, callbacks=["end"], inside=0)
        return batch + self.start(
            size=1, on_failure="stop", is_chain=False, is_open=False, callbacks=["failure"], inside=2
        )

    @rule(
        target=StoreMachine.jobs,
        parents=st.lists(StoreMachine.jobs, max_size=2, unique=True),
        flow=st.integers(0, 9),
        needs=st.lists(needs, min_size=3, max_size=3),
        delay=delays,
    )
    def enqueue_after(self, parents: list[JobId], flow: int, needs: list[NeedsName], delay: int) -> Any:
        """A job that waits for some others, for a flow, or for both."""
        waited_for: list[bytes] = [*parents, *([self._flow(flow).id] if flow < FEW else [])]
        edges = tuple(map(Edge, waited_for, needs))
        [job] = self.rig.store.enqueue([self.rig.new(after=edges, delay_s=delay / SECOND)])
        self._keep(self.rig.new(after=edges), job.position, self.model.now + delay, job.row.id)
        return job.row.id

    def _keep(self, new: NewJob, position: int, run_at: int, job_id: JobId) -> None:
        entry = Entry(job_id, new.plan.rank, position, run_at, new.plan.max_attempts, None)
        entry.after = dict(new.after)
        entry.flow = new.flow_id if new.sequence is not None else None
        self.model.add(entry)

    def _flow(self, number: int) -> Flow:
        """One of the flows."""
        return list(self.model.flows.values())[number % len(self.model.flows)]

    @rule(
        target=StoreMachine.jobs,
        size=st.integers(0, 3),
        on_failure=st.sampled_from(get_args(OnFailure)),
        is_chain=st.booleans(),
        is_open=st.booleans(),
        callbacks=st.lists(needs, max_size=2),
        inside=st.integers(0, 2),
        attempts=st.sampled_from((1, 1, 2)),
    )
    def start_flow(self, **drawn: Any) -> Any:
        return multiple(*self.start(**drawn))

    def start(
        self,
        *,
        size: int,
        on_failure: OnFailure,
        is_chain: bool,
        is_open: bool,
        callbacks: list[NeedsName],
        inside: int,
        attempts: int = 1,
    ) -> list[JobId]:
        """With callbacks, and perhaps with a flow inside, which a member waits for."""
        outer = self.rig.new_flow(on_failure=on_failure, open=is_open)
        jobs = self.rig.members(outer, size, max_attempts=attempts)
        flows = [outer]
        if is_chain:
            jobs = [job._replace(after=(Edge(before.id),) if before else ()) for before, job in _pairs(jobs)]
        if inside:
            inner = self.rig.new_flow(parent_id=outer.id, on_failure=on_failure if inside == 1 else "continue")
            join = self.rig.members(outer, 1, size, max_attempts=attempts, after=(Edge(inner.id),))
            jobs += [*self.rig.members(inner, 2, max_attempts=attempts), *join]
            flows.append(inner)
        jobs += [self.rig.new(flow_id=outer.id, after=(Edge(outer.id, need),)) for need in callbacks]
        _, made = self.rig.store.start_flows(flows, jobs)
        for flow in flows:
            self.model.flows[flow.id] = self._modelled(flow)
        for new, job in zip(jobs, made, strict=True):
            self._keep(new, job.position, self.model.now, new.id)
        for flow in reversed(flows):
            self.model.look(self.model.flows[flow.id])
        return [job.id for job in jobs]

    def _modelled(self, new: NewFlow) -> Flow:
        outer = None if new.parent_id is None else self.model.flows[new.parent_id]
        return Flow(new.id, new.on_failure, outer, sealed=not new.open)

    @rule(target=StoreMachine.jobs, number=st.integers(0, 9), count=st.integers(1, 2))
    def add_to_a_flow(self, number: int, count: int) -> Any:
        flow = self._flow(number)
        jobs = self._more_of(flow, count)
        try:
            made = self.rig.store.add_members(flow.id, jobs, self.rig.now)
        except PerdureError:
            assert flow.sealed, "it is open"
            return _NONE
        assert not flow.sealed, "it is sealed"
        for new, job in zip(jobs, made, strict=True):
            self._keep(new, job.position, self.model.now, new.id)
        self.model.grow(flow, [job.id for job in jobs])
        return multiple(*(job.id for job in jobs))

    def _more_of(self, flow: Flow, count: int) -> list[NewJob]:
        new = self.rig.new_flow()._replace(id=flow.id)
        return self.rig.members(new, count, 1_000 + len(self.model.jobs))

    @rule(number=st.integers(0, 9))
    def seal(self, number: int) -> None:
        flow = self._flow(number)
        self.rig.store.seal_flow(flow.id, self.rig.now)
        flow.sealed = True
        self.model.look(flow)

    @rule(number=st.integers(0, 9), verb=st.sampled_from(get_args(FlowVerb)))
    def decide_about_a_flow(self, number: int, verb: FlowVerb) -> None:
        flow = self._flow(number)
        possible = flow.state == "running" or (verb, flow.state) == ("cancel", "cancelled")
        try:
            self.rig.store.change_flow(flow.id, verb, self.rig.now)
        except PerdureError:
            assert not possible
        else:
            assert possible
            self.model.change_flow(flow, verb)

    @rule(target=StoreMachine.jobs, claim=StoreMachine.claims)
    def complete_and_grow(self, claim: Claim) -> Any:
        """A handler that adds a job to its flow, with its own end."""
        job = self.model.jobs[claim.job_id]
        if job.flow is None:
            return _NONE
        [child] = self._more_of(self.model.flows[job.flow], 1)
        was_running = job.run == claim.run_id
        report = self.rig.report(claim, Completed())._replace(children=(child,))
        [finished] = self.rig.store.finish([report], self.rig.now)
        if was_running:
            self._keep(child, self.rig.job(child.id).position, self.model.now, child.id)
            self.model.grow(self.model.flows[job.flow], [child.id])
        assert finished.status == self.model.report(job, claim.run_id, "completed", 0)
        return child.id if was_running else _NONE

    @rule(
        target=StoreMachine.claims,
        claim=StoreMachine.claims,
        what=st.sampled_from(sorted(REPORTS)),
        delay=delays,
        room=st.integers(0, 3),
    )
    def a_turn(self, claim: Claim, what: str, delay: int, room: int) -> Any:
        """One that begins with an empty work list: of what comes in it, a turn does one portion. So where a flow inside
        another one may have to be seen to, nobody is claimed, and later turns go on with it."""
        self.settle()
        job = self.model.jobs[claim.job_id]
        flow = None if job.flow is None else self.model.flows[job.flow]
        if flow is None or (flow.outer is None and not self.model.inner(flow)):
            return self.turn(claim, what, delay, room)
        self.turn(claim, what, delay, 0)
        self.settle()
        return _NONE

    @rule()
    def settle(self) -> None:
        self.rig.settle()
        self.model.settle()
        _examine(self.rig)

    @invariant()
    def flows_agree(self) -> None:
        for flow in self.model.flows.values() if hasattr(self, "rig") else ():
            row, counts = self.rig.flow(flow.id), self.model.counts(flow)
            ends = row.completed, row.failed, row.cancelled, row.skipped
            seen = row.state, row.total, row.sealed_at is not None
            assert seen == (flow.state, counts.total(), flow.sealed), f"{seen} of {flow}, {counts}"
            assert ends == tuple(counts[state] for state in ("completed", "failed", "cancelled", "skipped"))
            assert row.running == (counts["running"] - len(self._going(flow)) if flow.state == "running" else 0)

    def _going(self, flow: Flow) -> list[Flow]:
        return [inner for inner in self.model.inner(flow) if inner.state == "running"]


def _pairs(jobs: Sequence[NewJob]) -> list[tuple[NewJob | None, NewJob]]:
    """Each with the one before it."""
    return list(zip([None, *jobs], jobs, strict=False))


def _examine(rig: Rig) -> None:
    try:
        findings = doctor.examine(rig.store, rig.now)
    except InvalidInput:  # a store without checks
        return
    assert doctor.is_healthy(findings), f"the doctor found {findings}"


class LimitMachine(StoreMachine):
    """Also limits, all sorts of rates, blocks of code that hold a place, and how many jobs may run at once. Which turn
    looks at a line, and who stands in which of two lines, is the store's own affair: the model judges who starts, and
    that nobody is left behind who could."""

    holds = Bundle("holds")

    @initialize(target=StoreMachine.jobs, delayed=st.lists(delays, max_size=2))
    def begin(self, delayed: list[int]) -> Any:
        return multiple(*self.begun(delayed))

    def prepare(self) -> list[JobId]:
        self.model.limits = {self.rig.key("api"): Limit(2), self.rig.key("gpu"): Limit(4)}
        self.model.limits |= {self.rig.key("rate"): Limit(3, 10 * SECOND, "sliding")}
        self.model.limits |= {self.rig.key("window"): Limit(2, 10 * SECOND, "fixed")}
        self.model.limits |= {self.rig.key("bucket"): Limit(3, 60 * SECOND, "bucket")}
        tenant = Limit(1)
        self.model.limits |= {key_of(self.rig.key("tenant"), number): tenant for number in (1, 2)}
        self._declare()
        jobs = [
            *self.enqueue_needing({"gpu": 3}, 2),
            *self.enqueue_needing({"gpu": 1}),
            *self.enqueue_needing({"api": 1}),
        ]
        return jobs + self.enqueue_needing({"rate": 1}, 2)

    def enqueue_needing(self, needs: Mapping[str, int], count: int = 1) -> list[JobId]:
        return self._enqueue({self.rig.key(name): weight for name, weight in needs.items()}, count)

    def _declare(self) -> None:
        """As a worker does at its start."""
        rules = {
            name: LimitRule(name, limit.sort, limit.declared, limit.per_us)
            for name, limit in self._by_name().items()
            if limit.declared is not None
        }
        self.rig.store.declare_limits(rules.values(), [self.rig.kind], self.rig.now)

    def _by_name(self) -> dict[str, Limit]:
        return {name_of(key): limit for key, limit in self.model.limits.items()}

    @rule(
        target=StoreMachine.jobs,
        which=st.lists(st.integers(0, 6), min_size=1, max_size=2, unique=True),
        weights=st.lists(st.sampled_from((1, 1, 2, 3, 9)), min_size=2, max_size=2),
        priority=priorities,
        delay=delays,
        count=st.integers(1, 3),
    )
    def enqueue_limited(self, which: list[int], weights: list[int], priority: int, delay: int, count: int) -> Any:
        keys = list(self.model.limits)
        wanted = dict(zip([keys[number] for number in which], weights, strict=False))
        return multiple(*self._enqueue(wanted, count, priority, delay))

    def _enqueue(self, wanted: Mapping[str, int], count: int, priority: int = 0, delay: int = 0) -> list[JobId]:
        text = written([Need(key, weight) for key, weight in wanted.items()]) or ""
        wish: Wish = {"limit_key": text, "priority": priority, "delay_s": delay / SECOND, "max_attempts": 5}
        jobs = self.rig.store.enqueue([self.rig.new(**wish) for _ in range(count)])
        for job in jobs:
            entry = Entry(job.row.id, rank_of(priority), job.position, self.model.now + delay, 5, None, needs=wanted)
            self.model.add(entry)
        return [job.row.id for job in jobs]

    @rule(number=st.integers(0, 5), most=st.integers(1, 5), what=st.sampled_from(CHANGES))
    def change_a_limit(self, number: int, most: int, what: str) -> None:
        name, limit = list(self._by_name().items())[number]
        store, now = self.rig.store, self.rig.now
        if what == "set":
            limit.by_hand = most
            store.set_limit(name, most, None, now)
        elif what == "reset":
            limit.by_hand = None
            store.reset_limit(name, None)
        elif what == "declare":
            limit.declared = most
            self._declare()
        elif what == "forget" and limit.per_us is None:
            limit.declared = None
            self._declare()
        elif what in ("pause", "resume"):
            limit.paused = what == "pause"
            store.pause_limit(name, None, now if limit.paused else None)

    @rule(
        target=holds, number=st.integers(0, 6), weight=st.sampled_from((1, 1, 2, 9)), seconds=st.sampled_from((3, 30))
    )
    def hold_a_place(self, number: int, weight: int, seconds: int) -> Any:
        """A block of code takes a place where there is one; it stands in no line."""
        key, holder, lease_us = list(self.model.limits)[number], self.rig.ids.new(), seconds * SECOND
        has_room = self.model.hold(key, weight, holder, self.model.now + lease_us)
        assert self.rig.store.take_hold(key, weight, holder, self.rig.now, lease_us) == has_room
        return multiple(*([holder] if holder in self.model.holds else []))

    @rule(holder=holds, seconds=st.sampled_from((3, 30)))
    def keep_a_place(self, holder: bytes, seconds: int) -> None:
        hold = self.model.holds[holder]
        renewed = self.rig.store.renew_hold(hold.key, holder, self.rig.now, seconds * SECOND)
        assert renewed == (hold.until > self.model.now)
        if renewed:
            self.model.holds[holder] = hold._replace(until=self.model.now + seconds * SECOND)

    @rule(holder=consumes(holds))
    def give_a_place_back(self, holder: bytes) -> None:
        self.rig.store.drop_hold(self.model.holds.pop(holder).key, holder)

    @rule(everywhere=st.booleans(), most=st.sampled_from((None, 1, 3)))
    def limit_the_queue(self, everywhere: bool, most: int | None) -> None:
        queue = "*" if everywhere else self.rig.queue
        self.model.at_most[queue] = most
        self.rig.store.limit_queue(queue, most)

    def _started(self, room: int, claims: list[Claim], company: Suspicion = Suspicion.NONE) -> list[Claim]:
        """Nobody has started for whom there was no room, or before another one of his key; and if there was room for
        more, nothing is left that waits for nothing."""
        room = max(0, min(room, self.model.room_in_queue()))
        started = [self.model.jobs[claim.job_id] for claim in claims]
        assert len(started) <= room
        for job, claim in zip(started, claims, strict=True):
            assert job.state in ("queued", "held", "parked")
            assert not (job.crashes and company is Suspicion.SUSPECT)
            assert self.model.fits(job), "there is no room for it"
            self.model.start(job, claim.run_id)
        self._read_lines()
        for job in started:
            assert not [other for other in self.model.overtaken_by(job) if not other.crashes], "it overtook others"
        assert len(started) == room or all(job.crashes for job in self.model.queued()), "a plain job was left"
        return claims

    def _set_aside(self) -> None:
        self._read_lines()

    def _read_lines(self) -> None:
        """Whether a job that needs a permit is parked or stands in line is known only by whoever has looked at it."""
        for job in self.model.jobs.values():
            if job.needs and job.state in ("held", "parked"):
                job.state = self.rig.live(job.id).state
                assert job.state in ("held", "parked")

    def _promoted(self, expected: int, found: int) -> None:
        assert expected <= found <= expected + len(self.model.limits)  # keys of rates that open are counted too

    @rule(verb=st.sampled_from(("cancel", "pause")))
    def the_first_in_line_leaves(self, verb: str) -> None:
        for job in self.model.held()[:1]:
            self.decide_by_hand(job.id, verb)

    @rule(target=StoreMachine.claims)
    def start_all(self) -> Any:
        """Whatever can start does, and nobody who could is left asleep."""
        self.settle()
        claims: list[Claim] = []
        while found := self._started(3, self.rig.claim(3)):
            claims += found
        assert self.model.room_in_queue() <= 0 or self.model.asleep() == []
        return multiple(*claims)

    @rule()
    def settle(self) -> None:
        self.rig.store.promote(self.rig.now, 0)
        self.rig.settle()
        _examine(self.rig)

    @invariant()
    def permits_agree(self) -> None:
        for key, limit in self.model.limits.items() if hasattr(self, "rig") else ():
            state = self.rig.store.key_state(key, self.rig.now)
            running = [job.id for job in self.model.jobs.values() if key in job.permits]
            blocks = [holder for holder, hold in self.model.holds.items() if hold.key == key]
            assert (state.most, state.in_use) == (0 if limit.paused else limit.most, self.model.in_use(key))
            assert set(running) <= set(state.holders) <= {*running, *blocks}  # whose lease has ended may still be there
            assert state.in_line <= sum(key in job.needs for job in self.model.held())


MACHINES: dict[str, type[StoreMachine]] = {"jobs": StoreMachine, "flows": FlowMachine, "limits": LimitMachine}
