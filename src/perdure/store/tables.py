"""Every table as a whole: its columns and its key, and the statements that read, fill and empty it. Used by `copy`;
`statements` compiles them when they are wanted.

The list is read from the migrations of SQLite. Every database has these tables and columns; what one has besides (a
generated column, how its workers sleep) is its own affair and not copied.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from perdure.store.migrate import migrations_of

_CREATE = re.compile(r"^CREATE TABLE \{(\w+)\} \(\n(.*?)^\)", re.MULTILINE | re.DOTALL)
_ADD = re.compile(r"^ALTER TABLE \{(\w+)\} ADD COLUMN (\w+)", re.MULTILINE)
_COLUMN = re.compile(r"^ +([a-z_]+) ", re.MULTILINE)
_KEY = re.compile(r"^ +(?:PRIMARY KEY \(([^)]+)\)|([a-z_]+) .*\bPRIMARY KEY\b)", re.MULTILINE)


class Table(NamedTuple):
    """A table: its columns in order, and those of its primary key."""

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]


@cache
def tables() -> Mapping[str, Table]:
    """All tables by name, in the order in which they are made; not the record of the schema itself."""
    found: dict[str, Table] = {}
    for step in migrations_of("sqlite"):
        for name, body in _CREATE.findall(step.text):
            (together, alone), *_ = _KEY.findall(body)
            key = tuple(together.split(", ")) if together else (alone,)
            found[name] = Table(name, tuple(_COLUMN.findall(body)), key)
        for name, column in _ADD.findall(step.text):
            found[name] = found[name]._replace(columns=(*found[name].columns, column))
    del found["schema_version"]
    return found


def is_table(name: str) -> bool:
    """Whether we have a table of this name, which is without prefix or schema."""
    return name == "schema_version" or name in tables()


def whole_table(name: str) -> str:
    """The text of a statement about a whole table, by its name: `count:job`, `fill:job`, `empty:job`, or `page:job:1`,
    the rows from a key on (`keys:job:1`: their keys alone).

    A page is read in steps, because not every database finds its way in an index by `(a, b) > (1, 2)`: first the rows
    that share all of the last key but its last column (`page:missed:3`), then all but its last two, and so on;
    `page:missed:0` is the first page of all.
    """
    verb, table_name, *rest = name.split(":")
    table = tables()[table_name]
    columns, order = ", ".join(table.columns), ", ".join(table.key)
    match verb:
        case "count":
            return f"SELECT COUNT(*)\nFROM {{{table_name}}}"
        case "empty":
            return f"DELETE FROM {{{table_name}}}"  # noqa: S608
        case "fill":
            values = ", ".join(f":{column}" for column in table.columns)
            return f"INSERT INTO {{{table_name}}} ({columns})\nVALUES ({values})"
        case "page" | "keys":
            where = _from_key(table.key[: int(rest[0])])
            columns = columns if verb == "page" else order
            return f"SELECT {columns}\nFROM {{{table_name}}}{where}\nORDER BY {order}\nLIMIT :room"
        case _:
            raise KeyError(name)


def _from_key(shared: tuple[str, ...]) -> str:
    """The rows whose first columns of the key are as given, and whose next one is greater."""
    if not shared:
        return ""
    *equal, greater = shared
    conditions = [*(f"{column} = :{column}" for column in equal), f"{greater} > :{greater}"]
    return f"\nWHERE {' AND '.join(conditions)}"
