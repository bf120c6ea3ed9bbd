"""`tx=` and `app.transaction()` on MariaDB: a job and the user's own rows share one transaction."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from typing import Any

import pymysql
import pytest

from perdure import KeyConflict, Perdure, StoreError, TransactionError
from perdure.store.engine import Serialization
from tests.app.doors import Door
from tests.mariadb.doors import DOORS, Plain, connected, django_connection, engine_at, mysqlclient
from tests.mariadb_server import MariaDBServer

pytestmark = [pytest.mark.mariadb, pytest.mark.usefixtures("orders")]

Begin = Callable[[], Door]


@pytest.fixture(params=DOORS)
def begin(request: pytest.FixtureRequest, mariadb_url: str) -> Iterator[Begin]:
    """Opens the user's transaction, when the test is ready for it."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(DOORS[request.param](mariadb_url)))


@pytest.fixture(params=["PyMySQL", "mysqlclient"])
def driver(request: pytest.FixtureRequest) -> Any:
    return pymysql if request.param == "PyMySQL" else mysqlclient()


@pytest.fixture
def connection(driver: Any, mariadb_url: str) -> Iterator[Any]:
    connection = connected(mariadb_url, driver)
    yield connection
    if connection.open:
        connection.close()


def names(app: Perdure) -> list[Any]:
    """Whom the queued jobs are for."""
    return [(job.payload or {})["to"] for job in app.jobs(state="queued", queue="mail")]


def ordered(url: str) -> list[int]:
    with closing(connected(url)) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT id FROM orders ORDER BY id")
        return [number for (number,) in cursor.fetchall()]


# -- the user's own --------------------------------------------------------------------------------------------------


def test_a_job_enqueued_first_goes_with_the_rollback(begin: Begin, app: Perdure, send: Any) -> None:
    door = begin()
    send.options(tx=door.tx).enqueue("a")
    door.rollback()
    assert names(app) == []


def test_a_job_with_everything_stays_with_the_commit(begin: Begin, app: Perdure, send: Any) -> None:
    door = begin()
    job = send.options(tx=door.tx, tags=["x", "ü"], business_key="b\\'", idempotency_key="😀 ").enqueue(
        "żółw \\ ' \" 😀"
    )
    before = app.get(job)
    door.commit()
    assert (before, app.get(job), names(app)) == (None, job, ["żółw \\ ' \" 😀"])


def test_a_job_between_the_users_rows_shares_their_fate(
    begin: Begin, app: Perdure, send: Any, mariadb_url: str
) -> None:
    door = begin()
    door.execute("INSERT INTO orders VALUES (1)")
    send.options(tx=door.tx).enqueue("a")
    door.execute("INSERT INTO orders VALUES (2)")
    door.commit()
    assert (names(app), ordered(mariadb_url)) == (["a"], [1, 2])


def test_a_refused_enqueue_leaves_the_users_transaction_standing(
    begin: Begin, app: Perdure, send: Any, mariadb_url: str
) -> None:
    send.options(business_key="b").enqueue("first")
    door = begin()
    door.execute("INSERT INTO orders VALUES (1)")
    with pytest.raises(KeyConflict):
        send.options(business_key="b", tx=door.tx).enqueue("second")
    door.commit()
    assert (names(app), ordered(mariadb_url)) == (["first"], [1])


def test_a_key_taken_since_the_snapshot_gives_the_job_that_has_it(begin: Begin, app: Perdure, send: Any) -> None:
    door = begin()
    door.execute("SELECT COUNT(*) FROM orders")
    first = send.options(idempotency_key="k").enqueue("a")
    again = send.options(idempotency_key="k", tx=door.tx).enqueue("a")
    door.commit()
    assert (again.id, again.deduplicated, names(app)) == (first.id, True, ["a"])


def test_every_verb_takes_part(begin: Begin, app: Perdure, send: Any) -> None:
    jobs = app.enqueue_many([send.new(str(n)) for n in range(3)])
    door = begin()
    app.pause(jobs[0], tx=door.tx)
    app.move(jobs[2], before=jobs[1], tx=door.tx)
    app.supersede(jobs[1], send.new("other"), tx=door.tx)
    app.enqueue_many([send.new("3"), send.new("4")], tx=door.tx)
    door.rollback()
    assert list(app.jobs(state="queued", queue="mail")) == jobs


def test_others_enqueue_into_the_same_queue_meanwhile(begin: Begin, app: Perdure, send: Any) -> None:
    send.enqueue("first")
    door = begin()
    send.options(tx=door.tx).enqueue("mine")
    send.enqueue("other")
    door.commit()
    assert names(app) == ["first", "mine", "other"]


def test_a_lane_is_claimed_while_a_transaction_enqueues_into_it(begin: Begin, app: Perdure, send: Any) -> None:
    job = send.enqueue("first")
    door = begin()
    send.options(tx=door.tx).enqueue("mine")
    app.worker(queues=["mail"]).run(until_idle=True)
    ran = app.existing(job).state
    door.rollback()
    assert ran == "completed"


def test_an_autocommit_connection_outside_a_transaction_is_refused(connection: Any, app: Perdure, send: Any) -> None:
    connection.autocommit(True)
    with pytest.raises(TransactionError) as refused:
        send.options(tx=connection).enqueue("a")
    assert (refused.value.code, names(app)) == ("tx_not_open", [])


def test_sqlalchemy_in_autocommit_mode_is_refused(driver: Any, mariadb_url: str, send: Any) -> None:
    engine = engine_at(mariadb_url, driver, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection, pytest.raises(TransactionError) as refused:
        send.options(tx=connection).enqueue("a")
    engine.dispose()
    assert refused.value.code == "tx_not_open"


def test_django_outside_atomic_is_refused(mariadb_url: str, send: Any) -> None:
    with closing(django_connection(mariadb_url)) as connection, pytest.raises(TransactionError) as refused:
        send.options(tx=connection).enqueue("a")
    assert refused.value.code == "tx_not_open"


def test_a_closed_connection_is_refused(connection: Any, send: Any) -> None:
    connection.close()
    with pytest.raises(TransactionError) as refused:
        send.options(tx=connection).enqueue("a")
    assert refused.value.code == "tx_closed"


@pytest.mark.parametrize("autocommit", [False, True])
def test_a_connection_with_an_answer_still_to_be_read_is_refused(
    autocommit: bool, driver: Any, connection: Any, send: Any
) -> None:
    connection.autocommit(autocommit)
    connection.begin()
    reading = connection.cursor(driver.cursors.SSCursor)
    reading.execute("SELECT * FROM information_schema.columns")
    with pytest.raises(TransactionError) as refused:
        send.options(tx=connection).enqueue("a")
    with suppress(driver.Error):
        reading.close()
    assert refused.value.code == "tx_busy"


def test_a_connection_that_the_server_has_ended_is_lost(
    connection: Any, send: Any, mariadb_server: MariaDBServer
) -> None:
    mariadb_server.execute(f"KILL {connection.thread_id()}")
    with pytest.raises(StoreError) as lost:
        send.options(tx=connection).enqueue("a")
    assert lost.value.code == "connection_lost"


def test_django_takes_part_on_pymysql_as_well(app: Perdure, mariadb_url: str) -> None:
    subprocess.run([sys.executable, "-m", "tests.mariadb.django_on_pymysql", mariadb_url], check=True)
    assert names(app) == ["committed"]


def test_something_else_is_refused(send: Any) -> None:
    with pytest.raises(TransactionError) as refused:
        send.options(tx=object()).enqueue("a")
    assert refused.value.code == "tx_unknown_type"


def test_a_connection_to_another_database_is_refused(mariadb_server: MariaDBServer, send: Any) -> None:
    url = mariadb_server.new_database()
    with closing(connected(url)) as elsewhere, pytest.raises(StoreError) as missing:
        send.options(tx=elsewhere).enqueue("a")
    other = Perdure(url, auto_migrate=True)
    with other.transaction() as tx, pytest.raises(TransactionError) as wrong:
        send.options(tx=tx).enqueue("a")
    other.close()
    mariadb_server.drop(url)
    assert (missing.value.code, wrong.value.code) == ("schema_missing", "tx_wrong_database")


# -- app.transaction() -----------------------------------------------------------------------------------------------


def test_rows_and_jobs_are_committed_together(app: Perdure, send: Any, mariadb_url: str) -> None:
    with app.transaction() as tx:
        tx.execute("INSERT INTO orders VALUES (%s)", (1,))
        send.options(tx=tx).enqueue("a")
        send.enqueue("b")
        tx.execute("INSERT INTO orders VALUES (%(id)s)", {"id": 2})
        assert names(app) == ["a", "b"]
    assert (names(app), ordered(mariadb_url)) == (["a", "b"], [1, 2])


def test_an_error_rolls_back_rows_and_jobs(app: Perdure, send: Any, mariadb_url: str) -> None:
    with pytest.raises(ZeroDivisionError), app.transaction() as tx:
        tx.execute("INSERT INTO orders VALUES (1)")
        send.enqueue("a")
        raise ZeroDivisionError
    assert names(app) == ordered(mariadb_url) == []


@pytest.mark.parametrize(
    "sql",
    [
        "COMMIT",
        " rollback",
        "BEGIN",
        "/*! COMMIT */",
        "/*M!100000 COMMIT */",
        "SELECT 1; COMMIT",
        "SELECT 'it\\'s'; COMMIT",
        "CREATE TABLE t (id INTEGER)",
        "# a comment\nALTER TABLE orders ADD COLUMN n INTEGER",
        "TRUNCATE TABLE orders",
        "SET autocommit = 1",
        "LOCK TABLES orders WRITE",
    ],
)
def test_what_would_commit_is_refused(app: Perdure, send: Any, sql: str) -> None:
    with pytest.raises(ZeroDivisionError), app.transaction() as tx:
        send.enqueue("a")
        with pytest.raises(TransactionError) as refused:
            tx.execute(sql)
        assert refused.value.code == "tx_managed"
        tx.execute("SAVEPOINT mine")
        tx.execute("ROLLBACK TO SAVEPOINT mine")
        tx.execute("CREATE TEMPORARY TABLE of_mine (id INTEGER)")
        tx.execute("SELECT 'COMMIT', `id` FROM orders -- COMMIT")
        raise ZeroDivisionError
    assert names(app) == []


def test_a_table_can_be_made_first_and_the_transaction_begins_after_it(app: Perdure, send: Any) -> None:
    with pytest.raises(ZeroDivisionError), app.transaction() as tx:
        tx.execute("CREATE TABLE first (id INTEGER PRIMARY KEY)")
        tx.execute("CREATE TABLE second (id INTEGER PRIMARY KEY)")
        tx.execute("INSERT INTO first VALUES (1)")
        send.enqueue("a")
        with pytest.raises(TransactionError, match="run it first"):
            tx.execute("DROP TABLE second")
        raise ZeroDivisionError
    with app.transaction() as tx:
        assert tx.execute("SELECT (SELECT COUNT(*) FROM first), (SELECT COUNT(*) FROM second)").fetchone() == (0, 0)
    assert names(app) == []


def test_a_deadlock_passed_over_does_not_look_like_a_commit(app: Perdure, send: Any, mariadb_url: str) -> None:
    """The server rolls the whole transaction back, and goes on in autocommit mode."""
    app.store.upgrade()
    with closing(Plain(mariadb_url)) as other:
        other.execute("INSERT INTO orders VALUES (1), (2)")
        other.commit()
        many = ", ".join(f"({number})" for number in range(100, 300))
        other.execute(f"INSERT INTO orders VALUES {many}")  # of two transactions the one that wrote less has to go
        other.execute("UPDATE orders SET id = 3 WHERE id = 2")
        with pytest.raises(TransactionError) as refused, app.transaction() as tx:
            send.enqueue("a")
            tx.execute("UPDATE orders SET id = 4 WHERE id = 1")
            waiting = threading.Thread(target=other.execute, args=["UPDATE orders SET id = 5 WHERE id = 1"])
            waiting.start()
            with pytest.raises(Serialization):
                tx.execute("UPDATE orders SET id = 6 WHERE id = 2")
            send.enqueue("b")
        waiting.join()
        other.rollback()
    assert (refused.value.code, names(app)) == ("tx_ended", [])


def test_a_function_that_is_not_there_is_no_reason_to_try_again(app: Perdure) -> None:
    """Its error has the number of that for a savepoint that went with the transaction."""
    app.store.upgrade()
    with pytest.raises(StoreError) as refused, app.transaction() as tx:
        tx.execute("SELECT not_there()")
    assert (refused.value.code, "not_there" in refused.value.message) == ("store_error", True)


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
