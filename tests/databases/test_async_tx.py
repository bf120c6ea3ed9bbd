"""`tx=` with asynchronous connections: every driver, and every way to it, on each database that has one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import aiosqlite
import asyncpg
import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker

from perdure import JobContext, KeyConflict, Perdure, TransactionError
from tests.databases.async_doors import DOORS, AsyncDoor, engine_at
from tests.databases.conftest import Makers
from tests.databases.of_each_sort import MARKS, app, made, names, ordered, send, url
from tests.worker.patience import eventually

__all__ = ["app", "made", "send", "url"]

ROWS = [
    pytest.param(sort, name, marks=MARKS[sort], id=f"{sort}: {name}") for sort, doors in DOORS.items() for name in doors
]

Open = Callable[[], AbstractAsyncContextManager[AsyncDoor]]


@pytest.fixture
def opened(url: str, sort: str, door: str) -> Open:
    """Opens the user's transaction, when the test is ready for it."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[AsyncDoor]:
        found: AsyncDoor = await DOORS[sort][door](url)
        try:
            yield found
        finally:
            await found.close()

    return opened


every_door = pytest.mark.parametrize(("sort", "door"), ROWS)


def run(main: Callable[[], Awaitable[Any]]) -> Any:
    async def started() -> Any:
        return await main()

    return asyncio.run(started())


@every_door
def test_a_job_between_the_users_rows_is_committed_with_them(opened: Open, app: Perdure, send: Any) -> None:
    async def main() -> None:
        async with opened() as door:
            await door.execute("INSERT INTO orders VALUES (1)")
            job = await door.enqueue(send, "a", tags=["x", "é"], business_key="b", idempotency_key="k", delay=0)
            before = app.get(job)
            await door.execute("INSERT INTO orders VALUES (2)")
            await door.commit()
            assert (before, app.get(job)) == (None, job)

    run(main)
    assert (names(app), ordered(app)) == (["a"], [1, 2])


@every_door
def test_a_job_enqueued_first_goes_with_the_rollback(opened: Open, app: Perdure, send: Any) -> None:
    async def main() -> None:
        async with opened() as door:
            await door.enqueue(send, "a")
            await door.execute("INSERT INTO orders VALUES (1)")
            await door.rollback()

    run(main)
    assert names(app) == ordered(app) == []


@every_door
def test_a_job_enqueued_first_stays_with_the_commit(opened: Open, app: Perdure, send: Any) -> None:
    async def main() -> None:
        async with opened() as door:
            await door.enqueue(send, "a")
            await door.commit()

    run(main)
    assert names(app) == ["a"]


@every_door
def test_a_refused_job_leaves_the_users_transaction_usable(opened: Open, app: Perdure, send: Any) -> None:
    send.options(business_key="b").enqueue("live")

    async def main() -> None:
        async with opened() as door:
            await door.execute("INSERT INTO orders VALUES (1)")
            with pytest.raises(KeyConflict):
                await door.enqueue(send, "refused", business_key="b", idempotency_key="k")
            await door.execute("INSERT INTO orders VALUES (2)")
            await door.enqueue(send, "next", idempotency_key="k")
            await door.commit()

    run(main)
    assert (names(app), ordered(app)) == (["live", "next"], [1, 2])


@every_door
def test_many_jobs_and_every_verb_take_part(opened: Open, app: Perdure, send: Any) -> None:
    waiting = send.enqueue_many([{"to": str(n)} for n in range(8)])
    ended = app.cancel(send.enqueue("ended"))
    app.templates.put("greeting", kind="send", payload={"to": "template"})

    async def main() -> None:
        async with opened() as door:
            assert (await door.call(app, "cancel", waiting[0])).state == "cancelled"
            assert (await door.call(app, "pause", waiting[1])).state == "paused"
            assert (await door.call(app, "resume", waiting[1])).state == "queued"
            assert (await door.call(app, "move", waiting[2], to="front")).id == waiting[2].id
            assert (await door.call(app, "set_priority", waiting[3], 4)).priority == 4
            assert (await door.call(app, "edit", waiting[4], payload={"to": "edited"}, tags=["x"])).tags == ("x",)
            assert (await door.call(app, "supersede", waiting[5], send.new("instead"))).superseded_by is not None
            assert (await door.call(app, "retry", waiting[0])).life == 2
            assert (await door.call(app, "retry", ended, as_new=True)).retry_of == ended.id
            assert (await door.call(app, "delete", ended)).id == ended.id
            assert (await door.call(app, "templates.enqueue", "greeting")).payload == {"to": "template"}
            assert (await door.call(app, "enqueue", "send", {"to": "by name"})).payload == {"to": "by name"}
            drafts = [send.options(tags=["many"], idempotency_key=f"k{n}").new(f"many {n}") for n in range(60)]
            assert len(await door.call(app, "enqueue_many", drafts)) == 60
            await door.commit()

    run(main)
    single = ["3", "2", "1", "edited", "6", "7", "instead", "0", "ended", "template", "by name"]
    assert sorted(names(app)) == sorted(single + [f"many {n}" for n in range(60)])
    assert names(app)[0] == "3"
    assert len(list(app.jobs(tag="many"))) == 60


@every_door
def test_the_same_verbs_go_with_the_rollback(opened: Open, app: Perdure, send: Any) -> None:
    job = send.enqueue("a")

    async def main() -> None:
        async with opened() as door:
            await door.call(app, "cancel", job)
            await door.call(app, "enqueue_many", [send.new("b"), send.new("c")])
            await door.rollback()

    run(main)
    assert list(app.jobs()) == [job]


@every_door
def test_odd_texts_come_back_as_they_were_given(opened: Open, app: Perdure, send: Any) -> None:
    odd = "é ␀ 🦀 \\ ' \" % $1 ?1 :x \u0000"

    async def main() -> None:
        async with opened() as door:
            job = await door.enqueue(send, odd, tags=["%s", "$1", "'é"], params={"x": [1.5, None, "é"]})
            again = await door.enqueue(send, odd, idempotency_key="k")
            same = await door.enqueue(send, odd, idempotency_key="k")
            await door.commit()
            found = app.get(job)
            assert found is not None
            assert (found.payload, found.tags, found.params) == ({"to": odd}, job.tags, {"x": [1.5, None, "é"]})
            assert (same.id, same.deduplicated, same.payload) == (again.id, True, {"to": odd})

    run(main)


@every_door
def test_tasks_that_share_a_connection_do_not_mix(opened: Open, app: Perdure, send: Any) -> None:
    send.options(business_key="taken").enqueue("first")

    async def main() -> list[Any]:
        async with opened() as door:
            await door.execute("INSERT INTO orders VALUES (1)")
            good = [door.enqueue(send, "good", tags=["x"]) for _ in range(5)]
            bad = [door.enqueue(send, "bad", business_key="taken") for _ in range(5)]
            both = [task for pair in zip(good, bad, strict=True) for task in pair]
            if isinstance(door.tx, AsyncSession):  # SQLAlchemy itself allows one task at a time
                answers: list[Any] = [await asyncio.gather(one, return_exceptions=True) for one in both]
                answers = [answer for (answer,) in answers]
            else:
                answers = await asyncio.gather(*both, return_exceptions=True)
            await door.commit()
            return answers

    answers = run(main)
    assert [type(answer) for answer in answers[1::2]] == [KeyConflict] * 5
    assert (names(app), ordered(app)) == (["first"] + ["good"] * 5, [1])


# -- waiting, and being cancelled ------------------------------------------------------------------------------------


def one_of_each_driver(*, on: Sequence[str] = ("sqlite", "postgres", "mariadb")) -> pytest.MarkDecorator:
    """Every driver once, and SQLAlchemy once for each database."""
    bare = {"sqlite": ["aiosqlite"], "postgres": ["psycopg", "asyncpg"], "mariadb": ["aiomysql", "asyncmy"]}
    wanted = [f"{sort}: {name}" for sort in on for name in [*bare[sort], f"AsyncSession, {bare[sort][0]}"]]
    return pytest.mark.parametrize(("sort", "door"), [row for row in ROWS if row.id in wanted])


@asynccontextmanager
async def locked(app: Perdure, url: str) -> AsyncIterator[None]:
    """Another transaction holds what an enqueue with the business key `held` needs."""
    other = Perdure(url)

    @other.job(queue="mail")
    def send(to: str) -> None: ...

    with closing(other), pytest.raises(ZeroDivisionError), other.transaction():
        await asyncio.to_thread(send.options(business_key="held").enqueue, "other")
        yield
        raise ZeroDivisionError


@one_of_each_driver()
def test_other_tasks_go_on_while_an_enqueue_waits(opened: Open, app: Perdure, send: Any, url: str) -> None:
    async def main() -> None:
        async with opened() as door:
            async with locked(app, url):
                waiting = asyncio.create_task(door.enqueue(send, "a", business_key="held"))
                for _ in range(50):
                    await asyncio.sleep(0.001)
                assert not waiting.done()
            await waiting
            await door.commit()

    run(main)
    assert names(app) == ["a"]


@one_of_each_driver(on=["sqlite"])
def test_what_was_cancelled_while_it_waited_for_the_file_is_not_written(
    opened: Open, app: Perdure, send: Any, url: str
) -> None:
    async def main() -> None:
        async with opened() as door:
            async with locked(app, url):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(door.enqueue(send, "a"), 0.1)
            await door.enqueue(send, "b")
            await door.commit()

    run(main)
    assert names(app) == ["b"]


@one_of_each_driver(on=["postgres"])
def test_the_first_job_of_a_queue_does_not_wait_for_another_first_one(
    opened: Open, app: Perdure, send: Any, url: str
) -> None:
    async def main() -> None:
        async with opened() as door, locked(app, url):
            assert (await door.enqueue(send, "a")).position > 0
            await door.commit()

    run(main)
    assert names(app) == ["a"]


@one_of_each_driver(on=["postgres", "mariadb"])
def test_a_cancel_in_the_middle_leaves_nothing_or_a_transaction_that_cannot_be_committed(
    opened: Open, app: Perdure, send: Any, url: str
) -> None:
    async def main() -> bool:
        async with opened() as door:
            await door.execute("INSERT INTO orders VALUES (1)")
            async with locked(app, url):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(
                        door.enqueue(send, "a", tags=["x"], idempotency_key="k", business_key="held"), 0.1
                    )
            try:
                await door.execute("INSERT INTO orders VALUES (2)")
                await door.commit()
            except Exception:  # noqa: BLE001 - whatever the driver says
                return False
            return True

    committed = run(main)
    assert ordered(app) == ([1, 2] if committed else [])
    assert names(app) == []
    assert send.options(idempotency_key="k", business_key="held").enqueue("b").deduplicated is False


@one_of_each_driver()
def test_a_cancel_at_any_step_leaves_all_of_a_job_or_nothing(opened: Open, app: Perdure, send: Any) -> None:
    async def once(steps: int) -> bool:
        """Whether the enqueue was done before its cancel."""
        async with opened() as door:
            await door.execute("SELECT 1")  # SQLAlchemy connects here
            enqueueing = asyncio.create_task(
                door.enqueue(send, str(steps), tags=["x"], idempotency_key=f"k{steps}", business_key=f"b{steps}")
            )
            for _ in range(steps):
                await asyncio.sleep(0)
            done = enqueueing.done()
            enqueueing.cancel()
            await asyncio.gather(enqueueing, return_exceptions=True)
            with suppress(Exception):  # the transaction, or the connection, may be gone
                await door.commit()
            with suppress(Exception):
                await door.rollback()
            return done

    async def main() -> None:
        steps = 0
        while not await once(steps):
            steps += 1 + steps // 4

    run(main)
    assert names(app) == [(job.payload or {})["to"] for job in reversed(list(app.jobs(tag="x")))]
    for name in names(app):
        again = send.options(idempotency_key=f"k{name}").enqueue(name)
        assert (again.deduplicated, again.business_key) == (True, f"b{name}")


@one_of_each_driver()
def test_a_cancelled_verb_lets_go_of_the_connection(opened: Open, app: Perdure, send: Any) -> None:
    job = send.enqueue("a")

    async def main() -> None:
        async with opened() as door:
            await door.execute("SELECT 1")
            for steps in range(6):
                cancelling = asyncio.create_task(door.call(app, "edit", job, payload={"to": "b"}))
                for _ in range(steps):
                    await asyncio.sleep(0)
                cancelling.cancel()
                await asyncio.gather(cancelling, return_exceptions=True)
            await asyncio.to_thread(eventually, lambda: "perdure-verb" not in map(_name, threading.enumerate()))
            with suppress(Exception):
                await door.rollback()

    run(main)
    assert app.get(job) == job


def _name(thread: threading.Thread) -> str:
    return thread.name


# -- refused ---------------------------------------------------------------------------------------------------------


@every_door
def test_a_synchronous_verb_names_the_driver_and_the_way_out(opened: Open, app: Perdure, send: Any, door: str) -> None:
    job = send.enqueue("a")

    async def main() -> list[TransactionError]:
        refused: list[TransactionError] = []
        async with opened() as opened_door:
            for verb in (send.options(tx=opened_door.tx).enqueue, lambda _: app.cancel(job, tx=opened_door.tx)):
                with pytest.raises(TransactionError) as raised:
                    verb("b")
                refused.append(raised.value)
            await opened_door.rollback()
        return refused

    library = door.split(",", maxsplit=1)[0]
    for error in run(main):
        assert error.code == "tx_async"
        assert (library if library in error.message else "sqlalchemy Async") in error.message
        assert "aenqueue" in error.message
    assert list(app.jobs()) == [job]


Way = Callable[[], Awaitable[Any]]


def code_of(app: Perdure, tx: Way) -> str:
    """The code of the error that enqueueing with this transaction raises."""

    @app.job
    def send(to: str) -> None: ...

    async def main() -> str:
        given = await tx()
        with pytest.raises(TransactionError) as raised:
            await send.options(tx=given).aenqueue("a")
        with pytest.raises(TransactionError) as again:
            await app.aio.cancel("0" * 32, tx=given)
        assert raised.value.code == again.value.code
        for closes in ("close", "ensure_closed"):
            if hasattr(given, closes):
                with suppress(Exception):
                    await getattr(given, closes)()
        return raised.value.code

    code: str = run(main)
    return code


on_postgres = pytest.mark.parametrize("sort", [pytest.param("postgres", marks=pytest.mark.postgres)])
on_sqlite = pytest.mark.parametrize("sort", ["sqlite"])


@on_postgres
def test_what_has_no_transaction_is_refused(app: Perdure, url: str) -> None:
    async def asyncpg_outside() -> Any:
        return await asyncpg.connect(url)

    async def psycopg_autocommit() -> Any:
        return await psycopg.AsyncConnection.connect(url, autocommit=True)

    async def session(driver: str) -> Any:
        return AsyncSession(engine_at(url, driver, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool))

    ways: list[Way] = [asyncpg_outside, psycopg_autocommit, partial(session, "psycopg"), partial(session, "asyncpg")]
    assert [code_of(app, way) for way in ways] == ["tx_not_open"] * 4


@on_postgres
def test_what_is_closed_is_refused(app: Perdure, url: str) -> None:
    async def closed_one(connect: Any) -> Any:
        connection = await connect(url)
        await connection.close()
        return connection

    async def released() -> Any:
        async with asyncpg.create_pool(url, min_size=1) as pool, pool.acquire() as connection:
            pass
        return connection

    ways: list[Way] = [
        partial(closed_one, asyncpg.connect),
        partial(closed_one, psycopg.AsyncConnection.connect),
        released,
    ]
    assert [code_of(app, way) for way in ways] == ["tx_closed"] * 3


@on_postgres
def test_a_connection_to_another_database_is_refused(app: Perdure, new: Makers) -> None:
    async def begun() -> Any:
        connection = await asyncpg.connect(elsewhere)
        await connection.transaction().start()
        return connection

    elsewhere = new("postgres")
    assert code_of(app, begun) == "tx_wrong_database"


@on_postgres
def test_a_failed_transaction_is_refused(app: Perdure, url: str) -> None:
    async def failed(connect: Any) -> Any:
        connection = await connect(url)
        with suppress(psycopg.Error, asyncpg.PostgresError):
            await connection.execute("BEGIN")
            await connection.execute("SELECT 1 / 0")
        return connection

    ways = [partial(failed, asyncpg.connect), partial(failed, psycopg.AsyncConnection.connect)]
    assert [code_of(app, way) for way in ways] == ["tx_aborted"] * 2


@on_postgres
def test_a_connection_that_reads_ids_in_its_own_way_is_refused(app: Perdure, url: str) -> None:
    async def own() -> Any:
        connection = await asyncpg.connect(url)
        await connection.set_type_codec("uuid", encoder=str, decoder=str, schema="pg_catalog")
        await connection.transaction().start()
        return connection

    assert code_of(app, own) == "tx_unusable"


@on_postgres
def test_what_carries_no_connection_of_this_database_is_refused(app: Perdure, url: str) -> None:
    async def of_sqlite() -> Any:
        return await aiosqlite.connect(":memory:")

    async def scoped() -> Any:
        return async_scoped_session(async_sessionmaker(engine_at(url, "asyncpg")), asyncio.current_task)

    async def unopened() -> Any:
        return engine_at(url, "asyncpg").connect()

    assert [code_of(app, way) for way in (of_sqlite, scoped)] == ["tx_unknown_type"] * 2
    assert code_of(app, unopened) == "tx_unusable"


@on_sqlite
def test_on_sqlite_the_same_is_refused(app: Perdure, url: str, tmp_path: Path) -> None:
    async def autocommit() -> Any:
        return await aiosqlite.connect(url, isolation_level=None)

    async def closed_one() -> Any:
        connection = await aiosqlite.connect(url)
        await connection.close()
        return connection

    async def elsewhere() -> Any:
        return await aiosqlite.connect(tmp_path / "other.sqlite")

    ways = (autocommit, closed_one, elsewhere)
    assert [code_of(app, way) for way in ways] == ["tx_not_open", "tx_closed", "tx_wrong_database"]


@on_sqlite
def test_a_session_of_run_sync_is_refused_outside_of_it(app: Perdure, url: str, send: Any) -> None:
    async def main() -> str:
        engine = engine_at(url, "aiosqlite")
        async with AsyncSession(engine) as session:
            with pytest.raises(TransactionError) as raised:
                send.options(tx=session.sync_session).enqueue("a")
            await session.execute(sa.text("SELECT 1"))
            with pytest.raises(TransactionError) as later:
                send.options(tx=session.sync_session).enqueue("a")
        await engine.dispose()
        assert raised.value.code == later.value.code
        return raised.value.code

    assert run(main) == "tx_async"


# -- ctx.transaction() in a coroutine --------------------------------------------------------------------------------

on_servers = pytest.mark.parametrize(
    "sort", [pytest.param("postgres", marks=pytest.mark.postgres), pytest.param("mariadb", marks=pytest.mark.mariadb)]
)


@on_servers
def test_a_coroutine_ends_its_job_together_with_its_rows(app: Perdure, send: Any) -> None:
    @app.job
    async def pay(ctx: JobContext) -> int:
        async with ctx.transaction() as tx:
            await tx.execute("INSERT INTO orders VALUES (%s)", (1,))
            await tx.executemany("INSERT INTO orders VALUES (%s)", [(2,), (3,)])
            await send.aenqueue("joined")
            await send.options(tx=tx).aenqueue("given")
            assert (await tx.execute("SELECT COUNT(*) FROM orders")).fetchone() == (3,)
            tx.result(7)
        return 0

    job = pay.enqueue()
    app.worker(["default"]).run(until_idle=True)
    assert (app.existing(job).result, ordered(app), names(app)) == (7, [1, 2, 3], ["joined", "given"])


@on_servers
def test_an_error_or_a_cancel_in_a_coroutine_rolls_all_of_it_back(app: Perdure, send: Any) -> None:
    @app.job
    async def pay(ctx: JobContext) -> str:
        with pytest.raises(ZeroDivisionError):
            async with ctx.transaction() as tx:
                await tx.execute("INSERT INTO orders VALUES (1)")
                await send.aenqueue("inside")
                raise ZeroDivisionError
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05), ctx.transaction() as tx:
                await tx.execute("INSERT INTO orders VALUES (2)")
                await asyncio.Event().wait()
        return "returned"

    job = pay.enqueue()
    app.worker(["default"]).run(until_idle=True)
    assert (app.existing(job).result, ordered(app), names(app)) == ("returned", [], [])


@on_servers
def test_coroutines_wait_for_a_connection_without_holding_up_those_that_have_one(app: Perdure) -> None:
    @app.job
    async def pay(ctx: JobContext, number: int) -> None:
        async with ctx.transaction() as tx:
            await tx.execute("INSERT INTO orders VALUES (%s)", (number,))
            await asyncio.sleep(0)
            await tx.execute("SELECT 1")

    pay.enqueue_many([{"number": number} for number in range(25)])
    app.worker(["default"], concurrency=25).run(until_idle=True)
    assert ordered(app) == list(range(25))
    assert [run.attempt for run in app.runs()] == [1] * 25


@on_servers
def test_a_plain_block_works_in_a_coroutine_too(app: Perdure) -> None:
    @app.job
    async def pay(ctx: JobContext) -> None:
        with ctx.transaction() as tx:
            tx.execute("INSERT INTO orders VALUES (1)")

    job = pay.enqueue()
    app.worker(["default"]).run(until_idle=True)
    assert (app.existing(job).state, ordered(app)) == ("completed", [1])
