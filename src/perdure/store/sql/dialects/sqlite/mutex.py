"""Turns between the threads of one process, first come first served. Used by the SQLite writer before the gate.

`threading.Lock` lets a thread that comes straight back overtake those asleep: beside a busy writer they could starve.
"""

from __future__ import annotations

from collections import deque
from threading import Lock
from types import TracebackType


class FifoMutex:
    """A lock handed on in the order it was asked for. Not reentrant; any thread may release it.

    Whoever's ticket is first in the line holds the lock, and waking a ticket only tells it so. There is no second state
    that could disagree with the line, telling twice does no harm, and a waiter that goes away just steps out of it.

    A waiter that times out or is interrupted (KeyboardInterrupt, an exception raised into its thread) leaves nothing
    behind: it does not hold the lock, and a turn that reached it meanwhile goes to the next. After a fork the child
    makes a new object, because the threads in line did not come along.
    """

    __slots__ = ("_line", "holder")

    def __init__(self) -> None:
        self._line: deque[Lock] = deque()
        self.holder: object = None
        """The ticket of whoever acquired it last."""

    def acquire(self, timeout: float | None = None) -> bool:
        """Wait for my turn, at most `timeout` seconds (None: for ever). False means the lock is not mine."""
        line = self._line
        ticket = Lock()
        ticket.acquire()
        mine = False
        # CPython raises interrupts after a call returns and where a function starts, nowhere else. So there is none
        # between `mine` being set and the caller's next call, and each way out below tells the first in line without
        # calling a function of our own.
        try:
            line.append(ticket)
            mine = line[0] is ticket or ticket.acquire(True, -1 if timeout is None else max(0.0, timeout))
        finally:
            if not mine:
                try:
                    line.remove(ticket)
                finally:
                    try:  # noqa: SIM105 - suppress() is Python code
                        line[0].release()
                    except (IndexError, RuntimeError):  # nobody is left, or the first knows already
                        pass
        if mine:
            self.holder = ticket
        return mine

    def release(self, ticket: object = None) -> None:
        """Pass the lock to the next in line, if there is one. IndexError when nobody held it.

        With the ticket that was `holder` after `acquire` it may be repeated when it was interrupted: the second time it
        takes nobody else's turn.
        """
        line = self._line
        if ticket is not None and (not line or line[0] is not ticket):
            return
        try:
            line.popleft()
        finally:
            if line:
                try:  # noqa: SIM105 - suppress() is Python code
                    line[0].release()
                except (IndexError, RuntimeError):  # the next gave up just now, or knows already
                    pass

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()
