"""What stands between a claim and its report: arguments, middleware around the handler, and time-outs."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import date
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from perdure import Fail, JobContext, Perdure, Retry, Snooze, current
from perdure.worker.signals import Interrupted
from tests.worker.bodies import SORTS, declared, last_run, messages, ran, written_over
from tests.worker.patience import eventually


def missing(_: JobContext) -> None:
    raise KeyError("missing")


# -- arguments -------------------------------------------------------------------------------------------------------


def test_each_job_is_done_by_the_function_of_its_kind_with_arguments_of_the_declared_types(app: Perdure) -> None:
    seen: dict[str, object] = {}

    @app.job
    def remind(day: date, times: tuple[int, ...]) -> None:
        seen["remind"] = (day, times)

    @app.job
    async def rename(ctx: JobContext, ids: list[UUID], to: str = "x") -> None:
        seen["rename"] = (ctx.job.kind, ids, to)

    one = UUID(int=1)
    rename.enqueue([one])
    remind.enqueue(date(2030, 1, 1), times=(1, 2))
    app.worker().run(until_idle=True)

    assert seen == {"remind": (date(2030, 1, 1), (1, 2)), "rename": ("rename", [one], "x")}


# -- middleware ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sort", SORTS)
def test_the_first_middleware_is_the_outermost(app: Perdure, sort: str) -> None:
    seen: list[str] = []

    @app.middleware
    @contextmanager
    def outer(ctx: JobContext) -> Generator[None, None, None]:
        assert current() is ctx
        seen.append("outer in")
        yield
        seen.append("outer out")

    @app.middleware
    @contextmanager
    def inner(_: JobContext) -> Generator[None, None, None]:
        seen.append("inner in")
        yield
        seen.append("inner out")

    assert ran(app, sort, lambda _: seen.append("handler")).state == "completed"
    assert seen == ["outer in", "inner in", "handler", "inner out", "outer out"]


def test_async_middleware_is_for_coroutines_and_mixes_with_plain_ones(app: Perdure) -> None:
    seen: list[str] = []

    @app.middleware
    @asynccontextmanager
    async def outer(_: JobContext) -> AsyncGenerator[None, None]:
        await asyncio.sleep(0)
        seen.append("async in")
        yield
        await asyncio.sleep(0)
        seen.append("async out")

    @app.middleware
    @contextmanager
    def inner(_: JobContext) -> Generator[None, None, None]:
        seen.append("plain in")
        yield
        seen.append("plain out")

    assert ran(app, "async", lambda _: "done").result == "done"
    assert seen == ["async in", "plain in", "plain out", "async out"]


def test_async_middleware_around_a_plain_function_is_refused(app: Perdure) -> None:
    @app.middleware
    @asynccontextmanager
    async def only_async(_: JobContext) -> AsyncGenerator[None, None]:
        yield

    job = ran(app, "plain", lambda _: "done", retry=1)
    assert job.state == "failed"
    assert "middleware_invalid" in str(last_run(app, job).error_message)


@pytest.mark.parametrize("sort", SORTS)
def test_what_is_no_context_manager_is_refused(app: Perdure, sort: str) -> None:
    app.middleware(lambda _: None)  # type: ignore[type-var]
    job = ran(app, sort, lambda _: "done", retry=1)
    assert "middleware_invalid" in str(last_run(app, job).error_message)


@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.parametrize("error", [OSError("no"), Snooze(3600), StopIteration(), SystemExit(1)])
def test_middleware_sees_how_the_handler_left(app: Perdure, sort: str, error: BaseException) -> None:
    seen: list[BaseException] = []

    @app.middleware
    @contextmanager
    def watch(_: JobContext) -> Generator[None, None, None]:
        try:
            yield
        except BaseException as caught:
            seen.append(caught)
            raise

    def body(_: JobContext) -> None:
        raise error

    job = ran(app, sort, body, retry=1)
    if sort == "async" and isinstance(error, StopIteration):
        assert isinstance(seen[0], RuntimeError)  # Python's own doing
    else:
        assert seen == [error]
    assert job.state == ("scheduled" if isinstance(error, Snooze) else "failed")


@pytest.mark.parametrize("sort", SORTS)
def test_middleware_may_say_what_an_exception_means(app: Perdure, sort: str) -> None:
    @app.middleware
    @contextmanager
    def translate(_: JobContext) -> Generator[None, None, None]:
        try:
            yield
        except LookupError as error:
            raise Fail("it is gone") from error

    job = ran(app, sort, missing, retry=5)
    assert (job.state, job.attempts, last_run(app, job).error_type) == ("failed", 1, "Fail")
    assert "KeyError: 'missing'" in str(last_run(app, job).traceback)


@pytest.mark.parametrize("sort", SORTS)
def test_middleware_that_swallows_an_exception_completes_the_job(app: Perdure, sort: str) -> None:
    @app.middleware
    @contextmanager
    def swallow(_: JobContext) -> Generator[None, None, None]:
        with suppress(LookupError):
            yield

    job = ran(app, sort, missing)
    assert (job.state, job.result) == ("completed", None)


@pytest.mark.parametrize("sort", SORTS)
def test_middleware_that_fails_to_begin_fails_the_attempt_and_those_around_it_end(app: Perdure, sort: str) -> None:
    seen: list[str] = []

    @app.middleware
    @contextmanager
    def outer(_: JobContext) -> Generator[None, None, None]:
        try:
            yield
        finally:
            seen.append("outer out")

    @app.middleware
    @contextmanager
    def broken(ctx: JobContext) -> Generator[None, None, None]:
        if ctx.attempt == 1:
            raise OSError("not yet")
        yield

    job = ran(app, sort, lambda _: seen.append("handler"), retry=Retry(2, backoff="none"))
    assert (job.state, job.attempts) == ("completed", 2)
    assert seen == ["outer out", "handler", "outer out"]


@pytest.mark.parametrize("sort", SORTS)
def test_middleware_is_not_asked_for_jobs_that_do_not_start(app: Perdure, path: Path, sort: str) -> None:
    seen: list[str] = []

    @app.middleware
    @contextmanager
    def watch(_: JobContext) -> Generator[None, None, None]:
        seen.append("in")
        yield

    job = declared(app, sort, lambda _: None).enqueue()
    written_over(path, job, '{"unknown": 1}')
    app.worker().run(until_idle=True)
    assert app.existing(job).state == "failed"
    assert seen == []


@pytest.mark.parametrize("sort", SORTS)
def test_what_middleware_logs_and_measures_belongs_to_the_run(app: Perdure, sort: str) -> None:
    @app.middleware
    @contextmanager
    def measure(ctx: JobContext) -> Generator[None, None, None]:
        logging.getLogger("shop").warning("before")
        yield
        ctx.metric(took=1)

    job = ran(app, sort, lambda _: None)
    assert messages(app, job) == ["before"]
    assert last_run(app, job).metrics == {"took": 1}


# -- time-outs -------------------------------------------------------------------------------------------------------


def spin(ctx: JobContext) -> None:
    """Python code that goes on until it is interrupted."""
    while True:
        ctx.params  # noqa: B018


def test_a_plain_function_past_its_timeout_is_interrupted(app: Perdure, caplog: pytest.LogCaptureFixture) -> None:
    job = ran(app, "plain", spin, timeout=0.1, retry=Retry(2, backoff="none"))
    assert (job.state, job.attempts) == ("failed", 2)
    run = last_run(app, job)
    assert (run.state, run.error_type) == ("timed_out", "JobTimeout")
    assert "longer than its time-out of 0.1 s" in str(run.error_message)
    assert "in spin" in str(run.traceback)
    assert caplog.text.count("has used 80 % of its time-out of 0.1 s") == 2


def test_a_coroutine_past_its_timeout_is_cancelled(app: Perdure, caplog: pytest.LogCaptureFixture) -> None:
    left: list[str] = []

    @app.job(timeout=0.1, retry=Retry(2, backoff="none"))
    async def handler() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            left.append("cancelled")
            raise

    job = handler.enqueue()
    app.worker().run(until_idle=True)
    assert (app.existing(job).state, app.existing(job).attempts) == ("failed", 2)
    run = last_run(app, job)
    assert (run.state, run.error_type) == ("timed_out", "JobTimeout")
    assert left == ["cancelled"] * 2
    assert caplog.text.count("has used 80 % of its time-out of 0.1 s") == 2


@pytest.mark.parametrize("sort", SORTS)
def test_a_handler_that_ends_in_time_is_left_alone(app: Perdure, sort: str, caplog: pytest.LogCaptureFixture) -> None:
    job = ran(app, sort, lambda _: "in time", timeout=60)
    assert job.result == "in time"
    assert "time-out" not in caplog.text


@pytest.mark.parametrize("sort", SORTS)
def test_a_handler_that_swallows_the_interruption_keeps_its_slot_and_may_still_complete(
    app: Perdure, sort: str
) -> None:
    seen: list[str] = []

    @app.job
    def following() -> None:
        seen.append("following")

    def swallowed() -> str:
        eventually(lambda: next(app.jobs(kind="following")).state == "queued")
        seen.append("still here")
        return "after all"

    @app.job(timeout=0.05)
    def plain(ctx: JobContext) -> str:
        with suppress(Interrupted):
            spin(ctx)
        return swallowed()

    @app.job(timeout=0.05)
    async def coroutine() -> str:
        with suppress(asyncio.CancelledError):
            await asyncio.get_running_loop().create_future()
        return swallowed()

    job = plain.enqueue() if sort == "plain" else coroutine.enqueue()
    following.enqueue()
    app.worker(concurrency=1).run(until_idle=True)
    assert seen == ["still here", "following"]
    assert (app.existing(job).state, app.existing(job).result) == ("completed", "after all")


def test_an_interruption_before_the_handler_began_gives_the_attempt_back(app: Perdure, path: Path) -> None:
    decoding, hurried = threading.Event(), threading.Event()
    job = declared(app, "plain", lambda _: "ran").enqueue()
    app.close()

    def upgrade(_: dict[str, Any]) -> dict[str, Any]:
        decoding.set()
        assert hurried.wait(30)
        eventually(lambda: False)
        return {}

    newer = Perdure(path, durability="normal")
    declared(newer, "plain", lambda _: "ran", version=2, upgrades={1: upgrade})
    with newer.worker().running() as worker:
        assert decoding.wait(30)
        worker.hurry()
        hurried.set()
    newer.close()
    left = app.existing(job)
    assert (left.state, left.attempts) == ("queued", 0)
