"""A job's life on PostgreSQL, through the same operations and statements as on SQLite."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from perdure import JobNotFound, KeyConflict, Perdure, TransitionRefused, Unique
from perdure.ids import JobId, NodeId, RunId
from perdure.job.model import Failure
from perdure.job.reports import Completed, Failed
from perdure.job.views import Job
from perdure.store.rows import Claimer, FinishStatus, Lane, LogLine, NewNode, Process, RunFilter
from tests.app import by_hand

pytestmark = pytest.mark.postgres

NASTY = "\u202eü\0'\""
OOPS = Failure("ValueError", "oops", "Traceback …")


def queued(app: Perdure, queue: str = "mail") -> list[Job]:
    return list(app.jobs(state="queued", queue=queue))


def existing(app: Perdure, job: Job) -> Job:
    found = app.get(job)
    assert found is not None
    return found


# -- enqueue ---------------------------------------------------------------------------------------------------------


def test_a_job_is_read_back_as_it_was_enqueued(app: Perdure, send: Any) -> None:
    job = send.options(tags=["a", "b"], priority=3, principal="ann", params={"x": 1}).enqueue("ann", subject=NASTY)
    found = existing(app, job)
    assert (found.row, found.tags, found.payload) == (job.row, ("a", "b"), {"to": "ann", "subject": NASTY})


def test_jobs_start_in_the_order_they_were_enqueued(app: Perdure, send: Any) -> None:
    first = send.enqueue("a")
    batch = app.enqueue_many([send.new(str(n)) for n in range(50)])
    last = send.enqueue("z")
    assert queued(app) == [first, *batch, last]


def test_a_higher_priority_goes_first(app: Perdure, send: Any) -> None:
    low, high = send.enqueue("low"), send.options(priority=1).enqueue("high")
    assert queued(app) == [high, low]


async def _aenqueue(send: Any) -> Job:
    job: Job = await send.aenqueue("a")
    return job


def test_a_coroutine_enqueues(app: Perdure, send: Any) -> None:
    job = asyncio.run(_aenqueue(send))
    assert queued(app) == [job]


# -- claim and finish ------------------------------------------------------------------------------------------------


def test_a_claimed_job_runs_and_completes(app: Perdure, send: Any) -> None:
    job = send.enqueue("a")
    [taken] = by_hand.claim(app, "mail")
    assert (existing(app, job).state, taken.payload) == ("running", '{"to":"a"}')
    [answer] = by_hand.finish(app, [taken], Completed('"done"'))
    assert (answer.status, existing(app, job).state, existing(app, job).result) == (
        FinishStatus.APPLIED,
        "completed",
        "done",
    )
    assert [run.state for run in app.runs(job)] == ["completed"]


def test_a_finish_told_twice_is_written_once(app: Perdure, send: Any) -> None:
    send.enqueue("a")
    taken = by_hand.claim(app, "mail")
    by_hand.finish(app, taken, Completed())
    assert [said.status for said in by_hand.finish(app, taken, Completed())] == [FinishStatus.ALREADY]


def test_a_stale_holder_cannot_finish(app: Perdure, send: Any) -> None:
    job = send.enqueue("a")
    [stale] = by_hand.claim(app, "mail")
    assert stale.live.node_id is not None
    app.store.stop(stale.live.node_id, "crash", app.clock.now())
    app.store.rescue(stale.live.node_id, OOPS, 3, [JobId(app.ids.new())], app.clock.now())
    [fresh] = by_hand.claim(app, "mail")
    assert [said.status for said in by_hand.finish(app, [stale], Completed())] == [FinishStatus.LOST]
    by_hand.finish(app, [fresh], Completed('"mine"'))
    assert existing(app, job).result == "mine"


def test_a_failed_attempt_is_tried_again_when_it_is_due(app: Perdure, send: Any) -> None:
    job = send.enqueue("a")
    by_hand.finish(app, by_hand.claim(app, "mail"), Failed(OOPS, delay_us=10_000_000))
    assert (existing(app, job).state, existing(app, job).attempts) == ("scheduled", 1)
    now = app.clock.now()
    assert app.store.promote(now, 10) == 0
    assert app.store.promote(type(now)(now + 10_000_000), 10) == 1
    assert existing(app, job).state == "queued"


def test_a_failure_that_holds_a_nul_is_kept(app: Perdure, send: Any) -> None:
    job = send.enqueue("a")
    by_hand.fail(app, "before\0after", "mail")
    assert existing(app, job).error == "before␀after"


def test_a_job_of_an_unknown_kind_is_parked_and_taken_by_who_knows_it(app: Perdure, send: Any) -> None:
    job = send.enqueue("a")
    node = NodeId(app.ids.new())
    app.store.register(NewNode(node, app.clock.now()))

    def claim(kinds: dict[str, int]) -> int:
        runs = list(map(RunId, app.ids.new_many(5)))
        return len(app.store.claim([Lane("mail", 5)], Claimer(node, kinds, runs, 1_000_000), app.clock.now()))

    assert (claim({}), existing(app, job).state) == (0, "parked")
    assert (claim({"send": 1}), existing(app, job).state) == (1, "running")


def test_log_lines_and_artifacts_are_kept_with_the_run(app: Perdure, send: Any) -> None:
    job = send.enqueue("a")
    [taken] = by_hand.claim(app, "mail")
    line = LogLine(taken.run_id, 1, taken.job_id, app.clock.now(), "info", "hello", None)
    app.store.append_log([line, line])
    app.store.append_artifacts(taken.run_id, ["a.txt"])
    app.store.append_artifacts(taken.run_id, ["b.txt"])
    assert app.store.log(job.row.id, None, 10) == [line]
    assert [run.row.artifacts for run in app.store.runs(RunFilter(job.row.id), None, 5).items] == ['["a.txt", "b.txt"]']


# -- decisions -------------------------------------------------------------------------------------------------------


def test_a_cancelled_job_stays_cancelled(app: Perdure, send: Any) -> None:
    job = send.enqueue("a")
    assert app.cancel(job).state == app.cancel(job).state == "cancelled"
    assert queued(app) == []


def test_a_running_job_is_asked_to_stop(app: Perdure, send: Any) -> None:
    job = send.enqueue("a")
    [taken] = by_hand.claim(app, "mail")
    assert app.cancel(job).state == "running"
    by_hand.finish(app, [taken], Failed(OOPS))
    assert existing(app, job).state == "cancelled"


def test_a_paused_job_is_not_claimed_before_it_is_resumed(app: Perdure, send: Any) -> None:
    job = send.enqueue("a")
    assert (app.pause(job).state, by_hand.claim(app, "mail")) == ("paused", [])
    assert (app.resume(job).state, len(by_hand.claim(app, "mail"))) == ("queued", 1)


def test_a_job_is_moved_between_any_two_others(app: Perdure, send: Any) -> None:
    a, b, c, d = app.enqueue_many([send.new(name) for name in "abcd"])
    app.move(d, before=b)
    app.move(a, to="back")
    app.move(c, to="front")
    assert [job.id for job in queued(app)] == [c.id, d.id, b.id, a.id]


def test_a_spent_gap_makes_room(app: Perdure, send: Any) -> None:
    first, *others = app.enqueue_many([send.new(str(n)) for n in range(12)])
    for job in others:
        app.move(job, after=first)
    assert [job.id for job in queued(app)] == [first.id, *(job.id for job in reversed(others))]


def test_a_new_priority_is_a_new_place(app: Perdure, send: Any) -> None:
    a, b = app.enqueue_many([send.new("a"), send.new("b")])
    assert app.set_priority(b, 9).priority == 9
    assert [job.id for job in queued(app)] == [b.id, a.id]


def test_a_superseded_job_leaves_its_key_to_the_replacement(app: Perdure, send: Any) -> None:
    old = send.options(business_key="order-7").enqueue("a")
    gone = app.supersede(old, send.new("b"))
    new = app.get(gone.superseded_by or "")
    assert new is not None
    assert (gone.state, new.state, new.business_key) == ("cancelled", "queued", "order-7")


def test_the_replacement_of_a_running_job_waits_for_its_end(app: Perdure, send: Any) -> None:
    old = send.enqueue("a")
    taken = by_hand.claim(app, "mail")
    replacement = app.supersede(old, send.new("b")).superseded_by or ""
    assert [job.state for job in [app.get(replacement)] if job] == ["blocked"]
    by_hand.finish(app, taken, Failed(OOPS))
    assert [job.state for job in [app.get(replacement)] if job] == ["queued"]


def test_a_failed_job_gets_a_new_life_by_hand(app: Perdure, send: Any) -> None:
    job = send.options(business_key="b").enqueue("a")
    by_hand.fail(app, queue="mail")
    again = app.retry(job)
    assert (again.state, again.life, again.attempts, app.retry(job).life) == ("queued", 2, 0, 2)


def test_any_ended_job_can_be_run_again_as_a_new_one(app: Perdure, send: Any) -> None:
    job = send.options(tags=["t"]).enqueue("a")
    by_hand.complete(app, queue="mail")
    again = app.retry(job, as_new=True)
    assert (again.state, again.retry_of, again.tags, again.payload) == ("queued", job.id, ("t",), {"to": "a"})
    with pytest.raises(TransitionRefused):
        app.retry(job)


def test_a_job_that_was_never_claimed_can_be_edited(app: Perdure, send: Any) -> None:
    job = send.enqueue("a")
    edited = app.edit(job, payload={"to": "b"}, tags=["x"], delay=timedelta(hours=1))
    assert (edited.payload, edited.tags, edited.state) == ({"to": "b"}, ("x",), "scheduled")


def test_a_deleted_job_leaves_only_its_idempotency_key(app: Perdure, send: Any) -> None:
    job = send.options(idempotency_key="k", tags=["t"]).enqueue("a")
    by_hand.complete(app, queue="mail")
    app.delete(job)
    assert (app.get(job), list(app.jobs()), list(app.runs())) == (None, [], [])
    assert send.options(idempotency_key="k").enqueue("a").deduplicated
    with pytest.raises(JobNotFound):
        app.delete(job)


# -- keys ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("begins", ["old", "new"])
def test_a_renamed_kind_and_its_old_release_make_one_job_together(app: Perdure, other: Perdure, begins: str) -> None:
    def work(x: int) -> None: ...

    kinds: list[Any] = [app.job(name="old")(work), other.job(name="new", aliases=["old"])(work)]
    first, second = kinds if begins == "old" else kinds[::-1]
    for options in ({"idempotency_key": "k"}, {"unique": Unique()}, {"unique": Unique(until="ever")}):
        job = first.options(**options).enqueue(1)
        assert second.options(**options).enqueue(1).id == job.id
    assert len(list(other.jobs(kind="new"))) == 3


def test_the_same_idempotency_key_gives_the_same_job(app: Perdure, send: Any) -> None:
    first = send.options(idempotency_key="k").enqueue("a")
    again = send.options(idempotency_key="k").enqueue("a")
    assert (again.id, again.deduplicated) == (first.id, True)
    with pytest.raises(KeyConflict):
        send.options(idempotency_key="k").enqueue("b")


def test_a_business_key_is_free_again_after_the_end(app: Perdure, send: Any) -> None:
    keyed = send.options(business_key="b")
    keyed.enqueue("a")
    with pytest.raises(KeyConflict):
        keyed.enqueue("b")
    by_hand.complete(app, queue="mail")
    assert not keyed.enqueue("c").deduplicated


def test_one_taken_key_keeps_the_whole_batch_out(app: Perdure, send: Any) -> None:
    send.options(business_key="b").enqueue("a")
    with pytest.raises(KeyConflict):
        app.enqueue_many([send.new("x"), send.options(business_key="b").new("y")])
    assert len(list(app.jobs())) == 1


# -- listings, queues, locks, nodes ----------------------------------------------------------------------------------


def test_listings_go_page_by_page_and_by_every_filter(app: Perdure, send: Any) -> None:
    jobs = app.enqueue_many([send.new(str(n)) for n in range(450)])
    special = send.options(tags=["t"], business_key="b", idempotency_key="k", queue="q").enqueue("a")
    assert [job.id for job in app.jobs()] == [special.id, *(job.id for job in reversed(jobs))]
    assert list(app.jobs(queue="mail", state="queued")) == jobs
    assert len(list(app.jobs(kind="send", owner="perdure", limit=300))) == 300
    only = [
        {"tag": "t"},
        {"business_key": "b"},
        {"idempotency_key": "k"},
        {"queue": "q"},
        {"since": special.created_at},
    ]
    assert [list(app.jobs(**wanted)) for wanted in only] == [[special]] * len(only)
    assert list(app.jobs(until=jobs[0].created_at)) == list(app.jobs(kind="nobody")) == []


def test_every_state_can_be_listed(app: Perdure, send: Any) -> None:
    send.enqueue("completed")
    by_hand.complete(app, queue="mail")
    send.enqueue("failed")
    by_hand.fail(app, queue="mail")
    send.enqueue("running")
    by_hand.claim(app, "mail")
    app.cancel(send.enqueue("cancelled"))
    app.pause(send.enqueue("paused"))
    send.options(delay=60).enqueue("scheduled")
    send.enqueue("queued")
    for state in ("completed", "failed", "running", "cancelled", "paused", "scheduled", "queued"):
        assert [job.payload for job in app.jobs(state=state)] == [{"to": state}]
    assert sorted(run.state for run in app.runs()) == ["completed", "failed", "running"]
    assert len(list(app.runs(state="failed", kind="send", owner="perdure"))) == 1


def test_nothing_is_claimed_from_a_paused_queue(app: Perdure, send: Any) -> None:
    send.enqueue("a")
    for queue in ("mail", "*"):
        app.queues.pause(queue)
        assert by_hand.claim(app, "mail") == []
        app.queues.resume(queue)
    assert len(by_hand.claim(app, "mail")) == 1
    assert [(queue.name, queue.running) for queue in app.queues.list()] == [("*", 0), ("mail", 1)]


def test_a_lock_has_one_holder_until_it_runs_out(app: Perdure) -> None:
    store, now = app.store, app.clock.now()
    later = type(now)(now + 2_000_000)
    assert (store.take_lock("x", "ann", now, 1_000_000), store.take_lock("x", "bob", now, 1_000_000)) == (True, False)
    assert (store.renew_lock("x", "ann", now, 1_000_000), store.lock_holder("x", now)) == (True, "ann")
    assert (store.take_lock("x", "bob", later, 1_000_000), store.release_lock("x", "ann")) == (True, False)
    assert store.release_lock("x", "bob")


def test_a_node_beats_until_it_is_declared_stopped(app: Perdure) -> None:
    node, now = NodeId(app.ids.new()), app.clock.now()
    app.store.register(NewNode(node, now, Process(host="h", pid=1), kinds='{"send": 1}'))
    assert app.store.beat(node, now)
    assert not app.store.stop(node, "crash", now, seen_beat=0)
    assert app.store.stop(node, "crash", now, seen_beat=1)
    assert not app.store.beat(node, now)
    assert [(row.id, row.beat, row.stop_reason) for row in app.store.nodes(5)] == [(node, 1, "crash")]


def test_a_stopped_node_claims_nothing(app: Perdure, send: Any) -> None:
    send.enqueue("a")
    node, now = NodeId(app.ids.new()), app.clock.now()
    app.store.register(NewNode(node, now))
    app.store.stop(node, "crash", now)
    claimer = Claimer(node, None, [RunId(app.ids.new())], 1_000_000)
    assert app.store.claim([Lane("mail", 1)], claimer, now) == []
