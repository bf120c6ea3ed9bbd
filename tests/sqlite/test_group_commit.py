"""Group commit: whoever writes at the same time shares one transaction, and nobody's trouble becomes another's."""

from __future__ import annotations

import asyncio
import resource
import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from perdure import Job, KeyConflict, Perdure
from perdure.errors import DatabaseUnavailable, StoreError
from perdure.store import admin
from perdure.store.engine import Call, Op
from perdure.store.group import GroupCommit, Member
from perdure.store.sqlite.database import Database
from perdure.store.sqlite.driver import SqliteDriver
from perdure.store.sqlite.statements import STATEMENTS
from tests.app.contents import jobs_in


@pytest.fixture
def database(app: Perdure) -> Database:
    runner: Any = app.store.runner  # type: ignore[attr-defined]  # beneath the protocol
    found: Database = runner.database
    return found


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


@pytest.fixture
def commits(database: Database) -> list[str]:
    """Grows by one with every commit of a group."""
    seen: list[str] = []
    database._writer.set_trace_callback(lambda sql: seen.append(sql) if sql == "COMMIT" else None)
    return seen


def until(condition: Callable[[], bool]) -> None:
    """Look again and again until it is so."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.001)


async def come(database: Database, writers: int) -> None:
    """Let the loop run until so many writers wait for their turn."""
    while len(database._group._waiting) < writers:  # noqa: ASYNC110 - nobody could set an event
        await asyncio.sleep(0.001)


def in_a_thread(write: Callable[[], Any]) -> Future[Any]:
    """One that keeps nobody from ending, should it hang."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(write())
        except BaseException as error:  # noqa: BLE001 - an interrupt too
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


class Crowd:
    """Writers that all come while the turn at the file is taken, the first of them to lead."""

    def __init__(self, app: Perdure, database: Database) -> None:
        self._app, self._database = app, database

    def __call__(self, *writes: Callable[[], Any]) -> list[Future[Any]]:
        """Let them come one after the other, then give the turn away; answers when all have ended."""
        futures: list[Future[Any]] = []
        with self._app.transaction():
            for write in writes:
                futures.append(in_a_thread(write))
                until(lambda: len(self._database._group._waiting) == len(futures))
        for future in futures:
            future.exception(timeout=30)
        return futures


@pytest.fixture
def crowd(app: Perdure, database: Database) -> Crowd:
    return Crowd(app, database)


def test_sixteen_threads_lose_nothing(send: Any, path: Path, pool: ThreadPoolExecutor, full_size: bool) -> None:
    wanted = [str(n) for n in range(10_000 if full_size else 800)]
    list(pool.map(send.enqueue, wanted))
    assert sorted(jobs_in(path)) == sorted(f'{{"to":"{n}"}}' for n in wanted)


def test_sixteen_threads_need_fewer_commits_than_jobs(send: Any, commits: list[str], pool: ThreadPoolExecutor) -> None:
    list(pool.map(send.enqueue, [str(n) for n in range(800)]))
    assert len(commits) < 800


def test_all_who_wait_share_one_commit(send: Any, path: Path, commits: list[str], crowd: Crowd) -> None:
    crowd(*[partial(send.enqueue, str(n)) for n in range(16)])
    assert (len(jobs_in(path)), len(commits)) == (16, 1)


def test_who_comes_while_a_group_is_written_is_woken_for_the_next(database: Database, send: Any) -> None:
    begun = threading.Event()

    def slow() -> Op[None]:
        begun.set()
        until(lambda: len(database._group._waiting) == 1)
        yield from admin.pause_queue("slow", 1)  # type: ignore[arg-type]

    leader = in_a_thread(lambda: database.write(slow))
    assert begun.wait(30)
    late = in_a_thread(partial(send.enqueue, "late"))
    leader.result(timeout=30)
    assert late.result(timeout=30).payload == {"to": "late"}


def test_whoever_had_to_pass_the_gate_leaves_it_to_other_processes(database: Database) -> None:
    database._gate.board[0] = 1  # as another process does that finds the file taken
    entered: list[bool] = []

    def look() -> Op[None]:
        entered.append(database._gate.inside)
        yield from admin.pause_queue("looked", 1)  # type: ignore[arg-type]

    database.write(look)
    assert (entered, database._gate.inside) == ([True], False)


def test_each_gets_its_own_answer(send: Any, crowd: Crowd) -> None:
    jobs: list[Job] = [future.result() for future in crowd(*[partial(send.enqueue, str(n)) for n in range(5)])]
    assert [job.payload for job in jobs] == [{"to": str(n)} for n in range(5)]


def broken() -> Op[None]:
    """Writes, then fails."""
    yield from admin.pause_queue("broken", 1)  # type: ignore[arg-type]
    raise ZeroDivisionError


@pytest.mark.parametrize("place", [0, 2, 4])
def test_one_that_fails_does_not_disturb_the_others(
    place: int, app: Perdure, database: Database, send: Any, path: Path, crowd: Crowd
) -> None:
    writes: list[Callable[[], Any]] = [partial(send.enqueue, str(n)) for n in range(4)]
    writes.insert(place, lambda: database.write(broken))
    futures = crowd(*writes)
    assert isinstance(futures.pop(place).exception(), ZeroDivisionError)
    assert [future.result().payload["to"] for future in futures] == ["0", "1", "2", "3"]
    assert len(jobs_in(path)) == 4
    assert "broken" not in [queue.name for queue in app.queues.list()]


def test_one_that_breaks_off_inside_a_savepoint_leaves_nothing(
    app: Perdure, database: Database, send: Any, path: Path, crowd: Crowd
) -> None:
    def halfway() -> Op[None]:
        yield from admin.pause_queue("before", 1)  # type: ignore[arg-type]
        yield Call("savepoint")
        yield from admin.pause_queue("inside", 1)  # type: ignore[arg-type]
        raise ZeroDivisionError

    crowd(lambda: send.enqueue("a"), lambda: database.write(halfway), lambda: send.enqueue("b"))
    assert len(jobs_in(path)) == 2
    assert [queue.name for queue in app.queues.list()] == ["default"]


def test_a_conflict_is_an_answer_and_costs_nobody_a_second_round(send: Any, commits: list[str], crowd: Crowd) -> None:
    keyed = send.options(business_key="b")
    first, second, third = crowd(lambda: keyed.enqueue("a"), lambda: keyed.enqueue("b"), lambda: send.enqueue("c"))
    assert isinstance(second.exception(), KeyConflict)
    assert (first.exception(), third.exception(), len(commits)) == (None, None, 1)


def interrupted_once(then: Callable[[], Op[Any]]) -> Callable[[], Op[Any]]:
    """An operation during which the leader is interrupted, the first time it runs."""
    interrupts = iter([KeyboardInterrupt()])

    def make() -> Op[Any]:
        for interrupt in interrupts:
            raise interrupt
        return (yield from then())

    return make


def test_an_interrupted_leader_leaves_its_followers_to_the_next(
    database: Database, send: Any, path: Path, crowd: Crowd
) -> None:
    leading = interrupted_once(lambda: admin.pause_queue("never", 1))  # type: ignore[arg-type]
    leader, *followers = crowd(lambda: database.write(leading), *[partial(send.enqueue, str(n)) for n in range(4)])
    assert isinstance(leader.exception(), KeyboardInterrupt)
    assert [follower.result().payload["to"] for follower in followers] == ["0", "1", "2", "3"]
    assert len(jobs_in(path)) == 4


def test_the_operation_of_an_interrupted_leader_is_never_run(app: Perdure, database: Database, crowd: Crowd) -> None:
    leading = interrupted_once(lambda: admin.pause_queue("never", 1))  # type: ignore[arg-type]
    crowd(lambda: database.write(leading), lambda: app.queues.pause("follower"))
    assert [queue.name for queue in app.queues.list()] == ["follower"]


class InterruptedAfterCommit(sqlite3.Connection):
    """An interrupt arrives while the first COMMIT is under way, and is raised when it returns."""

    interrupts = 1

    def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
        cursor = super().execute(sql, *args)
        if sql == "COMMIT" and self.interrupts:
            self.interrupts -= 1
            raise KeyboardInterrupt
        return cursor


def test_an_interrupt_right_after_the_commit_runs_nothing_twice(
    database: Database, send: Any, path: Path, crowd: Crowd
) -> None:
    database._writer = sqlite3.connect(
        path, factory=InterruptedAfterCommit, isolation_level=None, check_same_thread=False
    )
    database._write_driver = SqliteDriver(database._writer, STATEMENTS)
    leader, *followers = crowd(*[partial(send.enqueue, str(n)) for n in range(4)])
    assert isinstance(leader.exception(), KeyboardInterrupt)
    assert [follower.result().payload["to"] for follower in followers] == ["1", "2", "3"]
    assert len(jobs_in(path)) == 4


# -- the COMMIT fails ------------------------------------------------------------------------------------------------


@contextmanager
def nothing_can_be_written() -> Generator[None, None, None]:
    """The kernel lets this process write to no file. SQLite finds out at the COMMIT, when it writes the log."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("writers", [1, 2, 5])
def test_where_the_commit_fails_nobody_is_told_that_it_worked(
    writers: int, send: Any, database: Database, path: Path, crowd: Crowd
) -> None:
    with nothing_can_be_written():
        futures = crowd(*[partial(send.enqueue, str(n)) for n in range(writers)])
    errors = [future.exception() for future in futures]
    assert [type(error) for error in errors] == [DatabaseUnavailable] * writers
    assert jobs_in(path) == []
    assert send.enqueue("later").state == "queued"
    assert jobs_in(path) == ['{"to":"later"}']


def test_where_the_commit_fails_no_coroutine_is_told_that_it_worked(
    app: Perdure, send: Any, database: Database, path: Path
) -> None:
    outside = copy_context()

    async def main() -> list[Any]:
        with app.transaction():
            tasks = [asyncio.create_task(send.aenqueue(str(n)), context=outside) for n in range(3)]
            await come(database, 3)
        return list(await asyncio.gather(*tasks, return_exceptions=True))

    with nothing_can_be_written():
        answers = asyncio.run(main())
    assert [type(answer) for answer in answers] == [DatabaseUnavailable] * 3
    assert jobs_in(path) == []


def test_one_that_fails_by_itself_keeps_its_own_error_when_the_commit_fails_too(
    app: Perdure, database: Database, send: Any, path: Path, crowd: Crowd
) -> None:
    own = StoreError("its own")

    def refused() -> Op[None]:
        yield from admin.pause_queue("refused", 1)  # type: ignore[arg-type]
        raise own

    with nothing_can_be_written():
        futures = crowd(lambda: send.enqueue("a"), lambda: database.write(refused), lambda: send.enqueue("b"))
    first, second, third = [future.exception() for future in futures]
    assert (type(first), second, type(third)) == (DatabaseUnavailable, own, DatabaseUnavailable)
    assert jobs_in(path) == []


class RefusesTheFirstCommit(sqlite3.Connection):
    """The disk fails once, and the transaction with it or not."""

    refusals = 1
    rolls_back = True

    def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
        if sql == "COMMIT" and self.refusals:
            self.refusals -= 1
            if self.rolls_back:
                super().execute("ROLLBACK")
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR
            raise error
        return super().execute(sql, *args)


@pytest.mark.parametrize("rolls_back", [True, False])
def test_a_commit_that_fails_once_is_tried_again_and_writes_everybody_once(
    database: Database, send: Any, path: Path, crowd: Crowd, monkeypatch: pytest.MonkeyPatch, *, rolls_back: bool
) -> None:
    monkeypatch.setattr(RefusesTheFirstCommit, "rolls_back", rolls_back)
    database._writer = sqlite3.connect(
        path, factory=RefusesTheFirstCommit, isolation_level=None, check_same_thread=False
    )
    database._write_driver = SqliteDriver(database._writer, STATEMENTS)
    futures = crowd(*[partial(send.enqueue, str(n)) for n in range(3)])
    assert [future.result().payload["to"] for future in futures] == ["0", "1", "2"]
    assert sorted(jobs_in(path)) == [f'{{"to":"{n}"}}' for n in range(3)]


# -- coroutines ------------------------------------------------------------------------------------------------------


def test_coroutines_and_threads_share_a_commit(app: Perdure, send: Any, commits: list[str], database: Database) -> None:
    outside = copy_context()

    async def main() -> None:
        with app.transaction():
            asyncs = [asyncio.create_task(send.aenqueue(str(n)), context=outside) for n in range(8)]
            thread = threading.Thread(target=send.enqueue, args=("thread",))
            thread.start()
            await come(database, 9)
        await asyncio.gather(*asyncs)
        thread.join()

    asyncio.run(main())
    assert (len(list(app.jobs())), len(commits)) == (9, 1)


def test_a_cancelled_coroutine_disturbs_nobody(app: Perdure, send: Any, database: Database) -> None:
    outside = copy_context()

    async def main() -> list[Job]:
        with app.transaction():
            tasks = [asyncio.create_task(send.aenqueue(str(n)), context=outside) for n in range(4)]
            await come(database, 4)
            tasks[0].cancel()
            tasks[2].cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(answer) for answer in answers[::2]] == [asyncio.CancelledError] * 2
        return [answer for answer in answers[1::2] if isinstance(answer, Job)]

    jobs = asyncio.run(main())
    assert [app.get(job) for job in jobs] == jobs
    assert len(jobs) == 2


def test_a_loop_that_ends_too_early_stops_nobody(app: Perdure, send: Any, database: Database) -> None:
    outside = copy_context()
    loop = asyncio.new_event_loop()
    with app.transaction():
        tasks = [loop.create_task(send.aenqueue(str(n)), context=outside) for n in range(3)]
        loop.call_soon(loop.stop)
        loop.run_forever()
        thread = threading.Thread(target=send.enqueue, args=("thread",))
        thread.start()
        until(lambda: len(database._group._waiting) >= 4)
        for task in tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # left pending on purpose
        threading.Thread(target=loop.close).start()
    thread.join(30)
    assert not thread.is_alive()
    assert send.enqueue("next") in list(app.jobs())


class SlowLeader:
    """A thread that leads a group until it is told to go on."""

    def __init__(self, database: Database) -> None:
        self._inside, self._go_on = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=database.write, args=(self._slow,))

    def _slow(self) -> Op[None]:
        yield Call("read_revision")
        self._inside.set()
        self._go_on.wait(30)

    def __enter__(self) -> None:
        self._thread.start()
        assert self._inside.wait(30)

    def __exit__(self, *_: object) -> None:
        self._go_on.set()
        self._thread.join()


@pytest.fixture
def stopped_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop that nobody runs, but that is not closed either."""
    loop = asyncio.new_event_loop()
    yield loop
    pending = asyncio.all_tasks(loop)
    loop.run_until_complete(asyncio.wait(pending) if pending else asyncio.sleep(0))
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


def left_waiting(loop: asyncio.AbstractEventLoop, database: Database, send: Any) -> asyncio.Task[Job]:
    """An enqueue that has come, but whose loop does not run any more."""
    waiting = len(database._group._waiting)
    task = loop.create_task(send.aenqueue("coroutine"))
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert len(database._group._waiting) == waiting + 1
    return task


def test_a_coroutine_whose_loop_has_stopped_holds_up_nobody_who_comes_later(
    database: Database, send: Any, stopped_loop: asyncio.AbstractEventLoop, pool: ThreadPoolExecutor
) -> None:
    with SlowLeader(database):
        task = left_waiting(stopped_loop, database, send)
    assert pool.submit(send.enqueue, "thread").result(timeout=20).state == "queued"
    assert stopped_loop.run_until_complete(task).state == "queued"


def test_a_coroutine_whose_loop_has_stopped_holds_up_nobody_who_waits_behind_it(
    database: Database, send: Any, stopped_loop: asyncio.AbstractEventLoop, pool: ThreadPoolExecutor
) -> None:
    with SlowLeader(database):
        left_waiting(stopped_loop, database, send)
        behind = pool.submit(send.enqueue, "thread")
        until(lambda: len(database._group._waiting) == 2)
    assert behind.result(timeout=20).state == "queued"


def test_a_loop_that_takes_no_more_work_still_finishes_its_own(
    database: Database, send: Any, stopped_loop: asyncio.AbstractEventLoop
) -> None:
    stopped_loop.run_until_complete(stopped_loop.shutdown_default_executor())
    with SlowLeader(database):
        task = left_waiting(stopped_loop, database, send)
    assert stopped_loop.run_until_complete(asyncio.wait_for(task, 20)).state == "queued"


# -- an error that nobody expects, while a group is led --------------------------------------------------------------


class Breaks:
    """Runs groups as a database does, but for the first, which breaks off with an error that nobody foresaw."""

    def __init__(self, when: str) -> None:
        self._breaks = iter([when])
        self.commit = GroupCommit(self._run)
        self.ran: list[str] = []
        self.turn = threading.Event()

    def operation(self, name: str) -> Callable[[], Any]:
        def run() -> str:
            self.ran.append(name)
            return name

        return run

    def _run(self, group: list[Member[Any]]) -> None:
        assert self.turn.wait(30)
        when = next(self._breaks, "never")
        if when == "before it takes anybody":
            raise ZeroDivisionError
        self.commit.fill(group)
        if when == "before it runs anything":
            raise ZeroDivisionError
        for member in group:
            member.answer = member.make()
            member.answered = True
        if when == "when all are answered":
            raise ZeroDivisionError

    async def come(self, writers: int) -> None:
        while len(self.commit._waiting) < writers:  # noqa: ASYNC110 - nobody could set an event
            await asyncio.sleep(0.001)


MOMENTS = ["before it takes anybody", "before it runs anything", "when all are answered"]


@pytest.mark.parametrize("when", MOMENTS)
@pytest.mark.parametrize("sorts", ["a", "aa", "aaa", "at", "ata", "ta", "t", "tt"])
def test_an_error_that_nobody_expects_leaves_no_caller_without_an_answer(sorts: str, when: str) -> None:
    """The first caller leads; a is a coroutine, t a thread. An operation is run once, or its caller gets the error."""
    breaks = Breaks(when)

    async def caller(name: str) -> str:
        if name.startswith("a"):
            return await breaks.commit.asubmit(breaks.operation(name))
        return await asyncio.to_thread(breaks.commit.submit, breaks.operation(name))

    async def main(names: list[str]) -> list[str | BaseException]:
        tasks: list[asyncio.Task[str]] = []
        for name in names:
            tasks.append(asyncio.create_task(caller(name)))
            await breaks.come(len(tasks))
        breaks.turn.set()
        answers = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30)
        assert await asyncio.wait_for(caller("a later"), 30) == "a later"
        assert await asyncio.wait_for(caller("t later"), 30) == "t later"
        return answers

    names = [f"{sort}{n}" for n, sort in enumerate(sorts)]
    leader, *followers = asyncio.run(main(names))
    assert followers == names[1:]
    done = when == "when all are answered"
    if done and sorts.startswith("a"):
        assert leader == names[0]
    else:
        assert isinstance(leader, ZeroDivisionError)
    expected = names if done else names[1:]
    assert sorted(breaks.ran) == sorted([*expected, "a later", "t later"])
    assert not breaks.commit._waiting
    assert not breaks.commit._led
