"""`with app.testing() as t:` replaces parts of the app for the block and gives a `Kit`. Called by `app`; runs jobs with
`drain`, makes contexts with `context`. See docs/testing.md."""

from __future__ import annotations

import inspect
import random
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from datetime import datetime, timedelta
from functools import partial, wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

from perdure.checks import check_time, check_whole
from perdure.clock import ManualClock, Micros, SystemClock, to_datetime, to_micros
from perdure.errors import InvalidInput, InvalidPayload, PerdureError, TransactionError, shown
from perdure.ids import IdFactory, NodeId
from perdure.job.states import LIVE
from perdure.job.views import Job
from perdure.kind import Kind
from perdure.names import public
from perdure.store.open import open_borrowed, open_borrowed_async, open_store, without_password
from perdure.store.protocols import Store, StoreSettings
from perdure.store.rows import JobFilter
from perdure.store.store import SqlStore
from perdure.store.tables import tables
from perdure.store.transaction import is_async, named
from perdure.testing.context import KitContext, nameless, new_context
from perdure.testing.drain import Drain, HandlerLoop, begin_run, run_here, until_ended
from perdure.worker.capture import capturing
from perdure.worker.context import current
from perdure.worker.run import AnyKind
from perdure.worker.services import in_event_loop
from perdure.worker.worker import finish_in_thread, is_at_work

if TYPE_CHECKING:
    from perdure.app import Perdure
    from perdure.schedule.scheduler import Scheduler


INNER = frozenset(("call", "end"))
"""What a kit has for its block; users are not shown it."""

P = ParamSpec("P")
T = TypeVar("T")


class KitClock(ManualClock):
    """The wall clock does not move by itself; boottime does, so that a wait with a time-out ends."""

    def __init__(self, start: Micros) -> None:
        super().__init__(start)
        self._began = time.monotonic()
        self._thread = threading.get_ident()

    def boottime(self) -> float:
        return super().boottime() + time.monotonic() - self._began

    def wait(self, seconds: float) -> None:
        """Really sleeps, for threads other than the test's. The test itself, or a handler, would wait for itself."""
        if threading.get_ident() == self._thread or current() is not None:
            raise PerdureError(
                "no job runs while you wait inside app.testing(); call t.drain() first, then wait for the job",
                code="testing_wait",
            )
        time.sleep(seconds)


class KitTicks:
    """Milliseconds for ids: the manual clock's, and ahead of it only if one millisecond cannot hold all ids."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._least = 0

    def now(self) -> int:
        return max(self._clock.now() // 1_000, self._least)

    def tick(self) -> None:
        self._least = self.now() + 1


def kit_ids(clock: ManualClock) -> IdFactory:
    """The same start gives the same ids in the same order: a test that prints them always prints the same."""
    ticks = KitTicks(clock)
    return IdFactory(ticks.now, random.Random(0).randbytes, ticks.tick)


KindLike = str | AnyKind

LINES = 20
"""The most jobs listed in a message."""


def kind_of(app: Perdure, kind: object) -> AnyKind:
    """The kind of this name or function. An unknown name is refused: a misspelt name must not pass a test."""
    if isinstance(kind, str):
        return app.kinds.get(kind)
    if not isinstance(kind, Kind):
        raise InvalidInput(f"expected a function under @app.job, or a kind's name, not {shown(kind)}")
    known = cast("AnyKind", kind)
    if app.kinds.find(known.name) is not known:
        raise InvalidInput(f"{known!r} is no kind of this app; test it with the app that declares it")
    return known


def jobs_of(app: Perdure, kind: AnyKind | None, arguments: Mapping[str, object]) -> list[Job]:
    """In the order they were enqueued, in any state; without retries that were made as new jobs."""
    __tracebackhide__ = True
    found = app.jobs() if kind is None else app.jobs(kind=kind.name)
    jobs = [job for job in found if job.retry_of is None][::-1]
    if kind is None or not arguments:
        return jobs
    signature = kind.codec.signature
    if unknown := signature.unknown(arguments):
        raise signature.refusal(unknown)
    return [job for job in jobs if _fits(app, kind, job, arguments)]


def _fits(app: Perdure, kind: AnyKind, job: Job, wanted: Mapping[str, object]) -> bool:
    """Each argument is compared as the handler gets it, and as it is stored: a model may be given as a dict."""
    given, stored = _arguments(app, kind, job), job.payload or {}
    return all(
        (name in given and bool(value == given[name])) or (name in stored and bool(value == stored[name]))
        for name, value in wanted.items()
    )


def _arguments(app: Perdure, kind: AnyKind, job: Job) -> dict[str, object]:
    """Decoded and upgraded, with secrets and defaults. Empty if the stored ones do not fit the function any more."""
    row = app.store.row(job.row.id)
    if row is None:
        return {}
    try:
        args, kwargs = kind.load(row.payload, row.secrets, row.kind_version)
        return _defaults(kind) | kind.codec.bind(args, kwargs)
    except InvalidPayload:
        return {}


def _defaults(kind: AnyKind) -> dict[str, object]:
    parameters = inspect.signature(inspect.unwrap(kind.function)).parameters.values()
    return {each.name: each.default for each in parameters if each.default is not each.empty}


# -- messages --------------------------------------------------------------------------------------------------------


def not_among(app: Perdure, kind: AnyKind, arguments: Mapping[str, object]) -> str:
    """Why `assert_enqueued` fails: what was expected, and what there is."""
    wanted = f" with {_call(arguments)}" if arguments else ""
    of_kind = jobs_of(app, kind, {})
    if of_kind:
        return f"no {kind.name} job was enqueued{wanted}; these were:\n{_lines(of_kind)}"
    others = Counter(job.kind for job in jobs_of(app, None, {}))
    counts = ", ".join(f"{name} ({times})" for name, times in sorted(others.items()))
    return f"no {kind.name} job was enqueued{wanted}; " + (f"others were: {counts}" if counts else "nothing was at all")


def among(kind: AnyKind | None, arguments: Mapping[str, object], found: Sequence[Job]) -> str:
    """Why `assert_not_enqueued` fails."""
    what = "jobs were" if kind is None else f"{kind.name} was"
    wanted = f" with {_call(arguments)}" if arguments else ""
    return f"{what} enqueued{wanted}:\n{_lines(found)}"


def _lines(jobs: Sequence[Job]) -> str:
    """Without secrets: a job does not show them."""
    lines = [f"  {job.kind}({_call(job.payload or {})})  {job.state}" for job in jobs[:LINES]]
    if len(jobs) > LINES:
        lines.append(f"  … and {len(jobs) - LINES} more")
    return "\n".join(lines)


def _call(arguments: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={shown(value)}" for name, value in arguments.items())


RUNS = 1_000
"""After so many runs a drain assumes an endless loop."""


def _awaited(ask: Callable[Concatenate[Kit, P], T]) -> Callable[Concatenate[Kit, P], Coroutine[Any, Any, T]]:
    """A method that asks the database, for coroutines."""

    @wraps(ask)
    async def run(kit: Kit, /, *args: P.args, **kwargs: P.kwargs) -> T:
        __tracebackhide__ = True
        return await kit.call(partial(ask, kit, *args, **kwargs))

    return run


class Kit:
    """Runs an app's jobs in a test, moves its clock, and shows what was enqueued. Usable until its block ends."""

    def __init__(self, app: Perdure, clock: ManualClock, state: Mapping[str, Any], *, in_threads: bool) -> None:
        """`in_threads`: its database is an asynchronous connection, and threads can wait for that."""
        self.app = app
        """The app under test, on its temporary database."""
        self._clock = clock
        self._state = state
        self._loop = HandlerLoop()
        self._is_draining = self._is_over = False
        self._in_threads = in_threads

    # -- running -----------------------------------------------------------------------------------------------------

    def drain(self, *, raise_errors: bool = False, limit: int = RUNS) -> list[Job]:
        """Run everything that is due now, one job after the other, until nothing is queued or due.

        Returns the jobs that ran, in the order of their first run, as they are now. Each attempt is claimed and
        recorded as by a worker; jobs that are due later need `advance`. With `raise_errors` the first exception that
        fails an attempt is raised, after it is recorded. After `limit` runs an endless loop is assumed.
        """
        __tracebackhide__ = True
        if in_event_loop() or self._in_threads:
            raise PerdureError(
                "t.drain() cannot run coroutines inside a running event loop; write `await t.adrain()` here",
                code="drain_in_loop",
            )
        with self._draining(limit) as drain:
            while (task := drain.next()) is not None:
                ended = run_here(task, self._loop)
                drain.ended(ended)
                drain.raise_from(ended, errors=raise_errors)
        return drain.jobs()

    async def adrain(self, *, raise_errors: bool = False, limit: int = RUNS) -> list[Job]:
        """`drain` inside a running event loop: coroutines are awaited on it, other functions run in a thread."""
        __tracebackhide__ = True
        async with self._adraining(limit) as drain:
            while (task := await self.call(drain.next)) is not None:
                run = begin_run(task)
                try:
                    await until_ended(task, run)
                finally:
                    if run.done():
                        drain.ended(run.result())
                drain.raise_from(run.result(), errors=raise_errors)
        return await self.call(drain.jobs)

    @contextmanager
    def _draining(self, limit: int) -> Generator[Drain, None, None]:
        with self._one_drain(limit) as drain, drain:
            yield drain

    @asynccontextmanager
    async def _adraining(self, limit: int) -> AsyncGenerator[Drain, None]:
        with self._one_drain(limit) as drain:
            await self.call(drain.__enter__)
            try:
                yield drain
            finally:
                await self.call(drain.__exit__)

    @contextmanager
    def _one_drain(self, limit: int) -> Generator[Drain, None, None]:
        self._check_open()
        check_whole(limit, "limit", code="limit_invalid")
        if self._is_draining:
            raise PerdureError(
                "t.drain() inside another one: the outer one runs everything that is due, so remove this one",
                code="drain_nested",
            )
        self._is_draining = True
        try:
            with capturing():
                yield Drain(self.app, self._state, limit, read_ahead=self._in_threads)
        finally:
            self._is_draining = False

    # -- time --------------------------------------------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        """The app's time."""
        return to_datetime(self._clock.now())

    def advance(
        self,
        by: timedelta | None = None,
        /,
        *,
        to: datetime | None = None,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
    ) -> datetime:
        """Let time pass, or go to an instant: `t.advance(minutes=5)`, `t.advance(to=job.run_at)`. Returns the new time.

        Runs nothing, but schedules make their jobs: each planned instant on the way is taken at its own time. While
        the job of an instant waits for `drain`, the next ones are skipped, unless the schedule's overlap= says else.
        """
        self._check_open()
        passed = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        if by is not None:
            if not isinstance(by, timedelta):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise InvalidInput(f"advance takes a timedelta, or days=, hours=, minutes=, seconds=; not {shown(by)}")
            passed += by
        if to is not None:
            passed += timedelta(microseconds=to_micros(to) - self._clock.now())
        if passed < timedelta():
            raise InvalidInput(
                f"time cannot pass backwards: advance() was given {passed.total_seconds()} s; give a later time",
                code="clock_backwards",
            )
        self._pass(Micros(self._clock.now() + passed // timedelta(microseconds=1)))
        return self.now

    aadvance = _awaited(advance)
    """`advance` for coroutines inside `async with app.testing(tx=…)`, where statements have to be awaited."""

    def _pass(self, until: Micros) -> None:
        """Stop at every planned instant on the way."""
        scheduler = self._scheduler()
        while scheduler is not None and (at := self.app.store.next_trigger()) is not None and at <= until:
            self._move_to(max(at, self._clock.now()))
            scheduler.fire(None)
        self._move_to(until)

    def _move_to(self, at: Micros) -> None:
        self._clock.advance(milliseconds=(at - self._clock.now()) / 1_000)

    def _scheduler(self) -> Scheduler | None:
        """None: there are no schedules."""
        parts = self.app.parts()
        if not parts.declared() and self.app.store.next_trigger() is None:
            return None
        from perdure.schedule.scheduler import Scheduler  # loads cronsim and the time zones

        scheduler = Scheduler(parts.store, parts.clock, parts.ids, parts.owner, parts.declared)
        scheduler.declare(NodeId(parts.ids.new()))
        return scheduler

    # -- what was enqueued -------------------------------------------------------------------------------------------

    def enqueued(self, kind: KindLike | None = None, /, **arguments: Any) -> list[Job]:
        """The jobs enqueued in this block, oldest first, in any state: all, or of one kind, or of one kind with these
        arguments. An argument that was not passed has its default."""
        __tracebackhide__ = True
        self._check_open()
        return jobs_of(self.app, self._kind(kind, arguments), arguments)

    def assert_enqueued(self, kind: KindLike, /, **arguments: Any) -> Job:
        """Fail unless such a job was enqueued, once or more; returns the last one. Other arguments may be anything."""
        __tracebackhide__ = True
        found = self.enqueued(kind, **arguments)
        if not found:
            raise AssertionError(not_among(self.app, kind_of(self.app, kind), arguments))
        return found[-1]

    def assert_not_enqueued(self, kind: KindLike | None = None, /, **arguments: Any) -> None:
        """Fail if such a job was enqueued; without a kind, if any was."""
        __tracebackhide__ = True
        found = self.enqueued(kind, **arguments)
        if found:
            raise AssertionError(among(self._kind(kind, arguments), arguments, found))

    aenqueued = _awaited(enqueued)
    """`enqueued` for coroutines inside `async with app.testing(tx=…)`."""
    aassert_enqueued = _awaited(assert_enqueued)
    """`assert_enqueued` for coroutines inside `async with app.testing(tx=…)`."""
    aassert_not_enqueued = _awaited(assert_not_enqueued)
    """`assert_not_enqueued` for coroutines inside `async with app.testing(tx=…)`."""

    def _kind(self, kind: object, arguments: Mapping[str, Any] | None = None) -> Any:
        if kind is None and arguments:
            raise InvalidInput("arguments belong to a kind; name it first, as in t.enqueued(send, to='a@x.org')")
        return None if kind is None else kind_of(self.app, kind)

    # -- calling a handler directly ----------------------------------------------------------------------------------

    def context(
        self,
        kind: KindLike | None = None,
        /,
        *,
        attempt: int = 1,
        params: Mapping[str, Any] | None = None,
        principal: str | None = None,
        state: Mapping[str, Any] | None = None,
        stop_after: int | None = None,
    ) -> KitContext:
        """A context to call a handler with: `send(t.context(attempt=2), to="a@x.org")`. Writes nothing.

        `state` is what a worker's lifespan would give, by default that of the block. After `stop_after` reads of
        `should_stop` or calls of `checkpoint()` the run is asked to stop; 0: at the first.
        """
        self._check_open()
        check_whole(attempt, "attempt")
        if stop_after is not None:
            check_whole(stop_after, "stop_after", 0)
        known: AnyKind = self._kind(kind) or nameless(self.app)
        plan = known.options(params=None if params is None else dict(params), principal=principal).draft({}).plan
        return new_context(self.app, known, plan, attempt, self._state if state is None else state, stop_after)

    # -- for the block, and for what is awaited ----------------------------------------------------------------------

    async def call(self, ask: Callable[[], T]) -> T:
        """Ask the database from a coroutine: here, or in a thread that waits for the event loop."""
        return await finish_in_thread(ask) if self._in_threads else ask()

    def __dir__(self) -> list[str]:
        return public(super().__dir__(), INNER)

    def end(self) -> None:
        self._is_over = True
        self._loop.close()

    def __repr__(self) -> str:
        return f"<Kit for {self.app!r} at {self.now:%Y-%m-%d %H:%M:%S} UTC>"

    def _check_open(self) -> None:
        if self._is_over:
            raise PerdureError(
                "the app.testing() block of this kit has ended and its database is gone; look at jobs inside the block",
                code="testing_over",
            )


TEST_MARK = "perdure testing"
"""A database with this mark is for tests alone, and is emptied."""


def _in_file(app: Perdure, stack: ExitStack) -> tuple[str, Store]:
    """The app on a temporary file. Like its own, as far as a test can see; it need not survive a power cut, and may be
    anywhere."""
    folder = stack.enter_context(TemporaryDirectory(prefix="perdure-test-", ignore_cleanup_errors=True))
    path = str(Path(folder, "jobs.db"))
    return path, open_store(path, _settings(app)._replace(durability="normal", allow_network_filesystem=True))


def _settings(app: Perdure) -> StoreSettings:
    return app.config.store_settings()._replace(auto_migrate=True)


def _at(app: Perdure, url: str, stack: ExitStack) -> tuple[str, Store]:
    """The app on a database for tests, which is empty at the beginning, and afterwards."""
    store = open_store(url, _settings(app))
    stack.callback(store.close)
    store.upgrade()
    assert isinstance(store, SqlStore)
    _empty(store, url)
    stack.callback(_empty, store, url)
    return url, store


def _empty(store: SqlStore, url: str) -> None:
    """Remove everything; but not from a database that somebody uses for more than tests."""
    now = SystemClock().now()
    if store.lock_holder(TEST_MARK, now) is None and store.jobs(JobFilter(), None, 1).items:
        raise PerdureError(
            f"{without_password(url)} has jobs that no test has made, and app.testing(url=…) empties its database; give"
            " the URL of one that is for tests alone",
            code="testing_not_empty",
        )
    with store.transaction():
        store.empty(tables())
        store.take_lock(TEST_MARK, "app.testing", now, FOR_EVER_US)


FOR_EVER_US = 100 * 365 * 86_400 * 1_000_000


def _with_tables(store: Store) -> Store:
    """A store inside a transaction of the test's, where there is nothing that a test has not made."""
    store.upgrade()
    if any(store.jobs(JobFilter(state=state), None, 1).items for state in LIVE):
        raise PerdureError(
            "the database of app.testing(tx=…) has jobs that wait or run, and t.drain() would run them; give a"
            " connection to a database that is for tests alone",
            code="testing_not_empty",
        )
    return store


_EXCHANGED = ("_url", "store", "clock", "ids", "kit")
"""Attributes of the app that are replaced. Some may be missing: they are made on first use."""


class KitBlock:
    """What `app.testing()` gives, for `with` or `async with`: the app on a temporary file, at a URL or inside a
    transaction, with a manual clock, for all threads, until the block ends.

    The app's own database is not opened, and connections that the app has open are not closed.
    """

    def __init__(
        self, app: Perdure, start: datetime | None, state: Mapping[str, Any] | None, url: str | None, tx: object
    ) -> None:
        if url is not None and tx is not None:
            raise InvalidInput("app.testing takes url= or tx=, not both: a connection leads to its own database")
        self._app = app
        self._start = SystemClock().now() if start is None else check_time(start, "start")
        self._state: Mapping[str, Any] = {} if state is None else state
        self._url = url
        self._tx = tx
        self._end = ExitStack()

    def __enter__(self) -> Kit:
        if is_async(self._tx):
            raise TransactionError(
                f"app.testing(tx=…) got {named(self._tx)}, whose statements have to be awaited; write async with"
                " app.testing(tx=…) as t, and await t.adrain()",
                code="tx_async",
            )
        _refuse(self._app)
        with ExitStack() as stack:
            return self._begin(*self._place(stack), stack.pop_all(), in_threads=False)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end.__exit__(kind, error, at)

    async def __aenter__(self) -> Kit:
        if not is_async(self._tx):
            return self.__enter__()
        _refuse(self._app)
        store = await open_borrowed_async(self._tx)
        await finish_in_thread(partial(_with_tables, store))
        return self._begin(vars(self._app).get("_url"), store, ExitStack(), in_threads=True)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, at)

    def _place(self, stack: ExitStack) -> tuple[str | None, Store]:
        if self._tx is not None:
            return vars(self._app).get("_url"), _with_tables(open_borrowed(self._tx))
        return _in_file(self._app, stack) if self._url is None else _at(self._app, self._url, stack)

    def _begin(self, place: str | None, store: Store, stack: ExitStack, *, in_threads: bool) -> Kit:
        app, clock = self._app, KitClock(self._start)
        self._end = stack
        stack.callback(store.close)
        kit = Kit(app, clock, self._state, in_threads=in_threads)
        before = {name: vars(app)[name] for name in _EXCHANGED if name in vars(app)}
        stack.callback(_put_back, app, before)
        stack.callback(kit.end)  # runs first: what coroutines write when they are cancelled goes to the temporary file
        vars(app).update(_url=place, store=store, clock=clock, ids=kit_ids(clock), kit=kit)
        return kit


def _put_back(app: Perdure, before: Mapping[str, Any]) -> None:
    vars(app).update(before)
    for name in set(_EXCHANGED) - before.keys():
        vars(app).pop(name, None)


def _refuse(app: Perdure) -> None:
    if app.kit is not None:
        raise PerdureError(
            "app.testing() is already on for this app; use the kit of that block (with pytest: the `perdure` fixture is"
            " such a block, so do not open your own)",
            code="testing_nested",
        )
    if is_at_work(app.kinds):
        raise PerdureError(  # the worker would run the same jobs, or lose its database
            "a worker of this app runs in this process; end it first, and run jobs with t.drain()",
            code="testing_worker",
        )
