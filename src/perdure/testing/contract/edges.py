"""What waits for what: a job that needs the success, the failure or the end of others. Part of the protocols
`JobOperations` and `FinishOperations`."""

from __future__ import annotations

from collections.abc import Callable

from perdure.errors import InvalidInput, KeyConflict, TransitionRefused
from perdure.ids import JobId, NodeId, to_uuid
from perdure.job.flow import NEVER_RAN, UNMET, Edge, NeedsName
from perdure.job.references import reference, refs_text
from perdure.job.reports import Cancelled, Completed, Failed, Released, Skipped, Snoozed, TimedOut
from perdure.job.states import State
from perdure.testing.contract.case import each, raises
from perdure.testing.contract.rig import BROKEN, HOPELESS, NONE, Rig

End = Callable[[Rig, JobId], None]


def _completes(rig: Rig, _: JobId) -> None:
    rig.finish(rig.claim_one(), Completed("7"))


def _fails(rig: Rig, _: JobId) -> None:
    rig.finish(rig.claim_one(), Failed(HOPELESS))


def _times_out(rig: Rig, _: JobId) -> None:
    rig.finish(rig.claim_one(), TimedOut(HOPELESS))


def _is_lost(rig: Rig, _: JobId) -> None:
    node = rig.register()
    rig.claim_one(node=node)
    rig.crash(node, max_crashes=1)


def _is_cancelled(rig: Rig, job_id: JobId) -> None:
    rig.cancel(job_id)


def _stops_when_cancelled(rig: Rig, job_id: JobId) -> None:
    claim = rig.claim_one()
    rig.cancel(job_id)
    rig.finish(claim, Cancelled())


def _skips(rig: Rig, _: JobId) -> None:
    rig.finish(rig.claim_one(), Skipped("nothing to do"))


def _is_skipped_unmet(rig: Rig, job_id: JobId) -> None:
    """Its own parent, which is at the head of the queue, fails."""
    assert rig.job(job_id).state == State.BLOCKED
    _fails(rig, job_id)
    assert rig.job(job_id).state == State.SKIPPED


ENDS: dict[str, tuple[End, tuple[NeedsName, ...]]] = {
    "completed": (_completes, ("success", "end")),
    "skipped by its handler": (_skips, ("success", "end")),
    "failed": (_fails, ("failure", "end")),
    "timed out": (_times_out, ("failure", "end")),
    "lost": (_is_lost, ("failure", "end")),
    "cancelled": (_is_cancelled, ("end",)),
    "cancelled while it ran": (_stops_when_cancelled, ("end",)),
    "skipped because unmet": (_is_skipped_unmet, ("end",)),
}
"""How a job can end, and which needs are met then."""
NEEDS: tuple[NeedsName, ...] = ("success", "failure", "end")


def _parent(rig: Rig, how: str) -> JobId:
    if how != "skipped because unmet":
        return rig.enqueue()
    return rig.enqueue(after=(Edge(rig.enqueue()),))


@each(*((how, needs) for how in ENDS for needs in NEEDS))
def test_an_end_lets_those_go_on_that_need_it_and_skips_the_others(rig: Rig, how: str, needs: NeedsName) -> None:
    end, met = ENDS[how]
    parent = _parent(rig, how)
    job_id = rig.enqueue(after=(Edge(parent, needs),))
    assert (rig.job(job_id).state, rig.job(job_id).waits_for) == (State.BLOCKED, 1)

    end(rig, parent)

    job = rig.job(job_id)
    assert job.state == (State.QUEUED if needs in met else State.SKIPPED)
    if needs not in met:
        assert (job.row.error_type, str(to_uuid(parent)) in (job.error or "")) == (UNMET, True)


@each(*((how, needs) for how in ENDS for needs in NEEDS))
def test_what_has_ended_before_decides_at_once(rig: Rig, how: str, needs: NeedsName) -> None:
    end, met = ENDS[how]
    parent = _parent(rig, how)
    end(rig, parent)

    [job] = rig.store.enqueue([rig.new(after=(Edge(parent, needs),))])

    assert job.state == (State.QUEUED if needs in met else State.SKIPPED)
    assert rig.job(job.row.id).state == job.state


@each(*NEEDS)
def test_what_has_not_ended_keeps_others_waiting(rig: Rig, needs: NeedsName) -> None:
    parent = rig.enqueue(max_attempts=9)
    job_id = rig.enqueue(after=(Edge(parent, needs),))

    for report in (Failed(BROKEN), Snoozed(0), Released(), Released(counts=True)):
        rig.finish(rig.claim_one(), report)
        assert rig.job(job_id).state == State.BLOCKED
    rig.claim(kinds=NONE)
    assert (rig.job(parent).state, rig.job(job_id).state) == (State.PARKED, State.BLOCKED)
    rig.pause(parent)
    assert rig.job(job_id).state == State.BLOCKED


def test_a_job_starts_when_the_last_of_those_it_waits_for_has_ended(rig: Rig) -> None:
    parents = rig.enqueue_many(3)
    job_id = rig.enqueue(after=tuple(map(Edge, parents)))

    for waits_for in (2, 1):
        _completes(rig, parents[0])
        assert (rig.job(job_id).state, rig.job(job_id).waits_for) == (State.BLOCKED, waits_for)
    _completes(rig, parents[0])

    assert rig.claim_one().job_id == job_id


def test_a_run_has_waited_since_the_last_parent_of_its_job_ended(rig: Rig) -> None:
    parents = rig.enqueue_many(2)
    job_id = rig.enqueue(after=tuple(map(Edge, parents)))
    for claim in rig.claim(2):
        rig.clock.advance(seconds=50)
        rig.finish(claim, Completed())
    rig.clock.advance(seconds=2)
    rig.claim_one()

    assert [run.wait_ms for run in rig.runs(job_id)] == [2_000]


def test_several_parents_that_end_in_one_turn_are_all_counted(rig: Rig) -> None:
    parents = rig.enqueue_many(60)
    job_id = rig.enqueue(after=tuple(map(Edge, parents)))

    rig.store.finish([rig.report(claim, Completed()) for claim in rig.claim(60)], rig.now)

    assert (rig.job(job_id).state, rig.job(job_id).waits_for) == (State.QUEUED, 0)


def test_one_unmet_need_skips_a_job_that_still_waits_for_others(rig: Rig) -> None:
    first, second = rig.enqueue_many(2)
    job_id = rig.enqueue(after=(Edge(first), Edge(second)))

    _fails(rig, first)
    assert rig.job(job_id).state == State.SKIPPED
    _completes(rig, second)

    assert rig.job(job_id).state == State.SKIPPED


def test_a_skip_goes_on_to_those_behind_and_an_end_is_an_end(rig: Rig) -> None:
    first = rig.enqueue()
    second = rig.enqueue(after=(Edge(first),))
    third = rig.enqueue(after=(Edge(second),))
    tidy = rig.enqueue(after=(Edge(third, "end"), Edge(first, "failure")))

    _fails(rig, first)

    assert [rig.job(one).state for one in (second, third)] == [State.SKIPPED] * 2
    assert rig.claim_one().job_id == tidy


def test_jobs_of_one_call_may_wait_for_each_other_in_any_order(rig: Rig) -> None:
    first, second = rig.new(), rig.new()
    first = first._replace(after=(Edge(second.id),))
    rig.store.enqueue([first, second])

    assert rig.claim_one().job_id == second.id
    assert rig.job(first.id).state == State.BLOCKED


def test_a_parent_that_is_named_twice_counts_once_and_the_stricter_need_holds(rig: Rig) -> None:
    parent = rig.enqueue()
    job_id = rig.enqueue(after=(Edge(parent, "end"), Edge(parent, "success"), Edge(parent, "end")))
    assert rig.job(job_id).waits_for == 1

    _fails(rig, parent)

    assert rig.job(job_id).state == State.SKIPPED


def test_waiting_for_an_unknown_job_is_refused(rig: Rig) -> None:
    before = rig.everything()

    with raises(InvalidInput, "parent_unknown"):
        rig.store.enqueue([rig.new(), rig.new(after=(Edge(rig.ids.new()),))])

    assert rig.everything() == before


def test_a_delayed_job_that_waits_for_nothing_more_waits_for_its_time(rig: Rig) -> None:
    parent = rig.enqueue()
    job_id = rig.enqueue(after=(Edge(parent),), delay_s=60)

    _completes(rig, parent)

    assert rig.job(job_id).state == State.SCHEDULED


def test_a_paused_job_whose_needs_are_met_stays_paused(rig: Rig) -> None:
    parent = rig.enqueue()
    job_id = rig.pause(rig.enqueue(after=(Edge(parent),))).row.id

    _completes(rig, parent)

    assert (rig.job(job_id).state, rig.job(job_id).waits_for) == (State.PAUSED, 0)
    assert rig.resume(job_id).state == State.QUEUED


def test_a_paused_job_whose_needs_are_not_met_is_skipped(rig: Rig) -> None:
    parent = rig.enqueue()
    job_id = rig.pause(rig.enqueue(after=(Edge(parent),))).row.id

    _fails(rig, parent)

    assert rig.job(job_id).state == State.SKIPPED


def test_a_running_job_may_be_waited_for(rig: Rig) -> None:
    claim = rig.start()
    job_id = rig.enqueue(after=(Edge(claim.job_id),))

    rig.finish(claim, Completed())

    assert rig.claim_one().job_id == job_id


def test_a_stale_holder_releases_nobody(rig: Rig) -> None:
    parent = rig.enqueue()
    job_id = rig.enqueue(after=(Edge(parent, "end"),))
    node = rig.register()
    stale = rig.claim_one(node=node)
    rig.crash(node)
    before = rig.everything()

    rig.finish(stale, Completed())

    assert rig.everything() == before
    assert rig.job(job_id).state == State.BLOCKED


# -- those who continue the work of others ---------------------------------------------------------------------------


def test_whoever_waits_for_a_job_waits_for_its_successor(rig: Rig) -> None:
    parent = rig.enqueue(as_new_job=True, max_attempts=2)
    job_id = rig.enqueue(after=(Edge(parent),))
    _finish_once(rig)
    assert rig.job(job_id).state == State.BLOCKED

    later = rig.enqueue(after=(Edge(parent, "failure"),))
    _completes(rig, parent)

    assert (rig.job(job_id).state, rig.job(later).state) == (State.QUEUED, State.SKIPPED)


def _finish_once(rig: Rig) -> None:
    rig.finish(rig.claim_one(), Failed(BROKEN))


def test_whoever_waits_for_a_superseded_job_waits_for_its_replacement(rig: Rig) -> None:
    parent = rig.enqueue()
    job_id = rig.enqueue(after=(Edge(parent),))
    replacement = rig.new()
    rig.store.supersede(parent, replacement, rig.now)
    assert rig.job(job_id).state == State.BLOCKED

    _completes(rig, replacement.id)

    assert rig.job(job_id).state == State.QUEUED


@each(Completed(), Cancelled(), Failed(HOPELESS))
def test_a_superseded_job_that_ran_releases_nobody_before_its_replacement_has_ended(
    rig: Rig, report: Completed | Cancelled | Failed
) -> None:
    running = rig.start()
    job_id = rig.enqueue(after=(Edge(running.job_id),))
    replacement = rig.new()
    rig.store.supersede(running.job_id, replacement, rig.now)
    rig.finish(running, report)
    assert rig.job(job_id).state == State.BLOCKED

    _completes(rig, replacement.id)

    assert rig.job(job_id).state == State.QUEUED


def test_a_replacement_that_ends_first_decides_about_those_who_waited(rig: Rig) -> None:
    running = rig.start()
    job_id = rig.enqueue(after=(Edge(running.job_id, "end"),))
    replacement = rig.new()
    rig.store.supersede(running.job_id, replacement, rig.now)
    rig.cancel(replacement.id)

    rig.finish(running, Cancelled())

    assert rig.job(job_id).state == State.QUEUED


def test_a_replacement_that_was_replaced_itself_hands_on_those_who_waited(rig: Rig) -> None:
    running = rig.start()
    job_id = rig.enqueue(after=(Edge(running.job_id),))
    second, third = rig.new(), rig.new()
    rig.store.supersede(running.job_id, second, rig.now)
    rig.store.supersede(second.id, third, rig.now)
    rig.finish(running, Cancelled())
    assert rig.job(job_id).state == State.BLOCKED

    _completes(rig, third.id)

    assert rig.job(job_id).state == State.QUEUED


def test_waiting_for_a_job_and_for_its_replacement_is_waiting_for_one(rig: Rig) -> None:
    parent = rig.enqueue()
    replacement = rig.new()
    rig.store.supersede(parent, replacement, rig.now)
    job_id = rig.enqueue(after=(Edge(parent), Edge(replacement.id)))
    assert rig.job(job_id).waits_for == 1

    _completes(rig, replacement.id)

    assert rig.job(job_id).state == State.QUEUED


def test_waiting_for_a_job_that_runs_and_for_its_replacement_is_waiting_for_one(rig: Rig) -> None:
    claim = rig.start(business_key=rig.key("b"))
    replacement = rig.new()
    rig.store.supersede(claim.job_id, replacement, rig.now)
    job_id = rig.enqueue(after=(Edge(claim.job_id), Edge(replacement.id, "end")))
    assert rig.job(job_id).waits_for == 1

    rig.finish(claim, Completed())
    assert rig.job(job_id).state == State.BLOCKED
    _completes(rig, replacement.id)

    assert rig.job(job_id).state == State.QUEUED


# -- by hand ---------------------------------------------------------------------------------------------------------


def test_a_cancelled_job_that_waited_is_forgotten_by_those_it_waited_for(rig: Rig) -> None:
    parent = rig.enqueue()
    job_id = rig.enqueue(after=(Edge(parent),))
    rig.cancel(job_id)

    _completes(rig, parent)

    assert rig.job(job_id).state == State.CANCELLED


def test_a_cancelled_job_that_is_retried_waits_again_for_what_has_not_ended(rig: Rig) -> None:
    first, second = rig.enqueue_many(2)
    job_id = rig.enqueue(after=(Edge(first), Edge(second)))
    rig.cancel(job_id)
    _completes(rig, first)

    again = rig.store.retry(job_id, rig.now)
    assert (again.state, again.waits_for) == (State.BLOCKED, 1)
    _completes(rig, second)

    assert rig.claim_one().job_id == job_id


def test_a_job_on_whose_failure_others_have_acted_is_not_retried_in_place(rig: Rig) -> None:
    parent = rig.enqueue()
    rig.enqueue(after=(Edge(parent, "success"),))
    _fails(rig, parent)
    before = rig.everything()

    with raises(TransitionRefused, "retry_refused"):
        rig.store.retry(parent, rig.now)

    assert rig.everything() == before
    assert rig.store.retry_as_new(parent, JobId(rig.ids.new()), rig.now).state == State.QUEUED


def test_a_job_whose_end_alone_was_waited_for_is_retried_and_its_next_end_releases_others(rig: Rig) -> None:
    parent = rig.enqueue()
    early = rig.enqueue(after=(Edge(parent, "end"),))
    _fails(rig, parent)
    rig.cancel(early)
    rig.store.retry(parent, rig.now)

    job_id = rig.enqueue(after=(Edge(parent),))
    assert rig.job(job_id).state == State.BLOCKED
    _completes(rig, parent)

    assert rig.job(job_id).state == State.QUEUED


def test_a_keyed_job_that_is_there_already_gets_no_second_edge(rig: Rig) -> None:
    parent = rig.enqueue()
    new = rig.new(after=(Edge(parent),), idempotency_key=rig.key("once"))
    rig.store.enqueue([new])
    again = rig.new(after=(Edge(parent),), idempotency_key=rig.key("once"))

    assert rig.store.enqueue([again])[0].deduplicated
    assert rig.job(new.id).waits_for == 1


def test_no_job_of_a_call_waits_for_one_whose_key_another_holds(rig: Rig) -> None:
    rig.enqueue(idempotency_key=rig.key("once"))
    keyed = rig.new(idempotency_key=rig.key("once"))
    before = rig.everything()

    with raises(KeyConflict, "flow_key_taken"):
        rig.store.enqueue([keyed, rig.new(after=(Edge(keyed.id),))])

    assert rig.everything() == before


# -- conditions ------------------------------------------------------------------------------------------------------


def _when_result_is_above(parent: JobId, value: int) -> str | None:
    return refs_text({}, {"left": reference(parent, "result"), "is": ">", "value": value})


@each((5, State.QUEUED), (7, State.SKIPPED), (9, State.SKIPPED))
def test_a_condition_is_looked_at_when_nothing_else_keeps_a_job_waiting(rig: Rig, value: int, state: State) -> None:
    parent = rig.enqueue()
    job_id = rig.enqueue(after=(Edge(parent),), refs=_when_result_is_above(parent, value))
    assert rig.job(job_id).state == State.BLOCKED

    _completes(rig, parent)

    assert rig.job(job_id).state == state
    assert (rig.job(job_id).row.error_type in NEVER_RAN) == (state == State.SKIPPED)


@each((5, State.QUEUED), (9, State.SKIPPED))
def test_a_condition_on_what_has_ended_is_decided_at_once(rig: Rig, value: int, state: State) -> None:
    parent = rig.enqueue()
    _completes(rig, parent)

    assert rig.job(rig.enqueue(after=(Edge(parent),), refs=_when_result_is_above(parent, value))).state == state


def test_a_condition_waits_until_all_parents_have_ended(rig: Rig) -> None:
    first, second = rig.enqueue_many(2)
    job_id = rig.enqueue(after=(Edge(first), Edge(second)), refs=_when_result_is_above(second, 5))

    _completes(rig, first)
    assert rig.job(job_id).state == State.BLOCKED
    _completes(rig, second)

    assert rig.job(job_id).state == State.QUEUED


def test_a_result_is_that_of_whoever_continued_the_work(rig: Rig) -> None:
    parent = rig.enqueue()
    replacement = rig.new()
    rig.store.supersede(parent, replacement, rig.now)
    _completes(rig, replacement.id)

    found = rig.store.sources([parent, replacement.id])

    assert [found[one].result for one in (parent, replacement.id)] == ["7", "7"]


# -- wide ------------------------------------------------------------------------------------------------------------

MANY = 2_600
"""More than one transaction looks after."""


@each((Completed("1"), State.QUEUED), (Failed(HOPELESS), State.SKIPPED))
def test_many_dependents_are_decided_about_in_portions(rig: Rig, report: Completed | Failed, state: State) -> None:
    parent = rig.enqueue()
    waiting = [job.row.id for job in rig.store.enqueue([rig.new(after=(Edge(parent),)) for _ in range(MANY)])]
    last = rig.enqueue(after=tuple(map(Edge, waiting)))

    rig.finish(rig.claim_one(), report)

    assert State.BLOCKED in set(rig.states(waiting))
    assert rig.settle() >= 1
    assert set(rig.states(waiting)) == {state}
    assert rig.job(last).state == (State.BLOCKED if state is State.QUEUED else State.SKIPPED)


def test_a_portion_that_was_left_is_done_by_any_node(rig: Rig) -> None:
    parent = rig.enqueue()
    waiting = [job.row.id for job in rig.store.enqueue([rig.new(after=(Edge(parent),)) for _ in range(MANY)])]
    node = rig.register()
    rig.finish(rig.claim_one(node=node), Completed())
    rig.crash(node)

    other: NodeId = rig.register()
    assert rig.store.glance(other, None).todo
    rig.settle()

    assert set(rig.states(waiting)) == {State.QUEUED}
