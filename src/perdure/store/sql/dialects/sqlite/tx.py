"""Jobs inside the user's own SQLite transaction. Used by `runner`; never touches the gate or group commit.

The user may hold the write lock already: waiting for the gate here could wait for ourselves.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from perdure.errors import TransactionError
from perdure.store.sql.borrowed import closed, driver_connection, not_open, unknown
from perdure.store.sql.dialects.sqlite.connect import tame
from perdure.store.sql.dialects.sqlite.files import identity_of
from perdure.store.sql.dialects.sqlite.transaction import Transaction
from perdure.store.sql.drivers.sqlite import translate
from perdure.store.sql.engine import Make

T = TypeVar("T")


def write_within(tx: object, make: Make[T], path: Path) -> T:
    """Run an operation inside the user's transaction, in a savepoint; on an error nothing of it remains."""
    if isinstance(tx, Transaction):
        return tx.run(make)
    connection = driver_connection(tx)
    if not isinstance(connection, sqlite3.Connection):
        raise unknown(tx, "a sqlite3.Connection")
    with _open_transaction(connection, path):
        return Transaction(connection).run(make)


@contextmanager
def _open_transaction(connection: sqlite3.Connection, path: Path) -> Generator[None, None, None]:
    """Inside, a transaction is open. One that had to be begun here is rolled back if the operation fails."""
    try:
        began = not connection.in_transaction
        _check_file(connection, path)
        if began:
            _begin(connection)
        tame(connection)
    except sqlite3.ProgrammingError as error:
        raise closed() if "closed" in str(error) else translate(error) from error
    except sqlite3.Error as error:
        raise translate(error, str(path)) from error
    try:
        yield
    except BaseException:
        if began and connection.in_transaction:
            connection.rollback()
        raise


def _begin(connection: Any) -> None:
    """In implicit mode the module begins a transaction only before the first INSERT it recognises as one; a SAVEPOINT
    outside of it would begin its own, and RELEASE would commit that behind the user's back."""
    if connection.isolation_level is None or getattr(connection, "autocommit", None) is True:
        raise not_open()
    connection.execute("BEGIN IMMEDIATE")


def _check_file(connection: sqlite3.Connection, path: Path) -> None:
    cursor = connection.cursor(sqlite3.Cursor)
    cursor.row_factory = None
    files = {schema: file for _, schema, file in cursor.execute("PRAGMA database_list")}
    main = files.get("main") or ""
    if not main or identity_of(Path(main)) != identity_of(path):
        raise TransactionError(
            f"tx= is a connection to {main or 'a database in memory'}, but this app's jobs live in {path}; a job and"
            " your rows share a transaction only in the same file",
            code="tx_wrong_database",
        )
