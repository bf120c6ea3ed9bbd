"""A waiting line, first come first served: for the SQLite writer's turn and PostgreSQL's connections. Used by both.

`threading.Lock` lets a thread that returns at once overtake sleeping ones: beside a busy writer they could starve. And
`threading.Semaphore` is written in Python: an interrupt inside it leaves it locked for ever.
"""

from __future__ import annotations

from collections import deque
from threading import Lock
from typing import TypeAlias

Ticket: TypeAlias = Lock
"""A place in a line: a lock that its holder sleeps on until it is released."""


def new_ticket() -> Ticket:
    ticket = Lock()
    ticket.acquire()
    return ticket


class Line:
    """A line in front of a number of places. Any thread may leave for another one.

    The first tickets in the line have a place; waking a ticket only makes its holder look. There is no second state
    that could disagree with the line, and waking twice does no harm.

    The caller makes its ticket before it joins, and `leave` may be repeated and ignores a ticket that is not in the
    line. So `ticket = new_ticket()`, then `try: line.join(ticket) … finally: line.leave(ticket)` is safe at whatever
    moment an interrupt (KeyboardInterrupt, an exception raised in the thread) comes. After a fork the child makes a new
    object, because the threads in the line exist only in the parent.
    """

    __slots__ = ("_line", "_places")

    def __init__(self, places: int = 1) -> None:
        self._line: deque[Ticket] = deque()
        self._places = places

    def join(self, ticket: Ticket, timeout: float | None = None) -> bool:
        """Wait for a place, at most `timeout` seconds (None: for ever). False: there was none; still call `leave`."""
        self._line.append(ticket)
        if self.has_place(ticket):
            return True
        return ticket.acquire(True, -1 if timeout is None else max(0.0, timeout))

    def has_place(self, ticket: Ticket) -> bool:
        """While others leave, a ticket may be woken for its place before this returns True."""
        line = self._line
        try:
            if line[0] is ticket:  # most of the time
                return True
            for number in range(1, self._places):
                if line[number] is ticket:
                    return True
        except IndexError:
            pass
        return False

    def leave(self, ticket: Ticket) -> None:
        """Give up the place, or the wait for one. Wakes the ticket that gets a place by that."""
        line = self._line
        try:  # noqa: SIM105 - suppress() is Python code, and this is on the way of every write
            line.remove(ticket)
        except ValueError:  # not in it, or not any more: waking the others may have been interrupted
            pass
        if not line:  # whoever joins from here on sees for itself that it is first
            return
        for number in range(self._places):
            try:
                line[number].release()
            except IndexError:
                break
            except RuntimeError:  # it is awake already
                pass

    def __len__(self) -> int:
        """How many are in the line, including those with a place."""
        return len(self._line)
