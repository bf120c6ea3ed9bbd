"""The six answers as they are printed: a heading that is the question, and what was found. Used by `status`.

Everything fits into 80 columns; where something is wrong, a line says which command to type next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from shlex import quote
from typing import TYPE_CHECKING, Literal, NamedTuple

from perdure.cli.show import span, visible
from perdure.ids import to_uuid
from perdure.store.tallies import Duplicates, Hitch, Sameness, Stuck

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

    from perdure.clock import Micros
    from perdure.ops.status import Status

MOST_ROWS = 10
_ROOMY = 50
_FRAME = 32
_TIGHT_FRAME = 13
"""How many lines are not rows: headings, heads of tables, and where there is room blanks and hints."""
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
_RED = ("failed", "lost")


class Space(NamedTuple):
    """How much room there is for each answer."""

    width: int
    rows: int = MOST_ROWS
    tight: bool = False
    """No blank lines and no hints, only the tables."""


def space_in(width: int, height: int) -> Space:
    """Room for all six at once on a screen of this size: rather fewer rows than a question that is not seen."""
    tight = height < _ROOMY
    frame = _TIGHT_FRAME if tight else _FRAME
    return Space(width, max(1, min(MOST_ROWS, (height - frame) // 6)), tight)


def screen(found: Status, space: Space) -> Group:
    """All six, one below the other."""
    from rich.console import Group

    parts: list[RenderableType] = []
    for question, answer in _QUESTIONS:
        given = list(answer(found, space))
        if space.tight:
            parts += [_heading(question + (_CUT if len(given) > 1 else "")), given[0]]
        else:
            parts += [_heading(f"\n{question}" if parts else question), *given]
    if not found.is_complete:
        parts.append(
            _line("\nThere may be more than is counted: of the oldest jobs, the newest runs and failures.", "yellow")
        )
    return Group(*parts)


Answer = Iterator["RenderableType"]


def _outstanding(found: Status, space: Space) -> Answer:
    by_lane: dict[tuple[str, str], dict[str, int]] = {}
    oldest: dict[tuple[str, str], Micros] = {}
    for row in found.outstanding:
        lane = (row.kind, row.queue)
        by_lane.setdefault(lane, {})[row.state] = row.jobs
        oldest[lane] = min(oldest.get(lane, row.since), row.since)
    if not by_lane:
        yield _line("Nothing: no job waits or runs.")
        return
    states = [state for state in _STATES if any(state in counts for counts in by_lane.values())]
    lanes = sorted(by_lane, key=lambda lane: -sum(by_lane[lane].values()))
    yield from _table(
        ("kind", "queue", *states, "oldest"),
        [
            (*lane, *(_number(by_lane[lane].get(state, 0)) for state in states), _since(oldest[lane], found.at))
            for lane in lanes
        ],
        space,
    )


def _failed(found: Status, space: Space) -> Answer:
    if not found.failed:
        yield _line("Nothing.", "green")
        return
    yield from _table(
        ("kind", "jobs", "last", "error"),
        [
            (
                row.kind,
                _number(row.jobs),
                _since(row.last, found.at),
                ": ".join(part for part in (row.error_type, _first_line(row.message)) if part) or "-",
            )
            for row in found.failed
        ],
        space,
    )
    yield from _hints(f"perdure jobs --state failed --kind {quote(row.kind)}" for row in found.failed)


def _stuck(found: Status, space: Space) -> Answer:
    if not found.stuck:
        yield _line("Nothing.", "green")
        return
    yield from _table(
        ("kind", "queue", "jobs", "for", "why"),
        [
            (row.kind, row.queue, _number(row.jobs), _since(row.since, found.at), _HITCHES[row.reason])
            for row in found.stuck
        ],
        space,
    )
    yield from _hints(map(_way_out, found.stuck))


def _way_out(row: Stuck) -> str:
    if row.reason is Hitch.PAUSED:
        return f"perdure queues resume {quote(row.queue)}"
    return f"perdure explain {to_uuid(row.example)}"


def _durations(found: Status, space: Space) -> Answer:
    if not found.durations:
        yield _line("No run has completed.")
        return
    yield from _table(
        ("kind", "runs", "p50", "p95", "p99", "wait p50", "p95 ", "p99 "),
        [
            (row.kind, _number(row.runs), *map(_milliseconds, row[2:]))
            for row in sorted(found.durations, key=lambda row: -row.runs)
        ],
        space,
    )


def _duplicates(found: Status, space: Space) -> Answer:
    if not found.duplicates:
        yield _line("None.", "green")
        return
    yield from _table(
        ("kind", "jobs", "what they share"),
        [(row.kind, _number(row.jobs), _shared(row)) for row in found.duplicates],
        space,
    )
    yield from _hints(map(_look_closer, found.duplicates))


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
        yield _line("Nothing.")
        return
    columns = ("kind", "runs", "completed", "failed", "retried", "lost", "other", "running")
    kinds = sorted(found.ran, key=lambda row: -row.runs)
    yield from _table(
        columns,
        [(row.kind, *(_number(getattr(row, column)) for column in columns[1:])) for row in kinds],
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


# -- parts -----------------------------------------------------------------------------------------------------------


def _heading(text: str) -> RenderableType:
    return _line(text, "bold")


def _line(text: str, style: str = "") -> RenderableType:
    from rich.text import Text

    return Text(visible(text), style=style)


def _hints(commands: Iterable[str]) -> Answer:
    """The commands that show more: for the first few, each once, on one line however long."""
    from rich.text import Text

    for command in islice(dict.fromkeys(commands), 3):
        yield Text(f"  {visible(command)}", style="dim", no_wrap=True, overflow="ignore")


_TEXTS = ("kind", "queue", "error", "why", "what they share")
_NAMES = ("kind", "queue")
_LEAST = 8
_ENOUGH = 14
"""Names give way first, but not further than this."""
_GAP = 2


def _table(columns: Sequence[str], found: Sequence[Sequence[str]], space: Space) -> Answer:
    """Columns of numbers to the right, texts cut where there is too little room, and how many rows are left out."""
    from rich.table import Table
    from rich.text import Text

    shown = [[visible(cell) for cell in row] for row in found[: space.rows]]
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim")
    for column, width in zip(columns, _widths(columns, shown, space.width), strict=True):
        justify: Literal["left", "right"] = "left" if column in _TEXTS else "right"
        table.add_column(column, justify=justify, width=width, no_wrap=True, overflow="ellipsis")
    for row in shown:
        table.add_row(*(Text(cell, style=_style(name, cell)) for name, cell in zip(columns, row, strict=True)))
    yield table
    if len(found) > space.rows:
        yield _line(f"  and {len(found) - space.rows} more; --json shows all", "dim")


def _widths(columns: Sequence[str], rows: Sequence[Sequence[str]], most: int) -> list[int]:
    """As wide as what is in them; while that is too much, the widest text gives way. (rich would cut the numbers.)"""
    from rich.cells import cell_len

    widths = [max(map(cell_len, column)) for column in zip(columns, *rows, strict=True)]
    texts = [number for number, column in enumerate(columns) if column in _TEXTS]
    while sum(widths) + _GAP * (len(widths) - 1) > most:
        widest = max(texts, key=lambda number: (widths[number] > _ENOUGH and columns[number] in _NAMES, widths[number]))
        if widths[widest] <= _LEAST:
            break
        widths[widest] -= 1
    return widths


def _style(column: str, cell: str) -> str:
    return "red" if column in _RED and cell != "-" else ""


def _number(count: int) -> str:
    return f"{count:,}" if count else "-"


def _since(at: Micros, now: Micros) -> str:
    return span(max(0, round((now - at) / 1_000_000)))


def _milliseconds(ms: int) -> str:
    return span(ms / 1_000) if ms else "<1 ms"


def _first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0]
