"""Ids that sort by creation: UUIDv7 (RFC 9562) as 16 bytes. Made by app, store and worker; calls `clock`.

From the left: 48 bits unix milliseconds, 4 bits version 7, 12 bits counter within the millisecond, 2 bits variant,
62 random bits.
"""

from __future__ import annotations

import os
import re
import struct
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NewType, overload

from perdure.clock import Clock, Micros, ServerClock, to_datetime
from perdure.errors import ConfigError, InvalidInput, shown

JobId = NewType("JobId", bytes)
RunId = NewType("RunId", bytes)
NodeId = NewType("NodeId", bytes)
ReservationId = NewType("ReservationId", bytes)
FlowId = NewType("FlowId", bytes)

_IDS_PER_MS = 1 << 12
_LAST_MS = (1 << 48) - 1
_VERSION = 0x7000
_VARIANT = 0x8000_0000_0000_0000
_POOL = 64
_TEXT = re.compile("[0-9a-fA-F]{8}(-?)[0-9a-fA-F]{4}(?:\\1[0-9a-fA-F]{4}){2}\\1[0-9a-fA-F]{12}")

_two_words = struct.Struct(">QQ").pack


def _short_sleep() -> None:
    time.sleep(0.0001)


class IdFactory:
    """Makes ids for one process.

    Ids rise strictly, over all threads, while the clock does not step back, and are never ahead of it: a millisecond
    holds 4096 ids, the next one waits for the tick. After a step back they follow the new clock; the random bits keep
    them unique. A forked child starts with its own lock and random bits.

    `pause` is called between two looks at the clock while waiting; a clock that does not move by itself must be moved
    there.
    """

    def __init__(
        self,
        clock_ms: Callable[[], int] | None = None,
        randomness: Callable[[int], bytes] = os.urandom,
        pause: Callable[[], None] = _short_sleep,
    ) -> None:
        # In nanoseconds, as the system's clock gives them: one call less for every id.
        self._clock_ns = time.time_ns if clock_ms is None else lambda: clock_ms() * 1_000_000
        self._randomness = randomness
        self._pause = pause
        self._ms: int | None = None
        self._next = self._end = 0
        self.start_afresh()
        _factories.add(self)

    def start_afresh(self) -> None:
        """Forget what a parent process may share: called in a forked child, before any of its code runs."""
        # Reentrant: a signal handler or finaliser that enqueues may interrupt its own thread inside the lock.
        self._lock = threading.RLock()
        # Random bits in stock for `new`: drawing 64 at a time costs 0.9 µs an id, one at a time 1.5.
        self._lows: list[int] = []

    def new(self) -> bytes:
        """One id, greater than every earlier one unless the clock has stepped back."""
        with self._lock:
            # `_take` inlined: 1.0 µs an id; calling it makes that 1.5.
            ms = self._clock_ns() // 1_000_000
            if ms != self._ms:
                self._open(ms)
            elif self._next == self._end:
                self._wait_for_tick()
            high = self._next
            self._next = high + 1
            try:
                low = self._lows.pop()
            except IndexError:
                low = self._refill()
        return _two_words(high, low)

    def new_many(self, n: int) -> list[bytes]:
        """`n` ids in rising order, with no id of another thread between them. Empty if `n` is not positive."""
        if n <= 0:
            return []
        lows = self._draw(n)
        highs: list[int] = []
        with self._lock:
            while len(highs) < n:
                highs += self._take(n - len(highs))
        return list(map(_two_words, highs, lows))

    def _draw(self, n: int) -> list[int]:
        return [_VARIANT | word >> 2 for word in struct.unpack(f">{n}Q", self._randomness(8 * n))]

    def _refill(self) -> int:
        low, *self._lows = self._draw(_POOL)
        return low

    def _take(self, want: int) -> range:
        """Up to `want` places in the current millisecond, at least one. The caller holds the lock."""
        ms = self._clock_ns() // 1_000_000
        if ms != self._ms:
            self._open(ms)
        elif self._next == self._end:
            self._wait_for_tick()
        first = self._next
        self._next = min(first + want, self._end)
        return range(first, self._next)

    def _wait_for_tick(self) -> None:
        while (ms := self._clock_ns() // 1_000_000) == self._ms:
            self._pause()
        self._open(ms)

    def _open(self, ms: int) -> None:
        if not 0 <= ms <= _LAST_MS:
            raise ConfigError(
                f"The clock reads {ms} ms since 1970, which no id can hold. Set the machine's clock.",
                code="clock_out_of_range",
            )
        self._next = ms << 16 | _VERSION
        self._end = self._next + _IDS_PER_MS
        # Last: after an interrupt before this line, the next call opens the millisecond again.
        self._ms = ms


class Drawn(Sequence[bytes]):
    """Up to `most` ids in rising order, which are made when they are looked at: whoever has room for 500 jobs often
    finds one. Each keeps its place, for those who look twice."""

    def __init__(self, ids: IdFactory, most: int) -> None:
        self._ids = ids
        self._most = max(0, most)
        self._made: list[bytes] = []

    def __len__(self) -> int:
        return self._most

    @overload
    def __getitem__(self, at: int) -> bytes: ...
    @overload
    def __getitem__(self, at: slice) -> list[bytes]: ...

    def __getitem__(self, at: int | slice) -> bytes | list[bytes]:
        wanted = range(self._most)[at]
        last = wanted if isinstance(wanted, int) else max((*wanted[:1], *wanted[-1:]), default=-1)
        self._made += self._ids.new_many(last + 1 - len(self._made))
        return self._made[wanted] if isinstance(wanted, int) else [self._made[place] for place in wanted]


def ids_by(clock: Clock) -> IdFactory:
    """Ids dated by a server's clock where this is one, so that they sort by creation over all machines; else by this
    machine's wall clock, which a clock that a test stops could not replace."""
    if isinstance(clock, ServerClock):
        return IdFactory(lambda: clock.now() // 1_000)
    return IdFactory()


_factories: weakref.WeakSet[IdFactory] = weakref.WeakSet()


def _start_afresh() -> None:
    for factory in _factories:
        factory.start_afresh()


os.register_at_fork(after_in_child=_start_afresh)


def parse_id(text: str | uuid.UUID | bytes) -> bytes:
    """The 16 bytes of an id, from any form a user may have. Any UUID passes, not only those made here."""
    if isinstance(text, uuid.UUID):
        return text.bytes
    if isinstance(text, bytes) and len(text) == 16:
        return text
    # Not uuid.UUID(text): it lets "0x", "_", "urn:", braces and non-ASCII digits through.
    if isinstance(text, str) and _TEXT.fullmatch(text):
        return bytes.fromhex(text.replace("-", ""))
    raise InvalidInput(
        f"{shown(text)} is not an id; pass the job, its UUID, or the UUID as text (32 hexadecimal digits, with or"
        " without the four dashes). Only the command line also takes the end of an id.",
        code="id_invalid",
    )


def to_uuid(id: bytes) -> uuid.UUID:
    """The id as users see it."""
    return uuid.UUID(bytes=id)


def timestamp_of(id: bytes | uuid.UUID | str) -> datetime:
    """When the id was made, by its maker's clock: aware, UTC, to the millisecond. Other UUIDs than v7 are refused."""
    raw = parse_id(id)
    if raw[6] >> 4 != 7 or raw[8] >> 6 != 2:
        raise InvalidInput(
            f"{to_uuid(raw)} is not a UUIDv7 and carries no time. Pass an id that Perdure made.", code="id_invalid"
        )
    return to_datetime(Micros(int.from_bytes(raw[:6], "big") * 1_000))


def id_floor(micros: int) -> bytes:
    """The smallest id of that millisecond: ids made in it or later are >=, earlier ones <. Clamped to the id range."""
    ms = min(max(micros // 1_000, 0), _LAST_MS)
    return _two_words(ms << 16 | _VERSION, _VARIANT)
