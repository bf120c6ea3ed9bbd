"""Runs due jobs in a test, one after the other, with a worker's node on the real store. Called by `kit`.

All but the running itself is `worker/node`: claims, finishes, promotion, notes. The node has a concurrency of one and
the drain as its executor, which keeps the claimed job until the kit has run it, in the test's thread or on its loop.
Each run has a new, empty `contextvars` context, as under a worker: it does not see what the test has set.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import Counter, deque
from collections.abc import Awaitable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from perdure.errors import JobFailed, PerdureError, StoreError
from perdure.ids import JobId
from perdure.job.model import RunStats
from perdure.job.reports import Failed, Released
from perdure.job.views import Job, Run
from perdure.store.rows import SlotRow
from perdure.worker.context import JobContext
from perdure.worker.executors.loop import LoopCall
from perdure.worker.node import Node
from perdure.worker.options import Parts, WorkerOptions
from perdure.worker.run import (
    AnyKind,
    Assignment,
    Ended,
    Inbox,
    Middleware,
    awaited,
    from_users_code,
    run_async,
    run_plain,
)
from perdure.worker.services import StoreServices, in_event_loop
from perdure.worker.signals import Interrupted, Stop

if TYPE_CHECKING:
    from perdure.app import Perdure


_THE_HANDLERS = (Exception, SystemExit, GeneratorExit, asyncio.CancelledError, Interrupted)


def is_the_tests_own(error: BaseException) -> bool:
    """Whether the error concerns the test, not the job: Ctrl-C, `pytest.fail`, `pytest.skip`, a time-out of the test.

    A worker would record it as a failure of the job: its threads never see any of these.
    """
    return not isinstance(error, _THE_HANDLERS)


class HandlerLoop:
    """The event loop that `drain` runs coroutines on: one for the whole block, as a worker has one for its life."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, task: Assignment) -> Ended:
        loop = self._open()
        return loop.run_until_complete(
            loop.create_task(run_async(task), name=task.kind.name, context=contextvars.Context())
        )

    def run_to_end(self, awaitable: Awaitable[Any]) -> Any:
        """Await what a function that is not async has returned."""
        return self._open().run_until_complete(awaited(awaitable))

    def _open(self) -> asyncio.AbstractEventLoop:
        self._loop = self._loop or asyncio.new_event_loop()
        return self._loop

    def close(self) -> None:
        """Tasks that handlers started and did not await are cancelled, as at the end of a worker."""
        loop, self._loop = self._loop, None
        if loop is None:
            return
        if not in_event_loop():
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
    """Run a job in this thread."""
    if task.kind.is_async:
        return loop.run(task)
    return contextvars.Context().run(run_plain, task, loop.run_to_end)


def begin_run(task: Assignment) -> asyncio.Task[Ended]:
    """Start a job on the running loop: a coroutine as its task, any other function in a thread, where it may block."""
    loop = asyncio.get_running_loop()
    run = run_async(task) if task.kind.is_async else _run_in_thread(task, loop)
    return loop.create_task(run, name=task.kind.name, context=contextvars.Context())


async def _run_in_thread(task: Assignment, loop: asyncio.AbstractEventLoop) -> Ended:
    """The function itself cannot be cancelled; an awaitable that it has returned can."""
    loop_call: list[LoopCall] = []

    def run_to_end(awaitable: Awaitable[Any]) -> Any:
        loop_call.append(LoopCall(loop, awaitable, bool))
        return loop_call[0].result()

    run = loop.run_in_executor(None, lambda: contextvars.Context().run(run_plain, task, run_to_end))
    while not run.done():
        try:
            await asyncio.wait([run])
        except asyncio.CancelledError:
            for one in loop_call:
                one.cancel()
    return run.result()


async def until_ended(task: Assignment, run: asyncio.Task[Ended]) -> None:
    """Wait for a run. If this wait is cancelled, the run is stopped first: nothing is left running after the test."""
    try:
        await asyncio.wait([run])
    except asyncio.CancelledError:
        task.ctx.stop = task.ctx.stop or Stop.SHUTDOWN
        run.cancel()
        await asyncio.wait([run])
        raise


TURNS = 10
"""The most turns in a row without a claim. Promoting, looking and claiming take three."""


class Witness:
    """The outermost middleware: keeps the exception that a run raised; a report has only its text."""

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def __call__(self, ctx: JobContext) -> Self:
        del ctx
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.error = error


class ReadAhead(StoreServices):
    """For coroutines on an asynchronous connection, whose thread cannot wait for a statement: `ctx.job`, `ctx.run` and
    the slot as they were when the run began."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._found: tuple[Job, Run, SlotRow | None] | None = None

    def read(self, ctx: JobContext) -> None:
        """Called in a thread, before the run."""
        self._found = (super().get_job(ctx), super().get_run(ctx), super().get_slot(ctx))

    def get_job(self, ctx: JobContext) -> Job:
        return self._found[0] if self._found is not None and in_event_loop() else super().get_job(ctx)

    def get_run(self, ctx: JobContext) -> Run:
        return self._found[1] if self._found is not None and in_event_loop() else super().get_run(ctx)

    def get_slot(self, ctx: JobContext) -> SlotRow | None:
        return self._found[2] if self._found is not None and in_event_loop() else super().get_slot(ctx)


class Drain:
    """One `t.drain()`, with its own node, which signs off at the end."""

    def __init__(self, app: Perdure, state: Mapping[str, Any], limit: int, *, read_ahead: bool = False) -> None:
        self._app = app
        self._limit = limit
        self._claimed: deque[Assignment] = deque()
        self._running: Assignment | None = None
        self._ran: list[JobId] = []
        self._kinds: Counter[str] = Counter()
        self._inbox = Inbox(_ring)
        self._witness = Witness()
        middleware: tuple[Middleware, ...] = (self._witness, *app.middlewares)
        # 0.5 means no jitter: retries wait exactly as long as their backoff says.
        parts = app.parts()._replace(middleware=middleware, jitter=lambda: 0.5)
        options = WorkerOptions(concurrency=1, lease_s=app.config.lease_s)
        self._ahead = ReadAhead(parts) if read_ahead else None
        self._node = Node(parts, options, self, self._inbox, state, self._ahead)

    # -- for the kit -------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._refuse_transaction()
        self._node.register()
        return self

    def __exit__(self, *how: object) -> None:
        """In every case the run is recorded, and a job that was only claimed is given back."""
        if self._running is not None:
            self.ended(Ended(self._running.ctx, Released(counts=True), RunStats()))
        while self._claimed:  # an interrupt came between its claim and its run
            self.ended(Ended(self._claimed.popleft().ctx, Released(), RunStats()))
        self._node.accepting = False
        for _ in range(TURNS):
            if self._node.is_empty:
                break
            self._node.turn()
        self._node.sign_off()

    def next(self) -> Assignment | None:
        """Record the previous run, and claim the next job. None: nothing is due."""
        for _ in range(TURNS):
            self._node.look_again()
            self._node.turn()
            if self._claimed:
                return self._begun(self._claimed.popleft())
            if self._node.is_idle:
                return None
        raise PerdureError(
            "t.drain() makes no progress: jobs are due, but none can be claimed; see the log of `perdure.worker` and"
            " app.explain(job)",
            code="drain_stuck",
        )

    def ended(self, ended: Ended) -> None:
        self._running = None
        self._inbox.put(ended)

    def raise_from(self, ended: Ended, *, errors: bool) -> None:
        """Raise what the run raised, if `errors` is set, or if it concerns the test and not the job."""
        __tracebackhide__ = True
        error = self._witness.error
        failure = ended.report.failure if errors and isinstance(ended.report, Failed) else None
        if error is not None and (failure is not None or is_the_tests_own(error)):
            raise error.with_traceback(from_users_code(error) or error.__traceback__)
        if failure is not None:  # its arguments or its result did not fit: the handler raised nothing
            raise JobFailed(f"{ended.ctx.kind.name} failed: {failure.error_type}: {failure.message}")

    def jobs(self) -> list[Job]:
        """The jobs that ran, in the order of their first run, as they are now."""
        found = (self._app.store.get(job_id) for job_id in dict.fromkeys(self._ran))
        return [job for job in found if job is not None]

    # -- for the node: the executor ----------------------------------------------------------------------------------

    def of(self, kind: AnyKind) -> Self:
        del kind
        return self

    def start(self, tasks: Sequence[Assignment]) -> None:
        self._claimed.extend(tasks)

    def stop(self, ctx: JobContext, why: Stop) -> None:
        ctx.stop = ctx.stop or why

    def close(self, patience_s: float) -> bool:
        del patience_s
        return True

    # -- inside ------------------------------------------------------------------------------------------------------

    def _begun(self, task: Assignment) -> Assignment:
        if len(self._ran) >= self._limit:
            self.ended(Ended(task.ctx, Released(), RunStats()))
            raise self._endless()
        self._ran.append(task.claim.job_id)
        self._kinds[task.kind.name] += 1
        self._witness.error = None
        self._running = task
        if self._ahead is not None:
            self._ahead.read(task.ctx)
        return task

    def _endless(self) -> PerdureError:
        counts = ", ".join(f"{name} {times} times" for name, times in self._kinds.most_common(3))
        return PerdureError(
            f"t.drain() stopped after {self._limit:,} runs with more jobs due ({counts}). If a job enqueues or retries"
            " itself without a delay, this would never end; if there really are more, use"
            f" t.drain(limit={self._limit * 10})",
            code="drain_limit",
        )

    def _refuse_transaction(self) -> None:
        """The jobs would run inside the test's transaction, and see what others cannot."""
        try:
            with self._app.store.transaction():
                pass
        except StoreError as error:
            if error.code != "tx_nested":
                raise
            raise PerdureError(
                "t.drain() inside app.transaction(): jobs run only after its commit; drain after the block",
                code="drain_in_transaction",
            ) from None


def _ring() -> None:
    """No thread sleeps on it."""
