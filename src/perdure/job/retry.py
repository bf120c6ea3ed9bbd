"""How often and how late a failed job runs again. Pure. Used by `options` and the worker; calls `checks`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal, Self, cast, get_args

from perdure.checks import check_choice, check_number, check_type, check_whole, refused

MAX_RUNTIME = "MaxRuntime"
"""The type of the error of a job that used up the time of its slot. The listing of slots knows it."""

Backoff = Literal["none", "fixed", "linear", "exponential"]

_MOST_ATTEMPTS = 2**31 - 1  # what an INTEGER column holds on every server
_LONGEST_S = 10 * 365 * 86_400.0  # ten years: run_at stays a date that every database and datetime can hold
_DATA = ("max_attempts", "backoff", "base", "factor", "cap", "jitter", "as_new_job")


@dataclass(frozen=True, slots=True)
class Retry:
    """A retry policy; seconds throughout.

    `max_attempts` counts runs, so 1 means never again. `backoff` grows from `base`: not at all (`none` waits 0,
    `fixed` waits `base`), by `base` each time (`linear`), or by `factor` (`exponential`); no wait exceeds `cap`.
    `on` names the exceptions worth another run (None: every Exception); `never` wins over it. With `as_new_job` each
    further attempt is a new job.
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
        code = "retry_invalid"
        often = f"a whole number from 1 (never again) to {_MOST_ATTEMPTS}"
        check_whole(self.max_attempts, "Retry: max_attempts", 1, _MOST_ATTEMPTS, must_be=often, code=code)
        check_choice(self.backoff, "Retry: backoff", get_args(Backoff), code=code)
        check_number(self.base, "Retry: base", 0, _LONGEST_S, code=code)
        check_number(self.factor, "Retry: factor", 1, sys.float_info.max, code=code)
        check_number(self.cap, "Retry: cap", 0, _LONGEST_S, code=code)
        check_number(self.jitter, "Retry: jitter", 0, 1, code=code)
        for knob, classes in (("on", () if self.on is None else self.on), ("never", self.never)):
            if not _are_exception_classes(classes):
                raise refused(f"Retry: {knob}", "a tuple of Exception classes, such as (OSError,)", classes, code=code)
        check_type(self.as_new_job, "Retry: as_new_job", bool, "True or False", code=code)

    @classmethod
    def of(cls, value: Retry | int | None) -> Retry:
        """The policy meant by `retry=`: itself, a number of attempts, or None for the defaults."""
        if isinstance(value, Retry):
            return value
        if value is None:
            return cls()
        check_type(value, "retry", int, "the number of attempts or Retry(…)", code="retry_invalid")
        return cls(max_attempts=value)

    def delay(self, attempt: int, jitter_unit: float) -> float:
        """Seconds to wait after the failure of attempt number `attempt`, counted from 1.

        `jitter_unit` in [0, 1) picks a value in the range of the jitter; 0.5 is the middle. The result is never
        negative and never above `cap`, jitter included, for any number of attempts.
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
        """Whether this error is worth another run, if attempts are left. Never for exits and interrupts."""
        if isinstance(error, self.never):
            return False
        return isinstance(error, Exception if self.on is None else self.on)

    def counting(self, other: Retry) -> Retry:
        """This policy with the `on` and `never` of another one."""
        return replace(self, on=other.on, never=other.never)

    def to_json(self) -> dict[str, Any]:
        """The policy as stored with a job. Exception classes are code and belong to the kind."""
        return {name: getattr(self, name) for name in _DATA}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The policy stored by `to_json`, with the default `on` and `never`.

        Unknown names are ignored: a newer version may have written them.
        """
        return cls(**{name: data[name] for name in _DATA if name in data})


def _power(factor: float, exponent: int) -> float:
    try:
        return float(factor) ** exponent
    except OverflowError:
        # Not inf: a base of 0 must still give 0.
        return sys.float_info.max


def _are_exception_classes(value: object) -> bool:
    if not isinstance(value, tuple):
        return False
    items = cast("tuple[object, ...]", value)
    return all(isinstance(item, type) and issubclass(item, Exception) for item in items)


def max_runtime_ms(options: str | None) -> int | None:
    """For how long the job of a slot may be at work, from its first start on, by its stored options. None: no limit."""
    if options is None or "max_runtime_ms" not in options:
        return None
    try:
        limit = json.loads(options)["max_runtime_ms"]
    except (ValueError, TypeError, KeyError):
        return None
    return limit if isinstance(limit, int) else None
