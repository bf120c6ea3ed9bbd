"""Times and numbers as people read them. Used by `explain` and `workers`."""

from __future__ import annotations

from perdure.clock import Micros, to_datetime

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))


def moment(at: Micros) -> str:
    """An instant in UTC, to the second."""
    return to_datetime(at).strftime("%Y-%m-%d %H:%M:%S UTC")


def span(micros: int) -> str:
    """A length of time in one unit, in whole numbers."""
    seconds = max(0, micros) // 1_000_000
    for size, unit in _UNITS:
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def distance(at: Micros, now: Micros) -> str:
    """How long ago an instant is, or how far ahead."""
    return f"in {span(at - now)}" if at > now else f"{span(now - at)} ago"


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
