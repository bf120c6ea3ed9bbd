"""Jobs that would otherwise wait for ever: those that are due, and those whose node is gone. Protocol `Rescue`."""

from __future__ import annotations

from perdure.ids import JobId, NodeId, to_uuid
from perdure.job.reports import Completed
from perdure.job.states import RunState, State
from perdure.store.answers import Answer, Finished, JobFilter
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
    assert rig.finish(claim, Completed()).answer == Answer.APPLIED


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
    assert (rescued.live.run_id, rescued.finished) == (wanted.run_id, Finished(Answer.APPLIED, State.QUEUED))

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
    assert rescued.finished == Finished(Answer.APPLIED, State.FAILED, has_successor=True)

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
