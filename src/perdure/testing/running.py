"""How a claimed job is run without a worker: here and now, or on the running event loop. Called by `kit`.

Each run has an empty context of its own (`contextvars`), as under a worker: what the test has set is not seen by it.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable
from typing import Any

from perdure.worker.executors.loop import Lent
from perdure.worker.run import Assignment, Ended, awaited, run_async, run_plain
from perdure.worker.signals import Stop


class HandlerLoop:
    """The event loop that `drain` runs coroutines on: one for the whole block, as a worker has one for its life."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, task: Assignment) -> Ended:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        run = self._loop.create_task(run_async(task), name=task.kind.name, context=contextvars.Context())
        return self._loop.run_until_complete(run)

    def run_to_end(self, awaitable: Awaitable[Any]) -> Any:
        """What a plain function has returned."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(awaited(awaitable))

    def close(self) -> None:
        """Tasks that handlers began and did not wait for are cancelled, as at the end of a worker."""
        loop, self._loop = self._loop, None
        if loop is None:
            return
        if not in_a_loop():
            _close(loop)
            return
        thread = threading.Thread(target=_close, args=(loop,))  # a thread runs one loop at a time
        thread.start()
        thread.join()


def _close(loop: asyncio.AbstractEventLoop) -> None:
    try:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()


def run_here(task: Assignment, loop: HandlerLoop) -> Ended:
    """In this thread, to its end."""
    if task.kind.is_async:
        return loop.run(task)
    return contextvars.Context().run(run_plain, task, loop.run_to_end)


def begin_run(task: Assignment) -> asyncio.Task[Ended]:
    """On the running loop: a coroutine as a task of it, a plain function in a thread, where it may block."""
    loop = asyncio.get_running_loop()
    run = run_async(task) if task.kind.is_async else _run_in_thread(task, loop)
    return loop.create_task(run, name=task.kind.name, context=contextvars.Context())


async def _run_in_thread(task: Assignment, loop: asyncio.AbstractEventLoop) -> Ended:
    """A plain function cannot be cancelled; what it has returned to be awaited on the loop can."""
    lent: list[Lent] = []

    def run_to_end(awaitable: Awaitable[Any]) -> Any:
        lent.append(Lent(loop, awaitable, bool))
        return lent[0].result()

    run = loop.run_in_executor(None, lambda: contextvars.Context().run(run_plain, task, run_to_end))
    while not run.done():
        try:
            await asyncio.wait([run])
        except asyncio.CancelledError:
            for one in lent:
                one.cancel()
    return run.result()


async def until_ended(task: Assignment, run: asyncio.Task[Ended]) -> None:
    """Wait for a run. Whoever cancels this wait stops the run first: nothing goes on behind the test's back."""
    try:
        await asyncio.wait([run])
    except asyncio.CancelledError:
        task.ctx.stop = task.ctx.stop or Stop.SHUTDOWN
        run.cancel()
        await asyncio.wait([run])
        raise


def in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
