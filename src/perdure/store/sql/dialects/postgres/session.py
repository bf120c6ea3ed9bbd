"""One connection of ours and the transaction on it. Made by `pool`, used by `runner` and `schema`."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from perdure.errors import TransactionError
from perdure.store.away import ConnectionLost
from perdure.store.sql.dialects.postgres.connect import Settings
from perdure.store.sql.dialects.postgres.texts import READING, WRITING
from perdure.store.sql.drivers.postgres import PostgresDriver, translate

_IDLE_LIMIT_MS = 60_000
"""A process that freezes inside a transaction holds its locks no longer than this; the server ends it."""


_MOMENT_MS = 200
"""For workers: longer than a transaction of ours lasts, and nothing beside what a user's open one may take."""


class CommitUnknown(ConnectionLost):
    """The connection ended during COMMIT: whether it took effect cannot be known, so nobody may simply try again."""


class Session:
    """Used by one thread at a time, and only in the process that opened it."""

    def __init__(self, connection: psycopg.Connection[tuple[Any, ...]], settings: Settings) -> None:
        self.connection = connection
        self.writer = PostgresDriver(connection, WRITING)
        self.reader = PostgresDriver(connection, READING)
        self._pid = os.getpid()
        patience_ms = round(settings.busy_timeout_s * 1000)
        lax, server_pid = self._asked()
        if server_pid != connection.info.backend_pid:
            # A pooler stands between: the next transaction may be on another server connection, which does not know
            # what was prepared on this one.
            connection.prepare_threshold = None
        writing = f"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; %s{_durability(settings, lax=lax)}"
        self._write = (writing % _limits(patience_ms)).encode()
        self._write_briefly = (writing % _limits(min(patience_ms, _MOMENT_MS))).encode()
        self._read = f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; {_limits(patience_ms)}".encode()

    def _asked(self) -> tuple[Any, ...]:
        """Whether commits are not flushed unless asked for, and which server process this is."""
        question = "SELECT current_setting('synchronous_commit') = 'off', pg_backend_pid()"
        row = self.connection.execute(question, prepare=False).fetchone()
        assert row is not None
        return row

    def begin(self, *, reading: bool, brief: bool = False) -> None:
        """Open a transaction: one that may write, or one that reads a single snapshot. `brief`: waits for no lock."""
        writing = self._write_briefly if brief else self._write
        try:
            self.connection.execute(self._read if reading else writing, prepare=False)
        except psycopg.Error as error:
            raise translate(error) from error

    def commit(self) -> None:
        """Returns when the transaction is durable. CommitUnknown: nobody knows; any other error: nothing is written."""
        if not self.ours:
            raise TransactionError(
                "the transaction was begun by the parent process and cannot be committed in a forked child; leave the"
                " block before forking",
                code="tx_forked",
            )
        try:
            said = self.connection.execute(b"COMMIT", prepare=False).statusmessage
        except psycopg.Error as error:
            meaning = translate(error)
            raise _unknown() if isinstance(meaning, ConnectionLost) else meaning from error
        if said != "COMMIT":
            raise aborted()

    def roll_back(self) -> bool:
        """End whatever transaction is open. False: the connection is of no further use."""
        if not self.ours or self.connection.closed:
            return False
        status = self.connection.info.transaction_status
        if status == TransactionStatus.IDLE:
            return True
        if status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
            with suppress(psycopg.Error):
                self.connection.execute(b"ROLLBACK", prepare=False)
                return True
        return False

    @property
    def ours(self) -> bool:
        """False in a forked child: whatever it said on this connection would be said in the parent's name."""
        return self._pid == os.getpid()

    def close(self) -> None:
        if self.ours:
            self.connection.close()


def _durability(settings: Settings, *, lax: bool) -> str:
    """Full means what the server promises, but never less than a flushed log."""
    if settings.durability != "full":
        return "; SET LOCAL synchronous_commit = off"
    return "; SET LOCAL synchronous_commit = on" if lax else ""


def _limits(patience_ms: int) -> str:
    """Settings of the transaction, not of the session: they hold behind a pooler as well."""
    idle = f"SET LOCAL idle_in_transaction_session_timeout = {_IDLE_LIMIT_MS}"
    return f"SET LOCAL lock_timeout = {patience_ms}; {idle}"


def _unknown() -> CommitUnknown:
    return CommitUnknown(
        "the connection to PostgreSQL was lost while the transaction was being committed, so nobody knows whether it"
        " was written; look before you do it again (an idempotency key makes a repeat harmless)"
    )


def aborted() -> TransactionError:
    return TransactionError(
        "a statement of this transaction failed and was passed over, so PostgreSQL rolled all of it back; nothing was"
        " written. Let the error leave the block",
        code="tx_aborted",
    )
