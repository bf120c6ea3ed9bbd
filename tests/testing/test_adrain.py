"""`await t.adrain()`: the same inside a running event loop."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from perdure import JobContext, Perdure, PerdureError, RunState, State, WaitTimeout
from perdure.testing import Kit


def test_drain_inside_a_loop_names_adrain(t: Kit) -> None:
    async def test() -> None:
        with pytest.raises(PerdureError, match=r"await t\.adrain\(\)") as refused:
            t.drain()
        assert refused.value.code == "drain_in_loop"

    asyncio.run(test())


def test_coroutines_are_awaited_on_the_running_loop(app: Perdure, t: Kit) -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    @app.job
    async def waits() -> None:
        await asyncio.sleep(0)
        loops.append(asyncio.get_running_loop())

    async def test() -> None:
        await waits.aenqueue()
        await app.aio.enqueue("waits")
        await t.adrain(raise_errors=True)
        assert loops == [asyncio.get_running_loop()] * 2

    asyncio.run(test())


def test_plain_functions_run_in_a_thread_where_they_may_block_and_start_loops(app: Perdure, t: Kit) -> None:
    @app.job
    def plain(ctx: JobContext) -> Any:
        asyncio.run(asyncio.sleep(0))
        with ctx.transaction() as tx:
            tx.result("here" if threading.get_ident() == here else "in a thread")

    here = threading.get_ident()

    async def test() -> None:
        await plain.aenqueue()
        assert [job.result for job in await t.adrain(raise_errors=True)] == ["in a thread"]

    asyncio.run(test())


def test_the_verbs_for_coroutines_see_the_temporary_database(app: Perdure, t: Kit) -> None:
    @app.job
    async def works() -> int:
        return 1

    async def test() -> None:
        job = await works.aenqueue()
        await t.adrain()
        assert await works.await_(job, timeout=60) == 1
        assert [each.state async for each in app.aio.jobs()] == [State.COMPLETED]

    asyncio.run(test())


def test_a_coroutine_may_wait_for_what_another_task_drains(app: Perdure, t: Kit) -> None:
    @app.job
    async def works() -> int:
        return 1

    async def test() -> None:
        job = await works.aenqueue()
        result, _ = await asyncio.gather(works.await_(job, timeout=60), t.adrain())
        assert result == 1

    asyncio.run(test())


def test_waiting_with_a_time_out_for_what_nobody_drains_comes_to_its_end(app: Perdure, t: Kit) -> None:
    @app.job
    async def works() -> None: ...

    async def test() -> None:
        job = await works.aenqueue()
        with pytest.raises(WaitTimeout):
            await works.await_(job, timeout=0.01)

    asyncio.run(test())


def test_a_plain_function_in_its_thread_cannot_wait_for_another_job(app: Perdure, t: Kit) -> None:
    @app.job
    def works() -> None: ...

    @app.job
    def waits() -> None:
        works.wait(works.options(delay=60).enqueue(), timeout=0.01)

    async def test() -> None:
        await waits.aenqueue()
        with pytest.raises(PerdureError) as refused:
            await t.adrain(raise_errors=True)
        assert refused.value.code == "testing_wait"

    asyncio.run(test())


def test_an_exception_is_raised_once_it_is_recorded(app: Perdure, t: Kit) -> None:
    @app.job
    async def broken() -> None:
        raise OSError("smtp")

    async def test() -> None:
        await broken.aenqueue()
        with pytest.raises(OSError, match="smtp"):
            await t.adrain(raise_errors=True)

    asyncio.run(test())
    assert [job.state for job in t.enqueued(broken)] == [State.SCHEDULED]


def test_a_block_may_end_in_a_loop_after_a_drain_in_a_thread(app: Perdure) -> None:
    @app.job
    async def works() -> None: ...

    async def test() -> None:
        with app.testing() as t:
            await works.aenqueue()
            assert [job.state for job in await asyncio.to_thread(t.drain)] == [State.COMPLETED]

    asyncio.run(test())


def test_two_drains_at_once_are_refused(app: Perdure, t: Kit) -> None:
    @app.job
    async def works() -> None:
        await asyncio.sleep(0)

    async def test() -> None:
        await works.aenqueue()
        first, second = await asyncio.gather(t.adrain(), t.adrain(), return_exceptions=True)
        assert isinstance(first, list)
        assert isinstance(second, PerdureError)
        assert second.code == "drain_nested"

    asyncio.run(test())


def test_a_drain_that_is_cancelled_stops_its_run_and_gives_the_job_back(app: Perdure, t: Kit) -> None:
    began = asyncio.Event()

    @app.job
    async def hangs() -> None:
        began.set()
        await asyncio.sleep(3600)

    async def test() -> None:
        await hangs.aenqueue()
        draining = asyncio.create_task(t.adrain())
        await began.wait()
        draining.cancel()
        with pytest.raises(asyncio.CancelledError):
            await draining

    asyncio.run(test())
    assert [run.state for run in app.runs()] == [RunState.RELEASED]
    assert [job.state for job in t.enqueued()] == [State.QUEUED]
