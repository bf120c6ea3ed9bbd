"""Jobs inside the user's own SQLite transaction. Used by `runner`; never touches the gate or group commit.

The user may hold the write lock already: waiting for the gate here could wait for ourselves.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from perdure.errors import PerdureError, TransactionError
from perdure.store.sql.borrowed import behind_a_job, driver_connection, not_open, unknown
from perdure.store.sql.dialects.sqlite.connect import tame
from perdure.store.sql.dialects.sqlite.files import identity_of
from perdure.store.sql.dialects.sqlite.transaction import Transaction
from perdure.store.sql.drivers.sqlite import translate
from perdure.store.sql.engine import Make

T = TypeVar("T")


def write_within(tx: object, make: Make[T], path: Path) -> T:
    """Run an operation inside the user's transaction, in a savepoint; on an error nothing of it remains."""
    tx = behind_a_job(tx)
    if isinstance(tx, Transaction):
        with translated(path):
            _check_file(tx.connection, path)
        return tx.run(make)
    connection = driver_connection(tx)
    if not isinstance(connection, sqlite3.Connection):
        raise unknown(tx, "a sqlite3.Connection")
    texts: Any = connection.text_factory  # unlike rows, texts cannot be made otherwise for one cursor only
    try:
        connection.text_factory = str
        return _within(connection, make, path)
    finally:
        connection.text_factory = texts


def _within(connection: sqlite3.Connection, make: Make[T], path: Path) -> T:
    """A transaction that had to be begun for the operation ends with it if it fails."""
    began = False
    try:
        with translated(path):
            _check_file(connection, path)
            began = not connection.in_transaction
            if began:
                _begin(connection)
            tame(connection)
        answer = Transaction(connection).run(make)
        if isinstance(answer, PerdureError):
            raise answer  # here, so that a transaction that had to be begun for it ends with it
    except BaseException:
        if began and connection.in_transaction:
            connection.rollback()
        raise
    return answer


class translated:  # noqa: N801 - reads as the phrase it is part of
    """`with translated(path):` what SQLite says inside becomes an error of ours."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if isinstance(error, sqlite3.Error):
            raise translate(error, str(self._path)) from error


def _begin(connection: Any) -> None:
    """In implicit mode the module begins a transaction only before the first INSERT it recognises as one; a SAVEPOINT
    outside of it would begin its own, and RELEASE would commit that behind the user's back."""
    if connection.isolation_level is None or getattr(connection, "autocommit", None) is True:
        raise not_open()
    connection.execute("BEGIN IMMEDIATE")


def _check_file(connection: sqlite3.Connection, path: Path) -> None:
    cursor = sqlite3.Cursor(connection)
    files = {schema: file for _, schema, file in cursor.execute("PRAGMA database_list")}
    main = files.get("main") or ""
    if not main or identity_of(Path(main)) != identity_of(path):
        raise TransactionError(
            f"tx= is a connection to {main or 'a database in memory'}, but this app's jobs live in {path}; a job and"
            " your rows share a transaction only in the same file",
            code="tx_wrong_database",
        )
