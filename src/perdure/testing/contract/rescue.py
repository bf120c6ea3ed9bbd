"""Jobs that would otherwise wait for ever: due jobs, and jobs of a dead node. Protocol `RescueOperations`."""

from __future__ import annotations

import os
import random

from perdure.ids import JobId, NodeId, to_uuid
from perdure.job.model import Claim
from perdure.job.reports import Completed
from perdure.job.states import RunState, State, Suspicion
from perdure.job.transitions import suspicion
from perdure.store.rows import Finished, FinishStatus, JobFilter
from perdure.testing.contract.case import each
from perdure.testing.contract.rig import CRASHED, Rig

# -- promote ---------------------------------------------------------------------------------------------------------


def test_a_job_is_promoted_when_its_time_has_come(rig: Rig) -> None:
    job_id = rig.enqueue(delay_s=10)
    rig.clock.advance(seconds=9.999999)
    assert rig.store.promote(rig.now, 10) == 0

    rig.clock.advance(milliseconds=0.001)
    assert rig.store.promote(rig.now, 10) == 1
    assert rig.job(job_id).state == State.QUEUED


def test_the_earliest_jobs_are_promoted_first_up_to_the_limit(rig: Rig) -> None:
    late, early, between = (rig.enqueue(delay_s=delay) for delay in (30, 10, 20))
    rig.clock.advance(seconds=60)

    assert rig.store.promote(rig.now, 2) == 2
    assert set(rig.in_order()) == {early, between}
    assert rig.store.promote(rig.now, 2) == 1
    assert rig.store.promote(rig.now, 2) == 0
    assert rig.in_order() == [late, early, between]


def test_a_promoted_job_that_needs_a_permit_is_held(rig: Rig) -> None:
    job_id = rig.enqueue(delay_s=1, limit_key="printer")
    rig.clock.advance(seconds=1)

    assert rig.store.promote(rig.now, 10) == 1
    assert rig.job(job_id).state == State.HELD


def test_a_paused_job_that_is_due_stays_paused(rig: Rig) -> None:
    job_id = rig.pause(rig.enqueue(delay_s=1)).row.id
    rig.clock.advance(seconds=2)

    assert rig.store.promote(rig.now, 10) == 0
    assert rig.job(job_id).state == State.PAUSED


# -- rescue ----------------------------------------------------------------------------------------------------------


def test_a_job_of_a_dead_node_is_queued_again_and_the_attempt_counts(rig: Rig) -> None:
    node = rig.register()
    first, second = rig.enqueue_many(2)
    claim = rig.claim_one(node=node)
    rig.clock.advance(seconds=5)

    assert rig.crash(node) == 1

    job, [run] = rig.job(first), rig.runs(first)
    assert (job.state, job.attempts, job.crashes, job.row.run_at) == (State.QUEUED, 1, 1, claim.live.run_at)
    assert (run.state, run.row.finished_at, run.error_type) == (RunState.LOST, rig.now, CRASHED.error_type)
    assert job.error == "NodeLost: the node died"
    assert rig.in_order() == [first, second]


def test_a_rescue_takes_as_many_as_it_has_ids_for(rig: Rig) -> None:
    node = rig.register()
    rig.enqueue_many(5)
    rig.claim(5, node=node)
    rig.store.stop(node, "crash", rig.now)

    assert [rig.rescue(node, room=2) for _ in range(4)] == [2, 2, 1, 0]
    assert len(rig.in_order()) == 5


def test_a_living_node_keeps_its_jobs(rig: Rig) -> None:
    node = rig.register()
    rig.enqueue()
    claim = rig.claim_one(node=node)

    assert rig.rescue(node) == 0
    assert rig.finish(claim, Completed()).status == FinishStatus.APPLIED


def test_the_jobs_of_a_node_that_nobody_knows_are_taken_back(rig: Rig) -> None:
    node = rig.register()
    job_id = rig.enqueue()
    rig.claim_one(node=node)
    rig.execute("DELETE FROM {node} WHERE started_at = :now", now=rig.now)

    assert rig.rescue(node) == 1
    assert rig.job(job_id).state == State.QUEUED


def test_the_jobs_of_other_nodes_stay_where_they_are(rig: Rig) -> None:
    dead, alive = rig.register(), rig.register()
    rig.enqueue_many(2)
    lost, kept = rig.claim_one(node=dead), rig.claim_one(node=alive)
    rig.crash(dead)

    assert rig.job(lost.job_id).state == State.QUEUED
    assert rig.live(kept.job_id) == kept.live


def test_a_single_job_can_be_taken_back_from_the_node_that_has_it(rig: Rig) -> None:
    node, other = rig.register(), rig.register()
    rig.enqueue_many(3)
    wanted, left, of_another = rig.claim_one(node=node), rig.claim_one(node=node), rig.claim_one(node=other)
    for dead in (node, other):
        rig.store.stop(dead, "crash", rig.now)
    ids = [JobId(rig.ids.new())]

    assert rig.store.rescue(node, CRASHED, 3, ids, rig.now, of_another.job_id) == []
    (rescued,) = rig.store.rescue(node, CRASHED, 3, ids, rig.now, wanted.job_id)
    assert (rescued.live.run_id, rescued.finished) == (wanted.run_id, Finished(FinishStatus.APPLIED, State.QUEUED))

    assert rig.job(wanted.job_id).state == State.QUEUED
    assert [rig.live(claim.job_id) for claim in (left, of_another)] == [left.live, of_another.live]


def test_a_job_fails_with_the_node_when_its_attempts_are_spent(rig: Rig) -> None:
    node = rig.register()
    job_id = rig.enqueue(max_attempts=1)
    rig.claim_one(node=node)
    rig.crash(node, max_crashes=99)

    job = rig.job(job_id)
    assert (job.state, job.error_type, job.crashes, job.attempts) == (State.FAILED, "NodeLost", 1, 1)
    assert rig.runs(job_id)[0].state == RunState.LOST


def test_a_job_that_crashes_its_nodes_fails(rig: Rig) -> None:
    job_id = rig.enqueue(max_attempts=99)
    for _ in range(3):
        node = rig.register()
        rig.claim_one(node=node)
        rig.crash(node, max_crashes=3)

    assert (rig.job(job_id).state, rig.job(job_id).crashes) == (State.FAILED, 3)


def test_a_lost_job_of_a_chain_has_a_successor(rig: Rig) -> None:
    node = rig.register()
    job_id = rig.enqueue(as_new_job=True)
    rig.claim_one(node=node)
    rig.store.stop(node, "crash", rig.now)
    next_id = JobId(rig.ids.new())

    (rescued,) = rig.store.rescue(node, CRASHED, 3, [next_id], rig.now)
    assert rescued.finished == Finished(FinishStatus.APPLIED, State.FAILED, has_successor=True)

    assert (rig.job(job_id).state, rig.job(job_id).successor) == (State.FAILED, to_uuid(next_id))
    new = rig.job(next_id)
    assert (new.state, new.attempts, new.crashes, new.retry_of) == (State.QUEUED, 1, 1, to_uuid(job_id))
    assert rig.job(job_id).crashes == 1


def test_a_rescued_job_leaves_nothing_for_a_second_rescue(rig: Rig) -> None:
    node = rig.register()
    rig.enqueue()
    rig.claim_one(node=node)
    rig.crash(node)
    before = rig.everything()

    assert rig.rescue(node) == 0
    assert rig.everything() == before


def test_there_is_nothing_to_rescue_from_a_node_that_never_was(rig: Rig) -> None:
    assert rig.rescue(NodeId(rig.ids.new())) == 0
    assert rig.jobs(JobFilter(queue=rig.queue)) == []


# -- a job that kills its nodes --------------------------------------------------------------------------------------


class _Crew:
    """Some workers and many jobs, one of which kills every node that runs it. The seed decides everything."""

    def __init__(self, rig: Rig, seed: int) -> None:
        self.rig = rig
        self.random = random.Random(seed)
        self.max_crashes = self.random.randint(2, 4)
        self.concurrency = self.random.randint(1, 8)
        self.held: list[tuple[NodeId, dict[JobId, Claim]]] = []
        for _ in range(self.random.randint(1, 4)):
            self.held.append((rig.register(), {}))
        self.innocent: list[JobId] = []
        self.killer = b""
        self.deaths = 0
        jobs = self.random.randint(1, 25)
        killer = self.random.randrange(jobs)
        for number in range(jobs):
            job_id = rig.enqueue(max_attempts=self.random.randint(2, 5), priority=self.random.choice((0, 0, 1)))
            if number == killer:
                self.killer = job_id
            else:
                self.innocent.append(job_id)

    def work(self) -> None:
        """One random event for one of the workers."""
        number = self.random.randrange(len(self.held))
        node, held = self.held[number]
        if self.random.random() < 0.5:
            self._claim(node, held)
        elif self.killer in held and self.random.random() < 0.5:
            self.deaths += 1
            self.held[number] = (self.rig.register(), {})
            self.rig.crash(node, max_crashes=self.max_crashes)
        elif ready := [job_id for job_id in held if job_id != self.killer]:
            self.rig.finish(held.pop(self.random.choice(ready)), Completed())

    def _claim(self, node: NodeId, held: dict[JobId, Claim]) -> None:
        lives = [claim.live for claim in held.values()]
        worst = max(
            (suspicion(live.crashes, live.attempts, live.max_attempts, self.max_crashes) for live in lives),
            default=Suspicion.NONE,
        )
        room = self.random.randint(0, self.concurrency - len(held))
        claims = self.rig.claim(room, node=node, company=worst, max_crashes=self.max_crashes)
        held.update((claim.job_id, claim) for claim in claims)

    @property
    def is_done(self) -> bool:
        return not self.rig.in_order() and not any(held for _, held in self.held)


@each(*range(60 if os.environ.get("PERDURE_TEST_SIZE") == "full" else 12))
def test_one_job_that_nodes_die_of_is_found_and_no_other_fails_for_it(rig: Rig, seed: int) -> None:
    crew = _Crew(rig, seed)
    for _ in range(5_000):
        if crew.is_done:
            break
        crew.work()

    assert crew.is_done
    guilty = rig.job(JobId(crew.killer))
    assert (guilty.state, guilty.error_type) == (State.FAILED, "NodeLost")
    assert guilty.crashes == crew.deaths == min(crew.max_crashes, guilty.max_attempts)
    assert {rig.job(job_id).state for job_id in crew.innocent} <= {State.COMPLETED}


def test_with_one_crash_allowed_all_that_ran_on_a_dead_node_is_given_up(rig: Rig) -> None:
    """One crash does not show which job was guilty, and no job may run a second time."""
    node = rig.register()
    ids = rig.enqueue_many(3)
    rig.claim(2, node=node, max_crashes=1)
    rig.crash(node, max_crashes=1)

    assert [rig.job(job_id).state for job_id in ids] == [State.FAILED, State.FAILED, State.QUEUED]
