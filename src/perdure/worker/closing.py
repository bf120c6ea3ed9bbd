"""Ends a job in one transaction with rows of the handler's own. Called through the context, in the handler's thread."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from perdure.clock import Clock
from perdure.ids import IdFactory, JobId
from perdure.job.reports import Completed, Finish
from perdure.store.answers import Answer
from perdure.store.protocols import Store
from perdure.worker.context import JobContext
from perdure.worker.signals import Interrupted, Stop


class JobTransaction:
    """The handler's side of `ctx.transaction()`."""

    def __init__(self, tx: Any, ctx: JobContext) -> None:
        self._tx = tx
        self._ctx = ctx
        self.text: str | None = None

    def execute(self, sql: str, parameters: Any = ()) -> Any:
        """Run a statement of your own in it."""
        return self._tx.execute(sql, parameters)

    def result(self, value: Any) -> None:
        """What the job results in."""
        self.text = self._ctx.kind.codec.encode_result(value)


@contextmanager
def transaction(store: Store, clock: Clock, ids: IdFactory, ctx: JobContext) -> Generator[JobTransaction, None, None]:
    """Inside, the handler writes; the end of the block is the end of the job, fenced by its run."""
    with store.transaction() as tx:
        own = JobTransaction(tx, ctx)
        yield own
        _finish(store, clock, ids, ctx, own.text)
    ctx.closed = True


def complete(
    store: Store, clock: Clock, ids: IdFactory, ctx: JobContext, result: str | None, write: Callable[[Any], object]
) -> None:
    """The same for `Done(result, write=…)`."""
    with store.transaction() as tx:
        write(tx)
        _finish(store, clock, ids, ctx, result)
    ctx.closed = True


def _finish(store: Store, clock: Clock, ids: IdFactory, ctx: JobContext, result: str | None) -> None:
    finish = Finish(ctx.claim.live, Completed(result), JobId(ids.new()), children=ctx.children)
    (finished,) = store.finish([finish], clock.now())
    if finished.answer is not Answer.APPLIED:
        ctx.stop = ctx.stop or Stop.LOST
        raise Interrupted(Stop.LOST)
