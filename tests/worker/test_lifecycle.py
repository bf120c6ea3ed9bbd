"""A worker's life inside another process: how it starts, what stands around its jobs, and what remains when it ends."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from perdure import DatabaseUnavailable, JobContext, Perdure, PerdureError, State, StoreError
from perdure.errors import InvalidOption
from perdure.worker.loop import HURRY, STOP, StopRequest
from perdure.worker.worker import Worker
from tests.app.children import in_child
from tests.worker.patience import eventually, eventually_here, seen_by_the_doctor


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture(autouse=True)
def nothing_left_running() -> Iterator[None]:
    """Whatever a test does with workers, their threads and descriptors are gone in the end."""
    threads, descriptors = set(threading.enumerate()), open_descriptors()
    yield
    eventually(lambda: not {thread for thread in set(threading.enumerate()) - threads if thread.name[:7] == "perdure"})
    assert open_descriptors() <= descriptors + 16  # the store keeps some of its own open


@pytest.fixture
def send(app: Perdure) -> Any:
    @app.job
    def send(to: str = "you") -> str:
        return f"hi {to}"

    return send


def node_ends(app: Perdure) -> list[str | None]:
    """How the nodes of this database ended, the newest first."""
    return [node.stop_reason for node in app.store.nodes(10)]


# -- run and running -------------------------------------------------------------------------------------------------


def test_what_is_there_at_the_start_is_left_to_no_garbage_collector_while_a_worker_runs(app: Perdure) -> None:
    """Not of a worker beside other code, nor where the program has frozen things itself."""

    @app.job
    def frozen() -> int:
        return gc.get_freeze_count()

    def during(run: Callable[[], object]) -> int:
        job = frozen.enqueue()
        run()
        return int(app.existing(job).result)

    def beside() -> None:
        with app.worker().running():
            eventually(lambda: not [job for job in app.jobs() if not job.is_final])

    assert gc.get_freeze_count() == 0
    assert during(partial(app.worker().run, until_idle=True)) > 10_000
    assert gc.get_freeze_count() == 0
    assert during(beside) == 0
    gc.freeze()
    try:
        assert during(partial(app.worker().run, until_idle=True)) > 0
        assert gc.get_freeze_count() > 0, "the worker has undone what the program had done"
    finally:
        gc.unfreeze()


def test_until_idle_ends_when_nothing_is_left_to_do(app: Perdure, send: Any) -> None:
    jobs = send.enqueue_many([{}] * 50)
    later = send.options(delay=3600).enqueue()

    assert app.worker().run(until_idle=True) == 0
    assert {app.existing(job).state for job in jobs} == {State.COMPLETED}
    assert app.existing(later).state is State.SCHEDULED
    assert node_ends(app) == ["clean_shutdown"]


def test_jobs_run_beside_a_block(app: Perdure, send: Any) -> None:
    with app.worker().running() as worker:
        assert send.wait(send.enqueue(to="me"), timeout=60) == "hi me"
        assert worker.health().status == "running"

    assert worker.health().status == "stopped"
    assert node_ends(app) == ["clean_shutdown"]


def test_jobs_run_beside_an_async_block_and_the_loop_goes_on_when_it_is_left(app: Perdure) -> None:
    """The handler that is waited for ends only after the event loop has turned."""
    entered, turned = threading.Event(), threading.Event()

    @app.job
    def hold() -> bool:
        entered.set()
        return turned.wait(60)

    async def turn_when_stopping(worker: Worker) -> None:
        await eventually_here(lambda: worker.health().status == "stopping")
        turned.set()

    async def main() -> bool:
        job = await hold.aenqueue()
        async with app.worker().running() as worker:
            await eventually_here(entered.is_set)
            turning = asyncio.create_task(turn_when_stopping(worker))
        await turning
        return hold.wait(job, timeout=60)

    assert asyncio.run(main()) is True


def test_a_cancelled_async_block_is_left_in_order(app: Perdure, send: Any) -> None:
    async def embedded(inside: asyncio.Event) -> None:
        async with app.worker().running():
            inside.set()
            await asyncio.Event().wait()

    async def main() -> None:
        inside = asyncio.Event()
        task = asyncio.create_task(embedded(inside))
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert node_ends(app) == ["clean_shutdown"]


def test_an_async_block_cancelled_while_it_starts_leaves_nothing_running(app: Perdure, send: Any) -> None:
    starting, go = threading.Event(), threading.Event()

    def before() -> None:
        starting.set()
        go.wait(60)

    async def embedded() -> None:
        async with app.worker(before_start=before).running():
            raise AssertionError("not reached")

    async def main() -> None:
        task = asyncio.create_task(embedded())
        await eventually_here(starting.is_set)
        task.cancel()
        await asyncio.sleep(0)
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert node_ends(app) == ["clean_shutdown"]


def test_a_worker_is_used_once(app: Perdure) -> None:
    worker = app.worker()
    worker.run(until_idle=True)

    with pytest.raises(PerdureError) as refused, worker.running():
        pass
    assert refused.value.code == "worker_used"


def test_off_the_main_thread_signals_are_left_alone(app: Perdure, send: Any) -> None:
    before = signal.getsignal(signal.SIGTERM)
    during: list[object] = []
    job = send.enqueue()
    worker = app.worker(before_start=lambda: during.append(signal.getsignal(signal.SIGTERM)))
    thread = threading.Thread(target=worker.run)
    thread.start()
    assert send.wait(job, timeout=60) == "hi you"
    worker.stop()
    thread.join()

    assert during == [before]


def test_on_the_main_thread_the_handlers_are_put_back(app: Perdure) -> None:
    before = signal.getsignal(signal.SIGTERM)
    during: list[object] = []
    app.worker(before_start=lambda: during.append(signal.getsignal(signal.SIGTERM))).run(until_idle=True)

    assert during != [before]
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_worker_that_stops_takes_nothing_new_and_waits_for_what_runs(
    app: Perdure, send: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "perdure.worker")
    entered, go = threading.Event(), threading.Event()

    @app.job
    def hold() -> str:
        entered.set()
        assert go.wait(60)
        return "to the end"

    running, next_one = hold.enqueue(), send.enqueue()
    with app.worker(concurrency=1).running() as worker:
        assert entered.wait(60)
        worker.stop()
        eventually(lambda: "stopping; one job has 25 s to finish" in caplog.text)
        go.set()

    assert app.existing(running).result == "to the end"
    assert (app.existing(next_one).state, app.existing(next_one).attempts) == (State.QUEUED, 0)
    assert node_ends(app) == ["clean_shutdown"]


def test_whoever_asks_to_stop_does_not_take_back_that_it_is_to_hurry() -> None:
    rings: list[int] = []
    wish = StopRequest(lambda: rings.append(wish.level))

    for level in (STOP, HURRY, STOP):
        wish.ask(level)

    assert (wish.level, rings) == (HURRY, [STOP, HURRY, HURRY])


def test_a_worker_told_to_stop_before_it_starts_stops(app: Perdure, send: Any) -> None:
    worker = app.worker()
    worker.stop()

    assert worker.run() == 0


# -- hooks and lifespan ----------------------------------------------------------------------------------------------


def test_hooks_come_after_the_schema_and_before_the_jobs(app: Perdure, path: Path) -> None:
    seen: list[str] = []

    @app.job
    def note() -> None:
        seen.append("job")

    def before() -> None:
        with closing(sqlite3.connect(path)) as connection:
            (tables,) = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'perdure_job'").fetchone()
        seen.append(f"before: {tables} job table, {len(app.store.nodes(10))} nodes")
        note.enqueue()

    app.worker(
        before_start=[before, lambda: seen.append("before again")],
        after_stop=[lambda: seen.append(f"after: {node_ends(app)}"), lambda: seen.append("after again")],
    ).run(until_idle=True)

    assert seen == [
        "before: 1 job table, 0 nodes",
        "before again",
        "job",
        "after: ['clean_shutdown']",
        "after again",
    ]


def test_what_the_lifespan_yields_is_the_state_of_every_job(app: Perdure) -> None:
    seen: list[str] = []

    @contextmanager
    def lifespan() -> Iterator[dict[str, str]]:
        seen.append("enter")
        yield {"database": "open"}
        seen.append(f"leave: {node_ends(app)}")

    @app.job
    def plain(ctx: JobContext) -> None:
        seen.append(f"plain: {ctx.state['database']}")

    @app.job
    async def coroutine(ctx: JobContext) -> None:
        seen.append(f"async: {ctx.state['database']}")

    plain.enqueue()
    coroutine.enqueue()
    app.worker(lifespan=lifespan).run(until_idle=True)

    assert seen[0] == "enter"
    assert sorted(seen[1:3]) == ["async: open", "plain: open"]
    assert seen[3] == "leave: ['clean_shutdown']"


def test_an_async_lifespan_lives_on_the_loop_of_the_handlers(app: Perdure) -> None:
    tasks: list[object] = []

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[dict[str, Any]]:
        tasks.append(asyncio.current_task())
        yield {"loop": asyncio.get_running_loop()}
        tasks.append(asyncio.current_task())

    @app.job
    async def same_loop(ctx: JobContext) -> bool:
        return ctx.state["loop"] is asyncio.get_running_loop()

    job = same_loop.enqueue()
    app.worker(lifespan=lifespan).run(until_idle=True)

    assert same_loop.wait(job) is True
    assert tasks[0] is tasks[1] is not None


@pytest.mark.parametrize("given", [5, "text"])
def test_a_lifespan_that_yields_no_dict_is_refused_and_left(app: Perdure, given: object) -> None:
    left: list[bool] = []

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[object]:
        yield given
        left.append(True)

    with pytest.raises(InvalidOption) as refused:
        app.worker(lifespan=lifespan).run(until_idle=True)

    assert refused.value.code == "lifespan_invalid"
    assert left == [True]


def test_a_lifespan_that_is_no_context_manager_says_how_to_make_one(app: Perdure) -> None:
    async def lifespan() -> AsyncIterator[None]:
        yield None

    with pytest.raises(InvalidOption, match="asynccontextmanager"):
        app.worker(lifespan=lifespan).run(until_idle=True)


def test_an_error_of_the_lifespans_end_is_raised_after_all_is_down(app: Perdure) -> None:
    seen: list[str] = []

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        yield
        raise TimeoutError("closing took too long")

    with pytest.raises(TimeoutError, match="closing took too long"):
        app.worker(lifespan=lifespan, after_stop=lambda: seen.append("after")).run(until_idle=True)

    assert seen == ["after"]
    assert node_ends(app) == ["clean_shutdown"]


# -- a start that fails ----------------------------------------------------------------------------------------------


def test_a_hook_that_raises_leaves_nothing_running(app: Perdure) -> None:
    seen: list[str] = []

    with pytest.raises(ZeroDivisionError):
        app.worker(before_start=lambda: 1 / 0, after_stop=lambda: seen.append("after")).run()

    assert seen == ["after"]
    assert node_ends(app) == []


def test_a_lifespan_that_raises_leaves_nothing_running(app: Perdure) -> None:
    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        _ = 1 / 0
        yield

    with pytest.raises(ZeroDivisionError), app.worker(lifespan=lifespan).running():
        pass

    assert node_ends(app) == []


def test_a_database_that_cannot_be_had_is_an_error_at_the_start(tmp_path: Path) -> None:
    app = Perdure(tmp_path / "nowhere" / "jobs.db")

    with pytest.raises(DatabaseUnavailable):
        app.worker().run()


def test_a_start_that_fails_after_the_node_was_registered_signs_it_off(app: Perdure, path: Path) -> None:
    def rename(table: str, name: str) -> None:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(f"ALTER TABLE {table} RENAME TO {name}")

    with pytest.raises(StoreError, match="no such table"):
        app.worker(before_start=lambda: rename("perdure_ready", "aside")).run()
    rename("aside", "perdure_ready")

    assert node_ends(app) == ["start_failed"]


# -- forks -----------------------------------------------------------------------------------------------------------


def test_a_forked_child_is_told_that_the_worker_is_not_its_own(
    app: Perdure, send: Any, caplog: pytest.LogCaptureFixture
) -> None:
    worker = app.worker()

    def use_it() -> str:
        told = [record.getMessage() for record in caplog.records if "forked" in record.getMessage()]
        health = worker.health()
        try:
            worker.stop()
        except PerdureError as error:
            return f"{error.code} {health.status} {health.healthy} {len(told)}"
        return "stopped"

    with worker.running():
        assert send.wait(send.enqueue(), timeout=60) == "hi you"
        assert in_child(use_it) == "worker_forked forked False 1"
        assert send.wait(send.enqueue(), timeout=60) == "hi you"
        assert worker.health().healthy


def test_a_child_that_leaves_the_block_leaves_the_parents_worker_alone(app: Perdure, send: Any) -> None:
    with app.worker().running() as worker:
        running = worker.running()

        def leave() -> str:
            running.__exit__(None, None, None)
            return "left"

        assert in_child(leave) == "left"
        assert send.wait(send.enqueue(), timeout=60) == "hi you"


def test_a_worker_made_before_a_fork_cannot_be_started_in_the_child(app: Perdure) -> None:
    worker = app.worker()

    def start() -> str:
        with pytest.raises(PerdureError) as refused:
            worker.run(until_idle=True)
        return refused.value.code

    assert in_child(start) == "worker_forked"


def test_a_child_has_workers_of_its_own(app: Perdure, send: Any) -> None:
    with app.worker(queues=["other"]).running():
        job = send.enqueue()
        assert in_child(lambda: str(app.worker().run(until_idle=True))) == "0"
        assert app.existing(job).state is State.COMPLETED


# -- trouble with the database ---------------------------------------------------------------------------------------


def test_a_database_locked_by_someone_else_is_waited_for_and_no_outcome_is_lost(path: Path) -> None:
    app = Perdure(path, durability="normal", busy_timeout_s=0.1)
    entered, go = threading.Event(), threading.Event()

    @app.job
    def hold() -> str:
        entered.set()
        go.wait(60)
        return "kept"

    job = hold.enqueue()
    with app.worker().running() as worker:
        assert entered.wait(60)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            go.set()
            eventually(lambda: worker._node is not None and worker._node.in_trouble)
            other.execute("ROLLBACK")
        assert hold.wait(job, timeout=60) == "kept"
        assert worker.health().healthy
    assert app.existing(job).attempts == 1
    seen_by_the_doctor(app)


def test_a_worker_that_waits_for_its_database_is_not_taken_for_hung(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It waits for longer at a time than its watchdog has patience, and beats again when the database is back."""
    app = Perdure(path, durability="normal", lease_s=0.6, busy_timeout_s=0.1)

    entered, go = threading.Event(), threading.Event()

    @app.job
    def hold() -> str:
        entered.set()
        go.wait(60)
        return "kept"

    job = hold.enqueue()
    with app.worker().running() as worker, closing(sqlite3.connect(path, isolation_level=None)) as other:
        assert entered.wait(60)
        other.execute("BEGIN IMMEDIATE")
        go.set()
        eventually(lambda: worker.health().status == "hung" or "next try in 3.2 s" in caplog.text)
        other.execute("ROLLBACK")
        assert worker.health().status == "running"
    assert app.existing(job).result == "kept"
    seen_by_the_doctor(app)


def test_a_database_whose_folder_is_gone_for_a_while_is_found_again(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    app = Perdure(tmp_path / "data" / "jobs.db", durability="normal", busy_timeout_s=0.1)
    entered, go = threading.Event(), threading.Event()

    @app.job
    def hold() -> str:
        entered.set()
        go.wait(60)
        return "kept"

    job = hold.enqueue()
    with app.worker().running() as worker:
        assert entered.wait(60)
        (tmp_path / "data").rename(tmp_path / "elsewhere")
        eventually(lambda: worker._node is not None and worker._node.in_trouble)
        go.set()
        (tmp_path / "elsewhere").rename(tmp_path / "data")
        assert hold.wait(job, timeout=60) == "kept"
    assert app.existing(job).attempts == 1
    seen_by_the_doctor(app)


def test_a_worker_stops_although_its_database_is_away_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    app = Perdure(tmp_path / "data" / "jobs.db", durability="normal", busy_timeout_s=0.1)
    entered, go = threading.Event(), threading.Event()

    @app.job
    def hold() -> str:
        entered.set()
        go.wait(60)
        return "lost"

    job = hold.enqueue()
    with app.worker(grace_s=0.2).running() as worker:
        assert entered.wait(60)
        (tmp_path / "data").rename(tmp_path / "elsewhere")
        eventually(lambda: worker._node is not None and worker._node.in_trouble)
        go.set()
    (tmp_path / "elsewhere").rename(tmp_path / "data")

    assert worker.exit_code == 3
    assert node_ends(app) == [None]
    assert app.existing(job).state is State.RUNNING
    seen_by_the_doctor(app)
