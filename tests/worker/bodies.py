"""Handlers made from a body: the same test for plain functions and coroutines."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from perdure import Job, JobContext, Perdure, Run
from perdure.ids import JobId, NodeId, RunId
from perdure.job.reports import Completed, Finish, Released
from perdure.store.rows import Claimer, Lane, NewNode

Body = Callable[[JobContext], Any]
SORTS = ("plain", "async")


def declared(app: Perdure, sort: str, body: Body, **options: Any) -> Any:
    """A kind called `handler` that does what the body does."""
    if sort == "plain":

        @app.job(name="handler", **options)
        def handler(ctx: JobContext) -> Any:
            return body(ctx)

        return handler

    @app.job(name="handler", **options)
    async def coroutine(ctx: JobContext) -> Any:
        return body(ctx)

    return coroutine


def ran(app: Perdure, sort: str, body: Body, **options: Any) -> Job:
    """The job of such a kind, after a worker had nothing left to do."""
    job = declared(app, sort, body, **options).enqueue()
    assert app.worker().run(until_idle=True) == 0
    return app.existing(job)


def last_run(app: Perdure, job: Job) -> Run:
    return next(app.runs(job))


def messages(app: Perdure, job: Job) -> list[str]:
    return [line.message for line in app.logs(job)]


def take_over(app: Perdure, ctx: JobContext) -> None:
    """Another node gets the job of a running handler, and completes it."""
    store, now, node = app.store, app.clock.now(), NodeId(app.ids.new())
    with app.transaction():
        store.register(NewNode(node, now))
        store.finish([Finish(ctx.claim.live, Released(), JobId(app.ids.new()))], now)
        claimer = Claimer(node, None, [RunId(app.ids.new())], 60_000_000)
        (claim,) = store.claim([Lane(ctx.claim.live.queue, 1)], claimer, now)
        store.finish([Finish(claim.live, Completed('"theirs"'), JobId(app.ids.new()))], now)
        store.stop(node, "clean_shutdown", now)


def written_over(path: Path, job: Job, payload: str) -> None:
    """Someone changes a stored payload behind our back."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=30)) as connection:
        connection.execute("UPDATE perdure_job SET payload = ? WHERE id = ?", (payload, job.row.id))
