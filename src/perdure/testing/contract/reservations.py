"""Queues held for direct work: one holder, no claim beside it, order as it was. Protocol `ReservationOperations`."""

from __future__ import annotations

from perdure.errors import KeyConflict, ReservationExpired
from perdure.ids import ReservationId
from perdure.job.reports import Completed, Failed
from perdure.job.states import State
from perdure.store.rows import EVERY_QUEUE, FinishStatus, ReservationRow
from perdure.testing.contract.case import each, raises
from perdure.testing.contract.rig import BROKEN, Rig


def _as_it_is(rig: Rig, of: ReservationRow) -> ReservationRow:
    [found] = [row for row in rig.store.reservations(1_000) if row.id == of.id]
    return found


def _closed(rig: Rig, queue: str) -> object:
    """What the row of the queue says."""
    return next((row.reserved_until for row in rig.store.queues() if row.name == queue), None)


# -- one holder ------------------------------------------------------------------------------------------------------


def test_a_reservation_is_kept_as_it_was_given(rig: Rig) -> None:
    held = rig.reserve()

    assert _as_it_is(rig, held) == held
    assert held in rig.store.active_reservations()
    assert _closed(rig, rig.queue) == held.expires_at


def test_a_reserved_queue_is_not_reserved_again_and_the_holder_is_named(rig: Rig) -> None:
    held = rig.reserve()
    before = rig.everything()

    assert rig.store.reserve(rig.reservation()) == held
    assert rig.everything() == before


def test_the_same_reservation_made_twice_is_one(rig: Rig) -> None:
    held = rig.reserve()  # whose reply was lost, so the caller repeats it
    before = rig.everything()

    assert rig.store.reserve(held) is None
    assert rig.everything() == before


def test_two_queues_can_be_reserved_at_once(rig: Rig) -> None:
    one, two = rig.reserve(rig.key("one")), rig.reserve(rig.key("two"))

    assert rig.store.active_reservations() == [one, two]


@each((EVERY_QUEUE, "own"), ("own", EVERY_QUEUE), (EVERY_QUEUE, EVERY_QUEUE))
def test_every_queue_and_any_queue_are_in_each_others_way(rig: Rig, first: str, second: str) -> None:
    held = rig.reserve(rig.queue if first == "own" else first)

    assert rig.store.reserve(rig.reservation(rig.queue if second == "own" else second)) == held
    assert rig.store.close_reservation(held.id, "released", rig.now)
    rig.reserve(rig.queue if second == "own" else second)


def test_a_queue_can_be_reserved_before_its_first_job(rig: Rig) -> None:
    held = rig.reserve(rig.key("new"))
    rig.enqueue(queue=rig.key("new"))
    assert rig.claim(queue=rig.key("new")) == []

    rig.store.close_reservation(held.id, "released", rig.now)
    assert len(rig.claim(queue=rig.key("new"))) == 1


def test_other_queues_go_on_beside_a_reserved_one(rig: Rig) -> None:
    rig.reserve(rig.key("other"))
    rig.enqueue()

    assert len(rig.claim()) == 1


# -- enter -----------------------------------------------------------------------------------------------------------


@each("own", EVERY_QUEUE)
def test_it_is_entered_when_the_last_running_job_has_ended(rig: Rig, which: str) -> None:
    rig.enqueue_many(2)
    first, second = rig.claim(2)
    held = rig.reserve(rig.queue if which == "own" else which)
    assert not rig.store.enter_reservation(held.id, rig.until(), rig.now)

    rig.finish(first, Completed())
    assert not rig.store.enter_reservation(held.id, rig.until(), rig.now)
    assert _as_it_is(rig, held).entered_at is None

    rig.finish(second, Completed())
    rig.clock.advance(seconds=5)
    until = rig.until(20)
    assert rig.store.enter_reservation(held.id, until, rig.now)
    assert _as_it_is(rig, held) == held._replace(entered_at=rig.now, **until._asdict())
    assert _closed(rig, held.queue) == until.expires_at


def test_a_running_job_of_another_queue_is_not_waited_for(rig: Rig) -> None:
    rig.start()
    held = rig.reserve(rig.key("other"))

    assert rig.store.enter_reservation(held.id, rig.until(), rig.now)


def test_a_failed_job_waits_for_its_retry_until_the_reservation_is_closed(rig: Rig) -> None:
    running = rig.start()
    held = rig.reserve()
    assert rig.finish(running, Failed(BROKEN, 0)).status == FinishStatus.APPLIED
    assert rig.store.enter_reservation(held.id, rig.until(), rig.now)
    assert rig.claim() == []

    rig.store.close_reservation(held.id, "released", rig.now)
    assert [claim.job_id for claim in rig.claim()] == [running.job_id]


@each("released", "expired")
def test_a_closed_reservation_is_neither_entered_nor_renewed(rig: Rig, how: str) -> None:
    held = rig.reserve()
    assert rig.store.close_reservation(held.id, how, rig.now)
    before = rig.everything()

    with raises(ReservationExpired, "reservation_expired"):
        rig.store.enter_reservation(held.id, rig.until(), rig.now)
    assert not rig.store.renew_reservation(held.id, rig.until())
    assert rig.everything() == before


# -- renew and close -------------------------------------------------------------------------------------------------


def test_a_renewal_moves_the_end(rig: Rig) -> None:
    held = rig.reserve()
    rig.clock.advance(seconds=9)
    until = rig.until(30)

    assert rig.store.renew_reservation(held.id, until)
    assert _as_it_is(rig, held) == held._replace(**until._asdict())
    assert _closed(rig, rig.queue) == until.expires_at


@each("released", "expired")
def test_a_closed_reservation_stays_as_a_record_and_frees_its_queue(rig: Rig, how: str) -> None:
    held = rig.reserve()
    rig.clock.advance(seconds=2)

    assert rig.store.close_reservation(held.id, how, rig.now)
    assert _as_it_is(rig, held) == held._replace(status=how, closed_at=rig.now)
    assert held.id not in [row.id for row in rig.store.active_reservations()]
    assert _closed(rig, rig.queue) is None
    rig.reserve()


def test_a_reservation_is_closed_once(rig: Rig) -> None:
    held = rig.reserve()
    rig.store.close_reservation(held.id, "expired", rig.now)
    rig.reserve()
    before = rig.everything()

    assert not rig.store.close_reservation(held.id, "released", rig.now)
    assert not rig.store.close_reservation(ReservationId(rig.ids.new()), "released", rig.now)
    assert rig.everything() == before


def test_a_renewal_that_came_first_is_not_expired_by_who_had_not_seen_it(rig: Rig) -> None:
    held = rig.reserve()
    rig.clock.advance(seconds=10)
    until = rig.until()
    rig.store.renew_reservation(held.id, until)

    assert not rig.store.close_reservation(held.id, "expired", rig.now, held.expires_at)
    assert rig.store.close_reservation(held.id, "expired", rig.now, until.expires_at)


def test_reservations_are_listed_the_newest_first(rig: Rig) -> None:
    made: list[ReservationRow] = []
    for name in ("a", "b", "c"):
        made.append(rig.reserve(rig.key(name)))
        rig.store.close_reservation(made[-1].id, "released", rig.now)

    assert [row.id for row in rig.store.reservations(2)] == [made[2].id, made[1].id]


def test_the_order_of_a_queue_is_the_same_before_and_after(rig: Rig) -> None:
    rig.enqueue_many(3)
    rig.enqueue(priority=5)
    before = rig.in_order()
    held = rig.reserve()
    rig.store.start_reserved(rig.new(priority=9), held.id, rig.claimer(1), rig.now)
    rig.store.close_reservation(held.id, "released", rig.now)

    assert rig.in_order() == before
    assert [claim.job_id for claim in rig.claim(10)] == before


# -- the holder's own job --------------------------------------------------------------------------------------------


@each("own", EVERY_QUEUE)
def test_the_holders_job_runs_past_the_others_and_ends_like_any_other(rig: Rig, which: str) -> None:
    rig.enqueue_many(2)
    held = rig.reserve(rig.queue if which == "own" else which)
    new = rig.new(payload='{"n":2}', secrets='{"s":3}', params='{"p":4}', principal="eve", timeout_ms=500)

    job, claim = rig.store.start_reserved(new, held.id, rig.claimer(1), rig.now)

    assert claim is not None
    assert job.row.id == claim.job_id == new.id
    assert claim.live == rig.live(new.id)
    assert (claim.live.state, claim.live.node_id, claim.live.attempts) == (State.RUNNING, rig.node, 1)
    assert (claim.payload, claim.secrets, claim.params, claim.principal) == (new.payload, new.secrets, '{"p":4}', "eve")
    assert [run.row.id for run in rig.runs(new.id)] == [claim.run_id]
    assert rig.finish(claim, Completed("2")).status == FinishStatus.APPLIED
    assert rig.job(new.id).state == State.COMPLETED


def test_the_holders_job_is_rescued_when_its_node_dies(rig: Rig) -> None:
    held = rig.reserve()
    node = rig.register()
    new = rig.new()
    rig.store.start_reserved(new, held.id, rig.claimer(1, node), rig.now)

    assert rig.crash(node) == 1
    assert rig.job(new.id).state == State.QUEUED
    assert rig.claim() == []

    rig.store.close_reservation(held.id, "expired", rig.now)
    assert [claim.job_id for claim in rig.claim()] == [new.id]


def test_without_the_reservation_nothing_is_started(rig: Rig) -> None:
    held, other = rig.reserve(), rig.reserve(rig.key("other"))
    rig.store.close_reservation(held.id, "expired", rig.now)
    claimer = rig.claimer(1)
    before = rig.everything()

    for reservation in (held, other):
        with raises(ReservationExpired):
            rig.store.start_reserved(rig.new(), reservation.id, claimer, rig.now)
    assert rig.everything() == before


def test_a_job_whose_key_is_taken_is_not_started(rig: Rig) -> None:
    first = rig.enqueue(idempotency_key=rig.key("k"), business_key=rig.key("b"))
    held = rig.reserve()

    repeat = rig.new(idempotency_key=rig.key("k"))
    job, claim = rig.store.start_reserved(repeat, held.id, rig.claimer(1), rig.now)
    assert (job.row.id, job.deduplicated, claim) == (first, True, None)
    with raises(KeyConflict):
        rig.store.start_reserved(rig.new(business_key=rig.key("b")), held.id, rig.claimer(1), rig.now)
    assert rig.in_order() == [first]
