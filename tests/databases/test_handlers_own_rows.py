"""A worker on a database server: a job's end and the handler's own rows, together or not at all.

On SQLite, where they hold the writer's lock, see `tests/worker/test_closing.py`.
"""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Done, JobContext, Perdure, Retry
from tests.databases.of_each_sort import MARKS, app, made, ordered, send, url
from tests.worker.bodies import SORTS, declared, messages, take_over

__all__ = ["app", "made", "send", "url"]

pytestmark = pytest.mark.parametrize(
    "sort", [pytest.param(sort, marks=MARKS[sort]) for sort in ("postgres", "mariadb")]
)


def work(app: Perdure) -> None:
    assert app.worker(queues=["default"]).run(until_idle=True) == 0


@pytest.mark.parametrize("handler", SORTS)
def test_the_commit_is_the_jobs_end(app: Perdure, send: Any, handler: str) -> None:
    def body(ctx: JobContext) -> None:
        ctx.log.info("attempt %d", ctx.attempt)
        with ctx.transaction() as tx:
            tx.execute("INSERT INTO orders VALUES (%s)", (ctx.attempt,))
            send.enqueue("plain")
            send.options(tx=tx).enqueue("with tx")
            ctx.enqueue(send, to="child")
            tx.result(ctx.attempt)
            if ctx.attempt == 1:
                raise OSError

    job = declared(app, handler, body, retry=Retry(2, backoff="none")).enqueue()
    work(app)
    assert (app.existing(job).state, app.existing(job).result) == ("completed", 2)
    assert ordered(app) == [2]
    assert sorted((child.payload or {})["to"] for child in app.jobs(kind="send")) == ["child", "plain", "with tx"]
    assert messages(app, job) == ["attempt 1", "attempt 2"]


@pytest.mark.parametrize("handler", SORTS)
def test_done_writes_and_ends_in_one_transaction(app: Perdure, handler: str) -> None:
    def body(ctx: JobContext) -> Done:
        def write(tx: Any) -> None:
            tx.execute("INSERT INTO orders VALUES (%s)", (ctx.attempt,))
            if ctx.attempt == 1:
                tx.execute("COMMIT")

        return Done(ctx.attempt, write=write)

    job = declared(app, handler, body, retry=Retry(2, backoff="none")).enqueue()
    work(app)
    assert app.existing(job).result == 2
    assert ordered(app) == [2]
    _, first = app.runs(job)
    assert "tx_managed" in str(first.error_message)


def test_a_lost_job_rolls_everything_back(app: Perdure) -> None:
    def body(ctx: JobContext) -> None:
        take_over(app, ctx)
        with ctx.transaction() as tx:
            tx.execute("INSERT INTO orders VALUES (1)")

    job = declared(app, "plain", body).enqueue()
    work(app)
    assert app.existing(job).result == "theirs"
    assert ordered(app) == []
