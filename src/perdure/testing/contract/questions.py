"""What happens in the queue. Protocol `StatusQueries`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from perdure.clock import Micros
from perdure.ids import JobId, NodeId
from perdure.job.model import Claim, Failure, RunStats
from perdure.job.reports import Cancelled, Completed, Failed, Released, Report, Skipped, TimedOut
from perdure.job.states import LIVE, State
from perdure.store.rows import (
    FIRST_ID,
    DuplicateReason,
    Duplicates,
    Durations,
    Failures,
    JobFilter,
    NewNode,
    Outstanding,
    QueueHold,
    Ran,
    Stuck,
    StuckReason,
)
from perdure.testing.contract.case import each
from perdure.testing.contract.rig import BROKEN, HOPELESS, NotSupported, Rig
from perdure.testing.contract.states import in_state

PLENTY = 1_000
LONG_US = 300_000_000
OTHER = Failure("OSError", "the line is dead", permanent=True)


class _OfKind(Protocol):
    @property
    def kind(self) -> str: ...


T = TypeVar("T", bound=_OfKind)


def _mine(rig: Rig, rows: Iterable[T]) -> list[T]:
    """Without rows that other tests may have left in a store that cannot be emptied."""
    return [row for row in rows if row.kind.endswith(rig.mark)]


def _outstanding(rig: Rig, cap: int = PLENTY) -> list[Outstanding]:
    return _mine(rig, rig.store.outstanding(cap))


def _failures(rig: Rig, since: Micros | None = None, cap: int = PLENTY) -> list[Failures]:
    return _mine(rig, rig.store.failures(rig.now if since is None else since, cap))


def _stuck(
    rig: Rig, *, beats: bool = True, long_us: int = LONG_US, lately: bytes | None = None, cap: int = PLENTY
) -> list[Stuck]:
    """What is stuck if five minutes count as long, nothing has started lately, and the usual node is alive."""
    if beats:
        rig.store.beat(rig.node, rig.now)
    return _mine(rig, rig.store.stuck(rig.now, Micros(rig.now - long_us), lately or rig.ids.new(), cap))


def _reasons(rig: Rig, *, beats: bool = True, long_us: int = LONG_US) -> list[StuckReason]:
    return [row.reason for row in _stuck(rig, beats=beats, long_us=long_us)]


def _becomes_stuck(
    rig: Rig, reason: StuckReason, job_id: JobId, *, not_after_s: float, after_s: float, beats: bool = True
) -> None:
    """Not after the first time from now, but after the second, which is counted from now as well."""
    begun = rig.now
    rig.clock.advance(seconds=not_after_s)
    assert _stuck(rig, beats=beats) == []

    rig.clock.advance(seconds=after_s - not_after_s)
    assert _stuck(rig, beats=beats) == [Stuck(reason, rig.kind, rig.queue, 1, begun, job_id)]


def _ran(rig: Rig, from_id: bytes = FIRST_ID, cap: int = PLENTY) -> list[Ran]:
    return _mine(rig, rig.store.ran(from_id, cap))


def _durations(rig: Rig, from_id: bytes = FIRST_ID, cap: int = PLENTY) -> list[Durations]:
    return _mine(rig, rig.store.durations(from_id, cap))


def _duplicates(rig: Rig, from_id: bytes = FIRST_ID, cap: int = PLENTY) -> list[Duplicates]:
    return _mine(rig, rig.store.duplicates(from_id, cap, 20))


def _fail(rig: Rig, failure: Failure = HOPELESS, **wish: str) -> JobId:
    claim = rig.start(**wish)  # type: ignore[arg-type]
    rig.finish(claim, Failed(failure))
    return claim.job_id


def test_an_empty_database_has_nothing_to_tell(rig: Rig) -> None:
    if rig.jobs(JobFilter(), 1):
        raise NotSupported("the database of this store cannot be emptied")

    assert rig.store.outstanding(PLENTY) == []
    assert rig.store.failures(Micros(0), PLENTY) == []
    assert rig.store.stuck(rig.now, rig.now, FIRST_ID, PLENTY) == []
    assert rig.store.durations(FIRST_ID, PLENTY) == []
    assert rig.store.duplicates(FIRST_ID, PLENTY, 20) == []
    assert rig.store.ran(FIRST_ID, PLENTY) == []


# -- what is outstanding? --------------------------------------------------------------------------------------------


@each(*sorted(LIVE))
def test_a_live_job_is_outstanding_in_its_state(rig: Rig, state: State) -> None:
    in_state(rig, state, kind=rig.key("this"))

    assert [row for row in _outstanding(rig) if row.kind == rig.key("this")] == [
        Outstanding(rig.key("this"), rig.queue, state, 1, rig.now)
    ]


def test_outstanding_jobs_are_counted_by_kind_queue_and_state(rig: Rig) -> None:
    begun = rig.now
    rig.enqueue_many(3, kind=rig.key("a"))
    rig.clock.advance(seconds=1)
    rig.enqueue_many(2, kind=rig.key("a"))
    rig.enqueue(kind=rig.key("a"), queue=rig.key("other"))
    rig.enqueue_many(2, kind=rig.key("b"), delay_s=60)

    assert sorted(_outstanding(rig)) == sorted(
        [
            Outstanding(rig.key("a"), rig.queue, "queued", 5, begun),
            Outstanding(rig.key("a"), rig.key("other"), "queued", 1, rig.now),
            Outstanding(rig.key("b"), rig.queue, "scheduled", 2, rig.now),
        ]
    )


def test_ended_jobs_are_not_outstanding(rig: Rig) -> None:
    rig.finish(rig.start(), Completed())
    _fail(rig)

    assert _outstanding(rig) == []


def test_no_more_than_the_oldest_live_jobs_are_counted(rig: Rig) -> None:
    if rig.store.outstanding(PLENTY):
        raise NotSupported("the database of this store cannot be emptied")
    rig.enqueue_many(2, kind=rig.key("old"))
    rig.enqueue_many(2, kind=rig.key("new"))

    assert [(row.kind, row.jobs) for row in _outstanding(rig, cap=2)] == [(rig.key("old"), 2)]
    assert sum(row.jobs for row in _outstanding(rig, cap=3)) == 3
    assert sum(row.jobs for row in _outstanding(rig, cap=4)) == 4


# -- what failed, and why? -------------------------------------------------------------------------------------------


def test_failures_are_counted_by_kind_and_error_with_the_newest_as_example(rig: Rig) -> None:
    _fail(rig)
    rig.clock.advance(seconds=1)
    last = _fail(rig)
    at = rig.now
    rig.clock.advance(seconds=1)
    other = _fail(rig, OTHER)
    elsewhere = _fail(rig, OTHER, kind=rig.key("b"))

    assert _failures(rig, at)[0].jobs == 1, "what failed earlier is not counted"
    found = _failures(rig, Micros(0))
    assert found[0] == Failures(rig.kind, "ValueError", 2, at, last, "it will never work")
    assert sorted(found[1:]) == sorted(
        [
            Failures(rig.kind, "OSError", 1, rig.now, other, "the line is dead"),
            Failures(rig.key("b"), "OSError", 1, rig.now, elsewhere, "the line is dead"),
        ]
    )


def test_an_attempt_that_is_retried_is_no_failure_yet(rig: Rig) -> None:
    claim = rig.start(max_attempts=2)
    rig.finish(claim, Failed(BROKEN))
    assert _failures(rig) == []

    rig.finish(rig.claim_one(), Failed(BROKEN))
    assert _failures(rig) == [Failures(rig.kind, "ValueError", 1, rig.now, claim.job_id, "it broke")]


def test_a_failure_that_was_retried_by_hand_counts_only_if_it_fails_again(rig: Rig) -> None:
    job_id = _fail(rig)
    rig.store.retry(job_id, rig.now)
    assert _failures(rig) == []

    rig.finish(rig.claim_one(), Failed(OTHER))
    assert [(row.error_type, row.jobs) for row in _failures(rig)] == [("OSError", 1)]

    rig.store.retry(job_id, rig.now)
    rig.finish(rig.claim_one(), Completed())
    assert _failures(rig) == []


def test_a_failure_that_another_job_continues_does_not_count(rig: Rig) -> None:
    claim = rig.start(as_new_job=True, max_attempts=2)
    rig.finish(claim, Failed(BROKEN))
    assert rig.job(claim.job_id).state == State.FAILED
    assert _failures(rig) == []

    rig.finish(rig.claim_one(), Failed(BROKEN))
    assert [row.jobs for row in _failures(rig)] == [1]


def test_no_more_than_the_last_failures_are_looked_at(rig: Rig) -> None:
    """The jobs that failed last, not those that were enqueued last."""
    oldest = rig.start()
    _fail(rig)
    rig.clock.advance(seconds=1)
    rig.finish(oldest, Failed(OTHER))

    assert [(row.jobs, row.example) for row in _failures(rig, cap=1)] == [(1, oldest.job_id)]


def test_all_lives_that_failed_are_counted_up_to_a_number(rig: Rig) -> None:
    """So callers know when failures may be missing from the list: lives that were retried since count too."""
    begun = rig.now
    before = rig.store.count_failed(begun, PLENTY)
    rig.store.retry(_fail(rig), rig.now)
    rig.finish(rig.claim_one(), Failed(OTHER))
    rig.finish(rig.start(), Completed())

    assert rig.store.count_failed(begun, PLENTY) == min(PLENTY, before + 2)
    assert rig.store.count_failed(begun, 1) == 1
    rig.clock.advance(seconds=1)
    assert rig.store.count_failed(rig.now, PLENTY) == 0


def test_jobs_that_were_cancelled_or_skipped_did_not_fail(rig: Rig) -> None:
    rig.cancel(rig.enqueue())
    rig.finish(rig.start(), Skipped("nothing to do"))

    assert _failures(rig) == []


# -- what is stuck? --------------------------------------------------------------------------------------------------


def test_what_waits_or_runs_for_a_moment_is_not_stuck(rig: Rig) -> None:
    rig.start()
    rig.enqueue_many(2)
    rig.enqueue(delay_s=9)
    rig.clock.advance(seconds=299)

    assert _stuck(rig) == []


def test_a_job_whose_node_has_stopped_is_stuck_at_once(rig: Rig) -> None:
    node = rig.register()
    rig.enqueue_many(2)
    first, _ = rig.claim(2, node=node)
    rig.store.stop(node, "crash", rig.now)

    assert _stuck(rig) == [Stuck(StuckReason.LOST, rig.kind, rig.queue, 2, rig.now, first.job_id)]
    rig.rescue(node)
    assert _stuck(rig) == []


def test_a_job_past_its_time_out_is_stuck(rig: Rig) -> None:
    claim = rig.start(timeout_ms=10_000)

    _becomes_stuck(rig, StuckReason.OVERTIME, claim.job_id, not_after_s=9.999, after_s=10)


def test_a_job_within_a_long_time_out_is_not_stuck(rig: Rig) -> None:
    rig.start(timeout_ms=3_600_000)
    rig.clock.advance(seconds=3_599)

    assert _stuck(rig) == []


def test_a_job_without_time_out_that_runs_far_longer_than_those_before_it_is_stuck(rig: Rig) -> None:
    for seconds in (50, 200):
        rig.finish(rig.start(), Completed(), RunStats(duration_ms=seconds * 1_000))

    _becomes_stuck(rig, StuckReason.SLOW, rig.start().job_id, not_after_s=600, after_s=601)


def test_a_job_that_runs_long_with_none_to_compare_it_with_is_told_apart(rig: Rig) -> None:
    _fail(rig)

    _becomes_stuck(rig, StuckReason.LONG, rig.start().job_id, not_after_s=299, after_s=300)


def test_a_job_of_a_node_of_which_nothing_was_heard_for_long_is_stuck(rig: Rig) -> None:
    claim = rig.start(timeout_ms=3_600_000)
    rig.store.beat(rig.node, rig.now)

    _becomes_stuck(rig, StuckReason.SILENT, claim.job_id, not_after_s=299, after_s=300, beats=False)
    assert _stuck(rig, beats=True) == []


def test_a_node_is_not_silent_before_a_usual_lease_is_over_however_short_the_patience(rig: Rig) -> None:
    rig.start(timeout_ms=3_600_000)
    rig.clock.advance(seconds=59)
    assert _reasons(rig, beats=False, long_us=0) == []

    rig.clock.advance(seconds=1)
    assert _reasons(rig, beats=False, long_us=0) == [StuckReason.SILENT]


@each((30, 60), (600, 600), (86_400, 86_400))
def test_a_node_is_silent_once_its_own_lease_is_over_and_the_patience_too(
    rig: Rig, lease_s: int, silent_s: int
) -> None:
    node = NodeId(rig.ids.new())
    rig.store.register(NewNode(node, rig.now, lease_us=lease_s * 1_000_000))
    rig.enqueue(timeout_ms=10**9)
    rig.claim_one(node=node)
    rig.clock.advance(seconds=silent_s - 1)
    assert _reasons(rig, beats=False, long_us=60_000_000) == []

    rig.clock.advance(seconds=1)
    assert _reasons(rig, beats=False, long_us=60_000_000) == [StuckReason.SILENT]


def test_a_queue_waits_while_all_of_its_jobs_run_on_nodes_silent_for_their_lease(rig: Rig) -> None:
    node = NodeId(rig.ids.new())
    rig.store.register(NewNode(node, rig.now, lease_us=1_000_000_000))
    rig.enqueue_many(2, timeout_ms=10**9)
    rig.claim_one(node=node)

    rig.clock.advance(seconds=999)
    assert _stuck(rig, beats=False) == []
    rig.clock.advance(seconds=1)
    assert _reasons(rig, beats=False) == [StuckReason.SILENT, StuckReason.WAITING]


def test_parked_jobs_are_stuck(rig: Rig) -> None:
    job_id = in_state(rig, State.PARKED)

    assert _stuck(rig) == [Stuck(StuckReason.PARKED, rig.kind, rig.queue, 1, rig.now, job_id)]


def test_a_job_that_was_due_long_ago_and_that_nobody_queued_is_stuck(rig: Rig) -> None:
    due = Micros(rig.now + 1_000_000)
    job_id = rig.enqueue(delay_s=1)
    rig.clock.advance(seconds=300)
    assert _stuck(rig) == []

    rig.clock.advance(seconds=1)
    assert _stuck(rig) == [Stuck(StuckReason.DUE, rig.kind, rig.queue, 1, due, job_id)]


def test_the_head_of_a_queue_that_nobody_serves_is_stuck(rig: Rig) -> None:
    first, _ = rig.enqueue_many(2)
    rig.clock.advance(seconds=300)

    assert _stuck(rig) == [Stuck(StuckReason.WAITING, rig.kind, rig.queue, 1, Micros(rig.now - LONG_US), first)]


def test_a_long_backlog_that_is_worked_on_is_not_stuck(rig: Rig) -> None:
    rig.enqueue_many(3)
    rig.clock.advance(seconds=900)
    lately = rig.ids.new()
    rig.finish(rig.claim_one(), Completed())

    assert _stuck(rig, lately=lately) == []
    assert len(_stuck(rig)) == 1


def test_a_queue_of_long_jobs_of_which_one_runs_is_not_stuck(rig: Rig) -> None:
    rig.enqueue_many(2, timeout_ms=3_600_000)
    running = rig.claim_one()
    rig.clock.advance(seconds=900)
    assert _stuck(rig) == []

    rig.finish(running, Completed())
    assert _reasons(rig) == [StuckReason.WAITING]


def test_a_run_on_a_node_that_may_be_dead_does_not_help_its_queue(rig: Rig) -> None:
    rig.enqueue_many(2, timeout_ms=3_600_000)
    rig.claim_one()
    rig.clock.advance(seconds=900)

    assert _reasons(rig, beats=False) == [StuckReason.SILENT, StuckReason.WAITING]


def test_no_queue_is_said_to_wait_where_more_was_begun_than_is_looked_at(rig: Rig) -> None:
    """The runs that were read belong to another queue; one that was not read may belong to this one."""
    rig.enqueue_many(2)
    rig.clock.advance(seconds=900)
    lately = rig.ids.new()
    rig.finish(rig.claim_one(), Completed())
    rig.enqueue(queue=rig.key("other"))
    [claim] = rig.claim(queue=rig.key("other"))
    rig.finish(claim, Completed())

    assert _stuck(rig, lately=lately, cap=1) == []
    rig.store.pause_queue(rig.queue, rig.now)
    assert [row.reason for row in _stuck(rig, lately=lately, cap=1)] == [StuckReason.PAUSED]


def test_work_on_another_queue_does_not_help_the_one_that_waits(rig: Rig) -> None:
    rig.enqueue()
    rig.clock.advance(seconds=900)
    lately = rig.ids.new()
    rig.enqueue(queue=rig.key("other"))
    [claim] = rig.claim(queue=rig.key("other"))
    rig.finish(claim, Completed())

    assert [(row.reason, row.queue) for row in _stuck(rig, lately=lately)] == [(StuckReason.WAITING, rig.queue)]


def test_the_head_of_a_paused_queue_is_told_apart(rig: Rig) -> None:
    rig.enqueue()
    rig.store.pause_queue(rig.queue, rig.now)
    rig.clock.advance(seconds=300)
    assert _reasons(rig) == [StuckReason.PAUSED]

    rig.store.pause_queue(rig.queue, None)
    assert _reasons(rig) == [StuckReason.WAITING]

    rig.store.pause_queue("*", rig.now)
    try:
        assert _reasons(rig) == [StuckReason.PAUSED]
    finally:
        rig.store.pause_queue("*", None)


def test_a_reserved_queue_is_not_stuck_until_the_reservation_ends(rig: Rig) -> None:
    rig.enqueue()
    rig.clock.advance(seconds=300)
    held = rig.reserve()
    assert _stuck(rig) == []

    rig.store.close_reservation(held.id, "released", rig.now)
    assert _reasons(rig) == [StuckReason.WAITING]


# -- how long do jobs take? ------------------------------------------------------------------------------------------


def _took(rig: Rig, claim: Claim, duration_ms: int, report: Report | None = None) -> None:
    rig.finish(claim, report or Completed(), RunStats(duration_ms=duration_ms))


def test_percentiles_are_of_nearest_rank(rig: Rig) -> None:
    """Of twenty, the tenth, the nineteenth and the last."""
    rig.enqueue_many(20)
    for number in (7, 1, 20, 2, 19, 3, 18, 4, 17, 5, 16, 6, 15, 14, 8, 13, 9, 12, 10, 11):
        rig.clock.advance(milliseconds=100)
        _took(rig, rig.claim_one(), number)

    assert _durations(rig) == [Durations(rig.kind, 20, 10, 19, 20, 1_000, 1_900, 2_000)]


def test_kinds_are_measured_apart_and_only_by_completed_runs(rig: Rig) -> None:
    one, two = rig.key("one"), rig.key("two")
    _took(rig, rig.start(kind=one), 5)
    _took(rig, rig.start(kind=two), 7)
    _took(rig, rig.start(kind=two), 999, Failed(HOPELESS))
    _took(rig, rig.start(kind=rig.key("never")), 999, Failed(HOPELESS))
    rig.start(kind=two)

    assert sorted(_durations(rig)) == sorted([Durations(one, 1, 5, 5, 5, 0, 0, 0), Durations(two, 1, 7, 7, 7, 0, 0, 0)])


def test_only_the_newest_runs_since_then_are_measured(rig: Rig) -> None:
    _took(rig, rig.start(), 1_000)
    since = rig.ids.new()
    _took(rig, rig.start(), 10)
    _took(rig, rig.start(), 20)

    assert [(row.runs, row.p50_ms) for row in _durations(rig, since)] == [(2, 10)]
    assert [(row.runs, row.p50_ms) for row in _durations(rig, cap=1)] == [(1, 20)]


# -- are there duplicates? -------------------------------------------------------------------------------------------


def test_jobs_that_had_the_same_business_key_are_duplicates(rig: Rig) -> None:
    for _ in range(2):
        rig.finish(rig.start(business_key=rig.key("b")), Completed())
    last = rig.enqueue(business_key=rig.key("b"))
    rig.enqueue(business_key=rig.key("alone"))
    rig.enqueue(idempotency_key=rig.key("i"))
    rig.enqueue_many(2)

    assert _duplicates(rig) == [Duplicates(DuplicateReason.BUSINESS_KEY, rig.kind, rig.key("b"), 3, last)]


def test_the_same_key_in_two_kinds_is_no_duplicate(rig: Rig) -> None:
    rig.finish(rig.start(business_key=rig.key("b")), Completed())
    rig.enqueue(business_key=rig.key("b"), kind=rig.key("other"))

    assert _duplicates(rig) == []


def test_a_job_that_another_one_took_the_place_of_is_no_duplicate(rig: Rig) -> None:
    running = rig.start(business_key=rig.key("r"))
    rig.store.supersede(running.job_id, rig.new(business_key=rig.key("r")), rig.now)
    assert _duplicates(rig) == [], "while both are live"
    rig.finish(running, Completed())
    assert _duplicates(rig) == [], "although it ran to its end"

    waiting = rig.enqueue(business_key=rig.key("w"))
    rig.store.supersede(waiting, rig.new(business_key=rig.key("w")), rig.now)
    assert _duplicates(rig) == []


def test_a_retry_is_no_duplicate(rig: Rig) -> None:
    job_id = _fail(rig, business_key=rig.key("b"))
    rig.store.retry_as_new(job_id, JobId(rig.ids.new()), rig.now)
    rig.finish(rig.claim_one(), Failed(HOPELESS))
    rig.store.retry(job_id, rig.now)

    assert _duplicates(rig) == []


def test_jobs_that_began_again_after_their_node_died_may_have_worked_twice(rig: Rig) -> None:
    *_, last = rig.crashed(2)
    assert _duplicates(rig) == [], "nobody has begun again yet"

    for _ in range(2):
        rig.finish(rig.claim_one(), Completed())
    assert _duplicates(rig) == [Duplicates(DuplicateReason.BEGUN_AGAIN, rig.kind, None, 2, last)]
    assert _duplicates(rig, rig.ids.new()) == []


def test_duplicates_are_looked_for_among_the_newest_jobs_since_then(rig: Rig) -> None:
    rig.finish(rig.start(business_key=rig.key("b")), Completed())
    since = rig.ids.new()
    rig.finish(rig.start(business_key=rig.key("b")), Completed())
    rig.enqueue(business_key=rig.key("b"))

    assert [row.jobs for row in _duplicates(rig)] == [3]
    assert [row.jobs for row in _duplicates(rig, since)] == [2]
    assert [row.jobs for row in _duplicates(rig, cap=2)] == [2]
    assert _duplicates(rig, cap=1) == []


# -- what ran in the last hour? --------------------------------------------------------------------------------------


def test_runs_are_counted_by_how_they_stand(rig: Rig) -> None:
    rig.finish(rig.start(), Completed())
    rig.finish(rig.start(), Completed())
    _fail(rig)
    again = rig.start(max_attempts=3)
    rig.finish(again, Failed(BROKEN))
    rig.finish(rig.claim_one(), TimedOut(BROKEN))
    rig.finish(rig.claim_one(), Failed(BROKEN))
    rig.finish(rig.start(), Skipped())
    cancelled = rig.start()
    rig.cancel(cancelled.job_id)
    rig.finish(cancelled, Cancelled())
    given_back = rig.start()
    rig.finish(given_back, Released())
    rig.cancel(given_back.job_id)
    rig.start()

    assert _ran(rig) == [
        Ran(rig.kind, runs=10, running=1, completed=2, failed=2, retried=2, lost=0, other=3),
    ]


def test_lost_runs_are_told_from_those_that_ended_their_job(rig: Rig) -> None:
    rig.crashed(1)
    node = rig.register()
    rig.claim_one(node=node)
    rig.crash(node, max_crashes=2)

    assert _ran(rig) == [Ran(rig.kind, runs=2, running=0, completed=0, failed=1, retried=0, lost=1, other=0)]


def test_a_failure_in_an_earlier_life_stays_one(rig: Rig) -> None:
    job_id = _fail(rig)
    rig.store.retry(job_id, rig.now)
    rig.finish(rig.claim_one(), Failed(BROKEN))
    assert [(row.failed, row.retried) for row in _ran(rig)] == [(1, 1)]

    rig.finish(rig.claim_one(), Completed())
    assert [(row.failed, row.retried, row.completed) for row in _ran(rig)] == [(1, 1, 1)]


def test_only_runs_that_began_since_then_are_counted(rig: Rig) -> None:
    rig.finish(rig.start(), Completed())
    since = rig.ids.new()
    rig.finish(rig.start(), Completed())
    rig.finish(rig.start(kind=rig.key("b")), Completed())

    assert [(row.kind, row.runs) for row in sorted(_ran(rig, since))] == sorted([(rig.kind, 1), (rig.key("b"), 1)])
    assert [(row.kind, row.runs) for row in _ran(rig, cap=1)] == [(rig.key("b"), 1)]


# -- what holds a queue back? ----------------------------------------------------------------------------------------


def test_the_holds_of_a_queue_are_its_own_row_and_then_that_of_all(rig: Rig) -> None:
    assert [gate for gate in rig.store.queue_holds(rig.queue) if gate.name == rig.queue] == []
    rig.enqueue()
    assert rig.store.queue_holds(rig.queue)[0] == QueueHold(rig.queue, None, None)

    rig.store.pause_queue("*", rig.now)
    try:
        assert rig.store.queue_holds(rig.queue) == [QueueHold(rig.queue, None, None), QueueHold("*", rig.now, None)]
    finally:
        rig.store.pause_queue("*", None)


def test_nothing_hinders_a_server_that_nobody_else_uses(rig: Rig) -> None:
    assert list(rig.store.hindrances(long_s=10**6, most_dead=10**12)) == []
