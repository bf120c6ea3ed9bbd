"""`sqlite3` connections: how ours are opened, how calls run on them and on the user's, and what SQLite's errors mean.

Used by everything in this folder; calls `wal`.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import Any, NamedTuple

from perdure.errors import ConfigError, DatabaseBusy, DatabaseUnavailable, SchemaError, StoreError, TransactionError
from perdure.store.engine import ImmediateDriver, Result, Statement, Statements, UniqueViolation, row_for, rows_for
from perdure.store.protocols import StoreSettings
from perdure.store.sqlite.statements import PREFIX
from perdure.store.sqlite.wal import affected
from perdure.store.tables import is_table, tables
from perdure.store.transaction import closed

OLDEST = (3, 35, 0)  # RETURNING
CACHE_KIB = 8_000
"""Four times SQLite's default: a worker empties a queue of 50,000 jobs a twelfth faster with it."""
SQLITE_VERSION = sqlite3.sqlite_version_info
LOOK_EVERY_S = 0.01

_NO_ROWS: list[tuple[Any, ...]] = []
_ONE_WRITTEN = Result(_NO_ROWS, 1)


# -- opening ---------------------------------------------------------------------------------------------------------


def guarded() -> bool:
    """True on an SQLite whose checkpoints can corrupt a file that several processes write: see `wal`."""
    return affected(SQLITE_VERSION[:3])


def set_patience(connection: sqlite3.Connection, seconds: float) -> None:
    """How long the connection waits for a lock that another one holds."""
    _set(connection, f"busy_timeout={round(seconds * 1000)}")


def open_writer(path: Path, settings: StoreSettings) -> sqlite3.Connection:
    """A connection that may write. It is shared between threads under the mutex of its database."""
    connection = _open(path, settings)
    try:
        set_durability(connection, settings)
        _set(connection, f"cache_size=-{CACHE_KIB}")
        _set(connection, "temp_store=MEMORY")  # else a savepoint of a large batch writes its own file
        tame(connection)
    except BaseException as error:
        connection.close()
        if isinstance(error, sqlite3.Error):  # the first look at the file: it may be no database, or not readable
            raise translate(error, str(path)) from error
        raise
    return connection


def set_durability(connection: sqlite3.Connection, settings: StoreSettings) -> None:
    """FULL: a commit returns when it is on the disk. NORMAL: when the system has it."""
    _set(connection, f"synchronous={'FULL' if settings.durability == 'full' else 'NORMAL'}")


def open_reader(path: Path, settings: StoreSettings) -> sqlite3.Connection:
    """A connection that cannot write. Still opened read-write: a WAL reader must write to the shared-memory file."""
    connection = open_writer(path, settings)
    _set(connection, "query_only=ON")
    return connection


def give_pages_back(connection: sqlite3.Connection) -> None:
    """Let the file give single pages back when they are free: at once if it is empty, else with the next VACUUM."""
    _set(connection, "auto_vacuum=INCREMENTAL")


def tame(connection: sqlite3.Connection) -> None:
    """Switch off auto-checkpoints on an affected SQLite. Also done to every connection that is given as `tx=`."""
    if guarded():
        _set(connection, "wal_autocheckpoint=0")


def is_wal(connection: sqlite3.Connection) -> bool:
    """Whether the file is in WAL mode already."""
    mode: str = connection.execute("PRAGMA journal_mode").fetchone()[0]
    return mode == "wal"


def use_wal(connection: sqlite3.Connection, path: Path) -> None:
    """Put the file into WAL mode, for good. The caller makes sure that no other process does the same now.

    Waits for whoever writes, as long as the connection has patience: SQLite itself does not wait here.
    """
    (patience_ms,) = connection.execute("PRAGMA busy_timeout").fetchone()
    deadline = monotonic() + patience_ms / 1000
    while (mode := _switched_to_wal(connection, may_wait=monotonic() < deadline)) is None:
        sleep(LOOK_EVERY_S)
    if mode != "wal":
        raise ConfigError(f"{path} cannot be put into WAL mode (it says {mode!r}); use a file on a local disk")


def _switched_to_wal(connection: sqlite3.Connection, *, may_wait: bool) -> str | None:
    """The mode of the file afterwards. None: somebody writes to it just now."""
    try:
        mode: str = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
    except sqlite3.OperationalError as error:
        if not may_wait or error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
            raise
        return None
    return mode


def _open(path: Path, settings: StoreSettings) -> sqlite3.Connection:
    if SQLITE_VERSION < OLDEST:
        raise ConfigError(
            f"this Python has SQLite {sqlite3.sqlite_version}; Perdure needs {'.'.join(map(str, OLDEST))} or newer"
        )
    uri = f"{path.absolute().as_uri()}?mode=rw"
    patience_s = settings.busy_timeout_s
    with translated(path):
        return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=patience_s)


def _set(connection: sqlite3.Connection, pragma: str) -> None:
    sqlite3.Cursor(connection).execute(f"PRAGMA {pragma}").fetchall()  # the connection may make its own kind of rows


# -- calls -----------------------------------------------------------------------------------------------------------


class SqliteDriver(ImmediateDriver):
    """Executes calls on one connection, with our own cursor: rows are tuples, whatever the connection's row factory."""

    def __init__(self, connection: sqlite3.Connection, statements: Statements) -> None:
        self._statements = statements
        try:
            self._cursor = sqlite3.Cursor(connection)
        except sqlite3.Error as error:
            raise translate(error) from error

    def close(self) -> None:
        """Release the last statement: until then SQLite keeps a closed connection's files open."""
        self._cursor.close()

    def execute(self, call: tuple[str, Any]) -> Result:
        name, params = call
        _, sql, _, returns_rows, _ = statement = self._statements[name]
        cursor = self._cursor
        try:
            if params.__class__ is list:
                return Result(_NO_ROWS, _execute_many(cursor, statement, rows_for(statement, params)))
            cursor.execute(sql, params if params.__class__ is tuple else row_for(statement, params))
            if returns_rows:
                return Result(cursor.fetchall(), cursor.rowcount)
            return _ONE_WRITTEN if cursor.rowcount == 1 else Result(_NO_ROWS, cursor.rowcount)
        except sqlite3.OperationalError as error:
            if not sql.startswith("SELECT") or "decode to UTF-8" not in str(error):
                raise translate(error) from error
            return self._read_leniently(sql, row_for(statement, params))
        except (sqlite3.Error, sqlite3.Warning, OverflowError, UnicodeEncodeError) as error:
            raise translate(error) from error

    def _read_leniently(self, sql: str, params: tuple[object, ...]) -> Result:
        """Another program has written a text that is not UTF-8: shown with escaped bytes, so that the rows can be read.

        Only after that error: a text factory is Python code that runs for each text.
        """
        connection: Any = self._cursor.connection
        usual = connection.text_factory
        connection.text_factory = _spelt_out
        try:
            self._cursor.execute(sql, params)
            return Result(self._cursor.fetchall(), self._cursor.rowcount)
        except sqlite3.Error as error:
            raise translate(error) from error
        finally:
            connection.text_factory = usual


def _spelt_out(text: bytes) -> str:
    return text.decode("utf-8", "backslashreplace")


def _execute_many(cursor: sqlite3.Cursor, statement: Statement, rows: Sequence[tuple[object, ...]]) -> int:
    """Write as many rows per statement as possible. Returns how many were written."""
    changed, done = 0, 0
    wide = widened(statement) if len(rows) > 1 else None
    if wide is not None:
        for done in range(wide.rows, len(rows) + 1, wide.rows):
            cursor.execute(wide.sql, tuple(chain.from_iterable(rows[done - wide.rows : done])))
            changed += cursor.rowcount
    if done < len(rows):
        cursor.executemany(statement.sql, rows[done:])
        changed += cursor.rowcount
    return changed


# -- errors ----------------------------------------------------------------------------------------------------------

_UNIQUE = (sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY)


def translate(error: Exception, path: str = "the database") -> StoreError:
    """The error a user gets for what SQLite said: what it means and what to do, with a stable code."""
    if isinstance(error, (OverflowError, UnicodeEncodeError)):
        return StoreError(
            f"a value does not fit into the database ({error}); nothing was written", code="value_invalid"
        )
    extended = getattr(error, "sqlite_errorcode", None)
    if extended is None:
        return _without_code(error)
    if extended in _UNIQUE:
        return UniqueViolation(f"a row with this key exists already ({error})")
    if extended == sqlite3.SQLITE_BUSY_SNAPSHOT:
        return TransactionError(
            "the transaction was begun as a reader (plain BEGIN) and someone else has written since, so SQLite cannot"
            " let it write; begin it with BEGIN IMMEDIATE, or enqueue before the first SELECT",
            code="tx_cannot_upgrade",
        )
    known = _BY_CODE.get(extended & 0xFF)
    if known is None:
        return _unknown(error)
    cls, code, advice = known
    return cls(f"{path}: {error}; {advice}", code=code)


class translated:  # noqa: N801 - reads as the phrase it is part of
    """`with translated(path):` what SQLite says inside becomes an error of ours."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if isinstance(error, sqlite3.Error):
            raise translate(error, str(self._path)) from error


_BY_CODE: dict[int, tuple[type[StoreError], str, str]] = {
    sqlite3.SQLITE_BUSY: (
        DatabaseBusy,
        "database_busy",
        "another process, or a transaction of this process, held the write lock too long; nothing was written; retry",
    ),
    sqlite3.SQLITE_LOCKED: (
        DatabaseBusy,
        "database_busy",
        "another connection of this process holds it; nothing was written, try again",
    ),
    sqlite3.SQLITE_READONLY: (
        DatabaseUnavailable,
        "database_readonly",
        "make the file and its folder writable for this user; nothing was written",
    ),
    sqlite3.SQLITE_FULL: (
        DatabaseUnavailable,
        "disk_full",
        "free some space, then try again; nothing of this operation was written",
    ),
    sqlite3.SQLITE_IOERR: (
        DatabaseUnavailable,
        "disk_error",
        "the disk refused to read or write; check its health and the system log before you continue",
    ),
    sqlite3.SQLITE_PROTOCOL: (
        DatabaseUnavailable,
        "disk_error",
        "the file cannot be locked; nothing was written, try again",
    ),
    sqlite3.SQLITE_CORRUPT: (
        DatabaseUnavailable,
        "database_corrupt",
        "stop writing, keep the files as they are, and restore a backup (see perdure db check)",
    ),
    sqlite3.SQLITE_NOTADB: (
        DatabaseUnavailable,
        "not_a_database",
        "the file exists but is not an SQLite database; give another path, or move the file",
    ),
    sqlite3.SQLITE_CANTOPEN: (
        DatabaseUnavailable,
        "database_unreachable",
        "check that the path exists and that this user may open it",
    ),
}


def _without_code(error: Exception) -> StoreError:
    text = str(error)
    if "closed" in text:
        return closed()
    if "thread" in text:
        return TransactionError(
            "the connection given as tx= belongs to another thread; enqueue there, or open one in this thread",
            code="tx_thread",
        )
    return _unknown(error)


_NO_TABLE = re.compile(rf"no such table: (?:main\.)?{PREFIX}(\w+)")


def _unknown(error: Exception) -> StoreError:
    text = str(error)
    found = _NO_TABLE.fullmatch(text)
    if found is not None and is_table(found[1]):  # else it is the user's own
        return SchemaError(
            f"the database has no Perdure tables ({text}); open it once with Perdure(path), or run perdure db upgrade,"
            " and make sure that tx= is a connection to the same database",
            code="schema_missing",
        )
    return StoreError(f"the database refused: {text}; nothing was written")


# -- one statement for many rows, made from a statement for one ------------------------------------------------------

WIDTH = 50
"""Fifty INSERTs of one row take a third longer than one of fifty; and each statement releases and retakes the
interpreter's lock, for which a busy worker has to wait."""
MOST_PARAMETERS = 999
"""The limit that every build of SQLite supports."""

_INSERT = re.compile(r"(INSERT INTO .*?\bVALUES )(\(.*?\))((?:\s+ON CONFLICT DO NOTHING)?)", re.DOTALL)
_UPDATE = re.compile(r"(UPDATE \w+\s+SET (?:(?!SELECT|WHERE).)*?)\s+WHERE ((?:(?!SELECT|WHERE).)*)", re.DOTALL)
_DELETE = re.compile(r"(DELETE FROM (\w+))\s+WHERE (\w+ = \?\d+(?: AND \w+ = \?\d+)*)")
_MARKER = re.compile(r"\?(\d+)")
_COMPARED = re.compile(r"(\w+) = ")


class Wide(NamedTuple):
    """A statement for `rows` rows at once, made from one for a single row; it takes all their parameters in order."""

    sql: str
    rows: int


@cache
def widened(statement: Statement) -> Wide | None:
    """None: it is none of the three simple forms that can be written for many rows.

    The given rows must not name a row of the table twice: it would be changed once.
    """
    columns = len(statement.names)
    if not columns:
        return None
    rows = min(WIDTH, MOST_PARAMETERS // columns)
    if parts := _INSERT.fullmatch(statement.sql):
        head, row, tail = parts.groups()
        return Wide(f"{head}{_repeated(row, columns, rows)}{tail}", rows)
    given = f"(VALUES {_repeated(_row(columns), columns, rows)}) AS v"
    if parts := _UPDATE.fullmatch(statement.sql):
        changes, guard = map(_of_given, parts.groups())
        return Wide(f"{changes} FROM {given} WHERE {guard}", rows)
    if parts := _DELETE.fullmatch(statement.sql):
        head, table, guard = parts.groups()
        key = ", ".join(_found_by(table, _COMPARED.findall(guard)))
        found = f"SELECT {key} FROM {given} CROSS JOIN {table} ON {_of_given(guard)}"  # noqa: S608 - our own words
        return Wide(f"{head} WHERE ({key}) IN ({found})", rows)
    return None


def _found_by(table: str, compared: list[str]) -> Sequence[str]:
    """The columns by which the rows to delete are named: the key of the table alone, where all of it is compared. One
    column instead of three is a seventh of what a worker's turn costs SQLite."""
    key = tables()[table.removeprefix(PREFIX)].key
    return key if set(key) <= set(compared) else compared


def _row(columns: int) -> str:
    return f"({', '.join(f'?{number}' for number in range(1, columns + 1))})"


def _repeated(row: str, columns: int, rows: int) -> str:
    """The row of parameters repeated, with the next numbers each time."""
    return ", ".join(_moved(row, by) for by in range(0, columns * rows, columns))


def _moved(row: str, by: int) -> str:
    return _MARKER.sub(lambda number: f"?{int(number[1]) + by}", row)


def _of_given(text: str) -> str:
    """With parameters replaced by the columns of the given rows, as SQLite names them."""
    return _MARKER.sub(r"v.column\1", text)
