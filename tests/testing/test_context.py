"""`t.context()`: calling a handler directly."""

from __future__ import annotations

import asyncio

import pytest

from perdure import JobContext, Perdure, PerdureError, current
from perdure.errors import InvalidInput, InvalidOption
from perdure.testing import Kit
from perdure.worker.signals import Interrupted


def test_a_handler_is_called_with_it_and_what_it_says_can_be_looked_at(app: Perdure, t: Kit) -> None:
    @app.job
    def child(n: int) -> None: ...

    @app.job
    def works(ctx: JobContext, to: str) -> str:
        ctx.log.info("to %s", to)
        ctx.log.debug("not kept")
        ctx.progress(1, 2)
        ctx.progress(2, 2, "done")
        ctx.metric(rows=3)
        ctx.metric(rows=4, bytes=5)
        ctx.artifact("report.pdf")
        ctx.enqueue(child, n=7)
        return f"{to} {ctx.attempt}"

    ctx = t.context(attempt=2)
    assert works(ctx, to="x") == "x 2"
    assert ctx.messages == ["to x"]
    assert ctx.progressed == [(1, 2, None), (2, 2, "done")]
    assert ctx.measured == {"rows": 4, "bytes": 5}
    assert ctx.artifacts == ["report.pdf"]
    assert [(job.kind, job.payload) for job in ctx.enqueued] == [("child", {"n": 7})]


def test_nothing_is_written_by_it(app: Perdure, t: Kit) -> None:
    @app.job
    def works(ctx: JobContext) -> None:
        ctx.enqueue(works)

    works(t.context(works))
    assert t.enqueued() == []
    assert list(app.runs()) == []


def test_a_coroutine_takes_it_too(app: Perdure, t: Kit) -> None:
    @app.job
    async def works(ctx: JobContext) -> int:
        return ctx.attempt

    assert asyncio.run(works(t.context(attempt=3))) == 3


def test_what_it_says_of_its_job(app: Perdure, t: Kit) -> None:
    @app.job(queue="mail", retry=7)
    def works(ctx: JobContext) -> None: ...

    ctx = t.context(works, attempt=4, params={"dry": True}, principal="me")
    assert (ctx.params, ctx.principal, ctx.kind) == ({"dry": True}, "me", works)
    assert (ctx.job.id, ctx.job.kind, ctx.job.queue, ctx.job.max_attempts) == (ctx.job_id, "works", "mail", 7)
    assert (ctx.job.state, ctx.job.attempts, ctx.job.created_at) == ("running", 4, t.now)
    assert (ctx.run.id, ctx.run.job_id, ctx.run.attempt) == (ctx.run_id, ctx.job_id, 4)
    assert t.context().job_id != ctx.job_id


def test_state_is_the_blocks_or_its_own(app: Perdure) -> None:
    with app.testing(state={"db": 1}) as t:
        assert t.context().state == {"db": 1}
        assert t.context(state={"db": 2}).state == {"db": 2}


def test_a_loop_that_asks_is_told_to_stop_in_time(t: Kit) -> None:
    ctx, rounds = t.context(stop_after=3), 0
    while not ctx.should_stop:
        rounds += 1
    assert rounds == 3
    assert not t.context().should_stop


def test_a_checkpoint_leaves_when_the_run_is_to_stop(t: Kit) -> None:
    t.context().checkpoint()
    with pytest.raises(Interrupted):
        t.context(stop_after=0).checkpoint()


def test_current_finds_it_inside_its_block(t: Kit) -> None:
    with t.context() as outer:
        with t.context() as inner:
            assert current() is inner
        assert current() is outer
    assert current() is None


def test_ending_a_job_that_is_not_there_is_refused(app: Perdure, t: Kit) -> None:
    @app.job
    def works(ctx: JobContext) -> None:
        with ctx.transaction():
            pass

    with pytest.raises(PerdureError, match=r"t\.drain\(\)") as refused:
        works(t.context(works))
    assert refused.value.code == "context_detached"


def test_what_a_worker_would_refuse_is_refused(t: Kit) -> None:
    with pytest.raises(InvalidInput):
        t.context().metric(rows=float("nan"))


def test_impossible_contexts_are_refused(t: Kit) -> None:
    for wrong in ({"attempt": 0}, {"attempt": True}, {"stop_after": -1}, {"params": {"x": object()}}):
        with pytest.raises(InvalidOption):
            t.context(**wrong)
