"""A foreign store: `memory://name` is one SQLite connection in the memory of this process, behind a lock.

What somebody writes for a database of his own: a runner, which owns BEGIN, COMMIT and who joins whom. The operations,
and so all that a job is, are ours.
"""

from __future__ import annotations

import multiprocessing
import sqlite3
import threading
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from perdure.errors import StoreError, TransactionError
from perdure.store import migrate
from perdure.store.engine import BEGIN_OPERATION, END_OPERATION, UNDO_OPERATION, Make, drive
from perdure.store.protocols import Store, StoreSettings
from perdure.store.sqlite.driver import SqliteDriver, translate
from perdure.store.sqlite.statements import NAMING, STATEMENTS
from perdure.store.store import SqlStore

T = TypeVar("T")
LOOK_S = 0.02


class Bell:
    """The worker looks for itself every now and then."""

    tells_when = False

    def __init__(self) -> None:
        self._rung = threading.Event()

    def ring(self) -> None:
        self._rung.set()

    def wait(self, timeout_s: float, *, rung_only: bool = False) -> bool:
        rung = self._rung.wait(timeout_s if rung_only else min(timeout_s, LOOK_S))
        self._rung.clear()
        return rung or (timeout_s > LOOK_S and not rung_only)

    def close(self) -> None: ...


class MemoryRunner:
    """Runs one operation at a time. A transaction is the connection itself."""

    single_writer = True
    tables = "perdure_{}"

    def __init__(self) -> None:
        self._connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._driver = SqliteDriver(self._connection, STATEMENTS)
        self._one = threading.Lock()
        self._joined: ContextVar[sqlite3.Connection | None] = ContextVar("memory_transaction", default=None)
        self._before: bytes | None = None
        for step in migrate.migrations_of("sqlite"):
            for statement in migrate.script(step.text, NAMING):
                self._connection.execute(statement)

    def write(self, make: Make[T], *, brief: bool = False) -> T:
        if self.joined() is not None:
            return self._part(make)
        with self._begun():
            return drive(make(), self._driver)

    async def awrite(self, make: Make[T]) -> T:
        from asyncio import to_thread

        return await to_thread(self.write, make)

    def write_within(self, tx: object, make: Make[T]) -> T:
        if tx is not self._connection:
            raise TransactionError("tx= is not a transaction of this store", code="tx_unknown_type")
        return self._part(make)

    async def awrite_within(self, tx: object, make: Make[T]) -> T:
        return self.write_within(tx, make)

    def read(self, make: Make[T]) -> T:
        before = self._before
        if before is None or self.joined() is not None:
            return self.write(make)
        with closing(sqlite3.connect(":memory:")) as copy:  # somebody's transaction is open: as it was before that
            copy.deserialize(before)
            return drive(make(), SqliteDriver(copy, STATEMENTS))

    def look(self, make: Make[T]) -> T:
        return self.read(make)

    def joined(self) -> object | None:
        return self._joined.get()

    @contextmanager
    def transaction(self, *, join: bool = False) -> Generator[Any, None, None]:
        if self.joined() is not None:
            if not join:
                raise StoreError("a transaction is already open here; use the one you have", code="tx_nested")
            yield self._connection
            return
        with self._begun():
            self._before = self._connection.serialize()
            try:
                yield self._connection
            except sqlite3.Error as error:
                raise translate(error, "memory") from error
            finally:
                self._before = None

    @contextmanager
    def _begun(self) -> Generator[None, None, None]:
        with self._one:
            self._connection.execute("BEGIN")
            token = self._joined.set(self._connection)
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            finally:
                self._joined.reset(token)

    def _part(self, make: Make[T]) -> T:
        """In a transaction that is open: all of the operation, or nothing of it."""
        self._driver.execute(BEGIN_OPERATION)
        try:
            result = drive(make(), self._driver)
        except BaseException:
            self._driver.execute(UNDO_OPERATION)
            self._driver.execute(END_OPERATION)
            raise
        self._driver.execute(END_OPERATION)
        return result

    def bell(self, queues: Sequence[str] | None = None) -> Bell:
        return Bell()

    def upgrade(self) -> str:
        return "the database is made at the newest schema"

    def close(self) -> None:
        """It is gone when the process is."""


_stores: dict[str, SqlStore] = {}


def open_memory(url: str, settings: StoreSettings | None = None) -> Store:
    """The store of this name; a URL means the same one all through the process."""
    if multiprocessing.parent_process() is not None:
        raise NotImplementedError("memory:// is in the memory of one process")
    return _stores.setdefault(url, SqlStore(MemoryRunner()))
