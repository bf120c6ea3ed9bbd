"""A database as Perdure left it at schema revision 1: jobs in every state, nodes at work, open runs.

`revision_1.json` holds its rows, read from a file that the code of that time had written: two nodes ("far" and "near")
hold running jobs, one of them superseded; others wait in every way; some have ended.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID


class Table(NamedTuple):
    """One table's rows. Ids are UUIDs."""

    name: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]


def tables() -> Iterator[Table]:
    found = json.loads(Path(__file__).with_suffix(".json").read_text())
    for name, table in found.items():
        yield Table(name, tuple(table["columns"]), [tuple(_value(cell) for cell in row) for row in table["rows"]])


def _value(cell: Any) -> Any:
    return UUID(cell["hex"]) if isinstance(cell, dict) else cell
