"""`app.aio`: the app's verbs as coroutines. Each runs the verb itself in the loop's default executor; only enqueueing
does not, so that no thread waits for the shared commit."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from datetime import datetime
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack, overload
from uuid import UUID

from perdure.app import JobLike, Perdure
from perdure.checks import Span, check_list
from perdure.clock import asked
from perdure.enqueue import common_tx
from perdure.flow.planned import FlowHandle, Planned
from perdure.flow.views import Flow
from perdure.flows import Flows
from perdure.job.flow import NeedsName, OnFailure
from perdure.job.views import Job
from perdure.kind import Draft
from perdure.limit.rule import Rule
from perdure.limits import Hold, Limits
from perdure.names import public
from perdure.options import After, Conflict, OptionFields
from perdure.queues import Queues
from perdure.schedules import Schedules
from perdure.store.rows import EVERY_QUEUE
from perdure.store.transaction import is_async
from perdure.templates import Templates
from perdure.worker.lifecycle import is_logged, log_enqueued
from perdure.workflow import Abandon, Batch, When, Workflow

if TYPE_CHECKING:
    from perdure.reservation import Reservation

INNER = frozenset(("plain",))
P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


class _Async(Generic[S]):
    """The verbs of `S` as coroutines."""

    def __init__(self, plain: S) -> None:
        self.plain = plain

    def __dir__(self) -> list[str]:
        return public(super().__dir__(), INNER)


def _coroutine(verb: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[_Async[S], P], Coroutine[Any, Any, T]]:
    """The verb, in the executor. With `tx=` it runs in this thread, which owns the caller's connection; with an
    asynchronous one its operations run in this task."""

    @wraps(verb)
    async def run(self: _Async[S], /, *args: P.args, **kwargs: P.kwargs) -> T:
        def call(tx: Any) -> T:
            if tx is not None:
                kwargs["tx"] = tx
            return verb(self.plain, *args, **kwargs)

        return await in_its_place(kwargs.get("tx"), call)

    return run


async def in_its_place(tx: Any, verb: Callable[[Any], T]) -> T:
    """Call what takes a transaction, or None, where that transaction can be used."""
    if tx is None:
        return await asyncio.to_thread(verb, None)
    if is_async(tx):
        lent = _Lent(tx)
        return await lent.serve(lambda: verb(lent))
    return verb(tx)


_Question = tuple[Callable[[Any], Awaitable[Any]], Future[Any]]


class _Lent:
    """An asynchronous connection for a verb that runs in a thread: whatever the verb runs on it, the task that called
    the verb awaits. So a cancel of the task reaches it, and the thread never touches the connection."""

    def __init__(self, tx: Any) -> None:
        self._tx = tx
        self._loop = asyncio.get_running_loop()
        self._asked: asyncio.Queue[_Question | None] = asyncio.Queue()
        self._over = False

    def run_async(self, work: Callable[[Any], Awaitable[T]]) -> T:
        """Called in the thread, by the store. CancelledError: the task does not wait any more."""
        answer: Future[T] = Future()
        self._loop.call_soon_threadsafe(self._ask, (work, answer))
        return answer.result()

    def _ask(self, question: _Question) -> None:
        if self._over:
            question[1].set_exception(asyncio.CancelledError())
        else:
            self._asked.put_nowait(question)

    async def serve(self, verb: Callable[[], T]) -> T:
        """Run the verb in a thread of its own: one of the executor's may be waiting for what this transaction holds."""
        done: Future[T] = Future()

        def call() -> None:
            try:
                done.set_result(verb())
            except BaseException as error:  # noqa: BLE001 - raised in the task that waits
                done.set_exception(error)
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._asked.put_nowait, None)

        threading.Thread(target=copy_context().run, args=(call,), name="perdure-verb", daemon=True).start()
        try:
            while (question := await self._asked.get()) is not None:
                await self._answer(*question)
        finally:
            self._over = True
            while not self._asked.empty():
                if (late := self._asked.get_nowait()) is not None:
                    self._ask(late)
        return done.result()

    async def _answer(self, work: Callable[[Any], Awaitable[Any]], answer: Future[Any]) -> None:
        try:
            answer.set_result(await work(self._tx))
        except BaseException as error:
            answer.set_exception(error)
            if not isinstance(error, Exception):
                raise


def _stepwise(
    listing: Callable[Concatenate[S, P], Iterator[T]],
) -> Callable[Concatenate[_Async[S], P], AsyncIterator[T]]:
    """The items one by one, each step in the executor; only the first item of a page reads the database."""

    @wraps(listing)
    def begin(self: _Async[S], /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        return steps(listing(self.plain, *args, **kwargs))

    async def steps(items: Iterator[T]) -> AsyncIterator[T]:
        done = object()
        while (item := await asyncio.to_thread(next, items, done)) is not done:
            yield item  # type: ignore[misc]

    return begin


class AsyncQueues(_Async[Queues]):
    """`app.queues` for coroutines."""

    list = _coroutine(Queues.list)
    pause = _coroutine(Queues.pause)
    resume = _coroutine(Queues.resume)
    limit = _coroutine(Queues.limit)


class AsyncLimits(_Async[Limits]):
    """`app.limits` for coroutines."""

    set = _coroutine(Limits.set)
    reset = _coroutine(Limits.reset)
    pause = _coroutine(Limits.pause)
    resume = _coroutine(Limits.resume)
    list = _coroutine(Limits.list)
    show = _coroutine(Limits.show)

    def declare(self, *limits: Rule) -> None:
        """As `app.limits.declare`: it writes nothing."""
        self.plain.declare(*limits)

    def hold(self, name: str, *, key: object = None, weight: int = 1, wait: Span | None = None) -> AsyncHold:
        """`async with app.aio.limits.hold("gpu", weight=2, wait=30): …`"""
        return AsyncHold(self.plain.hold(name, key=key, weight=weight, wait=wait))


class AsyncHold:
    """A place of a limit for a block of a coroutine."""

    def __init__(self, plain: Hold) -> None:
        self._plain = plain

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._plain.__enter__)
        return self

    @property
    def lost(self) -> bool:
        """Its lease ended before it was renewed: somebody else may have the place."""
        return self._plain.lost

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._plain.release)


class AsyncSchedules(_Async[Schedules]):
    """`app.schedules` for coroutines."""

    put = _coroutine(Schedules.put)
    trigger = _coroutine(Schedules.trigger)
    get = _coroutine(Schedules.get)
    enable = _coroutine(Schedules.enable)
    disable = _coroutine(Schedules.disable)
    remove = _coroutine(Schedules.remove)
    rename = _coroutine(Schedules.rename)
    slots = _coroutine(Schedules.slots)
    missed = _coroutine(Schedules.missed)
    preview = _coroutine(Schedules.preview)
    describe = _coroutine(Schedules.describe)
    backfill = _stepwise(Schedules.backfill)
    list = _coroutine(Schedules.list)


class AsyncTemplates(_Async[Templates]):
    """`app.templates` for coroutines."""

    put = _coroutine(Templates.put)
    get = _coroutine(Templates.get)
    list = _coroutine(Templates.list)
    versions = _coroutine(Templates.versions)
    of = _coroutine(Templates.of)
    archive = _coroutine(Templates.archive)
    restore = _coroutine(Templates.restore)
    rename = _coroutine(Templates.rename)
    enqueue = _coroutine(Templates.enqueue)


class AsyncFlows(_Async[Flows]):
    """`app.flows` for coroutines."""

    get = _coroutine(Flows.get)
    graph = _coroutine(Flows.graph)
    seal = _coroutine(Flows.seal)
    jobs = _stepwise(Flows.jobs)
    list = _stepwise(Flows.list)


class AsyncWorkflow:
    """`async with app.aio.workflow("nightly") as wf:` gives the `Workflow` itself: planning asks nobody. Only its end
    writes."""

    def __init__(self, plain: Workflow) -> None:
        self._plain = plain

    async def __aenter__(self) -> Workflow:
        await asked(self._plain.app.clock)
        return self._plain.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await in_its_place(self._plain.tx, self._plain.write)
        else:
            self._plain.__exit__(kind, error, trace)


class AsyncBatch(FlowHandle):
    """`app.batch` for coroutines: `async with app.aio.batch("import") as batch: await batch.add(…)`."""

    def __init__(self, plain: Batch) -> None:
        self.plain = plain

    @property
    def raw_id(self) -> bytes:
        return self.plain.raw_id

    @property
    def name(self) -> str:
        return self.plain.name

    @property
    def deduplicated(self) -> bool:
        """True: another live batch has the key; what is added here is dropped."""
        return self.plain.deduplicated

    async def add(
        self, draft: Draft[T], *, after: After = None, on: NeedsName | None = None, when: When = None
    ) -> Planned[T]:
        """See `Batch.add`."""
        planned = self.plain.taken(draft, after, on, when)
        if self.plain.is_full:
            await in_its_place(self.plain.tx, self.plain.flush)
        return planned

    async def add_many(self, drafts: Iterable[Draft] | AsyncIterable[Draft]) -> None:
        """Add all of these; a generator, also an asynchronous one, is read as it goes."""
        if isinstance(drafts, AsyncIterable):
            async for draft in drafts:
                await self.add(draft)
        else:
            for draft in drafts:
                await self.add(draft)

    async def __aenter__(self) -> Self:
        await in_its_place(self.plain.tx, self.plain.begin)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        from perdure.worker.worker import finish_in_thread

        failed = kind is not None
        if failed and self.plain.tx is None:  # the task may be cancelled: the batch must not stay open for that
            await finish_in_thread(lambda: self.plain.end(failed, None))
        else:
            await in_its_place(self.plain.tx, lambda tx: self.plain.end(failed, tx))

    def __dir__(self) -> list[str]:
        return public(super().__dir__(), INNER)


class AsyncReservation:
    """`app.reserve` for coroutines: `async with app.aio.reserve("gpu") as r:`."""

    def __init__(self, plain: Reservation) -> None:
        self.plain = plain

    @property
    def id(self) -> UUID:
        return self.plain.id

    @property
    def queue(self) -> str:
        return self.plain.queue

    @property
    def by(self) -> str:
        return self.plain.by

    @property
    def expires_at(self) -> datetime:
        return self.plain.expires_at

    async def check(self) -> None:
        await asyncio.to_thread(self.plain.check)

    async def renew(self) -> None:
        await asyncio.to_thread(self.plain.renew)

    async def keep(self) -> None:
        await asyncio.to_thread(self.plain.keep)

    async def release(self) -> None:
        from perdure.worker.worker import finish_in_thread

        await finish_in_thread(self.plain.release)

    async def __aenter__(self) -> Self:
        from perdure.worker.worker import finish_in_thread

        looks = self.plain.looks()
        try:
            pause = await finish_in_thread(lambda: next(looks, None))
            while pause is not None:
                await asyncio.sleep(pause)
                pause = await finish_in_thread(lambda: next(looks, None))
        except BaseException:
            await self.release()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.release()

    def __dir__(self) -> list[str]:
        return public(super().__dir__(), INNER)


class AsyncPerdure(_Async[Perdure]):
    """The verbs of `Perdure` for coroutines; see there for what each promises."""

    def __init__(self, app: Perdure) -> None:
        super().__init__(app)
        self.flows = AsyncFlows(app.flows)
        self.queues = AsyncQueues(app.queues)
        self.limits = AsyncLimits(app.limits)
        self.schedules = AsyncSchedules(app.schedules)
        self.templates = AsyncTemplates(app.templates)

    async def enqueue(
        self, kind: str, arguments: Mapping[str, Any] | None = None, **options: Unpack[OptionFields]
    ) -> Job:
        return await self.plain.aenqueue_draft(self.plain.draft(kind, arguments, options))

    async def enqueue_many(self, drafts: Iterable[Draft], *, tx: Any = None) -> list[Job]:
        listed = check_list(drafts, "a list of jobs made by kind.new(…)")
        store = self.plain.store_of(common_tx(listed, tx))
        await asked(self.plain.clock)
        new = self.plain.new_jobs(listed)
        jobs = await store.aenqueue(new) if new else []
        if is_logged(logging.DEBUG):
            log_enqueued(jobs)
        return jobs

    @overload
    async def wait(self, job: FlowHandle, timeout: Span | None = None) -> Flow: ...
    @overload
    async def wait(self, job: JobLike, timeout: Span | None = None) -> Job: ...

    async def wait(self, job: JobLike | FlowHandle, timeout: Span | None = None) -> Job | Flow:
        looks = self.plain.looks(job, timeout)
        found, pause = await asyncio.to_thread(next, looks)
        while not found.is_final:
            await asyncio.sleep(pause)
            found, pause = await asyncio.to_thread(next, looks)
        return found

    def workflow(
        self,
        name: str,
        *,
        key: str | None = None,
        conflict: Conflict = "raise",
        on_failure: OnFailure = "continue",
        at_once: int | None = None,
        properties: Mapping[str, Any] | None = None,
        tx: Any = None,
    ) -> AsyncWorkflow:
        settings: dict[str, Any] = {"key": key, "conflict": conflict, "on_failure": on_failure, "at_once": at_once}
        return AsyncWorkflow(self.plain.workflow(name, **settings, properties=properties, tx=tx))

    def batch(
        self,
        name: str,
        *,
        on_success: Draft | None = None,
        on_failure: Draft | OnFailure | None = None,
        on_end: Draft | None = None,
        at_once: int | None = None,
        key: str | None = None,
        conflict: Conflict = "raise",
        properties: Mapping[str, Any] | None = None,
        abandon: Abandon = "cancel",
        tx: Any = None,
    ) -> AsyncBatch:
        jobs: dict[str, Any] = {"on_success": on_success, "on_failure": on_failure, "on_end": on_end}
        settings: dict[str, Any] = {"at_once": at_once, "key": key, "conflict": conflict, "properties": properties}
        return AsyncBatch(self.plain.batch(name, **jobs, **settings, abandon=abandon, tx=tx))

    def reserve(
        self, queue: str = EVERY_QUEUE, *, wait: Span | None = 30.0, expires: Span = 600.0, by: str | None = None
    ) -> AsyncReservation:
        return AsyncReservation(self.plain.reserve(queue, wait=wait, expires=expires, by=by))

    jobs = _stepwise(Perdure.jobs)
    runs = _stepwise(Perdure.runs)
    logs = _stepwise(Perdure.logs)
    archived_jobs = _stepwise(Perdure.archived_jobs)

    reservations = _coroutine(Perdure.reservations)
    run_direct = _coroutine(Perdure.run_direct)

    get = _coroutine(Perdure.get)
    explain = _coroutine(Perdure.explain)
    chain = _coroutine(Perdure.chain)
    group = _coroutine(Perdure.group)
    move = _coroutine(Perdure.move)
    set_priority = _coroutine(Perdure.set_priority)
    supersede = _coroutine(Perdure.supersede)
    edit = _coroutine(Perdure.edit)
    delete = _coroutine(Perdure.delete)
    cancel_all = _coroutine(Perdure.cancel_all)
    pause_all = _coroutine(Perdure.pause_all)
    resume_all = _coroutine(Perdure.resume_all)
    retry_all = _coroutine(Perdure.retry_all)
    trigger = _coroutine(Perdure.trigger)
    purge = _coroutine(Perdure.purge)
    archive = _coroutine(Perdure.archive)
    archived = _coroutine(Perdure.archived)

    @overload
    async def cancel(self, job: FlowHandle, *, tx: Any = None) -> Flow: ...
    @overload
    async def cancel(self, job: JobLike, *, expect_version: int | None = None, tx: Any = None) -> Job: ...

    async def cancel(self, job: Any, *, expect_version: int | None = None, tx: Any = None) -> Any:
        return await in_its_place(tx, lambda tx: self.plain.cancel(job, expect_version=expect_version, tx=tx))

    @overload
    async def pause(self, job: FlowHandle, *, tx: Any = None) -> Flow: ...
    @overload
    async def pause(self, job: JobLike, *, expect_version: int | None = None, tx: Any = None) -> Job: ...

    async def pause(self, job: Any, *, expect_version: int | None = None, tx: Any = None) -> Any:
        return await in_its_place(tx, lambda tx: self.plain.pause(job, expect_version=expect_version, tx=tx))

    @overload
    async def resume(self, job: FlowHandle, *, tx: Any = None) -> Flow: ...
    @overload
    async def resume(self, job: JobLike, *, expect_version: int | None = None, tx: Any = None) -> Job: ...

    async def resume(self, job: Any, *, expect_version: int | None = None, tx: Any = None) -> Any:
        return await in_its_place(tx, lambda tx: self.plain.resume(job, expect_version=expect_version, tx=tx))

    @overload
    async def retry(self, job: FlowHandle, *, again: bool = False, tx: Any = None) -> Flow: ...
    @overload
    async def retry(self, job: JobLike, *, as_new: bool = False, again: bool = False, tx: Any = None) -> Job: ...

    async def retry(self, job: Any, *, as_new: bool = False, again: bool = False, tx: Any = None) -> Any:
        return await in_its_place(tx, lambda tx: self.plain.retry(job, as_new=as_new, again=again, tx=tx))
