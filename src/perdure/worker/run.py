"""One run from its claim to its report: decode, upgrade, validate, middleware, handler, result.

Called by the executors, in the thread, task or process that the handler runs in. `node` turns the report into a finish.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
import time
import traceback
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from types import TracebackType
from typing import Any, NamedTuple, Protocol, TypeGuard

from perdure.errors import InvalidPayload, PerdureError
from perdure.job.model import Claim, Failure, RunStats
from perdure.job.reports import (
    Cancelled,
    Completed,
    Failed,
    Released,
    Report,
    Skipped,
    Snoozed,
    TimedOut,
    Unreadable,
)
from perdure.job.retry import MAX_RUNTIME, Retry, max_runtime_ms
from perdure.kind import Kind
from perdure.uninterrupted import Mark
from perdure.worker.context import JobContext, entered
from perdure.worker.lifecycle import say
from perdure.worker.signals import Cancel, Done, Fail, Interrupted, RetryAfter, Signal, Skip, Snooze, Stop
from perdure.worker.texts import shortened

MESSAGE_LIMIT = 10_000
TRACEBACK_LIMIT = 64 * 1024

WARN_AT = 0.8
"""The part of its time-out after which a run is warned about."""

logger = logging.getLogger("perdure.worker")

AnyKind = Kind[..., Any, ..., Any]
Middleware = Callable[[JobContext], AbstractContextManager[Any] | AbstractAsyncContextManager[Any]]
"""Takes a run's context and returns a context manager around the handler; an asynchronous one for async handlers."""


RunToEnd = Callable[[Awaitable[Any]], Any]
"""Waits for the awaitable that a plain function returned. Each executor does it in its own way."""


class Assignment(NamedTuple):
    """What an executor is given: a claimed job, its kind, and the context made for it."""

    claim: Claim
    kind: AnyKind
    ctx: JobContext
    middleware: Sequence[Middleware] = ()
    jitter: float = 0.5

    @property
    def timeout_s(self) -> float | None:
        limit = self.claim.live.timeout_ms
        return None if limit is None else limit / 1000


class Ended(NamedTuple):
    """How an assignment ended. `written`: the job's end is in the database already."""

    ctx: JobContext
    report: Report
    stats: RunStats
    written: bool = False


class Executor(Protocol):
    """Runs handlers somewhere. Every assignment given to `start` comes back once, through the inbox."""

    def start(self, tasks: Sequence[Assignment]) -> None:
        """Begin these runs, each as soon as there is room. Does not wait for any of them."""
        ...

    def stop(self, ctx: JobContext, why: Stop) -> None:
        """Make a run end soon: its handler is interrupted. Does nothing for one that has ended."""
        ...

    def close(self, patience_s: float) -> bool:
        """No more runs will come. False: some handlers have not ended in time and are left behind."""
        ...


class Inbox:
    """Ended runs on their way to the store thread. Any thread may put them in."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ended: deque[Ended] = deque()
        self.ring = ring

    def put(self, ended: Ended) -> None:
        self._ended.append(ended)
        self.ring()

    def put_quietly(self, ended: Ended) -> None:
        """The caller rings when it has put in all that it has."""
        self._ended.append(ended)

    def take(self, most: int | None = None) -> list[Ended]:
        """The first `most` of them, or all."""
        taken: list[Ended] = []
        while self._ended and len(taken) != most:
            taken.append(self._ended.popleft())
        return taken

    def __len__(self) -> int:
        return len(self._ended)


def warn_of_timeout(task: Assignment) -> None:
    used = f"has used {WARN_AT * 100:.0f} % of its time-out of {task.timeout_s or 0:g} s"
    say(logger, logging.WARNING, f"{task.ctx.name} {used}", task.ctx.facts)


class Arguments(NamedTuple):
    """The arguments a handler is called with."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


async def awaited(awaitable: Awaitable[Any]) -> Any:
    """Any awaitable as a coroutine, which is what tasks are made of."""
    return await awaitable


def _run_to_end_here(awaitable: Awaitable[Any]) -> Any:
    return asyncio.run(awaited(awaitable))


def run_plain(task: Assignment, run_to_end: RunToEnd = _run_to_end_here, mark: Mark | None = None) -> Ended:
    """Run a plain function to its end, and then the awaitable it returned, if any.

    `mark` is the thread's own, if others can interrupt it: they can from the handler's first line to its last.
    """
    _enter(task)
    try:
        if mark is not None:
            mark.lift()
        given = prepare(task)
        value = _called(task, given, run_to_end) if isinstance(given, Arguments) else None
        if mark is not None:
            mark.depth = 1
        report = _result(task, value) if isinstance(given, Arguments) else given
    except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its report
        if mark is not None:
            mark.depth = 1
        report = report_of_error(task, error)
    return _ended(task, report)


async def run_async(task: Assignment) -> Ended:
    """The same for a coroutine function."""
    _enter(task)
    try:
        given = prepare(task)
        if not isinstance(given, Arguments):
            report = given
        else:
            value = await (_awaited(task, given) if task.middleware else _call_handler(task, given))
            if value is not None and not task.middleware:
                value = _raise_signal(await value if _is_awaitable(value) else value)
            if isinstance(value, Done) and value.write is not None:
                report = await _written(task, value)
            else:
                report = _result(task, value)
    except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its report
        report = report_of_error(task, error)
    return _ended(task, report)


# -- the steps -------------------------------------------------------------------------------------------------------


def prepare(task: Assignment) -> Arguments | Report:
    """Decode, upgrade and validate the stored arguments. Returns a report if the handler cannot be called."""
    claim, kind = task.claim, task.kind
    if claim.options is not None and (limit_ms := max_runtime_ms(claim.options)) is not None:
        spent_ms = _spent_ms(task)
        if spent_ms >= limit_ms:
            return TimedOut(_out_of_time(limit_ms))
    try:
        args, kwargs = kind.load(claim.payload, claim.secrets, claim.live.kind_version)
        if kind.codec.takes_context:
            args = (task.ctx, *args)
    except InvalidPayload as error:
        if error.code == "payload_unreadable":
            return Unreadable(error.message)
        return Failed(failure_of(task, error, permanent=True))
    except Exception as error:  # noqa: BLE001 - an upgrade is the user's code
        return Failed(failure_of(task, error, permanent=True))
    return Arguments(args, kwargs)


def _call_handler(task: Assignment, given: Arguments) -> Any:
    task.ctx.begun = True
    return task.kind.function(*given.args, **given.kwargs)


def _called(task: Assignment, given: Arguments, run_to_end: RunToEnd) -> object:
    """The handler inside its middleware. A middleware that swallows an exception leaves no result."""
    if not task.middleware:
        value = _call_handler(task, given)
        return value if value is None else _settled(value, run_to_end)
    value = None
    with _around(task):
        value = _settled(_call_handler(task, given), run_to_end)
    return value  # noqa: RET504 - None after an exception that was swallowed


def _settled(value: object, run_to_end: RunToEnd) -> object:
    """What a handler returned: an awaitable is awaited, and a signal is raised."""
    return _raise_signal(run_to_end(value) if _is_awaitable(value) else value)


async def _awaited(task: Assignment, given: Arguments) -> Any:
    value: Any = None
    async with _around_async(task):
        value = await _call_handler(task, given)
        value = _raise_signal(await value if _is_awaitable(value) else value)
    return value  # noqa: RET504 - as above


def _is_awaitable(value: object) -> TypeGuard[Awaitable[Any]]:
    return hasattr(type(value), "__await__")


def _raise_signal(value: object) -> object:
    if _is_signal(value):
        raise value
    return value


def _is_signal(value: object) -> TypeGuard[Signal]:
    """A signal or its class: `raise` takes both."""
    return isinstance(value, Signal) or (isinstance(value, type) and issubclass(value, Signal))


@contextmanager
def _around(task: Assignment) -> Generator[None, None, None]:
    with ExitStack() as stack:
        for middleware in task.middleware:
            manager = middleware(task.ctx)
            if not isinstance(manager, AbstractContextManager):
                raise PerdureError(
                    f"the middleware {middleware!r} returns no plain context manager, so it cannot wrap the plain"
                    f" function {task.kind.name!r}; decorate it with contextlib.contextmanager, or, if that is a"
                    " coroutine function inside a decorator, make the decorator's own function an async def",
                    code="middleware_invalid",
                )
            stack.enter_context(manager)
        yield


@asynccontextmanager
async def _around_async(task: Assignment) -> AsyncGenerator[None, None]:
    async with AsyncExitStack() as stack:
        for middleware in task.middleware:
            manager = middleware(task.ctx)
            if isinstance(manager, AbstractAsyncContextManager):
                await stack.enter_async_context(manager)
            elif isinstance(manager, AbstractContextManager):  # pyright: ignore[reportUnnecessaryIsInstance]
                stack.enter_context(manager)
            else:
                raise PerdureError(
                    f"the middleware {middleware!r} returns no context manager; decorate it with"
                    " contextlib.contextmanager or contextlib.asynccontextmanager",
                    code="middleware_invalid",
                )
        yield


async def _written(task: Assignment, done: Done) -> Report:
    """`Done(write=…)` writes in a thread. Once begun, no cancel ends the wait: the handler has returned."""

    def write() -> Report:
        return _writing(task, done)

    writing = asyncio.get_running_loop().run_in_executor(None, contextvars.copy_context().run, write)
    while not writing.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([writing])
    return writing.result()


def _writing(task: Assignment, done: Done) -> Report:
    """In the thread. Raises nothing: a future cannot hold StopIteration, and SystemExit would harm the loop."""
    try:
        return _result(task, done)
    except BaseException as error:  # noqa: BLE001 - whatever the function raises is the run's report
        return report_of_error(task, error)


def _result(task: Assignment, value: object) -> Report:
    """What the handler returned, as JSON text."""
    if task.ctx.closed:
        if value is not None:
            task.ctx.log.warning(
                "%s returned a value after ctx.transaction() had ended the job; it is not kept", task.kind.name
            )
        return COMPLETED
    if value is None:
        return COMPLETED
    done = value if isinstance(value, Done) else Done(value)
    write = done.write
    try:
        text = task.kind.codec.encode_result(done.result, is_shown=task.claim.secrets is None)
    except InvalidPayload as error:
        return Failed(failure_of(task, error, permanent=True))
    if write is not None:
        task.ctx.complete(text, write)
        task.ctx.closed = True
    return Completed(text)


COMPLETED = Completed()


def report_of_error(task: Assignment, error: BaseException) -> Report:
    """What an exception means for the run."""
    try:
        return _too_late(task, error) if task.ctx.closed else _within_its_slot(task, _report_of(task, error))
    except Interrupted:
        raise
    except BaseException as worse:  # noqa: BLE001 - the user's exception cannot even be described
        raised, worse_still = task.ctx.fit(type(error).__name__), task.ctx.fit(type(worse).__name__)
        message = f"the handler raised a {raised} that cannot be described ({worse_still})"
        return Failed(Failure(raised, message), _delay_us(task))


def _too_late(task: Assignment, error: BaseException) -> Report:
    """The job had ended before: `ctx.transaction()` was committed. The error is only logged."""
    failure = failure_of(task, error)
    task.ctx.log.error(
        "%s raised after ctx.transaction() had ended the job, which stays completed: %s",
        task.kind.name,
        failure.traceback or failure.message,
    )
    return COMPLETED


def _report_of(task: Assignment, error: BaseException) -> Report:
    stop = task.ctx.stop
    match error:
        case Snooze():
            return Snoozed(round(error.delay_s * 1_000_000))
        case Skip():
            return Skipped(_message_of(task, error) or None)
        case Cancel():
            return Cancelled(_message_of(task, error) or None)
        case Fail():
            return Failed(failure_of(task, error, permanent=True))
        case RetryAfter():
            return Failed(failure_of(task, error), round(error.delay_s * 1_000_000))
        case Interrupted() | asyncio.CancelledError() if stop is not None:
            return _stopped(task, stop, error)
        case _:
            return _failed(task, error)


def _stopped(task: Assignment, stop: Stop, error: BaseException) -> Report:
    """The handler left because it was asked to."""
    at_checkpoint = isinstance(error, Interrupted) and error.at_checkpoint
    if stop is Stop.CANCEL:
        return Cancelled()
    if stop is Stop.TIMEOUT:
        return timed_out(task, error)
    return Released(counts=task.ctx.begun and not at_checkpoint)


def timed_out(task: Assignment, error: BaseException | None = None) -> Report:
    message = f"the run took longer than its time-out of {task.timeout_s or 0:g} s"
    trace = None
    if error is not None:
        trace = _traceback(task, error)
        _keep_for_the_log(task, error)
    failure = Failure("JobTimeout", message, trace)
    return _within_its_slot(task, TimedOut(failure, _delay_us(task)))


def failed(task: Assignment, failure: Failure) -> Report:
    """A failure that is not an exception of the handler: which exceptions are retried does not matter."""
    return _within_its_slot(task, Failed(failure, 0 if failure.permanent else _delay_us(task)))


def _failed(task: Assignment, error: BaseException) -> Report:
    asked_for = isinstance(error, (Interrupted, asyncio.CancelledError))  # not by us: an error like any other
    permanent = not asked_for and not policy_of(task.claim, task.kind).retries(error)
    return Failed(failure_of(task, error, permanent=permanent), 0 if permanent else _delay_us(task))


# -- the job of a slot -------------------------------------------------------------------------------------------------


def _within_its_slot(task: Assignment, report: Report) -> Report:
    """A job that has used up the time of its slot is not retried: the next slot goes on."""
    limit_ms = max_runtime_ms(task.claim.options)
    if limit_ms is None or not isinstance(report, (Failed, TimedOut)) or report.failure.permanent:
        return report
    if _spent_ms(task) + report.delay_us // 1000 < limit_ms:
        return report
    if isinstance(report, TimedOut):
        return TimedOut(_out_of_time(limit_ms)._replace(traceback=report.failure.traceback))
    return Failed(report.failure._replace(permanent=True))


def _spent_ms(task: Assignment) -> int:
    """Since the first start of the job."""
    live = task.claim.live
    before_us = 0 if live.started_at is None or live.claimed_at is None else live.claimed_at - live.started_at
    return before_us // 1000 + (task.ctx.stats().duration_ms or 0)


def _out_of_time(limit_ms: int) -> Failure:
    message = f"the job of this slot was at work for longer than its max_runtime of {limit_ms / 1000:g} s"
    return Failure(MAX_RUNTIME, message, permanent=True)


def _delay_us(task: Assignment) -> int:
    policy = policy_of(task.claim, task.kind)
    return round(policy.delay(task.claim.live.attempts, task.jitter) * 1_000_000)


def policy_of(claim: Claim, kind: AnyKind) -> Retry:
    """The job's own policy if it has one; the kind says which exceptions count.

    A stored policy that cannot be read, perhaps of a newer version, is ignored: a failed run must be closed here.
    """
    own = kind.defaults.policy
    if not claim.options:
        return own
    try:
        stored = json.loads(claim.options).get("retry")
        return own if stored is None else Retry.from_json(stored).counting(own)
    except (ValueError, TypeError, AttributeError):
        return own


# -- pieces ----------------------------------------------------------------------------------------------------------


def failure_of(task: Assignment, error: BaseException, *, permanent: bool = False) -> Failure:
    """An exception as it is recorded: its type, its text, where it came from; without the job's secrets."""
    kind = type(error)
    is_known = kind.__module__ in ("builtins", "perdure.errors", "perdure.worker.signals")
    name = kind.__qualname__ if is_known else f"{kind.__module__}.{kind.__qualname__}"
    _keep_for_the_log(task, error)
    return Failure(task.ctx.fit(name), _message_of(task, error), _traceback(task, error), permanent)


def _keep_for_the_log(task: Assignment, error: BaseException) -> None:
    if task.claim.secrets is None:
        task.ctx.exc_info = type(error), error, from_users_code(error)


def _message_of(task: Assignment, error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - a broken __str__ must not hide the failure
        text = f"<{type(error).__name__} whose text cannot be read>"
    return shortened(task.ctx.fit(text), MESSAGE_LIMIT)


def _traceback(task: Assignment, error: BaseException) -> str | None:
    try:
        text = "".join(traceback.format_exception(type(error), error, from_users_code(error)))
    except Exception:  # noqa: BLE001 - as above
        return None
    return shortened(task.ctx.fit(text), TRACEBACK_LIMIT)


def from_users_code(error: BaseException, called_through: str = "contextlib") -> TracebackType | None:
    """Its traceback without Perdure's frames above the user's code, which explain nothing. None: no others."""
    at, ours = error.__traceback__, ("perdure", called_through)
    while at is not None and str(at.tb_frame.f_globals.get("__name__")).partition(".")[0] in ours:
        at = at.tb_next
    return at


def _enter(task: Assignment) -> None:
    task.ctx.started_ns = time.perf_counter_ns()
    entered(task.ctx)


def _ended(task: Assignment, report: Report) -> Ended:
    return Ended(task.ctx, report, task.ctx.stats(), task.ctx.closed)
