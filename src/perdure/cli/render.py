"""How commands print: JSON for programs; tables, fields, times and numbers for people; errors as one line.

Used by every command; rich is loaded when something is printed with it. Colours are rich's: none where the output is no
terminal, or with NO_COLOR.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from perdure.clock import Clock, Micros, SystemClock, to_micros
from perdure.text import distance, first_line
from perdure.text import moment as utc

if TYPE_CHECKING:
    from uuid import UUID

    from rich.console import Console, RenderableType

    from perdure.errors import PerdureError


T = TypeVar("T")
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Ask no questions.")]

_URL_PASSWORD = re.compile(r"(\w+://[^\s/:@]*):\S*@")
_NAMED_PASSWORD = re.compile(r"(password=)[^\s&]+", re.IGNORECASE)
_UNSEEN = "\x7f-\x9f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
"""DEL, C1, what turns the direction of writing or takes no room (except the joiners, which some scripts need), and
halves of a character, which no terminal can be sent."""
_ACTED_ON = re.compile(f"[\x00-\x08\x0b-\x1f{_UNSEEN}]")
_IN_JSON = re.compile(f"[{_UNSEEN}]")
SHORT = 8
"""How much of an id's tail lists show where there is little room; enough to name the job by."""

_WIDE = 130
_GAP = 2
_NARROWEST = 10
"""Columns that may be cut or folded are not made narrower than this."""
_PIPED = 200
_STYLES = {  # can be read on black and on white; yellow cannot
    "failed": "red",
    "problem": "red",
    "overdue": "red",
    "violation": "red",
    "lost": "red",
    "timed_out": "red",
    "silent": "red",
    "gone": "red",
    "parked": "magenta",
    "paused": "magenta",
    "warning": "magenta",
    "running": "cyan",
    "completed": "green",
    "live": "green",
    "ok": "green",
}
_STYLED = ("state", "verdict", "severity")
PAUSE_S = 1.0
KNOWN = 200
"""A look goes back until it has met this many that were there before: ids of several processes do not always come in
order, and what was shown may have changed."""
_MOST = 5_000
_REMEMBERED = 20_000


def one_line(message: str) -> str:
    return " ".join(visible(message).split())


def error_text(error: PerdureError, database: str = "") -> str:
    """The error as it is printed: what to do next in the words of the command line, with these options to name the
    database, and the code last."""
    message = error.message
    if error.remedy is not None:
        message = message.removesuffix(error.remedy.python) + error.remedy.shell.replace("{database}", database)
    return f"{message} [{error.code}]"


def visible(text: str) -> str:
    """The text without passwords of URLs, and with its control characters made visible, so that no payload can control
    the terminal; line breaks stay."""
    harmless = _ACTED_ON.sub(_escaped, text.replace("\r\n", "\n"))
    return _NAMED_PASSWORD.sub(r"\1***", _URL_PASSWORD.sub(r"\1:***@", harmless))


def _escaped(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"


def json_text(value: object, indent: int | None = None) -> str:
    """JSON that can be looked at in a terminal: whatever that would act on is escaped, which means the same in JSON."""
    import json

    text = json.dumps(value, indent=indent, ensure_ascii=False, default=str)
    return _IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def sentence(text: str) -> str:
    """With a full stop, unless it ends like a sentence already."""
    return text if text.endswith((".", "!", "?")) else f"{text}."


def error_line(error_type: str | None, message: str | None) -> str:
    return ": ".join(filter(None, (error_type, first_line(message or ""))))


def print_json(value: object) -> None:
    print(json_text(value, indent=2))


def print_json_line(value: object) -> None:
    """One object on one line, at once: for what is followed."""
    print(json_text(value), flush=True)


def moment(at: datetime | None) -> str | None:
    """A time as people read it, in UTC to the second."""
    return None if at is None else utc(to_micros(at))


def minute(at: datetime) -> str:
    """A time in UTC, below a heading that says so; without seconds where it has none."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}".removesuffix(":00")


class _Command:
    """What all that a command prints has in common; a process runs one."""

    clock: Clock = SystemClock()


def go_by(clock: Clock) -> None:
    """From here on the time is that of the command's database."""
    _Command.clock = clock


def current_time() -> Micros:
    """By the clock of the command's database; of a command that needs none, by this machine's."""
    return _Command.clock.now()


def ago(at: datetime | None, now: datetime | None = None) -> str:
    """How long ago a time is, or how far ahead, in one unit."""
    return "-" if at is None else distance(to_micros(at), current_time() if now is None else to_micros(now))


def id_text(id: UUID) -> str:
    """An id as lists show it: whole where there is room, else its tail."""
    return str(id) if console().width >= _WIDE else id.hex[-SHORT:]


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    keep: Sequence[str] = (),
    clip: Sequence[str] = (),
    drop: Sequence[str] = (),
) -> Sequence[str]:
    """The columns in `keep` are never broken, so that they can be searched for; those in `clip` are cut to one line
    where there is no room; those in `drop` are left out then, the first one named first; if that is not enough, fields
    are printed one below the other. Returns the columns shown."""
    cells = [dict(zip(columns, map(visible, row), strict=True)) for row in rows]
    width = console().width
    sizes = {column: _size(column, cells) for column in columns}
    least = {column: sizes[column] if column in keep else min(sizes[column], _NARROWEST) for column in columns}
    shown = list(columns)
    for column in drop:
        if _breadth(least[each] for each in shown) > width and column in shown:
            shown.remove(column)
    if _breadth(least[each] for each in shown) > width:
        _print_stacked(columns, cells)
        return columns
    room = _room(shown, sizes, [column for column in clip if column in shown], width)
    _print_rows(shown, cells, keep, room)
    return shown


def _size(column: str, cells: Sequence[Mapping[str, str]]) -> int:
    from rich.cells import cell_len

    lines = (line for row in cells for line in row[column].split("\n"))
    return max([cell_len(column), *map(cell_len, lines)])


def _breadth(sizes: Iterable[int]) -> int:
    """Of columns of these sizes, with the gaps between them."""
    return sum(size + _GAP for size in sizes) - _GAP


def _room(columns: Sequence[str], sizes: Mapping[str, int], clip: Sequence[str], width: int) -> dict[str, int]:
    """How wide each column that may be cut can be, so that the others need not be broken."""
    cut: dict[str, int] = {}
    free = width - _breadth(0 if column in clip else sizes[column] for column in columns)
    for left, column in zip(range(len(clip), 0, -1), sorted(clip, key=lambda column: sizes[column]), strict=True):
        cut[column] = max(_NARROWEST, min(sizes[column], free // left))
        free -= cut[column]
    return cut


def _print_rows(
    columns: Sequence[str], cells: Sequence[Mapping[str, str]], keep: Sequence[str], room: Mapping[str, int]
) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0))
    for column in columns:
        table.add_column(column, no_wrap=column in keep, overflow="fold")
    for row in cells:
        texts = {column: Text(row[column], style=_style(column, row[column])) for column in columns}
        for column, most in room.items():
            texts[column].truncate(most, overflow="ellipsis")
        table.add_row(*texts.values())
    put(table)


def _print_stacked(columns: Sequence[str], cells: Sequence[Mapping[str, str]]) -> None:
    for number, row in enumerate(cells):
        if number:
            print()
        print_fields((column, row[column] or None) for column in columns)


def print_fields(fields: Iterable[tuple[str, str | None]]) -> None:
    """Names and values, one below the other; those without a value are left out."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2), expand=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in fields:
        if value is not None:
            table.add_row(Text(visible(name), style="dim"), Text(visible(value), style=_style(name, value)))
    put(table)


def print_heading(text: str) -> None:
    from rich.text import Text

    put(Text(f"\n{text}", style="bold"))


def print_line(columns: Sequence[tuple[str, int]], *, drop: int) -> None:
    """One line of a list that is followed, at once: each text padded to its width, the last one as it is.

    Where there is no room, the column `drop` is left out, and then the widest cut.
    """
    from rich.text import Text

    out = console()
    texts = [Text(visible(" ".join(text.split())), style=_STYLES.get(text, "")) for text, _ in columns]
    sizes = {number: max(width, texts[number].cell_len) for number, (_, width) in enumerate(columns[:-1])}
    if _breadth(sizes.values()) > out.width:
        del sizes[drop]
    widest = max(sizes, key=lambda number: sizes[number])
    sizes[widest] = max(_NARROWEST - 2, sizes[widest] - max(0, _breadth(sizes.values()) - out.width))
    for number, size in sizes.items():
        texts[number].truncate(size, overflow="ellipsis", pad=True)
    line = Text("  ").join([*(texts[number] for number in sizes), texts[-1]])
    line.rstrip()
    out.print(line, overflow="ellipsis", no_wrap=True, crop=True)
    sys.stdout.flush()


def put(what: RenderableType, *, piped: int = _PIPED, crop: bool = True) -> None:
    """Print it. A pipe has no width, and a search in it needs whole lines: `piped` columns, no blanks at the end."""
    out = console(piped)
    if out.is_terminal:
        out.print(what, crop=crop)
        return
    with out.capture() as captured:
        out.print(what, crop=crop)
    print("\n".join(map(str.rstrip, captured.get().removesuffix("\n").split("\n"))))


def console(piped: int = _PIPED) -> Console:
    from rich.console import Console

    width = None if sys.stdout.isatty() or os.environ.get("COLUMNS") else piped
    return Console(width=width, highlight=False, soft_wrap=False, emoji=False, markup=False)


def _style(column: str, cell: str) -> str:
    return _STYLES.get(cell, "") if column in _STYLED else ""


def news(read: Callable[[], Iterable[T]], mark: Callable[[T], tuple[object, object]], first: int) -> Iterator[T]:
    """What is new or has changed since it was given, oldest first; then sleeps and looks again, for ever.

    What changes further back than the newest `KNOWN` or so is not seen: a look does not read everything again.

    `read` returns the newest first. `mark` returns what a thing is and its state. The first look gives `first` of them.
    """
    seen: dict[object, object] = {}
    most = first
    while True:
        yield from reversed(_unseen(islice(read(), most + KNOWN), mark, seen, most))
        most = _MOST
        for name in list(seen)[: len(seen) - _REMEMBERED if len(seen) > 2 * _REMEMBERED else 0]:
            del seen[name]
        time.sleep(PAUSE_S)


def _unseen(
    things: Iterable[T], mark: Callable[[T], tuple[object, object]], seen: dict[object, object], most: int
) -> list[T]:
    fresh: list[T] = []
    known = 0
    for thing in things:
        name, state = mark(thing)
        known += name in seen
        if seen.get(name) != state and len(fresh) < most:
            fresh.append(thing)
        seen[name] = state
        if known >= KNOWN:
            break
    return fresh
