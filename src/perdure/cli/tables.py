"""Tables, fields and lines for people, as wide as the terminal. Used by the commands that list or show; asks rich.

A narrow terminal costs columns, the least important first; what does not fit even so is printed one below the other.
Colours are rich's: none where the output is no terminal, or with NO_COLOR; a pipe gets no blanks at the ends of lines.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from perdure.cli.show import visible

if TYPE_CHECKING:
    from uuid import UUID

    from rich.console import Console, RenderableType

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
    where there is no room; those in `drop` are left out then, the first one named first. Answers the columns shown."""
    cells = [dict(zip(columns, map(visible, row), strict=True)) for row in rows]
    width = console().width
    sizes = {column: _size(column, cells) for column in columns}
    least = {column: sizes[column] if column in keep else min(sizes[column], _NARROWEST) for column in columns}
    shown = list(columns)
    for column in drop:
        if _breadth(shown, least) > width and column in shown:
            shown.remove(column)
    if _breadth(shown, least) > width:
        _print_stacked(columns, cells)
        return columns
    room = _room(shown, sizes, [column for column in clip if column in shown], width)
    _print_rows(shown, cells, keep, room)
    return shown


def _size(column: str, cells: Sequence[Mapping[str, str]]) -> int:
    from rich.cells import cell_len

    lines = (line for row in cells for line in row[column].split("\n"))
    return max([cell_len(column), *map(cell_len, lines)])


def _breadth(columns: Sequence[str], sizes: Mapping[str, int]) -> int:
    return sum(sizes[column] for column in columns) + _GAP * (len(columns) - 1)


def _room(columns: Sequence[str], sizes: Mapping[str, int], clip: Sequence[str], width: int) -> dict[str, int]:
    """How wide each column that may be cut can be, so that the others need not be broken."""
    cut: dict[str, int] = {}
    free = width - _breadth(columns, {column: 0 if column in clip else sizes[column] for column in columns})
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
    """One line of a list that goes on, at once: each text padded to its width, the last one as it is.

    Where there is no room, the column `drop` is left out, and then the widest cut.
    """
    from rich.text import Text

    out = console()
    texts = [Text(visible(" ".join(text.split())), style=_STYLES.get(text, "")) for text, _ in columns]
    sizes = {number: max(width, texts[number].cell_len) for number, (_, width) in enumerate(columns[:-1])}
    if _spread(sizes) > out.width:
        del sizes[drop]
    widest = max(sizes, key=lambda number: sizes[number])
    sizes[widest] = max(_NARROWEST - 2, sizes[widest] - max(0, _spread(sizes) - out.width))
    for number, size in sizes.items():
        texts[number].truncate(size, overflow="ellipsis", pad=True)
    line = Text("  ").join([*(texts[number] for number in sizes), texts[-1]])
    line.rstrip()
    out.print(line, overflow="ellipsis", no_wrap=True, crop=True)
    sys.stdout.flush()


def _spread(sizes: Mapping[int, int]) -> int:
    return sum(sizes.values()) + _GAP * (len(sizes) - 1)


def put(what: RenderableType, *, piped: int = _PIPED, crop: bool = True) -> None:
    """Print it. A pipe has no width, and whoever searches through it wants whole lines: `piped` columns."""
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
