"""What people decide about single jobs: every verb from every state; pause, resume and cancel.

Protocol `ControlOperations`; for `retry` and `supersede` see `retry.py` and `supersede.py`. Which verb is legal from
which state is read from TRANSITIONS, not repeated here.
"""

from __future__ import annotations

from collections.abc import Callable

from perdure.errors import JobNotFound, TransitionRefused
from perdure.ids import JobId
from perdure.job import transitions
from perdure.job.reports import Cancelled, Completed, Failed, Released, Report, Skipped, Snoozed, TimedOut, Unreadable
from perdure.job.states import LIVE, TRANSITIONS, WAITING, RunState, State, Verb
from perdure.job.views import Job
from perdure.store.rows import Place
from perdure.testing.contract.case import each, raises
from perdure.testing.contract.rig import BROKEN, CRASHED, NONE, Rig
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
"""The verbs of this protocol and of `OrderOperations`; `edit` is in `jobs`."""

REPEATS = {(Verb.CANCEL, State.CANCELLED)} | {(Verb.RESUME, state) for state in LIVE - TRANSITIONS[Verb.RESUME].sources}
"""Not in the table, but no error: the job is already in the state asked for."""

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
    jobs = len(rig.tables()["job"])
    twice = BY_HAND[verb](rig, job_id)

    assert twice.state == once.state
    assert twice == once or verb == Verb.MOVE
    assert len(rig.tables()["job"]) == jobs


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
    (Skipped(), RunState.SKIPPED),
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


# -- what only the store decides -------------------------------------------------------------------------------------


@each(*[state for state in State if state not in TRANSITIONS[Verb.CLAIM].sources])
def test_a_job_in_any_other_state_is_not_claimed(rig: Rig, state: State) -> None:
    in_state(rig, state)
    before = rig.tables()["ready"]

    assert rig.claim(10) == []
    assert rig.claim(10, kinds=NONE) == []
    assert rig.tables()["ready"] == before


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

    assert rig.store.rescue(rig.node, CRASHED, 3, [JobId(rig.ids.new())], rig.now) == []
    assert rig.everything() == before
