"""Single enqueues on a server that come at the same time share a commit, and nobody's trouble becomes another's."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import psycopg
import pytest

from perdure import DatabaseBusy, Perdure
from perdure.enqueue import new_job
from perdure.ids import JobId
from perdure.job.model import NewJob
from perdure.kind import Draft
from perdure.store.enqueue import OneJob
from perdure.store.server import ServerRunner
from perdure.store.shared import ALONE, SharedEnqueues
from tests.databases.conftest import Makers
from tests.mariadb_server import connected
from tests.worker.patience import eventually

SORTS = [
    pytest.param("postgres", marks=pytest.mark.postgres),
    pytest.param("mariadb", marks=pytest.mark.mariadb),
]
CROWD = 12


class Scene:
    """An app on a server, and a way to keep all of its writers waiting."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.app = Perdure(url)

        @self.app.job
        def send(to: str) -> None: ...

        self.send: Any = send
        send.enqueue("first")  # connected, and the queue is known

    @property
    def runner(self) -> ServerRunner:
        runner: ServerRunner = self.app.store.runner  # type: ignore[attr-defined]  # beneath the protocol
        return runner

    def came(self) -> int:
        """How many have come and were not answered yet."""
        shared = self.runner._shared
        return len(shared._alone) + sum(len(lane._waiting) + lane._led for lane in shared._lanes.values())

    def sent(self) -> list[str]:
        return sorted((job.payload or {})["to"] for job in self.app.jobs() if job.payload != {"to": "first"})

    @contextmanager
    def taken(self) -> Iterator[Any]:
        """Inside, nobody can write a job."""
        if self.url.startswith("postgres"):
            with psycopg.connect(self.url) as connection:
                connection.execute("LOCK TABLE perdure.job IN EXCLUSIVE MODE")
                yield connection
        else:
            with closing(connected(self.url, autocommit=True)) as connection:
                connection.cursor().execute("LOCK TABLES perdure_job WRITE")
                yield connection

    def transactions(self) -> int:
        """How many have written the jobs (PostgreSQL)."""
        with psycopg.connect(self.url) as connection:
            ((count,),) = connection.execute("SELECT count(DISTINCT xmin::text) FROM perdure.job").fetchall()
        return int(count) - 1

    def close(self) -> None:
        self.app.close()


@pytest.fixture(params=SORTS)
def scene(request: pytest.FixtureRequest, new: Makers) -> Iterator[Scene]:
    scene = Scene(new(request.param))
    yield scene
    scene.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(CROWD + 4) as pool:
        yield pool


def gathered(scene: Scene, pool: ThreadPoolExecutor, writes: list[Callable[[], Any]]) -> list[Future[Any]]:
    """Let them all come while nobody can write."""
    futures: list[Future[Any]] = []
    with scene.taken():
        for write in writes:
            futures.append(pool.submit(write))
            eventually(lambda: scene.came() == len(futures))
    return futures


def names(count: int = CROWD) -> list[str]:
    return [f"{number:02}" for number in range(count)]


def test_those_who_wait_share_a_commit(scene: Scene, pool: ThreadPoolExecutor) -> None:
    futures = gathered(scene, pool, [partial(scene.send.enqueue, name) for name in names()])
    told = [future.result(timeout=30) for future in futures]
    assert [job.payload for job in told] == [{"to": name} for name in names()]
    assert [scene.app.get(job.id).payload for job in told] == [{"to": name} for name in names()]  # type: ignore[union-attr]
    if scene.url.startswith("postgres"):
        assert scene.transactions() == ALONE + 2  # who leads the others began before they came


def test_tasks_share_a_commit(scene: Scene) -> None:
    async def main() -> list[Any]:
        with scene.taken():
            tasks = [asyncio.create_task(scene.send.aenqueue(name)) for name in names()]
            while scene.came() < CROWD:  # noqa: ASYNC110 - nobody could set an event
                await asyncio.sleep(0.001)
        return list(await asyncio.gather(*tasks))

    assert [job.payload for job in asyncio.run(main())] == [{"to": name} for name in names()]
    assert scene.sent() == names()
    if scene.url.startswith("postgres"):
        assert scene.transactions() == ALONE + 2


def test_a_task_that_is_cancelled_keeps_nobody_waiting(scene: Scene) -> None:
    async def main() -> None:
        with scene.taken():
            tasks = [asyncio.create_task(scene.send.aenqueue(name)) for name in names()]
            while scene.came() < CROWD:  # noqa: ASYNC110 - nobody could set an event
                await asyncio.sleep(0.001)
            tasks[0].cancel()
            tasks[-1].cancel()
        await asyncio.wait_for(asyncio.gather(*tasks[1:-1]), 30)

    asyncio.run(main())
    assert set(names()[1:-1]) <= set(scene.sent())
    assert names()[-1] not in scene.sent()  # it had not begun


def test_who_cannot_be_written_fails_alone(scene: Scene, pool: ThreadPoolExecutor) -> None:
    good = [partial(scene.send.enqueue, name) for name in names()]
    row = made(scene, "bad")._replace(payload='{"to":"\ud800"}')  # no database can encode it
    futures = gathered(scene, pool, [*good[:6], partial(scene.app.store.enqueue, [row]), *good[6:]])
    errors = [future.exception(timeout=30) for future in futures]
    assert [error is None for error in errors] == [True] * 6 + [False] + [True] * 6
    assert scene.sent() == names()


def test_a_table_that_stays_locked_is_told_to_everybody(scene: Scene, pool: ThreadPoolExecutor) -> None:
    app = Perdure(scene.url, busy_timeout_s=0.3)
    app.store.enqueue([made(scene, "first")])
    rows = [made(scene, name) for name in names()]
    with scene.taken():
        futures = [pool.submit(app.store.enqueue, [row]) for row in rows]
        errors = [future.exception(timeout=30) for future in futures]
    assert [error for error in errors if not isinstance(error, DatabaseBusy)] == []
    app.store.enqueue([made(scene, "after")])
    assert scene.sent() == ["after"]
    app.close()


def test_a_lost_connection_loses_nobody(scene: Scene, pool: ThreadPoolExecutor) -> None:
    futures: list[Future[Any]] = []
    with scene.taken() as connection:
        for name in names():
            futures.append(pool.submit(scene.send.enqueue, name))
            eventually(lambda: scene.came() == len(futures))
        # One that is still being opened would be told as a server out of reach.
        eventually(lambda: kept_waiting(connection) == ALONE + 1)
        kill_others(connection)
    for future in futures:
        future.result(timeout=30)
    assert scene.sent() == names()


def kept_waiting(connection: Any) -> int:
    """How many connections wait for the table."""
    cursor = connection.cursor()
    if isinstance(connection, psycopg.Connection):
        cursor.execute("SELECT COUNT(*) FROM pg_locks WHERE NOT granted AND relation = 'perdure.job'::regclass")
    else:
        cursor.execute(
            "SELECT COUNT(*) FROM information_schema.processlist"
            " WHERE db = database() AND state = 'Waiting for table metadata lock'"
        )
    return int(cursor.fetchone()[0])


def kill_others(connection: Any) -> None:
    """End every other connection to this database, in the middle of what it does."""
    if isinstance(connection, psycopg.Connection):
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        return
    cursor = connection.cursor()
    cursor.execute("SELECT id FROM information_schema.processlist WHERE db = database() AND id <> connection_id()")
    for (number,) in cursor.fetchall():
        cursor.execute(f"KILL {number}")


@pytest.mark.filterwarnings(
    # What was interrupted between being opened and being kept is closed by the garbage collector.
    "ignore::ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)
def test_a_leader_that_is_interrupted_leaves_the_others_their_jobs(scene: Scene, pool: ThreadPoolExecutor) -> None:
    """With Ctrl-C while it waits for the server."""
    futures: list[Future[Any]] = []

    def come(several: list[str], already: int) -> None:
        eventually(lambda: scene.came() == already)
        futures.extend(pool.submit(scene.send.enqueue, name) for name in several)
        eventually(lambda: scene.came() == already + len(several))

    def interrupt_when_all_wait() -> None:
        come(names()[ALONE:], ALONE + 1)
        os.kill(os.getpid(), signal.SIGINT)

    with scene.taken():
        come(names()[:ALONE], 0)
        helper = threading.Thread(target=interrupt_when_all_wait)
        helper.start()
        with pytest.raises(KeyboardInterrupt):
            scene.send.enqueue("interrupted")
        helper.join()
    for future in futures:
        future.result(timeout=30)
    assert [name for name in scene.sent() if name != "interrupted"] == names()


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_leader_that_is_interrupted_around_its_commit_doubles_nothing(
    scene: Scene, pool: ThreadPoolExecutor, moment: str
) -> None:
    """The first leads alone; the next leads all the others, and is interrupted."""
    shared, waiting, interrupts = SharedEnqueues(), threading.Event(), iter([False, True])

    def write(make: Any) -> Any:
        assert waiting.wait(30)
        hit = next(interrupts, False)
        if hit and moment == "before":
            raise KeyboardInterrupt
        written = scene.runner._write_alone(make)
        if hit:
            raise KeyboardInterrupt
        return written

    rows = [OneJob(made(scene, name)) for name in names()]
    shared._alone.update(OneJob(made(scene, name)) for name in names(ALONE))
    lane = shared._lanes["default"]
    first = pool.submit(shared.submit, rows[0], write)
    eventually(lambda: lane._led and not lane._waiting)
    rest = [pool.submit(shared.submit, row, write) for row in rows[1:]]
    eventually(lambda: len(lane._waiting) == CROWD - 1)
    waiting.set()
    told = [future.exception(timeout=30) or future.result() for future in [first, *rest]]
    [interrupted] = [name for name, answer in zip(names(), told, strict=True) if isinstance(answer, KeyboardInterrupt)]
    told.remove(told[names().index(interrupted)])
    assert [to(answer) for answer in told] == [name for name in names() if name != interrupted]
    assert scene.sent() == [name for name in names() if moment == "after" or name != interrupted]


def to(answer: Any) -> str:
    name: str = answer[0].payload["to"]
    return name


def made(scene: Scene, name: str) -> NewJob:
    """A job as the app would write it."""
    draft: Draft = scene.send.new(name)
    return new_job(*draft, JobId(scene.app.ids.new()), scene.app.clock.now())
