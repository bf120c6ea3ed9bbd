"""`tx=` and `app.transaction()` on MariaDB: a job and the user's own rows share one transaction."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing, suppress
from typing import Any

import pymysql
import pytest

from perdure import Job, KeyConflict, Perdure, StoreError, TransactionError
from perdure.store.engine import Serialization
from tests.mariadb.doors import Plain, connected, mysqlclient
from tests.mariadb_server import MariaDBServer

pytestmark = [pytest.mark.mariadb, pytest.mark.usefixtures("orders")]


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


def test_an_autocommit_connection_outside_a_transaction_is_refused(connection: Any, app: Perdure, send: Any) -> None:
    connection.autocommit(True)
    with pytest.raises(TransactionError) as refused:
        send.options(tx=connection).enqueue("a")
    assert (refused.value.code, names(app)) == ("tx_not_open", [])


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


def begun(connection: Any) -> None:
    """From here on the connection reads everything as it is now, whatever is committed later: REPEATABLE READ."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM perdure_job")
        cursor.fetchall()


def test_a_transaction_begun_before_a_job_ended_can_wait_for_it(connection: Any, app: Perdure, send: Any) -> None:
    parent = send.enqueue("a")
    begun(connection)
    app.worker().run(until_idle=True)
    job = send.options(tx=connection, after=parent).enqueue("b")
    connection.commit()
    seen = app.get(job)
    assert seen is not None
    assert (seen.state, names(app)) == ("queued", ["b"])


def test_a_transaction_begun_before_a_flow_was_retried_does_not_end_it(connection: Any, app: Perdure) -> None:
    """Two of three members have failed, and one of these is retried, by somebody else, since the transaction began."""

    @app.job(retry=1)
    def bring(to: str) -> None:
        raise ValueError(to)

    with app.batch("news") as batch:
        first, _ = (batch.add(bring.new(to)) for to in ("a", "b"))
        last = batch.add(bring.options(delay=3600).new("c"))
    app.worker().run(until_idle=True)
    begun(connection)
    app.retry(first.id)
    app.cancel(last.id, tx=connection)
    connection.commit()
    flow = app.flows.get(batch)
    assert flow is not None
    assert (flow.state, flow.failed, flow.cancelled) == ("running", 1, 1)


def test_a_transaction_begun_before_a_key_of_a_flow_was_taken_is_told_whose_it_is(
    connection: Any, app: Perdure, send: Any
) -> None:
    app.store.upgrade()
    begun(connection)
    chain = app.chain(send.new("a"), send.new("b"), key="nightly")
    with pytest.raises(KeyConflict, match=str(chain.id)):
        app.chain(send.new("a"), send.new("b"), key="nightly", tx=connection)


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


# -- the first of a queue --------------------------------------------------------------------------------------------


def waits(url: str) -> int:
    """How many transactions wait for a row, now."""
    with closing(connected(url)) as connection, connection.cursor() as cursor:
        cursor.execute("SHOW ENGINE INNODB STATUS")
        ((_, _, status),) = cursor.fetchall()
    return str(status).partition("\nLIST OF TRANSACTIONS")[2].count("\nLOCK WAIT ")


def in_new_queues(send: Any, _: Job, tx: Any) -> None:
    for queue in ("mail", "letters"):
        send.options(queue=queue, tx=tx).enqueue("new")


FIRST: dict[str, Callable[[Any, Job, Any], object]] = {
    "enqueues": lambda send, _, tx: send.options(tx=tx).enqueue("new"),
    "enqueues in two queues": in_new_queues,
    "moves": lambda send, job, tx: send.app.move(job, to="back", tx=tx),
}


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ"])
@pytest.mark.parametrize("what", FIRST)
def test_who_waits_for_the_first_of_a_queue_goes_on_when_that_one_goes_back(
    what: str, isolation: str, app: Perdure, send: Any, mariadb_url: str
) -> None:
    """Two who waited for a row that was rolled back would be in the way of each other: a deadlock, and nobody but the
    user can run his transaction again."""
    app.store.upgrade()
    job = send.options(queue="old").enqueue("old")
    users = [Plain(mariadb_url) for _ in range(4)]
    for user in users:
        user.execute(f"SET SESSION TRANSACTION ISOLATION LEVEL {isolation}")
        user.execute("SELECT COUNT(*) FROM orders")  # in REPEATABLE READ nothing that is committed later is seen
    FIRST[what](send, job, users[0].tx)
    with ThreadPoolExecutor(len(users)) as pool:
        others = {pool.submit(FIRST[what], send, job, user.tx): user for user in users[1:]}
        while waits(mariadb_url) < len(others):
            assert not any(other.done() for other in others)
        users[0].rollback()
        while others:
            done = next(as_completed(others))
            done.result()
            others.pop(done).commit()
    for user in users:
        user.close()
    assert names(app) == ([] if what == "moves" else ["new"] * 3)


# -- app.transaction() -----------------------------------------------------------------------------------------------


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


def test_what_the_server_refuses_is_not_a_lost_connection_whatever_its_number(app: Perdure) -> None:
    """Client libraries have the numbers from 2000 on; from 3000 on they are the server's again."""
    app.store.upgrade()
    with pytest.raises(StoreError) as refused, app.transaction() as tx:
        tx.execute("SELECT * FROM JSON_TABLE('[1,', '$[*]' COLUMNS (n INT PATH '$')) AS numbers")
    assert refused.value.code == "store_error"
    assert refused.value.__cause__ is not None
    assert refused.value.__cause__.args[0] > 3000, "another error is needed to show it"
