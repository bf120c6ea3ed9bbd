"""Times and numbers as people read them. Used by `explain` and `workers`."""

from __future__ import annotations

from perdure.clock import Micros, span, to_datetime


def moment(at: Micros) -> str:
    """An instant in UTC, to the second."""
    return to_datetime(at).strftime("%Y-%m-%d %H:%M:%S UTC")


def length(micros: int) -> str:
    """A length of time, in whole seconds at least."""
    return span(round(max(0, micros) / 1_000_000))


def distance(at: Micros, now: Micros) -> str:
    """How long ago an instant is, or how far ahead."""
    return f"in {length(at - now)}" if at > now else f"{length(now - at)} ago"


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
