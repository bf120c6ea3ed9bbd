"""What a database file holds, to compare before and after."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

Contents = dict[str, list[tuple[object, ...]]]


def contents(path: Path) -> Contents:
    """Every row of every table. Empty: there is no file, or nothing in it."""
    if not path.exists():
        return {}
    with closing(sqlite3.connect(path)) as connection:
        return {name: _rows(connection, name) for name in _names(connection, "table")}


def views(path: Path) -> Contents:
    """Every row of every view."""
    with closing(sqlite3.connect(path)) as connection:
        return {name: _rows(connection, name) for name in _names(connection, "view")}


def jobs_in(path: Path) -> list[str]:
    """The payloads of all jobs, oldest first."""
    with closing(sqlite3.connect(path)) as connection:
        return [payload for (payload,) in connection.execute("SELECT payload FROM perdure_job ORDER BY id")]


def _names(connection: sqlite3.Connection, sort: str) -> list[str]:
    found = connection.execute("SELECT name FROM sqlite_master WHERE type = ? ORDER BY name", (sort,))
    return [name for (name,) in found]


def _rows(connection: sqlite3.Connection, table: str) -> list[tuple[object, ...]]:
    return sorted(connection.execute(f'SELECT * FROM "{table}"').fetchall(), key=repr)
