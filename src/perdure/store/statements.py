"""Loads the named SQL statements, once per dialect. Used by the dialects; the texts are in `sql/*.sql`.

A statement file holds `-- name: x` blocks, and `-- fragment: x` blocks that other blocks include as `{x}`; any other
`{x}` is the table x. Parameters are written `:name` and put into the driver's style here. A dialect gives fragments
and whole statements of its own, which win by name. What is in `sql/` every database understands, MySQL too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from perdure.store import columns
from perdure.store.engine import Params

_BLOCK = re.compile(r"^-- (name|fragment): (\w+)\n", re.MULTILINE)
_REFERENCE = re.compile(r"\{(\w+)\}")
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")
_VERB = re.compile(r"^-- verb: (\w+)\n", re.MULTILINE)
_COMMENT = re.compile(r"^\s*--.*\n?", re.MULTILINE)


class Statement(NamedTuple):
    """One statement in a driver's style. `names` are its parameters in the order the driver wants them: where it does
    not number its markers, one that stands twice in the statement is there twice."""

    name: str
    sql: str
    names: tuple[str, ...]
    returns_rows: bool
    verb: str | None


Statements = Mapping[str, Statement]


def statement_texts() -> dict[str, str]:
    """The files shared by all databases, by name."""
    folder = Path(__file__).parent / "sql"
    return {file.name: file.read_text("utf-8") for file in folder.glob("*.sql")}


def of_sqlite_and_postgres() -> str:
    """The overrides that both have."""
    return (Path(__file__).parent / "sqlite_and_postgres.sql").read_text("utf-8") + "\n"


def load(own: str, table: Callable[[str], str], marker: str) -> Statements:
    """All statements of a dialect: `own` are its overrides, `table` names a table.

    `marker` is how the driver writes a parameter: `?{}` and `${}` by its number, `%s` by its place alone.
    """
    fragments = columns.fragments()
    bodies: dict[str, str] = {}
    for text in (*statement_texts().values(), own):
        for sort, name, body in _blocks(text):
            (fragments if sort == "fragment" else bodies)[name] = body
    return {name: _compile(name, body, fragments, table, marker) for name, body in bodies.items()}


def expand(text: str, fragments: Mapping[str, str], table: Callable[[str], str]) -> str:
    """Put fragments and table names in the place of `{x}`; fragments may include others."""

    def reference(match: re.Match[str]) -> str:
        name = match[1]
        return expand(fragments[name], fragments, table) if name in fragments else table(name)

    return _REFERENCE.sub(reference, text)


def _blocks(text: str) -> list[tuple[str, str, str]]:
    marks = list(_BLOCK.finditer(text))
    ends = [*(mark.start() for mark in marks), len(text)][1:]
    return [(mark[1], mark[2], text[mark.end() : end].strip()) for mark, end in zip(marks, ends, strict=True)]


def _compile(
    name: str,
    body: str,
    fragments: Mapping[str, str],
    table: Callable[[str], str],
    marker: str,
) -> Statement:
    verb = _VERB.search(body + "\n")
    text = _COMMENT.sub("", expand(body, fragments, table)).strip()
    names: list[str] = []
    numbered = "{}" in marker

    def parameter(match: re.Match[str]) -> str:
        if match[1] not in names or not numbered:
            names.append(match[1])
        return marker.format(names.index(match[1]) + 1)

    sql = _PARAMETER.sub(parameter, text)
    returns_rows = sql.startswith("SELECT") or "RETURNING" in sql
    return Statement(name, sql, tuple(names), returns_rows, verb[1] if verb else None)


def row_for(statement: Statement, params: Params) -> tuple[object, ...]:
    """The parameters of one execution, in the order the driver wants them."""
    names = statement.names
    if isinstance(params, tuple):
        if len(params) == len(names):
            return params
        params = dict(zip(dict.fromkeys(names), params, strict=True))  # given in the order of first appearance
    return tuple([params[name] for name in names])


def rows_for(statement: Statement, params: Sequence[Params]) -> Sequence[tuple[object, ...]]:
    """The same for many; tuples that fit pass as they are."""
    if params and not (isinstance(params[0], tuple) and len(params[0]) == len(statement.names)):
        return [row_for(statement, row) for row in params]
    return params  # type: ignore[return-value]  # as the first is, so are all
