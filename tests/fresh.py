"""The schema of a new SQLite file, as all migrations together make it."""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

from perdure.store import migrate
from perdure.store.sqlite.statements import NAMING, table


class Column(NamedTuple):
    """One column of a table, by the table's short name."""

    table: str
    name: str
    sort: str
    may_be_empty: bool

    def __str__(self) -> str:
        return f"{self.table}.{self.name}"

    @property
    def row_id(self) -> str:
        return "id" if self.table == "job" else "job_id"


def new_database() -> sqlite3.Connection:
    """An empty database in memory, at the newest schema."""
    connection = sqlite3.connect(":memory:")
    for step in migrate.migrations_of("sqlite"):
        for statement in migrate.script(step.text, NAMING):
            connection.execute(statement)
    return connection


def columns_of(name: str) -> list[Column]:
    """The columns of a table in their order."""
    rows = new_database().execute(f"PRAGMA table_info({table(name)})").fetchall()
    return [Column(name, column, sort, not required) for _, column, sort, required, _, _ in rows]
