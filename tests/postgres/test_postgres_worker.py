"""A worker on PostgreSQL: a job's end and the handler's own rows, together or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Done, JobContext, Perdure, Retry
from perdure.ops.doctor import examine, is_healthy
from tests.worker.bodies import SORTS, declared, last_run, messages, take_over

pytestmark = pytest.mark.postgres


@pytest.fixture(autouse=True)
def orders(app: Perdure) -> None:
    with app.transaction() as tx:
        tx.execute("CREATE TABLE orders (item TEXT)")


def items(app: Perdure) -> list[str]:
    with app.transaction() as tx:
        return [item for (item,) in tx.execute("SELECT item FROM orders").fetchall()]


def work(app: Perdure) -> None:
    assert app.worker(queues=["default"]).run(until_idle=True) == 0
    assert is_healthy(examine(app.store))


@pytest.mark.parametrize("sort", SORTS)
def test_the_commit_is_the_jobs_end(app: Perdure, send: Any, sort: str) -> None:
    def body(ctx: JobContext) -> None:
        ctx.log.info("attempt %d", ctx.attempt)
        with ctx.transaction() as tx:
            tx.execute("INSERT INTO orders VALUES (%s)", (f"attempt {ctx.attempt}",))
            send.enqueue("plain")
            send.options(tx=tx).enqueue("with tx")
            ctx.enqueue(send, to="child")
            tx.result(ctx.attempt)
            if ctx.attempt == 1:
                raise OSError

    job = declared(app, sort, body, retry=Retry(2, backoff="none")).enqueue()
    work(app)
    assert (app.existing(job).state, app.existing(job).result) == ("completed", 2)
    assert items(app) == ["attempt 2"]
    assert sorted((child.payload or {})["to"] for child in app.jobs(kind="send")) == ["child", "plain", "with tx"]
    assert messages(app, job) == ["attempt 1", "attempt 2"]


@pytest.mark.parametrize("sort", SORTS)
def test_done_writes_and_ends_in_one_transaction(app: Perdure, sort: str) -> None:
    def body(ctx: JobContext) -> Done:
        def write(tx: Any) -> None:
            tx.execute("INSERT INTO orders VALUES (%s)", (f"attempt {ctx.attempt}",))
            if ctx.attempt == 1:
                tx.execute("COMMIT")

        return Done(ctx.attempt, write=write)

    job = declared(app, sort, body, retry=Retry(2, backoff="none")).enqueue()
    work(app)
    assert app.existing(job).result == 2
    assert items(app) == ["attempt 2"]
    _, first = app.runs(job)
    assert "tx_managed" in str(first.error_message)


def test_a_lost_job_rolls_everything_back(app: Perdure) -> None:
    def body(ctx: JobContext) -> None:
        take_over(app, ctx)
        with ctx.transaction() as tx:
            tx.execute("INSERT INTO orders VALUES ('mine')")

    job = declared(app, "plain", body).enqueue()
    work(app)
    assert app.existing(job).result == "theirs"
    assert items(app) == []


def test_what_no_database_holds_is_replaced(app: Perdure) -> None:
    def body(ctx: JobContext) -> None:
        ctx.log.info("a\0b\ud800")
        ctx.progress(1, note="a\0b")
        ctx.artifact("a\0b")
        raise OSError("a\0b\ud800")

    job = declared(app, "plain", body, retry=1).enqueue()
    work(app)
    assert messages(app, job) == ["a�b?"]
    run = last_run(app, job)
    assert (run.error_message, run.artifacts, run.metrics["progress"]["note"]) == ("a�b?", ["a�b"], "a�b")
