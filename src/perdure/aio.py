"""`app.aio`: the app's verbs as coroutines. Nothing is written twice: each runs the plain verb in the loop's default
executor, but for enqueueing, where no thread waits for the shared commit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, Unpack

from perdure.job.views import Job, Run
from perdure.kind import Draft
from perdure.options import OptionFields, listed
from perdure.verbs.enqueue import common_tx
from perdure.verbs.find import gave_up, pauses
from perdure.verbs.named import Queue
from perdure.worker.lifecycle import tell_of_enqueued

if TYPE_CHECKING:
    from perdure.app import JobLike, Perdure
    from perdure.ops.explain import Explanation
    from perdure.store.rows import LogLine

P = ParamSpec("P")
T = TypeVar("T")


async def _lifted(verb: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    return await asyncio.to_thread(verb, *args, **kwargs)


class AsyncPerdure:
    """The verbs of `Perdure` for coroutines; see there for what each promises."""

    def __init__(self, app: Perdure) -> None:
        self._app = app
        self.queues = AsyncQueues(app)

    async def enqueue(
        self, kind: str, arguments: Mapping[str, Any] | None = None, **options: Unpack[OptionFields]
    ) -> Job:
        return await self._app.aenqueue_draft(self._app.draft(kind, arguments, options))

    async def enqueue_many(self, drafts: Iterable[Draft], *, tx: Any = None) -> list[Job]:
        listed_drafts = listed(drafts, "a list of jobs made by kind.new(…)")
        tx = common_tx(listed_drafts, tx)
        if tx is not None:
            return self._app.enqueue_many(listed_drafts, tx=tx)
        new = self._app.new_jobs(listed_drafts)
        jobs = await self._app.store.aenqueue(new) if new else []
        tell_of_enqueued(jobs)
        return jobs

    async def get(self, job: JobLike) -> Job | None:
        return await _lifted(self._app.get, job)

    def jobs(self, *, limit: int | None = None, **filters: Any) -> AsyncIterator[Job]:
        return _stepwise(self._app.jobs(limit=limit, **filters))

    def runs(self, job: JobLike | None = None, *, limit: int | None = None, **filters: Any) -> AsyncIterator[Run]:
        return _stepwise(self._app.runs(job, limit=limit, **filters))

    def logs(self, job: JobLike) -> AsyncIterator[LogLine]:
        return _stepwise(self._app.logs(job))

    async def explain(self, job: JobLike) -> Explanation:
        return await _lifted(self._app.explain, job)

    async def wait(self, job: JobLike, timeout: float | None = None) -> Job:
        current = await _lifted(self._app.existing, job)
        for pause in pauses(timeout, self._app.clock.boottime):
            current = await _lifted(self._app.newest, current)
            if current.is_final:
                return current
            await asyncio.sleep(pause)
        current = await _lifted(self._app.newest, current)
        if current.is_final:
            return current
        raise gave_up(current, timeout)

    async def cancel(self, job: JobLike, *, expect_version: int | None = None) -> Job:
        return await _lifted(self._app.cancel, job, expect_version=expect_version)

    async def pause(self, job: JobLike, *, expect_version: int | None = None) -> Job:
        return await _lifted(self._app.pause, job, expect_version=expect_version)

    async def resume(self, job: JobLike, *, expect_version: int | None = None) -> Job:
        return await _lifted(self._app.resume, job, expect_version=expect_version)

    async def retry(self, job: JobLike, *, as_new: bool = False) -> Job:
        return await _lifted(self._app.retry, job, as_new=as_new)

    async def move(
        self,
        job: JobLike,
        *,
        before: JobLike | None = None,
        after: JobLike | None = None,
        to: Literal["front", "back"] | None = None,
        expect_version: int | None = None,
    ) -> Job:
        return await _lifted(self._app.move, job, before=before, after=after, to=to, expect_version=expect_version)

    async def set_priority(self, job: JobLike, priority: int, *, expect_version: int | None = None) -> Job:
        return await _lifted(self._app.set_priority, job, priority, expect_version=expect_version)

    async def supersede(self, job: JobLike, replacement: Draft) -> Job:
        return await _lifted(self._app.supersede, job, replacement)

    async def edit(self, job: JobLike, **changes: Any) -> Job:
        return await _lifted(self._app.edit, job, **changes)

    async def delete(self, job: JobLike) -> Job:
        return await _lifted(self._app.delete, job)

    async def cancel_all(self, *, limit: int | None = None, **filters: Any) -> int:
        return await _lifted(self._app.cancel_all, limit=limit, **filters)

    async def pause_all(self, *, limit: int | None = None, **filters: Any) -> int:
        return await _lifted(self._app.pause_all, limit=limit, **filters)

    async def resume_all(self, *, limit: int | None = None, **filters: Any) -> int:
        return await _lifted(self._app.resume_all, limit=limit, **filters)

    async def retry_all(self, *, limit: int | None = None, **filters: Any) -> int:
        return await _lifted(self._app.retry_all, limit=limit, **filters)


class AsyncQueues:
    """`app.queues` for coroutines."""

    def __init__(self, app: Perdure) -> None:
        self._app = app

    async def list(self) -> list[Queue]:
        return await _lifted(self._app.queues.list)

    async def pause(self, name: str) -> None:
        await _lifted(self._app.queues.pause, name)

    async def resume(self, name: str) -> None:
        await _lifted(self._app.queues.resume, name)


async def _stepwise(items: Iterator[T]) -> AsyncIterator[T]:
    """The items one by one, each step in the executor: only the first of a page reads the database."""
    done = object()
    while (item := await asyncio.to_thread(next, items, done)) is not done:
        yield item  # type: ignore[misc]
