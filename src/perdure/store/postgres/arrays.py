"""One statement for many rows: a column of values is one parameter, an array. Used by `driver`.

The statement is made from the one for a single row, as SQLite's wide statements are; the rows travel as binary arrays,
which PostgreSQL reads ten times as fast as a message for each row.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from itertools import repeat
from struct import Struct
from typing import Any, NamedTuple

from perdure.store.engine import Statement
from perdure.store.migrate import migrations_of

_INSERT = re.compile(r"(INSERT INTO .*?)\s+VALUES \((.*?)\)((?:\s+ON CONFLICT DO NOTHING)?)", re.DOTALL)
_UPDATE = re.compile(r"(UPDATE \S+\s+SET (?:(?!SELECT|WHERE).)*?)\s+WHERE ((?:(?!SELECT|WHERE).)*)", re.DOTALL)
_DELETE = re.compile(r"(DELETE FROM \S+)\s+WHERE ((?:(?!SELECT|WHERE).)*)", re.DOTALL)
_MARKER = re.compile(r"\$(\d+)")
_COLUMN = re.compile(r"^(?:ALTER TABLE \S+ ADD COLUMN|   ) (\w+)\s+(uuid|text|bigint|integer)\b", re.MULTILINE)


class ArrayForm(NamedTuple):
    """A statement whose nth parameter is an array of all nth values, of type `types[n]`.

    `steady`: it may be prepared. One that looks for rows is planned each time, for the table as it is then: a plan that
    was made for an empty table and kept would read all of a full one.
    """

    sql: bytes
    types: tuple[str, ...]
    steady: bool


@cache
def array_form(statement: Statement) -> ArrayForm | None:
    """None: it is none of the three simple forms that can be written for many rows, or has a parameter of which no type
    is known.

    The given rows must not name a row of the table twice: it would be changed once.
    """
    sql, types = statement.sql, tuple([_types().get(name, "") for name in statement.names])
    if not all(types) or not types:
        return None
    columns = ", ".join(f"p{number}" for number in range(1, len(types) + 1))
    arrays = ", ".join(f"${number}::{name}[]" for number, name in enumerate(types, 1))
    given = f"unnest({arrays}) AS v ({columns})"
    if parts := _INSERT.fullmatch(sql):
        head, values, tail = parts.groups()
        every = f"{head} SELECT {_of_given(values)} FROM {given}{tail}"  # noqa: S608 - our own words
        return ArrayForm(every.encode(), types, steady=True)
    if parts := _UPDATE.fullmatch(sql):
        changes, guard = map(_of_given, parts.groups())
        return ArrayForm(f"{changes} FROM {given} WHERE {guard}".encode(), types, steady=False)
    if parts := _DELETE.fullmatch(sql):
        head, guard = parts.groups()
        return ArrayForm(f"{head} USING {given} WHERE {_of_given(guard)}".encode(), types, steady=False)
    return None


def _of_given(text: str) -> str:
    """With parameters replaced by the columns of the given rows."""
    return _MARKER.sub(r"v.p\1", text)


@cache
def _types() -> dict[str, str]:
    """The types of parameters: those of the columns with their names."""
    columns = dict(_COLUMN.findall("\n".join(step.text for step in migrations_of("postgres"))))
    return {name: kind.replace("integer", "bigint") for name, kind in columns.items()} | _NO_COLUMNS


_NO_COLUMNS = {"now": "bigint", "expected": "bigint", "run_id": "uuid"}


# -- values ----------------------------------------------------------------------------------------------------------

OIDS = {"uuid": 2950, "text": 25, "bigint": 20}
ARRAY_OIDS = {"uuid": 2951, "text": 1009, "bigint": 1016}

_NULL = b"\xff\xff\xff\xff"
_HEAD = Struct(">5i").pack
_LENGTH = Struct(">i").pack
_NUMBER = Struct(">iq").pack
_ID = b"\x00\x00\x00\x10"


def array_of(kind: str, values: Sequence[Any], encoding: str) -> bytes:
    """The binary form of a one-dimensional array. A value that is the same in all rows is laid out once."""
    count = len(values)
    if values.count(values[0]) == count:
        body = _one(kind, values[0], encoding) * count
    elif kind == "text" or None in values:
        body = b"".join([_one(kind, value, encoding) for value in values])
    elif kind == "uuid":
        body = _ID + _ID.join(values)
    else:
        body = b"".join(map(_NUMBER, repeat(8), values))
    return _HEAD(1, 0, OIDS[kind], count, 1) + body


def _one(kind: str, value: Any, encoding: str) -> bytes:
    if value is None:
        return _NULL
    if kind == "uuid":
        return _ID + bytes(value)
    if kind == "bigint":
        return _NUMBER(8, value)
    text = encoded(value, encoding)
    return _LENGTH(len(text)) + text


def encoded(value: str, encoding: str) -> bytes:
    return storable(value).encode(encoding)


def storable(value: str) -> str:
    """PostgreSQL cannot store NUL in a text. Names and keys have none and JSON escapes it; in an error message or a log
    line the symbol ␀ replaces it, because a failure that cannot be written would be lost."""
    return value.replace("\x00", "\u2400")
