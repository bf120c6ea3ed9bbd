"""Time and ids inside `app.testing()`: both stand still until a test moves them. Made by `block`."""

from __future__ import annotations

import random
import threading
import time

from perdure.clock import ManualClock, Micros
from perdure.errors import PerdureError
from perdure.ids import IdFactory
from perdure.worker.context import current


class KitClock(ManualClock):
    """The wall clock stands still; boottime goes on beside it, so that a wait with a time-out comes to its end."""

    def __init__(self, start: Micros) -> None:
        super().__init__(start)
        self._began = time.monotonic()
        self._thread = threading.get_ident()

    def boottime(self) -> float:
        return super().boottime() + time.monotonic() - self._began

    def wait(self, seconds: float) -> None:
        """For another thread than the test's, really. The test's own, or a handler, would wait for itself."""
        if threading.get_ident() == self._thread or current() is not None:
            raise PerdureError(
                "nobody runs jobs while you wait inside app.testing(); call t.drain() first, then wait for the job",
                code="testing_wait",
            )
        time.sleep(seconds)


class KitTicks:
    """Milliseconds for ids: the manual clock's, and ahead of it only where one millisecond cannot hold them all."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._least = 0

    def now(self) -> int:
        return max(self._clock.now() // 1_000, self._least)

    def tick(self) -> None:
        self._least = self.now() + 1


def kit_ids(clock: ManualClock) -> IdFactory:
    """The same ids in the same order for the same start: a test that prints them prints the same every time."""
    ticks = KitTicks(clock)
    return IdFactory(ticks.now, random.Random(0).randbytes, ticks.tick)
