"""What a handler is given besides its arguments, and what it can tell on the way."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from perdure import InvalidInput, InvalidOption, Job, JobContext, Perdure, Retry, Run, Snooze, current
from perdure.worker import node
from tests.worker.bodies import SORTS, declared, last_run, ran
from tests.worker.patience import eventually


@pytest.fixture
def prompt_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "NOTES_EVERY_S", 0.01)


# -- looking ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sort", SORTS)
def test_a_handler_sees_its_job_and_its_run(app: Perdure, sort: str) -> None:
    seen: list[tuple[Job, Run, int]] = []

    def body(ctx: JobContext) -> None:
        seen.append((ctx.job, ctx.run, ctx.attempt))
        assert (ctx.job_id, ctx.run_id) == (ctx.job.id, ctx.run.id)
        if ctx.attempt == 1:
            raise OSError

    job = ran(app, sort, body, retry=Retry(2, backoff="none"))
    assert [(seen_job.id, str(seen_job.state), attempt) for seen_job, _, attempt in seen] == [
        (job.id, "running", 1),
        (job.id, "running", 2),
    ]
    assert [str(run.state) for _, run, _ in seen] == ["running", "running"]
    assert [run.id for _, run, _ in seen] == [run.id for run in app.runs(job)][::-1]


@pytest.mark.parametrize("sort", SORTS)
def test_params_and_principal_are_those_of_the_job(app: Perdure, sort: str) -> None:
    seen: list[Any] = []
    handler = declared(app, sort, lambda ctx: seen.append((ctx.params, ctx.principal)))
    handler.options(params={"tenant": 7}, principal="ada").enqueue()
    app.worker().run(until_idle=True)
    handler.enqueue()
    app.worker().run(until_idle=True)
    assert seen == [({"tenant": 7}, "ada"), ({}, None)]


@pytest.mark.parametrize("sort", SORTS)
def test_state_is_what_the_lifespan_gave(app: Perdure, sort: str) -> None:
    seen: list[Any] = []

    @contextmanager
    def lifespan() -> Generator[dict[str, Any], None, None]:
        yield {"pool": "open"}

    declared(app, sort, lambda ctx: seen.append(ctx.state["pool"])).enqueue()
    app.worker(lifespan=lifespan).run(until_idle=True)
    assert seen == ["open"]


@pytest.mark.parametrize("sort", SORTS)
def test_current_finds_the_run_from_nested_code(app: Perdure, sort: str) -> None:
    def nested() -> JobContext | None:
        return current()

    assert ran(app, sort, lambda ctx: nested() is ctx).result is True
    assert current() is None


def test_current_is_the_own_run_among_many_at_once(app: Perdure) -> None:
    together = threading.Barrier(4)

    @app.job
    def plain(ctx: JobContext) -> bool:
        together.wait(30)
        return current() is ctx

    @app.job
    async def coroutine(ctx: JobContext) -> bool:
        await asyncio.to_thread(together.wait, 30)
        return current() is ctx and await asyncio.to_thread(current) is ctx

    jobs = [kind.enqueue() for kind in (plain, coroutine, plain, coroutine)]
    app.worker(concurrency=4).run(until_idle=True)
    assert [app.existing(job).result for job in jobs] == [True] * 4


# -- saying --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sort", SORTS)
def test_progress_metrics_and_artifacts_end_in_the_run(app: Perdure, sort: str, tmp_path: Path) -> None:
    def body(ctx: JobContext) -> None:
        for done in range(1, 101):
            ctx.progress(done, 100, f"page {done}")
        ctx.metric(pages=1, bytes=2.5)
        ctx.metric(pages=100)
        ctx.artifact(tmp_path / "report.pdf")
        ctx.artifact("s3://bucket/x")
        ctx.artifact(b"raw\xff.bin")  # type: ignore[arg-type]

    run = last_run(app, ran(app, sort, body))
    assert run.metrics == {"progress": {"done": 100, "total": 100, "note": "page 100"}, "pages": 100, "bytes": 2.5}
    assert run.artifacts == [str(tmp_path / "report.pdf"), "s3://bucket/x", "raw?.bin"]
    assert run.duration_ms is not None


@pytest.mark.parametrize("sort", SORTS)
def test_what_a_failed_attempt_told_is_kept_too(app: Perdure, sort: str) -> None:
    def body(ctx: JobContext) -> None:
        ctx.metric(tried=ctx.attempt)
        ctx.artifact(f"attempt{ctx.attempt}.txt")
        raise OSError

    job = ran(app, sort, body, retry=Retry(2, backoff="none"))
    assert [(run.metrics, run.artifacts) for run in app.runs(job)] == [
        ({"tried": 2}, ["attempt2.txt"]),
        ({"tried": 1}, ["attempt1.txt"]),
    ]


@pytest.mark.usefixtures("prompt_notes")
def test_what_is_told_can_be_seen_while_the_handler_runs(app: Perdure) -> None:
    seen = threading.Event()

    def body(ctx: JobContext) -> None:
        ctx.progress(1, 3)
        ctx.artifact("a.txt")
        ctx.log.info("begun")
        assert seen.wait(30)
        ctx.progress(3, 3)
        ctx.artifact("b.txt")

    job = declared(app, "plain", body).enqueue()
    with app.worker().running():
        eventually(lambda: [run for run in app.runs(job) if run.artifacts and run.metrics and list(app.logs(job))])
        run = last_run(app, job)
        assert (run.state, run.metrics, run.artifacts) == ("running", {"progress": {"done": 1, "total": 3}}, ["a.txt"])
        seen.set()
        app.wait(job, timeout=30)
    run = last_run(app, job)
    assert (run.metrics, run.artifacts) == ({"progress": {"done": 3, "total": 3}}, ["a.txt", "b.txt"])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**400, "7", True, None])
def test_a_metric_is_a_finite_number(app: Perdure, value: Any) -> None:
    seen: list[str] = []

    def body(ctx: JobContext) -> None:
        with pytest.raises(InvalidInput) as caught:
            ctx.metric(x=value)
        seen.append(caught.value.code)
        with pytest.raises(InvalidInput) as caught:
            ctx.progress(value)
        seen.append(caught.value.code)

    assert ran(app, "plain", body).state == "completed"
    assert seen == ["metric_invalid"] * 2


def test_too_many_metrics_are_refused_and_the_others_stay(app: Perdure) -> None:
    def body(ctx: JobContext) -> None:
        ctx.metric(kept=1)
        with pytest.raises(InvalidInput, match="at most"):
            ctx.metric(**{f"name{number}": number for number in range(2_000)})

    assert last_run(app, ran(app, "plain", body)).metrics == {"kept": 1}


# -- stopping --------------------------------------------------------------------------------------------------------


def test_a_checkpoint_lets_go_when_the_worker_stops_and_the_attempt_is_given_back(app: Perdure) -> None:
    inside, noticed = threading.Event(), threading.Event()

    @app.job
    def plain(ctx: JobContext) -> None:
        inside.set()
        while not ctx.should_stop:
            threading.Event().wait(0.001)
        noticed.set()
        ctx.checkpoint()

    job = plain.enqueue()
    with app.worker().running():
        assert inside.wait(30)
    assert noticed.is_set()
    left = app.existing(job)
    assert (left.state, left.attempts) == ("queued", 0)
    assert last_run(app, job).state == "released"


def test_the_same_in_a_coroutine(app: Perdure) -> None:
    inside = threading.Event()

    @app.job
    async def coroutine(ctx: JobContext) -> None:
        inside.set()
        while True:
            ctx.checkpoint()
            await asyncio.sleep(0.001)

    job = coroutine.enqueue()
    with app.worker().running():
        assert inside.wait(30)
    assert (app.existing(job).state, app.existing(job).attempts) == ("queued", 0)


@pytest.mark.parametrize("sort", SORTS)
def test_a_checkpoint_lets_go_of_a_cancelled_job(app: Perdure, sort: str) -> None:
    def body(ctx: JobContext) -> None:
        assert not ctx.should_stop
        app.cancel(ctx.job_id)
        eventually(lambda: ctx.should_stop)
        ctx.checkpoint()

    job = ran(app, sort, body) if sort == "plain" else _cancelled_in_a_loop(app)
    assert job.state == "cancelled"
    assert last_run(app, job).state == "cancelled"


def _cancelled_in_a_loop(app: Perdure) -> Job:
    @app.job
    async def coroutine(ctx: JobContext) -> None:
        await app.aio.cancel(ctx.job_id)
        while True:
            ctx.checkpoint()
            await asyncio.sleep(0.001)

    job = coroutine.enqueue()
    app.worker().run(until_idle=True)
    return app.existing(job)


def test_a_checkpoint_does_nothing_while_all_is_well(app: Perdure) -> None:
    assert ran(app, "plain", lambda ctx: ctx.checkpoint()).state == "completed"


# -- enqueue ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def send(app: Perdure) -> Any:
    @app.job(queue="later")
    def send(to: str = "a") -> None:
        pass

    return send


def work(app: Perdure) -> None:
    """Only the queue of the handlers: what they enqueue stays where it can be seen."""
    app.worker(queues=["default"]).run(until_idle=True)


@pytest.mark.parametrize("sort", SORTS)
def test_children_are_written_with_the_completion(app: Perdure, send: Any, sort: str) -> None:
    promised: list[Job] = []

    def body(ctx: JobContext) -> None:
        promised.append(ctx.enqueue(send, to="x"))
        promised.append(ctx.enqueue(send.options(priority=5, tags=["t"]), "y"))
        promised.append(ctx.enqueue(send.new("z")))
        assert [app.get(job) for job in promised] == [None] * 3

    parent = declared(app, sort, body).enqueue()
    work(app)
    children = [app.existing(job) for job in promised]
    assert [child.payload for child in children] == [{"to": "x"}, {"to": "y"}, {"to": "z"}]
    assert [child.priority for child in children] == [0, 5, 0]
    assert {child.row.parent_id for child in children} == {parent.row.id}
    assert all(child.state == "queued" for child in children)


@pytest.mark.parametrize("error", [OSError(), Snooze(3600)])
@pytest.mark.parametrize("sort", SORTS)
def test_children_of_a_run_that_does_not_complete_are_dropped(
    app: Perdure, send: Any, sort: str, error: Exception
) -> None:
    def body(ctx: JobContext) -> None:
        ctx.enqueue(send, to=f"attempt {ctx.attempt}")
        if ctx.attempt == 1:
            raise error

    job = declared(app, sort, body, retry=Retry(2, backoff="none")).enqueue()
    work(app)
    expected = [{"to": "attempt 2"}] if isinstance(error, OSError) else []
    assert [child.payload for child in app.jobs(kind="send")] == expected
    assert app.existing(job).is_final == bool(expected)


def test_a_child_whose_key_is_taken_leaves_the_job_that_holds_it(app: Perdure, send: Any) -> None:
    first = send.options(business_key="b").enqueue("first")
    second = send.options(idempotency_key="i").enqueue("second")

    def body(ctx: JobContext) -> None:
        ctx.enqueue(send.options(business_key="b", conflict="raise"), to="other")
        ctx.enqueue(send.options(idempotency_key="i"), to="second")
        ctx.enqueue(send, to="free")

    job = declared(app, "plain", body).enqueue()
    work(app)
    assert app.existing(job).state == "completed"
    assert {(child.payload or {})["to"] for child in app.jobs(kind="send")} == {"first", "second", "free"}
    assert {first.id, second.id} < {child.id for child in app.jobs(kind="send")}


@pytest.mark.parametrize("sort", SORTS)
def test_a_child_that_cannot_be_written_fails_the_job_with_the_reason_and_nobody_else(
    app: Perdure, send: Any, sort: str
) -> None:
    send.options(idempotency_key="i").enqueue("first")

    def body(ctx: JobContext) -> str:
        if ctx.params:
            ctx.enqueue(send.options(idempotency_key="i"), to="something else")
        return "done"

    handler = declared(app, sort, body)
    good = [handler.enqueue() for _ in range(3)]
    bad = handler.options(params={"bad": True}).enqueue()
    good += [handler.enqueue() for _ in range(3)]
    work(app)
    assert [app.existing(job).result for job in good] == ["done"] * 6
    failed = app.existing(bad)
    assert (failed.state, failed.attempts) == ("failed", 1)
    assert "was used for job" in str(failed.error)
    assert last_run(app, bad).error_type == "FinishRefused"
    assert [child.payload for child in app.jobs(kind="send")] == [{"to": "first"}]


def test_what_cannot_be_enqueued_is_refused_at_the_call(app: Perdure, send: Any) -> None:
    def body(ctx: JobContext) -> None:
        with pytest.raises(InvalidInput):
            ctx.enqueue(send, to=7)
        with pytest.raises(InvalidInput, match="not both"):
            ctx.enqueue(send.new("a"), to="b")
        with pytest.raises(InvalidOption, match="takes no tx="), app.transaction() as tx:
            ctx.enqueue(send.options(tx=tx), to="b")

    assert ran(app, "plain", body).state == "completed"
    assert list(app.jobs(kind="send")) == []
