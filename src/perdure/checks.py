"""Checks for values that users pass: numbers, names, times, choices. Each returns the value, or raises an error that
names it and says what it must be. Called wherever values come in from outside; calls `clock` and `errors`."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from types import UnionType
from typing import Any, TypeVar, cast

from perdure.clock import Micros, to_micros
from perdure.errors import InvalidInput, InvalidOption, PerdureError, not_among, shown

NAME_LIMIT = 128
KEY_LIMIT = 255
ABOVE_ZERO = math.ulp(0.0)
"""The `least` for a number that must be more than 0."""

Span = float | timedelta
"""A length of time as users give it: seconds, or a timedelta."""

T = TypeVar("T")
Error = type[PerdureError]


def refused(
    what: str, must_be: str, value: object, *, code: str | None = None, error: Error = InvalidOption, hint: str = ""
) -> PerdureError:
    """The error for a wrong value: which option, what it must be, what it was, and what to do."""
    return error(f"{what} must be {must_be}, not {shown(value)}{hint}", code=code, option=what)


def check_whole(
    value: object,
    what: str,
    least: int = 1,
    most: int | None = None,
    *,
    must_be: str | None = None,
    code: str | None = None,
    error: Error = InvalidOption,
) -> int:
    """A whole number from `least` to `most`. True and False are refused."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        bounds = f"from {least} on" if most is None else f"from {least} to {most}"
        raise refused(what, must_be or f"a whole number {bounds}", value, code=code, error=error)
    return value


def check_number(
    value: object,
    what: str,
    least: float,
    most: float,
    *,
    must_be: str | None = None,
    code: str | None = None,
    error: Error = InvalidOption,
) -> float:
    """A number from `least` to `most`; the comparison also refuses NaN. True and False are refused."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise refused(what, must_be or f"a number from {least:g} to {most:g}", value, code=code, error=error)
    return value


def check_span(
    value: object,
    what: str,
    least: float,
    most: float,
    *,
    must_be: str = "seconds (a number, not negative) or a timedelta",
    code: str | None = None,
) -> float:
    """Seconds from `least` to `most`, given as a number or a timedelta."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not least <= seconds <= most:
        raise refused(what, must_be, value, code=code)
    return seconds


def check_time(value: object, what: str, *, code: str | None = None, hint: str = "") -> Micros:
    """An aware datetime, in microseconds."""
    if not isinstance(value, datetime):
        raise refused(what, "a datetime with a time zone", value, code=code, hint=hint)
    return to_micros(value)


def check_choice(
    value: T,
    what: str,
    known: Sequence[str],
    *,
    code: str | None = None,
    error: Error = InvalidOption,
    besides: str = "",
) -> T:
    """One of the known texts; the error says which was probably meant, and `besides` what else may be done."""
    if value not in known:
        raise error(not_among(what, value, known, besides), code=code, option=what)
    return value


def check_known(
    names: Iterable[str],
    known: Collection[str],
    what: str = "option",
    *,
    code: str = "option_unknown",
    error: Error = InvalidOption,
    words_of_others: Mapping[str, str] | None = None,
) -> None:
    """That each of these names is one of the known ones; the error says which was probably meant.
    `words_of_others`: what to write instead of names that other libraries have."""
    for name in names:
        if name not in known:
            from difflib import get_close_matches

            near = get_close_matches(name, list(known), n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
            if words_of_others is not None and name in words_of_others:
                hint = f"write {words_of_others[name]}"
            raise error(f"there is no {what} {name!r}; {hint}", code=code)


def check_name(value: object, what: str, limit: int = NAME_LIMIT) -> str:
    """A name: text that is not empty, not too long, and without characters that some databases cannot store."""
    if not isinstance(value, str):
        raise refused(what, "text", value, code="name_invalid")
    if not value.strip():
        raise InvalidOption(f"{what} is empty; give it a name", code="name_empty", option=what)
    if len(value) > limit:
        raise InvalidOption(
            f"{what} has {len(value)} characters, the limit is {limit}: {value[:40]!r}…; shorten it",
            code="name_too_long",
            option=what,
        )
    if "\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value):
        raise InvalidOption(
            f"{what} contains a NUL or half a surrogate pair, which not every database can store:"
            f" {value[:40]!r}; remove it",
            code="name_invalid",
            option=what,
        )
    return value


def check_names(
    values: object, what: str, check: Callable[[object], str], *, of: str = "names", code: str | None = None
) -> tuple[str, ...]:
    """A list of names, without repeats. A single string is refused: Python would iterate over its letters."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise refused(what, f"a list of {of}", values, code=code, hint=f"; write {what}=[{shown(values)}]")
    return tuple(dict.fromkeys(map(check, cast("Iterable[object]", values))))


def check_list(values: object, wanted: str) -> list[Any]:
    """Any iterable, as a list. `wanted` completes "expected …"."""
    if not isinstance(values, Iterable):
        raise InvalidInput(f"expected {wanted}, not {shown(values)}")
    return list(cast("Iterable[Any]", values))  # type: ignore[redundant-cast]  # for pyright


def check_type(value: object, what: str, wanted: type | UnionType, must_be: str, *, code: str | None = None) -> None:
    if not isinstance(value, wanted):
        raise refused(what, must_be, value, code=code)


def check_function(
    value: object, what: str, must_be: str, *, code: str | None = None, hint: str = ""
) -> Callable[..., Any]:
    if not callable(value):
        raise refused(what, must_be, value, code=code, hint=hint)
    return value
