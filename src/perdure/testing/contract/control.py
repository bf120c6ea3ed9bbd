"""What people decide about single jobs: cancel, pause, resume, retry, supersede, and every verb from every state.

Protocol `Control`. Which verb is legal from which state is taken from TRANSITIONS, never written down again here.
"""

from __future__ import annotations

from collections.abc import Callable

from perdure.errors import JobNotFound, KeyConflict, TransitionRefused
from perdure.ids import JobId, to_uuid
from perdure.job import transitions
from perdure.job.job import Job
from perdure.job.reports import Cancelled, Completed, Failed, Released, Report, Skipped, Snoozed, TimedOut, Unreadable
from perdure.job.states import FINAL, LIVE, TRANSITIONS, WAITING, RunState, State, Verb
from perdure.store.answers import Place
from perdure.testing.contract.case import each, raises
from perdure.testing.contract.rig import BROKEN, CRASHED, HOPELESS, NONE, Rig
from perdure.testing.contract.states import in_state

BY_HAND: dict[Verb, Callable[[Rig, JobId], Job]] = {
    Verb.CANCEL: lambda rig, job_id: rig.cancel(job_id),
    Verb.PAUSE: lambda rig, job_id: rig.pause(job_id),
    Verb.RESUME: lambda rig, job_id: rig.resume(job_id),
    Verb.RETRY: lambda rig, job_id: rig.store.retry(job_id, rig.now),
    Verb.SUPERSEDE: lambda rig, job_id: rig.store.supersede(job_id, rig.new(), rig.now),
    Verb.MOVE: lambda rig, job_id: rig.store.move(job_id, Place(), rig.now),
    Verb.SET_PRIORITY: lambda rig, job_id: rig.store.set_priority(job_id, -7, rig.now),
}
"""The verbs of this protocol and of `Order`; `edit` is in `jobs`."""

REPEATS = {(Verb.CANCEL, State.CANCELLED)} | {
    (Verb.RESUME, state) for state in LIVE - TRANSITIONS[Verb.RESUME].sources
}
"""Outside the table, but no mistake: the job already is what is asked for."""

LEGAL = [(verb, state) for verb in BY_HAND for state in State if state in TRANSITIONS[verb].sources]
REFUSED = [
    (verb, state)
    for verb in BY_HAND
    for state in State
    if state not in TRANSITIONS[verb].sources and (verb, state) not in REPEATS
]


@each(*LEGAL)
def test_a_legal_verb_leads_where_the_table_says(rig: Rig, verb: Verb, state: State) -> None:
    job_id = in_state(rig, state)

    answer = BY_HAND[verb](rig, job_id)

    asked = Verb.REQUEST_CANCEL if (verb, state) == (Verb.CANCEL, State.RUNNING) else verb
    assert answer == rig.job(job_id)
    assert answer.state in TRANSITIONS[asked].targets
    assert verb not in (Verb.MOVE, Verb.SET_PRIORITY) or answer.state == state


@each(*REFUSED)
def test_an_illegal_verb_is_refused_and_changes_nothing(rig: Rig, verb: Verb, state: State) -> None:
    job_id = in_state(rig, state)
    before = rig.everything()

    with raises(TransitionRefused, f"{verb}_refused"):
        BY_HAND[verb](rig, job_id)

    assert rig.everything() == before


@each(*sorted(REPEATS))
def test_a_repeat_changes_nothing(rig: Rig, verb: Verb, state: State) -> None:
    job_id = in_state(rig, state)
    before = rig.everything()

    assert BY_HAND[verb](rig, job_id) == rig.job(job_id)
    assert rig.everything() == before


@each(Verb.CANCEL, Verb.PAUSE, Verb.RESUME, Verb.SUPERSEDE, Verb.MOVE)
def test_doing_it_twice_is_doing_it_once(rig: Rig, verb: Verb) -> None:
    job_id = in_state(rig, State.RUNNING if verb == Verb.SUPERSEDE else State.PAUSED)
    once = BY_HAND[verb](rig, job_id)
    jobs = len(rig.everything()["job"])
    twice = BY_HAND[verb](rig, job_id)

    assert twice.state == once.state
    assert twice == once or verb == Verb.MOVE
    assert len(rig.everything()["job"]) == jobs


@each(*BY_HAND)
def test_a_job_that_is_not_there_is_not_found(rig: Rig, verb: Verb) -> None:
    before = rig.everything()

    with raises(JobNotFound):
        BY_HAND[verb](rig, JobId(rig.ids.new()))

    assert rig.everything() == before


@each(Verb.CANCEL, Verb.PAUSE, Verb.RESUME)
def test_a_decision_about_an_outdated_version_is_refused(rig: Rig, verb: Verb) -> None:
    decide = {
        Verb.CANCEL: transitions.cancel,
        Verb.PAUSE: transitions.pause,
        Verb.RESUME: transitions.resume,
    }[verb]
    job_id = rig.pause(rig.enqueue()).row.id
    seen = rig.job(job_id).version
    if verb == Verb.PAUSE:
        rig.resume(job_id)
    else:
        rig.store.set_priority(job_id, -1, rig.now)
    before = rig.everything()

    with raises(TransitionRefused, "version_changed"):
        rig.change(job_id, verb, decide, seen)

    assert rig.everything() == before
    rig.change(job_id, verb, decide, rig.job(job_id).version)


# -- pause and resume ------------------------------------------------------------------------------------------------


def test_a_paused_job_is_not_claimed_until_it_is_resumed(rig: Rig) -> None:
    job_id = rig.enqueue()
    rig.pause(job_id)
    assert rig.claim() == []

    rig.resume(job_id)
    assert rig.claim_one().job_id == job_id


def test_a_paused_job_keeps_its_place(rig: Rig) -> None:
    first, second, third = rig.enqueue_many(3)
    rig.pause(second)
    rig.resume(second)

    assert rig.in_order() == [first, second, third]


def test_a_resumed_job_whose_time_has_not_come_is_scheduled(rig: Rig) -> None:
    job_id = rig.pause(rig.enqueue(delay_s=60)).row.id

    assert rig.resume(job_id).state == State.SCHEDULED


def test_a_resumed_job_whose_time_came_meanwhile_is_queued(rig: Rig) -> None:
    job_id = rig.pause(rig.enqueue(delay_s=60)).row.id
    rig.clock.advance(seconds=60)

    assert rig.resume(job_id).state == State.QUEUED


def test_a_resumed_job_that_needs_a_permit_is_held(rig: Rig) -> None:
    job_id = rig.pause(rig.enqueue(limit_key="printer")).row.id

    assert rig.resume(job_id).state == State.HELD


def test_where_a_job_waits_is_decided_in_one_order(rig: Rig) -> None:
    running = rig.start()
    replacement = rig.new(delay_s=60, limit_key="printer")
    rig.store.supersede(running.job_id, replacement, rig.now)
    job_id = replacement.id
    seen = [rig.job(job_id).state, rig.pause(job_id).state, rig.resume(job_id).state]
    rig.finish(running, Cancelled())
    seen.append(rig.job(job_id).state)
    rig.clock.advance(seconds=60)
    rig.store.promote(rig.now, 10)
    seen.append(rig.job(job_id).state)

    assert seen == [State.BLOCKED, State.PAUSED, State.BLOCKED, State.SCHEDULED, State.HELD]


def test_a_resumed_job_that_was_parked_is_queued_again(rig: Rig) -> None:
    job_id = in_state(rig, State.PARKED)
    answer = rig.resume(job_id)

    assert (answer.state, answer.park_reason) == (State.QUEUED, None)


# -- cancel ----------------------------------------------------------------------------------------------------------


@each(*sorted(WAITING))
def test_cancelling_a_waiting_job_ends_it_at_once(rig: Rig, state: State) -> None:
    job_id = in_state(rig, state)
    answer = rig.cancel(job_id)

    assert answer.state == State.CANCELLED
    assert answer.row.finished_at == rig.now
    assert rig.store.live(job_id) is None
    assert rig.runs(job_id) == []


def test_cancelling_a_running_job_asks_it_to_stop(rig: Rig) -> None:
    claim = rig.start()
    answer = rig.cancel(claim.job_id)

    assert (answer.state, answer.cancel_requested) == (State.RUNNING, True)
    assert rig.runs(claim.job_id)[0].state == RunState.RUNNING


def test_a_job_that_succeeds_in_spite_of_a_cancel_is_completed(rig: Rig) -> None:
    claim = rig.start()
    rig.cancel(claim.job_id)
    rig.finish(claim, Completed('"done"'))

    assert (rig.job(claim.job_id).state, rig.job(claim.job_id).result) == (State.COMPLETED, "done")


@each(
    (Cancelled(), RunState.CANCELLED),
    (Failed(BROKEN), RunState.FAILED),
    (TimedOut(BROKEN), RunState.TIMED_OUT),
    (Snoozed(60), RunState.RELEASED),
    (Released(), RunState.RELEASED),
    (Unreadable("?"), RunState.RELEASED),
)
def test_any_other_way_out_after_a_cancel_ends_as_cancelled(rig: Rig, report: Report, run_state: RunState) -> None:
    claim = rig.start()
    rig.cancel(claim.job_id)
    answer = rig.finish(claim, report)

    assert answer.state == State.CANCELLED
    assert rig.job(claim.job_id).state == State.CANCELLED
    assert rig.runs(claim.job_id)[0].state == run_state


def test_a_cancelled_job_whose_node_dies_ends_as_cancelled(rig: Rig) -> None:
    node = rig.register()
    rig.enqueue()
    claim = rig.claim_one(node=node)
    rig.cancel(claim.job_id)
    rig.crash(node)

    assert rig.job(claim.job_id).state == State.CANCELLED
    assert rig.runs(claim.job_id)[0].state == RunState.LOST


# -- retry by hand ---------------------------------------------------------------------------------------------------


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
    ends = [(row[1], row[2]) for row in rig.everything()["outcome"]]
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


# -- supersede -------------------------------------------------------------------------------------------------------


@each(*sorted(WAITING - {State.BLOCKED}))
def test_a_waiting_job_is_cancelled_by_its_replacement(rig: Rig, state: State) -> None:
    old = in_state(rig, state)
    replacement = rig.new()

    answer = rig.store.supersede(old, replacement, rig.now)

    assert (answer.state, answer.superseded_by) == (State.CANCELLED, to_uuid(replacement.id))
    assert rig.job(replacement.id).state == State.QUEUED


def test_a_running_job_is_asked_to_stop_and_its_replacement_waits_for_it(rig: Rig) -> None:
    running = rig.start()
    replacement = rig.new()

    answer = rig.store.supersede(running.job_id, replacement, rig.now)

    assert (answer.state, answer.cancel_requested) == (State.RUNNING, True)
    waiting = rig.job(replacement.id)
    assert (waiting.state, waiting.waits_for) == (State.BLOCKED, 1)
    assert rig.claim() == []


@each(Completed(), Failed(BROKEN), Failed(HOPELESS), Snoozed(5), Released(), Cancelled(), Skipped(), Unreadable("?"))
def test_the_replacement_starts_when_the_superseded_job_lets_go(rig: Rig, report: Report) -> None:
    running = rig.start()
    replacement = rig.new()
    rig.store.supersede(running.job_id, replacement, rig.now)
    rig.finish(running, report)

    assert rig.job(running.job_id).is_final
    assert rig.job(running.job_id).superseded_by == to_uuid(replacement.id)
    assert rig.claim_one().job_id == replacement.id


def test_the_replacement_starts_when_the_node_of_the_superseded_job_dies(rig: Rig) -> None:
    node = rig.register()
    rig.enqueue()
    running = rig.claim_one(node=node)
    replacement = rig.new()
    rig.store.supersede(running.job_id, replacement, rig.now)
    rig.crash(node)

    assert rig.job(running.job_id).state == State.CANCELLED
    assert rig.claim_one().job_id == replacement.id


def test_a_paused_replacement_stays_paused_when_its_turn_comes(rig: Rig) -> None:
    running = rig.start()
    replacement = rig.new()
    rig.store.supersede(running.job_id, replacement, rig.now)
    rig.pause(replacement.id)
    rig.finish(running, Cancelled())

    assert (rig.job(replacement.id).state, rig.job(replacement.id).waits_for) == (State.PAUSED, 0)
    assert rig.resume(replacement.id).state == State.QUEUED


def test_a_replacement_can_be_superseded_in_turn(rig: Rig) -> None:
    running = rig.start()
    second, third = rig.new(), rig.new()
    rig.store.supersede(running.job_id, second, rig.now)
    rig.store.supersede(second.id, third, rig.now)
    rig.finish(running, Cancelled())

    assert rig.job(second.id).state == State.CANCELLED
    assert rig.job(third.id).state == State.QUEUED


def test_a_superseded_job_is_not_superseded_again(rig: Rig) -> None:
    running = rig.start()
    first, second = rig.new(), rig.new()
    rig.store.supersede(running.job_id, first, rig.now)

    answer = rig.store.supersede(running.job_id, second, rig.now)

    assert answer.superseded_by == to_uuid(first.id)
    assert rig.store.get(second.id) is None


def test_a_replacement_with_a_used_idempotency_key_changes_nothing(rig: Rig) -> None:
    rig.enqueue(idempotency_key=rig.key("k"))
    old = rig.enqueue()
    before = rig.everything()

    with raises(KeyConflict, "supersede_conflict"):
        rig.store.supersede(old, rig.new(idempotency_key=rig.key("k")), rig.now)

    assert rig.everything() == before


# -- what only the store decides -------------------------------------------------------------------------------------


@each(*[state for state in State if state not in TRANSITIONS[Verb.CLAIM].sources])
def test_a_job_in_any_other_state_is_not_claimed(rig: Rig, state: State) -> None:
    in_state(rig, state)
    before = rig.everything()["ready"]

    assert rig.claim(10) == []
    assert rig.claim(10, kinds=NONE) == []
    assert rig.everything()["ready"] == before


@each(*[state for state in State if state not in TRANSITIONS[Verb.PROMOTE].sources])
def test_a_job_in_any_other_state_is_not_promoted(rig: Rig, state: State) -> None:
    in_state(rig, state)
    before = rig.everything()
    rig.clock.advance(days=1)

    assert rig.store.promote(rig.now, 10) == 0
    assert rig.everything() == before


@each(*[state for state in State if state not in TRANSITIONS[Verb.RESCUE].sources | {State.BLOCKED}])
def test_a_job_in_any_other_state_is_not_rescued(rig: Rig, state: State) -> None:
    in_state(rig, state)
    rig.store.stop(rig.node, "crash", rig.now)
    before = rig.everything()

    assert rig.store.rescue(rig.node, CRASHED, 3, [JobId(rig.ids.new())], rig.now) == 0
    assert rig.everything() == before
