"""How commands print: tables for people, JSON for programs, errors as one line without secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

_URL_PASSWORD = re.compile(r"(\w+://[^\s/:@]*):\S*@")
_NAMED_PASSWORD = re.compile(r"(password=)[^\s&]+", re.IGNORECASE)


def one_line(message: str) -> str:
    """The message on one line, with the passwords of URLs hidden."""
    hidden = _URL_PASSWORD.sub(r"\1:***@", " ".join(message.split()))
    return _NAMED_PASSWORD.sub(r"\1***", hidden)


def print_json(value: object) -> None:
    import json

    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, keep: Sequence[str] = ()) -> None:
    """A table as wide as the terminal. The columns in `keep` are never broken, so that they can be searched for."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=column in keep, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)
