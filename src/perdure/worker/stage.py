"""What stands behind a handler's context: reading, drafting, and ending the job from inside. Made by `worker`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from perdure.clock import Clock, Micros
from perdure.errors import JobNotFound
from perdure.ids import IdFactory
from perdure.job.job import Job
from perdure.job.model import NewJob
from perdure.job.run import Run
from perdure.kind import Draft
from perdure.store.answers import RunFilter, not_found
from perdure.store.protocols import Store
from perdure.worker import closing
from perdure.worker.context import JobContext

LayOut = Callable[[Draft], NewJob]
"""From a draft to the rows of a new job; the app's own way of doing it."""


class Stage:
    """The real one, on a store."""

    def __init__(self, store: Store, clock: Clock, ids: IdFactory, lay_out: LayOut) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self._lay_out = lay_out

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

    def lay_out(self, draft: Draft, ctx: JobContext) -> NewJob:
        new = self._lay_out(draft)
        return new._replace(parent_id=ctx.claim.job_id, plan=new.plan._replace(conflict="return"))

    def transaction(self, ctx: JobContext) -> AbstractContextManager[Any]:
        return closing.transaction(self._store, self._clock, self._ids, ctx)

    def complete(self, ctx: JobContext, result: str | None, write: Callable[[Any], object]) -> None:
        closing.complete(self._store, self._clock, self._ids, ctx, result, write)

    def now(self) -> Micros:
        return self._clock.now()
