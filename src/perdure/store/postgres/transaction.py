"""Transactions that carry more than one call: `app.transaction()` and the user's own (`tx=`). Used by `runner`."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeGuard, TypeVar
from weakref import WeakKeyDictionary

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus

from perdure.errors import StoreError, TransactionError
from perdure.store.engine import BEGIN_OPERATION, END_OPERATION, UNDO_OPERATION, Call, Driver, Make, Op, drive
from perdure.store.postgres.driver import PostgresDriver, translate
from perdure.store.postgres.pool import Session
from perdure.store.postgres.statements import WRITING
from perdure.store.transaction import (
    POSTGRES,
    POSTGRES_WITH_BACKSLASHES,
    behind_a_job,
    closed,
    driver_connection,
    ended,
    not_open,
    refuse_control,
    unknown,
)

T = TypeVar("T")

Identity = tuple[object, ...]
"""What tells one database from another: the answer of `read_identity`."""

_seen: WeakKeyDictionary[psycopg.Connection[Any], Identity] = WeakKeyDictionary()
"""Which database the user's connections lead to: asked once for each."""


class Transaction:
    """An open transaction of ours that plain calls on the same thread or task join."""

    def __init__(self, session: Session) -> None:
        self._session = session
        # Tasks begun inside the block share the transaction, and their calls may come from several threads. Taken by
        # `with` and nothing around it: an interrupt could leave a lock taken that Python code stands in front of.
        self._turn = threading.RLock()
        self._ended = False

    @property
    def joinable(self) -> bool:
        """False once the block was left, and in a forked child."""
        return not self._ended and self._session.ours

    def execute(self, sql: str, params: Sequence[Any] | Mapping[str, Any] | None = None) -> psycopg.Cursor[Any]:
        """Run a statement of your own, in psycopg's style (`%s` or `%(name)s`); the cursor has its rows.

        BEGIN, COMMIT and ROLLBACK are left to the block: refused. As always on PostgreSQL, a statement that fails takes
        the transaction with it, unless it was made in a SAVEPOINT.
        """
        with self._turn:
            self._check_open()
            connection = self._session.connection
            lax = connection.info.parameter_status("standard_conforming_strings") == "off"
            refuse_control(sql, POSTGRES_WITH_BACKSLASHES if lax else POSTGRES)
            try:
                cursor = connection.execute(sql.encode(), params)
            except (psycopg.Error, OverflowError, UnicodeError) as error:
                raise translate(error) from error
            self.check_not_ended()
            return cursor

    def run(self, make: Make[T]) -> T:
        """Run an operation inside; on an error nothing of it remains, and the transaction goes on."""
        with self._turn:
            self._check_open()
            return in_savepoint(make, self._session.writer)

    def read(self, make: Make[T]) -> T:
        """Run a reading operation inside. It locks nothing."""
        with self._turn:
            self._check_open()
            return in_savepoint(make, self._session.reader)

    def check_not_ended(self) -> None:
        """Raise TransactionError if a statement inside has ended it, before the block is over."""
        if self._session.connection.info.transaction_status == TransactionStatus.IDLE:
            raise ended()

    def end(self) -> None:
        """Nothing joins from now on: the connection goes back, and to someone else."""
        with self._turn:
            self._ended = True

    def _check_open(self) -> None:
        if not self.joinable:
            raise TransactionError(
                "this transaction has ended; use it inside its with block, in the process that opened it",
                code="tx_closed",
            )
        self.check_not_ended()


def in_savepoint(make: Make[T], driver: Driver) -> T:
    """Run an operation in a savepoint; on an error nothing of it remains, and the transaction can go on."""
    driver.execute(BEGIN_OPERATION)
    try:
        answer = drive(make(), driver)
    except BaseException:
        with suppress(StoreError):  # a lost connection has nothing left to roll back
            driver.execute(UNDO_OPERATION)
            driver.execute(END_OPERATION)
        raise
    driver.execute(END_OPERATION)
    return answer


def write_within(tx: object, make: Make[T], home: Identity) -> T:
    """Run an operation inside the user's transaction, in the database `home`.

    If the transaction has not begun, psycopg begins it with our first statement.
    """
    tx = behind_a_job(tx)
    if isinstance(tx, Transaction):
        return tx.run(lambda: _at_home(make, home))
    connection = driver_connection(tx)
    if not _is_psycopg(connection):
        raise unknown(tx, "a psycopg (version 3) Connection")
    return _borrow(connection, make, home)


def _is_psycopg(connection: object) -> TypeGuard[psycopg.Connection[Any]]:
    return isinstance(connection, psycopg.Connection)


def _borrow(connection: psycopg.Connection[Any], make: Make[T], home: Identity) -> T:
    """Our statements must not push the user's out of the connection's cache, nor break a pooler that knows no prepared
    statements."""
    _check(connection)
    known = _seen.get(connection) == home
    threshold = connection.prepare_threshold
    try:
        connection.prepare_threshold = None
        answer = in_savepoint(make if known else lambda: _at_home(make, home), PostgresDriver(connection, WRITING))
    finally:
        connection.prepare_threshold = threshold
    _seen[connection] = home
    return answer


def _at_home(make: Make[T], home: Identity) -> Op[T]:
    """The operation, once it is sure that this is the database the app's workers look at."""
    if (yield Call("read_identity")).rows != [home]:
        raise TransactionError(
            "tx= is a connection to another database than this app's; a job and your rows share a transaction only in"
            " the same one",
            code="tx_wrong_database",
        )
    return (yield from make())


def _check(connection: psycopg.Connection[Any]) -> None:
    status = connection.info.transaction_status
    if connection.closed or status == TransactionStatus.UNKNOWN:
        raise closed()
    if connection.pgconn.pipeline_status != PipelineStatus.OFF:
        raise TransactionError(
            "the connection given as tx= is in pipeline mode, where answers come late; leave the pipeline block first",
            code="tx_pipeline",
        )
    if status == TransactionStatus.ACTIVE:
        raise TransactionError(
            "the connection given as tx= is in the middle of another statement; finish that first, and use a connection"
            " in one thread at a time",
            code="tx_busy",
        )
    if status == TransactionStatus.IDLE and connection.autocommit:
        raise not_open()
