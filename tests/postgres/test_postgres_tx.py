"""`tx=` and `app.transaction()` on PostgreSQL: a job and the user's own rows share one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from typing import Any

import psycopg
import psycopg2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perdure import DatabaseUnavailable, KeyConflict, Perdure, StoreError, TransactionError
from perdure.store.engine import Serialization
from perdure.store.transaction import POSTGRES
from tests.app.doors import Door
from tests.postgres import doors
from tests.postgres.conftest import declare
from tests.postgres.doors import DOORS
from tests.postgres_server import PostgresServer
from tests.unit.test_transaction_control import PIECES, POSTGRES_HARMLESS, refused

pytestmark = pytest.mark.postgres

Begin = Callable[[], Door]


@pytest.fixture(autouse=True)
def orders(app: Perdure, postgres_url: str) -> None:
    """The user's own table, beside Perdure's."""
    app.store.upgrade()
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE TABLE orders (id integer PRIMARY KEY)")


@pytest.fixture(params=DOORS)
def begin(request: pytest.FixtureRequest, postgres_url: str) -> Iterator[Begin]:
    """Opens the user's transaction, when the test is ready for it."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(DOORS[request.param](postgres_url)))


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


def test_a_job_can_be_edited_in_the_transaction_that_enqueued_it(begin: Begin, app: Perdure, send: Any) -> None:
    door = begin()
    job = send.options(tx=door.tx, tags=["old"]).enqueue("a")
    edited = app.edit(job, payload={"to": "b"}, tags=["new"], tx=door.tx)
    assert (edited.payload, edited.tags, app.get(job)) == ({"to": "b"}, ("new",), None)
    door.commit()
    assert app.get(job) == edited


def test_a_job_enqueued_first_goes_with_the_rollback(begin: Begin, app: Perdure, send: Any) -> None:
    door = begin()
    send.options(tx=door.tx).enqueue("a")
    door.rollback()
    assert names(app) == []


def test_a_job_enqueued_first_stays_with_the_commit(begin: Begin, app: Perdure, send: Any) -> None:
    door = begin()
    job = send.options(tx=door.tx, tags=["x"], business_key="b").enqueue("a")
    before = app.get(job)
    door.commit()
    assert (before, app.get(job), names(app)) == (None, job, ["a"])


def test_a_job_between_the_users_rows_shares_their_fate(
    begin: Begin, app: Perdure, send: Any, postgres_url: str
) -> None:
    door = begin()
    door.execute("INSERT INTO orders VALUES (1)")
    send.options(tx=door.tx).enqueue("a")
    door.execute("INSERT INTO orders VALUES (2)")
    door.commit()
    assert (names(app), ordered(postgres_url)) == (["a"], [1, 2])


def test_a_refused_enqueue_leaves_the_users_transaction_standing(
    begin: Begin, app: Perdure, send: Any, postgres_url: str
) -> None:
    send.options(business_key="b").enqueue("first")
    door = begin()
    door.execute("INSERT INTO orders VALUES (1)")
    with pytest.raises(KeyConflict):
        send.options(business_key="b", tx=door.tx).enqueue("second")
    door.commit()
    assert (names(app), ordered(postgres_url)) == (["first"], [1])


def test_an_operation_that_breaks_off_halfway_leaves_nothing_of_it(
    begin: Begin, app: Perdure, send: Any, postgres_url: str
) -> None:
    old = send.enqueue("old")
    send.options(idempotency_key="taken").enqueue("a")
    door = begin()
    door.execute("INSERT INTO orders VALUES (1)")
    with pytest.raises(KeyConflict):
        app.supersede(old, send.options(idempotency_key="taken").new("a"), tx=door.tx)
    door.commit()
    assert (names(app), ordered(postgres_url)) == (["old", "a"], [1])


def test_every_verb_takes_part(begin: Begin, app: Perdure, send: Any) -> None:
    jobs = app.enqueue_many([send.new(str(n)) for n in range(3)])
    door = begin()
    app.pause(jobs[0], tx=door.tx)
    app.move(jobs[2], before=jobs[1], tx=door.tx)
    app.enqueue_many([send.new("3"), send.new("4")], tx=door.tx)
    door.rollback()
    assert list(app.jobs(state="queued", queue="mail")) == jobs


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


def test_sqlalchemy_in_autocommit_mode_is_refused(postgres_url: str, send: Any) -> None:
    engine = doors.engine_at(postgres_url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection, pytest.raises(TransactionError) as refused:
        send.options(tx=connection).enqueue("a")
    engine.dispose()
    assert refused.value.code == "tx_not_open"


def test_django_outside_atomic_is_refused(postgres_url: str, send: Any) -> None:
    with closing(doors.django_connection(postgres_url)) as connection, pytest.raises(TransactionError) as refused:
        send.options(tx=connection).enqueue("a")
    assert refused.value.code == "tx_not_open"


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


def test_something_else_is_refused(send: Any) -> None:
    with pytest.raises(TransactionError) as refused:
        send.options(tx=object()).enqueue("a")
    assert refused.value.code == "tx_unknown_type"


def test_a_read_only_transaction_is_refused(connection: psycopg.Connection[Any], send: Any) -> None:
    connection.read_only = True
    with pytest.raises(DatabaseUnavailable) as refused:
        send.options(tx=connection).enqueue("a")
    assert refused.value.code == "database_readonly"


def test_a_connection_to_a_database_without_perdure_is_refused(postgres_server: PostgresServer, send: Any) -> None:
    with psycopg.connect(postgres_server.new_database()) as elsewhere, pytest.raises(StoreError) as refused:
        send.options(tx=elsewhere).enqueue("a")
    assert refused.value.code == "schema_missing"


def test_a_connection_to_another_database_of_perdure_is_refused(postgres_server: PostgresServer, send: Any) -> None:
    other = Perdure(postgres_server.new_database(), auto_migrate=True)
    with other.transaction() as tx, pytest.raises(TransactionError) as refused:
        send.options(tx=tx).enqueue("a")
    other.close()
    assert refused.value.code == "tx_wrong_database"


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


def test_rows_and_jobs_are_committed_together(app: Perdure, send: Any, postgres_url: str) -> None:
    with app.transaction() as tx:
        tx.execute("INSERT INTO orders VALUES (%s)", (1,))
        send.options(tx=tx).enqueue("a")
        send.enqueue("b")
        tx.execute("INSERT INTO orders VALUES (%(id)s)", {"id": 2})
        assert names(app) == ["a", "b"]
    assert (names(app), ordered(postgres_url)) == (["a", "b"], [1, 2])


def test_an_error_rolls_back_rows_and_jobs(app: Perdure, send: Any, postgres_url: str) -> None:
    with pytest.raises(ZeroDivisionError), app.transaction() as tx:
        tx.execute("INSERT INTO orders VALUES (1)")
        send.enqueue("a")
        raise ZeroDivisionError
    assert names(app) == ordered(postgres_url) == []


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


def test_a_transaction_inside_another_is_refused_or_part_of_it(app: Perdure, send: Any) -> None:
    with pytest.raises(ZeroDivisionError), app.transaction():
        with pytest.raises(StoreError) as refused, app.transaction():
            pass
        with app.store.transaction(join=True):
            send.enqueue("a")
        raise ZeroDivisionError
    assert (refused.value.code, names(app)) == ("tx_nested", [])


def test_a_transaction_cannot_be_used_after_its_end(app: Perdure, send: Any) -> None:
    with app.transaction() as tx:
        pass
    with pytest.raises(TransactionError) as no_statement:
        tx.execute("SELECT 1")
    with pytest.raises(TransactionError) as no_job:
        send.options(tx=tx).enqueue("a")
    assert no_statement.value.code == no_job.value.code == "tx_closed"


def test_tasks_begun_inside_share_the_transaction_one_call_at_a_time(app: Perdure, send: Any) -> None:
    async def enqueue_many() -> list[Any]:
        with app.transaction():
            taken = send.options(business_key="taken")
            good = [send.aenqueue("good") for _ in range(20)]
            bad = [taken.aenqueue("bad") for _ in range(20)]
            tasks = [task for pair in zip(good, bad, strict=True) for task in pair]
            return await asyncio.gather(*tasks, return_exceptions=True)

    send.options(business_key="taken").enqueue("first")
    answers = asyncio.run(enqueue_many())
    assert [type(answer) for answer in answers[1::2]] == [KeyConflict] * 20
    assert names(app) == ["first"] + ["good"] * 20


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
