"""How often and how late a failed job is tried again. Pure: `transitions` asks, `options` stores it; calls `errors`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal, Self, cast, get_args

from perdure.errors import InvalidOption, not_among, shown

Backoff = Literal["none", "fixed", "linear", "exponential"]

_MOST_ATTEMPTS = 2**31 - 1  # what an INTEGER column holds on every server
_LONGEST_S = 10 * 365 * 86_400.0  # ten years: run_at stays a date that every database and datetime can hold
_DATA = ("max_attempts", "backoff", "base", "factor", "cap", "jitter", "as_new_job")


@dataclass(frozen=True, slots=True)
class Retry:
    """A retry policy; seconds throughout.

    `max_attempts` counts runs, so 1 means never again. `backoff` grows from `base`: not at all (`none` waits 0,
    `fixed` waits `base`), by `base` each time (`linear`), or by `factor` (`exponential`); no wait exceeds `cap`.
    `on` names the exceptions worth another run, None meaning every Exception; `never` wins over it. With
    `as_new_job` each further attempt is a job of its own.
    """

    max_attempts: int = 3
    _: KW_ONLY
    backoff: Backoff = "exponential"
    base: float = 10.0
    factor: float = 2.0
    cap: float = 3600.0
    jitter: float = 0.2
    on: tuple[type[Exception], ...] | None = None
    never: tuple[type[Exception], ...] = ()
    as_new_job: bool = False

    def __post_init__(self) -> None:
        _check_attempts(self.max_attempts)
        if self.backoff not in get_args(Backoff):
            raise InvalidOption(not_among("Retry: backoff", self.backoff, get_args(Backoff)), code="retry_invalid")
        _check_number("base", self.base, 0, _LONGEST_S)
        _check_number("factor", self.factor, 1, sys.float_info.max)
        _check_number("cap", self.cap, 0, _LONGEST_S)
        _check_number("jitter", self.jitter, 0, 1)
        if self.on is not None:
            _check_classes("on", self.on)
        _check_classes("never", self.never)
        _check_flag("as_new_job", self.as_new_job)

    @classmethod
    def of(cls, value: Retry | int | None) -> Retry:
        """The policy meant by `retry=`: itself, a number of attempts, or None for the defaults."""
        if isinstance(value, Retry):
            return value
        return cls() if value is None else cls(max_attempts=value)

    def delay(self, attempt: int, jitter_unit: float) -> float:
        """Seconds to wait after the failure of attempt number `attempt`, counted from 1.

        `jitter_unit` in [0, 1) picks the place in the jitter's spread; 0.5 is the middle. Never negative, never above
        `cap`, jitter included, for any number of attempts.
        """
        spread = 1.0 + self.jitter * (2.0 * jitter_unit - 1.0)
        return min(float(self.cap), min(self.cap, self._growing(attempt)) * spread)

    def _growing(self, attempt: int) -> float:
        match self.backoff:
            case "none":
                return 0.0
            case "fixed":
                return self.base
            case "linear":
                return self.base * attempt
            case "exponential":
                return self.base * _power(self.factor, attempt - 1)

    def retries(self, error: BaseException) -> bool:
        """Whether this error is worth another run, budget aside. Never for what is no Exception (exits, interrupts)."""
        if isinstance(error, self.never):
            return False
        return isinstance(error, Exception if self.on is None else self.on)

    def counting(self, other: Retry) -> Retry:
        """This policy with the exceptions that another one names."""
        return replace(self, on=other.on, never=other.never)

    def to_json(self) -> dict[str, Any]:
        """The data of the policy for storing it with a job. Exception classes are code and stay with the kind."""
        return {name: getattr(self, name) for name in _DATA}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The policy stored by `to_json`, with the default `on` and `never`.

        Names it does not know are left out: a newer version may have written them.
        """
        return cls(**{name: data[name] for name in _DATA if name in data})


def _power(factor: float, exponent: int) -> float:
    try:
        return float(factor) ** exponent
    except OverflowError:
        # Not inf: a base of 0 must still give 0.
        return sys.float_info.max


def _check_attempts(value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MOST_ATTEMPTS:
        raise _refused("max_attempts", value, f"must be a whole number from 1 (never again) to {_MOST_ATTEMPTS}")


def _check_number(knob: str, value: object, least: float, most: float) -> None:
    # The comparison also refuses NaN and infinity.
    if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
        raise _refused(knob, value, f"must be a number from {least:g} to {most:g}")


def _check_classes(knob: str, value: object) -> None:
    if not _are_exception_classes(value):
        raise _refused(knob, value, "must be a tuple of Exception classes, such as (OSError,)")


def _are_exception_classes(value: object) -> bool:
    if not isinstance(value, tuple):
        return False
    items = cast("tuple[object, ...]", value)
    return all(isinstance(item, type) and issubclass(item, Exception) for item in items)


def _check_flag(knob: str, value: object) -> None:
    if not isinstance(value, bool):
        raise _refused(knob, value, "must be True or False")


def _refused(knob: str, value: object, rule: str) -> InvalidOption:
    return InvalidOption(f"Retry: {knob} {rule}; it was {shown(value)}.", code="retry_invalid")
