"""`app.testing(url=…)` and `app.testing(tx=…)`: the kit on the user's own database, and in his test's transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import psycopg2
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session, sessionmaker

from perdure import JobContext, Perdure, PerdureError, TransactionError
from tests.app.doors import DjangoAtomic
from tests.mariadb.doors import Plain as PlainMariaDB
from tests.mariadb_server import mariadb_server
from tests.postgres.doors import engine_at
from tests.postgres_server import postgres_server

__all__ = ["mariadb_server", "postgres_server"]

POSTGRES = pytest.mark.postgres
MARIADB = pytest.mark.mariadb


class Place:
    """A database with the user's table, and a transaction on it that the test rolls back."""

    def __init__(self, tx: Any, execute: Callable[[str], Any], rollback: Callable[[], Any]) -> None:
        self.tx = tx
        self.execute = execute
        self.rollback = rollback


def _memory(stack: ExitStack, request: pytest.FixtureRequest, path: Path) -> Place:
    connection = stack.enter_context(closing(sqlite3.connect(":memory:")))
    return Place(connection, connection.execute, connection.rollback)


def _sqlalchemy(engine: sa.Engine, stack: ExitStack) -> Place:
    """As SQLAlchemy's documentation has it: a Session inside an outer transaction."""
    stack.callback(engine.dispose)
    connection = stack.enter_context(engine.connect())
    outer = connection.begin()
    session = stack.enter_context(Session(bind=connection, join_transaction_mode="create_savepoint"))
    return Place(session, lambda sql: session.execute(sa.text(sql)), outer.rollback)


def _session(stack: ExitStack, request: pytest.FixtureRequest, path: Path) -> Place:
    return _sqlalchemy(sa.create_engine(f"sqlite:///{path}"), stack)


def _django(stack: ExitStack, request: pytest.FixtureRequest, path: Path) -> Place:
    door = stack.enter_context(closing(DjangoAtomic(path)))
    return Place(door.tx, door.execute, door.rollback)


def _postgres(stack: ExitStack, request: pytest.FixtureRequest, path: Path) -> Place:
    url = request.getfixturevalue("postgres_server").new_database()
    connection = stack.enter_context(closing(psycopg.connect(url)))
    return Place(connection, connection.execute, connection.rollback)


def _psycopg2(stack: ExitStack, request: pytest.FixtureRequest, path: Path) -> Place:
    url = request.getfixturevalue("postgres_server").new_database()
    connection = stack.enter_context(closing(psycopg2.connect(url)))
    return Place(connection, lambda sql: connection.cursor().execute(sql), connection.rollback)


def _session_on_postgres(stack: ExitStack, request: pytest.FixtureRequest, path: Path) -> Place:
    return _sqlalchemy(engine_at(request.getfixturevalue("postgres_server").new_database()), stack)


def _django_on_postgres(stack: ExitStack, request: pytest.FixtureRequest, path: Path) -> Place:
    door = stack.enter_context(closing(DjangoAtomic(request.getfixturevalue("postgres_server").new_database())))
    return Place(door.tx, door.execute, door.rollback)


def _mariadb(stack: ExitStack, request: pytest.FixtureRequest, path: Path) -> Place:
    url = request.getfixturevalue("mariadb_server").new_database()
    made = Perdure(url, auto_migrate=True)
    with made.transaction() as tx:
        tx.execute("CREATE TABLE orders (item VARCHAR(20))")
    made.close()
    door = stack.enter_context(closing(PlainMariaDB(url)))
    return Place(door.tx, door.execute, door.rollback)


PLACES = [
    pytest.param(_memory, id="sqlite3, in memory"),
    pytest.param(_session, id="SQLAlchemy"),
    pytest.param(_django, id="Django"),
    pytest.param(_postgres, id="psycopg", marks=POSTGRES),
    pytest.param(_psycopg2, id="psycopg2", marks=POSTGRES),
    pytest.param(_session_on_postgres, id="SQLAlchemy on PostgreSQL", marks=POSTGRES),
    pytest.param(_django_on_postgres, id="Django on PostgreSQL", marks=POSTGRES),
    pytest.param(_mariadb, id="PyMySQL", marks=MARIADB),
]


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with ExitStack() as stack:
        found: Place = request.param(stack, request, tmp_path / "users.db")
        if request.param is not _mariadb:
            found.execute("CREATE TABLE orders (item VARCHAR(20))")
        yield found


@pytest.fixture
def send(app: Perdure) -> Any:
    @app.job(retry=2)
    def send(ctx: JobContext, to: str) -> str:
        if to == "fails":
            raise OSError(to)
        return f"sent {to}"

    return send


# -- tx= -------------------------------------------------------------------------------------------------------------


def test_everything_is_inside_the_tests_transaction(app: Perdure, send: Any, place: Place) -> None:
    @app.job
    def order(ctx: JobContext, item: str) -> None:
        ctx.enqueue(send, to=item)
        with ctx.transaction() as tx:
            tx.execute("INSERT INTO orders VALUES (:item)", {"item": item})
            app.enqueue("send", {"to": "inside"})
            if ctx.attempt == 1:
                raise OSError

    with app.testing(tx=place.tx) as t:
        place.execute("INSERT INTO orders VALUES ('tea')")
        order.options(tx=place.tx).enqueue(item="milk")
        fails = send.options(idempotency_key="k", tags=["x"]).enqueue(to="fails")
        assert [job.kind for job in t.drain()] == ["order", "send"]
        assert (app.existing(fails).state, app.existing(fails).attempts) == ("scheduled", 1)
        t.advance(timedelta(minutes=5))
        assert [job.state for job in t.drain()] == ["completed", "failed", "completed", "completed"]
        t.assert_enqueued(send, to="milk")
        with app.transaction() as tx:
            assert tx.execute("SELECT count(*) FROM orders").fetchone() == (2,)
        with pytest.raises(ZeroDivisionError), app.transaction() as tx:
            tx.execute("DELETE FROM orders")
            send.enqueue(to="lost")
            raise ZeroDivisionError
        with app.transaction() as tx:
            assert tx.execute("SELECT count(*) FROM orders").fetchone() == (2,)
        t.assert_not_enqueued(send, to="lost")
    place.rollback()


def test_another_connection_is_refused_inside(app: Perdure, send: Any, tmp_path: Path) -> None:
    with closing(sqlite3.connect(":memory:")) as mine, closing(sqlite3.connect(tmp_path / "x.db")) as other:
        with app.testing(tx=mine), pytest.raises(TransactionError, match=r"app\.testing") as raised:
            send.options(tx=other).enqueue(to="a")
        assert raised.value.code == "tx_wrong_database"


def test_a_handlers_session_takes_part(app: Perdure, tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path}/users.db")
    with engine.connect() as connection:
        outer = connection.begin()
        connection.execute(sa.text("CREATE TABLE orders (item TEXT)"))
        factory = sessionmaker(bind=connection, join_transaction_mode="create_savepoint")

        @app.job
        def order(ctx: JobContext, item: str) -> None:
            with ctx.transaction(session=factory) as tx:
                tx.session.execute(sa.text("INSERT INTO orders VALUES (:item)"), {"item": item})
                if ctx.attempt == 1:
                    raise OSError

        with app.testing(tx=connection) as t:
            order.enqueue(item="tea")
            t.drain()
            assert connection.scalar(sa.text("SELECT count(*) FROM orders")) == 0
            t.advance(minutes=1)
            (job,) = t.drain(raise_errors=True)
            assert (job.state, connection.scalar(sa.text("SELECT count(*) FROM orders"))) == ("completed", 1)
        outer.rollback()
    engine.dispose()


def test_jobs_that_wait_there_are_not_run_by_a_test(app: Perdure, send: Any, tmp_path: Path) -> None:
    real = Perdure(tmp_path / "real.db")
    real.job(name="send")(lambda: None)
    real.enqueue("send")
    real.close()
    with closing(sqlite3.connect(tmp_path / "real.db")) as connection:
        with pytest.raises(PerdureError, match="for tests alone") as raised, app.testing(tx=connection):
            pass
        assert raised.value.code == "testing_not_empty"


@pytest.mark.mariadb
def test_mariadb_says_where_the_tables_are_to_be_made(app: Perdure, mariadb_server: Any) -> None:
    with closing(PlainMariaDB(mariadb_server.new_database())) as door:
        with pytest.raises(PerdureError, match="db upgrade") as raised, app.testing(tx=door.tx):
            pass
        assert raised.value.code == "schema_missing"


# -- url= ------------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=POSTGRES), pytest.param("mariadb", marks=MARIADB)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "tests.db")
    return str(request.getfixturevalue(f"{request.param}_server").new_database())


def test_each_block_on_a_database_for_tests_begins_with_nothing(app: Perdure, send: Any, url: str) -> None:
    for _ in range(2):
        with app.testing(url=url) as t:
            t.assert_not_enqueued()
            send.options(idempotency_key="k", business_key="b").enqueue(to="a")
            with app.transaction():
                send.enqueue(to="b")
            assert [job.result for job in t.drain()] == ["sent a", "sent b"]
            assert app.url == url


def test_what_a_killed_test_has_left_is_no_hindrance(app: Perdure, send: Any, url: str) -> None:
    with app.testing(url=url):
        pass
    left = Perdure(url)
    left.job(name="send")(lambda to: None)
    left.enqueue("send", {"to": "left"})
    left.close()
    with app.testing(url=url) as t:
        t.assert_not_enqueued()


def test_a_database_with_jobs_in_it_is_not_emptied(app: Perdure, send: Any, url: str) -> None:
    real = Perdure(url, auto_migrate=True)
    real.job(name="send")(lambda: None)
    job = real.enqueue("send")
    with pytest.raises(PerdureError, match="for tests alone") as raised, app.testing(url=url):
        pass
    assert raised.value.code == "testing_not_empty"
    assert real.get(job) == job
    real.close()


def test_url_and_tx_exclude_each_other(app: Perdure) -> None:
    with pytest.raises(PerdureError, match="not both"), app.testing(url="x.db", tx=object()):
        pass
