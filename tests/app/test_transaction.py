"""`app.transaction()`: the user's rows and every call on the app, together or not at all."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from perdure import DatabaseBusy, KeyConflict, Perdure, StoreError, TransactionError
from tests.app.contents import contents, jobs_in


@pytest.fixture(autouse=True)
def orders(app: Perdure) -> None:
    with app.transaction() as tx:
        tx.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)")


def test_rows_and_jobs_are_committed_together(app: Perdure, send: Any, path: Path) -> None:
    with app.transaction() as tx:
        tx.execute("INSERT INTO orders VALUES (?, ?)", (1, "tea"))
        send.options(tx=tx).enqueue("a")
        send.enqueue("b")
        tx.execute("INSERT INTO orders VALUES (:id, :item)", {"id": 2, "item": "milk"})
    assert contents(path)["orders"] == [(1, "tea"), (2, "milk")]
    assert jobs_in(path) == ['{"to":"a"}', '{"to":"b"}']


def test_an_error_rolls_back_rows_and_jobs(app: Perdure, send: Any, path: Path) -> None:
    before = contents(path)
    with pytest.raises(ZeroDivisionError), app.transaction() as tx:
        tx.execute("INSERT INTO orders VALUES (1, 'tea')")
        send.enqueue("a")
        app.queues.pause("mail")
        raise ZeroDivisionError
    assert contents(path) == before


def test_the_users_own_error_arrives_as_it_was(app: Perdure) -> None:
    with pytest.raises(sqlite3.OperationalError, match="elsewhere"), app.transaction():
        raise sqlite3.OperationalError("elsewhere")


def test_reads_inside_see_what_was_written_inside(app: Perdure, send: Any) -> None:
    with app.transaction() as tx:
        tx.execute("INSERT INTO orders VALUES (1, 'tea')")
        job = send.options(queue="mail").enqueue("a")
        assert app.get(job) == job
        assert list(app.jobs(queue="mail")) == [job]
        assert app.cancel(job).state == "cancelled"
        assert tx.execute("SELECT item FROM orders").fetchall() == [("tea",)]


def test_nobody_outside_sees_it_before_the_end(app: Perdure, send: Any, path: Path) -> None:
    with app.transaction():
        send.enqueue("a")
        assert jobs_in(path) == []


def test_a_refused_enqueue_leaves_the_rest_of_the_block_standing(app: Perdure, send: Any, path: Path) -> None:
    with app.transaction():
        send.options(business_key="b").enqueue("first")
        with pytest.raises(KeyConflict):
            send.options(business_key="b").enqueue("second")
        send.enqueue("third")
    assert jobs_in(path) == ['{"to":"first"}', '{"to":"third"}']


def test_an_operation_that_breaks_off_halfway_leaves_nothing_of_it(app: Perdure, send: Any, path: Path) -> None:
    job = send.enqueue("a")
    before = contents(path)
    with app.transaction() as tx:
        tx.execute("CREATE TEMP TRIGGER full BEFORE INSERT ON perdure_job BEGIN SELECT RAISE(ABORT, 'full'); END")
        with pytest.raises(StoreError, match="full"):
            app.supersede(job, send.options(idempotency_key="k").new("b"))
    assert contents(path) == before


def test_rows_that_were_not_read_to_the_end_keep_no_lock(app: Perdure, send: Any) -> None:
    cursors: list[Any] = []
    with pytest.raises(ZeroDivisionError), app.transaction() as tx:
        tx.execute("INSERT INTO orders VALUES (1, 'tea'), (2, 'milk')")
        cursors.append(tx.execute("SELECT * FROM orders"))
        cursors[0].fetchone()
        raise ZeroDivisionError
    assert app.get(send.enqueue("next")) is not None


def test_a_block_inside_a_block_is_refused(app: Perdure, send: Any, path: Path) -> None:
    with app.transaction():
        with pytest.raises(StoreError) as refused, app.transaction():
            pass
        send.enqueue("a")
    assert refused.value.code == "tx_nested"
    assert jobs_in(path) == ['{"to":"a"}']


def test_two_apps_on_two_files_have_transactions_at_the_same_time(app: Perdure, tmp_path: Path) -> None:
    other = Perdure(tmp_path / "other.db")
    with app.transaction(), other.transaction():
        app.queues.pause("one")
        other.queues.pause("two")
    assert [queue.name for queue in (*app.queues.list(), *other.queues.list())] == ["one", "two"]
    other.close()


@pytest.mark.parametrize(
    "control",
    [
        "BEGIN",
        "commit",
        "END",
        "ROLLBACK",
        "BEGIN IMMEDIATE",
        " -- a\n /* b */ Commit;",
        "ROLLBACK TRANSACTION",
        "end;",
        "\ufeffCOMMIT",
        ";\ufeff/* x */ -- y\n\ufeff commit",
    ],
)
def test_begin_and_commit_are_left_to_the_block(control: str, app: Perdure, send: Any, path: Path) -> None:
    with app.transaction() as tx:
        send.enqueue("a")
        with pytest.raises(TransactionError) as refused:
            tx.execute(control)
        tx.execute("INSERT INTO orders VALUES (1, 'tea')")
    assert refused.value.code == "tx_managed"
    assert (jobs_in(path), contents(path)["orders"]) == (['{"to":"a"}'], [(1, "tea")])


def test_the_users_savepoints_work_inside(app: Perdure, send: Any, path: Path) -> None:
    with app.transaction() as tx:
        tx.execute("SAVEPOINT mine")
        send.enqueue("a")
        tx.execute("ROLLBACK TO mine")
        send.enqueue("b")
        tx.execute("RELEASE mine")
    assert jobs_in(path) == ['{"to":"b"}']


def test_a_commit_behind_our_back_lets_nothing_slip_through(app: Perdure, send: Any, path: Path) -> None:
    with pytest.raises(StoreError), app.transaction() as tx:
        send.enqueue("before")
        tx.connection.commit()
        with pytest.raises(TransactionError) as refused:
            send.enqueue("after")
    assert refused.value.code == "tx_ended"
    assert jobs_in(path) == ['{"to":"before"}']


def test_an_end_on_the_drivers_own_cursor_is_told_loudly(app: Perdure, send: Any, path: Path) -> None:
    with pytest.raises(TransactionError) as told, app.transaction() as tx:
        send.enqueue("a")
        tx.execute("SELECT 1").execute("COMMIT")
    assert told.value.code == "tx_ended"
    assert "is in the database" in told.value.message
    assert jobs_in(path) == ['{"to":"a"}']


def test_a_statement_that_ended_the_transaction_lets_nothing_slip_through(app: Perdure, send: Any, path: Path) -> None:
    with pytest.raises(StoreError), app.transaction() as tx:
        tx.execute("INSERT INTO orders VALUES (1, 'tea')")
        with pytest.raises(StoreError):
            tx.execute("INSERT OR ROLLBACK INTO orders VALUES (1, 'milk')")
        with pytest.raises(TransactionError):
            send.enqueue("alone")
    assert (jobs_in(path), contents(path)["orders"]) == ([], [])


@pytest.mark.parametrize(
    ("sql", "params"),
    [
        ("SELECT * FROM nowhere", ()),
        ("SELEKT", ()),
        ("INSERT INTO orders VALUES (?, ?)", (1,)),
        ("INSERT INTO orders VALUES (?, ?)", (2**70, "x")),
        ("INSERT INTO orders VALUES (?, ?)", (object(), "x")),
        ("INSERT INTO orders VALUES (?, ?)", (1, "\ud800")),
        ("SELECT 1; SELECT 2", ()),
    ],
)
def test_a_bad_statement_of_the_users_is_a_store_error(sql: str, params: tuple[object, ...], app: Perdure) -> None:
    with app.transaction() as tx, pytest.raises(StoreError):
        tx.execute(sql, params)


def test_other_threads_wait_for_the_end_of_the_block(app: Perdure, send: Any) -> None:
    other = threading.Thread(target=lambda: send.enqueue("outside"))
    with app.transaction():
        other.start()
        other.join(0.1)  # all this long only because it has to wait
        send.enqueue("inside")
    other.join()
    in_order = app.jobs(state="queued", queue="default")
    assert [job.payload for job in in_order] == [{"to": "inside"}, {"to": "outside"}]


def test_a_thread_that_waits_too_long_is_told_that_the_database_is_busy(tmp_path: Path) -> None:
    app = Perdure(tmp_path / "own.db", busy_timeout_s=0.05)
    errors: list[BaseException] = []

    @app.job
    def send(to: str) -> None: ...

    def impatient() -> None:
        try:
            send.enqueue("outside")
        except DatabaseBusy as error:
            errors.append(error)

    with app.transaction():
        thread = threading.Thread(target=impatient)
        thread.start()
        thread.join()
    assert [getattr(error, "code", None) for error in errors] == ["database_busy"]
    assert list(app.jobs()) == []
    app.close()


def test_bulk_verbs_join_the_block(app: Perdure, send: Any) -> None:
    jobs = send.enqueue_many([{"to": str(n)} for n in range(3)])
    with pytest.raises(ZeroDivisionError), app.transaction():
        assert app.cancel_all() == 3
        raise ZeroDivisionError
    assert [app.existing(job).state for job in jobs] == ["queued"] * 3


def test_coroutines_join_the_block(app: Perdure, send: Any, path: Path) -> None:
    async def main() -> None:
        with app.transaction():
            job = await send.aenqueue("a")
            assert await app.aio.get(job) == job
            await app.aio.cancel(job)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(main())
    assert jobs_in(path) == []


def test_a_task_that_outlives_the_block_writes_on_its_own(app: Perdure, send: Any, path: Path) -> None:
    async def main() -> None:
        over = asyncio.Event()

        async def later() -> None:
            await over.wait()
            await send.aenqueue("later")

        with app.transaction():
            task = asyncio.create_task(later())
        over.set()
        await task

    asyncio.run(main())
    assert jobs_in(path) == ['{"to":"later"}']
