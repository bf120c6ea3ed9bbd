"""Runs come back. Protocol `FinishOperations`. The fence: a run that no longer holds the job changes nothing."""

from __future__ import annotations

from perdure.errors import KeyConflict, TransitionRefused
from perdure.ids import JobId, to_uuid
from perdure.job.model import Claim, Failure, NewJob, RunStats
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
from perdure.job.states import TRANSITIONS, Park, RunState, State, Verb
from perdure.store.rows import Finished, FinishStatus
from perdure.testing.contract.case import each, raises
from perdure.testing.contract.rig import BROKEN, HOPELESS, Rig, Wish
from perdure.testing.contract.states import CLAIMED_BEFORE, in_state, lost_in_state

SECOND = 1_000_000
REPORTS: tuple[Report, ...] = (
    Completed('"done"'),
    Failed(BROKEN, SECOND),
    Failed(HOPELESS),
    TimedOut(BROKEN, SECOND),
    Snoozed(SECOND),
    Released(),
    Released(counts=True),
    Cancelled(),
    Skipped("nothing to do"),
    Unreadable("not JSON"),
)
VERBS: dict[type, Verb] = {
    Completed: Verb.COMPLETE,
    Failed: Verb.FAIL,
    TimedOut: Verb.TIME_OUT,
    Snoozed: Verb.SNOOZE,
    Released: Verb.RELEASE,
    Cancelled: Verb.CANCEL,
    Skipped: Verb.SKIP,
    Unreadable: Verb.PARK,
}

ENDS = [
    (Completed('"done"'), State.COMPLETED, RunState.COMPLETED),
    (Failed(HOPELESS), State.FAILED, RunState.FAILED),
    (TimedOut(HOPELESS), State.FAILED, RunState.TIMED_OUT),
    (Cancelled(), State.CANCELLED, RunState.CANCELLED),
    (Cancelled("no longer wanted"), State.CANCELLED, RunState.CANCELLED),
    (Skipped("nothing to do"), State.SKIPPED, RunState.SKIPPED),
]
WAYS_BACK = [
    (Failed(BROKEN), State.QUEUED, RunState.FAILED, 1),
    (Failed(BROKEN, SECOND), State.SCHEDULED, RunState.FAILED, 1),
    (TimedOut(BROKEN), State.QUEUED, RunState.TIMED_OUT, 1),
    (TimedOut(BROKEN, SECOND), State.SCHEDULED, RunState.TIMED_OUT, 1),
    (Snoozed(SECOND), State.SCHEDULED, RunState.RELEASED, 0),
    (Released(), State.QUEUED, RunState.RELEASED, 0),
    (Released(counts=True), State.QUEUED, RunState.RELEASED, 1),
    (Unreadable("not JSON"), State.PARKED, RunState.RELEASED, 0),
]


# -- the end ---------------------------------------------------------------------------------------------------------


@each(*ENDS)
def test_a_report_that_ends_the_job(rig: Rig, report: Report, state: State, run_state: RunState) -> None:
    claim = rig.start(business_key=rig.key("b"))
    rig.clock.advance(seconds=2)

    assert rig.finish(claim, report) == Finished(FinishStatus.APPLIED, state)

    job, [run] = rig.job(claim.job_id), rig.runs(claim.job_id)
    assert (job.state, job.attempts, job.row.finished_at) == (state, 1, rig.now)
    assert (run.state, run.row.finished_at) == (run_state, rig.now)
    assert rig.store.live(claim.job_id) is None
    assert rig.enqueue(business_key=rig.key("b"))


def test_the_result_is_kept(rig: Rig) -> None:
    claim = rig.start()
    rig.finish(claim, Completed('{"sum":3}'))

    assert rig.job(claim.job_id).result == {"sum": 3}


def test_why_a_job_failed_is_kept_with_the_job_and_with_the_run(rig: Rig) -> None:
    claim = rig.start()
    rig.finish(claim, Failed(Failure("KeyError", "no such order", "Traceback …", permanent=True)))

    job, [run] = rig.job(claim.job_id), rig.runs(claim.job_id)
    assert (job.error_type, job.error) == ("KeyError", "no such order")
    assert (run.error_type, run.error_message, run.traceback) == ("KeyError", "no such order", "Traceback …")


def test_what_an_executor_reports_of_a_run_is_kept(rig: Rig) -> None:
    claim = rig.start()
    rig.finish(claim, Completed(), RunStats(1_234, 3, "/var/log/x", '{"rows":5}'))

    [run] = rig.runs(claim.job_id)
    assert (run.duration_ms, run.exit_code, run.log_path, run.metrics) == (1_234, 3, "/var/log/x", {"rows": 5})


@each((Cancelled("no longer wanted"), "Cancelled"), (Skipped("no longer wanted"), "Skipped"))
def test_why_a_handler_ended_its_job_is_kept_with_the_job_and_with_the_run(rig: Rig, report: Report, sort: str) -> None:
    claim = rig.start()
    rig.finish(claim, report)
    job, [run] = rig.job(claim.job_id), rig.runs(claim.job_id)
    assert (job.error_type, job.error) == (run.error_type, run.error_message) == (sort, "no longer wanted")


# -- ways back -------------------------------------------------------------------------------------------------------


@each(*WAYS_BACK)
def test_a_report_that_leads_back(rig: Rig, report: Report, state: State, run_state: RunState, attempts: int) -> None:
    claim = rig.start()
    before = rig.live(claim.job_id)
    rig.clock.advance(seconds=2)

    assert rig.finish(claim, report) == Finished(FinishStatus.APPLIED, state)

    live, [run] = rig.live(claim.job_id), rig.runs(claim.job_id)
    assert (live.state, live.attempts) == (state, attempts)
    assert (live.node_id, live.run_id, live.claimed_at) == (None, None, None)
    assert (live.rank, live.position, live.life) == (before.rank, before.position, before.life)
    assert (run.state, run.row.finished_at) == (run_state, rig.now)


@each(Failed(BROKEN, 5 * SECOND), TimedOut(BROKEN, 5 * SECOND), Snoozed(5 * SECOND))
def test_a_job_that_is_to_wait_starts_no_earlier(rig: Rig, report: Report) -> None:
    claim = rig.start()
    rig.finish(claim, report)
    assert rig.live(claim.job_id).run_at == rig.now + 5 * SECOND

    rig.clock.advance(seconds=4.999999)
    assert rig.store.promote(rig.now, 10) == 0
    rig.clock.advance(milliseconds=0.001)
    assert rig.store.promote(rig.now, 10) == 1
    assert rig.claim_one().job_id == claim.job_id


def test_the_last_failure_shows_on_a_job_that_waits_for_another_attempt(rig: Rig) -> None:
    claim = rig.start()
    rig.finish(claim, Failed(BROKEN))

    assert rig.job(claim.job_id).error == "ValueError: it broke"


@each(Failed(BROKEN), TimedOut(BROKEN), Released(counts=True))
def test_the_job_fails_when_the_budget_is_spent(rig: Rig, report: Report) -> None:
    claim = rig.start(max_attempts=2)
    assert rig.finish(claim, report).state == State.QUEUED
    assert rig.finish(rig.claim_one(), report).state == State.FAILED

    assert (rig.job(claim.job_id).state, rig.job(claim.job_id).attempts) == (State.FAILED, 2)
    assert rig.job(claim.job_id).error_type == ("Interrupted" if isinstance(report, Released) else "ValueError")


@each(Snoozed(0), Released(), Unreadable("?"))
def test_an_attempt_given_back_costs_nothing_of_the_budget(rig: Rig, report: Report) -> None:
    claim = rig.start(max_attempts=1)
    for _ in range(4):
        rig.finish(claim, report)
        rig.resume(claim.job_id)
        claim = rig.claim_one()

    assert claim.live.attempts == 1
    assert len(rig.runs(claim.job_id)) == 5


def test_an_unreadable_job_is_parked_with_the_reason(rig: Rig) -> None:
    claim = rig.start()
    rig.finish(claim, Unreadable("Expecting value: line 1"))

    job = rig.job(claim.job_id)
    assert (job.state, job.park_reason, job.error) == (State.PARKED, Park.UNREADABLE, "Expecting value: line 1")


# -- the fence -------------------------------------------------------------------------------------------------------


@each(*[(report, state) for report in REPORTS for state in CLAIMED_BEFORE])
def test_a_stale_holder_changes_nothing(rig: Rig, report: Report, state: State) -> None:
    stale, _ = lost_in_state(rig, state)
    before = rig.everything()

    assert rig.finish(stale, report) == Finished(FinishStatus.LOST)
    assert rig.everything() == before


@each(*REPORTS)
def test_a_repeated_report_is_recognised_and_changes_nothing(rig: Rig, report: Report) -> None:
    claim = rig.start()
    first = rig.finish(claim, report)
    before = rig.everything()
    rig.clock.advance(seconds=1)

    assert rig.finish(claim, report) == Finished(FinishStatus.ALREADY, first.state)
    assert rig.everything() == before


@each(*[(one, two) for one in REPORTS for two in REPORTS if type(one) is not type(two)])
def test_the_first_of_two_different_reports_decides(rig: Rig, one: Report, two: Report) -> None:
    claim = rig.start()
    rig.finish(claim, one)
    before = rig.everything()

    assert rig.finish(claim, two).status != FinishStatus.APPLIED
    assert rig.everything() == before


@each(
    *[
        (report, state)
        for report in REPORTS
        for state in sorted(set(State) - {State.RUNNING})
        if state not in TRANSITIONS[VERBS[type(report)]].sources
    ]
)
def test_a_job_that_nobody_holds_cannot_be_finished(rig: Rig, report: Report, state: State) -> None:
    job_id = in_state(rig, state)
    live = rig.store.live(job_id) or rig.hot(rig.new())._replace(job_id=job_id)
    before = rig.everything()

    try:
        [answer] = rig.store.finish([Finish(live, report, JobId(rig.ids.new()))], rig.now)
    except TransitionRefused:
        pass
    else:
        assert answer == Finished(FinishStatus.LOST)
    assert rig.everything() == before


def test_a_cancel_asked_for_meanwhile_is_seen_by_the_report(rig: Rig) -> None:
    claim = rig.start()
    rig.cancel(claim.job_id)

    assert rig.finish(claim, Failed(BROKEN)) == Finished(FinishStatus.APPLIED, State.CANCELLED)


@each(Completed(), Failed(HOPELESS), Cancelled(), Skipped())
def test_a_run_ends_no_job_that_another_run_holds_even_at_the_same_version(rig: Rig, report: Report) -> None:
    """This cannot happen, as versions rise with every claim; it shows that each of the two guards works alone. For the
    version with the same run, where the job was superseded meanwhile, see `supersede`."""
    rig.enqueue_many(2)
    own, other = rig.claim(2)
    rig.execute(
        f"UPDATE {{ready}} SET run_id = {rig.id_of(other.run_id.hex())} WHERE queue = :queue AND position = :own",  # noqa: S608
        queue=rig.queue,
        own=own.live.position,
    )
    before = rig.everything()

    assert rig.finish(own, report) == Finished(FinishStatus.LOST)
    assert rig.everything() == before

    back = (
        "UPDATE {ready} SET run_id = (SELECT u.id FROM {run} AS u WHERE u.job_id = {ready}.job_id) WHERE queue = :queue"
    )
    rig.execute(back, queue=rig.queue)
    assert rig.finish(own, report).status == FinishStatus.APPLIED


def test_versions_rise_up_to_the_end(rig: Rig) -> None:
    claim = rig.start()
    asked = rig.cancel(claim.job_id)
    rig.finish(claim, Completed())

    assert rig.job(claim.job_id).version > asked.version > claim.live.version


# -- batches ---------------------------------------------------------------------------------------------------------


def test_the_results_of_a_batch_are_in_its_order(rig: Rig) -> None:
    rig.enqueue_many(len(REPORTS))
    claims = rig.claim(len(REPORTS))
    batch = [rig.report(claim, report) for claim, report in zip(claims, REPORTS, strict=True)]

    answers = rig.store.finish(batch, rig.now)

    assert [answer.status for answer in answers] == [FinishStatus.APPLIED] * len(REPORTS)
    assert [answer.state for answer in answers] == [rig.job(claim.job_id).state for claim in claims]


def test_one_lost_run_in_a_batch_does_not_stop_the_others(rig: Rig) -> None:
    node = rig.register()
    rig.enqueue_many(5)
    lost = rig.claim_one(node=node)
    rig.crash(node)
    rig.pause(lost.job_id)
    claims = rig.claim(4)
    rig.cancel(claims[3].job_id)
    batch = [
        rig.report(claims[0], Completed()),
        rig.report(lost, Completed()),
        rig.report(claims[1], Failed(BROKEN)),
        rig.report(claims[2], Snoozed(SECOND)),
        rig.report(claims[3], Failed(BROKEN)),
    ]

    answers = rig.store.finish(batch, rig.now)

    assert answers == [
        Finished(FinishStatus.APPLIED, State.COMPLETED),
        Finished(FinishStatus.LOST),
        Finished(FinishStatus.APPLIED, State.QUEUED),
        Finished(FinishStatus.APPLIED, State.SCHEDULED),
        Finished(FinishStatus.APPLIED, State.CANCELLED),
    ]
    assert rig.job(lost.job_id).state == State.PAUSED


def test_one_run_twice_in_a_batch_is_finished_once(rig: Rig) -> None:
    claim = rig.start()
    report = rig.report(claim, Completed())

    answers = rig.store.finish([report, report], rig.now)

    assert [answer.status for answer in answers] == [FinishStatus.APPLIED, FinishStatus.ALREADY]


def test_an_empty_batch_returns_nothing(rig: Rig) -> None:
    assert rig.store.finish([], rig.now) == []


def test_a_whole_batch_can_be_repeated_after_a_lost_reply(rig: Rig) -> None:
    rig.enqueue_many(4)
    batch = [rig.report(claim, Completed()) for claim in rig.claim(4)]
    rig.store.finish(batch, rig.now)
    before = rig.everything()

    answers = rig.store.finish(batch, rig.now)

    assert answers == [Finished(FinishStatus.ALREADY, State.COMPLETED)] * 4
    assert rig.everything() == before


# -- jobs that the handler asked for ---------------------------------------------------------------------------------


def _with_children(rig: Rig, claim: Claim, report: Report, *children: NewJob) -> Finish:
    return rig.report(claim, report)._replace(children=children)


def _asked_for(rig: Rig, claim: Claim, *wishes: Wish) -> list[NewJob]:
    return [rig.new(**wish)._replace(parent_id=claim.job_id) for wish in wishes]


def test_children_come_into_being_with_the_completion(rig: Rig) -> None:
    claim = rig.start()
    children = _asked_for(rig, claim, {"tags": ("t",)}, {"queue": rig.key("other")}, {"delay_s": 5}, {})

    [finished] = rig.store.finish([_with_children(rig, claim, Completed(), *children)], rig.now)

    assert finished == Finished(FinishStatus.APPLIED, State.COMPLETED)
    assert [rig.row(child.id) for child in children] == [rig.cold(child) for child in children]
    assert [rig.job(child.id).parent_id for child in children] == [to_uuid(claim.job_id)] * 4
    assert rig.job(children[0].id).tags == ("t",)
    assert rig.in_order() == [children[0].id, children[3].id]
    assert rig.job(children[2].id).state == State.SCHEDULED


@each(*[report for report in REPORTS if not isinstance(report, Completed)])
def test_children_of_a_job_that_does_not_complete_are_dropped(rig: Rig, report: Report) -> None:
    claim = rig.start()
    [child] = _asked_for(rig, claim, {"business_key": rig.key("b")})

    [finished] = rig.store.finish([_with_children(rig, claim, report, child)], rig.now)

    assert finished.status == FinishStatus.APPLIED
    assert rig.store.get(child.id) is None
    assert rig.enqueue(business_key=rig.key("b"))


def test_a_run_that_lost_its_job_has_no_children(rig: Rig) -> None:
    node = rig.register()
    rig.enqueue_many(2)
    lost, kept = rig.claim_one(node=node), rig.claim_one()
    rig.crash(node)
    one, two = _asked_for(rig, lost, {})[0], _asked_for(rig, kept, {})[0]
    batch = [_with_children(rig, lost, Completed(), one), _with_children(rig, kept, Completed(), two)]

    assert [finished.status for finished in rig.store.finish(batch, rig.now)] == [
        FinishStatus.LOST,
        FinishStatus.APPLIED,
    ]
    assert rig.store.get(one.id) is None
    assert rig.job(two.id).state == State.QUEUED


def test_children_come_into_being_once(rig: Rig) -> None:
    claim = rig.start()
    finish = _with_children(rig, claim, Completed(), *_asked_for(rig, claim, {}, {}))
    rig.store.finish([finish], rig.now)
    before = rig.everything()

    assert rig.store.finish([finish], rig.now) == [Finished(FinishStatus.ALREADY, State.COMPLETED)]
    assert rig.everything() == before


def test_a_child_whose_key_is_taken_is_stood_for_by_the_job_that_has_it(rig: Rig) -> None:
    elsewhere = rig.key("elsewhere")
    rig.enqueue(idempotency_key=rig.key("i"), queue=elsewhere)
    rig.enqueue(business_key=rig.key("b"), queue=elsewhere)
    claim = rig.start()
    children = _asked_for(
        rig,
        claim,
        {"idempotency_key": rig.key("i")},
        {"business_key": rig.key("b"), "conflict": "return"},
        {"idempotency_key": rig.key("new")},
        {"idempotency_key": rig.key("new")},
    )

    rig.store.finish([_with_children(rig, claim, Completed(), *children)], rig.now)

    assert rig.job(claim.job_id).state == State.COMPLETED
    assert rig.in_order() == [children[2].id]


def test_a_child_may_take_the_key_that_its_parent_gives_up(rig: Rig) -> None:
    claim = rig.start(business_key=rig.key("b"))
    [child] = _asked_for(rig, claim, {"business_key": rig.key("b")})

    rig.store.finish([_with_children(rig, claim, Completed(), child)], rig.now)

    assert rig.job(child.id).state == State.QUEUED


def test_a_child_whose_key_is_refused_undoes_the_whole_call(rig: Rig) -> None:
    rig.enqueue(business_key=rig.key("taken"), queue=rig.key("elsewhere"))
    rig.enqueue_many(2)
    one, two = rig.claim(2)
    good, bad = _asked_for(rig, one, {})[0], _asked_for(rig, two, {"business_key": rig.key("taken")})[0]
    batch = [_with_children(rig, one, Completed(), good), _with_children(rig, two, Completed(), bad)]
    before = rig.everything()

    with raises(KeyConflict):
        rig.store.finish(batch, rig.now)
    assert rig.everything() == before

    [finished] = rig.store.finish(batch[:1], rig.now)
    assert finished.status == FinishStatus.APPLIED


# -- a repeat --------------------------------------------------------------------------------------------------------


def test_a_repeat_tells_the_state_the_job_is_in_by_now(rig: Rig) -> None:
    claim = rig.start()
    report = rig.report(claim, Failed(BROKEN, SECOND))

    def again() -> Finished:
        return rig.store.finish([report], rig.now)[0]

    assert again() == Finished(FinishStatus.APPLIED, State.SCHEDULED)
    assert again() == Finished(FinishStatus.ALREADY, State.SCHEDULED)
    rig.clock.advance(seconds=1)
    rig.store.promote(rig.now, 1)
    assert again() == Finished(FinishStatus.ALREADY, State.QUEUED)
    second = rig.claim_one()
    assert again() == Finished(FinishStatus.ALREADY, State.RUNNING)
    rig.finish(second, Completed())
    assert again() == Finished(FinishStatus.ALREADY, State.COMPLETED)
    rig.store.delete(claim.job_id)
    assert again() == Finished(FinishStatus.LOST)


def test_a_repeat_of_an_end_that_was_asked_for_meanwhile_tells_that_end(rig: Rig) -> None:
    claim = rig.start()
    rig.cancel(claim.job_id)
    report = rig.report(claim, Failed(BROKEN, SECOND))
    rig.store.finish([report], rig.now)

    assert rig.store.finish([report], rig.now) == [Finished(FinishStatus.ALREADY, State.CANCELLED)]


def test_a_report_under_the_run_of_another_job_ends_neither(rig: Rig) -> None:
    """The version alone is no fence: two claimed jobs may have the same version."""
    mine, other = rig.start(), rig.start()
    assert mine.live.version == other.live.version
    before = rig.everything()

    crossed = Claim(mine.live._replace(run_id=other.run_id), *mine[1:])

    assert rig.finish(crossed, Completed()).status is FinishStatus.LOST
    assert rig.everything() == before


@each(Completed(), Failed(HOPELESS))
def test_a_run_that_was_closed_by_other_means_ends_nothing(rig: Rig, report: Report) -> None:
    """The run is a separate guard: here the job still has this run, and the version of the claim."""
    claim = rig.start()
    rig.execute("UPDATE {run} SET state = 'lost', finished_at = started_at")
    before = rig.everything()

    assert rig.finish(claim, report).status is FinishStatus.LOST
    assert rig.everything() == before
    rig.execute("UPDATE {run} SET state = 'running', finished_at = NULL")
