"""Who may go next, first come first served: the SQLite writer's turn, PostgreSQL's connections. Used by the dialects.

`threading.Lock` lets a thread that comes straight back overtake those asleep: beside a busy writer they could starve.
And `threading.Semaphore` is written in Python: an interrupt inside it leaves it locked for ever.
"""

from __future__ import annotations

from collections import deque
from threading import Lock
from typing import TypeAlias

Ticket: TypeAlias = Lock
"""A place in a line. Its holder sleeps on it until it is told to look again."""


def new_ticket() -> Ticket:
    ticket = Lock()
    ticket.acquire()
    return ticket


class Line:
    """A line in front of so many places. Any thread may leave in another one's name.

    Whoever's ticket is among the first in the line has a place, and telling a ticket only says so. There is no second
    state that could disagree with the line, and telling twice does no harm.

    The ticket is the caller's own, made before it joins, and `leave` may be repeated and does nothing for one who is
    not in the line. So `ticket = new_ticket()`, and then `try: line.join(ticket) … finally: line.leave(ticket)` holds
    whatever moment an interrupt (KeyboardInterrupt, an exception raised into the thread) hits. After a fork the child
    makes a new object, because the threads in line did not come along.
    """

    __slots__ = ("_line", "_places")

    def __init__(self, places: int = 1) -> None:
        self._line: deque[Ticket] = deque()
        self._places = places

    def join(self, ticket: Ticket, timeout: float | None = None) -> bool:
        """Wait for a place, at most `timeout` seconds (None: for ever). False: there was none; leave all the same."""
        self._line.append(ticket)
        if self.has_place(ticket):
            return True
        return ticket.acquire(True, -1 if timeout is None else max(0.0, timeout))

    def has_place(self, ticket: Ticket) -> bool:
        """While others leave, it may be told of a new place sooner than it is seen here."""
        line = self._line
        try:
            for number in range(self._places):
                if line[number] is ticket:
                    return True
        except IndexError:
            pass
        return False

    def leave(self, ticket: Ticket) -> None:
        """Give the place, or the wish for one, up. Whoever has a place because of that is told."""
        line = self._line
        try:  # noqa: SIM105 - suppress() is Python code, and this is on the way of every write
            line.remove(ticket)
        except ValueError:  # not in it, or not any more: telling the others may have been interrupted
            pass
        for number in range(self._places):
            try:
                line[number].release()
            except IndexError:
                break
            except RuntimeError:  # it knows already
                pass

    def __len__(self) -> int:
        """How many are in the line, those with a place too."""
        return len(self._line)
