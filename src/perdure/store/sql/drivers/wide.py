"""One statement for many rows, made from a statement for one. Used by the SQLite driver, which steps through each.

Fifty INSERTs of one row take a third longer than one of fifty; and at every step the interpreter's lock is let go and
taken back, for which a busy worker has to wait.
"""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from perdure.store.sql.statements import Statement

WIDTH = 50
MOST_PARAMETERS = 999
"""What every SQLite takes, however it was built."""

_INSERT = re.compile(r"(INSERT INTO .*?\bVALUES )(\(.*?\))((?:\s+ON CONFLICT [^;]* DO NOTHING)?)", re.DOTALL)
_UPDATE = re.compile(r"(UPDATE \w+\s+SET (?:(?!SELECT|WHERE).)*?)\s+WHERE ((?:(?!SELECT|WHERE).)*)", re.DOTALL)
_DELETE = re.compile(r"(DELETE FROM (\w+))\s+WHERE ((\w+) = \?\d+(?: AND \w+ = \?\d+)*)")
_MARKER = re.compile(r"\?(\d+)")


class Wide(NamedTuple):
    """A statement that does for `rows` rows at once what another does for one; it takes their parameters in a row."""

    sql: str
    rows: int


@cache
def widened(statement: Statement) -> Wide | None:
    """None: it is none of the three plain forms that can be said for many rows in one.

    A row of the table must not be meant twice: it would be changed once. Of a DELETE that compares several columns the
    first is the key: no two rows of the table have it in common.
    """
    columns = len(statement.names)
    if not columns:
        return None
    rows = min(WIDTH, MOST_PARAMETERS // columns)
    if parts := _INSERT.fullmatch(statement.sql):
        head, row, tail = parts.groups()
        return Wide(f"{head}{_repeated(row, columns, rows)}{tail}", rows)
    given = f"(VALUES {_repeated(_row(columns), columns, rows)}) AS v"
    if parts := _UPDATE.fullmatch(statement.sql):
        changes, guard = map(_of_given, parts.groups())
        return Wide(f"{changes} FROM {given} WHERE {guard}", rows)
    if parts := _DELETE.fullmatch(statement.sql):
        head, table, guard, key = parts.groups()
        found = f"SELECT {key} FROM {given} CROSS JOIN {table} ON {_of_given(guard)}"  # noqa: S608 - our own words
        return Wide(f"{head} WHERE {key} IN ({found})", rows)
    return None


def _row(columns: int) -> str:
    return f"({', '.join(f'?{number}' for number in range(1, columns + 1))})"


def _repeated(row: str, columns: int, rows: int) -> str:
    """The row of parameters again and again, each time with the numbers that follow."""
    return ", ".join(_moved(row, by) for by in range(0, columns * rows, columns))


def _moved(row: str, by: int) -> str:
    return _MARKER.sub(lambda number: f"?{int(number[1]) + by}", row)


def _of_given(text: str) -> str:
    """With the columns of the given rows, as SQLite names them, in the place of parameters."""
    return _MARKER.sub(r"v.column\1", text)
