"""What a worker and its child processes say to each other: one JSON list per line. Used by `processes` and `child`.

Parent to child: `hello`, `job`, `stop`. Child to parent: `begun`, `said`, `closed`, `changed`, `ended`, `unfit`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from perdure.job.model import Claim, Failure, LiveJob, NewJob, Plan
from perdure.job.reports import (
    Cancelled,
    Completed,
    Failed,
    Released,
    Report,
    Skipped,
    Snoozed,
    TimedOut,
    Unreadable,
)

_REPORTS = {
    report.__name__: report
    for report in (Completed, Failed, TimedOut, Snoozed, Released, Cancelled, Skipped, Unreadable)
}
_BYTES = "$hex"
CUT_OFF = 83
"""What a child exits with when a handler has closed the socket it would tell its end through."""


class Ending(NamedTuple):
    """What a child tells of a run that has ended. `closed`: the job's end is in the database already."""

    report: Report
    duration_ms: int | None
    closed: bool
    children: tuple[NewJob, ...]


def framed(*frame: Any) -> bytes:
    """A frame as it travels. Pure ASCII, so that a line break can only be its end."""
    return json.dumps(frame, default=_hidden_in_json, separators=(",", ":")).encode("ascii") + b"\n"


class Unframer:
    """Gathers what arrives, in whatever pieces, into frames."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def feed(self, data: bytes) -> Iterator[list[Any]]:
        """The frames that are whole now."""
        *lines, rest = data.split(b"\n")
        for line in lines:
            whole = b"".join((*self._pieces, line))
            self._pieces.clear()
            yield json.loads(whole, object_hook=_shown_again)
        if rest:
            self._pieces.append(rest)


def claim_of(row: list[Any]) -> Claim:
    live, *others = row
    return Claim(LiveJob(*live), *others)


def ending_of(frame: list[Any]) -> Ending:
    (name, fields), duration_ms, closed, children = frame
    return Ending(_report_of(name, fields), duration_ms, closed, tuple(_new_job_of(row) for row in children))


def ending_frame(ending: Ending) -> bytes:
    report = (type(ending.report).__name__, ending.report)
    return framed("ended", report, ending.duration_ms, ending.closed, ending.children)


def _report_of(name: str, fields: list[Any]) -> Report:
    if name in {"Failed", "TimedOut"}:
        fields = [Failure(*fields[0]), *fields[1:]]
    return _REPORTS[name](*fields)


def _new_job_of(row: list[Any]) -> NewJob:
    new = NewJob(*row)
    plan = Plan(*new.plan)
    return new._replace(plan=plan._replace(tags=tuple(plan.tags), names=tuple(plan.names)))


def _hidden_in_json(value: object) -> dict[str, str]:
    if isinstance(value, bytes):
        return {_BYTES: value.hex()}
    raise TypeError(f"{type(value).__name__} does not travel between processes")


def _shown_again(tree: dict[str, Any]) -> Any:
    value = tree.get(_BYTES)
    return bytes.fromhex(value) if isinstance(value, str) and len(tree) == 1 else tree
