"""A job's end and the handler's own rows: together, or not at all."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing as closed_after
from pathlib import Path
from typing import Any

import pytest

from perdure import Done, JobContext, Perdure, PerdureError, Retry, TransactionError, TransactionTooLong
from perdure.store.sqlite.transaction import SqliteTransaction
from perdure.worker import services
from tests.worker.bodies import SORTS, declared, last_run, messages, ran, take_over
from tests.worker.patience import eventually

ENDLESS = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"


@pytest.fixture(autouse=True)
def orders(app: Perdure) -> None:
    with app.transaction() as tx:
        tx.execute("CREATE TABLE orders (item TEXT)")


@pytest.fixture
def send(app: Perdure) -> Any:
    @app.job(queue="later")
    def send(to: str) -> None:
        pass

    return send


def items(path: Path) -> list[str]:
    with closed_after(sqlite3.connect(path)) as connection:
        return [item for (item,) in connection.execute("SELECT item FROM orders ORDER BY rowid")]


def recipients(app: Perdure) -> list[str]:
    return sorted((job.payload or {})["to"] for job in app.jobs(kind="send"))


def work(app: Perdure) -> None:
    assert app.worker(queues=["default"]).run(until_idle=True) == 0


# -- ctx.transaction() -----------------------------------------------------------------------------------------------


def test_the_commit_is_the_jobs_end(app: Perdure, path: Path) -> None:
    states: list[str] = []

    def body(ctx: JobContext) -> None:
        ctx.metric(rows=1)
        with ctx.transaction() as tx:
            tx.execute("INSERT INTO orders VALUES (?)", ("tea",))
            tx.executemany("INSERT INTO orders VALUES (:item)", [{"item": "milk"}, {"item": "bread"}])
            assert tx.execute("SELECT count(*) FROM orders").fetchone() == (3,)
            assert items(path) == []
            tx.result({"rows": 3})
        states.append(ctx.job.state)
        ctx.log.info("after")
        ctx.artifact("after.txt")

    job = ran(app, "plain", body)
    assert states == ["completed"]
    assert (job.state, job.result, job.attempts) == ("completed", {"rows": 3}, 1)
    assert items(path) == ["tea", "milk", "bread"]
    run = last_run(app, job)
    assert (run.state, run.metrics, run.artifacts) == ("completed", {"rows": 1}, ["after.txt"])
    assert run.duration_ms is not None
    assert messages(app, job) == ["after"]


def test_jobs_enqueued_inside_share_its_fate(app: Perdure, send: Any) -> None:
    def body(ctx: JobContext) -> None:
        ctx.enqueue(send, to="before")
        with ctx.transaction() as tx:
            send.enqueue("plain")
            send.options(tx=tx).enqueue("with tx")
            ctx.enqueue(send, to="inside")
            if ctx.attempt == 1:
                raise OSError

    job = declared(app, "plain", body, retry=Retry(2, backoff="none")).enqueue()
    work(app)
    assert app.existing(job).attempts == 2
    assert recipients(app) == ["before", "inside", "plain", "with tx"]


def test_an_exception_inside_rolls_back_and_is_an_ordinary_failure(app: Perdure, path: Path) -> None:
    def body(ctx: JobContext) -> None:
        with ctx.transaction() as tx:
            tx.execute("INSERT INTO orders VALUES (?)", (f"attempt {ctx.attempt}",))
            if ctx.attempt == 1:
                raise OSError("no")

    job = ran(app, "plain", body, retry=Retry(2, backoff="none"))
    assert items(path) == ["attempt 2"]
    assert [(run.state, run.error_type) for run in app.runs(job)] == [("completed", None), ("failed", "OSError")]


def test_a_block_that_was_rolled_back_may_be_tried_again_or_left_alone(app: Perdure, path: Path, send: Any) -> None:
    def body(ctx: JobContext) -> str:
        for item in ("tea", "milk"):
            with pytest.raises(ZeroDivisionError), ctx.transaction() as tx:
                tx.execute("INSERT INTO orders VALUES (?)", (item,))
                ctx.enqueue(send, to=item)
                raise ZeroDivisionError
        return "without"

    job = declared(app, "plain", body).enqueue()
    work(app)
    assert app.existing(job).result == "without"
    assert items(path) == []
    assert list(app.jobs(kind="send")) == []


def test_afterwards_nothing_more_can_be_asked_for(app: Perdure, send: Any) -> None:
    codes: list[str] = []

    def body(ctx: JobContext) -> None:
        early = ctx.transaction()
        with ctx.transaction():
            pass
        for ask in (lambda: ctx.enqueue(send, to="x"), ctx.transaction, early.__enter__):
            with pytest.raises(PerdureError) as caught:
                ask()
            codes.append(caught.value.code)

    job = declared(app, "plain", body).enqueue()
    work(app)
    assert app.existing(job).state == "completed"
    assert codes == ["job_ended"] * 3
    assert list(app.jobs(kind="send")) == []


@pytest.mark.parametrize("value", [7, Done(7, write=lambda tx: tx.execute("INSERT INTO orders VALUES ('late')"))])
def test_a_value_returned_afterwards_is_ignored_with_a_warning(app: Perdure, path: Path, value: Any) -> None:
    def body(ctx: JobContext) -> Any:
        with ctx.transaction() as tx:
            tx.result(1)
        return value

    job = ran(app, "plain", body)
    assert job.result == 1
    assert items(path) == []
    assert [line.level for line in app.logs(job)] == ["WARNING"]
    assert "it is not kept" in messages(app, job)[0]


@pytest.mark.parametrize("error", [OSError("late"), SystemExit(1), asyncio.CancelledError()])
def test_an_exception_afterwards_is_logged_and_changes_nothing(app: Perdure, error: BaseException) -> None:
    def body(ctx: JobContext) -> None:
        with ctx.transaction() as tx:
            tx.result(1)
        raise error

    job = ran(app, "plain", body)
    assert (job.state, job.result, job.attempts, job.error) == ("completed", 1, 1, None)
    assert last_run(app, job).state == "completed"
    (line,) = app.logs(job)
    assert line.level == "ERROR"
    assert "had ended the job, which stays completed" in line.message
    assert type(error).__name__ in line.message


def test_a_result_that_cannot_be_kept_rolls_back(app: Perdure, path: Path) -> None:
    def body(ctx: JobContext) -> None:
        with ctx.transaction() as tx:
            tx.execute("INSERT INTO orders VALUES ('tea')")
            tx.result(object())

    job = ran(app, "plain", body, retry=1)
    assert job.state == "failed"
    assert "result_not_json" in str(last_run(app, job).error_message)
    assert items(path) == []


@pytest.mark.parametrize(
    "sql",
    [
        *("COMMIT", "rollback", " ; END", "/* */ COMMIT", "\ufeffCOMMIT", "BEGIN"),
        *("ATTACH ':memory:' AS x", "-- x\ndetach x", "\ufeffATTACH ':memory:' AS x"),
    ],
)
def test_the_transaction_is_not_the_handlers_to_end(app: Perdure, path: Path, sql: str) -> None:
    def body(ctx: JobContext) -> None:
        with ctx.transaction() as tx:
            tx.execute("INSERT INTO orders VALUES ('tea')")
            tx.execute(sql)

    job = ran(app, "plain", body, retry=1)
    assert "tx_managed" in str(last_run(app, job).error_message)
    assert items(path) == []


def test_a_transaction_that_a_statement_ended_ends_nothing_else(app: Perdure, path: Path) -> None:
    with app.transaction() as tx:
        tx.execute("CREATE UNIQUE INDEX one ON orders (item)")

    def body(ctx: JobContext) -> None:
        with ctx.transaction() as tx:
            tx.execute("INSERT INTO orders VALUES ('tea')")
            with pytest.raises(PerdureError):
                tx.execute("INSERT OR ROLLBACK INTO orders VALUES ('tea')")

    job = ran(app, "plain", body, retry=1)
    assert job.state == "failed"
    assert "tx_ended" in str(last_run(app, job).error_message)
    assert items(path) == []


def test_a_lost_job_rolls_everything_back(app: Perdure, path: Path, send: Any) -> None:
    after: list[str] = []

    def body(ctx: JobContext) -> None:
        take_over(app, ctx)
        with ctx.transaction() as tx:
            tx.execute("INSERT INTO orders VALUES ('mine')")
            send.enqueue("mine")
            tx.result("mine")
        after.append("not reached")

    job = declared(app, "plain", body).enqueue()
    work(app)
    assert app.existing(job).result == "theirs"
    assert items(path) == []
    assert list(app.jobs(kind="send")) == []
    assert after == []


def test_it_cannot_be_opened_inside_another(app: Perdure) -> None:
    def body(ctx: JobContext) -> None:
        with app.transaction(), ctx.transaction():
            pass

    assert "tx_nested" in str(last_run(app, ran(app, "plain", body, retry=1)).error_message)


def test_in_a_coroutine_it_is_refused_at_once_and_names_the_way(app: Perdure) -> None:
    seen: list[PerdureError] = []

    @app.job
    async def coroutine(ctx: JobContext) -> str:
        with pytest.raises(TransactionError, match=r"Done.*session=async_sessionmaker") as caught:
            ctx.transaction()
        seen.append(caught.value)

        def write() -> None:
            with ctx.transaction() as tx:
                tx.result("from a thread")

        await asyncio.to_thread(write)
        return "ignored"

    job = coroutine.enqueue()
    work(app)
    assert [error.code for error in seen] == ["tx_in_coroutine"]
    assert app.existing(job).result == "from a thread"


# -- too long --------------------------------------------------------------------------------------------------------


@pytest.fixture
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "WARN_AFTER_S", 0.02)
    monkeypatch.setattr(services, "LIMIT_S", 0.1)


def too_long(act: Callable[[], object]) -> str:
    with pytest.raises(TransactionTooLong) as caught:
        act()
    return caught.value.code


@pytest.mark.usefixtures("short_limits")
def test_one_that_commits_in_the_last_moment_is_not_said_to_be_rolled_back(
    app: Perdure, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, committed = threading.Event(), threading.Event()
    give_up, answers = SqliteTransaction.give_up, list[bool]()

    def late(transaction: SqliteTransaction, reason: str) -> bool:
        asked.set()
        assert committed.wait(30)
        answers.append(give_up(transaction, reason))
        return answers[-1]

    monkeypatch.setattr(SqliteTransaction, "give_up", late)

    def body(ctx: JobContext) -> None:
        with ctx.transaction() as tx:
            tx.execute("INSERT INTO orders VALUES ('tea')")
            assert asked.wait(30)
        committed.set()
        eventually(lambda: answers and "perdure-transaction" not in {thread.name for thread in threading.enumerate()})

    job = ran(app, "plain", body)
    assert (answers, job.state, items(path)) == ([False], "completed", ["tea"])
    (warning,) = messages(app, job)
    assert "has been open for" in warning


@pytest.mark.usefixtures("short_limits")
def test_one_that_is_open_for_too_long_is_rolled_back_and_others_go_on(app: Perdure, path: Path, send: Any) -> None:
    inside, others_wrote = threading.Event(), threading.Event()
    codes: list[str] = []

    def body(ctx: JobContext) -> str:
        with pytest.raises(TransactionTooLong), ctx.transaction() as tx:
            cursor = tx.execute("INSERT INTO orders VALUES ('mine') RETURNING item")
            inside.set()
            assert others_wrote.wait(30)
            codes.append(too_long(lambda: tx.execute("INSERT INTO orders VALUES ('late')")))
            codes.append(too_long(lambda: send.enqueue("late")))
            codes.append(too_long(lambda: app.get(ctx.job_id)))
            with pytest.raises(sqlite3.Error):
                cursor.execute("INSERT INTO orders VALUES ('behind our back')")
        return "without"

    job = declared(app, "plain", body).enqueue()
    with app.worker(queues=["default"]).running():
        assert inside.wait(30)
        eventually(lambda: send.enqueue("others"))
        with closed_after(sqlite3.connect(path, timeout=30)) as other:
            other.execute("INSERT INTO orders VALUES ('theirs')")
            other.commit()
        others_wrote.set()
        app.wait(job, timeout=30)
    assert codes == ["tx_too_long"] * 3
    assert items(path) == ["theirs"]
    assert [child.payload for child in app.jobs(kind="send")] == [{"to": "others"}]
    assert app.existing(job).result == "without"
    warning, error = app.logs(job)
    assert (warning.level, error.level) == ("WARNING", "ERROR")
    assert "keeps all other writers out" in warning.message
    assert "was rolled back" in error.message


@pytest.mark.usefixtures("short_limits")
def test_a_statement_that_takes_too_long_is_interrupted(app: Perdure, path: Path) -> None:
    def body(ctx: JobContext) -> None:
        with ctx.transaction() as tx:
            tx.execute("INSERT INTO orders VALUES ('mine')")
            tx.execute(ENDLESS).fetchone()

    job = ran(app, "plain", body, retry=1)
    assert (job.state, last_run(app, job).error_type) == ("failed", "TransactionTooLong")
    assert items(path) == []


@pytest.mark.usefixtures("short_limits")
def test_one_whose_end_comes_too_late_does_not_end_the_job(app: Perdure, path: Path) -> None:
    def body(ctx: JobContext) -> None:
        with ctx.transaction() as tx:
            tx.execute("INSERT INTO orders VALUES ('mine')")
            eventually(lambda: "was rolled back" in str(ctx.take_notes()))

    job = ran(app, "plain", body, retry=1)
    assert (job.state, last_run(app, job).error_type) == ("failed", "TransactionTooLong")
    assert items(path) == []


@pytest.mark.usefixtures("short_limits")
def test_whoever_writes_after_one_was_given_up_is_left_alone_when_its_block_ends(app: Perdure, path: Path) -> None:
    """The block's end must not end the turn that has become another one's."""
    inside, theirs_is_open, ours_is_over = threading.Event(), threading.Event(), threading.Event()

    def body(ctx: JobContext) -> None:
        with pytest.raises(TransactionTooLong), ctx.transaction():
            inside.set()
            assert theirs_is_open.wait(30)
        ours_is_over.set()

    job = declared(app, "plain", body).enqueue()
    gate = app.store.runner.database._gate  # type: ignore[attr-defined]
    with app.worker().running():
        assert inside.wait(30)
        gate.board[0] = 1  # as if other processes wrote too
        with app.transaction() as tx:
            tx.execute("INSERT INTO orders VALUES ('theirs')")
            theirs_is_open.set()
            assert ours_is_over.wait(30)
            assert gate.inside
        app.wait(job, timeout=30)
    assert items(path) == ["theirs"]


@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.usefixtures("short_limits")
def test_what_done_writes_must_not_take_too_long_either(app: Perdure, path: Path, sort: str) -> None:
    def write(tx: Any) -> None:
        tx.execute("INSERT INTO orders VALUES ('mine')")
        tx.execute(ENDLESS)

    job = ran(app, sort, lambda _: Done(1, write=write), retry=1)
    assert (job.state, last_run(app, job).error_type) == ("failed", "TransactionTooLong")
    assert items(path) == []


# -- Done ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sort", SORTS)
def test_done_writes_and_ends_in_one_transaction(app: Perdure, path: Path, send: Any, sort: str) -> None:
    def write(tx: Any) -> None:
        tx.execute("INSERT INTO orders VALUES (?)", ("tea",))
        send.enqueue("from write")
        assert items(path) == []

    def body(ctx: JobContext) -> Done:
        ctx.metric(rows=1)
        ctx.enqueue(send, to="child")
        return Done({"rows": 1}, write=write)

    job = declared(app, sort, body).enqueue()
    work(app)
    ended = app.existing(job)
    assert (ended.state, ended.result, ended.attempts) == ("completed", {"rows": 1}, 1)
    assert items(path) == ["tea"]
    assert recipients(app) == ["child", "from write"]
    assert last_run(app, ended).metrics == {"rows": 1}


@pytest.mark.parametrize("sort", SORTS)
def test_done_without_a_function_is_just_a_result(app: Perdure, sort: str) -> None:
    assert ran(app, sort, lambda _: Done([1, 2])).result == [1, 2]


@pytest.mark.parametrize("error", [OSError("no"), StopIteration(), SystemExit(3), asyncio.CancelledError()])
@pytest.mark.parametrize("sort", SORTS)
def test_a_function_that_raises_is_a_failed_attempt(app: Perdure, path: Path, sort: str, error: BaseException) -> None:
    calls: list[int] = []

    def body(ctx: JobContext) -> Done:
        def write(tx: Any) -> None:
            calls.append(ctx.attempt)
            tx.execute("INSERT INTO orders VALUES (?)", (f"attempt {ctx.attempt}",))
            raise error

        return Done(1, write=write)

    job = ran(app, sort, body, retry=Retry(2, backoff="none"))
    assert (job.state, job.result) == ("failed", None)
    attempts = 1 if isinstance(error, SystemExit) else 2
    assert calls == [1, 2][:attempts]
    assert type(error).__name__ in str(last_run(app, job).error_type)
    assert items(path) == []


@pytest.mark.parametrize("sql", ["COMMIT", "ROLLBACK", "\ufeffCOMMIT", "ATTACH ':memory:' AS x"])
@pytest.mark.parametrize("sort", SORTS)
def test_the_function_cannot_end_the_transaction(app: Perdure, path: Path, sort: str, sql: str) -> None:
    def write(tx: Any) -> None:
        tx.execute("INSERT INTO orders VALUES ('tea')")
        tx.execute(sql)

    job = ran(app, sort, lambda _: Done(1, write=write), retry=1)
    assert "tx_managed" in str(last_run(app, job).error_message)
    assert items(path) == []


@pytest.mark.parametrize("sort", SORTS)
def test_a_function_of_a_lost_job_writes_nothing_and_is_not_called_again(app: Perdure, path: Path, sort: str) -> None:
    calls: list[str] = []

    def write(tx: Any) -> None:
        calls.append("called")
        tx.execute("INSERT INTO orders VALUES ('mine')")

    def body(ctx: JobContext) -> Done:
        take_over(app, ctx)
        return Done("mine", write=write)

    job = ran(app, sort, body)
    assert job.result == "theirs"
    assert calls == ["called"]
    assert items(path) == []


@pytest.mark.parametrize("sort", SORTS)
def test_a_result_that_cannot_be_kept_is_noticed_before_anything_is_written(
    app: Perdure, path: Path, sort: str
) -> None:
    done = Done(object(), write=lambda tx: tx.execute("INSERT INTO orders VALUES ('tea')"))
    job = ran(app, sort, lambda _: done)
    assert (job.state, job.attempts) == ("failed", 1)
    assert items(path) == []


def test_a_cancel_during_the_write_does_not_tear_it_apart(
    app: Perdure, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @app.job(timeout=0.05)
    async def coroutine(ctx: JobContext) -> Done:
        def write(tx: Any) -> None:
            eventually(lambda: ctx.should_stop)
            tx.execute("INSERT INTO orders VALUES ('tea')")

        return Done("done", write=write)

    job = coroutine.enqueue()
    work(app)
    assert (app.existing(job).state, app.existing(job).result) == ("completed", "done")
    assert items(path) == ["tea"]
    assert "had been taken from this node" not in caplog.text
