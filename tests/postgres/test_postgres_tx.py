"""`tx=` and `app.transaction()` on PostgreSQL: a job and the user's own rows share one transaction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import psycopg
import psycopg2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perdure import DatabaseUnavailable, Perdure, StoreError, TransactionError
from perdure.store.engine import Serialization
from perdure.store.transaction import POSTGRES
from tests.postgres.conftest import declare
from tests.postgres_server import PostgresServer
from tests.unit.test_transaction_control import PIECES, POSTGRES_HARMLESS, refused

pytestmark = pytest.mark.postgres


@pytest.fixture(autouse=True)
def orders(app: Perdure, postgres_url: str) -> None:
    """The user's own table, beside Perdure's."""
    app.store.upgrade()
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE TABLE orders (id integer PRIMARY KEY)")


@pytest.fixture
def connection(postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    with closing(psycopg.connect(postgres_url)) as connection:
        yield connection


def names(app: Perdure) -> list[Any]:
    """Whom the queued jobs are for."""
    return [(job.payload or {})["to"] for job in app.jobs(state="queued", queue="mail")]


def ordered(url: str) -> list[int]:
    with psycopg.connect(url) as connection:
        return [row[0] for row in connection.execute("SELECT id FROM orders ORDER BY id")]


# -- the user's own --------------------------------------------------------------------------------------------------


def test_the_users_settings_are_as_they_were(connection: psycopg.Connection[Any], send: Any) -> None:
    connection.prepare_threshold = 7
    for n in range(10):
        send.options(tx=connection).enqueue(str(n))
    prepared = connection.execute("SELECT count(*) FROM pg_prepared_statements").fetchone()
    data = connection.execute("SELECT %s::bytea, 'x'::text, gen_random_uuid()", (b"16 bytes of data",)).fetchone()
    assert data is not None
    assert (connection.prepare_threshold, prepared, data[:2]) == (7, (0,), (b"16 bytes of data", "x"))
    assert type(data[2]).__name__ == "UUID"


def test_an_autocommit_connection_outside_a_transaction_is_refused(
    connection: psycopg.Connection[Any], app: Perdure, send: Any
) -> None:
    connection.autocommit = True
    with pytest.raises(TransactionError) as refused:
        send.options(tx=connection).enqueue("a")
    assert (refused.value.code, names(app)) == ("tx_not_open", [])


def code_of(send: Any, tx: object) -> str:
    """Of the error that enqueueing with this transaction raises."""
    with pytest.raises(TransactionError) as raised:
        send.options(tx=tx).enqueue("refused")
    return raised.value.code


def test_psycopg2_is_refused_where_no_job_could_share_its_transaction(
    app: Perdure, postgres_url: str, send: Any
) -> None:
    connection = psycopg2.connect(postgres_url)
    connection.autocommit = True
    assert code_of(send, connection) == "tx_not_open"
    connection.autocommit = False
    with suppress(psycopg2.Error):
        connection.cursor().execute("SELECT nonsense")
    assert code_of(send, connection) == "tx_aborted"
    connection.rollback()
    send.options(tx=connection).enqueue("a", "\\ ' % :x é")
    connection.commit()
    connection.close()
    assert code_of(send, connection) == "tx_closed"
    assert [job.payload for job in app.jobs()] == [{"to": "a", "subject": "\\ ' % :x é"}]


def test_a_closed_connection_is_refused(connection: psycopg.Connection[Any], send: Any) -> None:
    connection.close()
    with pytest.raises(TransactionError) as refused:
        send.options(tx=connection).enqueue("a")
    assert refused.value.code == "tx_closed"


def test_a_failed_transaction_is_refused(connection: psycopg.Connection[Any], send: Any) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero):
        connection.execute("SELECT 1 / 0")
    with pytest.raises(TransactionError) as refused:
        send.options(tx=connection).enqueue("a")
    assert refused.value.code == "tx_aborted"


def test_a_pipeline_is_refused(connection: psycopg.Connection[Any], send: Any) -> None:
    with connection.pipeline(), pytest.raises(TransactionError) as refused:
        send.options(tx=connection).enqueue("a")
    assert refused.value.code == "tx_pipeline"


def test_a_connection_in_the_middle_of_something_is_refused(connection: psycopg.Connection[Any], send: Any) -> None:
    with (
        connection.cursor() as cursor,
        cursor.copy("COPY orders FROM STDIN"),
        pytest.raises(TransactionError) as refused,
    ):
        send.options(tx=connection).enqueue("a")
    assert refused.value.code == "tx_busy"


def test_a_read_only_transaction_is_refused(connection: psycopg.Connection[Any], send: Any) -> None:
    connection.read_only = True
    with pytest.raises(DatabaseUnavailable) as refused:
        send.options(tx=connection).enqueue("a")
    assert refused.value.code == "database_readonly"


def test_a_key_taken_since_the_snapshot_is_a_serialization_failure(
    connection: psycopg.Connection[Any], app: Perdure, send: Any
) -> None:
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    connection.execute("SELECT 1 FROM orders")
    send.options(idempotency_key="k").enqueue("a")
    with pytest.raises(Serialization):
        send.options(idempotency_key="k", tx=connection).enqueue("a")
    connection.commit()
    assert names(app) == ["a"]


# -- app.transaction() -----------------------------------------------------------------------------------------------


def test_a_failure_passed_over_does_not_look_like_a_commit(app: Perdure, send: Any) -> None:
    with pytest.raises(TransactionError) as refused, app.transaction() as tx:
        send.enqueue("a")
        with pytest.raises(StoreError):
            tx.execute("SELECT 1 / 0")
    assert (refused.value.code, names(app)) == ("tx_aborted", [])


@pytest.mark.parametrize("sql", ["COMMIT", " rollback", "BEGIN", "end;"])
def test_the_end_is_left_to_the_block(app: Perdure, send: Any, sql: str) -> None:
    with pytest.raises(ZeroDivisionError), app.transaction() as tx:
        send.enqueue("a")
        with pytest.raises(TransactionError) as refused:
            tx.execute(sql)
        assert refused.value.code == "tx_managed"
        tx.execute("SAVEPOINT mine")
        tx.execute("ROLLBACK TO SAVEPOINT mine")
        raise ZeroDivisionError
    assert names(app) == []


def test_another_app_does_not_join(app: Perdure, other: Perdure) -> None:
    with pytest.raises(ZeroDivisionError), app.transaction():
        declare(other).enqueue("a")
        raise ZeroDivisionError
    assert names(app) == ["a"]


@pytest.fixture(scope="module")
def server(postgres_server: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_server.new_database(), autocommit=True) as connection:
        yield connection


def ends(server: psycopg.Connection[Any], sql: str) -> bool | None:
    """Whether PostgreSQL itself begins or ends a transaction with it. None: it refuses it."""
    server.execute(b"BEGIN")
    try:
        server.execute(b"CREATE TEMP TABLE mine (x int) ON COMMIT DROP; SAVEPOINT mine")
        server.execute(sql.encode())
        there = server.execute(b"SELECT to_regclass('pg_temp.mine')::text").fetchone()
    except psycopg.Error:
        return None
    finally:
        server.execute(b"ROLLBACK")
    return there == (None,)


@given(pieces=st.lists(PIECES, max_size=12))
@example(["/*", "*/", "COMMIT"])
@example(["SELECT", " ", "1", ";", "COMMIT"])
@example(["--", "\r", "COMMIT"])
@example(["/*", "/*", "*/", "COMMIT", "*/", "COMMIT", "--"])
def test_no_text_that_the_server_would_take_for_a_commit_passes(
    server: psycopg.Connection[Any], pieces: list[str]
) -> None:
    sql = "".join(pieces)
    if ends(server, sql):
        assert refused(sql, POSTGRES), sql


@pytest.mark.parametrize("sql", POSTGRES_HARMLESS)
def test_the_server_takes_no_harmless_statement_for_the_end(server: psycopg.Connection[Any], sql: str) -> None:
    assert ends(server, sql) is False


@pytest.mark.parametrize("sql", ["/*x*/ commit", "SELECT 1; COMMIT", "SELECT 1;\n--\rROLLBACK", "COMMIT AND CHAIN"])
def test_the_end_is_left_to_the_block_however_it_is_written(app: Perdure, send: Any, sql: str) -> None:
    with pytest.raises(ZeroDivisionError), app.transaction() as tx:
        send.enqueue("a")
        with pytest.raises(TransactionError) as refused:
            tx.execute(sql)
        assert refused.value.code == "tx_managed"
        tx.execute("SELECT '; COMMIT', $$; COMMIT $$ -- ; COMMIT")
        raise ZeroDivisionError
    assert names(app) == []


def test_an_end_on_the_drivers_own_cursor_is_told_loudly(app: Perdure, send: Any) -> None:
    with pytest.raises(TransactionError) as told, app.transaction() as tx:
        send.enqueue("a")
        tx.execute("SELECT 1").execute("COMMIT")
    assert told.value.code == "tx_ended"
    assert "is in the database" in told.value.message
