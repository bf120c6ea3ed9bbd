"""`Kit`: what `with app.testing() as t:` gives. Made by `block`; drives `drain`, asks `enqueued`, makes contexts.

See docs/testing.md for how it is used.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from perdure.clock import ManualClock, to_datetime, to_micros
from perdure.errors import InvalidInput, InvalidOption, PerdureError, shown
from perdure.job.job import Job
from perdure.testing.context import KitContext, new_context
from perdure.testing.drain import Drain
from perdure.testing.enqueued import KindLike, among, jobs_of, kind_of, not_among
from perdure.testing.running import HandlerLoop, begin_run, in_a_loop, run_here, until_ended
from perdure.worker.capture import capturing

if TYPE_CHECKING:
    from perdure.app import Perdure

RUNS = 1_000
"""How many runs a drain makes before it takes them for an endless loop."""


class Kit:
    """Runs an app's jobs in a test, moves its clock, and tells what was enqueued. Good until its block ends."""

    def __init__(self, app: Perdure, clock: ManualClock, state: Mapping[str, Any]) -> None:
        self.app = app
        """The app under test, on its temporary database."""
        self._clock = clock
        self._state = state
        self._loop = HandlerLoop()
        self._is_draining = self._is_over = False

    # -- running -----------------------------------------------------------------------------------------------------

    def drain(self, *, raise_errors: bool = False, limit: int = RUNS) -> list[Job]:
        """Run everything that is due, here and now, one job after the other, until nothing is queued or due.

        Answers the jobs that ran, in the order they first did, as they stand now. Each attempt is claimed and recorded
        as a worker does it; what is to come later stays for `advance`. With `raise_errors` the first exception that
        fails an attempt is raised, once that is recorded. After `limit` runs it is taken for an endless loop.
        """
        __tracebackhide__ = True
        if in_a_loop():
            raise PerdureError(
                "t.drain() cannot run coroutines inside an event loop that is running already; write"
                " `await t.adrain()` here",
                code="drain_in_loop",
            )
        with self._draining(limit) as drain:
            while (task := drain.next()) is not None:
                ended = run_here(task, self._loop)
                drain.ended(ended)
                drain.raise_from(ended, errors=raise_errors)
        return drain.jobs()

    async def adrain(self, *, raise_errors: bool = False, limit: int = RUNS) -> list[Job]:
        """`drain` inside a running event loop: coroutines are awaited on it, plain functions run in a thread."""
        __tracebackhide__ = True
        with self._draining(limit) as drain:
            while (task := drain.next()) is not None:
                run = begin_run(task)
                try:
                    await until_ended(task, run)
                finally:
                    if run.done():
                        drain.ended(run.result())
                drain.raise_from(run.result(), errors=raise_errors)
        return drain.jobs()

    @contextmanager
    def _draining(self, limit: int) -> Generator[Drain, None, None]:
        self._check_open()
        if type(limit) is not int or limit < 1:
            raise InvalidOption(f"limit must be a whole number from 1 on, not {shown(limit)}", code="limit_invalid")
        if self._is_draining:
            raise PerdureError(
                "t.drain() inside another one: the one under way runs everything that is due, so leave this one out",
                code="drain_nested",
            )
        self._is_draining = True
        try:
            with Drain(self.app, self._state, limit) as drain, capturing():
                yield drain
        finally:
            self._is_draining = False

    # -- time --------------------------------------------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        """What time it is for the app."""
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
        """Let time pass, or jump to an instant: `t.advance(minutes=5)`, `t.advance(to=job.run_at)`. Runs nothing.

        Answers the new time.
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
            raise InvalidInput(f"time cannot pass backwards, as by {passed.total_seconds()} s", code="clock_backwards")
        self._clock.advance(days=passed.days, seconds=passed.seconds, milliseconds=passed.microseconds / 1_000)
        return self.now

    # -- what was enqueued -------------------------------------------------------------------------------------------

    def enqueued(self, kind: KindLike | None = None, /, **arguments: Any) -> list[Job]:
        """The jobs enqueued in this block, oldest first, whatever became of them: all, or of one kind, or of one kind
        with these arguments. An argument that was not passed counts with its default."""
        __tracebackhide__ = True
        self._check_open()
        return jobs_of(self.app, self._kind(kind, arguments), arguments)

    def assert_enqueued(self, kind: KindLike, /, **arguments: Any) -> Job:
        """Fail unless such a job was enqueued, however often; answers the last one. Other arguments may be anything."""
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

    def _kind(self, kind: object, arguments: Mapping[str, Any]) -> Any:
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

        `state` is what a worker's lifespan would give, by default that of the block. `stop_after` says how many looks
        at `should_stop` or `checkpoint()` pass before the run is asked to stop; 0: none.
        """
        self._check_open()
        return new_context(
            self.app,
            None if kind is None else kind_of(self.app, kind),
            attempt=attempt,
            params=params,
            principal=principal,
            state=self._state if state is None else state,
            stop_after=stop_after,
        )

    # -- for the block -----------------------------------------------------------------------------------------------

    def end(self) -> None:
        """The block is over."""
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
