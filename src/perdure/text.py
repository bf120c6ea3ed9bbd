"""Times, numbers and ids as people read them, the same everywhere. Used by `ops`, `worker/lifecycle` and the command
line.

Every instant is in UTC and says so: what two machines, a log and a listing tell can be compared, and typed again."""

from __future__ import annotations

from perdure.clock import Micros, to_datetime
from perdure.ids import to_uuid

_TAIL = 8


def span(seconds: float) -> str:
    """A length of time, in one unit: 12 ms, 1.5 s, 45 s, 3 min, 5 h, 12 d."""
    if 0 < seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size * 1.95:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.2g} s" if seconds < 9.95 else f"{seconds:.0f} s"


def measured(ms: int) -> str:
    """A duration as runs record it, in whole milliseconds."""
    return span(ms / 1_000) if ms else "<1 ms"


def length(micros: int) -> str:
    """A length of time, in whole seconds at least."""
    return span(round(max(0, micros) / 1_000_000))


def distance(at: Micros, now: Micros) -> str:
    """How long ago an instant is, or how far ahead."""
    return f"in {length(at - now)}" if at > now else f"{length(now - at)} ago"


def moment(at: Micros) -> str:
    """An instant in UTC, to the second."""
    return to_datetime(at).strftime("%Y-%m-%d %H:%M:%S UTC")


def stamp(at: Micros) -> str:
    """An instant in UTC, to the millisecond, as log lines begin."""
    return f"{to_datetime(at):%Y-%m-%d %H:%M:%S}.{at // 1_000 % 1_000:03}Z"


def counted(count: int, noun: str) -> str:
    """`1 job`, `1,200 jobs`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def size(count: int) -> str:
    """A number of bytes."""
    if count < 1024:
        return f"{count} bytes"
    return f"{count / 1024:.0f} KiB" if count < 1024**2 else f"{count / 1024**2:.1f} MiB"


def short_id(id: bytes) -> str:
    """The end of an id: its beginning is the time, which many ids may share."""
    return to_uuid(id).hex[-_TAIL:]


def first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
