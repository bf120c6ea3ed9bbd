"""Whole queues. Protocol `QueueOperations`."""

from __future__ import annotations

from perdure.job.reports import Completed
from perdure.store.rows import FinishStatus, QueueRow
from perdure.testing.contract.rig import Rig


def _queue(rig: Rig, name: str | None = None) -> QueueRow:
    [found] = [queue for queue in rig.store.queues() if queue.name == (name or rig.queue)]
    return found


def test_a_queue_is_listed_once_it_was_used(rig: Rig) -> None:
    assert rig.queue not in [queue.name for queue in rig.store.queues()]

    rig.cancel(rig.enqueue())
    assert _queue(rig) == QueueRow(rig.queue, None, None, None, 0, 0, 0)


def test_queues_are_listed_by_name(rig: Rig) -> None:
    for name in ("b", "a", "c"):
        rig.enqueue(queue=rig.key(name))
    names = [queue.name for queue in rig.store.queues()]

    assert [name for name in names if name.endswith(rig.mark)] == [rig.key(name) for name in ("a", "b", "c")]


def test_the_jobs_of_a_queue_are_counted(rig: Rig) -> None:
    rig.enqueue_many(5)
    claims = rig.claim(2)
    rig.finish(claims[0], Completed())
    rig.enqueue(delay_s=9)
    rig.pause(rig.in_order()[0])
    rig.enqueue(queue=rig.key("other"))

    queue = _queue(rig)
    assert (queue.queued, queue.running, queue.live) == (2, 1, 5)


def test_a_paused_queue_says_since_when(rig: Rig) -> None:
    since = rig.now
    rig.store.pause_queue(rig.queue, since)
    assert _queue(rig).paused_at == since

    rig.clock.advance(seconds=5)
    rig.store.pause_queue(rig.queue, rig.now)
    assert _queue(rig).paused_at == since


def test_a_resumed_queue_is_not_paused(rig: Rig) -> None:
    rig.store.pause_queue(rig.queue, rig.now)
    rig.store.pause_queue(rig.queue, None)
    rig.store.pause_queue(rig.queue, None)

    assert _queue(rig).paused_at is None


def test_a_queue_can_be_paused_before_its_first_job(rig: Rig) -> None:
    rig.store.pause_queue(rig.queue, rig.now)
    first, second = rig.enqueue_many(2)
    assert rig.claim() == []

    rig.store.pause_queue(rig.queue, None)
    assert [claim.job_id for claim in rig.claim(5)] == [first, second]


def test_running_jobs_of_a_paused_queue_continue(rig: Rig) -> None:
    claim = rig.start()
    rig.store.pause_queue(rig.queue, rig.now)

    assert rig.finish(claim, Completed()).status == FinishStatus.APPLIED


def test_jobs_can_be_enqueued_into_a_paused_queue(rig: Rig) -> None:
    rig.store.pause_queue(rig.queue, rig.now)
    ids = rig.enqueue_many(2)

    assert rig.in_order() == ids
    assert _queue(rig).queued == 2
