"""The six answers as they are printed: a heading that is the question, and what was found. Used by `status`.

Everything fits into 80 columns; where something is wrong, a line says which command to type next.
"""

from __future__ import annotations

from collections.abc import Callable
from shlex import quote
from typing import TYPE_CHECKING

from perdure.cli.layout import Answer, Space, heading, hints, line, number, since, table
from perdure.cli.show import first_line
from perdure.ids import to_uuid
from perdure.store.rows import Duplicates, Hitch, Sameness
from perdure.text import measured

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

    from perdure.clock import Micros
    from perdure.ops.status import Status

_CUT = "  (perdure status shows more)"
_STATES = ("queued", "scheduled", "running", "paused", "blocked", "held", "parked")
_HITCHES = {
    Hitch.LOST: "on a worker that has stopped",
    Hitch.SILENT: "on a worker not heard of for long",
    Hitch.OVERTIME: "running past the time-out",
    Hitch.SLOW: "running far longer than usual",
    Hitch.LONG: "running long, none to compare it with",
    Hitch.PARKED: "parked: no worker here can run it",
    Hitch.DUE: "due, and no worker has queued it",
    Hitch.PAUSED: "first of a paused queue",
    Hitch.WAITING: "first in queue, nobody takes it",
}


def screen(found: Status, space: Space) -> Group:
    """All six, one below the other."""
    from rich.console import Group

    parts: list[RenderableType] = []
    for question, answer in _QUESTIONS:
        given = list(answer(found, space))
        if space.tight:
            parts += [_tight_heading(question, space, cut=len(given) > 1), given[0]]
        else:
            parts += [heading(f"\n{question}" if parts else question), *given]
    if not found.is_complete:
        parts.append(
            line("\nThere may be more than is counted: of the oldest jobs, the newest runs and failures.", "magenta")
        )
    return Group(*parts)


def _tight_heading(question: str, space: Space, *, cut: bool) -> RenderableType:
    """On one line, however narrow: the rows below are counted."""
    more = (_CUT if len(question + _CUT) <= space.width else " …") if cut else ""
    return heading(question[: space.width - len(more)] + more)


def _outstanding(found: Status, space: Space) -> Answer:
    by_lane: dict[tuple[str, str], dict[str, int]] = {}
    oldest: dict[tuple[str, str], Micros] = {}
    for row in found.outstanding:
        lane = (row.kind, row.queue)
        by_lane.setdefault(lane, {})[row.state] = row.jobs
        oldest[lane] = min(oldest.get(lane, row.since), row.since)
    if not by_lane:
        yield line("Nothing: no job waits or runs.")
        return
    states = [state for state in _STATES if any(state in counts for counts in by_lane.values())]
    lanes = sorted(by_lane, key=lambda lane: -sum(by_lane[lane].values()))
    yield from table(
        ("kind", "queue", *states, "oldest"),
        [
            (*lane, *(number(by_lane[lane].get(state, 0)) for state in states), since(oldest[lane], found.at))
            for lane in lanes
        ],
        space,
    )


def _failed(found: Status, space: Space) -> Answer:
    if not found.failed:
        yield line("Nothing.", "green")
        return
    yield from table(
        ("kind", "jobs", "last", "error"),
        [
            (
                row.kind,
                number(row.jobs),
                since(row.last, found.at),
                ": ".join(part for part in (row.error_type, first_line(row.message)) if part) or "-",
            )
            for row in found.failed
        ],
        space,
    )
    yield from hints((f"perdure jobs --state failed --kind {quote(row.kind)}" for row in found.failed), space)


def _stuck(found: Status, space: Space) -> Answer:
    if not found.stuck:
        yield line("Nothing.", "green")
        return
    yield from table(
        ("kind", "queue", "jobs", "for", "why"),
        [
            (row.kind, row.queue, number(row.jobs), since(row.since, found.at), _HITCHES[row.reason])
            for row in found.stuck
        ],
        space,
    )
    yield from hints((f"perdure explain {to_uuid(row.example)}" for row in found.stuck), space)


def _durations(found: Status, space: Space) -> Answer:
    if not found.durations:
        yield line("No run has completed.")
        return
    yield from table(
        ("kind", "runs", "p50", "p95", "p99", "wait p50", "p95 ", "p99 "),
        [
            (row.kind, number(row.runs), *map(measured, row[2:]))
            for row in sorted(found.durations, key=lambda row: -row.runs)
        ],
        space,
    )


def _duplicates(found: Status, space: Space) -> Answer:
    if not found.duplicates:
        yield line("None.", "green")
        return
    yield from table(
        ("kind", "jobs", "what they share"),
        [(row.kind, number(row.jobs), _shared(row)) for row in found.duplicates],
        space,
    )
    yield from hints(map(_look_closer, found.duplicates), space)


def _shared(row: Duplicates) -> str:
    if row.sort is Sameness.BEGUN_AGAIN:
        return "begun again after their worker died"
    return f"{row.sort.replace('_', ' ')} {row.key}"


def _look_closer(row: Duplicates) -> str:
    if row.sort is Sameness.BUSINESS_KEY and row.key is not None:
        return f"perdure jobs --business-key {quote(row.key)}"
    if row.sort is Sameness.BEGUN_AGAIN:
        return f"perdure runs --state lost --kind {quote(row.kind)}"
    return f"perdure job {to_uuid(row.example)}"


def _ran(found: Status, space: Space) -> Answer:
    if not found.ran:
        yield line("Nothing.")
        return
    columns = ("kind", "runs", "completed", "failed", "retried", "lost", "other", "running")
    kinds = sorted(found.ran, key=lambda row: -row.runs)
    yield from table(
        columns,
        [(row.kind, *(number(getattr(row, column)) for column in columns[1:])) for row in kinds],
        space,
    )


_QUESTIONS: tuple[tuple[str, Callable[[Status, Space], Answer]], ...] = (
    ("What is outstanding?", _outstanding),
    ("What failed in the last 24 hours, and why?", _failed),
    ("What is stuck?", _stuck),
    ("How long do jobs take?", _durations),
    ("Are there duplicates?", _duplicates),
    ("What ran in the last hour?", _ran),
)
