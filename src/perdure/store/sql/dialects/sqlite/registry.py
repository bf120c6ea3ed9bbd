"""The databases of this process, one per file. Used by `runner`; makes and upgrades files on first use.

One per file, shared by every app that uses it, because record locks and group commit belong to the process. A forked
child starts with fresh ones and leaves the inherited connections alone: closing them would drop locks and roll back
work that belong to the parent.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

from perdure.store.sql import migrate
from perdure.store.sql.dialects.sqlite import connect, schema
from perdure.store.sql.dialects.sqlite.connect import Pragmas
from perdure.store.sql.dialects.sqlite.database import Database
from perdure.store.sql.dialects.sqlite.files import create_private, identity_of, refuse_network_filesystem
from perdure.store.sql.drivers.sqlite import translate

_databases: dict[tuple[int, int] | None, Database] = {}
_left_behind: list[Database] = []
_registry = threading.Lock()
generation: int = 0
"""Rises in a forked child: what a store looked up before the fork is not its own any more."""


def database_at(path: Path, pragmas: Pragmas, *, may_upgrade: bool, allow_network_filesystem: bool) -> Database:
    """The one database object of this process for this file; makes the file at the newest schema on first use."""
    refuse_network_filesystem(path, allow=allow_network_filesystem)
    create_private(path)
    with _registry:
        identity = identity_of(path)
        known = _databases.get(identity)
        if known is None or not known.usable:
            known = _prepared(path, pragmas, may_upgrade=may_upgrade)
            _databases[identity] = known
        return known


def upgrade_at(path: Path, pragmas: Pragmas, *, allow_network_filesystem: bool) -> schema.Upgrade:
    """Make the file or bring it to the newest schema, whatever `auto_migrate` says, and say what was done."""
    refuse_network_filesystem(path, allow=allow_network_filesystem)
    create_private(path)
    try:
        with closing(connect.open_writer(path, pragmas)) as connection:
            return schema.prepare(connection, path, migrate.migrations_of("sqlite"))
    except sqlite3.Error as error:
        raise translate(error, str(path)) from error


def _prepared(path: Path, pragmas: Pragmas, *, may_upgrade: bool) -> Database:
    connection = connect.open_writer(path, pragmas)
    try:
        schema.prepare(connection, path, migrate.migrations_of("sqlite"), allowed=may_upgrade)
        return Database(path, pragmas)
    except sqlite3.Error as error:
        raise translate(error, str(path)) from error
    finally:
        connection.close()


def forget(database: Database) -> None:
    """Close a database and let the next use open it afresh."""
    with _registry:
        for identity, known in list(_databases.items()):
            if known is database:
                del _databases[identity]
    database.close()


def _start_afresh() -> None:
    global _registry, generation  # noqa: PLW0603 - a forked child must not inherit a held lock
    _registry = threading.Lock()
    generation += 1
    _left_behind.extend(_databases.values())
    _databases.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_afresh)
