"""Makes and upgrades the schema of an SQLite file. Used by `database`; the steps are in `migrate`."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from perdure.errors import SchemaError
from perdure.store.sql import migrate
from perdure.store.sql.dialects.sqlite.naming import NAMING, table
from perdure.store.sql.migrate import Applied, Migration
from perdure.version import __version__

VERSIONS = table("schema_version")


def upgrade(
    connection: sqlite3.Connection, path: Path, known: Sequence[Migration], *, allowed: bool = True
) -> Path | None:
    """Bring the file to the newest schema, in one transaction, once, however many start together.

    A file that has an older schema is copied first (`VACUUM INTO`); the copy's path is the answer.
    """
    if not migrate.pending(known, applied(connection)):
        return None
    if not allowed and applied(connection):
        raise _not_allowed(path)
    backup: Path | None = None
    if applied(connection):
        backup = _back_up(connection, path)
    connection.execute("BEGIN EXCLUSIVE")
    try:
        for step in migrate.pending(known, applied(connection)):
            _apply(connection, step)
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise
    return backup


def _not_allowed(path: Path) -> SchemaError:
    return SchemaError(
        f"{path} has an older schema and auto_migrate is off; run perdure db upgrade first", code="schema_older"
    )


def applied(connection: sqlite3.Connection) -> list[Applied]:
    """The steps the file says it has. Empty: it is not ours yet."""
    found = connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (VERSIONS,)).fetchone()
    if found is None:
        return []
    rows = connection.execute(f"SELECT revision, name, checksum FROM {VERSIONS} ORDER BY revision").fetchall()  # noqa: S608
    return [Applied(*row) for row in rows]


def _apply(connection: sqlite3.Connection, step: Migration) -> None:
    for statement in migrate.script(step.text, NAMING):
        connection.execute(statement)
    connection.execute(
        f"INSERT INTO {VERSIONS} (revision, name, checksum, applied_at, perdure_version) VALUES (?, ?, ?, ?, ?)",  # noqa: S608
        (step.revision, step.name, step.checksum, time.time_ns() // 1000, __version__),
    )


def _back_up(connection: sqlite3.Connection, path: Path) -> Path:
    """A copy that opens by itself: a plain copy of the file would miss what is in the -wal."""
    target = path.with_name(f"{path.name}.backup-{time.time_ns() // 1_000_000}")
    target.touch(mode=0o600, exist_ok=False)
    connection.execute("VACUUM INTO ?", (str(target),))
    return target
