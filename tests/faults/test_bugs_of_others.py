"""Lost jobs and double runs that users of other queues have met, as tests. Each names where it was reported."""

from __future__ import annotations

import threading
from typing import TypeVar

import pytest

from perdure import DatabaseUnavailable, JobContext, Perdure, Retry
from perdure.ids import NodeId, RunId
from perdure.job.model import Claim
from perdure.store.engine import Op, Pair, Tell
from perdure.store.rows import Claimer, Lane, NewNode
from perdure.store.store import SqlStore
from perdure.testing.contract.faults import NEVER, FailingRunner
from perdure.upkeep.rescue import BATCH, Rescuer
from perdure.worker.options import WorkerOptions
from tests.faults.scene import Listener, Scene, count, until
from tests.history import ended, started

T = TypeVar("T")


def declare(scene: Scene, app: Perdure) -> None:
    @app.job
    async def step(ctx: JobContext) -> int:
        started(scene.notes, ctx)
        ended(scene.notes, ctx)
        return ctx.attempt


class BreaksOnce(FailingRunner):
    """The nth call of a write fails; after that all is well again."""

    broken = 0

    def _throw(self, op: Op[T]) -> Pair | Tell:
        self.nth = NEVER
        self.broken += 1
        return super()._throw(op)


def breaking_once(app: Perdure) -> BreaksOnce:
    """Put such a runner behind the app."""
    assert isinstance(app.store, SqlStore)
    runner = BreaksOnce(app.store.runner, NEVER)
    app.__dict__["store"] = SqlStore(runner)
    return runner


def claimed_by_another(app: Perdure, jobs: int) -> tuple[NodeId, list[Claim]]:
    """What a node of another machine has claimed."""
    node = NodeId(app.ids.new())
    app.store.register(NewNode(node, app.clock.now()))
    claimer = Claimer(node, None, [RunId(run_id) for run_id in app.ids.new_many(jobs)], 0)
    return node, app.store.claim([Lane("default", jobs)], claimer, app.clock.now())


@pytest.mark.parametrize("nth", [1, 2, 3, 4, 6])
def test_a_failure_among_due_jobs_loses_none_of_them(scene: Scene, listener: Listener, nth: int) -> None:
    """huey#915: due tasks were taken off the schedule, then queued one by one; an error in between lost the rest."""
    app = scene.app()
    declare(scene, app)
    runner = breaking_once(app)
    with app.worker(concurrency=4).running():
        scene.sent(*app.enqueue_many([app.kinds.get("step").options(delay=0.2).new() for _ in range(20)]))
        runner.nth = nth  # of whatever is written next: the turn that promotes, at the latest
        until(lambda: count(app, "completed") == 20)
    assert runner.broken == 1


def test_jobs_far_ahead_and_jobs_longer_than_the_lease_run_once(scene: Scene) -> None:
    """kombu#337, celery#3270: a task due later than the visibility time-out was delivered to worker after worker.
    apscheduler#864: a lease that nobody renewed, so that a long job was run again beside itself."""
    apps = [scene.app(lease_s=0.6) for _ in range(3)]
    first, over = apps[0], threading.Event()
    for app in apps:
        declare(scene, app)

        @app.job
        def long(ctx: JobContext) -> int:
            started(scene.notes, ctx)
            over.wait()
            ended(scene.notes, ctx)
            return ctx.attempt

    leases = [one.worker(concurrency=3) for one in apps]
    with leases[0].running(), leases[1].running(), leases[2].running():
        (ahead,) = scene.sent(first.enqueue("step", delay=3.0))
        (now,) = scene.sent(first.enqueue("long"))
        until(lambda: all(node.beat >= 30 for node in first.store.live_nodes()), "five leases have passed")
        over.set()
        assert [first.wait(job, 60).result for job in (ahead, now)] == [1, 1]
    assert all(sum(1 for _ in first.runs(job)) == 1 for job in (ahead, now))


def test_a_retry_keeps_its_key_and_meets_no_other_holder(scene: Scene) -> None:
    """procrastinate#1543: while a job waited for its retry another took the lock, and the retry broke the database."""
    app = scene.app()
    failed = threading.Event()

    @app.job(retry=Retry(max_attempts=2, backoff="fixed", base=1, jitter=0))
    def work(ctx: JobContext) -> int:
        started(scene.notes, ctx)
        if ctx.attempt == 1:
            failed.set()
            raise ValueError("once")
        ended(scene.notes, ctx)
        return ctx.attempt

    (job,) = scene.sent(work.options(business_key="only one").enqueue())
    with app.worker().running():
        failed.wait()
        until(lambda: app.existing(job).state == "scheduled")
        second = work.options(business_key="only one", conflict="return").enqueue()
        assert second.deduplicated
        assert second.id == job.id
        assert app.wait(job, 60).result == 2
        (third,) = scene.sent(work.options(business_key="only one").enqueue())
        assert not third.deduplicated
        assert app.wait(third, 60).state == "completed"


def test_the_key_of_a_dead_nodes_job_is_freed_with_it(scene: Scene) -> None:
    """pgqueuer#475: what a dead worker held counted against the limit for ever."""
    app = scene.app()
    declare(scene, app)
    (job,) = scene.sent(app.enqueue("step", business_key="one"))
    node, _ = claimed_by_another(app, 1)
    assert app.enqueue("step", business_key="one", conflict="return").id == job.id
    assert app.store.stop(node, "crash", app.clock.now())
    app.worker().run(until_idle=True)
    assert app.wait(job, 10).result == 2
    (after,) = scene.sent(app.enqueue("step", business_key="one"))
    app.worker().run(until_idle=True)
    assert app.existing(after).state == "completed"


def test_the_jobs_of_a_node_that_nobody_remembers_are_rescued(scene: Scene) -> None:
    """procrastinate#1518: once the row of a silent worker was pruned, nobody looked for its jobs any more."""
    app = scene.app()
    declare(scene, app)
    jobs = scene.sent(*(app.enqueue("step") for _ in range(5)))
    claimed_by_another(app, 5)
    with app.transaction() as tx:
        tx.execute("DELETE FROM perdure_node")
    app.worker().run(until_idle=True)
    assert [app.existing(job).state for job in jobs] == ["completed"] * 5


def test_a_rescue_that_breaks_off_is_finished_by_the_next(scene: Scene) -> None:
    """dbos#716: the database went away in the middle of the recovery at start; what was left stayed so for good."""
    app = scene.app()
    declare(scene, app)
    jobs = scene.sent(*app.enqueue_many([app.kinds.get("step").new() for _ in range(2 * BATCH + 50)]))
    node, _ = claimed_by_another(app, len(jobs))
    app.store.stop(node, "crash", app.clock.now())
    own = NodeId(app.ids.new())
    app.store.register(NewNode(own, app.clock.now()))
    rescuer = Rescuer(app.parts(), WorkerOptions())
    assert isinstance(app.store, SqlStore)
    broken = SqlStore(FailingRunner(app.store.runner, 3, DatabaseUnavailable))
    with pytest.raises(DatabaseUnavailable):
        Rescuer(app.parts()._replace(store=broken), WorkerOptions()).look(own)
    assert count(app, "running") == len(jobs), "a batch is taken back as a whole or not at all"
    assert rescuer.look(own) == len(jobs)
    assert rescuer.look(own) == 0
    app.worker(concurrency=50).run(until_idle=True)
    assert count(app, "completed") == len(jobs)


def test_a_worker_is_not_deaf_after_its_file_was_closed_under_it(scene: Scene) -> None:
    """celery#8030, saq#162, graphile-worker#541: the connection broke and came back, the worker went on listening to
    the old one."""
    app = scene.app()
    declare(scene, app)
    other = scene.app()
    declare(scene, other)
    with app.worker().running():
        for _ in range(3):
            (job,) = scene.sent(other.enqueue("step"))
            assert app.wait(job, 60).result == 1
            app.close()
            other.close()
