"""`t.drain()`: the real thing, inline."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path

import pytest

from perdure import (
    Cancel,
    Done,
    Fail,
    JobContext,
    JobFailed,
    Perdure,
    PerdureError,
    Retry,
    RunState,
    Skip,
    Snooze,
    State,
    current,
)
from perdure.testing import Kit
from perdure.testing.drain import Drain


def test_a_job_runs_and_its_result_is_kept(app: Perdure, t: Kit) -> None:
    @app.job
    def double(n: int) -> int:
        return 2 * n

    job = double.enqueue(n=21)
    (ran,) = t.drain()
    assert (ran.id, ran.state, ran.result) == (job.id, State.COMPLETED, 42)
    assert double.wait(job) == 42
    (run,) = app.runs(job)
    assert run.state is RunState.COMPLETED


def test_nothing_to_do_answers_nothing(t: Kit) -> None:
    assert t.drain() == []


def test_jobs_run_in_queue_order_in_this_thread(app: Perdure, t: Kit) -> None:
    seen: list[tuple[str, int]] = []

    @app.job
    def note(name: str) -> None:
        seen.append((name, threading.get_ident()))

    for name, priority in (("a", 0), ("b", 5), ("c", 0)):
        note.options(priority=priority).enqueue(name)
    jobs = t.drain()
    here = threading.get_ident()
    assert seen == [("b", here), ("a", here), ("c", here)]
    assert [job.payload for job in jobs] == [{"name": "b"}, {"name": "a"}, {"name": "c"}]


def test_coroutines_and_isolated_functions_run_in_this_process_too(app: Perdure, t: Kit) -> None:
    @app.job
    async def waits() -> int:
        await asyncio.sleep(0)
        return os.getpid()

    @app.job(isolation="process")
    def apart() -> int:
        return os.getpid()

    waits.enqueue()
    apart.enqueue()
    assert [job.result for job in t.drain()] == [os.getpid(), os.getpid()]


def test_coroutines_share_one_loop_over_all_drains(app: Perdure, t: Kit) -> None:
    loops: set[int] = set()

    @app.job
    async def waits() -> None:
        loops.add(id(asyncio.get_running_loop()))

    for _ in range(2):
        waits.enqueue()
        t.drain(raise_errors=True)
    assert len(loops) == 1


def test_what_a_coroutine_left_running_ends_with_the_block_and_still_in_its_database(app: Perdure) -> None:
    ended_in: list[str] = []
    kept: list[object] = []

    async def goes_on() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended_in.append(app.url)

    @app.job
    async def begins() -> None:
        kept.append(asyncio.create_task(goes_on()))
        await asyncio.sleep(0)

    with app.testing() as t:
        begins.enqueue()
        t.drain(raise_errors=True)
        inside = app.url
    assert ended_in == [inside]


def test_a_failed_attempt_waits_for_its_backoff_without_jitter(app: Perdure, t: Kit) -> None:
    @app.job(retry=Retry(3, base=10, factor=3))
    def flaky(ctx: JobContext) -> int:
        if ctx.attempt < 3:
            raise OSError(f"attempt {ctx.attempt}")
        return ctx.attempt

    job = flaky.enqueue()
    (first,) = t.drain()
    assert (first.state, first.attempts, first.error) == (State.SCHEDULED, 1, "OSError: attempt 1")
    assert (first.run_at - t.now).total_seconds() == 10
    t.advance(seconds=9)
    assert t.drain() == []
    t.advance(seconds=1)
    (second,) = t.drain()
    assert (second.run_at - t.now).total_seconds() == 30
    t.advance(to=second.run_at)
    assert [each.result for each in t.drain()] == [3]
    assert [run.state for run in app.runs(job)] == [RunState.COMPLETED, RunState.FAILED, RunState.FAILED]


def test_retries_without_a_delay_all_run_at_once(app: Perdure, t: Kit) -> None:
    @app.job(retry=Retry(3, backoff="none"))
    def broken() -> None:
        raise OSError("no")

    broken.enqueue()
    (job,) = t.drain()
    assert (job.state, job.attempts) == (State.FAILED, 3)


def test_children_run_in_the_same_drain_and_only_if_their_parent_completes(app: Perdure, t: Kit) -> None:
    @app.job
    def child(n: int) -> int:
        return n

    @app.job(retry=1)
    def parent(ctx: JobContext, n: int) -> None:
        ctx.enqueue(child, n=n)
        if n == 2:
            raise Fail("no children")

    parent.enqueue(n=1)
    parent.enqueue(n=2)
    assert [(job.kind, job.state) for job in t.drain()] == [
        ("parent", State.COMPLETED),
        ("parent", State.FAILED),
        ("child", State.COMPLETED),
    ]
    assert [job.payload for job in t.enqueued(child)] == [{"n": 1}]


def test_signals_mean_what_they_mean_to_a_worker(app: Perdure, t: Kit) -> None:
    @app.job
    def decide(what: str) -> None:
        raise {"skip": Skip("nothing"), "cancel": Cancel(), "snooze": Snooze(60), "fail": Fail("never")}[what]

    for what in ("skip", "cancel", "snooze", "fail"):
        decide.enqueue(what)
    states = [job.state for job in t.drain()]
    assert states == [State.SKIPPED, State.CANCELLED, State.SCHEDULED, State.FAILED]


def test_logs_metrics_and_artifacts_are_kept(app: Perdure, t: Kit) -> None:
    @app.job
    def works(ctx: JobContext) -> None:
        ctx.log.info("from the context")
        logging.getLogger("shop").warning("from elsewhere")
        ctx.metric(rows=3)
        ctx.artifact("report.pdf")

    job = works.enqueue()
    t.drain()
    assert [line.message for line in app.logs(job)] == ["from the context", "from elsewhere"]
    (run,) = app.runs(job)
    assert (run.metrics, run.artifacts) == ({"rows": 3}, ["report.pdf"])


def test_middleware_and_current_work(app: Perdure, t: Kit) -> None:
    seen: list[str] = []

    @app.middleware
    @contextmanager
    def around(ctx: JobContext) -> Iterator[None]:
        seen.append(f"before {ctx.kind.name}")
        yield
        seen.append("after")

    @app.job
    def works() -> None:
        ctx = current()
        assert ctx is not None
        seen.append(f"attempt {ctx.attempt}")

    works.enqueue()
    t.drain(raise_errors=True)
    assert seen == ["before works", "attempt 1", "after"]
    assert current() is None


def test_a_handler_sees_no_context_variables_of_the_test(app: Perdure, t: Kit) -> None:
    variable = contextvars.ContextVar("variable", default="unset")

    @app.job
    def looks() -> str:
        return variable.get()

    @app.job
    async def looks_too() -> str:
        return variable.get()

    variable.set("by the test")
    looks.enqueue()
    looks_too.enqueue()
    assert [job.result for job in t.drain()] == ["unset", "unset"]


def test_a_handler_ends_its_job_in_a_transaction_of_its_own(app: Perdure, t: Kit) -> None:
    @app.job
    def pays(ctx: JobContext) -> int:
        with ctx.transaction() as tx:
            tx.execute("CREATE TABLE paid (id INTEGER)")
            tx.result(7)
        return 7

    @app.job
    async def pays_too() -> Done:
        return Done(8, write=lambda tx: tx.execute("INSERT INTO paid VALUES (1)"))

    pays.enqueue()
    pays_too.enqueue()
    assert [job.result for job in t.drain(raise_errors=True)] == [7, 8]


def test_state_is_what_the_block_was_given(app: Perdure) -> None:
    @app.job
    def asks(ctx: JobContext) -> str:
        return str(ctx.state["greeting"])

    with app.testing(state={"greeting": "hello"}) as t:
        asks.enqueue()
        assert [job.result for job in t.drain()] == ["hello"]


def test_the_handlers_own_exception_is_raised_once_its_attempt_is_recorded(app: Perdure, t: Kit) -> None:
    error = OSError("smtp")

    @app.job
    def broken() -> None:
        raise error

    job = broken.enqueue()
    with pytest.raises(OSError, match="smtp") as raised:
        t.drain(raise_errors=True)
    assert raised.value is error
    now = app.get(job)
    assert now is not None
    assert (now.state, now.attempts, now.error) == (State.SCHEDULED, 1, "OSError: smtp")


def test_after_an_exception_was_raised_the_rest_is_still_there_to_run(app: Perdure, t: Kit) -> None:
    @app.job(retry=1)
    def works(n: int) -> int:
        if n == 0:
            raise OSError("first")
        return n

    works.enqueue(0)
    works.enqueue(1)
    with pytest.raises(OSError, match="first"):
        t.drain(raise_errors=True)
    assert [job.result for job in t.drain(raise_errors=True)] == [1]


def test_a_coroutines_exception_is_raised_too(app: Perdure, t: Kit) -> None:
    @app.job
    async def broken() -> None:
        raise OSError("smtp")

    broken.enqueue()
    with pytest.raises(OSError, match="smtp"):
        t.drain(raise_errors=True)


def test_signals_that_are_no_failures_are_not_raised(app: Perdure, t: Kit) -> None:
    @app.job
    def skips() -> None:
        raise Skip("nothing to do")

    skips.enqueue()
    assert [job.state for job in t.drain(raise_errors=True)] == [State.SKIPPED]


def test_an_exception_that_a_middleware_swallows_is_not_raised(app: Perdure, t: Kit) -> None:
    @app.middleware
    @contextmanager
    def forgiving(ctx: JobContext) -> Iterator[None]:
        with suppress(OSError):
            yield

    @app.job
    def broken() -> None:
        raise OSError("swallowed")

    broken.enqueue()
    assert [job.state for job in t.drain(raise_errors=True)] == [State.COMPLETED]


def test_a_result_that_cannot_be_kept_is_an_error_too(app: Perdure, t: Kit) -> None:
    @app.job
    def wrong() -> int:
        return "text"  # type: ignore[return-value]

    wrong.enqueue()
    with pytest.raises(JobFailed, match="result"):
        t.drain(raise_errors=True)


def test_arguments_that_fit_no_more_are_an_error_of_their_own(app: Perdure, t: Kit) -> None:
    @app.job
    def skips() -> None:
        raise Skip("nothing to do")

    @app.job
    def works(n: int) -> None: ...

    skips.enqueue()
    works.enqueue(1)
    with app.transaction() as tx:
        tx.execute("UPDATE perdure_job SET payload = '{}' WHERE kind = 'works'")
    with pytest.raises(JobFailed, match="'n' is missing"):
        t.drain(raise_errors=True)


@pytest.mark.parametrize("outcome", [KeyboardInterrupt, pytest.skip.Exception, pytest.fail.Exception])
def test_what_is_meant_for_the_test_gets_there_without_being_asked_for(
    app: Perdure, t: Kit, outcome: type[BaseException]
) -> None:
    @app.job
    def works() -> None:
        raise outcome("from the handler")

    job = works.enqueue()
    with pytest.raises(outcome):
        t.drain()
    now = app.get(job)
    assert now is not None
    assert now.state is State.FAILED


def test_an_interrupt_in_a_coroutine_gets_there_and_gives_the_job_back(app: Perdure, t: Kit) -> None:
    @app.job
    async def works() -> None:
        def interrupt() -> None:
            raise KeyboardInterrupt

        asyncio.get_running_loop().call_soon(interrupt)
        await asyncio.sleep(3600)

    job = works.enqueue()
    with pytest.raises(KeyboardInterrupt):
        t.drain()
    (run,) = app.runs(job)
    assert run.state is RunState.RELEASED


def test_an_interrupt_between_claim_and_run_gives_the_job_back_with_its_attempt(app: Perdure, t: Kit) -> None:
    @app.job
    def works() -> None: ...

    job = works.enqueue()
    with pytest.raises(KeyboardInterrupt), Drain(app, {}, 10) as drain:
        drain._node.turn()
        raise KeyboardInterrupt
    now = app.get(job)
    assert now is not None
    assert (now.state, now.attempts) == (State.QUEUED, 0)


def test_a_job_that_enqueues_itself_comes_to_an_end(app: Perdure, t: Kit) -> None:
    @app.job
    def again() -> None:
        again.enqueue()

    again.enqueue()
    with pytest.raises(PerdureError, match="again 20 times") as refused:
        t.drain(limit=20)
    assert refused.value.code == "drain_limit"
    assert len(list(app.runs(kind="again", state="completed"))) == 20


def test_as_many_jobs_as_the_limit_are_no_endless_loop(app: Perdure, t: Kit) -> None:
    @app.job
    def works() -> None: ...

    works.enqueue_many([{}] * 3)
    assert len(t.drain(limit=3)) == 3


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, "10"])
def test_an_impossible_limit_is_refused(t: Kit, limit: int) -> None:
    with pytest.raises(PerdureError) as refused:
        t.drain(limit=limit)
    assert refused.value.code == "limit_invalid"


def test_a_drain_inside_a_handler_is_refused(app: Perdure, t: Kit) -> None:
    @app.job
    def drains() -> None:
        t.drain()

    drains.enqueue()
    with pytest.raises(PerdureError) as refused:
        t.drain(raise_errors=True)
    assert refused.value.code == "drain_nested"
    app.cancel_all(kind="drains")
    assert t.drain() == []


def test_a_drain_inside_a_transaction_is_refused(app: Perdure, t: Kit) -> None:
    @app.job
    def works() -> None: ...

    with app.transaction():
        works.enqueue()
        with pytest.raises(PerdureError) as refused:
            t.drain()
    assert refused.value.code == "drain_in_transaction"
    assert len(t.drain()) == 1


def test_time_outs_are_not_enforced(app: Perdure, t: Kit) -> None:
    @app.job(timeout=0.001)
    def slow(ctx: JobContext) -> bool:
        threading.Event().wait(0.05)
        return ctx.should_stop

    slow.enqueue()
    assert [job.result for job in t.drain()] == [False]


def test_paused_and_cancelled_jobs_stay_where_they_are(app: Perdure, t: Kit) -> None:
    @app.job
    def works() -> None: ...

    app.pause(works.enqueue())
    app.cancel(works.enqueue())
    app.queues.pause("later")
    works.options(queue="later").enqueue()
    assert t.drain() == []
    app.queues.resume("later")
    assert len(t.drain()) == 1


def test_a_retry_as_a_new_job_runs_as_one(app: Perdure, t: Kit) -> None:
    @app.job(retry=Retry(2, backoff="none", as_new_job=True))
    def flaky() -> None:
        ctx = current()
        assert ctx is not None
        if not app.existing(ctx.job_id).retry_of:
            raise OSError("the first of two")

    job = flaky.enqueue()
    assert len(t.drain()) == 2
    assert app.wait(job).state is State.COMPLETED
    assert len(t.enqueued(flaky)) == 1


def test_jobs_whose_modules_are_named_by_imports_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kit_shop.py").write_text(
        "from perdure import Perdure\napp = Perdure('never-made.db', imports=['kit_shop_jobs'])\n"
    )
    (tmp_path / "kit_shop_jobs.py").write_text("from kit_shop import app\n@app.job\ndef works() -> None: ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    app: Perdure = import_module("kit_shop").app
    with app.testing() as t:
        t.drain()
        app.enqueue("works")
        assert [job.kind for job in t.drain(raise_errors=True)] == ["works"]


def test_waiting_for_a_job_that_nobody_runs_is_refused(app: Perdure, t: Kit) -> None:
    @app.job
    def works() -> int:
        return 1

    job = works.enqueue()
    with pytest.raises(PerdureError) as refused:
        works.wait(job)
    assert refused.value.code == "testing_wait"
    t.drain()
    assert works.wait(job, timeout=5) == 1


def test_a_handler_that_waits_for_another_job_fails_at_once(app: Perdure, t: Kit) -> None:
    @app.job
    def works() -> None: ...

    @app.job
    def waits() -> None:
        works.wait(works.options(delay=60).enqueue())

    waits.enqueue()
    with pytest.raises(PerdureError) as refused:
        t.drain(raise_errors=True)
    assert refused.value.code == "testing_wait"


def test_another_thread_may_wait_for_what_the_test_drains(app: Perdure, t: Kit) -> None:
    @app.job
    def works() -> int:
        return 1

    job = works.enqueue()
    results: list[int] = []
    thread = threading.Thread(target=lambda: results.append(works.wait(job, timeout=60)))
    thread.start()
    t.drain()
    thread.join(60)
    assert results == [1]
