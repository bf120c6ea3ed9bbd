"""A new life for an ended job, or the same work as a new job. Part of the protocol `ControlOperations`."""

from __future__ import annotations

from perdure.errors import JobNotFound, TransitionRefused
from perdure.ids import JobId, to_uuid
from perdure.job.reports import Completed, Failed
from perdure.job.states import FINAL, LIVE, TRANSITIONS, State, Verb
from perdure.testing.contract.case import each, raises
from perdure.testing.contract.rig import BROKEN, HOPELESS, Rig
from perdure.testing.contract.states import in_state


def test_a_retry_opens_a_new_life_and_keeps_the_runs(rig: Rig) -> None:
    claim = rig.start(max_attempts=2, timeout_ms=70)
    rig.finish(claim, Failed(HOPELESS))
    rig.clock.advance(seconds=5)

    answer = rig.store.retry(claim.job_id, rig.now)

    assert answer == rig.job(claim.job_id)
    assert (answer.state, answer.life, answer.attempts, answer.crashes) == (State.QUEUED, 2, 0, 0)
    assert (answer.error, answer.result, answer.finished_at, answer.started_at) == (None, None, None, None)
    assert (answer.row.queued_at, answer.row.run_at) == (rig.now, rig.now)
    assert [run.life for run in rig.runs(claim.job_id)] == [1]
    again = rig.claim_one()
    assert (again.job_id, again.live.attempts, again.live.timeout_ms) == (claim.job_id, 1, 70)
    assert [(run.life, run.attempt) for run in rig.runs(claim.job_id)] == [(2, 1), (1, 1)]


def test_a_new_life_has_the_whole_budget(rig: Rig) -> None:
    claim = rig.start(max_attempts=2)
    for _ in range(2):
        rig.finish(claim, Failed(BROKEN))
        claim = rig.claim_one() if rig.store.live(claim.job_id) else claim
    assert rig.job(claim.job_id).state == State.FAILED
    rig.store.retry(claim.job_id, rig.now)
    rig.finish(rig.claim_one(), Failed(BROKEN))

    assert rig.job(claim.job_id).state == State.QUEUED


def test_a_retried_job_has_its_old_place_and_priority(rig: Rig) -> None:
    first, second, third = rig.enqueue_many(3, priority=3)
    rig.enqueue()
    rig.cancel(second)
    rig.store.retry(second, rig.now)

    assert rig.in_order()[:3] == [first, second, third]


def test_every_life_ends_once_and_all_are_kept(rig: Rig) -> None:
    claim = rig.start()
    rig.finish(claim, Failed(HOPELESS))
    rig.store.retry(claim.job_id, rig.now)
    rig.cancel(claim.job_id)
    rig.store.retry(claim.job_id, rig.now)
    rig.finish(rig.claim_one(), Completed())

    assert (rig.job(claim.job_id).life, rig.job(claim.job_id).state) == (3, State.COMPLETED)
    ends = [(row[1], row[2]) for row in rig.tables()["outcome"]]
    assert sorted(ends, key=repr) == [(1, "failed"), (2, "cancelled"), (3, "completed")]


def test_retrying_a_job_that_is_in_a_later_life_changes_nothing(rig: Rig) -> None:
    job_id = in_state(rig, State.FAILED)
    once = rig.store.retry(job_id, rig.now)

    assert rig.store.retry(job_id, rig.now) == once


def test_a_superseded_job_has_no_further_life(rig: Rig) -> None:
    job_id = rig.enqueue()
    rig.store.supersede(job_id, rig.new(), rig.now)

    with raises(TransitionRefused, "retry_refused"):
        rig.store.retry(job_id, rig.now)


def test_a_stale_run_changes_nothing_in_a_later_life(rig: Rig) -> None:
    claim = rig.start()
    rig.finish(claim, Failed(HOPELESS))
    rig.store.retry(claim.job_id, rig.now)
    rig.claim_one()
    before = rig.everything()

    assert rig.finish(claim, Completed()).state is None
    assert rig.everything() == before


@each(*sorted(FINAL))
def test_any_ended_job_can_be_retried_as_a_new_one(rig: Rig, state: State) -> None:
    old = in_state(rig, state, priority=3, params='{"p":1}', principal="ann", max_attempts=5)
    behind = rig.enqueue(priority=3)
    new_id = JobId(rig.ids.new())

    answer = rig.store.retry_as_new(old, new_id, rig.now)

    assert answer == rig.job(new_id)
    assert (answer.state, answer.attempts, answer.life, answer.row.chain_attempt) == (State.QUEUED, 0, 1, 1)
    assert (answer.retry_of, answer.root_id) == (to_uuid(old), to_uuid(old))
    assert (answer.payload, answer.params, answer.principal) == ({"n": 1}, {"p": 1}, "ann")
    assert (answer.priority, answer.max_attempts) == (3, 5)
    assert rig.job(old).state == state
    assert rig.in_order() == [behind, new_id]


@each(*sorted(FINAL))
def test_a_retry_in_place_is_for_the_states_of_the_table(rig: Rig, state: State) -> None:
    job_id = in_state(rig, state)

    if state in TRANSITIONS[Verb.RETRY].sources:
        assert rig.store.retry(job_id, rig.now).life == 2
    else:
        with raises(TransitionRefused, "retry_refused"):
            rig.store.retry(job_id, rig.now)


def test_a_job_in_a_later_life_is_a_new_one_in_its_first(rig: Rig) -> None:
    claim = rig.start()
    rig.finish(claim, Failed(HOPELESS))
    rig.store.retry(claim.job_id, rig.now)
    rig.finish(rig.claim_one(), Completed())

    assert rig.store.retry_as_new(claim.job_id, JobId(rig.ids.new()), rig.now).life == 1


@each(*sorted(LIVE))
def test_a_live_job_cannot_be_retried_as_a_new_one(rig: Rig, state: State) -> None:
    job_id = in_state(rig, state)
    before = rig.everything()

    with raises(TransitionRefused, "retry_refused"):
        rig.store.retry_as_new(job_id, JobId(rig.ids.new()), rig.now)

    assert rig.everything() == before


def test_retrying_what_is_not_there_as_a_new_job_says_so(rig: Rig) -> None:
    with raises(JobNotFound):
        rig.store.retry_as_new(JobId(rig.ids.new()), JobId(rig.ids.new()), rig.now)
