"""`perdure status`: what is going on, as six questions and what was found. Asks `ops/status`.

Everything fits into 80 columns; where something is wrong, a line says which command to type next.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer

from perdure.cli.render import Json, console, current_time, error_line, print_json, print_json_line, put, visible
from perdure.cli.target import App, Url, database_options, existing_database
from perdure.ids import to_uuid
from perdure.store.rows import EVERY_QUEUE, DuplicateReason, Duplicates, StuckReason
from perdure.text import length, measured, moment

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

    from perdure.clock import Micros
    from perdure.ops.status import Status
    from perdure.store.protocols import Store


Section = Iterator["RenderableType"]

EVERY_S = 2.0
_PIPED = 100
MOST_ROWS = 10
_ROOMY = 50
_FRAME = 32
_TIGHT_FRAME = 13
"""How many lines are not rows: headings, heads of tables, and where there is room blanks and hints."""
_RED = ("failed", "lost")
_TEXTS = ("kind", "queue", "error", "why", "what they share")
_NAMES = ("kind", "queue")
_NEVER_DROPPED = ("error", "why", "what they share")
_LEAST = 8
_ENOUGH = 14
"""Names are cut first, but not below this."""
_GAP = 2
_ABOUT_SCHEDULES = 3
"""Lines below the six questions, where there is something to say."""
_SHOWN = 3
_CUT = "  (perdure status shows more)"
_STATES = ("queued", "scheduled", "running", "paused", "blocked", "held", "parked")
_STUCK_BECAUSE = {
    StuckReason.LOST: "on a worker that has stopped",
    StuckReason.SILENT: "on a worker not heard of for long",
    StuckReason.OVERTIME: "running past the time-out",
    StuckReason.SLOW: "running far longer than usual",
    StuckReason.LONG: "running long, none to compare it with",
    StuckReason.PARKED: "parked: no worker here can run it",
    StuckReason.DUE: "due, and no worker has queued it",
    StuckReason.PAUSED: "first of a paused queue",
    StuckReason.WAITING: "first in queue, nobody takes it",
}

Watch = Annotated[
    bool,
    typer.Option(
        "--watch",
        "-w",
        help="Repeat every 2 s, until Ctrl-C. Without a terminal once; with --json one line each time.",
    ),
]

StuckAfter = Annotated[
    int, typer.Option("--stuck-after", min=1, max=10**9, metavar="SECONDS", help="How long is too long to wait or run.")
]


def status(
    *, watch: Watch = False, stuck_after: StuckAfter = 300, url: Url = None, app: App = None, json: Json = False
) -> None:
    """Answer six questions: what is outstanding, failed, stuck, slow, duplicated, and what ran in the last hour."""
    with existing_database(url, app) as store:
        ask = partial(_ask, store, stuck_after)
        if not watch or not (json or sys.stdout.isatty()):
            _print_once(ask(), database_options(url, app), json=json)
            return
        with suppress(KeyboardInterrupt):  # that is how a live view ends
            if json:
                _print_lines(ask)
            else:
                _show_live(ask, database_options(url, app))


def _print_once(found: Status, options: str, *, json: bool) -> None:
    if json:
        from perdure.ops.forms import status_json

        print_json(status_json(found))
    else:
        put(screen(found, Space(console(_PIPED).width, options=options)), piped=_PIPED, crop=False)


def _print_lines(ask: Callable[[], Status]) -> None:
    from perdure.ops.forms import status_json

    while True:
        print_json_line(status_json(ask()))
        time.sleep(EVERY_S)


def _show_live(ask: Callable[[], Status], options: str) -> None:
    from rich.live import Live

    out = console()
    with Live(console=out, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            found = ask()
            height = out.height - (_ABOUT_SCHEDULES if found.schedules else 0) - _SHOWN * bool(found.hindrances)
            live.update(screen(found, space_in(out.width, height)._replace(options=options)), refresh=True)
            time.sleep(EVERY_S)


def _ask(store: Store, stuck_after: int) -> Status:
    from perdure.ops.status import status as status_of

    return status_of(store, current_time(), stuck_after * 1_000_000)


def screen(found: Status, space: Space) -> Group:
    """All six, one below the other."""
    from rich.console import Group

    parts: list[RenderableType] = list(_reserved(found, space))
    for question, answer in _QUESTIONS:
        given = list(answer(found, space))
        if space.tight:
            parts += [_tight_heading(question, space, cut=len(given) > 1), given[0]]
        else:
            parts += [line(f"\n{question}" if parts else question, "bold"), *given]
    parts += _schedules(found, space)
    parts += _hindrances(found, space)
    if not found.is_complete:
        parts.append(
            line("\nThere may be more than is counted: of the oldest jobs, the newest runs and failures.", "magenta")
        )
    return Group(*parts)


def _reserved(found: Status, space: Space) -> Section:
    """What keeps the jobs of whole queues waiting, whatever else is shown; one line where there is little room."""
    shown = found.reservations[: 1 if space.tight else 3]
    for row in shown:
        name = "Every queue" if row.queue == EVERY_QUEUE else f"Queue {row.queue}"
        since = length(found.at - row.reserved_at)
        text = f"{name} is reserved by {row.reserved_by} since {since}, until {moment(row.expires_at)}."
        yield line(text[: space.width] if space.tight else text, "magenta")
    if len(found.reservations) > len(shown) and not space.tight:
        yield line(f"And {len(found.reservations) - len(shown)} more: perdure reservations{space.options}", "magenta")


def _tight_heading(question: str, space: Space, *, cut: bool) -> RenderableType:
    """On one line, however narrow: the rows below are counted."""
    more = (_CUT if len(question + _CUT) <= space.width else " …") if cut else ""
    return line(question[: space.width - len(more)] + more, "bold")


def _outstanding(found: Status, space: Space) -> Section:
    by_lane: dict[tuple[str, str], dict[str, int]] = {}
    oldest: dict[tuple[str, str], Micros] = {}
    for row in found.outstanding:
        lane = (row.kind, row.queue)
        by_lane.setdefault(lane, {})[row.state] = row.jobs
        oldest[lane] = min(oldest.get(lane, row.since), row.since)
    states = [state for state in _STATES if any(state in counts for counts in by_lane.values())]
    lanes = sorted(by_lane, key=lambda lane: -sum(by_lane[lane].values()))
    rows = [
        (*lane, *(number(by_lane[lane].get(state, 0)) for state in states), length(found.at - oldest[lane]))
        for lane in lanes
    ]
    return table(("kind", "queue", *states, "oldest"), rows, space, none="Nothing: no job waits or runs.")


def _failed(found: Status, space: Space) -> Section:
    rows = [
        (row.kind, number(row.jobs), length(found.at - row.last), error_line(row.error_type, row.message) or "-")
        for row in found.failed
    ]
    yield from table(("kind", "jobs", "last", "error"), rows, space, none="Nothing.", style="green")
    yield from hints((f"perdure jobs --state failed --kind {quote(row.kind)}" for row in found.failed), space)


def _stuck(found: Status, space: Space) -> Section:
    rows = [
        (row.kind, row.queue, number(row.jobs), length(found.at - row.since), _STUCK_BECAUSE[row.reason])
        for row in found.stuck
    ]
    yield from table(("kind", "queue", "jobs", "for", "why"), rows, space, none="Nothing.", style="green")
    yield from hints((f"perdure explain {to_uuid(row.example)}" for row in found.stuck), space)


def _durations(found: Status, space: Space) -> Section:
    columns = ("kind", "runs", "p50", "p95", "p99", "wait p50", "p95 ", "p99 ")
    kinds = sorted(found.durations, key=lambda row: -row.runs)
    rows = [(row.kind, number(row.runs), *map(measured, row[2:])) for row in kinds]
    return table(columns, rows, space, none="No run has completed.")


def _duplicates(found: Status, space: Space) -> Section:
    rows = [(row.kind, number(row.jobs), _shared(row)) for row in found.duplicates]
    yield from table(("kind", "jobs", "what they share"), rows, space, none="None.", style="green")
    yield from hints(map(_look_closer, found.duplicates), space)


def _shared(row: Duplicates) -> str:
    if row.sort is DuplicateReason.BEGUN_AGAIN:
        return "begun again after their worker died"
    return f"{row.sort.replace('_', ' ')} {row.key}"


def _look_closer(row: Duplicates) -> str:
    if row.sort is DuplicateReason.BUSINESS_KEY and row.key is not None:
        return f"perdure jobs --business-key {quote(row.key)}"
    if row.sort is DuplicateReason.BEGUN_AGAIN:
        return f"perdure runs --state lost --kind {quote(row.kind)}"
    return f"perdure job {to_uuid(row.example)}"


def _ran(found: Status, space: Space) -> Section:
    columns = ("kind", "runs", "completed", "failed", "retried", "lost", "other", "running")
    kinds = sorted(found.ran, key=lambda row: -row.runs)
    rows = [(row.kind, *(number(getattr(row, column)) for column in columns[1:])) for row in kinds]
    return table(columns, rows, space, none="Nothing.")


def _schedules(found: Status, space: Space) -> Section:
    """Those that someone should look at; nothing where all is well."""
    if not found.schedules:
        return
    resting = [row.name for row in found.schedules if row.problem is not None]
    overdue = [row.name for row in found.schedules if row.problem is None]
    parts = [
        f"{_few(names)} {'is' if len(names) == 1 else 'are'} {what}"
        for names, what in ((overdue, "overdue: no worker takes the instants"), (resting, "at rest with a problem"))
        if names
    ]
    text = f"Schedules: {'; '.join(parts)}."
    if space.tight:
        yield line(text[: space.width], "magenta")
    else:
        yield line(f"\n{text}", "magenta")
        yield from hints(["perdure schedules"], space)


def _hindrances(found: Status, space: Space) -> Section:
    """What makes the tables of a server grow; nothing where all is well."""
    from perdure.ops.status import remedy

    for number, row in enumerate(found.hindrances[:_SHOWN]):
        text = f"Dead rows are kept: {remedy(row)}."
        if space.tight:
            yield line(text[: space.width], "magenta")
            return
        yield line(f"\n{text}" if not number else text, "magenta")


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


_QUESTIONS: tuple[tuple[str, Callable[[Status, Space], Section]], ...] = (
    ("What is outstanding?", _outstanding),
    ("What failed in the last 24 hours, and why?", _failed),
    ("What is stuck?", _stuck),
    ("How long do jobs take?", _durations),
    ("Are there duplicates?", _duplicates),
    ("What ran in the last hour?", _ran),
)


class Space(NamedTuple):
    """How much room there is below each question, and what hints end with."""

    width: int
    rows: int = MOST_ROWS
    tight: bool = False
    """No blank lines and no hints, only the tables."""
    options: str = ""
    """What the commands in hints need, to be about the same database."""


def space_in(width: int, height: int) -> Space:
    """Room for all six at once on a screen of this size: fewer rows are better than a question that is not seen."""
    tight = height < _ROOMY
    frame = _TIGHT_FRAME if tight else _FRAME
    return Space(width, max(1, min(MOST_ROWS, (height - frame) // 6)), tight)


def line(text: str, style: str = "") -> RenderableType:
    from rich.text import Text

    return Text(visible(text), style=style)


def hints(commands: Iterable[str], space: Space) -> Section:
    """The commands that show more: for the first few, each once, on one line however long."""
    from rich.text import Text

    for command in islice(dict.fromkeys(commands), 3):
        yield Text(f"  {visible(command)}{space.options}", style="dim", no_wrap=True, overflow="ignore")


def table(
    columns: Sequence[str], found: Sequence[Sequence[str]], space: Space, *, none: str, style: str = ""
) -> Section:
    """Columns of numbers to the right, texts cut where there is too little room, and what is left out: columns in a
    narrow terminal, and rows. Without any rows, the sentence `none`."""
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    if not found:
        yield line(none, style)
        return
    shown = [[visible(cell) for cell in row] for row in found[: space.rows]]
    sizes = [max(map(cell_len, column)) for column in zip(columns, *shown, strict=True)]
    wanted = _fitting(columns, sizes, space.width)
    left_out = [column.strip() for number, column in enumerate(columns) if number not in wanted]
    columns, shown = [columns[number] for number in wanted], [[row[number] for number in wanted] for row in shown]
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim")
    widths = _widths(columns, [sizes[number] for number in wanted], space.width)
    for column, width in zip(columns, widths, strict=True):
        justify: Literal["left", "right"] = "left" if column in _TEXTS else "right"
        table.add_column(column, justify=justify, width=width, no_wrap=True, overflow="ellipsis")
    for row in shown:
        table.add_row(
            *(
                Text(cell, style="red" if name in _RED and cell != "-" else "")
                for name, cell in zip(columns, row, strict=True)
            )
        )
    yield table
    if left_out:
        yield line(f"  no room for {', '.join(dict.fromkeys(left_out))}", "dim")
    if len(found) > space.rows:
        yield line(f"  and {len(found) - space.rows} more; --json shows all", "dim")


def _fitting(columns: Sequence[str], sizes: Sequence[int], most: int) -> list[int]:
    """The numbers of the columns for which there is room, with texts as narrow as they get: the last ones have to go,
    but before them the queue, and never the texts that say what is wrong."""
    least = [min(size, _LEAST) if name in _TEXTS else size for name, size in zip(columns, sizes, strict=True)]
    wanted = list(range(len(columns)))
    for number in sorted(wanted[1:], key=lambda number: (columns[number] != "queue", -number)):
        if sum(least[each] + _GAP for each in wanted) - _GAP > most and columns[number] not in _NEVER_DROPPED:
            wanted.remove(number)
    return wanted


def _widths(columns: Sequence[str], sizes: list[int], most: int) -> list[int]:
    """As wide as what is in them; while that is too much, the widest text is cut. (rich would cut the numbers.)"""
    widths = list(sizes)
    texts = [number for number, column in enumerate(columns) if column in _TEXTS]
    while sum(widths) + _GAP * (len(widths) - 1) > most:
        widest = max(texts, key=lambda number: (widths[number] > _ENOUGH and columns[number] in _NAMES, widths[number]))
        if widths[widest] <= _LEAST:
            break
        widths[widest] -= 1
    return widths


def number(count: int) -> str:
    return f"{count:,}" if count else "-"
