"""How commands print: tables and fields for people, JSON for programs, errors as one line without secrets.

Colours are rich's: none where the output is no terminal, or with NO_COLOR. Whatever a job brought along is shown with
its control characters made visible, so that no payload can talk to the terminal.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from uuid import UUID

    from rich.console import Console

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

SHORT = 8
"""How much of an id's tail lists show where there is little room; enough to name the job by."""

_WIDE = 130
_GAP = 2
_NARROWEST = 10
_PIPED = 200
_STYLES = {
    "failed": "red",
    "problem": "red",
    "violation": "red",
    "lost": "red",
    "timed_out": "red",
    "silent": "red",
    "parked": "yellow",
    "paused": "yellow",
    "warning": "yellow",
    "running": "cyan",
    "completed": "green",
    "live": "green",
    "ok": "green",
}
_STYLED = ("state", "verdict", "severity")
_URL_PASSWORD = re.compile(r"(\w+://[^\s/:@]*):\S*@")
_NAMED_PASSWORD = re.compile(r"(password=)[^\s&]+", re.IGNORECASE)
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def one_line(message: str) -> str:
    """The message on one line, with the passwords of URLs hidden."""
    hidden = _URL_PASSWORD.sub(r"\1:***@", " ".join(visible(message).split()))
    return _NAMED_PASSWORD.sub(r"\1***", hidden)


def visible(text: str) -> str:
    """The text without anything a terminal would act on; line breaks and tabs stay."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text.replace("\r\n", "\n"))


def print_json(value: object) -> None:
    import json

    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_json_line(value: object) -> None:
    """One object on one line, at once: for what goes on."""
    import json

    print(json.dumps(value, ensure_ascii=False), flush=True)


def is_wide() -> bool:
    """Whether whole ids fit into a table."""
    return _console().width >= _WIDE


def id_text(id: UUID) -> str:
    """An id as lists show it: whole where there is room, else its tail."""
    return str(id) if is_wide() else id.hex[-SHORT:]


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, keep: Sequence[str] = (), clip: Sequence[str] = ()
) -> None:
    """A table as wide as the terminal. The columns in `keep` are never broken, so that they can be searched for; those
    in `clip` are cut to one line where there is no room."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    console = _console()
    cells = [[visible(cell) for cell in row] for row in rows]
    room = _room(columns, cells, clip, console.width)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0))
    for column in columns:
        table.add_column(column, no_wrap=column in keep, overflow="fold")
    for row in cells:
        texts = [Text(cell, style=_style(column, cell)) for column, cell in zip(columns, row, strict=True)]
        for column, text in zip(columns, texts, strict=True):
            if column in room:
                text.truncate(room[column], overflow="ellipsis")
        table.add_row(*texts)
    console.print(table)


def _room(columns: Sequence[str], rows: Sequence[Sequence[str]], clip: Sequence[str], width: int) -> dict[str, int]:
    """How wide each column that may be cut can be, so that the others need not be broken."""
    from rich.cells import cell_len

    cut = dict.fromkeys(clip, _NARROWEST)
    wide = {column: max([cell_len(column), *(cell_len(row[at]) for row in rows)]) for at, column in enumerate(columns)}
    taken = sum(size for column, size in wide.items() if column not in cut) + _GAP * (len(columns) - 1)
    free = width - taken
    for left, column in zip(range(len(cut), 0, -1), sorted(cut, key=lambda column: wide.get(column, 0)), strict=True):
        cut[column] = max(_NARROWEST, min(wide.get(column, 0), free // left))
        free -= cut[column]
    return cut


def print_fields(fields: Iterable[tuple[str, str | None]]) -> None:
    """Names and values, one below the other; those without a value are left out."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2), expand=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in fields:
        if value is not None:
            table.add_row(Text(name, style="dim"), Text(visible(value), style=_style(name, value)))
    _console().print(table)


def print_heading(text: str) -> None:
    from rich.text import Text

    _console().print(Text(f"\n{text}", style="bold"))


def print_line(columns: Sequence[tuple[str, int]]) -> None:
    """One line of a list that goes on: each text padded to its width, at once."""
    from rich.text import Text

    parts = [Text(visible(" ".join(text.split())).ljust(width), style=_STYLES.get(text, "")) for text, width in columns]
    line = Text("  ").join(parts)
    line.rstrip()
    console = _console()
    console.print(line, overflow="ellipsis", no_wrap=True, crop=True)
    console.file.flush()


def _style(column: str, cell: str) -> str:
    return _STYLES.get(cell, "") if column in _STYLED else ""


def _console() -> Console:
    """The output. A pipe has no width, and whoever searches through it wants whole lines."""
    from rich.console import Console

    width = None if sys.stdout.isatty() or os.environ.get("COLUMNS") else _PIPED
    return Console(width=width, highlight=False, soft_wrap=False, emoji=False, markup=False)


def moment(at: datetime | None) -> str | None:
    """A time as people read it, in UTC to the second."""
    return None if at is None else at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def moment_json(at: datetime | None) -> str | None:
    """A time as programs read it: ISO 8601 in UTC, always with six decimals."""
    return None if at is None else at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def ago(at: datetime | None, now: datetime | None = None) -> str:
    """How long something is ago, or ahead, in one unit."""
    if at is None:
        return "-"
    seconds = ((now or datetime.now(UTC)) - at).total_seconds()
    return f"{span(round(seconds))} ago" if seconds >= 0 else f"in {span(round(-seconds))}"


def span(seconds: float) -> str:
    """A length of time in one unit: 12 ms, 1.5 s, 45 s, 3 min, 5 h, 12 d."""
    if 0 < seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size * 1.95:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
