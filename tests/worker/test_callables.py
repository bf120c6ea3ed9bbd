"""What may be a handler besides a plain function and a coroutine function, and what it may return."""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import pytest

from perdure import (
    Cancel,
    Fail,
    Job,
    JobContext,
    KindError,
    Perdure,
    Retry,
    RetryAfter,
    Skip,
    Snooze,
    State,
    current,
)
from perdure.worker.signals import Signal
from perdure.worker.worker import EXIT_CLEAN
from tests.worker.bodies import SORTS, declared, last_run
from tests.worker.patience import eventually


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator as they are written most often: it does not care whether the function is a coroutine function."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def bridged(function: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
    """A decorator that makes a plain function of a coroutine function."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return asyncio.run(function(*args, **kwargs))

    return wrapper


async def add(first: int, second: int = 1) -> int:
    await asyncio.sleep(0)
    return first + second


def add_plainly(first: int, second: int = 1) -> int:
    return first + second


def add_later(first: int, second: int = 1) -> Coroutine[Any, Any, int]:
    return add(first, second)


class Future:
    def __init__(self, value: int) -> None:
        self.value = value

    def __await__(self) -> Generator[Any, None, int]:
        yield from asyncio.sleep(0).__await__()
        return self.value


def add_in_future(first: int, second: int = 1) -> Awaitable[int]:
    return Future(first + second)


async def add_twice_removed(first: int, second: int = 1) -> Any:
    return add(first, second)


class Adder:
    """With attributes that a kind has, too."""

    def __init__(self, second: int) -> None:
        self.second = second
        self.name = self.version = self.codec = self.enqueue = "mine"

    def __call__(self, first: int) -> int:
        return first + self.second

    def method(self, first: int) -> int:
        return first + self.second

    async def coroutine(self, first: int) -> int:
        return await add(first, self.second)

    @logged
    def wrapped(self, first: int) -> int:
        return first + self.second

    @classmethod
    def of_class(cls, first: int) -> int:
        return first + 1

    @staticmethod
    def static(first: int) -> int:
        return first + 1


class AsyncAdder:
    async def __call__(self, first: int, second: int = 1) -> int:
        return await add(first, second)


def with_context(second: int, ctx: JobContext, first: int) -> int:
    assert ctx.attempt == 1
    return first + second


HANDLERS: dict[str, Any] = {
    "a plain decorator around a coroutine function": logged(add),
    "two of them": logged(logged(add)),
    "a decorator that runs the coroutine itself": bridged(add),
    "a function that returns a coroutine": add_later,
    "a function that returns something to be awaited": add_in_future,
    "a coroutine function that returns a coroutine": add_twice_removed,
    "a partial of a plain function": partial(add_plainly, second=1),
    "a partial of a coroutine function": partial(add, second=1),
    "a partial of a partial": partial(partial(add_plainly), second=1),
    "a partial with an argument by position": partial(with_context, 1),
    "a bound method": Adder(1).method,
    "a bound coroutine method": Adder(1).coroutine,
    "a bound method under a decorator": Adder(1).wrapped,
    "a method of a class": Adder.of_class,
    "a static method": Adder.static,
    "a static method inside its class": vars(Adder)["static"],
    "an object": Adder(1),
    "an object whose call is a coroutine": AsyncAdder(),
    "a function with a cache": functools.lru_cache(add_plainly),
}


def ended(app: Perdure, kind: Any, *args: Any) -> Job:
    job = kind.enqueue(*args)
    assert app.worker().run(until_idle=True) == EXIT_CLEAN
    return app.existing(job)


@pytest.mark.parametrize("sort", HANDLERS)
def test_whatever_can_be_called_can_be_a_handler(app: Perdure, sort: str) -> None:
    kind = app.job(name="handler", retry=1)(HANDLERS[sort])
    job = ended(app, kind, 2)
    assert (job.state, job.result, job.payload, job.error) == ("completed", 3, {"first": 2}, None)


@pytest.mark.parametrize("sort", HANDLERS)
def test_a_drain_and_a_worker_agree_on_what_can_be_a_handler(app: Perdure, sort: str) -> None:
    kind = app.job(name="handler", retry=1)(HANDLERS[sort])
    with app.testing() as t:
        kind.enqueue(2)
        (job,) = t.drain(raise_errors=True)
    assert job.result == 3

    async def in_a_loop() -> Job:
        with app.testing() as t:
            await kind.aenqueue(2)
            (job,) = await t.adrain(raise_errors=True)
            return job

    assert asyncio.run(in_a_loop()).result == 3


@pytest.mark.parametrize("sort", HANDLERS)
def test_its_arguments_are_checked_as_those_of_a_function(app: Perdure, sort: str) -> None:
    kind = app.job(name="handler")(HANDLERS[sort])
    for wrong in ({}, {"first": "two"}, {"first": 1, "third": 1}):
        with pytest.raises(Exception, match="payload_invalid"):
            app.enqueue("handler", wrong)
    assert repr(kind).startswith("<Kind handler version 1 from ")
    assert "test_callables.py" in kind.place


def test_an_object_does_not_change_what_its_kind_is(app: Perdure) -> None:
    kind = app.job(name="handler")(Adder(1))
    assert (kind.name, kind.version, kind.enqueue(1).kind) == ("handler", 1, "handler")


def test_a_name_comes_from_the_function_or_has_to_be_given(app: Perdure) -> None:
    assert app.job(logged(add)).name == "add"
    assert app.job(Adder(1).method).name == "method"
    assert app.job(vars(Adder)["static"]).name == "static"
    for nameless in (partial(add, 1), Adder(1), lambda: None):
        with pytest.raises(KindError, match=r"give it one with app\.job\(name=") as raised:
            app.job(nameless)
        assert raised.value.code == "kind_invalid"


def test_two_partials_of_one_function_are_two_kinds(app: Perdure) -> None:
    one = app.job(name="one")(partial(add_plainly, second=1))
    with pytest.raises(KindError, match="kind_duplicate"):
        app.job(name="one")(partial(add_plainly, second=2))
    assert app.kinds.get("one") is one
    app.job(name="one")(partial(add_plainly, second=1))  # a reload


def _generator(x: int) -> Iterator[int]:
    yield x


async def _async_generator(x: int) -> AsyncIterator[int]:
    yield x


class Yielding:
    def __call__(self, x: int) -> Iterator[int]:
        yield x


@pytest.mark.parametrize(
    ("thing", "told"),
    [
        (_generator, "is a generator"),
        (_async_generator, "is a generator"),
        (partial(_generator, 1), "is a generator"),
        (Yielding(), "is a generator"),
        (vars(Adder)["of_class"], "declare it below the class"),
        (Adder, "a kind is made of a function, not of <class"),
        ("text", "a kind is made of a function, not of 'text'"),
    ],
)
def test_what_cannot_be_a_handler_is_refused_when_it_is_declared(app: Perdure, thing: Any, told: str) -> None:
    with pytest.raises(KindError) as raised:
        app.job(name="handler")(thing)
    assert told in raised.value.message
    assert raised.value.code == "kind_invalid"
    assert app.kinds.find("handler") is None


# -- a coroutine that a plain function has returned ------------------------------------------------------------------


def test_it_runs_on_the_event_loop_of_the_coroutines_and_inside_of_its_run(app: Perdure) -> None:
    @app.job(retry=1)
    async def real() -> int:
        return threading.get_ident()

    @app.middleware
    @contextmanager
    def around(ctx: JobContext) -> Iterator[None]:
        steps.append("before")
        yield
        steps.append("after")

    steps: list[str] = []

    @logged
    async def handler(ctx: JobContext) -> tuple[int, bool]:
        ctx.log.info("inside")
        steps.append("inside")
        return threading.get_ident(), current() is ctx

    kind: Any = app.job(retry=1)(handler)
    jobs = real.enqueue(), kind.enqueue()
    app.worker(concurrency=1).run(until_idle=True)

    (one, two) = (app.existing(job).result for job in jobs)
    assert two == [one, True]
    assert steps == ["before", "after", "before", "inside", "after"]
    assert [line.message for line in app.logs(jobs[1])] == ["inside"]


def test_its_error_is_the_runs_with_the_traceback_of_the_handler(app: Perdure) -> None:
    @logged
    async def handler() -> None:
        raise KeyError("lost")

    job = ended(app, app.job(retry=1)(handler))
    run = last_run(app, job)
    assert (job.state, run.error_type) == ("failed", "KeyError")
    assert run.row.traceback is not None
    assert "test_callables.py" in run.row.traceback
    assert "perdure/worker" not in run.row.traceback


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_it_cannot_end_the_worker(app: Perdure, error: BaseException) -> None:
    @logged
    async def handler() -> None:
        raise error

    job = ended(app, app.job(retry=1)(handler))
    assert (job.state, last_run(app, job).error_type) == ("failed", type(error).__name__)


def _waiting(begun: threading.Event, said: list[str]) -> Any:
    @logged
    async def handler() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            said.append("tidied up")

    return handler


def test_it_is_cancelled_when_its_time_is_over(app: Perdure) -> None:
    said: list[str] = []
    kind = app.job(name="handler", retry=1, timeout=0.05)(_waiting(threading.Event(), said))
    job = ended(app, kind)
    assert (last_run(app, job).state, said) == ("timed_out", ["tidied up"])


def test_it_is_cancelled_with_its_job(app: Perdure) -> None:
    begun, said = threading.Event(), list[str]()
    kind: Any = app.job(name="handler", retry=1)(_waiting(begun, said))
    with app.worker(concurrency=1).running():
        job = kind.enqueue()
        assert begun.wait(60)
        app.cancel(job)
        eventually(lambda: app.existing(job).state is State.CANCELLED)
        again = app.job(name="after")(add_plainly).enqueue(1)
        eventually(lambda: app.existing(again).state is State.COMPLETED)
    assert said == ["tidied up"]


def test_a_shutdown_releases_its_job(app: Perdure) -> None:
    begun, said = threading.Event(), list[str]()
    kind: Any = app.job(name="handler", retry=3)(_waiting(begun, said))
    with app.worker(concurrency=1, grace_s=0.01).running():
        job = kind.enqueue()
        assert begun.wait(60)
    assert (app.existing(job).state, last_run(app, job).state) == ("queued", "released")
    assert said == ["tidied up"]


def test_its_result_is_of_the_type_that_the_function_says_it_gives(app: Perdure) -> None:
    def handler(text: bool) -> Coroutine[Any, Any, int]:
        async def give() -> Any:
            return "five" if text else 5

        return give()

    kind: Any = app.job(retry=1)(handler)
    assert ended(app, kind, False).result == 5
    assert ended(app, kind, True).error_type == "InvalidPayload"


def test_an_asynchronous_middleware_around_a_plain_function_says_what_to_do(app: Perdure) -> None:
    @app.middleware
    @asynccontextmanager
    async def around(ctx: JobContext) -> AsyncIterator[None]:
        yield

    job = ended(app, app.job(name="handler", retry=1)(logged(add)), 1)
    assert "async def" in str(job.error)


def test_the_copy_of_a_coroutine_that_forks_ends_when_it_has_returned(app: Perdure) -> None:
    reading, writing = os.pipe()

    @app.job(retry=1)
    async def handler() -> int:
        if os.fork():
            os.close(writing)
        return os.getpid()

    job = ended(app, handler)
    assert os.read(reading, 1) == b""  # the end: the copy is gone
    os.close(reading)
    assert job.result == os.getpid()


# -- signals that are returned ---------------------------------------------------------------------------------------

RETURNED: dict[str, Callable[[], object]] = {
    "snooze": lambda: Snooze(60),
    "retry_after": lambda: RetryAfter(60),
    "cancel": lambda: Cancel("no more"),
    "cancel_class": lambda: Cancel,
    "skip": lambda: Skip("nothing to do"),
    "fail": lambda: Fail("never"),
}


def _facts(app: Perdure, job: Job) -> tuple[object, ...]:
    seen, run = app.existing(job), last_run(app, job)
    assert run.finished_at is not None
    delay = None if seen.is_final else seen.run_at - run.finished_at
    return seen.state, seen.attempts, seen.error, seen.result, run.state, run.error_type, run.error_message, delay


@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.parametrize("what", RETURNED)
def test_a_signal_that_is_returned_means_what_it_means_raised(app: Perdure, sort: str, what: str) -> None:
    make = RETURNED[what]

    def returns(_: JobContext) -> Any:
        return make()

    def raises(_: JobContext) -> Any:
        raise make()  # type: ignore[misc]

    facts: list[tuple[object, ...]] = []
    for body in (raises, returns):
        job = declared(app, sort, body, retry=Retry(3, jitter=0)).enqueue()
        app.worker().run(until_idle=True)
        facts.append(_facts(app, job))
    assert facts[0] == facts[1]
    assert facts[0][0] != "completed"


@pytest.mark.parametrize("sort", SORTS)
def test_a_middleware_sees_a_returned_signal_as_raised(app: Perdure, sort: str) -> None:
    seen: list[BaseException] = []

    @app.middleware
    @contextmanager
    def around(ctx: JobContext) -> Iterator[None]:
        try:
            yield
        except Signal as signal:
            seen.append(signal)
            raise

    declared(app, sort, lambda _: Skip("why")).enqueue()
    app.worker().run(until_idle=True)
    assert [str(signal) for signal in seen] == ["why"]


@pytest.mark.parametrize("sort", SORTS)
def test_a_drain_takes_a_returned_signal_as_a_worker_does(app: Perdure, sort: str) -> None:
    kind = declared(app, sort, lambda _: Skip("why"))
    with app.testing() as t:
        kind.enqueue()
        (job,) = t.drain(raise_errors=True)
        assert (job.state, job.error) == ("skipped", "why")
