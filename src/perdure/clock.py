"""Time as the rest of Perdure sees it: integer microseconds UTC from an injected clock.

Worker, store, scheduler and ids take a `Clock` or a `Micros`; this module calls only `errors`.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import NewType, Protocol

from perdure.errors import InvalidInput, InvalidOption

Micros = NewType("Micros", int)
"""An instant: whole microseconds since 1970-01-01 UTC. Negative before that."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_FIRST = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
_LAST = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND

_read_boottime: Callable[[], float] = time.monotonic
_read_boottime_ns: Callable[[], int] = time.monotonic_ns
if sys.platform == "linux":
    _read_boottime = partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    _read_boottime_ns = partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME)

ASK_EVERY_US = 60_000_000
"""How long a server's clock is taken to go as our boot clock does. Two that nobody corrects drift some 5 ms apart."""

TOLERATED_S = 1
"""How far a machine's wall clock may be from the server's before anybody is told."""


class Clock(Protocol):
    """Where time comes from. Every method may be called from any thread."""

    def now(self) -> Micros:
        """The wall clock. It can step, backwards too: never measure a duration with it."""
        ...

    def boottime(self) -> float:
        """Seconds from an arbitrary start. Never falls, and on Linux continues while the machine sleeps."""
        ...

    def wait(self, seconds: float) -> None:
        """Return after `seconds` on `boottime`; at once if that is zero or less."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now(self) -> Micros:
        return Micros(time.time_ns() // 1_000)

    def boottime(self) -> float:
        return _read_boottime()

    def wait(self, seconds: float) -> None:
        if seconds > 0:
            time.sleep(seconds)


class ServerClock(SystemClock):
    """The wall clock of a database server, which all machines that use it share.

    What the server said is carried on by the boot clock: a step of this machine's wall clock changes nothing here, nor
    does an outage. The server is asked at the first `now`, whenever a connection to it is opened, and about every
    minute with something that is sent anyway. Each answer bounds the time, and `now` is moved no further than that: it
    is wrong by no more than the shortest of these exchanges took, and what two clocks drift apart in a minute.
    """

    def __init__(self, ask: Callable[[], object], boot_ns: Callable[[], int] = _read_boottime_ns) -> None:
        """`ask` contacts the server if nobody has; whoever opens a connection tells what it says by `learn`."""
        self._ask = ask
        self._boot_ns = boot_ns
        self.ahead_us: int | None = None
        """By how much the server's wall clock is ahead of the boot clock of this machine. None: nobody has asked.
        Another process of the same machine may be told, and need not ask."""
        self._ask_at_ns = 0

    def now(self) -> Micros:
        """Raises what the store raises, if the server was never reached before and cannot be now."""
        ahead_us = self.ahead_us
        if ahead_us is None:
            self._ask()
            ahead_us = self.ahead_us
            assert ahead_us is not None, "a connection was opened, and nobody has learnt the server's time"
        return Micros(self._boot_ns() // 1_000 + ahead_us)

    @property
    def is_due(self) -> bool:
        """Whether the server should be asked again with what is sent next."""
        return self._boot_ns() >= self._ask_at_ns

    def boot_us(self) -> int:
        """To be read before the question is sent."""
        return self._boot_ns() // 1_000

    def learn(self, server: int, sent_us: int) -> None:
        """The server has just answered that its clock reads `server`, to a question sent at `sent_us`.

        It read its clock after that and before now, so it is ahead by what lies between these two. An estimate that
        does too is kept: a slow answer says little, and the time does not go to and fro.
        """
        here_us = self.boot_us()
        least, most = server - here_us, server - sent_us
        known = self.ahead_us
        self.ahead_us = (least + most) // 2 if known is None else min(max(known, least), most)
        self._ask_at_ns = (here_us + ASK_EVERY_US) * 1_000

    @property
    def complaint(self) -> str | None:
        """How far this machine's own wall clock is from the server's, in words. None: not far."""
        ahead_s = (super().now() - self.now()) / 1_000_000
        if abs(ahead_s) <= TOLERATED_S:
            return None
        side = "ahead of" if ahead_s > 0 else "behind"
        return f"this machine's is {abs(ahead_s):.1f} s {side} the server's"


async def asked(clock: Clock) -> None:
    """For coroutines that read the clock: a server that was never asked for the time is asked in a thread."""
    if isinstance(clock, ServerClock) and clock.ahead_us is None:
        from asyncio import to_thread

        await to_thread(clock.now)


class ManualClock:
    """A clock that moves only when a test moves it.

    `wait` blocks until another thread has advanced the clock far enough; `until_waiting` tells that thread when to do
    so. With a single thread nothing would ever end a wait.
    """

    def __init__(self, start: datetime | Micros) -> None:
        self._now = to_micros(start) if isinstance(start, datetime) else start
        self._elapsed = 0
        self._waiting = 0
        self._changed = threading.Condition()

    def now(self) -> Micros:
        return self._now

    def boottime(self) -> float:
        return self._elapsed / 1_000_000

    def wait(self, seconds: float) -> None:
        with self._changed:
            # Whole microseconds: 0.1 s + 0.2 s in floats would lie beyond an advance of 0.3 s and never end.
            end = self._elapsed + round(seconds * 1_000_000)
            self._waiting += 1
            self._changed.notify_all()
            try:
                self._changed.wait_for(lambda: self._elapsed >= end)
            finally:
                self._waiting -= 1

    def until_waiting(self, threads: int = 1) -> None:
        """Block until at least that many threads are inside `wait`, so that an advance cannot come too early."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting >= threads)

    def advance(
        self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0, milliseconds: float = 0
    ) -> None:
        """Let time pass: wall clock and boottime move together, and waits that are over end."""
        passed = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds)
        if passed < timedelta():
            raise InvalidInput(
                f"Time cannot pass backwards: advance() was given {passed.total_seconds()} s. "
                "To set the wall clock back, use step().",
                code="clock_backwards",
            )
        with self._changed:
            self._elapsed += passed // _MICROSECOND
            self._now = _shifted(self._now, passed)
            self._changed.notify_all()

    def step(self, *, seconds: float) -> None:
        """Set the wall clock forward or, if negative, back, as an operator or NTP would; boottime does not change."""
        with self._changed:
            self._now = _shifted(self._now, timedelta(seconds=seconds))


def _shifted(instant: Micros, by: timedelta) -> Micros:
    return Micros(instant + by // _MICROSECOND)


def to_micros(value: datetime) -> Micros:
    """The exact instant of an aware datetime in any zone. A naive datetime is refused, never guessed."""
    if value.utcoffset() is None:
        raise InvalidOption(
            f"The datetime {value.isoformat()} has no time zone, so it names no instant. "
            "Give it a tzinfo, for example datetime.now(timezone.utc).",
            code="naive_datetime",
        )
    micros = (value - _EPOCH) // _MICROSECOND
    if not _FIRST <= micros <= _LAST:
        raise InvalidOption(
            f"The datetime {value.isoformat()} lies outside the years 1 to 9999 in UTC. Choose one inside.",
            code="datetime_out_of_range",
        )
    return Micros(micros)


def to_datetime(instant: Micros) -> datetime:
    """The same instant as an aware UTC datetime, exact to the microsecond."""
    if not _FIRST <= instant <= _LAST:
        raise InvalidInput(
            f"The instant {instant} µs lies outside the years 1 to 9999. Check that it is in microseconds.",
            code="datetime_out_of_range",
        )
    return _EPOCH + timedelta(microseconds=instant)


def iso(instant: Micros) -> str:
    """ISO 8601 in UTC with six decimals and `Z`: all texts have one width, so they sort by time."""
    return to_datetime(instant).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
