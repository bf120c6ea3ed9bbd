"""How a handler ends its run other than by returning or failing. Raised by users, read by `run`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from perdure.checks import Span, check_span


class Signal(Exception):
    """What the handlers' signals have in common: they are decisions, not errors."""


class Fail(Signal):
    """End the job as failed, even if attempts are left."""


class RetryAfter(Signal):
    """This attempt failed; the next one, if any is left, comes after `delay` instead of the backoff."""

    def __init__(self, delay: Span, message: str = "the handler asked for another attempt") -> None:
        super().__init__(message)
        self.delay_s = _seconds(delay)
        """After how many seconds the next attempt may start."""


class Snooze(Signal):
    """Not now: run the job again after `delay`. The attempt is given back."""

    def __init__(self, delay: Span) -> None:
        super().__init__(f"snoozed for {_seconds(delay):g} s")
        self.delay_s = _seconds(delay)
        """After how many seconds it is called again."""


class Cancel(Signal):
    """End the job as cancelled. The text says why."""


class Skip(Signal):
    """There was nothing to do: end the job as skipped. The text says why."""


@dataclass(frozen=True, slots=True)
class Done:
    """Returned by a handler: its result, and a function that writes rows in the transaction that ends the job.

    `write(connection)` is called once, inside that transaction. If it raises, nothing is written and the attempt has
    failed; if another node took the job meanwhile, nothing is written either.
    """

    __perdure_result__: ClassVar = True
    """For the codec: `-> Done` says nothing about the result's type."""
    result: Any = None
    """What the job returns."""
    write: Callable[[Any], object] | None = None
    """Called with the connection, inside the transaction. None: there is nothing to write."""


class Stop(StrEnum):
    """Why a run is asked to stop."""

    SHUTDOWN = "shutdown"
    CANCEL = "cancel"
    TIMEOUT = "timeout"
    LOST = "lost"
    """The job is not this node's any more."""


class Interrupted(BaseException):
    """Raised in a handler that is to stop now. Not an `Exception`: a handler's `except Exception` does not catch it."""

    def __init__(self, stop: Stop | None = None, *, at_checkpoint: bool = False) -> None:
        super().__init__(stop or "interrupted")
        self.at_checkpoint = at_checkpoint


def _seconds(delay: Span) -> float:
    return float(check_span(delay, "delay", 0, 10**10, code="delay_invalid"))
