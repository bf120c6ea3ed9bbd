"""`async with app.testing(tx=…)`: the kit inside a test's transaction on an asynchronous connection."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import aiosqlite
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker

from perdure import Done, JobContext, Perdure, PerdureError, TransactionError
from perdure.ops.doctor import examine, is_healthy
from tests.databases.async_doors import DOORS, AsyncDoor, Open, engine_at
from tests.mariadb_server import mariadb_server
from tests.postgres_server import postgres_server

__all__ = ["mariadb_server", "postgres_server"]

MARKS: dict[str, Any] = {"sqlite": (), "postgres": pytest.mark.postgres, "mariadb": pytest.mark.mariadb}
ORDERS = "CREATE TABLE orders (item VARCHAR(20))"
PLACES = [
    pytest.param((database, open_), id=f"{database}: {name}", marks=MARKS[database])
    for database, doors in DOORS.items()
    for name, open_ in doors.items()
    if not name.startswith("run_sync")  # its connection is an AsyncSession too
]


class Place:
    """A database with the user's table, and how to open a transaction on it that the test rolls back."""

    def __init__(self, url: str, open_: Open) -> None:
        self.url = url
        self._open = open_

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[AsyncDoor]:
        door = await self._open(self.url)
        try:
            if not self.url.startswith("mysql"):  # which would commit the transaction
                await door.execute(ORDERS)
            yield door
            await door.rollback()
        finally:
            await door.close()


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    database, open_ = request.param
    if database == "sqlite":
        return Place(str(tmp_path / "users.db"), open_)
    url = request.getfixturevalue(f"{database}_server").new_database()
    if database == "mariadb":
        made = Perdure(url, auto_migrate=True)
        with made.transaction() as tx:
            tx.execute(ORDERS)
        made.close()
    return Place(url, open_)


@pytest.fixture
def send(app: Perdure) -> Any:
    @app.job(retry=2)
    async def send(ctx: JobContext, to: str) -> str:
        if to == "fails":
            raise OSError(to)
        return f"sent {to}"

    return send


def test_everything_is_inside_the_tests_transaction(app: Perdure, send: Any, place: Place) -> None:
    @app.job
    def order(ctx: JobContext, item: str) -> None:
        ctx.enqueue(send, to=item)
        with ctx.transaction() as tx:
            tx.execute("INSERT INTO orders VALUES (:item)", {"item": item})
            send.enqueue(to="inside")
            if ctx.attempt == 1:
                raise OSError

    def count() -> int:
        with app.transaction() as tx:
            return len(tx.execute("SELECT item FROM orders").fetchall())

    async def story() -> None:
        async with place.opened() as door, app.testing(tx=door.tx) as t:
            await door.execute("INSERT INTO orders VALUES ('tea')")
            await order.options(tx=door.tx).aenqueue(item="milk")
            fails = await send.options(idempotency_key="k", tags=["x"]).aenqueue(to="fails")
            assert [job.kind for job in await t.adrain()] == ["order", "send"]
            assert await asyncio.to_thread(count) == 1
            waits = await app.aio.get(fails)
            assert waits is not None
            assert (waits.state, waits.attempts) == ("scheduled", 1)
            await t.aadvance(minutes=5)
            assert [job.state for job in await t.adrain()] == ["completed", "failed", "completed", "completed"]
            assert await asyncio.to_thread(count) == 2
            await t.aassert_enqueued(send, to="milk")
            later = await send.options(delay=60).aenqueue(to="later")
            await app.aio.cancel(later, tx=door.tx)
            assert [job.state for job in await t.aenqueued(send, to="later")] == ["cancelled"]
            with pytest.raises(AssertionError, match="send was enqueued with to='later'"):
                await t.aassert_not_enqueued(send, to="later")
            assert is_healthy(await asyncio.to_thread(examine, app.store))

    asyncio.run(story())
    after = Perdure(place.url, auto_migrate=True)
    assert list(after.jobs()) == []
    after.close()


def test_a_coroutine_reads_its_job_and_writes_with_its_end(app: Perdure, place: Place) -> None:
    @app.job
    async def pack(ctx: JobContext, item: str) -> Done:
        assert (ctx.job.payload, ctx.job.state, ctx.run.attempt) == ({"item": item}, "running", 1)
        assert ctx.scheduled_for is None
        return Done("packed", write=lambda tx: tx.execute("INSERT INTO orders VALUES (:item)", {"item": item}))

    def items() -> Any:
        with app.transaction() as tx:
            return list(tx.execute("SELECT 1 FROM orders"))

    async def story() -> None:
        async with place.opened() as door, app.testing(tx=door.tx) as t:
            await pack.aenqueue(item="tea")
            (job,) = await t.adrain(raise_errors=True)
            assert (job.state, job.result) == ("completed", "packed")
            assert len(await asyncio.to_thread(items)) == 1

    asyncio.run(story())


def test_a_coroutine_that_does_not_await_is_refused_and_told_what_to_write(
    app: Perdure, send: Any, place: Place
) -> None:
    async def story() -> None:
        async with place.opened() as door, app.testing(tx=door.tx) as t:
            for ask in (lambda: send.enqueue(to="a"), lambda: t.enqueued(send), lambda: list(app.jobs())):
                with pytest.raises(TransactionError, match=r"await kind\.aenqueue") as raised:
                    ask()
                assert raised.value.code == "tx_async"
            await t.aassert_not_enqueued()

    asyncio.run(story())


def test_what_is_asked_while_nobody_runs_the_loop_is_refused_too(app: Perdure, send: Any, tmp_path: Path) -> None:
    async def begin() -> Any:
        connection = await aiosqlite.connect(tmp_path / "users.db")
        return connection, await app.testing(tx=connection).__aenter__()

    loop = asyncio.new_event_loop()
    connection, t = loop.run_until_complete(begin())
    try:
        with pytest.raises(TransactionError, match="a test and its coroutines have to await"):
            send.enqueue(to="a")
        with pytest.raises(PerdureError, match=r"await t\.adrain"):
            t.drain()
    finally:
        loop.run_until_complete(connection.close())
        loop.close()


# -- SQLAlchemy ------------------------------------------------------------------------------------------------------

DRIVERS = [
    pytest.param("aiosqlite"),
    pytest.param("psycopg", marks=pytest.mark.postgres),
    pytest.param("asyncpg", marks=pytest.mark.postgres),
]


@pytest.fixture(params=DRIVERS)
def outer(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """SQLAlchemy's recipe: a connection with an outer transaction, which is rolled back."""
    if request.param == "aiosqlite":
        url = str(tmp_path / "users.db")
    else:
        url = request.getfixturevalue("postgres_server").new_database()

    @asynccontextmanager
    async def connected() -> AsyncIterator[AsyncConnection]:
        engine = engine_at(url, request.param)
        async with engine.connect() as connection:
            transaction = await connection.begin()
            await connection.execute(sa.text(ORDERS))
            yield connection
            await transaction.rollback()
        await engine.dispose()

    return connected


def sessions_of(connection: AsyncConnection) -> async_sessionmaker[AsyncSession]:
    return async_sessionmaker(connection, join_transaction_mode="create_savepoint")


def test_a_session_of_the_rollback_fixture_commits_and_its_jobs_run(app: Perdure, send: Any, outer: Any) -> None:
    async def story() -> None:
        async with outer() as connection, sessions_of(connection)() as session, app.testing(tx=session) as t:
            await send.options(tx=session).aenqueue(to="ann")
            await session.run_sync(lambda plain: send.options(tx=plain).enqueue(to="bob"))
            await session.commit()
            await send.options(tx=session).aenqueue(to="lost")
            await session.rollback()
            assert [job.result for job in await t.adrain()] == ["sent ann", "sent bob"]

    asyncio.run(story())


def test_a_handlers_asynchronous_session_takes_part(app: Perdure, outer: Any) -> None:
    async def story() -> None:
        async with outer() as connection:

            @app.job
            async def order(ctx: JobContext, item: str) -> None:
                async with ctx.transaction(session=sessions_of(connection)) as tx:
                    await tx.session.execute(sa.text("INSERT INTO orders VALUES (:item)"), {"item": item})
                    if ctx.attempt == 1:
                        raise OSError

            async with app.testing(tx=connection) as t:
                await order.aenqueue(item="tea")
                await t.adrain()
                assert await connection.scalar(sa.text("SELECT count(*) FROM orders")) == 0
                await t.aadvance(minutes=1)
                (job,) = await t.adrain(raise_errors=True)
                assert job.state == "completed"
                assert await connection.scalar(sa.text("SELECT count(*) FROM orders")) == 1

    asyncio.run(story())


def test_a_drain_that_is_cancelled_gives_the_job_back_and_leaves_the_connection_usable(
    app: Perdure, outer: Any
) -> None:
    begun = asyncio.Event()

    @app.job
    async def stays(ctx: JobContext) -> None:
        if ctx.attempt == 1:
            begun.set()
            await asyncio.Event().wait()

    async def story() -> None:
        async with outer() as connection, app.testing(tx=connection) as t:
            await stays.aenqueue()
            drain = asyncio.ensure_future(t.adrain())
            await begun.wait()
            drain.cancel()
            with pytest.raises(asyncio.CancelledError):
                await drain
            (job,) = await t.aenqueued(stays)
            assert (job.state, job.attempts) == ("queued", 1)
            (job,) = await t.adrain()
            assert (job.state, job.attempts) == ("completed", 2)

    asyncio.run(story())


def test_another_connection_is_refused_inside(app: Perdure, send: Any, outer: Any, tmp_path: Path) -> None:
    async def story() -> None:
        engine = engine_at(str(tmp_path / "other.db"), "aiosqlite")
        async with outer() as connection, engine.connect() as other, app.testing(tx=connection) as t:
            with closing(sqlite3.connect(tmp_path / "plain.db")) as plain:
                for tx in (other, plain):
                    with pytest.raises(TransactionError, match=r"app\.testing") as raised:
                        await send.options(tx=tx).aenqueue(to="a")
                    assert raised.value.code == "tx_wrong_database"
            await t.aassert_not_enqueued()
        await engine.dispose()

    asyncio.run(story())


def test_a_plain_with_is_refused_with_what_to_write(app: Perdure, tmp_path: Path) -> None:
    session = AsyncSession(engine_at(str(tmp_path / "users.db"), "aiosqlite"))
    with pytest.raises(TransactionError, match=r"sqlalchemy AsyncSession.*; write async with app\.testing") as raised:
        app.testing(tx=session).__enter__()
    assert raised.value.code == "tx_async"
    assert app.kit is None


def test_jobs_that_wait_there_are_not_run_by_a_test(app: Perdure, tmp_path: Path) -> None:
    real = Perdure(tmp_path / "real.db")
    real.job(name="send")(lambda: None)
    real.enqueue("send")
    real.close()

    async def story() -> None:
        async with aiosqlite.connect(tmp_path / "real.db") as connection:
            with pytest.raises(PerdureError, match="for tests alone") as raised:
                await app.testing(tx=connection).__aenter__()
            assert raised.value.code == "testing_not_empty"

    asyncio.run(story())
    assert app.kit is None


def test_async_with_works_on_every_other_database_too(app: Perdure, send: Any) -> None:
    async def story() -> None:
        async with app.testing() as t:
            await send.aenqueue(to="ann")
            assert [job.result for job in await t.adrain()] == ["sent ann"]
            assert t.enqueued() == await t.aenqueued()

    asyncio.run(story())
