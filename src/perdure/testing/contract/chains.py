"""`Retry(as_new_job=True)`: every attempt is a new job. Part of the protocol `FinishOperations`."""

from __future__ import annotations

from perdure.errors import TransitionRefused
from perdure.ids import to_uuid
from perdure.job.reports import Completed, Failed, Released, Report, Snoozed, TimedOut
from perdure.job.states import RunState, State
from perdure.store.rows import Finished, FinishStatus
from perdure.testing.contract.case import each
from perdure.testing.contract.rig import BROKEN, Rig


@each(
    (Failed(BROKEN), State.FAILED, RunState.FAILED, 1),
    (TimedOut(BROKEN), State.FAILED, RunState.TIMED_OUT, 1),
    (Snoozed(0), State.SKIPPED, RunState.RELEASED, 0),
    (Released(), State.SKIPPED, RunState.RELEASED, 0),
    (Released(counts=True), State.SKIPPED, RunState.RELEASED, 1),
)
def test_a_successor_continues_the_work(
    rig: Rig, report: Report, state: State, run_state: RunState, attempts: int
) -> None:
    behind = rig.new(priority=2)
    claim = rig.start(as_new_job=True, priority=2, params='{"p":1}', secrets='{"s":1}', timeout_ms=80, max_attempts=5)
    rig.store.enqueue([behind])
    rig.clock.advance(seconds=2)
    finish = rig.report(claim, report)

    assert rig.store.finish([finish], rig.now) == [Finished(FinishStatus.APPLIED, state, has_successor=True)]

    old, new = rig.job(claim.job_id), rig.job(finish.next_id)
    assert (old.state, old.successor, rig.runs(old.row.id)[0].state) == (state, to_uuid(finish.next_id), run_state)
    assert (new.state, new.attempts, new.life, new.row.chain_attempt) == (State.QUEUED, attempts, 1, 2)
    assert (new.retry_of, new.root_id) == (old.id, old.id)
    assert (rig.row(new.row.id).auto_retry_of, rig.row(new.row.id).secrets) == (claim.job_id, '{"s":1}')
    assert (new.payload, new.params, new.max_attempts) == (old.payload, old.params, 5)
    assert (new.priority, new.position) == (old.priority, old.position)
    assert (rig.live(new.row.id).as_new_job, rig.live(new.row.id).timeout_ms) == (1, 80)
    assert rig.in_order() == [new.row.id, behind.id]
    assert rig.runs(new.row.id) == []


@each(Failed(BROKEN), TimedOut(BROKEN), Snoozed(0), Released())
def test_a_report_that_comes_again_makes_no_second_successor(rig: Rig, report: Report) -> None:
    claim = rig.start(as_new_job=True, max_attempts=5)
    first = rig.finish(claim, report)
    before = rig.everything()

    assert rig.finish(claim, report) == Finished(FinishStatus.ALREADY, first.state, has_successor=True)
    assert rig.everything() == before
    assert len(rig.in_order()) == 1


def test_a_chain_has_one_budget_and_one_root(rig: Rig) -> None:
    claim = rig.start(as_new_job=True, max_attempts=3)
    chain = [claim.job_id]
    while rig.finish(claim, Failed(BROKEN)).status == FinishStatus.APPLIED and rig.in_order():
        claim = rig.claim_one()
        chain.append(claim.job_id)

    assert len(set(chain)) == 3
    assert [rig.job(job_id).state for job_id in chain] == [State.FAILED] * 3
    assert [rig.job(job_id).row.chain_attempt for job_id in chain] == [1, 2, 3]
    assert [rig.job(job_id).successor for job_id in chain] == [to_uuid(chain[1]), to_uuid(chain[2]), None]
    assert [rig.job(job_id).root_id for job_id in chain] == [None, to_uuid(chain[0]), to_uuid(chain[0])]
    assert [len(rig.runs(job_id)) for job_id in chain] == [1, 1, 1]


def test_only_the_newest_of_a_chain_has_a_further_life(rig: Rig) -> None:
    claim = rig.start(as_new_job=True, max_attempts=2)
    rig.finish(claim, Failed(BROKEN))
    newest = rig.claim_one()
    rig.finish(newest, Failed(BROKEN))

    for job_id, allowed in ((claim.job_id, False), (newest.job_id, True)):
        try:
            rig.store.retry(job_id, rig.now)
        except TransitionRefused:
            assert not allowed
        else:
            assert allowed
    assert rig.live(newest.job_id).as_new_job == 1


def test_those_who_wait_for_a_job_wait_for_its_successor(rig: Rig) -> None:
    claim = rig.start(as_new_job=True, max_attempts=3)
    replacement = rig.new()
    rig.store.supersede(claim.job_id, replacement, rig.now)
    rig.execute("UPDATE {ready} SET cancel_requested = 0 WHERE cancel_requested = 1")
    rig.finish(claim, Failed(BROKEN))
    successor = rig.claim_one()

    assert rig.job(replacement.id).state == State.BLOCKED
    rig.finish(successor, Completed())
    assert rig.job(replacement.id).state == State.QUEUED
