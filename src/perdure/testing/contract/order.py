"""Places inside a queue: rank, then position, then id. Protocol `OrderOperations`."""

from __future__ import annotations

import random

from perdure.errors import JobNotFound, TransitionRefused
from perdure.ids import JobId
from perdure.job.model import RESPACE, rank_of
from perdure.job.reports import Failed, Released
from perdure.job.states import FINAL, State
from perdure.store.rows import JobFilter, Place
from perdure.testing.contract.case import each, raises
from perdure.testing.contract.rig import BROKEN, Rig
from perdure.testing.contract.states import in_state

FRONT = Place(front=True)
BACK = Place()


def _claimed(rig: Rig, room: int = 1_000) -> list[JobId]:
    return [claim.job_id for claim in rig.claim(room)]


def _positions(rig: Rig) -> dict[JobId, int]:
    wanted = JobFilter(state="queued", queue=rig.queue)
    return {job.row.id: job.position for job in rig.listed(wanted, 1_000)}


# -- the order -------------------------------------------------------------------------------------------------------


def test_higher_priorities_go_first_and_equal_ones_in_turn(rig: Rig) -> None:
    low, first, high, second = (rig.enqueue(priority=priority) for priority in (-2, 0, 2, 0))

    assert rig.in_order() == [high, first, second, low]
    assert _claimed(rig) == [high, first, second, low]


@each(2**31 - 1, -(2**31 - 1))
def test_any_integer_of_32_bits_is_a_priority(rig: Rig, priority: int) -> None:
    job_id = rig.enqueue(priority=priority)
    rig.enqueue()

    assert rig.job(job_id).priority == priority
    assert (rig.in_order()[0] == job_id) == (priority > 0)


def test_jobs_at_one_place_go_by_their_ids(rig: Rig) -> None:
    first, second, third = rig.enqueue_many(3)
    rig.execute("UPDATE {ready} SET position = 50 WHERE queue = :queue", queue=rig.queue)

    assert rig.in_order() == [first, second, third]
    assert _claimed(rig) == [first, second, third]


def test_the_same_state_gives_the_same_order(rig: Rig) -> None:
    chance = random.Random(7)
    for _ in range(40):
        rig.enqueue(priority=chance.randint(-1, 1))
    ids = rig.in_order()
    for _ in range(40):
        rig.store.move(chance.choice(ids), chance.choice((FRONT, BACK)), rig.now)
    listed = rig.in_order()

    assert rig.in_order() == listed
    assert [job_id for _ in range(40) for job_id in _claimed(rig, 1)] == listed


def test_a_job_that_comes_back_has_its_old_place(rig: Rig) -> None:
    first, second, third = rig.enqueue_many(3)
    claims = rig.claim(2)
    rig.finish(claims[0], Failed(BROKEN))
    rig.finish(claims[1], Released())

    assert rig.in_order() == [first, second, third]


def test_a_promoted_job_has_the_place_it_was_enqueued_at(rig: Rig) -> None:
    first = rig.enqueue()
    delayed = rig.enqueue(delay_s=60)
    last = rig.enqueue()
    rig.clock.advance(seconds=60)
    rig.store.promote(rig.now, 10)

    assert rig.in_order() == [first, delayed, last]


# -- set_priority ----------------------------------------------------------------------------------------------------


def test_another_priority_puts_a_job_at_its_back(rig: Rig) -> None:
    first, second = rig.enqueue_many(2)
    high = rig.enqueue(priority=5)
    answer = rig.store.set_priority(first, rank_of(5), rig.now)

    assert answer == rig.job(first)
    assert answer.priority == 5
    assert rig.in_order() == [high, first, second]


def test_a_lower_priority_puts_a_job_behind_all_of_it(rig: Rig) -> None:
    first, second = rig.enqueue_many(2)
    low = rig.enqueue(priority=-5)
    rig.store.set_priority(first, rank_of(-5), rig.now)
    newer = rig.enqueue(priority=-5)

    assert rig.in_order() == [second, low, first, newer]


def test_the_priority_a_job_has_already_changes_nothing(rig: Rig) -> None:
    first, _ = rig.enqueue_many(2)
    before = rig.everything()

    assert rig.store.set_priority(first, 0, rig.now) == rig.job(first)
    assert rig.everything() == before


def test_a_priority_for_an_outdated_version_is_refused(rig: Rig) -> None:
    job_id = rig.enqueue()
    seen = rig.job(job_id).version
    rig.store.set_priority(job_id, -1, rig.now)
    before = rig.everything()

    for rank in (-1, -2):
        with raises(TransitionRefused, "version_changed"):
            rig.store.set_priority(job_id, rank, rig.now, seen)

    assert rig.everything() == before


# -- move ------------------------------------------------------------------------------------------------------------


def test_a_job_can_be_moved_to_the_front(rig: Rig) -> None:
    first, second, third = rig.enqueue_many(3)
    answer = rig.store.move(third, FRONT, rig.now)

    assert answer == rig.job(third)
    assert rig.in_order() == [third, first, second]
    assert _claimed(rig) == [third, first, second]


def test_a_job_can_be_moved_to_the_back(rig: Rig) -> None:
    first, second, third = rig.enqueue_many(3)
    rig.store.move(first, BACK, rig.now)

    assert rig.in_order() == [second, third, first]


def test_a_job_can_be_moved_in_front_of_another(rig: Rig) -> None:
    first, second, third, fourth = rig.enqueue_many(4)
    rig.store.move(fourth, Place(before=second), rig.now)

    assert rig.in_order() == [first, fourth, second, third]


def test_a_job_can_be_moved_behind_another(rig: Rig) -> None:
    first, second, third, fourth = rig.enqueue_many(4)
    rig.store.move(first, Place(after=third), rig.now)

    assert rig.in_order() == [second, third, first, fourth]


def test_a_job_can_be_moved_in_front_of_the_first_and_behind_the_last(rig: Rig) -> None:
    first, second, third = rig.enqueue_many(3)
    rig.store.move(second, Place(before=first), rig.now)
    rig.store.move(first, Place(after=third), rig.now)

    assert rig.in_order() == [second, third, first]


def test_a_job_moved_next_to_itself_stays(rig: Rig) -> None:
    first, second = rig.enqueue_many(2)
    before = rig.everything()
    rig.store.move(first, Place(after=first), rig.now)
    rig.store.move(second, Place(before=second), rig.now)

    assert rig.everything() == before


def test_the_first_job_moved_to_the_front_stays(rig: Rig) -> None:
    first, _ = rig.enqueue_many(2)
    before = rig.everything()
    rig.store.move(first, FRONT, rig.now)

    assert rig.everything() == before


def test_a_new_job_stands_behind_all_that_were_moved_to_the_back(rig: Rig) -> None:
    ids = rig.enqueue_many(4)
    rig.store.move(ids[0], BACK, rig.now)
    rig.store.move(ids[1], Place(after=ids[0]), rig.now)
    rig.store.move(ids[2], Place(after=ids[1]), rig.now)
    rig.store.move(ids[3], Place(after=ids[2]), rig.now)
    new = rig.enqueue()

    assert rig.in_order() == [*ids, new]


def test_a_move_stays_within_the_priority(rig: Rig) -> None:
    high = rig.enqueue(priority=1)
    first, second = rig.enqueue_many(2)
    rig.store.move(second, FRONT, rig.now)

    assert rig.in_order() == [high, second, first]


def test_a_moved_job_that_waits_has_its_new_place_when_it_is_queued(rig: Rig) -> None:
    first, second, third = rig.enqueue_many(3)
    rig.pause(third)
    rig.store.move(third, Place(before=second), rig.now)
    rig.resume(third)

    assert rig.in_order() == [first, third, second]


def test_a_spent_gap_is_respaced_and_the_order_of_the_others_stays(rig: Rig) -> None:
    ids = rig.enqueue_many(12)
    first, order = ids[0], list(ids)
    for _ in range(3):
        for job_id in ids[2:]:
            rig.store.move(job_id, Place(after=first), rig.now)
            order.remove(job_id)
            order.insert(1, job_id)
            assert rig.in_order() == order

    new = rig.enqueue()
    assert rig.in_order() == [*order, new]


def test_a_new_job_stands_behind_all_that_a_respacing_shifted(rig: Rig) -> None:
    ids = rig.enqueue_many(12)
    last = rig.job(ids[-1]).position
    dense = "UPDATE {ready} SET position = :last - (:last - position) / 100 WHERE queue = :queue"
    rig.execute(dense, last=last, queue=rig.queue)
    rig.store.move(ids[-1], Place(after=ids[0]), rig.now)
    new = rig.enqueue()

    assert rig.in_order() == [ids[0], ids[-1], *ids[1:-1], new]


def test_a_spent_gap_is_respaced_towards_the_front_too(rig: Rig) -> None:
    ids = rig.enqueue_many(12)
    last, order = ids[-1], list(ids)
    for _ in range(3):
        for job_id in ids[:-2]:
            rig.store.move(job_id, Place(before=last), rig.now)
            order.remove(job_id)
            order.insert(-1, job_id)
            assert rig.in_order() == order


@each("before", "after")
def test_whom_a_respacing_shifts_has_changed(rig: Rig, side: str) -> None:
    """So a decision based on the old place of a neighbour is refused: its version has changed."""
    ids = rig.enqueue_many(4)
    start = rig.job(ids[0]).position
    dense = "UPDATE {ready} SET position = :start + (position - :start) / 100 WHERE queue = :queue"
    rig.execute(dense, start=start, queue=rig.queue)
    seen = {job_id: rig.job(job_id) for job_id in ids}
    rig.clock.advance(seconds=1)
    moved, place = (ids[0], Place(before=ids[3])) if side == "before" else (ids[3], Place(after=ids[0]))
    rig.store.move(moved, place, rig.now)

    now = {job_id: rig.job(job_id) for job_id in ids}
    shifted = [job_id for job_id in ids if now[job_id].position != seen[job_id].position]
    assert len(shifted) > 1
    for job_id in ids:
        assert now[job_id].version == seen[job_id].version + (job_id in shifted)
        assert (rig.live(job_id).updated_at == rig.now) == (job_id in shifted)
    neighbour = next(job_id for job_id in shifted if job_id != moved)
    with raises(TransitionRefused, "version_changed"):
        rig.store.move(neighbour, BACK, rig.now, seen[neighbour].version)


def test_a_spent_gap_renumbers_at_most_64_neighbours(rig: Rig) -> None:
    ids = rig.enqueue_many(200)
    first, order = ids[0], list(ids)
    for job_id in ids[100:120]:
        before = _positions(rig)
        rig.store.move(job_id, Place(after=first), rig.now)
        order.remove(job_id)
        order.insert(1, job_id)
        after = _positions(rig)
        changed = [other for other in ids if after[other] != before[other] and other != job_id]
        assert len(changed) <= RESPACE

    assert rig.in_order() == order


def test_moves_in_the_middle_of_a_long_queue_keep_the_order(rig: Rig) -> None:
    chance = random.Random(11)
    ids = rig.enqueue_many(90)
    order = list(ids)
    for _ in range(120):
        job_id, target = chance.sample(ids[:10], 2)
        in_front = chance.random() < 0.5
        rig.store.move(job_id, Place(before=target) if in_front else Place(after=target), rig.now)
        order.remove(job_id)
        order.insert(order.index(target) + (not in_front), job_id)
    new = rig.enqueue()

    assert rig.in_order() == [*order, new]


def test_where_64_neighbours_stand_too_close_a_move_is_refused_and_moves_nobody(rig: Rig) -> None:
    ids = rig.enqueue_many(RESPACE + 3)
    rig.execute("UPDATE {ready} SET position = position / 100 WHERE queue = :queue", queue=rig.queue)
    before = rig.everything()

    with raises(TransitionRefused, "gap_spent"):
        rig.store.move(ids[-1], Place(after=ids[0]), rig.now)

    assert rig.everything() == before


@each(State.RUNNING, *sorted(FINAL))
def test_there_is_no_place_next_to_a_job_that_does_not_wait(rig: Rig, state: State) -> None:
    target = in_state(rig, state)
    job_id = rig.enqueue()
    before = rig.everything()

    with raises(TransitionRefused, "move_refused"):
        rig.store.move(job_id, Place(before=target), rig.now)

    assert rig.everything() == before


def test_there_is_no_place_next_to_a_job_of_another_priority_or_queue(rig: Rig) -> None:
    job_id, above = rig.enqueue(), rig.enqueue(priority=1)
    elsewhere = rig.enqueue(queue=rig.key("elsewhere"))
    before = rig.everything()

    for target in (above, elsewhere):
        with raises(TransitionRefused, "move_refused"):
            rig.store.move(job_id, Place(after=target), rig.now)

    assert rig.everything() == before


def test_there_is_no_place_next_to_a_job_that_is_not_there(rig: Rig) -> None:
    with raises(JobNotFound):
        rig.store.move(rig.enqueue(), Place(after=JobId(rig.ids.new())), rig.now)


def test_a_move_of_an_outdated_version_is_refused_and_moves_nobody(rig: Rig) -> None:
    ids = rig.enqueue_many(3)
    seen = rig.job(ids[2]).version
    rig.store.set_priority(ids[2], -1, rig.now)
    rig.store.set_priority(ids[2], 0, rig.now)
    rig.execute("UPDATE {ready} SET position = 50 WHERE queue = :queue", queue=rig.queue)
    before = rig.everything()

    for place in (FRONT, BACK, Place(after=ids[0]), Place(before=ids[1])):
        with raises(TransitionRefused, "version_changed"):
            rig.store.move(ids[2], place, rig.now, seen)

    assert rig.everything() == before
