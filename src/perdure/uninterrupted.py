"""Where a thread must not be broken off. Marked by the stores' runners; asked by whoever stops a handler in its thread.

A handler in a thread is stopped by an exception that is raised in that thread from outside, at whatever line it is. In
the middle of a call on a database that leaves a statement half read or a lock taken, for everybody. So each such call
is marked, per thread: an exception that comes meanwhile is raised on the way out.

The look at `depth` and what follows from it are one step for the other thread: CPython passes its lock on when a
function begins, when a call of C code has returned and when a loop jumps back, and there is none of these in between.

Ctrl-C does not ask. What it interrupts must leave nothing behind that the next call stumbles over.
"""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import Any


class Mark:
    """How deep one thread is inside of marked code, and what it is to raise when it comes out."""

    __slots__ = ("_ident", "_py_object", "_raise", "depth", "due", "lifted")

    def __init__(self) -> None:
        """For the thread that makes it: all that it does is marked, but for what it does in `interruptible` blocks."""
        self.depth = 1
        self.due: type[BaseException] | None = None
        self.lifted: list[int] = []
        """The depths that `interruptible` blocks have lifted, to be put back at their ends."""
        import ctypes  # some milliseconds that only workers need

        self._ident = ctypes.c_ulong(threading.get_ident())
        self._py_object: Any = ctypes.py_object
        self._raise = ctypes.pythonapi.PyThreadState_SetAsyncExc
        _here.mark = self

    def lift(self) -> None:
        """In its thread: from here on it can be interrupted, until `depth` is set again. Raises what is due already."""
        self.depth = 0
        if self.due is not None:
            _raise_due(self)

    def clear(self) -> None:
        """In its thread, when no exception can come any more: nothing reaches what the thread does next."""
        self.depth = 1
        self.due = None
        self.lifted.clear()

    def raise_in_thread(self, error: type[BaseException], *, surely: bool = False) -> bool:
        """Raise it in the thread, now or when it leaves the marked code. False: it might hit another one; try again.

        With `surely` it is raised all the same.

        There is no taking it back: CPython 3.11, told to raise nothing, looks for it at every call of every thread from
        then on, and hangs as soon as anything traces or profiles.
        """
        thrown = self._py_object(error)
        if self.depth:
            self.due = error
            return True
        if _starting_threads and not surely:
            return False
        self._raise(self._ident, thrown)
        return True


_starting_threads: dict[object, object] = getattr(threading, "_limbo", {}) if sys.version_info < (3, 12) else {}
"""Before Python 3.12 a thread that is just being started bears its starter's number: an exception meant for the one
would hit the other, before its first line, and `Thread.start` would wait for it for ever."""


class _Here(threading.local):
    mark: Mark | None = None


_here = _Here()


class _Uninterrupted:
    """`with uninterrupted:` around code that must not be broken off."""

    __slots__ = ()

    def __enter__(self) -> None:
        mark = _here.mark
        if mark is not None:
            mark.depth += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        mark = _here.mark
        if mark is not None:
            mark.depth -= 1
            _raise_due(mark)


class _Interruptible:
    """`with interruptible:` around the user's own code, inside of `uninterrupted`."""

    __slots__ = ()

    def __enter__(self) -> None:
        mark = _here.mark
        if mark is not None:
            mark.lifted.append(mark.depth)
            mark.depth = 0
            try:
                _raise_due(mark)
            except BaseException:
                mark.depth = mark.lifted.pop()
                raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        mark = _here.mark
        if mark is not None and mark.lifted:
            mark.depth = mark.lifted.pop()


def _raise_due(mark: Mark) -> None:
    due = mark.due
    if due is not None and not mark.depth:
        mark.due = None
        raise due


uninterrupted = _Uninterrupted()
interruptible = _Interruptible()
