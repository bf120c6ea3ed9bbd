"""The decisions: pure functions from a job and what happened to what becomes of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.clock import Micros
from perdure.errors import TransitionRefused
from perdure.ids import JobId, NodeId, RunId
from perdure.job import transitions
from perdure.job.model import QUEUED, Failure, LiveJob, OutcomeRow, Transition, Waiter
from perdure.job.reports import (
    Cancelled,
    Completed,
    Failed,
    Finish,
    Released,
    Report,
    Skipped,
    Snoozed,
    TimedOut,
    Unreadable,
)
from perdure.job.states import (
    CLOSED,
    FINAL,
    LANDING,
    LIVE,
    TRANSITIONS,
    WAITING,
    Park,
    RunState,
    State,
    Suspicion,
    Verb,
)

NOW = Micros(1_000_000_000)
BROKEN = Failure("ValueError", "it broke")
HOPELESS = Failure("ValueError", "it will never work", permanent=True)
CRASHED = Failure("NodeLost", "the node died")
NEXT = JobId(b"\x02" * 16)

WAITING_JOB = LiveJob(
    job_id=JobId(b"\x01" * 16),
    queue="mail",
    kind="send",
    kind_version=1,
    state=State.QUEUED.value,
    rank=0,
    position=100,
    run_at=NOW,
    queued_at=NOW,
    started_at=None,
    attempts=0,
    crashes=0,
    life=1,
    max_attempts=3,
    as_new_job=0,
    timeout_ms=None,
    node_id=None,
    run_id=None,
    claimed_at=None,
    deadline_at=None,
    waits_for=0,
    limit_key=None,
    business_key=None,
    superseded_by=None,
    paused=0,
    cancel_requested=0,
    park_reason=None,
    held_by=None,
    last_error=None,
    flow_id=None,
    traits=0,
    updated_at=NOW,
    version=1,
)


def running(job: LiveJob = WAITING_JOB, **changes: object) -> LiveJob:
    claimed = transitions.claim(job, RunId(b"\x03" * 16), NodeId(b"\x04" * 16), NOW, 60_000_000)
    return claimed._replace(**changes)  # type: ignore[arg-type]


def in_state(state: State) -> LiveJob:
    if state == State.RUNNING:
        return running()
    return WAITING_JOB._replace(
        state=state.value,
        paused=int(state == State.PAUSED),
        waits_for=int(state == State.BLOCKED),
        run_at=Micros(NOW + (state == State.SCHEDULED)),
        limit_key="printer" if state == State.HELD else None,
        park_reason=Park.UNKNOWN_KIND.value if state == State.PARKED else None,
    )


# -- what the properties range over ----------------------------------------------------------------------------------

instants = st.integers(0, 2 * NOW).map(Micros)
flags = st.integers(0, 1)


@st.composite
def jobs(draw: st.DrawFn, *states: State) -> LiveJob:
    """Any live job, in one of these states, that the functions below can have brought about."""
    max_attempts = draw(st.integers(1, 5))
    state = draw(st.sampled_from(states or sorted(LIVE)))
    job = WAITING_JOB._replace(
        state=state.value,
        run_at=draw(instants),
        attempts=draw(st.integers(0, max_attempts - 1)),
        crashes=draw(st.integers(0, 3)),
        life=draw(st.integers(1, 3)),
        max_attempts=max_attempts,
        as_new_job=draw(flags),
        timeout_ms=draw(st.none() | st.integers(1, 10**6)),
        limit_key=draw(st.sampled_from((None, "printer"))),
        business_key=draw(st.sampled_from((None, "invoice 7"))),
        version=draw(st.integers(1, 9)),
    )
    if state == State.RUNNING:
        return running(job, cancel_requested=draw(flags))
    return job._replace(paused=int(state == State.PAUSED), waits_for=int(state == State.BLOCKED))


failures = st.builds(Failure, st.just("ValueError"), st.text(max_size=900), st.none(), st.booleans())
delays = st.integers(0, 10**9)
reports: st.SearchStrategy[Report] = st.one_of(
    st.builds(Completed, st.just("1")),
    st.builds(Failed, failures, delays),
    st.builds(TimedOut, failures, delays),
    st.builds(Snoozed, delays),
    st.builds(Released, st.booleans()),
    st.builds(Cancelled),
    st.builds(Skipped, st.none() | st.text()),
    st.builds(Unreadable, st.text(min_size=1)),
)
VERBS = {
    Completed: Verb.COMPLETE,
    Failed: Verb.FAIL,
    TimedOut: Verb.TIME_OUT,
    Snoozed: Verb.SNOOZE,
    Released: Verb.RELEASE,
    Cancelled: Verb.CANCEL,
    Skipped: Verb.SKIP,
    Unreadable: Verb.PARK,
}


def check_shape(decided: Transition) -> None:
    """What holds for every transition: an end has an outcome and nothing after it, all else stays within the table."""
    before, after, outcome = decided.before, decided.after, decided.outcome
    assert (after is None) != (outcome is None)
    assert decided.target in TRANSITIONS[decided.verb].targets
    if outcome is not None:
        assert decided.target in FINAL
        assert outcome.attempts >= 0
        assert (outcome.job_id, outcome.life, outcome.version) == (before.job_id, before.life, before.version + 1)
    if after is not None:
        assert decided.target in LIVE
        assert after.attempts >= 0
        assert after.version == before.version + 1
        assert (after.job_id, after.life) == (before.job_id, before.life)
        assert (after.run_id is not None) == (decided.target == State.RUNNING)
    if decided.run is not None:
        assert decided.run.run_id == before.run_id
        assert decided.run_state in CLOSED
    assert (decided.run is not None) == (before.run_id is not None and decided.target != State.RUNNING)
    if decided.successor is not None:
        live = decided.successor.live
        assert outcome is not None
        assert outcome.successor == live.job_id != before.job_id
        assert live.state in LANDING
        assert 0 <= live.attempts < live.max_attempts
        assert (live.life, live.version, live.run_id, live.position) == (1, 1, None, before.position)


# -- properties ------------------------------------------------------------------------------------------------------


@given(jobs(State.RUNNING), reports, instants)
def test_every_report_leads_within_the_table(job: LiveJob, report: Report, now: Micros) -> None:
    decided = transitions.after_run(Finish(job, report, NEXT), job, now)

    assert decided.verb == VERBS[type(report)]
    check_shape(decided)


@given(jobs(State.RUNNING), reports, instants)
def test_a_report_on_a_cancelled_job_ends_it(job: LiveJob, report: Report, now: Micros) -> None:
    job = job._replace(cancel_requested=1)

    decided = transitions.after_run(Finish(job, report, NEXT), job, now)

    assert decided.successor is None
    assert decided.target == (State.COMPLETED if isinstance(report, Completed) else State.CANCELLED)


@given(jobs(State.RUNNING), reports, instants)
def test_the_budget_is_never_exceeded(job: LiveJob, report: Report, now: Micros) -> None:
    decided = transitions.after_run(Finish(job, report, NEXT), job, now)

    for row in (decided.after, decided.successor and decided.successor.live):
        if row is not None and row.state in LANDING:
            assert row.attempts < row.max_attempts


@given(jobs(State.RUNNING), st.integers(1, 4), instants)
def test_whoever_would_fail_with_its_node_and_has_crashed_before_is_a_suspect(
    job: LiveJob, max_crashes: int, now: Micros
) -> None:
    found = transitions.suspicion(job.crashes, job.attempts, job.max_attempts, max_crashes)
    decided = transitions.rescue(job._replace(cancel_requested=0), CRASHED, max_crashes, now, NEXT)
    fails = decided.outcome is not None and decided.outcome.successor is None

    assert (found is Suspicion.NONE) == (job.crashes == 0)
    assert found is Suspicion.SUSPECT or not (fails and job.crashes)
    assert (found is Suspicion.CRASHED) == (job.crashes == 1 and not fails), "one crash makes no suspect"


@given(jobs(State.RUNNING), failures, st.integers(1, 4), instants)
def test_every_rescue_leads_within_the_table(job: LiveJob, failure: Failure, max_crashes: int, now: Micros) -> None:
    decided = transitions.rescue(job, failure, max_crashes, now, NEXT)

    check_shape(decided)
    assert decided.run_state == RunState.LOST
    going_on = decided.after or (decided.successor and decided.successor.live)
    if going_on:
        assert job.attempts < job.max_attempts
        assert going_on.crashes == job.crashes + 1 < max_crashes
        assert going_on.run_at == job.run_at


@given(jobs(), instants)
def test_every_decision_by_hand_leads_within_the_table(job: LiveJob, now: Micros) -> None:
    for decide in (transitions.cancel, transitions.pause, transitions.resume, transitions.promote):
        try:
            decided = decide(job, now)
        except TransitionRefused:
            continue
        if decided is not None:
            check_shape(decided)
    check_shape(transitions.supersede(job, NEXT, now))


@given(jobs(), instants)
def test_where_a_job_waits_is_the_first_reason_that_holds(job: LiveJob, now: Micros) -> None:
    reasons = [
        (bool(job.paused), State.PAUSED),
        (job.waits_for > 0, State.BLOCKED),
        (job.run_at > now, State.SCHEDULED),
        (job.limit_key is not None, State.HELD),
        (True, State.QUEUED),
    ]

    assert transitions.waiting_state(job, now) == next(state for holds, state in reasons if holds)


@given(jobs(State.RUNNING), reports, instants)
def test_the_same_arguments_give_the_same_transition(job: LiveJob, report: Report, now: Micros) -> None:
    finish = Finish(job, report, NEXT)

    assert transitions.after_run(finish, job, now) == transitions.after_run(finish, job, now)


# -- refusals, from the table ----------------------------------------------------------------------------------------

GUARDED = {
    Verb.PROMOTE: lambda job: transitions.promote(job, NOW),
    Verb.PARK: lambda job: transitions.park(job, Park.UNKNOWN_KIND, NOW),
    Verb.COMPLETE: lambda job: transitions.complete(job, None, NOW),
    Verb.FAIL: lambda job: transitions.fail(job, BROKEN, 0, NOW, NEXT),
    Verb.TIME_OUT: lambda job: transitions.fail(job, BROKEN, 0, NOW, NEXT, verb=Verb.TIME_OUT),
    Verb.SNOOZE: lambda job: transitions.snooze(job, 0, NOW, NEXT),
    Verb.RELEASE: lambda job: transitions.release(job, NOW, NEXT),
    Verb.RESCUE: lambda job: transitions.rescue(job, CRASHED, 3, NOW, NEXT),
    Verb.PAUSE: lambda job: transitions.pause(job, NOW),
    Verb.MOVE: lambda job: transitions.place(job, 0, 50, NOW),
    Verb.SET_PRIORITY: lambda job: transitions.place(job, -1, 50, NOW, Verb.SET_PRIORITY),
}


@pytest.mark.parametrize("verb", GUARDED)
def test_a_verb_is_refused_from_every_state_outside_its_sources(verb: Verb) -> None:
    sources = TRANSITIONS[verb].sources
    for state in LIVE - sources:
        with pytest.raises(TransitionRefused) as refused:
            GUARDED[verb](in_state(state))
        assert refused.value.code == f"{verb}_refused"
        assert state in str(refused.value)


@pytest.mark.parametrize("verb", GUARDED)
def test_a_verb_is_possible_from_every_state_among_its_sources(verb: Verb) -> None:
    for state in TRANSITIONS[verb].sources:
        GUARDED[verb](in_state(state))


def test_every_verb_is_in_the_table() -> None:
    assert set(TRANSITIONS) == set(Verb)


def test_every_state_but_the_final_ones_can_be_left_and_every_state_can_be_reached() -> None:
    left = {state for move in TRANSITIONS.values() for state in move.sources}
    reached = {state for move in TRANSITIONS.values() for state in move.targets}

    assert left == LIVE | {State.FAILED, State.CANCELLED}
    assert reached == set(State)


# -- single decisions ------------------------------------------------------------------------------------------------


def test_a_claim_counts_an_attempt_and_names_its_run() -> None:
    job = transitions.claim(WAITING_JOB, RunId(b"r" * 16), NodeId(b"n" * 16), NOW, 60_000_000)

    assert (job.state, job.attempts, job.run_id, job.node_id) == (State.RUNNING, 1, b"r" * 16, b"n" * 16)
    assert (job.claimed_at, job.started_at, job.deadline_at, job.version) == (NOW, NOW, None, 2)


def test_what_all_queued_jobs_hold_stands_together_and_is_what_a_waiting_job_holds() -> None:
    first = LiveJob._fields.index("queue") + 1
    assert LiveJob._fields[first : first + len(QUEUED)] == tuple(QUEUED)
    assert {name: getattr(WAITING_JOB, name) for name in QUEUED} == QUEUED


def test_the_first_start_is_kept_by_later_claims() -> None:
    again = running(WAITING_JOB._replace(started_at=Micros(5)))

    assert again.started_at == 5


def test_a_deadline_is_the_time_out_and_a_lease_away() -> None:
    assert running(WAITING_JOB._replace(timeout_ms=1_500)).deadline_at == NOW + 1_500_000 + 60_000_000


def test_a_failure_waits_for_its_delay() -> None:
    decided = transitions.fail(running(), BROKEN, 5_000, NOW, NEXT)

    assert decided.after is not None
    assert (decided.after.state, decided.after.run_at) == (State.SCHEDULED, NOW + 5_000)
    assert decided.after.last_error == "ValueError: it broke"


def test_a_permanent_failure_ends_the_job_whatever_is_left() -> None:
    assert transitions.fail(running(), HOPELESS, 0, NOW, NEXT).target == State.FAILED


def test_a_spent_budget_ends_the_job() -> None:
    assert transitions.fail(running(attempts=3), BROKEN, 0, NOW, NEXT).target == State.FAILED
    assert transitions.fail(running(attempts=2), BROKEN, 0, NOW, NEXT).target == State.QUEUED


def test_a_snooze_and_an_unstarted_release_give_the_attempt_back() -> None:
    snoozed = transitions.snooze(running(attempts=3), 5, NOW, NEXT).after
    released = transitions.release(running(attempts=3), NOW, NEXT).after

    assert snoozed is not None
    assert released is not None
    assert (snoozed.attempts, released.attempts) == (2, 2)


def test_an_interruption_counts_and_fails_a_job_without_attempts() -> None:
    kept = transitions.release(running(attempts=2), NOW, NEXT, counts=True)
    ended = transitions.release(running(attempts=3), NOW, NEXT, counts=True)

    assert kept.after is not None
    assert kept.after.attempts == 2
    assert ended.target == State.FAILED
    assert ended.outcome is not None
    assert ended.outcome.error_type == "Interrupted"


def test_a_lost_link_of_a_chain_counts_its_crash_on_both_sides() -> None:
    decided = transitions.rescue(running(as_new_job=1), CRASHED, 3, NOW, NEXT)

    assert decided.outcome is not None
    assert decided.successor is not None
    assert (decided.outcome.crashes, decided.successor.live.crashes) == (1, 1)


@pytest.mark.parametrize(
    ("report", "state"),
    [
        (Failed(BROKEN), State.FAILED),
        (TimedOut(BROKEN), State.FAILED),
        (Snoozed(5), State.SKIPPED),
        (Released(), State.SKIPPED),
    ],
)
def test_a_way_back_ends_the_link_of_a_chain_and_names_its_successor(report: Report, state: State) -> None:
    job = running(as_new_job=1, business_key="b")
    decided = transitions.after_run(Finish(job, report, NEXT), job, NOW)

    assert decided.target == state
    assert decided.successor is not None
    live = decided.successor.live
    assert (live.job_id, live.business_key, live.started_at) == (NEXT, "b", None)
    assert decided.successor.auto_retry_of == job.job_id


def test_a_parked_running_job_gives_its_attempt_back_and_says_why() -> None:
    decided = transitions.park(running(), Park.UNREADABLE, NOW, "Expecting value\nand more")

    assert decided.after is not None
    assert (decided.after.attempts, decided.after.park_reason) == (0, Park.UNREADABLE)
    assert decided.after.last_error == "Expecting value"
    assert decided.run_state == RunState.RELEASED


def test_a_job_that_is_to_be_cancelled_is_not_parked_but_ended() -> None:
    assert transitions.park(running(cancel_requested=1), Park.UNREADABLE, NOW, "?").target == State.CANCELLED


def test_asking_twice_to_stop_changes_nothing() -> None:
    once = transitions.cancel(running(), NOW)

    assert once is not None
    assert once.after is not None
    assert transitions.cancel(once.after, NOW) is None


def test_pausing_twice_and_resuming_what_is_not_paused_change_nothing() -> None:
    assert transitions.pause(in_state(State.PAUSED), NOW) is None
    for state in LIVE - {State.PAUSED, State.PARKED}:
        assert transitions.resume(in_state(state), NOW) is None


@pytest.mark.parametrize("state", sorted(WAITING))
def test_the_end_of_a_parent_only_counts_down_where_it_is_not_the_last_or_the_job_is_set_aside(state: State) -> None:
    job = in_state(state)
    waiter = Waiter._make(getattr(job, name) for name in Waiter._fields)
    waits_for_two = transitions.unblock(waiter._replace(waits_for=2), NOW)
    waits_for_one = transitions.unblock(waiter._replace(waits_for=1), NOW)

    assert (waits_for_two.waits_for, waits_for_two.state, waits_for_two.queued_at) == (1, state, job.queued_at)
    assert (waits_for_one.waits_for, waits_for_one.queued_at) == (0, NOW)
    assert waits_for_one.state == (State.QUEUED if state == State.BLOCKED else state)


def test_a_job_that_goes_back_carries_nothing_of_its_run() -> None:
    landed = transitions.land(running(timeout_ms=5, deadline_at=NOW, cancel_requested=1), NOW)

    assert landed[LiveJob._fields.index("node_id") : LiveJob._fields.index("started_at")] == (None,) * 6
    assert landed.cancel_requested == 0


def test_a_scheduled_job_stays_until_its_time_has_come() -> None:
    job = in_state(State.SCHEDULED)

    assert transitions.promote(job, Micros(job.run_at - 1)) is None
    assert transitions.promote(job, job.run_at) is not None


def test_a_retry_starts_over_at_the_place_the_job_ended_with() -> None:
    ended = transitions.fail(running(attempts=3, crashes=2), BROKEN, 0, NOW, NEXT).outcome
    assert isinstance(ended, OutcomeRow)
    ended = ended._replace(rank=-7, position=42)
    again = transitions.retry(ended, WAITING_JOB, Micros(NOW + 5))

    assert (again.life, again.attempts, again.crashes, again.rank, again.position) == (2, 0, 0, -7, 42)
    assert (again.run_at, again.queued_at, again.version) == (NOW + 5, NOW + 5, ended.version + 1)


def test_a_job_that_is_where_it_should_go_is_not_moved() -> None:
    assert transitions.place(WAITING_JOB, WAITING_JOB.rank, WAITING_JOB.position, NOW) is None


def test_a_long_error_is_cut_short_on_the_live_row_and_kept_with_the_run() -> None:
    decided = transitions.fail(running(), Failure("E", "x" * 10_000), 0, NOW, NEXT)

    assert decided.after is not None
    assert decided.run is not None
    assert len(decided.after.last_error or "") == transitions.LAST_ERROR_LIMIT
    assert decided.run.error_message == "x" * 10_000
