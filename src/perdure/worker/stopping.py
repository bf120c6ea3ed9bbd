"""How a worker is told to stop: by whoever holds it, or by signals. Made by `worker`, asked by `shift`."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType

STOP, HURRY = 1, 2


class Wish:
    """What is wanted of a worker: nothing, that it stops, that it hurries. It only ever rises.

    A number, no event: a signal handler must not wait for a lock.
    """

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self.level = 0
        self.given_up = False
        """Nobody wished it: the store thread has hung or failed."""

    def ask(self, level: int) -> None:
        """Any thread may, and any signal handler."""
        self.level = max(self.level, level)
        self._ring()

    def give_up(self) -> None:
        """Without a ring: whoever would hear it does not move."""
        self.given_up = True
        self.level = HURRY

    @contextmanager
    def from_signals(self) -> Generator[None, None, None]:
        """On the main thread SIGTERM and SIGINT say so while the block runs: each a level more, the next to die of."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._told) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _told(self, number: int, _frame: FrameType | None) -> None:
        if self.level >= HURRY and not self.given_up:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.ask(self.level + 1)
