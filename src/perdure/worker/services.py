"""What a handler's context asks for: its job and run, new jobs, and a transaction that ends the job with other rows.

Made by `node`, called in the handler's thread.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from contextvars import copy_context
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Self

from perdure.clock import Micros
from perdure.errors import DatabaseBusy, JobNotFound, TransactionError
from perdure.ids import JobId
from perdure.job.model import NewJob
from perdure.job.reports import Completed, Finish
from perdure.job.views import Job, Run
from perdure.kind import Draft
from perdure.store.protocols import FlowOperations, Store
from perdure.store.rows import Finished, FinishStatus, RunFilter, SlotRow, not_found
from perdure.store.transaction import open_here
from perdure.uninterrupted import interruptible, uninterrupted
from perdure.worker.context import JobContext
from perdure.worker.options import Parts
from perdure.worker.session import opened, opened_async
from perdure.worker.signals import Interrupted, Stop

WARN_AFTER_S = 1.0
LIMIT_S = 5.0
"""For databases with a single writer only."""

_FOREIGN = re.compile(r"(?:[\s\ufeff;]|--[^\n]*\n|/\*.*?\*/)*(?:ATTACH|DETACH)\b", re.IGNORECASE | re.DOTALL)


class JobTransaction:
    """What `ctx.transaction()` yields, and what the function of `Done(write=…)` is called with."""

    def __init__(self, tx: Any, ctx: JobContext, session: Any = None) -> None:
        self.__perdure_transaction__ = tx  # so that kind.options(tx=…) takes it
        self._ctx = ctx
        self.session = session
        """What `session=` gave: your Session, or your connection. None: you gave none."""
        self.text: str | None = None

    def execute(self, sql: str, parameters: Any = ()) -> Any:
        """Run a statement of your own in it. Returns the cursor. Parameters are `:name` with a dict on every database,
        or as the database's driver writes them.

        COMMIT, ROLLBACK, ATTACH and the like are refused: the transaction belongs to the job.
        """
        if self.session is not None:
            raise TransactionError(
                "tx.execute beside session=: run your statements on tx.session (with Django: on its models or cursors)",
                code="tx_managed",
            )
        if _FOREIGN.match(sql):
            raise TransactionError(
                f"{sql.strip()[:40]!r} inside a job's own transaction: other files cannot take part in it; read them"
                " before, on a connection of your own",
                code="tx_managed",
            )
        return self.__perdure_transaction__.execute(sql, parameters)

    def executemany(self, sql: str, rows: Iterable[Any]) -> None:
        """The same statement once for each of these rows."""
        for parameters in rows:
            self.execute(sql, parameters)

    def result(self, value: Any) -> None:
        """Set the result of the job. InvalidPayload if it cannot be stored."""
        self.text = self._ctx.kind.codec.encode_result(value, is_shown=self._ctx.claim.secrets is None)


class AsyncJobTransaction:
    """What `async with ctx.transaction()` yields: the same, whose statements run in threads."""

    def __init__(self, plain: JobTransaction) -> None:
        self._plain = plain
        self.__perdure_transaction__ = plain.__perdure_transaction__
        self.session = plain.session
        self.result = plain.result

    async def execute(self, sql: str, parameters: Any = ()) -> Any:
        """See `JobTransaction.execute`. A cancel lets the statement end; then all of the transaction is rolled back."""
        return await asyncio.to_thread(self._plain.execute, sql, parameters)

    async def executemany(self, sql: str, rows: Iterable[Any]) -> None:
        await asyncio.to_thread(self._plain.executemany, sql, rows)


class JobTransactionBlock:
    """What `ctx.transaction()` gives: for `with` and, in a coroutine, for `async with`, where others run meanwhile."""

    def __init__(
        self,
        plain: AbstractContextManager[JobTransaction],
        awaited: AbstractAsyncContextManager[AsyncJobTransaction] | None = None,
    ) -> None:
        """Without `awaited`, a coroutine uses `plain` in threads."""
        self._plain = plain
        self._awaited = awaited or _InThreads(plain)
        self.when_committed: Callable[[], object] | None = None

    def __enter__(self) -> JobTransaction:
        return self._plain.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> bool | None:
        return self._left(kind, self._plain.__exit__(kind, error, at))

    async def __aenter__(self) -> AsyncJobTransaction:
        return await self._awaited.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> bool | None:
        return self._left(kind, await self._awaited.__aexit__(kind, error, at))

    def _left(self, kind: type[BaseException] | None, answer: bool | None) -> bool | None:
        if kind is None and self.when_committed is not None:
            self.when_committed()
        return answer


class _InThreads:
    """A transaction of ours for a coroutine: its statements run in threads."""

    def __init__(self, plain: AbstractContextManager[JobTransaction]) -> None:
        self._plain = plain
        self._own = copy_context()
        """Where the transaction is begun and ended, in whatever threads that is."""
        self._before: Any = None

    async def __aenter__(self) -> AsyncJobTransaction:
        from perdure.worker.worker import finish_in_thread

        begun: list[JobTransaction] = []
        try:
            await finish_in_thread(lambda: begun.append(self._own.run(self._plain.__enter__)))
        except asyncio.CancelledError as cancelled:
            if begun:
                await self._end(type(cancelled), cancelled, None)
            raise
        self._before = open_here.get()
        open_here.set(self._own[open_here])  # calls of this task join it
        return AsyncJobTransaction(begun[0])

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> bool | None:
        open_here.set(self._before)
        return await self._end(kind, error, at)

    async def _end(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> bool | None:
        from perdure.worker.worker import finish_in_thread

        return await finish_in_thread(lambda: self._own.run(self._plain.__exit__, kind, error, at))


def in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class _TransactionWatch:
    """Where a database has one writer at a time (SQLite), all others wait for a job's transaction. So it is watched:
    first a warning, then it is rolled back. The watching thread starts before the lock is taken."""

    def __init__(self, store: Store, ctx: JobContext) -> None:
        self._ctx = ctx
        self._messages: SimpleQueue[Callable[[str], bool] | None] | None = (
            SimpleQueue() if store.single_writer else None
        )

    def __enter__(self) -> Self:
        if self._messages is not None:
            args = (self._messages, self._ctx)
            threading.Thread(target=_watch, args=args, name="perdure-transaction", daemon=True).start()
        return self

    def begin(self, tx: Any) -> None:
        """The transaction has the lock."""
        if self._messages is not None:
            self._messages.put(tx.give_up)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._messages is not None:
            self._messages.put(None)


def _watch(messages: SimpleQueue[Callable[[str], bool] | None], ctx: JobContext) -> None:
    """In its thread. `messages`: how to give the transaction up, once it has begun; None when it is over."""
    give_up = messages.get()
    if give_up is None or _is_over(messages, WARN_AFTER_S):
        return
    ctx.log.warning(
        "the transaction that is to end this job has been open for %g s and keeps all other writers out; it is rolled"
        " back after %g s",
        WARN_AFTER_S,
        LIMIT_S,
    )
    if _is_over(messages, max(0.0, LIMIT_S - WARN_AFTER_S)):
        return
    reason = (
        f"the transaction that was to end the job was open for longer than {LIMIT_S:g} s and kept all other writers"
        " out; it was rolled back. Do the slow work before it, and write in it"
    )
    if give_up(reason):
        ctx.log.error("%s", reason)


def _is_over(messages: SimpleQueue[Callable[[str], bool] | None], within_s: float) -> bool:
    try:
        messages.get(timeout=within_s)
    except Empty:
        return False
    return True


class StoreServices:
    """`Services` on a store."""

    def __init__(self, parts: Parts) -> None:
        self._store = parts.store
        self._clock = parts.clock
        self._ids = parts.ids
        self._new_job = parts.new_job

    def get_job(self, ctx: JobContext) -> Job:
        found = self._store.get(ctx.claim.job_id)
        if found is None:
            raise not_found(ctx.claim.job_id)
        return found

    def get_run(self, ctx: JobContext) -> Run:
        for run in self._store.runs(RunFilter(job_id=ctx.claim.job_id), None, 100).items:
            if run.row.id == ctx.claim.run_id:
                return run
        raise JobNotFound(f"there is no run {ctx.run_id}")

    def get_slot(self, ctx: JobContext) -> SlotRow | None:
        return self._store.slot_of(ctx.claim.job_id)

    def new_job(self, draft: Draft, ctx: JobContext) -> NewJob:
        new = self._new_job(draft)
        return new._replace(parent_id=ctx.claim.job_id, plan=new.plan._replace(conflict="return"))

    def flows(self, ctx: JobContext) -> FlowOperations:
        del ctx
        return self._store

    def now(self) -> Micros:
        return self._clock.now()

    def transaction(self, ctx: JobContext, session: Any = None) -> JobTransactionBlock:
        """Inside, the handler writes; the end of the block is the end of the job, fenced by its run. With `session` the
        transaction is the handler's own."""
        if session is not None:
            return JobTransactionBlock(self._transaction(ctx, session), self._in_async_session(ctx, session))
        if self._store.single_writer and in_event_loop():
            raise _in_coroutine()
        return JobTransactionBlock(self._transaction(ctx))

    @contextmanager
    def _transaction(self, ctx: JobContext, session: Any = None) -> Generator[JobTransaction, None, None]:
        if session is not None and self._store.single_writer and in_event_loop():
            raise _in_coroutine()
        ending = self._ending(ctx) if session is None else self._ending_with(ctx, session)
        with _children_kept(ctx), ending as own, interruptible:
            yield own

    @asynccontextmanager
    async def _in_async_session(self, ctx: JobContext, source: Any) -> AsyncGenerator[AsyncJobTransaction, None]:
        with _children_kept(ctx):
            async with opened_async(source) as session:
                await self._store.within(session).abegin_writing()
                own = JobTransaction(session, ctx, session)
                with self._store.joining(session):
                    yield AsyncJobTransaction(own)
                self._check(ctx, await self._store.within(session).afinish(*self._finishing(ctx, own.text)))
            ctx.closed = True

    def complete(self, ctx: JobContext, result: str | None, write: Callable[[Any], object]) -> None:
        """The same for `Done(result, write=…)`: `write` is called once, whatever happens."""
        with self._ending(ctx) as own:
            with interruptible:
                write(own)
            own.text = result

    @contextmanager
    def _ending(self, ctx: JobContext) -> Generator[JobTransaction, None, None]:
        with uninterrupted, _TransactionWatch(self._store, ctx) as watch:
            with self._store.transaction() as tx:
                watch.begin(tx)
                own = JobTransaction(tx, ctx)
                yield own
                self._check(ctx, self._store.finish(*self._finishing(ctx, own.text)))
            ctx.closed = True

    @contextmanager
    def _ending_with(self, ctx: JobContext, source: Any) -> Generator[JobTransaction, None, None]:
        """The same in a transaction of the user's. Nobody ends it for him if it takes long."""
        with uninterrupted:
            with opened(source) as session:
                self._store.within(session).begin_writing()
                own = JobTransaction(session, ctx, session)
                with self._store.joining(session):
                    yield own
                self._check(ctx, self._store.within(session).finish(*self._finishing(ctx, own.text)))
            ctx.closed = True

    def _finishing(self, ctx: JobContext, result: str | None) -> tuple[list[Finish], Micros]:
        """The last statement."""
        finish = Finish(ctx.claim.live, Completed(result), JobId(self._ids.new()), ctx.stats(), ctx.children)
        return [finish], self._clock.now()

    def _check(self, ctx: JobContext, finishes: Sequence[Finished]) -> None:
        """If the job is not this run's any more, everything is rolled back."""
        (finished,) = finishes
        if finished.status is FinishStatus.WAITS:
            raise DatabaseBusy(
                "the job, or a key or dependent of it, was locked by another transaction for too long, so its end could"
                " not be written, nor anything of this transaction"
            )
        if finished.status is not FinishStatus.APPLIED:
            ctx.stop = ctx.stop or Stop.LOST
            raise Interrupted(Stop.LOST)


@contextmanager
def _children_kept(ctx: JobContext) -> Generator[None, None, None]:
    """What was enqueued inside a block that fails is rolled back with it."""
    ctx.check_open("transaction")
    children = ctx.children
    try:
        yield
    except BaseException:
        if not ctx.closed:
            ctx.children = children
        raise


def _in_coroutine() -> TransactionError:
    return TransactionError(
        "ctx.transaction() in a coroutine would keep the event loop and all other writers waiting for each other; end"
        " the job with `return Done(result, write=function)`, whose function writes in the same transaction, or write"
        " with an async session: `async with ctx.transaction(session=async_sessionmaker(…))`",
        code="tx_in_coroutine",
    )
