"""Opens PostgreSQL connections the way Perdure needs them. Used by `pool` and `schema`.

One connection of ours and the transaction on it. Made by `pool`, used by `runner` and `schema`.

The few connections of one process to one database, the last used first. Used by `runner`; starts no thread."""

from __future__ import annotations

import os
import re
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus

from perdure.errors import ConfigError, DatabaseBusy, DatabaseUnavailable, PerdureError, TransactionError
from perdure.store.line import Line, Ticket, new_ticket
from perdure.store.postgres.driver import PostgresDriver, translate
from perdure.store.postgres.statements import READING, WRITING
from perdure.store.protocols import ConnectionLost

_PORTS = re.compile(r"[\d,]*")
_DEFAULTS: dict[str, Any] = {
    "application_name": "perdure",
    # a server that vanished without a word is noticed within half a minute
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}


class Settings(NamedTuple):
    """What differs between stores: how durable a commit is and how long to wait for a lock."""

    durability: str = "full"
    busy_timeout_s: float = 5.0


class Address(NamedTuple):
    """Where the database is. `shown` is how messages name it: without the password."""

    options: dict[str, Any]
    shown: str


def address_of(url: str) -> Address:
    """The parts of a database URL; what it leaves out gets our defaults."""
    try:
        given = conninfo_to_dict(url)
    except psycopg.Error:
        given = {}
    if not given or not _PORTS.fullmatch(str(given.get("port", ""))):
        # not libpq's own text, not even as the cause: it quotes what it could not read, and that can be the password
        raise ConfigError(
            "the PostgreSQL URL cannot be read; write postgresql://user:password@host:port/database, and %-escape"
            " characters such as @ : / ? # in user and password",
            code="url_invalid",
        )
    host = given.get("host") or given.get("hostaddr") or "the local server"
    port = f":{given['port']}" if "port" in given else ""
    options = {**_DEFAULTS, **given, "client_encoding": "UTF8"}
    return Address(options, f"PostgreSQL database {given.get('dbname') or 'by default'} on {host}{port}")


def open_connection(address: Address) -> psycopg.Connection[tuple[Any, ...]]:
    """A new connection, in autocommit mode: the session says when a transaction begins."""
    try:
        return psycopg.connect(**address.options, autocommit=True)
    except psycopg.Error as error:
        raise DatabaseUnavailable(
            f"cannot connect to {address.shown}: {_reason(error)}; check that the server runs, and host, port, user and"
            " password of the database URL",
            code="database_unreachable",
        ) from error


def _reason(error: psycopg.Error) -> str:
    return " ".join(str(error).split())


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


T = TypeVar("T")

SIZE = 10
"""How many transactions a process can have open at a time; the next one waits."""


class Pool:
    """Lends sessions with an open transaction. Connections are opened when they are wanted and kept."""

    def __init__(self, address: Address, settings: Settings) -> None:
        self._address = address
        self._settings = settings
        self._idle: list[Session] = []
        self._line = Line(SIZE)
        self._closed = False
        self.identity: tuple[object, ...] = ()
        """Which database this is; known once the schema has been looked at."""
        weakref.finalize(self, _close_all, self._idle)

    def run(self, work: Callable[[Session], T], *, reading: bool = False, brief: bool = False) -> T:
        """Do it in a transaction of its own, which `work` commits; what was not committed is rolled back."""
        lent = Lent(self)
        try:
            answer = work(lent.begin(reading=reading, brief=brief))
        except PerdureError:
            lent.at_rest = True
            raise
        else:
            lent.at_rest = True
            return answer
        finally:
            try:
                lent.give_back()
            except BaseException:  # an interrupt just now: what has to be done is done all the same
                lent.at_rest = False
                lent.give_back()
                raise

    def join(self, ticket: Ticket) -> None:
        """Wait for one of the places; the caller leaves it, also when this fails."""
        if not self._line.join(ticket, self._settings.busy_timeout_s):
            raise DatabaseBusy(
                f"all {SIZE} connections of this process to {self._address.shown} were in use for longer than"
                f" {self._settings.busy_timeout_s:g} s; nothing was written. Keep app.transaction() blocks short"
            )

    def begun(self, *, reading: bool, brief: bool) -> Session:
        """An idle connection may have died unnoticed, and all others with it: then a new one is opened."""
        try:
            session = self._idle.pop()
        except IndexError:
            session = self._opened()
        else:
            try:
                session.begin(reading=reading, brief=brief)
            except ConnectionLost:
                session.close()
                _close_all(self._idle)
                session = self._opened()
            else:
                return session
        session.begin(reading=reading, brief=brief)
        return session

    def _opened(self) -> Session:
        connection = open_connection(self._address)
        try:
            return Session(connection, self._settings)
        except psycopg.Error as error:
            connection.close()
            raise translate(error) from error

    def take_back(self, lent: list[Session]) -> None:
        """Keep the session for the next one, if it can be. An interrupt may lose it, but leaves it to one owner."""
        if lent[0].roll_back() and not self._closed:
            self._idle.append(lent.pop())

    def leave(self, ticket: Ticket) -> None:
        self._line.leave(ticket)

    def close(self) -> None:
        """Close what is idle now, and what is lent when it comes back."""
        self._closed = True
        _close_all(self._idle)


class Lent:
    """A place among the connections of the process and, once begun, a session with an open transaction."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._ticket = new_ticket()
        self._session: list[Session] = []
        self.at_rest = False
        """The session can be used again. Not if it was interrupted: nobody knows which answer it has read last."""

    def begin(self, *, reading: bool = False, brief: bool = False) -> Session:
        self._pool.join(self._ticket)
        self._session.append(self._pool.begun(reading=reading, brief=brief))
        return self._session[0]

    def give_back(self) -> None:
        """What was not committed is rolled back. May be repeated: whatever an interrupt left undone is done then."""
        try:
            if self._session and self.at_rest:
                self._pool.take_back(self._session)
        finally:
            for session in self._session:  # it was not taken back
                session.close()
            self._pool.leave(self._ticket)


def _close_all(idle: list[Session]) -> None:
    while idle:
        idle.pop().close()
