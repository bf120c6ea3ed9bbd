"""`ctx.transaction(session=…)`: a handler's ORM writes and the job's end are one transaction, on every database."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from perdure import JobContext, Perdure, PerdureError, Retry, TransactionError
from perdure.ops.doctor import examine, is_healthy
from tests.app.doors import django_connection
from tests.databases.async_doors import engine_at
from tests.mariadb import doors as mariadb_doors
from tests.worker.bodies import last_run, ran, take_over

SORTS = [
    pytest.param("sqlite"),
    pytest.param("postgres", marks=pytest.mark.postgres),
    pytest.param("mariadb", marks=pytest.mark.mariadb),
]
DRIVERS = {"sqlite": "sqlite", "postgres": "postgresql+psycopg", "mariadb": "mysql+pymysql"}
ASYNC_DRIVERS = {"sqlite": "aiosqlite", "postgres": "asyncpg", "mariadb": "aiomysql"}


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    item: Mapped[str] = mapped_column(sa.String(20), primary_key=True)


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    """The databases on servers, each made once."""
    return {}


@pytest.fixture(params=SORTS)
def sort(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def url(sort: str, made: dict[str, str], tmp_path: Path, request: pytest.FixtureRequest) -> str:
    if sort == "sqlite":
        return str(tmp_path / "jobs.db")
    if sort not in made:
        made[sort] = request.getfixturevalue(f"{sort}_server").new_database()
    return made[sort]


@pytest.fixture
def engine(sort: str, url: str) -> Iterator[sa.Engine]:
    engine = sa.create_engine(
        f"{DRIVERS[sort]}:///{url}" if sort == "sqlite" else DRIVERS[sort] + url[url.index(":") :]
    )
    Base.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(sa.delete(Order))
    yield engine
    engine.dispose()


@pytest.fixture
def app(url: str, engine: sa.Engine) -> Iterator[Perdure]:
    app = Perdure(url, auto_migrate=True, busy_timeout_s=2)
    app.store.upgrade()

    @app.job(queue="later")
    def send(to: str) -> None: ...

    yield app
    findings = examine(app.store)
    app.purge(state="completed")
    app.close()
    assert is_healthy(findings), findings


def items(engine: sa.Engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.scalars(sa.select(Order.item).order_by(Order.item)))


def sent(app: Perdure) -> list[str]:
    return sorted((job.payload or {})["to"] for job in app.jobs(kind="send"))


def test_the_sessions_commit_is_the_jobs_end(app: Perdure, engine: sa.Engine) -> None:
    def body(ctx: JobContext) -> None:
        with ctx.transaction(session=sessionmaker(engine)) as tx:
            tx.session.add(Order(item="tea"))
            tx.session.flush()
            assert items(engine) == []
            app.enqueue("send", {"to": "plain"})
            app.enqueue("send", {"to": "with tx"}, tx=tx)
            ctx.enqueue(app.kinds.get("send"), to="child")
            tx.session.add(Order(item="milk"))
            tx.result({"rows": 2})

    job = ran(app, "plain", body)
    assert (job.state, job.result, job.attempts) == ("completed", {"rows": 2}, 1), job.error
    assert (items(engine), sent(app)) == (["milk", "tea"], ["child", "plain", "with tx"])


def test_an_engine_will_do(app: Perdure, engine: sa.Engine) -> None:
    def body(ctx: JobContext) -> None:
        with ctx.transaction(session=engine) as tx:
            tx.session.execute(sa.insert(Order).values(item="tea"))

    job = ran(app, "plain", body)
    assert (job.state, items(engine)) == ("completed", ["tea"]), job.error


@pytest.mark.parametrize("where", ["inside", "at the commit"])
def test_an_error_rolls_both_back_and_is_an_ordinary_failure(app: Perdure, engine: sa.Engine, where: str) -> None:
    def body(ctx: JobContext) -> None:
        with ctx.transaction(session=sessionmaker(engine)) as tx:
            tx.session.add(Order(item=f"attempt {ctx.attempt}"))
            app.enqueue("send", {"to": f"attempt {ctx.attempt}"})
            if ctx.attempt == 1:
                tx.session.flush()
                if where == "inside":
                    raise OSError("no")
                tx.session.execute(sa.text("SELECT 1"))
                tx.session.add(Order(item=f"attempt {ctx.attempt}"))  # the same key: fails when it is flushed

    job = ran(app, "plain", body, retry=Retry(2, backoff="none"))
    assert (job.state, job.attempts) == ("completed", 2)
    assert (items(engine), sent(app)) == (["attempt 2"], ["attempt 2"])


@pytest.mark.parametrize("sort", SORTS[1:], indirect=True)  # on SQLite nobody else can write meanwhile
def test_a_lost_job_rolls_everything_back(app: Perdure, engine: sa.Engine) -> None:
    def body(ctx: JobContext) -> None:
        with ctx.transaction(session=sessionmaker(engine)) as tx:
            tx.session.add(Order(item="tea"))
            tx.session.flush()
            thief = threading.Thread(target=take_over, args=(app, ctx))
            thief.start()
            thief.join()

    job = ran(app, "plain", body)
    assert (job.result, items(engine)) == ("theirs", [])


def test_django_takes_part(app: Perdure, engine: sa.Engine, sort: str, url: str) -> None:
    if sort == "mariadb":
        mariadb_doors.mysqlclient()

    def body(ctx: JobContext) -> None:
        connection = django_connection(url)  # Django has one for each thread
        try:
            with ctx.transaction(session=connection) as tx:
                assert tx.session is connection
                with connection.cursor() as cursor:
                    cursor.execute("INSERT INTO orders VALUES (%s)", [f"attempt {ctx.attempt}"])
                app.enqueue("send", {"to": f"attempt {ctx.attempt}"})
                if ctx.attempt == 1:
                    raise OSError("no")
        finally:
            connection.close()

    job = ran(app, "plain", body, retry=Retry(2, backoff="none"))
    assert (job.state, job.attempts) == ("completed", 2), job.error
    assert (items(engine), sent(app)) == (["attempt 2"], ["attempt 2"])


def test_a_coroutine_takes_an_async_session(app: Perdure, engine: sa.Engine, sort: str, url: str) -> None:
    @app.job(retry=Retry(2, backoff="none"))
    async def order(ctx: JobContext) -> int:
        own = engine_at(url, ASYNC_DRIVERS[sort])
        try:
            async with ctx.transaction(session=async_sessionmaker(own)) as tx:
                tx.session.add(Order(item=f"attempt {ctx.attempt}"))
                await tx.session.flush()
                await app.aio.enqueue("send", {"to": f"attempt {ctx.attempt}"}, tx=tx.session)
                with pytest.raises(TransactionError, match="await"):
                    app.enqueue("send", {"to": "beside"})
                if ctx.attempt == 1:
                    raise OSError("no")
                tx.result(7)
        finally:
            await own.dispose()
        return 0

    job = order.enqueue()
    app.worker().run(until_idle=True)
    found = app.existing(job)
    assert (found.state, found.attempts, found.result) == ("completed", 2, 7), found.error
    assert (items(engine), sent(app)) == (["attempt 2"], ["attempt 2"])


@pytest.mark.parametrize("sort", ["sqlite"], indirect=True)
def test_what_opens_no_session_is_refused(app: Perdure, engine: sa.Engine, url: str, tmp_path: Path) -> None:
    refused: list[str] = []
    elsewhere = sa.create_engine(f"sqlite:///{tmp_path}/other.db")
    wrong: list[Any] = [5, "sqlite:///x", dict, Session(engine), async_sessionmaker(engine_at(url, "aiosqlite"))]

    def body(ctx: JobContext) -> None:
        for source in [*wrong, engine_at(url, "aiosqlite"), elsewhere]:
            with pytest.raises(PerdureError) as raised, ctx.transaction(session=source):
                raise AssertionError("it was opened")
            refused.append(raised.value.code)
        with ctx.transaction(session=engine) as tx, pytest.raises(TransactionError, match="session"):
            tx.execute("SELECT 1")

    job = ran(app, "plain", body)
    elsewhere.dispose()
    assert job.state == "completed", job.error
    assert refused == [*["option_invalid"] * 4, "tx_async", "tx_async", "tx_wrong_database"]


@pytest.mark.parametrize("sort", ["sqlite"], indirect=True)
def test_a_transaction_that_only_read_so_far_cannot_be_overtaken(app: Perdure, engine: sa.Engine, url: str) -> None:
    """As Django begins them by default, and sqlite3 with autocommit=False."""
    blocked: list[str] = []

    def body(ctx: JobContext) -> None:
        connection = django_connection(Path(url))
        try:
            with ctx.transaction(session=connection), connection.cursor() as cursor:
                cursor.execute("SELECT count(*) FROM orders")
                with closing(sqlite3.connect(url, timeout=0)) as other:
                    try:
                        other.execute("INSERT INTO orders VALUES ('theirs')")
                    except sqlite3.OperationalError as error:
                        blocked.append(str(error))
                cursor.execute("INSERT INTO orders VALUES ('ours')")
        finally:
            connection.close()

    job = ran(app, "plain", body)
    assert (job.state, last_run(app, job).state, blocked) == ("completed", "completed", ["database is locked"])
    assert items(engine) == ["ours"]
