"""Makes and upgrades the schema of an SQLite file. Used by `registry`; the steps are in `migrate`."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from perdure.errors import SchemaError
from perdure.store import migrate
from perdure.store.migrate import Applied, Migration
from perdure.store.sqlite import connect
from perdure.store.sqlite.files import back_up
from perdure.store.sqlite.gate import gate_for
from perdure.store.sqlite.statements import NAMING, table
from perdure.version import __version__

VERSIONS = table("schema_version")


class Upgrade(NamedTuple):
    """What was done to a file. `before` 0: it had no Perdure tables. `backup`: the file as it was before."""

    path: Path
    before: int
    after: int
    backup: Path | None = None

    def __str__(self) -> str:
        if self.before == self.after:
            return f"nothing to do: {self.path} is at schema revision {self.after}, the newest"
        if not self.before:
            return f"created {self.path} at schema revision {self.after}"
        kept = f"; the file as it was is kept at {self.backup}" if self.backup else ""
        return f"upgraded {self.path} from schema revision {self.before} to {self.after}{kept}"


def prepare(connection: sqlite3.Connection, path: Path, known: Sequence[Migration], *, allowed: bool = True) -> Upgrade:
    """Put the file into WAL mode and bring it to the newest schema while other starters wait at the gate.

    A file that is like that already needs no turn: it opens also while someone writes for long.
    """
    done = applied(connection)
    if done and not migrate.pending(known, done) and connect.is_wal(connection):
        return Upgrade(path, done[-1].revision, done[-1].revision)
    if not allowed:
        _refuse(path, known, done)
    gate = gate_for(path)
    entered = gate.enter(30.0)
    try:
        connect.use_wal(connection, path)
        return upgrade(connection, path, known, allowed=allowed)
    finally:
        if entered:
            gate.leave()


def upgrade(connection: sqlite3.Connection, path: Path, known: Sequence[Migration], *, allowed: bool = True) -> Upgrade:
    """Bring the file to the newest schema, in one transaction, once, however many start together.

    A file that has an older schema is copied first. `allowed` False: it is refused instead, and so is one without any.
    """
    done = applied(connection)
    if not migrate.pending(known, done):
        return Upgrade(path, done[-1].revision, done[-1].revision)
    if not allowed:
        _refuse(path, known, done)
    backup = _back_up(connection, path) if done else None
    connection.execute("BEGIN EXCLUSIVE")
    try:
        done = applied(connection)
        for step in migrate.pending(known, done):
            _apply(connection, step)
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise
    return Upgrade(path, done[-1].revision if done else 0, known[-1].revision, backup)


def _refuse(path: Path, known: Sequence[Migration], done: Sequence[Applied]) -> None:
    """Refuse a file that would have to be made or upgraded, where nobody allowed that."""
    if not done:
        raise missing(path, "has no Perdure tables")
    if migrate.pending(known, done):
        raise _older(path, done, known, "auto_migrate is off")


def missing(path: Path, how: str) -> SchemaError:
    return SchemaError(
        f"{path} {how}, and auto_migrate is off; run perdure db upgrade once, or leave auto_migrate=False out",
        code="schema_missing",
    )


def require_current(connection: sqlite3.Connection, path: Path, known: Sequence[Migration]) -> None:
    """Refuse a file that is not at the newest schema, whatever is the matter with it."""
    done = applied(connection)
    if not done:
        raise SchemaError(
            f"{path} has no Perdure tables; give the path of a Perdure database, or run perdure db upgrade to make it"
            " one",
            code="schema_missing",
        )
    if migrate.pending(known, done):
        raise _older(path, done, known, "this command does not upgrade it")


def _older(path: Path, done: Sequence[Applied], known: Sequence[Migration], why: str) -> SchemaError:
    return SchemaError(
        f"{path} is at schema revision {done[-1].revision}, this version of Perdure needs {known[-1].revision}, and"
        f" {why}; run perdure db upgrade first",
        code="schema_older",
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
    target = path.with_name(f"{path.name}.backup-{time.time_ns() // 1_000_000}")
    back_up(connection, target)
    return target
