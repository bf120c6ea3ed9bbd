"""`perdure status`: what is going on, as six questions and what was found. Asks `ops/status`.

Everything fits into the terminal, 24 lines of 80 columns too; what needs someone comes first, and where something is
wrong, a line says which command to type next.
"""

from __future__ import annotations

import sys
import time
from bisect import bisect_right
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
from perdure.text import length, measured, moment, short_id

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

    from perdure.clock import Micros
    from perdure.ops.status import Status
    from perdure.store.protocols import Store


Section = Iterator["RenderableType"]

EVERY_S = 2.0
_PIPED = 100
_PIPED_ROWS = 10
_MOST_ROWS = 200
_AIRY_ROWS, _HINTED_ROWS = 5, 3
"""Blank lines, and hints, are shown where each table can have this many rows beside them."""
_RED = ("failed", "lost")
_TEXTS = ("kind", "queue", "error", "why", "what they share", "job", "progress")
_NAMES = ("kind", "queue")
_NEVER_DROPPED = ("error", "why", "what they share")
_LEAST = 8
_ENOUGH = 14
"""Names are cut first, but not below this."""
_GAP = 2
_SHOWN = 3
_AND = "  and "
"""How a line begins that says how many rows are left out."""
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
    """Answer six questions: what is stuck, failed, outstanding, slow, duplicated, and what ran in the last hour.

    What needs someone comes first; in a terminal all of it fits on the screen.
    """
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
        out = console(_PIPED)
        room = Space(out.width, options=options)
        if sys.stdout.isatty():
            room = space_for(found, out.width, out.height - 1, options)  # the prompt takes a line
        put(screen(found, room), piped=_PIPED, crop=False)


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
            live.update(screen(found, space_for(found, out.width, out.height, options)), refresh=True)
            time.sleep(EVERY_S)


def _ask(store: Store, stuck_after: int) -> Status:
    from perdure.ops.status import status as status_of

    return status_of(store, current_time(), stuck_after * 1_000_000)


def screen(found: Status, space: Space) -> Group:
    """The answers one below the other, what needs someone first. A question without one takes one line."""
    from rich.console import Group

    return Group(*_parts(found, space))


def _parts(found: Status, space: Space) -> list[RenderableType]:
    parts: list[RenderableType] = [_summary(found), *_notices(found, space)]
    if not found.is_complete:
        text = "There may be more than is counted: of the oldest jobs, the newest runs and failures."
        parts.append(line(text, "magenta", fold=space.airy))
    is_below_a_table = True
    for number, (question, answer, none) in enumerate(_QUESTIONS):
        given = list(answer(found, space))
        blank = "\n" if space.airy and (given or is_below_a_table) else ""
        if given and number >= space.tables:
            parts.append(_in_one_line(question, "no room for the answer; --json has it"))
        elif given:
            more = given.pop() if not space.airy and _says_more(given[-1]) else ""  # there is no line for it
            parts += [line(f"{blank}{question}{more}", "bold", fold=space.airy), *given]
        elif none:
            parts.append(_in_one_line(blank + question, none))
        is_below_a_table = bool(given) or (is_below_a_table and not none)
    return parts[: space.lines]


def _notices(found: Status, space: Space) -> list[RenderableType]:
    """What is told before any question; where there is too little room in one line, which names the commands."""
    sources = (_reserved, _schedules, _limits, _hindrances)
    told = [part for source in sources for part in source(found, space)]
    if not space.is_joined or len(told) < 2:
        return told
    counts = {"reservations": found.reservations, "schedules": found.schedules, "limits": found.limits}
    commands = [f"{command} ({len(rows)})" for command, rows in counts.items() if rows]
    texts = [f"perdure {', '.join(commands)}"] if commands else []
    if found.hindrances:
        texts.append("dead rows: --json")
    return [line(f"See {'; '.join(texts)}", "magenta", fold=False)]


def _says_more(part: RenderableType) -> bool:
    return str(part).startswith(_AND)


def _summary(found: Status) -> RenderableType:
    """What one wants to know at a glance."""
    counts = {
        "stuck": sum(row.jobs for row in found.stuck),
        "failed": sum(row.jobs for row in found.failed),
        "running": sum(row.jobs for row in found.outstanding if row.state == "running"),
        "waiting": sum(row.jobs for row in found.outstanding if row.state != "running"),
    }
    text = ", ".join(f"{count:,} {what}" for what, count in counts.items())
    return line(text, "bold red" if counts["stuck"] or counts["failed"] else "bold", fold=False)


def _in_one_line(question: str, none: str) -> RenderableType:
    from rich.text import Text

    return Text.assemble((question, "bold"), "  ", none, no_wrap=True, overflow="ellipsis")


def _reserved(found: Status, space: Space) -> Section:
    """What keeps the jobs of whole queues waiting, whatever else is shown; one line where there is little room."""
    shown = found.reservations[: 3 if space.airy else 1]
    for row in shown:
        name = "Every queue" if row.queue == EVERY_QUEUE else f"Queue {row.queue}"
        since = length(found.at - row.reserved_at)
        text = f"{name} is reserved by {row.reserved_by} since {since}, until {moment(row.expires_at)}."
        yield line(text, "magenta", fold=space.airy)
    if len(found.reservations) > len(shown) and space.airy:
        yield line(f"And {len(found.reservations) - len(shown)} more: perdure reservations{space.options}", "magenta")


def _running(found: Status, space: Space) -> Section:
    """Those that have said how far they are first."""
    from perdure.ops.progress import progress_text

    said = sorted(found.running, key=lambda one: (one.progress is None, one.since))
    rows = [
        (
            short_id(one.job.row.id),
            one.job.kind,
            f"{one.job.attempts}/{one.job.max_attempts}",
            length(found.at - one.since),
            "-" if one.progress is None else progress_text(one.progress),
        )
        for one in said
    ]
    return table(("job", "kind", "try", "for", "progress"), rows, space)


def _flows(found: Status, space: Space) -> Section:
    from perdure.flow.views import Flow
    from perdure.ops.graph import members

    shown = [Flow(row, found.at) for row in found.flows]
    rows = [
        (
            short_id(flow.raw_id),
            flow.sort,
            flow.name,
            length(found.at - flow.row.created_at),
            members(flow),
        )
        for flow in shown
    ]
    return table(("flow", "sort", "name", "for", "members"), rows, space)


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
    return table(("kind", "queue", *states, "oldest"), rows, space)


def _failed(found: Status, space: Space) -> Section:
    rows = [
        (row.kind, number(row.jobs), length(found.at - row.last), error_line(row.error_type, row.error) or "-")
        for row in found.failed
    ]
    yield from table(("kind", "jobs", "last", "error"), rows, space)
    yield from hints((f"perdure jobs --state failed --kind {quote(row.kind)}" for row in found.failed), space)


def _stuck(found: Status, space: Space) -> Section:
    rows = [
        (row.kind, row.queue, number(row.jobs), length(found.at - row.since), _STUCK_BECAUSE[row.reason])
        for row in found.stuck
    ]
    yield from table(("kind", "queue", "jobs", "for", "why"), rows, space)
    yield from hints((f"perdure explain {to_uuid(row.example)}" for row in found.stuck), space)


def _durations(found: Status, space: Space) -> Section:
    columns = ("kind", "runs", "p50", "p95", "p99", "wait p50", "p95 ", "p99 ")
    kinds = sorted(found.durations, key=lambda row: -row.runs)
    rows = [(row.kind, number(row.runs), *map(measured, row[2:])) for row in kinds]
    return table(columns, rows, space)


def _duplicates(found: Status, space: Space) -> Section:
    rows = [(row.kind, number(row.jobs), _shared(row)) for row in found.duplicates]
    yield from table(("kind", "jobs", "what they share"), rows, space)
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
    return table(columns, rows, space)


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
    yield line(text, "magenta", fold=space.airy)
    yield from hints(["perdure schedules"], space)


def _limits(found: Status, space: Space) -> Section:
    """Those that are paused, which keeps jobs waiting until somebody decides."""
    if found.limits:
        names = [limit.name for limit in found.limits]
        text = f"{'Limit' if len(names) == 1 else 'Limits'} {_few(names)} {'is' if len(names) == 1 else 'are'} paused."
        yield line(text, "magenta", fold=space.airy)
        yield from hints([f"perdure limits resume {quote(names[0])}"] if len(names) == 1 else ["perdure limits"], space)


def _hindrances(found: Status, space: Space) -> Section:
    """What makes the tables of a server grow; nothing where all is well."""
    from perdure.ops.status import remedy

    for row in found.hindrances[: _SHOWN if space.airy else 1]:
        text = f"Dead rows are kept: {remedy(row)}."
        yield line(text, "magenta", fold=space.airy)


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


_QUESTIONS: tuple[tuple[str, Callable[[Status, Space], Section], str], ...] = (
    ("What is stuck?", _stuck, "Nothing."),
    ("What failed in the last 24 hours, and why?", _failed, "Nothing."),
    ("What runs now?", _running, ""),
    ("Which flows have not ended?", _flows, ""),
    ("What is outstanding?", _outstanding, "Nothing: no job waits or runs."),
    ("What ran in the last hour?", _ran, "Nothing."),
    ("How long do jobs take?", _durations, "No run has completed."),
    ("Are there duplicates?", _duplicates, "None."),
)
"""Each with the answer of those that find nothing. What runs now, and which flows, is not asked where nothing does."""


class Space(NamedTuple):
    """How much room there is below each question, and what hints end with."""

    width: int
    rows: int = _PIPED_ROWS
    hints: int = 3
    """How many commands that show more are named below a table."""
    airy: bool = True
    """With blank lines, and long lines folded."""
    options: str = ""
    """What the commands in hints need, to be about the same database."""
    is_joined: bool = False
    """What is told above the questions takes one line."""
    tables: int = len(_QUESTIONS)
    """How many questions, from the first on, are answered by a table; the others say that there is an answer."""
    lines: int | None = None
    """After how many lines it ends, whatever comes then; only where each part is one line."""


def space_for(found: Status, width: int, height: int, options: str) -> Space:
    """Room for all questions at once on a screen of this size, as much of it as can be used: blank lines go first, then
    rows, then hints; but a few rows are worth more than either.

    Never more lines than the screen has: where a row for each is too much, what is told above the questions goes into
    one line, then the answers go, the last ones first; and of a few lines the first ones stay.
    """
    spaces = list(_smaller_and_smaller(Space(width, 1, options=options)))
    for least, space in spaces:
        rows = bisect_right(range(1, _MOST_ROWS), height, key=partial(_height_with, found, space))
        if rows >= least:
            return space._replace(rows=rows)
    return spaces[-1][1]._replace(lines=height)


def _smaller_and_smaller(space: Space) -> Iterator[tuple[int, Space]]:
    """Each with how many rows it has to have room for; otherwise the next one is better."""
    yield _AIRY_ROWS, space
    yield _HINTED_ROWS, space._replace(hints=1, airy=False)
    space = space._replace(hints=0, airy=False)
    yield 1, space
    for tables in reversed(range(len(_QUESTIONS) + 1)):
        yield 1, space._replace(is_joined=True, tables=tables)


def _height_with(found: Status, space: Space, rows: int) -> int:
    return _height(_parts(found, space._replace(rows=rows)), space.width)


def _height(parts: Sequence[RenderableType], width: int) -> int:
    """How many lines these take on a screen. Hints are printed as they are, and the terminal folds them."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    out = Console(width=width)
    lines = 0
    for part in parts:
        if isinstance(part, Table):
            lines += part.row_count + 1
        elif isinstance(part, Text) and part.overflow == "ignore":
            lines += sum(max(1, -(-each.cell_len // width)) for each in part.split("\n"))
        elif isinstance(part, Text):
            lines += len(part.wrap(out, width))
    return lines


def line(text: str, style: str = "", *, fold: bool = True) -> RenderableType:
    """Folded where it is too long, or one line that is cut."""
    from rich.text import Text

    shown = visible(text) if fold else visible(text).replace("\n", " ")
    return Text(shown, style=style, no_wrap=not fold, overflow="fold" if fold else "ellipsis")


def hints(commands: Iterable[str], space: Space) -> Section:
    """The commands that show more: for the first few, each once, on one line however long."""
    from rich.text import Text

    for command in islice(dict.fromkeys(commands), space.hints):
        yield Text(f"  {visible(command)}{space.options}", style="dim", no_wrap=True, overflow="ignore")


def table(columns: Sequence[str], found: Sequence[Sequence[str]], space: Space) -> Section:
    """Columns of numbers to the right, texts cut where there is too little room, and what is left out: columns in a
    narrow terminal, and rows. Nothing without any rows."""
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    if not found:
        return
    shown = [[visible(cell).replace("\n", " ") for cell in row] for row in found[: space.rows]]
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
    if left_out and space.airy:
        yield line(f"  no room for {', '.join(dict.fromkeys(left_out))}", "dim")
    if len(found) > space.rows:
        yield line(f"{_AND}{len(found) - space.rows} more; --json shows all", "dim")


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
