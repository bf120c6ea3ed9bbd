"""Coroutine handlers, on one event loop in a thread of its own. Started by `worker`, fed by `node`."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

from perdure.job.model import RunStats
from perdure.job.reports import Released
from perdure.worker.context import JobContext
from perdure.worker.run import (
    WARN_AT,
    Assignment,
    Ended,
    Inbox,
    awaited,
    logger,
    report_of_error,
    run_async,
    warn_of_timeout,
)
from perdure.worker.signals import Stop


class LoopExecutor:
    """An event loop in a thread of its own, with a task for every run.

    A new task for each, not a few for many: what a handler sets in its context (`contextvars`) ends with it.
    """

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._tasks: dict[JobContext, asyncio.Task[None]] = {}
        """Runs that have not ended, each with its task."""
        self._coming: set[JobContext] = set()
        """Runs whose tasks have perhaps not begun."""
        self._loop_calls = 0
        """Runs of other executors that wait here for what their function returned."""
        self._ringing = False
        self._closing = self._is_done = False
        self.thread = threading.Thread(target=self._serve, name="perdure-loop", daemon=True)
        self.thread.start()

    def start(self, tasks: Sequence[Assignment]) -> None:
        self._coming.update(task.ctx for task in tasks)
        self._loop.call_soon_threadsafe(self._begin, tasks)

    def stop(self, ctx: JobContext, why: Stop) -> None:
        with suppress(RuntimeError):  # the loop is closed: nothing runs any more
            self._loop.call_soon_threadsafe(self._cancel, ctx, why)

    def close(self, patience_s: float) -> bool:
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._leave_when_done)
        self.thread.join(patience_s)
        return not self.thread.is_alive()

    def call(self, awaitable: Awaitable[Any]) -> LoopCall:
        """Run the awaitable that a plain function returned. Called in that function's thread."""
        self._loop.call_soon_threadsafe(self._count_loop_calls, 1)
        return LoopCall(self._loop, awaitable, lambda: self._count_loop_calls(-1))

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    # -- in the loop's thread ----------------------------------------------------------------------------------------

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            while not self._has_served():
                logger.error("a handler tried to end the process or the event loop of all handlers; neither ends")
            self._end_what_is_left()
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
        finally:
            self._loop.close()

    def _has_served(self) -> bool:
        """False: a handler has stopped the loop, or raised SystemExit or KeyboardInterrupt, which asyncio passes on."""
        try:
            self._loop.run_forever()
        except (SystemExit, KeyboardInterrupt):
            return False
        return self._is_done

    def _end_what_is_left(self) -> None:
        """Tasks that handlers began and did not wait for: their `finally` runs, as it would under `asyncio.run`."""
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        if left:
            self._loop.run_until_complete(asyncio.wait(left))

    def _begin(self, tasks: Sequence[Assignment]) -> None:
        empty = contextvars.Context()
        create = self._loop.create_task
        for task in tasks:
            own = create(self._run(task), name=task.kind.name, context=empty.copy())
            self._tasks[task.ctx] = own
        self._loop.call_soon(self._have_begun, tasks)

    def _have_begun(self, tasks: Sequence[Assignment]) -> None:
        """All first steps are done by now, except those of tasks that were cancelled before: they never do one."""
        for task in tasks:
            ctx = task.ctx
            self._coming.discard(ctx)
            if ctx.started_ns is None:
                del self._tasks[ctx]
                report = report_of_error(task, asyncio.CancelledError()) if ctx.stop is not None else Released()
                self._hand_back(Ended(ctx, report, RunStats()))

    async def _run(self, task: Assignment) -> None:
        timers = self._timers(task) if task.claim.live.timeout_ms is not None else ()
        try:
            ended = await run_async(task)
            if os.getpid() != self._process:
                os._exit(0)  # the handler has forked, and this is the copy: it must run no other jobs
        finally:
            del self._tasks[task.ctx]
            for timer in timers:
                timer.cancel()
        self._hand_back(ended)

    def _hand_back(self, ended: Ended) -> None:
        self._inbox.put_quietly(ended)
        if not self._ringing:  # once for all that end in this round of the loop
            self._ringing = True
            self._loop.call_soon(self._ring)

    def _timers(self, task: Assignment) -> tuple[asyncio.TimerHandle, ...]:
        limit = task.timeout_s or 0
        return (
            self._loop.call_later(limit * WARN_AT, warn_of_timeout, task),
            self._loop.call_later(limit, self._cancel, task.ctx, Stop.TIMEOUT),
        )

    def _ring(self) -> None:
        self._ringing = False
        self._inbox.ring()
        if self._closing:
            self._leave_when_done()

    def _cancel(self, ctx: JobContext, why: Stop) -> None:
        running = self._tasks.get(ctx)
        if ctx in self._coming:  # a task cancelled before its first step would never report
            self._loop.call_soon(self._cancel, ctx, why)
        elif running is not None:
            ctx.stop = ctx.stop or why
            running.cancel()

    def _count_loop_calls(self, more: int) -> None:
        self._loop_calls += more
        if self._closing:
            self._leave_when_done()

    def _leave_when_done(self) -> None:
        self._closing = True
        if not self._tasks and not self._coming and not self._loop_calls:
            self._is_done = True
            self._loop.stop()


class LoopCall:
    """The awaitable that a plain function returned, run on an event loop while the function's thread waits.

    In the thread's context: `current()` is the same. Waits on a lock that is written in C, as all of `threads`.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, awaitable: Awaitable[Any], ended: Callable[[], object]) -> None:
        self._loop = loop
        self._awaitable = awaitable
        self._ended = ended
        self._task: asyncio.Task[Any] | None = None
        self._is_running = threading.Lock()
        self._is_running.acquire()
        loop.call_soon_threadsafe(self._begin)

    def cancel(self) -> None:
        """From any thread. It ends soon, unless it ignores the cancel."""
        with suppress(RuntimeError):  # the loop is closed: it has ended
            self._loop.call_soon_threadsafe(self._cancel)

    @property
    def has_ended(self) -> bool:
        return not self._is_running.locked()

    def wait(self) -> None:
        with self._is_running:
            pass

    def result(self) -> Any:
        """What it returned, once it has ended; raises what it raised."""
        self.wait()
        assert self._task is not None
        return self._task.result()

    # -- in the loop's thread ----------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._task = self._loop.create_task(awaited(self._awaitable))
        self._task.add_done_callback(self._tell)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _tell(self, _: asyncio.Task[Any]) -> None:
        if inspect.iscoroutine(self._awaitable):
            self._awaitable.close()  # cancelled before its first step, it would complain that nobody awaited it
        self._ended()
        self._is_running.release()
