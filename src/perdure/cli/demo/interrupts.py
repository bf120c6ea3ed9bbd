"""Ctrl-C and its relatives, noted when they come and acted on where nothing is half done. Used by `stage` and `acts`.

No exception is raised from a signal handler: it could fall between the start of a worker and the note that it was
started, and leave it behind.
"""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack
from types import FrameType
from typing import Self

LOOK_S = 0.05


class Interrupted(Exception):
    """The demo was told to end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.status = 128 + number


class Interrupts:
    """Inside of `with`, SIGINT, SIGTERM and SIGHUP are only noted; `check` and `sleep` raise `Interrupted`."""

    def __init__(self) -> None:
        self.number: int | None = None
        self._restore = ExitStack()

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # nohup
            self._restore.callback(signal.signal, number, signal.signal(number, self._note))
        return self

    def __exit__(self, *_: object) -> None:
        self._restore.close()

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.number = self.number or number

    def check(self) -> None:
        if self.number is not None:
            raise Interrupted(self.number)

    def sleep(self, seconds: float) -> None:
        """Ends early, by the exception, when a signal comes."""
        until = time.monotonic() + seconds
        self.check()
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, LOOK_S))
            self.check()
