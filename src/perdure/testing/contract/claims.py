"""Jobs become runs. Protocol `ClaimOperations`."""

from __future__ import annotations

from perdure.ids import JobId, NodeId
from perdure.job.model import Claim
from perdure.job.reports import Completed, Failed, Unreadable
from perdure.job.states import Park, RunState, State, Suspicion
from perdure.store.rows import Kinds, Lane
from perdure.testing.contract.case import each
from perdure.testing.contract.rig import BROKEN, HOPELESS, LEASE_US, NONE, Rig

EVERYTHING = "*"


def test_a_claimed_job_runs_on_the_node_that_took_it(rig: Rig) -> None:
    job_id = rig.enqueue(payload='{"n":7}', secrets='{"s":1}', params='{"p":2}', principal="ann", owner="shop")
    rig.clock.advance(seconds=3)
    node = rig.register()

    [claim] = rig.claim(node=node)

    assert claim.live == rig.live(job_id)
    assert (claim.live.state, claim.live.node_id, claim.live.attempts) == (State.RUNNING, node, 1)
    assert (claim.live.claimed_at, claim.live.started_at, claim.live.deadline_at) == (rig.now, rig.now, None)
    assert (claim.payload, claim.secrets, claim.params) == ('{"n":7}', '{"s":1}', '{"p":2}')
    assert (claim.principal, claim.owner, claim.created_at) == ("ann", "shop", rig.row(job_id).created_at)


def test_a_claim_opens_a_run(rig: Rig) -> None:
    rig.enqueue()
    rig.clock.advance(seconds=3)
    claim = rig.claim_one()

    [run] = rig.runs(claim.job_id)
    assert (run.row.id, run.state, run.row.node_id) == (claim.run_id, RunState.RUNNING, rig.node)
    assert (run.attempt, run.life, run.row.started_at) == (1, 1, rig.now)
    assert (run.wait_ms, run.finished_at, run.duration_ms) == (3_000, None, None)


def test_a_run_has_waited_since_its_job_was_due(rig: Rig) -> None:
    job_id = rig.enqueue(delay_s=60)
    rig.clock.advance(seconds=62)
    rig.store.promote(rig.now, 1)
    rig.clock.advance(seconds=3)
    first = rig.claim_one()
    rig.clock.advance(seconds=7)
    rig.finish(first, Failed(BROKEN, 30_000_000))
    rig.clock.advance(seconds=34)
    rig.store.promote(rig.now, 1)
    rig.claim_one()

    assert [run.wait_ms for run in rig.runs(job_id)] == [4_000, 5_000]


def test_no_run_has_waited_for_longer_than_its_job_is_there(rig: Rig) -> None:
    job_id = rig.enqueue(delay_s=-100)
    rig.clock.advance(seconds=2)
    rig.claim_one()

    assert rig.runs(job_id)[0].wait_ms == 2_000


def test_a_job_that_runs_again_has_waited_since_then(rig: Rig) -> None:
    claim = rig.start()
    rig.finish(claim, Failed(HOPELESS))
    rig.clock.advance(seconds=50)
    rig.store.retry(claim.job_id, rig.now)
    rig.clock.advance(seconds=2)
    rig.claim_one()

    assert [run.wait_ms for run in rig.runs(claim.job_id)] == [2_000, 0]


def test_no_run_has_waited_for_less_than_nothing(rig: Rig) -> None:
    """The clock of the node that claims may be behind the clock of the process that enqueued."""
    job_id = rig.enqueue()
    rig.clock.step(seconds=-5)
    rig.claim_one()

    assert rig.runs(job_id)[0].wait_ms == 0


def test_a_job_with_a_time_out_has_a_deadline_one_lease_later(rig: Rig) -> None:
    claim = rig.start(timeout_ms=2_500)

    assert claim.live.deadline_at == rig.now + 2_500_000 + LEASE_US


def test_every_claim_has_a_run_of_its_own_and_counts_an_attempt(rig: Rig) -> None:
    first = rig.start()
    rig.clock.advance(seconds=1)
    rig.finish(first, Failed(BROKEN))
    second = rig.claim_one()

    assert second.run_id != first.run_id
    assert (second.live.attempts, second.live.started_at) == (2, first.live.started_at)
    assert [run.attempt for run in rig.runs(first.job_id)] == [2, 1]


def test_a_claim_takes_no_more_than_there_is_room_for(rig: Rig) -> None:
    ids = rig.enqueue_many(5)

    assert [claim.job_id for claim in rig.claim(3)] == ids[:3]
    assert [claim.job_id for claim in rig.claim(3)] == ids[3:]
    assert rig.claim(3) == []


def test_a_lane_without_room_gives_nothing(rig: Rig) -> None:
    rig.enqueue()

    assert rig.store.claim([Lane(rig.queue, 0)], rig.claimer(1), rig.now) == []


def test_each_lane_gives_of_its_own_queue_up_to_its_room(rig: Rig) -> None:
    queues = [rig.key(name) for name in ("mail", "gpu", "empty")]
    mail, gpu = rig.enqueue_many(3, queue=queues[0]), rig.enqueue_many(3, queue=queues[1])
    lanes = [Lane(queues[0], 2), Lane(queues[2], 5), Lane(queues[1], 1)]

    claims = rig.store.claim(lanes, rig.claimer(8), rig.now)

    assert [claim.job_id for claim in claims] == [*mail[:2], gpu[0]]


def test_a_job_of_another_queue_is_not_claimed(rig: Rig) -> None:
    rig.enqueue(queue=rig.key("other"))

    assert rig.claim() == []


def test_a_job_is_claimed_once(rig: Rig) -> None:
    rig.enqueue()

    assert len(rig.claim()) == 1
    assert rig.claim(node=rig.register()) == []


def test_a_scheduled_job_is_not_claimed_before_it_is_promoted(rig: Rig) -> None:
    rig.enqueue(delay_s=1)
    rig.clock.advance(seconds=1)
    assert rig.claim() == []

    rig.store.promote(rig.now, 1)
    assert len(rig.claim()) == 1


# -- who may claim ---------------------------------------------------------------------------------------------------


def test_a_node_that_is_not_registered_claims_nothing(rig: Rig) -> None:
    rig.enqueue()

    assert rig.claim(node=NodeId(rig.ids.new())) == []


@each("clean_shutdown", "crash")
def test_a_stopped_node_claims_nothing(rig: Rig, reason: str) -> None:
    rig.enqueue()
    node = rig.register()
    rig.store.stop(node, reason, rig.now)

    assert rig.claim(node=node) == []
    assert rig.claim(node=node, kinds=NONE) == []
    assert len(rig.in_order()) == 1


def test_a_paused_queue_gives_nothing_until_it_is_resumed(rig: Rig) -> None:
    rig.enqueue()
    rig.store.pause_queue(rig.queue, rig.now)
    assert rig.claim() == []

    rig.store.pause_queue(rig.queue, None)
    assert len(rig.claim()) == 1


def test_a_paused_queue_parks_nothing(rig: Rig) -> None:
    rig.enqueue()
    rig.store.pause_queue(rig.queue, rig.now)
    rig.claim(kinds=NONE)

    assert len(rig.in_order()) == 1


def test_a_paused_queue_gives_no_parked_jobs_either(rig: Rig) -> None:
    rig.enqueue()
    rig.claim(kinds=NONE)
    rig.store.pause_queue(rig.queue, rig.now)

    assert rig.claim() == []


def test_other_queues_continue_while_one_is_paused(rig: Rig) -> None:
    other = rig.key("other")
    rig.enqueue(queue=other)
    rig.store.pause_queue(rig.queue, rig.now)

    assert len(rig.claim(queue=other)) == 1


def test_while_everything_is_paused_no_queue_gives_anything(rig: Rig) -> None:
    rig.enqueue()
    rig.store.pause_queue(EVERYTHING, rig.now)
    try:
        assert rig.claim() == []
    finally:
        rig.store.pause_queue(EVERYTHING, None)
    assert len(rig.claim()) == 1


@each("own", EVERYTHING)
def test_a_reserved_queue_gives_nothing_until_the_reservation_is_closed(rig: Rig, which: str) -> None:
    rig.enqueue()
    held = rig.reserve(rig.queue if which == "own" else EVERYTHING, lasts_s=10)
    assert rig.claim() == []

    rig.clock.advance(seconds=3_600)  # the time alone opens nothing: clocks jump, and the holder may renew
    assert rig.claim() == []

    rig.store.close_reservation(held.id, "expired", rig.now)
    assert len(rig.claim()) == 1


# -- kinds and versions ----------------------------------------------------------------------------------------------


def test_a_job_of_an_unknown_kind_is_parked_without_a_run_or_an_attempt(rig: Rig) -> None:
    job_id = rig.enqueue()

    assert rig.claim(kinds=NONE) == []

    job = rig.job(job_id)
    assert (job.state, job.park_reason, job.attempts) == (State.PARKED, Park.UNKNOWN_KIND, 0)
    assert rig.runs(job_id) == []


def test_a_job_of_a_newer_version_is_parked(rig: Rig) -> None:
    job_id = rig.enqueue(kind_version=3)

    assert rig.claim(kinds={rig.kind: 2}) == []
    assert (rig.job(job_id).state, rig.job(job_id).park_reason) == (State.PARKED, Park.NEWER_VERSION)


def test_a_job_of_an_older_version_is_claimed(rig: Rig) -> None:
    rig.enqueue(kind_version=1)

    assert len(rig.claim(kinds={rig.kind: 2})) == 1


def test_a_claim_is_filled_up_behind_the_jobs_it_parks(rig: Rig) -> None:
    strange = rig.key("strange")
    for _ in range(3):
        rig.enqueue_many(4, kind=strange)
        rig.enqueue()
    claims = rig.claim(3, kinds={rig.kind: 1})

    assert [claim.live.kind for claim in claims] == [rig.kind] * 3
    parked = rig.execute("SELECT COUNT(*) FROM {ready} WHERE kind = :kind AND state = 'parked'", kind=strange)
    assert parked == [(12,)]


def test_a_claim_parks_no_more_than_a_transaction_should_and_the_next_continues_behind(rig: Rig) -> None:
    strange = rig.key("strange")
    rig.enqueue_many(2_500, kind=strange)
    rig.enqueue()
    parked: list[object] = []
    claims: list[Claim] = []
    while not claims:
        claims = rig.claim(100, kinds={rig.kind: 1})
        rows = rig.execute("SELECT COUNT(*) FROM {ready} WHERE kind = :kind AND state = 'parked'", kind=strange)
        parked.append(rows[0][0])

    assert parked == [1_000, 2_000, 2_500]
    assert [claim.live.kind for claim in claims] == [rig.kind]


def test_a_node_that_knows_them_takes_parked_jobs_in_queue_order(rig: Rig) -> None:
    one, two = rig.key("one"), rig.key("two")
    ids = [rig.enqueue(kind=kind) for kind in (one, two, one, two, one)]
    high = rig.enqueue(kind=two, priority=1)
    assert rig.claim(10, kinds=NONE) == []
    new = rig.enqueue(kind=one)

    claims = rig.claim(10, kinds={one: 1, two: 1})

    assert [claim.job_id for claim in claims] == [high, *ids, new]
    assert all(claim.live == rig.live(claim.job_id) for claim in claims)
    assert claims[0].live.park_reason is None


def test_a_claim_of_parked_and_queued_jobs_has_its_limit_too(rig: Rig) -> None:
    one, two = rig.key("one"), rig.key("two")
    ids = [rig.enqueue(kind=kind) for kind in (one, two, one)]
    rig.claim(10, kinds=NONE)
    ids.append(rig.enqueue(kind=one))
    known: Kinds = {one: 1, two: 1}

    assert [claim.job_id for claim in rig.claim(2, kinds=known)] == ids[:2]
    assert [claim.job_id for claim in rig.claim(9, kinds=known)] == ids[2:]


def test_a_node_takes_only_those_parked_jobs_it_knows(rig: Rig) -> None:
    one, two = rig.key("one"), rig.key("two")
    rig.enqueue(kind=one)
    known = rig.enqueue(kind=two)
    newer = rig.enqueue(kind=two, kind_version=2)
    rig.claim(10, kinds=NONE)

    assert [claim.job_id for claim in rig.claim(10, kinds={two: 1})] == [known]
    assert rig.job(newer).state == State.PARKED


def test_an_upgraded_node_takes_the_job_that_waited_for_its_version(rig: Rig) -> None:
    job_id = rig.enqueue(kind_version=2)
    rig.claim(kinds={rig.kind: 1})

    assert [claim.job_id for claim in rig.claim(kinds={rig.kind: 2})] == [job_id]


def test_an_unreadable_job_is_not_claimed_again(rig: Rig) -> None:
    claim = rig.start()
    rig.finish(claim, Unreadable("not JSON"))

    assert rig.claim(kinds={rig.kind: 99}) == []
    assert rig.claim() == []
    rig.resume(claim.job_id)
    assert rig.claim_one().job_id == claim.job_id


def test_a_claim_leaves_nothing_of_an_earlier_run_on_the_job(rig: Rig) -> None:
    node = rig.register()
    rig.enqueue(timeout_ms=1_000)
    rig.claim_one(node=node)
    rig.crash(node)
    live = rig.live(rig.in_order()[0])
    assert (live.node_id, live.run_id, live.claimed_at, live.deadline_at) == (None, None, None, None)

    claim = rig.claim_one()
    rig.finish(claim, Completed())
    assert rig.job(claim.job_id).state == State.COMPLETED


def test_a_claim_takes_no_more_jobs_than_it_has_run_ids(rig: Rig) -> None:
    rig.enqueue_many(3)
    claims = rig.store.claim([Lane(rig.queue, 3)], rig.claimer(2), rig.now)

    assert len(claims) == 2
    assert len(rig.in_order()) == 1


# -- several lanes ---------------------------------------------------------------------------------------------------


def test_all_lanes_together_give_no_more_than_there_are_run_ids(rig: Rig) -> None:
    queues = [rig.key(name) for name in ("one", "two", "three")]
    ids = [rig.enqueue_many(2, queue=queue) for queue in queues]

    claims = rig.store.claim([Lane(queue, 2) for queue in queues], rig.claimer(3), rig.now)

    assert [claim.job_id for claim in claims] == [*ids[0], ids[1][0]]
    assert [rig.in_order(queue) for queue in queues] == [[], ids[1][1:], ids[2]]


def test_lanes_give_in_the_order_they_are_named(rig: Rig) -> None:
    queues = [rig.key(name) for name in ("b", "c", "a")]
    ids = [rig.enqueue(queue=queue, priority=priority) for queue, priority in zip(queues, (0, 9, 5), strict=True)]

    claims = rig.store.claim([Lane(queue, 1) for queue in queues], rig.claimer(3), rig.now)

    assert [claim.job_id for claim in claims] == ids
    assert [claim.run_id for claim in claims] == sorted(claim.run_id for claim in claims)


def test_a_queue_that_is_named_twice_is_one_lane_with_the_room_of_both(rig: Rig) -> None:
    other = rig.key("other")
    ids, last = rig.enqueue_many(4), rig.enqueue(queue=other)
    lanes = [Lane(rig.queue, 1), Lane(other, 1), Lane(rig.queue, 2), Lane(rig.queue, 0), Lane(rig.queue, -5)]

    claims = rig.store.claim(lanes, rig.claimer(9), rig.now)

    assert [claim.job_id for claim in claims] == [*ids[:3], last]


# -- jobs that a node died of ----------------------------------------------------------------------------------------


def _ids(claims: list[Claim]) -> list[JobId]:
    return [claim.job_id for claim in claims]


def test_what_a_node_ran_when_it_died_is_claimed_at_once_again(rig: Rig) -> None:
    ids = rig.crashed(8)

    assert _ids(rig.claim(9)) == ids


def test_of_the_jobs_two_nodes_died_of_one_is_claimed_at_a_time(rig: Rig) -> None:
    first, second, third = rig.suspects(3)

    for job_id in (first, second, third):
        [claim] = rig.claim(5)
        assert claim.job_id == job_id
        rig.finish(claim, Completed())


@each({"max_attempts": 2}, {"max_attempts": 99, "max_crashes": 2})
def test_jobs_that_the_next_crash_would_end_are_claimed_one_at_a_time_already_after_the_first(
    rig: Rig, limits: dict[str, int]
) -> None:
    most, ids = limits.get("max_crashes", 3), rig.crashed(3, max_attempts=limits["max_attempts"])

    assert _ids(rig.claim(9, max_crashes=most)) == ids[:1]
    assert rig.claim(9, max_crashes=most, company=Suspicion.CRASHED) == []


def test_jobs_two_nodes_died_of_are_claimed_one_at_a_time_however_many_crashes_are_allowed(rig: Rig) -> None:
    first, *_ = rig.suspects(3, max_attempts=99)

    assert _ids(rig.claim(9, max_crashes=99)) == [first]


def test_a_job_no_node_died_of_is_no_suspect_though_it_has_one_run_only(rig: Rig) -> None:
    [suspect] = rig.suspects(1)
    innocent = [rig.enqueue(priority=1, max_attempts=1), rig.enqueue(priority=1, max_attempts=1)]

    assert _ids(rig.claim(9)) == [*innocent, suspect]


@each(1, 2, 3)
def test_a_suspect_is_claimed_beside_no_job_that_crashed_once(rig: Rig, room: int) -> None:
    suspects = rig.suspects(2)
    rig.pause(suspects[0])
    rig.pause(suspects[1])
    once = rig.crashed(2)
    for job_id in suspects:
        rig.resume(job_id)
    clean = rig.enqueue()

    assert _ids(rig.claim(room, company=Suspicion.CRASHED)) == [*once, clean][:room]
    assert rig.in_order()[:2] == suspects


def test_jobs_that_crashed_once_go_before_suspects_all_together(rig: Rig) -> None:
    suspects = rig.suspects(3)
    for job_id in suspects:
        rig.pause(job_id)
    once = rig.crashed(2)
    for job_id in suspects:
        rig.resume(job_id)

    assert _ids(rig.claim(2)) == once
    assert _ids(rig.claim(2)) == suspects[:1]


def test_beside_a_suspect_no_job_is_claimed_that_crashed_once(rig: Rig) -> None:
    rig.crashed(2)
    clean = rig.enqueue()

    assert _ids(rig.claim(9, company=Suspicion.SUSPECT)) == [clean]


def test_a_suspect_of_another_lane_counts_too(rig: Rig) -> None:
    other = rig.key("other")
    [suspect], once = rig.suspects(1), rig.crashed(2, queue=other)
    clean = rig.enqueue(queue=other)

    claims = rig.store.claim([Lane(rig.queue, 2), Lane(other, 3)], rig.claimer(9), rig.now)
    assert _ids(claims) == [suspect, clean]
    assert rig.in_order(other) == once


def test_who_stands_behind_suspects_comes_up(rig: Rig) -> None:
    first, *_ = rig.suspects(3)
    innocent = rig.enqueue_many(3)

    assert _ids(rig.claim(2)) == [first, innocent[0]]
    assert _ids(rig.claim(5, company=Suspicion.SUSPECT)) == innocent[1:]


@each(1, 2, 3, 9)
def test_beside_a_suspect_that_is_held_none_is_claimed(rig: Rig, room: int) -> None:
    suspects = rig.suspects(2)
    innocent = rig.enqueue_many(4)

    assert _ids(rig.claim(room, company=Suspicion.SUSPECT)) == innocent[:room]
    assert rig.in_order()[:2] == suspects


def test_where_there_are_only_suspects_a_node_that_holds_one_gets_nothing(rig: Rig) -> None:
    suspects = rig.suspects(3)

    assert rig.claim(1, company=Suspicion.SUSPECT) == []
    assert rig.claim(9, company=Suspicion.SUSPECT) == []
    assert _ids(rig.claim(1)) == suspects[:1]


def test_a_suspect_keeps_its_place_among_the_others(rig: Rig) -> None:
    [suspect] = rig.suspects(1)
    high, low = rig.enqueue(priority=1), rig.enqueue()

    assert _ids(rig.claim(3)) == [high, suspect, low]


def test_one_suspect_is_claimed_over_all_lanes(rig: Rig) -> None:
    other = rig.key("other")
    here, there = rig.suspects(2), rig.suspects(2, queue=other)
    innocent, more = rig.enqueue(), rig.enqueue(queue=other)
    lanes = [Lane(rig.queue, 2), Lane(other, 2)]

    assert _ids(rig.store.claim(lanes, rig.claimer(9), rig.now)) == [here[0], innocent, more]
    assert rig.in_order(other) == there


def test_other_nodes_claim_suspects_of_their_own(rig: Rig) -> None:
    first, second = rig.suspects(2)

    assert _ids(rig.claim(2, node=rig.register())) == [first]
    assert _ids(rig.claim(2, node=rig.register())) == [second]


def test_parked_suspects_are_claimed_one_at_a_time_too(rig: Rig) -> None:
    first, second = rig.suspects(2)
    innocent = rig.enqueue()
    assert rig.claim(5, kinds=NONE) == []

    assert _ids(rig.claim(5, kinds={rig.kind: 1})) == [first, innocent]
    assert rig.claim(5, kinds={rig.kind: 1}, company=Suspicion.SUSPECT) == []
    assert _ids(rig.claim(5, kinds={rig.kind: 1})) == [second]


@each(1, 2, 3)
def test_parked_jobs_behind_parked_suspects_come_up(rig: Rig, room: int) -> None:
    rig.suspects(3)
    innocent = rig.enqueue_many(3)
    assert rig.claim(9, kinds=NONE) == []
    queued = rig.enqueue()

    expected = [*innocent, queued][:room]
    assert _ids(rig.claim(room, kinds={rig.kind: 1}, company=Suspicion.SUSPECT)) == expected


def test_a_job_of_an_unknown_kind_behind_suspects_is_parked_and_not_claimed(rig: Rig) -> None:
    first, second = rig.suspects(2)
    strange = rig.enqueue(kind=rig.key("strange"))
    known = rig.enqueue()

    assert _ids(rig.claim(2, kinds={rig.kind: 1})) == [first, known]
    assert rig.job(strange).park_reason == Park.UNKNOWN_KIND
    assert rig.in_order() == [second]


def test_a_suspect_is_none_in_its_next_life(rig: Rig) -> None:
    suspects = rig.suspects(2)
    for job_id in suspects:
        rig.cancel(job_id)
        rig.store.retry(job_id, rig.now)

    assert _ids(rig.claim(2)) == suspects
