"""Every statement as SQLite gets it, and its names. Used by `database`, `schema` and `perdure db sql`."""

from __future__ import annotations

from pathlib import Path

from perdure.store import statements
from perdure.store.migrate import Naming

PREFIX = "perdure_"
MARKER = "?{}"


def table(name: str) -> str:
    return PREFIX + name


def _id(value: str) -> str:
    digits = f"lower(hex({value}))"
    groups = [(1, 8), (9, 4), (13, 4), (17, 4), (21, 12)]
    joined = " || '-' || ".join(f"substr({digits}, {start}, {length})" for start, length in groups)
    return f"CASE WHEN {value} IS NOT NULL THEN {joined} END"


def _time(value: str) -> str:
    seconds = f"strftime('%Y-%m-%dT%H:%M:%S', ({value}) / 1000000, 'unixepoch')"
    return f"{seconds} || printf('.%06dZ', ({value}) % 1000000)"


NAMING = Naming(table, _id, _time)
AROUND = ("BEGIN EXCLUSIVE", "COMMIT")
"""Around the statements that people apply themselves: all or nothing."""


OWN = statements.of_sqlite_and_postgres() + (Path(__file__).parent / "statements.sql").read_text("utf-8")
STATEMENTS = statements.load(OWN, table, MARKER)
