"""Exceptions that come out of a handler, as a test wants to see them. Used by `drain`."""

from __future__ import annotations

import asyncio
from types import TracebackType

from perdure.worker.signals import Interrupted

_THE_HANDLERS = (Exception, SystemExit, GeneratorExit, asyncio.CancelledError, Interrupted)


def is_the_tests_own(error: BaseException) -> bool:
    """Whether it is for whoever runs the test: Ctrl-C, `pytest.fail`, `pytest.skip`, a time-out of the test itself.

    A worker would take it for a failure of the job, since its threads never see any of these.
    """
    return not isinstance(error, _THE_HANDLERS)


def from_the_handler_on(error: BaseException) -> TracebackType | None:
    """The traceback without the library's own frames above the user's code."""
    frames = error.__traceback__
    while frames is not None and _is_ours(frames):
        frames = frames.tb_next
    return frames or error.__traceback__


def _is_ours(frames: TracebackType) -> bool:
    return str(frames.tb_frame.f_globals.get("__name__")).partition(".")[0] in ("perdure", "contextlib")
