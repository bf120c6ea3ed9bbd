"""Right use: both type checkers accept every line, and see the types that are asserted. Never run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from perdure import (
    Draft,
    Flow,
    FlowState,
    Job,
    JobContext,
    Outcome,
    Perdure,
    Planned,
    Retention,
    Retry,
    Run,
    RunState,
    State,
    Unique,
    each,
    previous,
)

app = Perdure(
    "jobs.db",
    name="shop",
    durability="full",
    auto_migrate=None,
    busy_timeout_s=1.5,
    lease_s=30,
    imports=["shop.jobs"],
    retention=Retention(failed=timedelta(days=30)),
)


@app.job
def send(to: str, subject: str = "hi") -> str:
    return to + subject


@app.job(
    queue="mail", retry=Retry(max_attempts=5, on=(OSError,)), timeout=30, priority=1, name="fetch", aliases=["get"]
)
async def fetch(url: str, *, tries: int = 1) -> int:
    return len(url) * tries


@app.job
def count(ctx: JobContext, words: list[str]) -> dict[str, int]:
    return dict.fromkeys(words, ctx.attempt)


@app.job(retry=3)
async def watch(ctx: JobContext, path: str) -> None:
    assert_type(ctx.params, dict[str, Any])
    assert_type(path, str)


@app.job(version=2, upgrades={1: lambda arguments: {**arguments, "loud": True}})
def greet(name: str, loud: bool) -> list[int] | None:
    return [len(name)] if loud else None


@app.schedule("0 7 * * *", tz="Europe/Berlin", overlap="queue", catch_up="all", misfire_grace=timedelta(minutes=5))
@app.job(isolation="process", conflict="return", retry=Retry(backoff="linear"))
def report(day: str = "") -> bytes:
    return day.encode()


def plain_calls(ctx: JobContext) -> list[Coroutine[Any, Any, Any]]:
    assert_type(send("a"), str)
    assert_type(count(ctx, ["a"]), dict[str, int])
    return [
        assert_type(fetch("u"), Coroutine[Any, Any, int]),
        assert_type(watch(ctx, "p"), Coroutine[Any, Any, None]),
    ]


def enqueueing() -> None:
    assert_type(send.enqueue("a"), Job)
    assert_type(send.enqueue(to="a", subject="b"), Job)
    assert_type(fetch.enqueue("u", tries=2), Job)
    assert_type(count.enqueue(["a"]), Job)
    assert_type(count.enqueue(words=["a"]), Job)
    assert_type(watch.enqueue("p"), Job)
    assert_type(send.enqueue_many([{"to": "a"}, {"to": "b", "subject": "c"}]), list[Job])
    assert_type(app.enqueue("send", {"to": "a"}, delay=5, tags=["x"]), Job)
    assert_type(app.enqueue_many([send.new("a"), count.options(delay=5).new(["b"])]), list[Job])


def drafts() -> None:
    assert_type(send.new("a"), Draft[str])
    assert_type(fetch.options(delay=1).new("u", tries=3), Draft[int])
    assert_type(count.new(["a"]), Draft[dict[str, int]])
    anything: Draft = send.new("a")
    any_of_them: list[Draft] = [send.new("a"), fetch.new("u"), anything]
    app.enqueue_many(any_of_them)


def flows(job: Job) -> None:
    with app.workflow("nightly", key="monday", on_failure="stop") as wf:
        sent = assert_type(wf.add(send.new("a")), Planned[str])
        size = assert_type(wf.add(fetch.new(sent.result), after=[job, (sent, "end")]), Planned[int])
        assert_type(size.result, int)
        assert_type(size.outcome, Outcome)
        wf.add(send.new(to=sent.result), after=wf, on="failure", when=size.result > 3)
        wf.add(send.new("b"), when=(size.result > 3) & (sent.result != "x") | (size.result == 0))
        wf.choose((size.result > 3, send.new("a")), (size.result > 1, fetch.new("u")), otherwise=count.new([]))
        parts = wf.map(send.new(to=each), over=["a", "b"], at_once=5)
        wf.add(send.new("c"), after=parts, on="end", when=parts.summary.success_rate >= 0.95)
        wf.batch("more", filled_by=size)
    assert_type(wf.flow, Flow)
    assert_type(app.chain(send.new("a"), fetch.new(url=previous)), Flow)
    assert_type(app.group([send.new("a"), fetch.new("u")], mode="sequential", on_failure="stop"), Flow)
    with app.batch("import", on_success=send.new("a"), on_failure=send.new("b"), properties={"x": 1}) as batch:
        assert_type(batch.add(fetch.new("u")), Planned[int])
        batch.add_many(send.new(to) for to in "ab")
    assert_type(app.cancel(batch), Flow)
    assert_type(app.cancel(job), Job)
    assert_type(app.wait(wf, timeout=5), Flow)
    assert_type(app.wait(sent), Job)
    assert_type(app.flows.get(wf), Flow | None)
    assert_type(next(app.flows.list(state="running")).state, FlowState)
    send.options(after=[job, (batch, "end"), job.id], on="failure").enqueue("d")


async def awaited_flows(job: Job) -> None:
    async with app.aio.workflow("nightly") as wf:
        assert_type(wf.add(fetch.new("u")), Planned[int])
    async with app.aio.batch("import") as batch:
        assert_type(await batch.add(send.new("a")), Planned[str])
    assert_type(await app.aio.retry(wf), Flow)
    assert_type(await app.aio.retry(job), Job)
    assert_type(await app.aio.chain(send.new("a")), Flow)
    assert_type([flow.total async for flow in app.aio.flows.list()], list[int | None])


def options(connection: object) -> None:
    soon = send.options(
        delay=timedelta(minutes=1),
        run_at=None,
        priority=5,
        queue="mail",
        idempotency_key="k",
        business_key="b",
        conflict="return",
        tags=["x", "y"],
        principal="ada",
        params={"a": [1, None]},
        retry=4,
        timeout=2.5,
        unique=Unique(by=["to"], until="ever"),
        tx=connection,
    )
    assert_type(soon.enqueue("a", subject="b"), Job)
    assert_type(soon.options(run_at=datetime.now(UTC)).enqueue(to="a"), Job)
    assert_type(count.options(priority=1).options(queue="q").enqueue(["a"]), Job)
    assert_type(fetch.options(tx=None).enqueue("u"), Job)


async def coroutines(job: Job) -> None:
    assert_type(await send.aenqueue("a"), Job)
    assert_type(await fetch.options(delay=1).aenqueue("u", tries=2), Job)
    assert_type(await count.aenqueue(["a"]), Job)
    assert_type(await send.await_(job, 5), str)
    assert_type(await fetch.await_(job), int)
    assert_type(await count.await_(job.id), dict[str, int])
    assert_type(await app.aio.enqueue("send", {"to": "a"}, priority=1), Job)
    assert_type(await app.aio.enqueue_many([send.new("a")]), list[Job])
    assert_type(await app.aio.get(job), Job | None)
    assert_type(app.aio.jobs(state="queued"), AsyncIterator[Job])
    assert_type(await app.aio.wait(job, 1.5), Job)
    assert_type(await app.aio.cancel_all(queue="q", limit=5), int)
    assert_type(await app.aio.retry_all(state=["failed", State.CANCELLED], since=datetime.now(UTC)), int)
    assert_type(await app.aio.purge(state="failed", older_than=timedelta(days=1)), int)
    assert_type(app.aio.runs(job, state=["lost", "failed"]), AsyncIterator[Run])
    assert_type(await app.aio.edit(job, queue="other"), Job)
    assert_type(await send.aenqueue_many([{"to": "a"}]), list[Job])
    assert_type(await send.options(delay=1).aenqueue_many([{"to": "a"}]), list[Job])


def results(job: Job) -> None:
    assert_type(send.wait(job, timeout=5), str)
    assert_type(fetch.wait(job.id), int)
    assert_type(count.wait(str(job.id)), dict[str, int])
    assert_type(watch.wait(job), None)
    assert_type(greet.wait(job), list[int] | None)
    assert_type(app.wait(job, 0.5), Job)
    assert_type(app.wait(job, timedelta(seconds=1)), Job)
    assert_type(send.result(job), str)
    assert_type(fetch.result(job), int)
    assert_type(count.result(app.wait(job)), dict[str, int])
    assert_type([greet.result(one) for one in app.jobs(kind="greet", state="completed")], list[list[int] | None])


def children(ctx: JobContext) -> None:
    assert_type(ctx.enqueue(send, "a", subject="b"), Job)
    assert_type(ctx.enqueue(fetch, "u", tries=2), Job)
    assert_type(ctx.enqueue(count, ["a"]), Job)
    assert_type(ctx.enqueue(send.options(delay=5), to="a"), Job)
    assert_type(ctx.enqueue(count.new(["a"])), Job)


def filters(job: Job, named: list[State], kind: str | None) -> None:
    assert_type(app.jobs(state=["failed", "parked"], kind=kind, tag="x", owner=None), Iterator[Job])
    assert_type(app.jobs(state=named), Iterator[Job])
    assert_type(app.jobs(state={State.FAILED, "parked"}), Iterator[Job])
    assert_type(app.jobs(state=job.state, business_key="b", idempotency_key="k"), Iterator[Job])
    assert_type(app.runs(state="timed_out", kind="send", until=datetime.now(UTC)), Iterator[Run])
    assert_type(app.runs(state=[RunState.LOST, "failed"]), Iterator[Run])
    assert_type(app.pause_all(state="queued", queue="mail", limit=1), int)
    assert_type(app.resume_all(state=(State.PAUSED, "parked")), int)
    assert_type(app.purge(state=["completed", "skipped"], kind="send"), int)
    assert_type(app.archive(state=State.FAILED, to="table", older_than=timedelta(days=1)), int)


def verbs(job: Job) -> None:
    assert_type(app.get(job), Job | None)
    assert_type(app.jobs(state="queued", queue="q", limit=10), Iterator[Job])
    assert_type(app.runs(job), Iterator[Run])
    assert_type(app.cancel(job, expect_version=3), Job)
    assert_type(app.retry(str(job.id), as_new=True), Job)
    assert_type(app.move(job, before=job.id), Job)
    assert_type(app.move(job, to="front"), Job)
    assert_type(app.supersede(job, send.new("b")), Job)
    assert_type(app.cancel_all(kind="send"), int)
    with app.transaction() as tx, app.lock("x", ttl=60):
        assert_type(send.options(tx=tx).enqueue("a"), Job)
    assert_type(app.edit(job, payload={"to": "b"}, tags=("x",), delay=None, timeout=5), Job)
    with app.reserve("gpu", wait=timedelta(minutes=1), expires=600), app.lock("x", ttl=timedelta(minutes=1)):
        assert_type(app.worker(["mail"], order="round_robin", poll_s=0.5, grace_s=5).run(until_idle=True), int)
