"""How a handler ends its run other than by returning or failing. Raised by users, read by `run`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, ClassVar

from perdure.errors import InvalidOption, shown

Delay = float | timedelta


class Signal(Exception):
    """What the handlers' signals have in common: they are decisions, not errors."""


class Fail(Signal):
    """End the job as failed, even if attempts are left."""


class RetryAfter(Signal):
    """This attempt failed; the next one, if any is left, comes after `delay` instead of the backoff."""

    def __init__(self, delay: Delay, message: str = "the handler asked for another attempt") -> None:
        super().__init__(message)
        self.delay_s = seconds(delay)


class Snooze(Signal):
    """Not now: run the job again after `delay`. The attempt is given back."""

    def __init__(self, delay: Delay) -> None:
        super().__init__(f"snoozed for {seconds(delay):g} s")
        self.delay_s = seconds(delay)


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
    write: Callable[[Any], object] | None = None


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


def seconds(delay: object) -> float:
    value = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 10**10:
        raise InvalidOption(
            f"a delay must be seconds (a number, not negative) or a timedelta, not {shown(delay)}", code="delay_invalid"
        )
    return float(value)
