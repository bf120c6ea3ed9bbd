"""How the answers of `status` are laid out: headings, tables as wide as the terminal, and hints. Used by `answers`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Literal, NamedTuple

from perdure.cli.show import visible
from perdure.text import span

if TYPE_CHECKING:
    from rich.console import RenderableType

    from perdure.clock import Micros

MOST_ROWS = 10
_ROOMY = 50
_FRAME = 32
_TIGHT_FRAME = 13
"""How many lines are not rows: headings, heads of tables, and where there is room blanks and hints."""
_RED = ("failed", "lost")
_TEXTS = ("kind", "queue", "error", "why", "what they share")
_NAMES = ("kind", "queue")
_ANSWERS = ("error", "why", "what they share")
_LEAST = 8
_ENOUGH = 14
"""Names give way first, but not further than this."""
_GAP = 2

Answer = Iterator["RenderableType"]


class Space(NamedTuple):
    """How much room there is for each answer, and what hints end with."""

    width: int
    rows: int = MOST_ROWS
    tight: bool = False
    """No blank lines and no hints, only the tables."""
    options: str = ""
    """What the commands in hints need, to be about the same database."""


def space_in(width: int, height: int) -> Space:
    """Room for all six at once on a screen of this size: rather fewer rows than a question that is not seen."""
    tight = height < _ROOMY
    frame = _TIGHT_FRAME if tight else _FRAME
    return Space(width, max(1, min(MOST_ROWS, (height - frame) // 6)), tight)


def heading(text: str) -> RenderableType:
    return line(text, "bold")


def line(text: str, style: str = "") -> RenderableType:
    from rich.text import Text

    return Text(visible(text), style=style)


def hints(commands: Iterable[str], space: Space) -> Answer:
    """The commands that show more: for the first few, each once, on one line however long."""
    from rich.text import Text

    for command in islice(dict.fromkeys(commands), 3):
        yield Text(f"  {visible(command)}{space.options}", style="dim", no_wrap=True, overflow="ignore")


def table(columns: Sequence[str], found: Sequence[Sequence[str]], space: Space) -> Answer:
    """Columns of numbers to the right, texts cut where there is too little room, and what is left out: columns in a
    narrow terminal, and rows."""
    from rich.table import Table
    from rich.text import Text

    shown = [[visible(cell) for cell in row] for row in found[: space.rows]]
    wanted = _fitting(columns, shown, space.width)
    left_out = [column.strip() for number, column in enumerate(columns) if number not in wanted]
    columns, shown = [columns[number] for number in wanted], [[row[number] for number in wanted] for row in shown]
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim")
    for column, width in zip(columns, _widths(columns, shown, space.width), strict=True):
        justify: Literal["left", "right"] = "left" if column in _TEXTS else "right"
        table.add_column(column, justify=justify, width=width, no_wrap=True, overflow="ellipsis")
    for row in shown:
        table.add_row(*(Text(cell, style=_style(name, cell)) for name, cell in zip(columns, row, strict=True)))
    yield table
    if left_out:
        yield line(f"  no room for {', '.join(dict.fromkeys(left_out))}", "dim")
    if len(found) > space.rows:
        yield line(f"  and {len(found) - space.rows} more; --json shows all", "dim")


def _fitting(columns: Sequence[str], rows: Sequence[Sequence[str]], most: int) -> list[int]:
    """The numbers of the columns for which there is room, with texts as narrow as they get: the last ones have to go,
    but before them the queue, and never the texts that are the answer."""
    least = [_least(column, cells) for column, *cells in zip(columns, *rows, strict=True)]
    wanted = list(range(len(columns)))
    for number in sorted(wanted[1:], key=lambda number: (columns[number] != "queue", -number)):
        if sum(least[each] + _GAP for each in wanted) - _GAP > most and columns[number] not in _ANSWERS:
            wanted.remove(number)
    return wanted


def _least(column: str, cells: Sequence[str]) -> int:
    from rich.cells import cell_len

    wide = max(map(cell_len, (column, *cells)))
    return min(wide, _LEAST) if column in _TEXTS else wide


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


def number(count: int) -> str:
    return f"{count:,}" if count else "-"


def since(at: Micros, now: Micros) -> str:
    return span(max(0, round((now - at) / 1_000_000)))
