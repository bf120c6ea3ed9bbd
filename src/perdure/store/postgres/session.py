"""PostgreSQL as a `Server`: its address, sessions, schema, and the user's own connections. Used by `store/server`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar, cast
from urllib.parse import parse_qsl, quote, urlencode

import psycopg
import psycopg.sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.pq.abc import PGresult
from psycopg.rows import tuple_row

from perdure.clock import ServerClock
from perdure.errors import ConfigError, DatabaseUnavailable, PerdureError, StoreError, TransactionError
from perdure.store import migrate
from perdure.store.admin import begin_writing
from perdure.store.borrowed import Fetched, OnLoop
from perdure.store.engine import AsyncDriver, Driver, Make, in_savepoint
from perdure.store.migrate import Applied
from perdure.store.pool import CommitUnknown
from perdure.store.postgres import checkup, psycopg2_driver
from perdure.store.postgres.asyncpg_driver import borrow_asyncpg, fetched_by_asyncpg, is_asyncpg
from perdure.store.postgres.bell import PostgresBell, listen
from perdure.store.postgres.driver import AsyncPostgresDriver, PostgresDriver, meaning_of, translate
from perdure.store.postgres.pipeline import Answer, Message, Pipeline
from perdure.store.postgres.statements import LOCK_KEY, NAMING, READING, SCHEMA, WRITING, table
from perdure.store.protocols import ConnectionLost, StoreSettings
from perdure.store.rows import Fact
from perdure.store.server import in_savepoint_async, turn_on
from perdure.store.transaction import (
    POSTGRES,
    POSTGRES_WITH_BACKSLASHES,
    async_connection,
    busy,
    by_name,
    closed,
    not_open,
    refuse_control,
    unknown,
)

T = TypeVar("T")

_PORTS = re.compile(r"[\d,]*")
_DEFAULTS: dict[str, Any] = {
    "application_name": "perdure",
    # notices within half a minute that a server has vanished
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}


_IDLE_LIMIT_MS = 5_000
"""The server ends the transaction of a process that hangs, or was cut off, for so long, and releases its locks: until
then a worker that has died in the middle of a beat or a claim cannot be declared dead, for its own row is locked."""
_SHARED_IDLE_LIMIT_MS = 60_000
"""The same where a user's code runs between the statements."""


_MOMENT_MS = 200
"""For workers: longer than a transaction of ours takes, but far shorter than a user's open one may last."""


class PostgresServer:
    """Where one database is. Our defaults fill in what its URL leaves out."""

    wanted = "a connection of psycopg (version 3) or psycopg2"

    def __init__(self, url: str, settings: StoreSettings) -> None:
        given = options_of(url)
        host = given.get("host") or given.get("hostaddr") or "the local server"
        port = f":{given['port']}" if "port" in given else ""
        self._options: dict[str, Any] = {**_DEFAULTS, **given, "client_encoding": "UTF8"}
        own = given if settings.listen_url is None else options_of(settings.listen_url)
        self._listening: dict[str, Any] = {**_DEFAULTS, "application_name": "perdure listen", **own}
        self.settings = settings
        self.shown = f"PostgreSQL database {given.get('dbname') or 'by default'} on {host}{port}"

    @property
    def connection_types(self) -> tuple[type, ...]:
        return (psycopg.Connection, *psycopg2_driver.connection_types())

    def connect(self, clock: ServerClock) -> PostgresSession:
        """A new connection, in autocommit mode: the session says when a transaction begins."""
        try:
            connection = psycopg.connect(**self._options, autocommit=True)
        except psycopg.Error as error:
            raise DatabaseUnavailable(
                f"cannot connect to {self.shown}: {_reason(error)}; check that the server runs, and host, port, user"
                " and password of the database URL",
                code="database_unreachable",
            ) from error
        try:
            return PostgresSession(connection, self, clock)
        except psycopg.Error as error:
            connection.close()
            raise translate(error) from error

    def bell(self, queues: Sequence[str] | None, identity: tuple[object, ...]) -> PostgresBell:
        """The bell of a worker that serves these queues. It connects by itself, and again whenever it has to."""
        return PostgresBell(partial(listen, self._listening, queues, identity))

    def borrow(self, connection: Any, work: Callable[[Driver], T]) -> T:
        return borrow(connection, work)

    async def borrow_async(self, connection: Any) -> AsyncDriver:
        return await borrow_async(connection)


def borrow(connection: Any, work: Callable[[Driver], T]) -> T:
    """Without prepared statements: a pooler may not support them, and the user may count his own."""
    if not isinstance(connection, psycopg.Connection):
        return work(psycopg2_driver.borrow_psycopg2(connection, WRITING))
    return _borrow_psycopg(cast("Any", connection), work)


def _borrow_psycopg(connection: psycopg.Connection[Any], work: Callable[[Driver], T]) -> T:
    _check(connection)
    if connection.info.transaction_status == TransactionStatus.IDLE:
        psycopg.Cursor(connection).execute(b"SELECT", prepare=False)  # psycopg begins as it was told to
    return work(PostgresDriver(Pipeline(connection, prepares=False), WRITING))


async def borrow_async(connection: Any) -> AsyncDriver:
    """The same on a connection of psycopg. One of asyncpg prepares what its own cache of statements holds."""
    if is_asyncpg(connection):
        return await borrow_asyncpg(connection, WRITING)
    if not issubclass(type(connection), psycopg.AsyncConnection):
        raise unknown(connection, "a psycopg AsyncConnection or an asyncpg Connection")
    _check(connection)
    if connection.info.transaction_status == TransactionStatus.IDLE:
        await psycopg.AsyncCursor(connection).execute(b"SELECT", prepare=False)
    return AsyncPostgresDriver(connection, WRITING)


def options_of(url: str) -> dict[str, Any]:
    """What libpq needs of the URL."""
    try:
        given = conninfo_to_dict(_for_libpq(url))
    except psycopg.Error:
        given = {}
    if not given or not _PORTS.fullmatch(str(given.get("port", ""))):
        # not libpq's own text, not even as the cause: it quotes what it could not read, and that can be the password
        raise ConfigError(
            "the PostgreSQL URL cannot be read; write postgresql://user:password@host:port/database, and %-escape"
            " characters such as @ : / ? # in user and password",
            code="url_invalid",
        )
    return given


def _for_libpq(url: str) -> str:
    """A URL without what SQLAlchemy or asyncpg alone would understand."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    place, _, query = rest.partition("?")
    options = [(_NAMES.get(name, name), value) for name, value in parse_qsl(query) if name not in _SQLALCHEMYS]
    return f"{scheme.split('+')[0]}://{place}?{urlencode(options, quote_via=quote)}"


_NAMES = {"ssl": "sslmode"}
_SQLALCHEMYS = ("async_fallback", "prepared_statement_cache_size", "prepared_statement_name_func")


def _reason(error: psycopg.Error) -> str:
    """libpq's, in one line and without its question whether the server runs: our own text says so."""
    return re.sub(r"\s+Is the server running .*?\?", "", " ".join(str(error).split()))


def _check(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    status = connection.info.transaction_status
    if connection.closed or status == TransactionStatus.UNKNOWN:
        raise closed()
    if connection.pgconn.pipeline_status != PipelineStatus.OFF:
        raise TransactionError(
            "the connection given as tx= is in pipeline mode, where results come late; leave the pipeline block first",
            code="tx_pipeline",
        )
    if status == TransactionStatus.ACTIVE:
        raise busy()
    if status == TransactionStatus.IDLE and connection.autocommit:
        raise not_open()


class PostgresSession:
    """One connection of ours, and the transaction on it."""

    def __init__(
        self, connection: psycopg.Connection[tuple[Any, ...]], server: PostgresServer, clock: ServerClock
    ) -> None:
        self.connection = connection
        self._clock = clock
        patience_ms = round(server.settings.busy_timeout_s * 1000)
        lax, server_pid = self._asked()
        # psycopg prepares nothing here: after a DROP, an ALTER or a ROLLBACK of a user's it would remove all that is
        # prepared on this connection, ours too.
        connection.prepare_threshold = None
        # Another process answers: a pooler is in between, and the next transaction may be on another server connection,
        # which does not know what was prepared on this one.
        is_direct = server_pid == connection.info.backend_pid
        self._pipeline = Pipeline(connection, prepares=is_direct)
        self.writer = PostgresDriver(self._pipeline, WRITING)
        self.reader = PostgresDriver(self._pipeline, READING)
        self._shown = server.shown
        durability = _durability(server.settings, lax=lax)
        moment_ms = min(patience_ms, _MOMENT_MS)
        self._share = (_WRITING, _settings(patience_ms, durability, _SHARED_IDLE_LIMIT_MS))
        self._write = (_WRITING, _settings(patience_ms, {**durability, **_BY_INDEX}))
        self._write_briefly = (_WRITING, _settings(moment_ms, {**durability, **_BY_INDEX}))
        self._read = (_READING, _settings(patience_ms, {}))

    def _asked(self) -> tuple[Any, ...]:
        """Whether the server commits without a flush by default, and which server process this is. The clock learns."""
        question = b"SELECT (%b), current_setting('synchronous_commit') = 'off', pg_backend_pid()" % _TIME.sql
        sent_us = self._clock.boot_us()
        row = self.connection.execute(question, prepare=False).fetchone()
        assert row is not None
        now, *rest = row
        self._clock.learn(now, sent_us)
        return tuple(rest)

    @property
    def in_transaction(self) -> bool:
        return self.connection.info.transaction_status != TransactionStatus.IDLE

    def begin(self, *, reading: bool, brief: bool = False, alone: bool = False) -> None:
        writing = self._share if not alone else self._write_briefly if brief else self._write
        for message in self._read if reading else writing:
            self._pipeline.add(message, Answer())
        if self._clock.is_due:
            self._pipeline.add(_TIME, _TimeAnswer(self._clock))
        if not alone:
            self.writer.exchange()

    def commit(self) -> None:
        if not self.in_transaction:
            # Apart from COMMIT: a connection that died while it was idle is found before anything can be unknown.
            self.writer.exchange()
        answer = self._pipeline.add(_COMMIT, Answer())
        failure = self._pipeline.exchange()
        if failure is not None:
            meaning = meaning_of(failure)
            told = failure.error.sqlstate is not None and failure.message is not _COMMIT
            raise meaning if told or not isinstance(meaning, ConnectionLost) else _unknown() from failure.error
        if answer.said != b"COMMIT":
            raise _aborted()

    def roll_back(self) -> bool:
        self._pipeline.drop()
        if self.connection.closed:
            return False
        status = self.connection.info.transaction_status
        if status == TransactionStatus.IDLE:
            return True
        if status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
            with suppress(psycopg.Error):
                self.connection.execute(b"ROLLBACK", prepare=False)
                return True
        return False

    def execute(
        self,
        sql: str,
        params: Sequence[Any] | Mapping[str, Any] | None,
        *,
        is_new: bool,  # noqa: ARG002 - nothing commits by itself here
    ) -> psycopg.Cursor[Any]:
        lax = self.connection.info.parameter_status("standard_conforming_strings") == "off"
        grammar = POSTGRES_WITH_BACKSLASHES if lax else POSTGRES
        refuse_control(sql, grammar)
        try:
            cursor = self.connection.execute(by_name(sql, params, grammar).encode(), params or None)
        except (psycopg.Error, OverflowError, UnicodeError) as error:
            raise translate(error) from error
        if (cursor.statusmessage or "").startswith(("DEALLOCATE", "DISCARD")):
            self._pipeline.prepared.clear()
        return cursor

    def prepare(self, *, allowed: bool) -> int:
        try:
            return prepare(self.connection.cursor(), self._shown, allowed=allowed)
        except psycopg.Error as error:
            raise translate(error) from error

    def applied(self) -> list[Applied]:
        try:
            return applied(self.connection.cursor())
        except psycopg.Error as error:
            raise translate(error) from error

    def facts(self) -> list[Fact]:
        try:
            return checkup.facts(self.connection, self._shown, applied(self.connection.cursor()))
        except psycopg.Error as error:
            raise translate(error) from error

    def close(self) -> None:
        self.connection.close()


_TIME = Message(READING["read_time"].sql.encode())


class _TimeAnswer(Answer):
    """Tells the clock as soon as it is read."""

    __slots__ = ("_clock", "_sent_us")

    def __init__(self, clock: ServerClock) -> None:
        self._clock = clock
        self._sent_us = clock.boot_us()

    def fill(self, result: PGresult, rows: list[tuple[Any, ...]]) -> None:
        super().fill(result, rows)
        self._clock.learn(rows[0][0], self._sent_us)


_WRITING = Message(b"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
_READING = Message(b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
_COMMIT = Message(b"COMMIT")


_BY_INDEX: dict[str, str | int] = dict.fromkeys(
    ("enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin", "jit"), "off"
)
"""Row by row through an index, whatever the statistics say: PostgreSQL thinks that a new table is small, and would read
all of it to find the rows of an array. And no JIT, for what has to be read as a whole then looks expensive.
Not where a user's statements share the transaction."""


def _durability(settings: StoreSettings, *, lax: bool) -> dict[str, str | int]:
    """`full` means what the server promises, but at least a flushed log."""
    if settings.durability != "full":
        return {"synchronous_commit": "off"}
    return {"synchronous_commit": "on"} if lax else {}


def _settings(patience_ms: int, more: dict[str, str | int], idle_ms: int = _IDLE_LIMIT_MS) -> Message:
    """Of the transaction, not of the session: they work behind a pooler too."""
    wanted = {"lock_timeout": patience_ms, "idle_in_transaction_session_timeout": idle_ms, **more}
    calls = [f"set_config('{name}', '{value}', true)" for name, value in wanted.items()]
    return Message(f"SELECT {', '.join(calls)}".encode())


def _unknown() -> CommitUnknown:
    return CommitUnknown(
        "the connection to PostgreSQL was lost during the commit, so it may have been written or not; check before you"
        " do it again (an idempotency key makes a repeat harmless)"
    )


def _aborted() -> TransactionError:
    return TransactionError(
        "a statement of this transaction failed and its error was caught inside, so PostgreSQL rolled all of it back;"
        " nothing was written. Let the error leave the block",
        code="tx_aborted",
    )


VERSIONS = table("schema_version")

_PATIENCE_MS = 60_000


def prepare(cursor: Any, where: str, *, allowed: bool) -> int:
    """See `Session.prepare`. The cursor's rows are tuples."""
    known = migrate.migrations_of("postgres")
    done = applied(cursor)
    if not migrate.pending(known, done):
        return 0
    if not allowed:
        raise migrate.older(where, known, done) if done else migrate.missing(where)
    # other processes wait here, and then find nothing left to do
    cursor.execute(f"SET LOCAL lock_timeout = {_PATIENCE_MS}")
    cursor.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK_KEY,))
    steps = migrate.pending(known, applied(cursor))
    for statement in (statement for step in steps for statement in migrate.statements_of(step, NAMING)):
        cursor.execute(statement)
    return len(steps)


def applied(cursor: Any) -> list[Applied]:
    """The steps that the database has recorded. Empty: it is not ours yet."""
    # not to_regclass: after a wait for another upgrade it may return what this session knew before
    cursor.execute(
        "SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = %s AND tablename = 'schema_version'", (SCHEMA,)
    )
    if cursor.fetchone() is None:
        return []
    cursor.execute(migrate.recorded_in(NAMING))
    return migrate.applied(cursor.fetchall())


class PostgresLoan:
    """Operations in the user's transaction on whatever database that is: see `store/borrowed`."""

    single_writer = False
    grammar = POSTGRES

    def run(self, connection: Any, make: Make[T]) -> T:
        return borrow(connection, lambda driver: in_savepoint(make, driver))

    def cursor(self, connection: Any) -> Any:
        if isinstance(connection, psycopg.Connection):
            return psycopg.Cursor(cast("Any", connection), row_factory=tuple_row)
        return psycopg2_driver.cursor(connection)

    def prepare(self, connection: Any) -> None:
        self.run(connection, begin_writing)
        try:
            prepare(self.cursor(connection), "the database of tx=", allowed=True)
        except Exception as error:
            if isinstance(error, PerdureError):
                raise
            raise self.translate(error) from error

    def translate(self, error: Exception) -> StoreError:
        return translate(error)


class AsyncPostgresLoan(OnLoop, PostgresLoan):
    """The same on a connection of asyncpg, or an asynchronous one of psycopg."""

    async def arun(self, connection: Any, make: Make[T]) -> T:
        connection = await async_connection(connection)
        async with turn_on(connection):
            return await in_savepoint_async(make, await borrow_async(connection))

    async def aexecute(self, connection: Any, sql: str, params: Any = None) -> Fetched:
        connection = await async_connection(connection)
        async with turn_on(connection):
            if is_asyncpg(connection):
                return await fetched_by_asyncpg(connection, sql, params)
            cursor = psycopg.AsyncCursor(connection, row_factory=tuple_row)
            await cursor.execute(cast("Any", sql), params, prepare=False)
            rows = await cursor.fetchall() if cursor.description else []
            return Fetched(rows, cursor.rowcount, cursor.description)


def create_database(url: str, name: str) -> None:
    """Make another database on the server of this one, unless it is there."""
    try:
        with psycopg.connect(**options_of(url), autocommit=True) as connection:
            if connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchone() is None:
                connection.execute(psycopg.sql.SQL("CREATE DATABASE {}").format(psycopg.sql.Identifier(name)))
    except psycopg.Error as error:
        raise translate(error) from error
