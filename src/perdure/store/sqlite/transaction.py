"""Operations inside a transaction that is already open: ours (used by `database`) or the user's (`tx=`, by `runner`).

A user's transaction never uses the gate or group commit: it may already hold the write lock, and would wait for itself.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from perdure.errors import PerdureError, StoreError, TransactionError, TransactionTooLong
from perdure.store.admin import begin_writing
from perdure.store.borrowed import Fetched, OnLoop
from perdure.store.engine import BEGIN_OPERATION, END_OPERATION, UNDO_OPERATION, Make, Op, drive
from perdure.store.protocols import StoreSettings
from perdure.store.sqlite.driver import SqliteDriver, tame, translate, translated
from perdure.store.sqlite.files import identity_of
from perdure.store.sqlite.schema import prepare_within
from perdure.store.sqlite.statements import STATEMENTS
from perdure.store.transaction import (
    SQLITE,
    async_connection,
    behind_a_job,
    closed,
    driver_connection,
    ended,
    not_open,
    over,
    refuse_control,
    unknown,
)

T = TypeVar("T")

INTERRUPT_EVERY_S = 0.05


class SqliteTransaction:
    """An open transaction. Calls on the same thread or task join one of ours."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.driver = SqliteDriver(connection, STATEMENTS)
        self.over = False
        """True: it has ended, even if a task that was started inside still has it in its context."""
        self.given_up: TransactionTooLong | None = None
        """Set: it took too long and was rolled back, or is about to be. Later calls inside it get this error."""
        self.let_go: Callable[[], None] | None = None
        """Ends the turn at the file. None: there is no turn, or it has ended."""
        self._committed = False
        self._process = os.getpid()
        # For one statement at a time, the commit, or `give_up`, which comes from another thread.
        self._busy = threading.RLock()

    def is_joinable(self) -> bool:
        """False once it is over. Raises if it was given up."""
        if not self.over:
            self.check_in_time()  # what belongs to it must not be written without it
        return not self.over

    @property
    def inherited(self) -> bool:
        """Whether it belongs to the parent process of a fork, and must not be touched."""
        return os.getpid() != self._process

    def execute(self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> sqlite3.Cursor:
        """Run a user's statement in it. BEGIN, COMMIT and ROLLBACK are refused: the block does them."""
        # Checked by its words: in an authorizer, which is Python code inside SQLite, an interrupt would look like a
        # refusal.
        refuse_control(sql, SQLITE)
        with self._busy:
            self.check_in_time()
            self._check_open()
            try:
                cursor = self.connection.execute(sql, parameters)
            except (sqlite3.Error, sqlite3.Warning, OverflowError, UnicodeEncodeError) as error:
                self.check_in_time()
                raise translate(error) from error
            self._check_open()
            return cursor

    def run(self, make: Make[T], first: Callable[[sqlite3.Connection], None] | None = None) -> T:
        """Run an operation inside, after what has to be done `first`; on an error nothing of both remains, and the
        transaction continues."""
        with self._busy:
            self.check_in_time()
            try:
                return self._run(make, first)
            except StoreError:
                self.check_in_time()
                raise

    def _run(self, make: Make[T], first: Callable[[sqlite3.Connection], None] | None) -> T:
        self._check_open()
        self.driver.execute(BEGIN_OPERATION)
        try:
            if first is not None:
                first(self.connection)
            result = drive(make(), self.driver)
        except BaseException:
            if self.connection.in_transaction:
                self.driver.execute(UNDO_OPERATION)
                self.driver.execute(END_OPERATION)
            raise
        self.driver.execute(END_OPERATION)
        return result

    def commit(self, path: str) -> None:
        """Make it durable. After an error nothing of it is."""
        with self._busy:
            self.check_in_time()
            self._check_open()
            try:
                self.connection.execute("COMMIT")
            except sqlite3.Error as error:
                self.check_in_time()
                raise translate(error, path) from error
            self._committed = True

    def give_up(self, reason: str) -> bool:
        """Roll it back from another thread and let the next writer in. A running statement is interrupted; the code
        inside gets the error at its next statement. False: it had already ended, and nothing was done.
        """
        self.given_up = TransactionTooLong(reason)
        while not self._busy.acquire(timeout=INTERRUPT_EVERY_S):
            with suppress(sqlite3.Error):  # closed just now: it has ended
                self.connection.interrupt()
        try:
            if self.over or self._committed:
                self.given_up = None
                return False
            with suppress(sqlite3.Error):
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                # a cursor that the user still has could write outside of any transaction
                self.connection.execute("PRAGMA query_only=ON")
            if self.let_go is not None:
                self.let_go()
                self.let_go = None
            return True
        finally:
            self._busy.release()

    def check_in_time(self) -> None:
        if self.given_up is not None:
            raise TransactionTooLong(self.given_up.message)

    def close(self) -> None:
        """Roll back what was not committed and close its connection. May be repeated.

        The rollback comes first: while a user's cursor is in the middle of its rows, SQLite keeps a closed connection
        and its transaction alive.
        """
        with self._busy:
            self.over = True
            with suppress(sqlite3.Error):
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                self.driver.close()
            self.connection.close()

    def _check_open(self) -> None:
        """Outside of a transaction a savepoint would begin one, and its release would commit it."""
        if self.over:
            raise over()
        if not self.connection.in_transaction:
            raise ended()


Prepare = Callable[[sqlite3.Connection], Callable[[sqlite3.Connection], None] | None]
"""Called with the user's connection before its transaction is used: opens the app's database or, where that cannot be
while this transaction holds the file, returns what makes the tables inside of it."""


def write_within(tx: object, make: Make[T], path: Path, prepare: Prepare) -> T:
    """Run an operation inside the user's transaction, in a savepoint; on an error nothing of it remains."""
    tx = behind_a_job(tx)
    if isinstance(tx, SqliteTransaction):
        if tx.over:
            raise over()
        with translated(path):
            _check_file(tx.connection, path)
        return tx.run(make)
    connection = driver_connection(tx)
    if hasattr(connection, "run_async"):
        answer: T = connection.run_async(partial(awrite_within, make=make, path=path, prepare=prepare))
        return answer
    if not isinstance(connection, sqlite3.Connection):
        raise unknown(tx, "a sqlite3.Connection")
    return _within_connection(connection, make, path, prepare)


async def awrite_within(tx: object, make: Make[T], path: Path, prepare: Prepare) -> T:
    """The same on a connection of aiosqlite, in its thread. If the task is cancelled meanwhile, nothing of the
    operation remains or, if it was just done, all of it."""
    connection, plain = await _of_aiosqlite(tx)
    cancelled: list[bool] = []

    def unless_cancelled() -> Op[T]:
        result = yield from make()
        if cancelled:
            raise StoreError("the task that waited for this was cancelled")
        return result

    try:
        answer: T = await connection._execute(_within_connection, plain, unless_cancelled, path, prepare)
    except BaseException:
        cancelled.append(True)
        raise
    return answer


async def _of_aiosqlite(tx: object) -> tuple[Any, sqlite3.Connection]:
    """A connection of aiosqlite, and the one in its thread."""
    connection = await async_connection(tx)
    library = sys.modules.get("aiosqlite")
    if library is None or not isinstance(connection, library.Connection):
        raise unknown(connection, "an aiosqlite Connection")
    try:
        return connection, connection._conn
    except ValueError as error:
        raise closed() from error


_ANY = Path("the database")


class SqliteLoan:
    """Operations in the user's transaction on whatever database that is: see `store/borrowed`."""

    single_writer = True
    grammar = SQLITE

    def run(self, connection: sqlite3.Connection, make: Make[T]) -> T:
        return _within_connection(connection, make, None, _ready)

    def cursor(self, connection: sqlite3.Connection) -> Any:
        return sqlite3.Cursor(connection)

    def prepare(self, connection: sqlite3.Connection) -> None:
        settings = StoreSettings(auto_migrate=True)
        make_tables = partial(prepare_within, path=None, settings=settings)
        _within_connection(connection, begin_writing, None, lambda _: make_tables)

    def translate(self, error: Exception) -> StoreError:
        return translate(error)


class AiosqliteLoan(OnLoop, SqliteLoan):
    """The same in the thread of aiosqlite."""

    async def arun(self, connection: Any, make: Make[T]) -> T:
        connection, plain = await _of_aiosqlite(connection)
        answer: T = await connection._execute(SqliteLoan.run, self, plain, make)
        return answer

    async def aexecute(self, connection: Any, sql: str, params: Any = ()) -> Fetched:
        connection, plain = await _of_aiosqlite(connection)
        fetched: Fetched = await connection._execute(_fetched, plain, sql, params)
        return fetched

    def prepare(self, connection: Any) -> None:
        self.wait(self._prepare(connection))

    async def _prepare(self, connection: Any) -> None:
        connection, plain = await _of_aiosqlite(connection)
        await connection._execute(SqliteLoan.prepare, self, plain)


def _fetched(connection: sqlite3.Connection, sql: str, params: Any) -> Fetched:
    cursor = sqlite3.Cursor(connection).execute(sql, params)
    return Fetched(cursor.fetchall(), cursor.rowcount, cursor.description)


def _ready(connection: sqlite3.Connection) -> None:
    """Nothing is to be made."""


def _within_connection(connection: sqlite3.Connection, make: Make[T], path: Path | None, prepare: Prepare) -> T:
    texts: Any = connection.text_factory  # unlike the row factory, it cannot be set for one cursor only
    try:
        connection.text_factory = str
        return _within(connection, make, path, prepare)
    finally:
        connection.text_factory = texts


def _within(connection: sqlite3.Connection, make: Make[T], path: Path | None, prepare: Prepare) -> T:
    """If the operation fails, a transaction that was begun for it is rolled back. Without a path, it may be any
    database."""
    began = False
    try:
        with translated(path or _ANY):
            if path is not None:
                _check_file(connection, path)
            if not connection.in_transaction:
                _check_can_begin(connection)
            make_tables = prepare(connection)
            began = not connection.in_transaction
            if began:
                connection.execute("BEGIN IMMEDIATE")
            tame(connection)
        result = SqliteTransaction(connection).run(make, make_tables)
        if isinstance(result, PerdureError):
            raise result  # here, so that a transaction that was begun for it is rolled back
    except BaseException:
        if began and connection.in_transaction:
            connection.rollback()
        raise
    return result


def _check_can_begin(connection: Any) -> None:
    """In implicit mode `sqlite3` begins a transaction only before the first INSERT that it recognises; a SAVEPOINT
    outside of one would begin its own, and RELEASE would commit that without the user's COMMIT. So we begin it."""
    if connection.isolation_level is None or getattr(connection, "autocommit", None) is True:
        raise not_open()


def _check_file(connection: sqlite3.Connection, path: Path) -> None:
    cursor = sqlite3.Cursor(connection)
    files = {schema: file for _, schema, file in cursor.execute("PRAGMA database_list")}
    main = files.get("main") or ""
    identity = identity_of(main) if main else None
    if identity is None or identity != identity_of(path):
        raise TransactionError(
            f"tx= is a connection to {main or 'a database in memory'}, but this app's jobs live in {path}; give a"
            " connection to that file: a job and your rows share a transaction only in the same one",
            code="tx_wrong_database",
        )
