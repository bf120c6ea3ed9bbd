"""A user's open transaction keeps waiting who needs what it has locked, and nobody else: above all no whole worker."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from perdure import Job, JobContext, Perdure, Retry
from perdure.ids import JobId, NodeId, RunId
from perdure.job.model import Failure
from perdure.job.reports import Failed, Finish
from perdure.ops.doctor import examine, is_healthy
from perdure.store.rows import Claimer, Lane, NewNode
from tests.app import by_hand
from tests.postgres.conftest import declare
from tests.worker.patience import eventually

pytestmark = pytest.mark.postgres

Connection = psycopg.Connection[Any]


class Desk:
    """A worker at work, one job of which is about to end, and a user with a transaction of his own."""

    def __init__(self, app: Perdure, user: Connection, url: str) -> None:
        self.app = app
        self.url = url
        self.user = user
        self.started = threading.Event()
        self.go = threading.Event()
        self.send = declare(app)
        self.child: Callable[[JobContext], object] = lambda _ctx: None

        @app.job(retry=Retry(1))
        def work(ctx: JobContext) -> None:
            self.started.set()
            self.go.wait()
            self.child(ctx)

        @app.job(queue="others")
        def other() -> None: ...

        self.work = work
        self.other = other

    def state(self, job: Job) -> str:
        return self.app.existing(job).state


@pytest.fixture
def user(postgres_url: str) -> Iterator[Connection]:
    with psycopg.connect(postgres_url) as connection:
        yield connection
        connection.rollback()


@pytest.fixture
def desk(app: Perdure, user: Connection, postgres_url: str) -> Desk:
    app.store.upgrade()
    return Desk(app, user, postgres_url)


# -- what a user can lock that the end of a job needs ---------------------------------------------------------------


def the_job_by_a_cancel(desk: Desk, job: Job) -> None:
    desk.app.cancel(job, tx=desk.user)


def the_job_by_its_replacement(desk: Desk, job: Job) -> None:
    desk.app.supersede(job, desk.other.new(), tx=desk.user)


def a_business_key_of_its_child(desk: Desk, job: Job) -> None:
    desk.send.options(business_key="b", tx=desk.user).enqueue("user")
    desk.child = lambda ctx: ctx.enqueue(desk.send.options(business_key="b", conflict="return"), "child")


def an_idempotency_key_of_its_child(desk: Desk, job: Job) -> None:
    desk.send.options(idempotency_key="k", tx=desk.user).enqueue("same")
    desk.child = lambda ctx: ctx.enqueue(desk.send.options(idempotency_key="k"), "same")


def a_key_that_is_being_let_go(desk: Desk, job: Job) -> None:
    held = desk.send.options(business_key="b", delay=3600).enqueue("held")
    desk.app.cancel(held, tx=desk.user)
    desk.child = lambda ctx: ctx.enqueue(desk.send.options(business_key="b", conflict="return"), "child")


def its_dependent(desk: Desk, job: Job) -> None:
    desk.app.supersede(job, desk.other.new())
    replacement = desk.app.existing(job).superseded_by
    assert replacement is not None
    desk.app.set_priority(replacement, 5, tx=desk.user)


def the_edge_to_its_dependent(desk: Desk, job: Job) -> None:
    desk.app.supersede(job, desk.other.new())
    replacement = desk.app.existing(job).superseded_by
    assert replacement is not None
    desk.app.cancel(replacement)
    desk.app.delete(replacement, tx=desk.user)


LOCKS = (
    the_job_by_a_cancel,
    the_job_by_its_replacement,
    a_business_key_of_its_child,
    an_idempotency_key_of_its_child,
    a_key_that_is_being_let_go,
    its_dependent,
    the_edge_to_its_dependent,
)


@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.__name__)
def test_an_end_that_meets_a_lock_waits_alone(desk: Desk, lock: Callable[[Desk, Job], None], end: str) -> None:
    app = desk.app
    job = desk.work.enqueue()
    with app.worker(concurrency=4).running() as worker:
        assert desk.started.wait(60)
        lock(desk, job)
        desk.go.set()
        before = desk.other.enqueue_many([{} for _ in range(3)])
        eventually(lambda: all(app.existing(one).is_final for one in before))
        after = desk.other.enqueue()
        eventually(lambda: app.existing(after).is_final)
        assert desk.state(job) == "running"
        assert worker.health().healthy
        getattr(desk.user, end)()
        eventually(lambda: app.existing(job).is_final)
        eventually(lambda: not list(app.jobs(state="blocked")))
    assert is_healthy(examine(app.store)), examine(app.store)


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_ends_of_other_jobs_go_on_in_the_same_turn(desk: Desk, end: str) -> None:
    """Of twenty that end together one is locked."""
    app = desk.app
    jobs = desk.work.enqueue_many([{} for _ in range(20)])
    with app.worker(concurrency=20).running():
        eventually(lambda: len(list(app.jobs(state="running"))) == 20)
        app.cancel(jobs[7], tx=desk.user)
        desk.go.set()
        eventually(lambda: [job for job in jobs if not app.existing(job).is_final] == [jobs[7]])
        getattr(desk.user, end)()
        eventually(lambda: app.existing(jobs[7]).is_final)
    assert app.existing(jobs[7]).state == "completed"
    assert is_healthy(examine(app.store))


def test_a_dead_nodes_jobs_are_rescued_around_a_lock(desk: Desk) -> None:
    """The end of one of them needs a dependent that somebody has locked."""
    app = desk.app
    locked, free = desk.work.enqueue_many([{}, {}])
    taken = by_hand.claim(app)
    assert len(taken) == 2
    its_dependent(desk, locked)
    for claim in taken:
        assert claim.live.node_id is not None
        app.store.stop(claim.live.node_id, "crash", app.clock.now())
    with app.worker().running():
        eventually(lambda: app.existing(free).is_final)
        assert desk.state(locked) == "running"
        desk.user.rollback()
        eventually(lambda: app.existing(locked).is_final)
    assert (desk.state(locked), desk.state(free)) == ("cancelled", "failed")


def test_artifacts_of_a_run_that_somebody_is_deleting_stop_nobody(desk: Desk) -> None:
    app = desk.app
    job = desk.work.enqueue()
    desk.child = lambda ctx: ctx.artifact("late.txt")
    with app.worker(concurrency=4).running():
        assert desk.started.wait(60)
        live = app.store.live(job.row.id)
        assert live is not None
        failed = Failed(Failure("Gone", "closed by another", permanent=True))
        app.store.finish([Finish(live, failed, JobId(app.ids.new()))], app.clock.now())
        app.delete(job, tx=desk.user)
        desk.go.set()
        others = desk.other.enqueue_many([{} for _ in range(3)])
        eventually(lambda: all(app.existing(one).is_final for one in others))
        desk.user.commit()
    assert app.get(job) is None
    assert is_healthy(examine(app.store))


def test_a_lock_on_the_nodes_own_row_is_no_outage(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    app = desk.app
    with app.worker(concurrency=4).running(), psycopg.connect(desk.url, autocommit=True) as watcher:
        desk.user.execute("SELECT 1 FROM perdure.node FOR UPDATE")
        job = desk.other.enqueue()
        waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'SELECT r.job_id%'"
        eventually(lambda: watcher.execute(waiting).fetchone())
        eventually(lambda: not watcher.execute(waiting).fetchone())
        eventually(lambda: watcher.execute(waiting).fetchone())
        desk.user.rollback()
        eventually(lambda: app.existing(job).is_final)
    assert "the database could not be reached" not in caplog.text


# -- the first job of a queue ----------------------------------------------------------------------------------------


class Undo(Exception):
    """Rolls a transaction back."""


@pytest.mark.parametrize("rolled_back", [False, True])
def test_the_first_job_of_a_queue_keeps_nobody_waiting(
    app: Perdure, send: Any, other: Perdure, rolled_back: bool
) -> None:
    theirs = declare(other)
    try:
        with app.transaction():
            send.enqueue("slow")
            quick = theirs.enqueue("quick")
            assert other.queues.list()[0].queued == 1
            assert other.worker().run(until_idle=True) == 0
            assert other.existing(quick).state == "completed"
            theirs.enqueue("left")
            if rolled_back:
                raise Undo
    except Undo:
        pass
    assert [(queue.name, queue.queued) for queue in other.queues.list()] == [("mail", 1 if rolled_back else 2)]
    assert is_healthy(examine(other.store))
    other.queues.pause("mail")
    assert by_hand.claim(other, "mail") == []
    other.queues.resume("mail")
    assert other.worker().run(until_idle=True) == 0
    assert len(list(other.jobs(state="completed"))) == (2 if rolled_back else 3)


def test_a_job_parked_in_a_queue_without_a_row_is_found_by_who_knows_it(
    app: Perdure, send: Any, other: Perdure
) -> None:
    with pytest.raises(Undo), app.transaction():
        send.enqueue("slow")
        quick = declare(other).enqueue("quick")
        raise Undo
    node, now = NodeId(app.ids.new()), app.clock.now()
    app.store.register(NewNode(node, now))
    assert app.store.claim([Lane("mail", 1)], Claimer(node, {}, [RunId(app.ids.new())], 1_000_000), now) == []
    assert other.existing(quick).state == "parked"
    assert other.worker().run(until_idle=True) == 0
    assert other.existing(quick).state == "completed"


def test_a_first_pause_of_an_unknown_queue_keeps_no_enqueuer_waiting(app: Perdure, send: Any, other: Perdure) -> None:
    with app.transaction():
        app.queues.pause("mail")
        declare(other).enqueue("quick")
    assert by_hand.claim(other, "mail") == []
    assert other.queues.list()[0].queued == 1


def test_a_child_into_a_queue_whose_first_job_is_not_committed_waits_for_nothing(desk: Desk) -> None:
    app = desk.app
    job = desk.work.enqueue()
    desk.child = lambda ctx: ctx.enqueue(desk.send.options(queue="fresh"), "child")
    with app.worker(concurrency=4).running():
        assert desk.started.wait(60)
        desk.send.options(queue="fresh", tx=desk.user).enqueue("user")
        desk.go.set()
        eventually(lambda: app.existing(job).is_final)
        eventually(lambda: len(list(app.jobs(state="completed", queue="fresh"))) == 1)
        desk.user.commit()
        eventually(lambda: len(list(app.jobs(state="completed", queue="fresh"))) == 2)
