"""What must not stop a worker, nor keep it from ending: stored data of another version, handlers without manners, a
job that cannot be rescued, errors nobody thought of, a database that never answers."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from perdure import JobContext, Perdure
from perdure.clock import Micros, SystemClock
from perdure.ids import NodeId, RunId
from perdure.store.rows import Claimer, Lane, NewNode
from perdure.worker.heartbeat import Heartbeat
from perdure.worker.options import WorkerOptions
from tests.worker.bodies import SORTS, declared, last_run
from tests.worker.patience import DEADLINE_S, eventually, seen_by_the_doctor


def execute(path: Path, sql: str, *parameters: Any) -> None:
    with closing(sqlite3.connect(path, isolation_level=None, timeout=30)) as connection:
        connection.execute(sql, parameters)


@pytest.mark.damaged
@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.parametrize("options", ['{"retry": {"backoff": "fibonacci"}}', '{"retry": 7}', "[]"])
def test_a_run_whose_retry_policy_cannot_be_read_fails_by_that_of_its_kind(
    app: Perdure, path: Path, sort: str, options: str
) -> None:
    def fail(_: JobContext) -> None:
        raise ValueError("as always")

    job = declared(app, sort, fail, retry=1).enqueue()
    execute(path, "UPDATE perdure_job SET options = ? WHERE id = ?", options, job.row.id)
    with app.worker(grace_s=0).running():
        assert app.wait(job, timeout=DEADLINE_S).state == "failed"
    assert last_run(app, job).error_message == "as always"


def test_a_handler_that_stops_the_event_loop_stops_nobody(app: Perdure) -> None:
    @app.job
    async def stop() -> str:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0)
        return "went on"

    with app.worker(grace_s=0).running():
        for _ in range(3):  # one after the other: what it had begun, a loop that is shut down would still end
            assert stop.wait(stop.enqueue(), timeout=DEADLINE_S) == "went on"


def test_a_worker_starts_although_a_dead_nodes_job_cannot_be_taken_back(
    app: Perdure, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @app.job
    def work() -> str:
        return "done"

    poison = work.enqueue()
    gone, now = NodeId(app.ids.new()), app.clock.now()
    app.store.register(NewNode(gone, now))
    app.store.claim([Lane("default", 1)], Claimer(gone, None, [RunId(app.ids.new())], 60_000_000), now)
    app.store.stop(gone, "crash", now)
    execute(
        path,
        f"CREATE TRIGGER no_ready BEFORE UPDATE ON perdure_ready WHEN NEW.job_id = X'{poison.id.hex}'"
        " BEGIN SELECT RAISE(ABORT, 'no'); END",
    )
    with app.worker().running():
        assert work.wait(work.enqueue(), timeout=DEADLINE_S) == "done"
        execute(path, "DROP TRIGGER no_ready")
        assert work.wait(poison, timeout=DEADLINE_S) == "done"
    assert "could not be taken back" in caplog.text


# -- the heart -------------------------------------------------------------------------------------------------------


class Steps:
    """What the heart knows of a node."""

    declared_dead = False
    turns = 0

    def __init__(self, app: Perdure) -> None:
        self.id = NodeId(app.ids.new())
        app.store.register(NewNode(self.id, app.clock.now()))

    def look_again(self) -> None:
        self.turns += 1


def leased(lease_s: float) -> WorkerOptions:
    """A lease, and no more patience than that."""
    return WorkerOptions(lease_s=lease_s, busy_timeout_s=0)


class Failing(SystemClock):
    """Its wall clock cannot be read, the first few times."""

    def __init__(self, node: Steps) -> None:
        self.failures = 3
        self._node = node

    def now(self) -> Micros:
        self._node.turns += 1
        if self.failures:
            self.failures -= 1
            raise OSError("no clock today")
        return super().now()


def test_a_heart_goes_on_after_an_error_that_nobody_thought_of(app: Perdure, caplog: pytest.LogCaptureFixture) -> None:
    node = Steps(app)
    acts = [0]

    def act() -> None:
        acts[0] += 1
        raise LookupError("also")

    parts = app.parts()._replace(clock=Failing(node))
    heart = Heartbeat(node, parts, leased(0.06), lambda: None, also=[act])  # type: ignore[arg-type]
    heart.start()
    eventually(lambda: heart.last_beat is not None and acts[0] > 3)
    heart.stop()
    app.store.stop(node.id, "clean_shutdown", app.clock.now())
    assert "no clock today" in caplog.text


def test_a_worker_that_stops_does_not_wait_for_ever_for_a_beat(app: Perdure) -> None:
    store, hung = NeverAnswers(), threading.Event()
    node = Steps(app)
    moves = count()
    parts = app.parts()._replace(store=store)  # type: ignore[arg-type]
    heart = Heartbeat(node, parts, leased(0.6), hung.set, lambda: next(moves))  # type: ignore[arg-type]
    heart.start()
    assert store.asked.wait(60)
    heart.stop()
    assert hung.is_set()
    store.answer.set()
    app.store.stop(node.id, "clean_shutdown", app.clock.now())


class NeverAnswers:
    """A store whose beats do not come back."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.answer = threading.Event()

    def beat(self, _node_id: NodeId, _now: Micros) -> bool:
        self.asked.set()
        return self.answer.wait(60)


def test_a_heart_whose_beat_does_not_come_back_is_noticed(app: Perdure, caplog: pytest.LogCaptureFixture) -> None:
    """The store thread goes on all the while: nobody but the guard can see it."""
    store, hung = NeverAnswers(), threading.Event()
    node = Steps(app)
    moves = count()
    parts = app.parts()._replace(store=store)  # type: ignore[arg-type]
    heart = Heartbeat(node, parts, leased(0.06), hung.set, lambda: next(moves))  # type: ignore[arg-type]
    heart.start()
    assert store.asked.wait(60)
    assert hung.wait(60)
    store.answer.set()
    heart.stop()
    app.store.stop(node.id, "clean_shutdown", app.clock.now())
    assert "the heartbeat has not moved" in caplog.text


def test_a_beat_that_was_refused_to_who_the_node_was_before_says_nothing_about_it(app: Perdure) -> None:
    node = Steps(app)
    before = node.id

    class ComesBack(SystemClock):
        """The node comes back as another one while a beat is under way."""

        def now(self) -> Micros:
            node.id = NodeId(app.ids.new())
            app.store.register(NewNode(node.id, super().now()))
            return super().now()

    app.store.stop(before, "unknown", app.clock.now())
    parts = app.parts()._replace(clock=ComesBack())
    assert Heartbeat(node, parts, leased(60), lambda: None).beat()  # type: ignore[arg-type]
    assert not node.declared_dead
    app.store.stop(node.id, "clean_shutdown", app.clock.now())


# -- handlers that reach for the event loop ---------------------------------------------------------------------------


def test_a_run_whose_task_is_cancelled_by_another_handler_before_it_began_is_given_back(app: Perdure) -> None:
    others: list[int] = []

    @app.job
    async def rude() -> None:
        if not others:
            strangers = asyncio.all_tasks() - {asyncio.current_task()}
            others.append(len(strangers))
            for task in strangers:
                task.cancel()

    jobs = rude.enqueue_many([{}] * 3)
    app.worker(concurrency=3).run(until_idle=True)

    assert others == [2]
    assert [app.existing(job).state for job in jobs] == ["completed"] * 3
    assert [app.existing(job).attempts for job in jobs] == [1] * 3
    assert sorted(sum(1 for _ in app.runs(job)) for job in jobs) == [1, 2, 2]


def test_tasks_that_a_handler_left_behind_are_ended_in_order(app: Perdure) -> None:
    told: list[str] = []
    kept: list[asyncio.Task[None]] = []

    async def stray() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            told.append("ended")

    @app.job
    async def careless() -> None:
        kept.append(asyncio.create_task(stray()))
        await asyncio.sleep(0)

    careless.enqueue()
    app.worker().run(until_idle=True)
    assert told == ["ended"]


# -- the end ---------------------------------------------------------------------------------------------------------


class Stuck(SystemClock):
    """A clock that the store thread hangs on once there is no heart beside it any more: when it signs off."""

    def __init__(self) -> None:
        self.is_last = threading.Event()
        self.freed = threading.Event()

    def now(self) -> Micros:
        names = {thread.name for thread in threading.enumerate()}
        if self.is_last.is_set() and "perdure-heart" not in names and "perdure-store" in names:
            self.freed.wait()
        return super().now()


def test_a_worker_ends_although_its_node_cannot_sign_off(path: Path) -> None:
    clock = Stuck()
    app = Perdure(path, durability="normal", lease_s=0.6, busy_timeout_s=0.2, clock=clock)
    try:
        with app.worker().running() as worker:
            clock.is_last.set()
        assert (worker.exit_code, worker.health().status) == (75, "hung")
    finally:
        clock.freed.set()
    eventually(lambda: not any(thread.name == "perdure-store" for thread in threading.enumerate()))
    seen_by_the_doctor(app)
