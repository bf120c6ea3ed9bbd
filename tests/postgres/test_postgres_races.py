"""Many at once on PostgreSQL: nobody takes what another has, and whoever comes later obeys whoever came first."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import DatabaseBusy, Perdure
from perdure.ids import NodeId, RunId
from perdure.store.rows import Claimer, Lane, NewNode
from tests.app import by_hand
from tests.postgres.conftest import declare
from tests.postgres.processes import at_once, claim_all, threads_at_once

pytestmark = pytest.mark.postgres


def test_no_job_is_claimed_by_two_processes(app: Perdure, send: Any, postgres_url: str) -> None:
    jobs = app.enqueue_many([send.new(str(n)) for n in range(800)])
    claimed = at_once(claim_all, postgres_url, processes=4)
    assert sorted(job_id for share in claimed for job_id in share) == sorted(job.row.id for job in jobs)
    assert [len(list(app.runs(state=state))) for state in ("completed", "running")] == [800, 0]


def test_of_sixteen_threads_with_one_business_key_one_makes_the_job(app: Perdure, send: Any) -> None:
    keyed = send.options(business_key="b", conflict="return")
    answers = threads_at_once(lambda: keyed.enqueue("a"), 16)
    assert len({job.id for job in answers}) == len(list(app.jobs())) == 1
    assert sorted(job.deduplicated for job in answers) == [False] + [True] * 15


def test_of_sixteen_threads_with_one_idempotency_key_one_makes_the_job(app: Perdure, send: Any) -> None:
    keyed = send.options(idempotency_key="k")
    answers = threads_at_once(lambda: keyed.enqueue("a"), 16)
    assert len({job.id for job in answers}) == len(list(app.jobs())) == 1
    assert sorted(job.deduplicated for job in answers) == [False] + [True] * 15


def test_a_job_retried_by_many_at_once_gets_one_new_life(app: Perdure, send: Any) -> None:
    job = send.options(business_key="b").enqueue("a")
    by_hand.fail(app, queue="mail")
    answers = threads_at_once(lambda: app.retry(job), 8)
    assert [again.life for again in answers] == [2] * 8


def test_a_retry_waits_for_a_deletion_under_way(app: Perdure, send: Any, other: Perdure) -> None:
    job = send.enqueue("a")
    app.cancel(job)
    with app.transaction():
        app.delete(job)
        with pytest.raises(DatabaseBusy):
            other.retry(job)


def test_a_deletion_waits_for_a_retry_under_way(app: Perdure, send: Any, other: Perdure) -> None:
    job = send.enqueue("a")
    app.cancel(job)
    with app.transaction():
        app.retry(job)
        with pytest.raises(DatabaseBusy):
            other.delete(job)


def test_a_long_transaction_keeps_no_other_enqueuer_out(app: Perdure, send: Any, other: Perdure) -> None:
    send.enqueue("first")
    with app.transaction():
        send.enqueue("slow")
        quick = declare(other).enqueue("quick")
        assert other.get(quick) == quick


def test_claims_and_enqueues_do_not_wait_for_each_other(app: Perdure, send: Any, other: Perdure) -> None:
    send.enqueue("a")
    declare(other).enqueue("b")
    with app.transaction():
        send.enqueue("c")
        assert len(by_hand.claim(other, "mail")) == 2
    with app.transaction():
        assert len(by_hand.claim(app, "mail")) == 1
        assert declare(other).enqueue("d").state == "queued"


def test_a_claim_passes_over_jobs_that_someone_is_changing(app: Perdure, send: Any, other: Perdure) -> None:
    held, free = app.enqueue_many([send.new("a"), send.new("b")])
    with app.transaction():
        app.pause(held)
        assert [taken.job_id for taken in by_hand.claim(other, "mail")] == [free.row.id]


def test_a_pause_waits_for_claims_under_way(app: Perdure, send: Any, other: Perdure) -> None:
    send.enqueue("a")
    with app.transaction():
        assert len(by_hand.claim(app, "mail")) == 1
        with pytest.raises(DatabaseBusy):
            other.queues.pause("mail")


@pytest.mark.parametrize("queue", ["mail", "*"])
def test_a_claim_passes_over_a_queue_that_is_being_paused(app: Perdure, send: Any, other: Perdure, queue: str) -> None:
    app.queues.pause(queue)
    app.queues.resume(queue)
    send.enqueue("a")
    with app.transaction():
        app.queues.pause(queue)
        assert by_hand.claim(other, "mail") == []
    assert by_hand.claim(other, "mail") == []
    with app.transaction():
        app.queues.resume(queue)
        assert by_hand.claim(other, "mail") == []
    assert len(by_hand.claim(other, "mail")) == 1


def test_a_node_is_not_declared_dead_in_the_middle_of_its_claim(app: Perdure, send: Any, other: Perdure) -> None:
    send.enqueue("a")
    with app.transaction():
        [taken] = by_hand.claim(app, "mail")
    assert taken.live.node_id is not None
    claimer = Claimer(taken.live.node_id, None, [RunId(app.ids.new())], 1_000_000)
    send.enqueue("b")
    with app.transaction():
        assert len(app.store.claim([Lane("mail", 1)], claimer, app.clock.now())) == 1
        with pytest.raises(DatabaseBusy):
            other.store.stop(taken.live.node_id, "crash", other.clock.now())


def test_a_claim_waits_to_hear_whether_its_node_is_dead(app: Perdure, send: Any, other: Perdure) -> None:
    send.enqueue("a")
    node, now = NodeId(app.ids.new()), app.clock.now()
    app.store.register(NewNode(node, now))
    claimer = Claimer(node, None, [RunId(app.ids.new())], 1_000_000)
    with app.transaction():
        app.store.stop(node, "crash", now)
        with pytest.raises(DatabaseBusy):
            other.store.claim([Lane("mail", 1)], claimer, now)
    assert other.store.claim([Lane("mail", 1)], claimer, now) == []


def test_looking_at_a_job_waits_for_nobody(app: Perdure, send: Any, other: Perdure) -> None:
    job = send.enqueue("a")
    with app.transaction():
        app.pause(job)
        live = other.store.live(job.row.id)
        assert live is not None
        assert live.state == "queued"
