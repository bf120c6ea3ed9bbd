"""MariaDB and MySQL as a `Server`: address, sessions, schema, the user's own connections. Used by `store/server`."""

from __future__ import annotations

import math
import re
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar, cast
from urllib.parse import parse_qsl, unquote, urlsplit

import pymysql
from pymysql.connections import Connection
from pymysql.constants import CLIENT
from pymysql.cursors import Cursor

from perdure.clock import ServerClock
from perdure.errors import ConfigError, DatabaseBusy, DatabaseUnavailable, SchemaError, StoreError, TransactionError
from perdure.store import migrate
from perdure.store.borrowed import Fetched, OnLoop
from perdure.store.engine import AsyncDriver, Driver, Make, in_savepoint
from perdure.store.migrate import Applied
from perdure.store.mysql.checkup import facts
from perdure.store.mysql.driver import (
    IN_TRANSACTION,
    NO_SUCH_THING,
    NO_TABLE,
    AsyncMySQLDriver,
    MySQLDriver,
    number_of,
    translate,
)
from perdure.store.mysql.statements import Flavour, dialect, naming
from perdure.store.pool import CommitUnknown
from perdure.store.protocols import ConnectionLost, StoreSettings
from perdure.store.rows import Fact
from perdure.store.server import in_savepoint_async, turn_on
from perdure.store.transaction import (
    MYSQL,
    async_connection,
    begins_with,
    busy,
    by_name,
    closed,
    not_open,
    refuse_control,
    unknown,
)

T = TypeVar("T")

OLDEST = {Flavour.MARIADB: (10, 6), Flavour.MYSQL: (8, 0)}
"""The first with SKIP LOCKED."""

_OPTIONS = ("unix_socket", "ssl_ca", "ssl_cert", "ssl_key", "ssl_verify_cert", "ssl_verify_identity")
_VERSION = re.compile(r"(\d+)\.(\d+)")
_IDLE_LIMIT_S = 5
"""MariaDB ends the transaction of a process that hangs, or was cut off, for so long, and releases its locks: until then
a worker that has died in the middle of a beat or a claim cannot be declared dead, for its own row is locked."""
_SHARED_IDLE_LIMIT_S = 60
"""The same where a user's code runs between the statements."""
_MOMENT_S = 1
"""For workers: the servers count in whole seconds."""
_KEEP_ALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 25_000}
"""Notices within half a minute that a server has vanished."""


class MySQLServer:
    """Where one database is."""

    wanted = "a PyMySQL or mysqlclient Connection"

    def __init__(self, url: str, settings: StoreSettings) -> None:
        self._options = _parts(url)
        self.settings = settings
        self.flavour = Flavour.MARIADB
        """Known once a connection was made."""
        where = self._options.get("unix_socket") or f"{self._options['host']}:{self._options['port']}"
        self.shown = f"MariaDB/MySQL database {self._options['database']} on {where}"

    @property
    def connection_types(self) -> tuple[type, ...]:
        """Also mysqlclient's, if the program has loaded it."""
        other = sys.modules.get("MySQLdb.connections")
        return (Connection,) if other is None else (Connection, other.Connection)

    def connect(self, clock: ServerClock) -> MySQLSession:
        """A new connection, in autocommit mode: the session says when a transaction begins."""
        # FOUND_ROWS: an UPDATE answers how many rows it has found, as on the other databases
        flags = CLIENT.FOUND_ROWS | CLIENT.MULTI_STATEMENTS
        try:
            connection: Any = Connection(
                **self._options, charset="utf8mb4", autocommit=True, connect_timeout=10, client_flag=flags
            )
        except (pymysql.Error, OSError, RuntimeError) as error:
            raise self._unreachable(error) from error
        try:
            self.flavour = _flavour(str(connection.get_server_info()))
            return MySQLSession(connection, self, clock)
        except BaseException as error:
            connection.close()
            if isinstance(error, pymysql.Error):
                raise translate(error) from error
            raise

    def _unreachable(self, error: Exception) -> StoreError:
        if number_of(error) == _NO_RIGHTS_HERE:
            return translate(error)
        reason = " ".join(str(error.args[-1] if error.args else error).split())
        return DatabaseUnavailable(
            f"cannot connect to {self.shown}: {reason}; check that the server runs, and host, port, user and password"
            " of the database URL",
            code="database_unreachable",
        )

    def borrow(self, connection: Any, work: Callable[[Driver], T]) -> T:
        return borrow(connection, work, self.flavour)

    async def borrow_async(self, connection: Any) -> AsyncDriver:
        return await borrow_async(connection, self.flavour)


def borrow(connection: Any, work: Callable[[Driver], T], flavour: Flavour) -> T:
    cursor = _own_cursor(connection)
    try:
        for sql in _probes(connection):
            cursor.execute(sql)
    except connection.Error as error:
        raise _not_open(error) from error
    try:
        return work(MySQLDriver(connection, dialect(flavour).borrowed, cursor))
    finally:
        with suppress(connection.Error):  # mysqlclient's, where somebody else's answer is still to be read
            cursor.close()


async def borrow_async(connection: Any, flavour: Flavour) -> AsyncDriver:
    cursor, errors = _async_parts(connection)
    try:
        for sql in _probes(connection):
            await cursor.execute(sql)
    except errors as error:
        raise _not_open(error) from error
    return AsyncMySQLDriver(connection, dialect(flavour).borrowed, cursor, errors)


class MySQLLoan:
    """Operations in the user's transaction on whatever database that is: see `store/borrowed`."""

    single_writer = False
    grammar = MYSQL

    def run(self, connection: Any, make: Make[T]) -> T:
        flavour = _flavour(str(connection.get_server_info()))
        return borrow(connection, lambda driver: in_savepoint(make, driver), flavour)

    def cursor(self, connection: Any) -> Any:
        return _own_cursor(connection)

    def prepare(self, connection: Any) -> None:
        """CREATE TABLE would commit the user's transaction."""
        known = migrate.migrations_of("mysql")
        done = applied(self.cursor(connection))
        if migrate.pending(known, done):
            raise SchemaError(
                "the database of tx= has no Perdure tables, or older ones, and MariaDB and MySQL would commit your"
                " transaction to make them; run perdure db upgrade on it first, or Perdure(url).store.upgrade() where"
                " your test database is made",
                code="schema_missing",
            )

    def translate(self, error: Exception) -> StoreError:
        return translate(error)


class AsyncMySQLLoan(OnLoop, MySQLLoan):
    """The same on a connection of aiomysql or asyncmy."""

    async def arun(self, connection: Any, make: Make[T]) -> T:
        connection = await async_connection(connection)
        flavour = _flavour(str(connection.get_server_info()))
        async with turn_on(connection):
            return await in_savepoint_async(make, await borrow_async(connection, flavour))

    async def aexecute(self, connection: Any, sql: str, params: Any = None) -> Fetched:
        connection = await async_connection(connection)
        cursor, _ = _async_parts(connection)
        async with turn_on(connection):
            await cursor.execute(sql, params)
            rows = [] if cursor.description is None else list(await cursor.fetchall())
            return Fetched(rows, cursor.rowcount, cursor.description)


def _flavour(version: str) -> Flavour:
    """Which server this is. Refuses one that is too old."""
    flavour = Flavour.MARIADB if "mariadb" in version.lower() else Flavour.MYSQL
    found = _VERSION.search(version.removeprefix("5.5.5-"))
    if found is None or (int(found[1]), int(found[2])) < OLDEST[flavour]:
        raise DatabaseUnavailable(
            f"the database server is {version}; Perdure needs MariaDB 10.6 or MySQL 8.0, or newer",
            code="server_too_old",
        )
    return flavour


def _parts(url: str) -> dict[str, Any]:
    """What PyMySQL needs of the URL."""
    try:
        parts = urlsplit(url)
        given = {"host": parts.hostname or "localhost", "port": parts.port or 3306}
        wished = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
        wished.pop("charset", None)  # SQLAlchemy's: ours is always utf8mb4
    except ValueError:
        raise _unreadable() from None  # not the parser's text: it may quote the password
    database = unquote(parts.path[1:])
    if not database or "/" in database:
        raise _unreadable()
    unknown = [name for name in wished if name not in _OPTIONS]
    if unknown:
        raise ConfigError(
            f"the MySQL URL has the option {unknown[0]!r}; known are {', '.join(_OPTIONS)}", code="url_invalid"
        )
    user = {} if parts.username is None else {"user": unquote(parts.username)}
    return {**given, **user, "password": unquote(parts.password or ""), "database": database, **_line(wished), **wished}


def _line(wished: Mapping[str, str]) -> dict[str, Any]:
    """Nobody listens on a local socket. PyMySQL would read all certificates of the system for each connection, which
    takes 50 ms, and encrypt."""
    return {"ssl_disabled": True} if set(wished) == {"unix_socket"} else {}


def _unreadable() -> ConfigError:
    return ConfigError(
        "the MySQL URL cannot be read; write mysql://user:password@host:port/database, and %-escape characters such as"
        " @ : / ? # in user and password",
        code="url_invalid",
    )


def _own_cursor(connection: Any) -> Any:
    """A cursor whose rows are tuples, on the user's connection."""
    if not connection.open:
        raise closed()
    if isinstance(connection, Connection):
        return Cursor(cast("Any", connection))
    return connection.cursor(sys.modules["MySQLdb.cursors"].Cursor)


def _async_parts(connection: Any) -> tuple[Any, type[Exception]]:
    """A cursor whose rows are tuples, on the user's connection of aiomysql or asyncmy, and the errors of that."""
    for library in ("aiomysql", "asyncmy"):
        module = sys.modules.get(f"{library}.connection")
        if module is not None and isinstance(connection, module.Connection):
            if not getattr(connection, "connected", True) or getattr(connection, "closed", False):
                raise closed()
            errors: type[Exception] = (
                pymysql.Error if library == "aiomysql" else sys.modules["asyncmy.errors"].MySQLError
            )
            return sys.modules[f"{library}.cursors"].Cursor(connection), errors
    raise unknown(connection, "an aiomysql or asyncmy Connection")


def _probes(connection: Any) -> Sequence[str]:
    """What has to succeed for a transaction to be open, if none begins by itself: without one a savepoint is gone at
    once. Refuses a connection with an answer that is still to be read."""
    before = getattr(connection, "_result", None)
    if getattr(before, "unbuffered_active", False):
        raise busy()
    return ("SAVEPOINT perdure_open", "RELEASE SAVEPOINT perdure_open") if connection.get_autocommit() else ()


def _not_open(error: Exception) -> StoreError:
    return not_open() if number_of(error) == NO_SUCH_THING else translate(error)


_NO_RIGHTS_HERE = 1044


class MySQLSession:
    """One connection of ours, and the transaction on it."""

    def __init__(self, connection: Any, server: MySQLServer, clock: ServerClock) -> None:
        self.connection = connection
        self._clock = clock
        self._cursor = Cursor(connection)
        self._flavour = server.flavour
        self._shown = server.shown
        statements = dialect(server.flavour)
        self.writer = MySQLDriver(connection, statements.writing, self._cursor)
        self.reader = MySQLDriver(connection, statements.reading, self._cursor)
        self._time = statements.reading["read_time"].sql
        self.reader.savepoints = self.writer.savepoints
        self._patience_s = max(1, math.ceil(server.settings.busy_timeout_s))
        self._limits = ""
        _keep_alive(connection)
        self._run(_settings(server.flavour), timed=True)

    def _run(self, sql: str, *, timed: bool = False) -> None:
        """Run one or more statements in one message; `timed`: after a question for the time, whose answer the clock
        learns."""
        sent_us = self._clock.boot_us()
        self._cursor.execute(f"{self._time}; {sql}" if timed else sql)
        if timed:
            ((now,),) = self._cursor.fetchall()
            self._clock.learn(now, sent_us)
        while self._cursor.nextset():
            pass

    @property
    def in_transaction(self) -> bool:
        return bool(self.connection.open and self.connection.server_status & IN_TRANSACTION)

    def begin(self, *, reading: bool, brief: bool = False, alone: bool = False) -> None:
        wait_s = min(self._patience_s, _MOMENT_S) if brief else self._patience_s
        limits = self._flavour.limits(wait_s, _IDLE_LIMIT_S if alone else _SHARED_IDLE_LIMIT_S)
        begin = _READ if reading else _WRITE
        self.writer.savepoints.forget()
        try:
            self._run(begin if limits == self._limits else f"{limits}; {begin}", timed=self._clock.is_due)
        except pymysql.Error as error:
            raise translate(error) from error
        self._limits = limits

    def commit(self) -> None:
        if not self.in_transaction:  # the server would say that all is well
            raise _aborted()
        try:
            self._cursor.execute("COMMIT")
        except pymysql.Error as error:
            meaning = translate(error)
            raise _unknown() if isinstance(meaning, ConnectionLost) else meaning from error

    def roll_back(self) -> bool:
        if not self.connection.open:
            return False
        if not self.in_transaction:
            return True
        with suppress(pymysql.Error):
            self._cursor.execute("ROLLBACK")
            return True
        return False

    def execute(self, sql: str, params: Sequence[Any] | Mapping[str, Any] | None, *, is_new: bool) -> Any:
        """A CREATE TABLE and the like at the beginning commits nothing but itself: the transaction begins after it."""
        makes = is_new and begins_with(sql, MYSQL, ("CREATE", "ALTER", "DROP"))
        if not makes:
            refuse_control(sql, MYSQL)
        cursor = self.connection.cursor()
        try:
            cursor.execute(by_name(sql, params, MYSQL), params or None)
        except (pymysql.Error, UnicodeError) as error:
            raise self.writer.translated(error) from error
        finally:
            if makes and self.connection.open and not self.in_transaction:
                self.begin(reading=False)
        return cursor

    def prepare(self, *, allowed: bool) -> int:
        """See `Session.prepare`. DDL commits by itself here, so another transaction is begun afterwards."""
        try:
            done = _prepare(self._cursor, self._flavour, self._shown, allowed=allowed)
        except pymysql.Error as error:
            raise translate(error) from error
        if not self.in_transaction:
            self._limits = ""  # those of an upgrade are others
            self.begin(reading=False)
        return done

    def applied(self) -> list[Applied]:
        try:
            return applied(self._cursor)
        except pymysql.Error as error:
            raise translate(error) from error

    def facts(self) -> list[Fact]:
        try:
            return facts(self._cursor, self._flavour, self._shown, applied(self._cursor))
        except pymysql.Error as error:
            raise translate(error) from error

    def close(self) -> None:
        with suppress(pymysql.Error):
            self.connection.close()


_WRITE = "START TRANSACTION"
# one snapshot for all that is read
_READ = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"


def _settings(flavour: Flavour) -> str:
    """Of a connection of ours. To the server's own sql_mode we add that a value that does not fit is an error."""
    wanted = (
        f"SET NAMES utf8mb4 COLLATE {flavour.collation}",
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
        "SET SESSION sql_mode = CONCAT(@@sql_mode, ',STRICT_ALL_TABLES'), group_concat_max_len = 1048576",
    )
    return "; ".join(wanted)


def _keep_alive(connection: Any) -> None:
    """PyMySQL asks for it, but with the system's two hours."""
    line = getattr(connection, "_sock", None)
    if isinstance(line, socket.socket) and line.family in (socket.AF_INET, socket.AF_INET6):
        for name, value in _KEEP_ALIVE.items():
            if hasattr(socket, name):
                line.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _unknown() -> CommitUnknown:
    return CommitUnknown(
        "the connection to the database server was lost during the commit, so it may have been written or not; check"
        " before you do it again (an idempotency key makes a repeat harmless)"
    )


def _aborted() -> TransactionError:
    return TransactionError(
        "the server has rolled this transaction back (a deadlock, or a statement that ended it) and the error was"
        " caught inside; nothing of it was written. Let the error leave the block, and run it again",
        code="tx_aborted",
    )


# -- schema ----------------------------------------------------------------------------------------------------------

_PATIENCE_S = 60
_ALREADY_DONE = (1060, 1061, 1091)
"""There is such a column or index, or there is none to drop: an upgrade that was killed got so far."""
_LOCK = "CONCAT('perdure-', SHA2(DATABASE(), 224))"


def _prepare(cursor: Any, flavour: Flavour, where: str, *, allowed: bool) -> int:
    known = migrate.migrations_of("mysql")
    before = applied(cursor)
    if not migrate.pending(known, before):
        return 0
    if not allowed:
        raise migrate.older(where, known, before) if before else migrate.missing(where)
    cursor.execute("COMMIT")
    cursor.execute(f"SELECT GET_LOCK({_LOCK}, {_PATIENCE_S})")  # others wait here, and then find nothing left to do
    if cursor.fetchone() != (1,):
        raise DatabaseBusy(
            f"another process upgrades {where} for more than {_PATIENCE_S} s; wait for it, then try again"
        )
    try:
        cursor.execute(f"SET SESSION lock_wait_timeout = {_PATIENCE_S}")
        steps = migrate.pending(known, applied(cursor))
        for step in steps:
            _do(cursor, step, flavour, where)
    finally:
        with suppress(pymysql.Error):
            cursor.execute(f"DO RELEASE_LOCK({_LOCK})")
    return len(steps)


def _do(cursor: Any, step: migrate.Migration, flavour: Flavour, where: str) -> None:
    """Each statement commits by itself. Whatever stops this, the next upgrade begins the step again."""
    statements = migrate.statements_of(step, naming(flavour))
    for number, statement in enumerate(statements, 1):
        try:
            cursor.execute(statement)
        except pymysql.Error as error:
            if number_of(error) in _ALREADY_DONE:
                continue
            meaning = translate(error)
            raise type(meaning)(
                f"{where}: statement {number} of {len(statements)} of schema step {step.revision} ({step.name}):"
                f" {meaning.message}. What was done before it stays; remove the cause and run perdure db upgrade again,"
                " which goes on from there",
                code=meaning.code,
            ) from error


def applied(cursor: Any) -> list[Applied]:
    """The steps that the database has recorded. Empty: it is not ours yet."""
    try:  # not whether information_schema knows the table: it does not show what this user may not read
        cursor.execute(migrate.recorded_in(naming(Flavour.MARIADB)))
    except Exception as error:  # PyMySQL's, or mysqlclient's
        if number_of(error) == NO_TABLE:
            return []
        raise
    return migrate.applied(cursor.fetchall())


def create_database(url: str, name: str) -> None:
    """Make another database on the server of this one, unless it is there."""
    quoted = name.replace("`", "``")
    try:
        connection = Connection(**_parts(url))
        try:
            connection.cursor().execute(f"CREATE DATABASE IF NOT EXISTS `{quoted}`")
        finally:
            connection.close()
    except pymysql.Error as error:
        raise translate(error) from error
