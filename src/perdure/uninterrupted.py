"""Code in which a thread must not be interrupted. Marked by the stores' runners; checked before a handler is stopped.

A handler in a thread is stopped by an exception that another thread raises in it, at any line. In the middle of a
database call that would leave a statement half read, or a lock taken, for everybody. So each such call is marked, per
thread: an exception that comes meanwhile is raised when the call ends.

Reading `depth` and acting on it are one step for the other thread: CPython hands its lock over when a function begins,
when a C call has returned and when a loop jumps back, and none of these is in between.

Ctrl-C does not respect the marks. What it interrupts must leave nothing behind that disturbs the next call.
"""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import Any


class Mark:
    """How deep one thread is inside marked code, and what it must raise when it comes out."""

    __slots__ = ("_ident", "_py_object", "_raise", "depth", "due", "lifted")

    def __init__(self) -> None:
        """For the thread that makes it: all its code is marked, except in `interruptible` blocks."""
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
        """In its thread: from here on it can be interrupted, until `depth` is set again. Raises what is due."""
        self.depth = 0
        if self.due is not None:
            _raise_due(self)

    def clear(self) -> None:
        """In its thread, when no exception can come any more: protects what the thread does next."""
        self.depth = 1
        self.due = None
        self.lifted.clear()

    def raise_in_thread(self, error: type[BaseException], *, surely: bool = False) -> bool:
        """Raise it in the thread, now or when it leaves the marked code. False: it might hit another thread; try again
        later, or with `surely`, which raises it in any case.

        It cannot be undone: CPython 3.11, asked to raise nothing, checks for it at every call of every thread from then
        on, and hangs as soon as anything traces or profiles.
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
"""Before Python 3.12 a thread that is just starting has the id of the thread that starts it: an exception meant for one
would hit the other, before its first line, and `Thread.start` would wait for ever."""


class _Here(threading.local):
    mark: Mark | None = None


_here = _Here()


class _Uninterrupted:
    """`with uninterrupted:` around code that must not be interrupted."""

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
    """`with interruptible:` around the user's own code, inside `uninterrupted`."""

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
