"""Interrupts at every moment at which CPython can raise one: where a function begins or a generator goes on, and where
a call of C code has returned. (Where a loop jumps back, too; there a call is never far.)"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pymysql

OURS = ("perdure", "psycopg", "pymysql")
CALLED_BY_OURS = ("contextlib", "queue", "threading")
"""Whose moments count: our code and what it calls. Not what asyncio calls: a loop does not survive every interrupt."""


class Ctrl(KeyboardInterrupt):
    """The one that we raised."""


def interrupted_at(point: int, act: Callable[[], object]) -> bool:
    """Interrupt `act` at the nth moment. False: it has fewer, and ran to its end."""
    try:
        _watched(_Moments(point), act)
    except Ctrl:
        return True
    except (AssertionError, pymysql.Error) as error:
        # psycopg's own, about a pipeline that was interrupted; PyMySQL's, about a connection that it has closed then
        if not isinstance(error.__context__, Ctrl):
            raise
        return True
    return False


def count_points(act: Callable[[], object]) -> int:
    """How many moments there are."""
    moments = _Moments(sys.maxsize)
    _watched(moments, act)
    return sys.maxsize - moments.left


def _watched(moments: _Moments, act: Callable[[], object]) -> None:
    try:
        sys.settrace(moments.trace)
        sys.setprofile(moments.profile)
        act()
    finally:
        sys.setprofile(None)
        sys.settrace(None)


class _Moments:
    def __init__(self, point: int) -> None:
        self.left = point

    def _is_now(self) -> bool:
        self.left -= 1
        return self.left == 0

    def profile(self, frame: FrameType, event: str, arg: object) -> None:
        begins = event == "call" and not frame.f_code.co_flags & _GENERATORS
        if (begins or event == "c_return") and _is_ours(frame) and self._is_now():
            raise Ctrl

    def trace(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any] | None:
        """A profiler would end a generator without its `finally`; CPython itself raises inside of it."""
        if not frame.f_code.co_flags & _GENERATORS or not _is_ours(frame) or not self._is_now():
            return None
        frame.f_trace_opcodes = True
        return self._raise

    def _raise(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any]:
        if event == "opcode":
            raise Ctrl
        return self._raise


_GENERATORS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def _is_ours(frame: FrameType | None) -> bool:
    while frame is not None and _package(frame) in CALLED_BY_OURS:
        frame = frame.f_back
    return frame is not None and _package(frame) in OURS


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]
