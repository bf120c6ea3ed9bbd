"""Random sequences of operations on a store and on the `model`, compared after every step. Needs hypothesis."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from typing import Any

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

from perdure.errors import KeyConflict, PerdureError
from perdure.ids import JobId
from perdure.job.model import Claim, NewJob, rank_of
from perdure.job.reports import Cancelled, Completed, Failed, Released, Report, Skipped, Snoozed, TimedOut
from perdure.job.states import Suspicion
from perdure.store.rows import JobFilter, Lane, Place, RunFilter, Turn
from perdure.testing.contract.model import Entry, Model, Refused
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


def run(rig: Rig) -> None:
    """Search for a sequence on which the rig's store and the model differ; the error shows the shortest one found."""

    class OnThisStore(StoreMachine):
        def open_rig(self) -> Rig:
            return Rig(rig.url, rig.opener)

    run_state_machine_as_test(
        OnThisStore,
        settings=settings(
            max_examples=_examples(rig.url),
            stateful_step_count=40,
            deadline=None,
            database=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
        ),
    )


def _examples(url: str) -> int:
    """How many sequences to run. Usually fewer on a server, where each takes three times as long as on SQLite."""
    if FULL:
        return 1_000
    return 25 if url.startswith(("postgres", "mysql", "mariadb")) else 100


class StoreMachine(RuleBasedStateMachine):
    """One store, one queue, and the model of it."""

    jobs = Bundle("jobs")
    claims = Bundle("claims")

    def open_rig(self) -> Rig:
        raise NotImplementedError

    @initialize(target=jobs, delayed=st.lists(delays, min_size=4, max_size=6))
    def begin(self, delayed: list[int]) -> Any:
        """Start with some jobs of one priority in the queue: an empty one shows little."""
        self.rig = self.open_rig()
        self.model = Model(self.rig.now)
        return multiple(*(self.enqueue_one(delay=delay, max_attempts=5) for delay in delayed))

    def teardown(self) -> None:
        if hasattr(self, "rig"):
            self.rig.clear()

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
        entry.state = "scheduled" if delay else "queued"
        self._keep(entry, idempotency)
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

    def _keep(self, entry: Entry, idempotency: str | None) -> None:
        self.model.jobs[entry.id] = entry
        if idempotency is not None:
            self.model.idempotency[idempotency] = entry.id
        if entry.key is not None:
            self.model.holders[entry.key] = entry.id

    @rule(target=claims, room=st.integers(1, 3), company=st.sampled_from(Suspicion))
    def claim(self, room: int, company: Suspicion) -> Any:
        expected = self.model.claimable(room, company)
        return self._started(expected, self.rig.claim(room, company=company))

    def _started(self, expected: list[Entry], claims: list[Claim]) -> Any:
        assert [claim.job_id for claim in claims] == [job.id for job in expected]
        for job, claim in zip(expected, claims, strict=True):
            self.model.start(job, claim.run_id)
        return multiple(*claims)

    @rule(target=claims, claim=claims, what=st.sampled_from(sorted(REPORTS)), delay=delays, room=st.integers(0, 3))
    def a_turn(self, claim: Claim, what: str, delay: int, room: int) -> Any:
        """Finish one, promote, claim: the claim can take what the first parts have queued."""
        job = self.model.jobs[claim.job_id]
        answer = self.model.report(job, claim.run_id, what, delay)
        state_then = job.state
        promoted = self.model.promote(2)
        expected = self.model.claimable(room)
        wanted = Turn(
            finishes=[self.rig.report(claim, REPORTS[what](delay))],
            promote=2,
            lanes=[Lane(self.rig.queue, room)],
            claimer=self.rig.claimer(3),
        )
        [finished], count, claims, *_ = self.rig.store.turn(wanted, self.rig.now)
        assert (finished.status, count) == (answer, promoted)
        assert answer == "lost" or finished.state == state_then
        return self._started(expected, claims)

    @rule()
    def a_stranger_comes_by(self) -> None:
        assert self.rig.claim(2, node=self.rig.register(), kinds=NONE) == []
        self.model.park_all()

    @rule(what=st.sampled_from(sorted(REPORTS)), delay=delays)
    def claim_and_finish(self, what: str, delay: int) -> None:
        expected = self.model.claimable(1)
        for job, claim in zip(expected, self.rig.claim(1), strict=True):
            self.model.start(job, claim.run_id)
            self._finish(claim, what, delay)

    @rule(claim=claims, what=st.sampled_from(sorted(REPORTS)), delay=delays)
    def finish(self, claim: Claim, what: str, delay: int) -> None:
        self._finish(claim, what, delay)

    @rule(claim=consumes(claims), what=st.sampled_from(("completed", "fail", "release")), delay=delays)
    def finish_for_the_last_time(self, claim: Claim, what: str, delay: int) -> None:
        self._finish(claim, what, delay)

    def _finish(self, claim: Claim, what: str, delay: int) -> None:
        job = self.model.jobs[claim.job_id]
        expected = self.model.report(job, claim.run_id, what, delay)
        answer = self.rig.finish(claim, REPORTS[what](delay))
        assert answer.status == expected
        assert answer.state == (None if expected == "lost" else job.state)

    @rule(seconds=st.sampled_from((1, 5, 20)), limit=st.integers(1, 3))
    def time_passes_and_jobs_are_promoted(self, seconds: int, limit: int) -> None:
        self.rig.clock.advance(seconds=seconds)
        self.model.now = self.rig.now
        assert self.rig.store.promote(self.rig.now, limit) == self.model.promote(limit)

    @rule()
    def the_node_dies(self) -> None:
        old, self.rig = self.rig, self._successor_of(self.rig)
        old.store.stop(old.node, "crash", old.now)
        assert old.rescue(old.node) == self.model.crash()

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
