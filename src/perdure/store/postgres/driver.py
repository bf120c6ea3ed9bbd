"""Calls on a psycopg connection, ours or the user's, and what PostgreSQL's errors mean."""

from __future__ import annotations

from typing import Any, cast

import psycopg
from psycopg.adapt import AdaptersMap, Buffer, Dumper, Loader
from psycopg.pq import Format
from psycopg.rows import tuple_row
from psycopg.types.numeric import Int2BinaryLoader, Int4BinaryLoader, Int8BinaryLoader, Int8Dumper
from psycopg.types.string import StrDumper, TextBinaryLoader

from perdure.errors import DatabaseBusy, DatabaseUnavailable, SchemaError, StoreError, TransactionError
from perdure.store.engine import Blob, Result, Serialization, Statements, UniqueViolation, row_for, rows_for
from perdure.store.protocols import ConnectionLost, Locked

_NO_ROWS: list[tuple[Any, ...]] = []


class PostgresDriver:
    """Executes calls on one connection with its own cursor: rows are tuples and ids 16 bytes, whatever the connection's
    factories and adapters are, and nothing is registered on the connection."""

    def __init__(self, connection: psycopg.Connection[Any], statements: Statements) -> None:
        self._statements = statements
        self._cursor = psycopg.RawCursor(connection, row_factory=tuple_row)
        self._cursor.format = Format.BINARY
        _register(self._cursor.adapters)

    def execute(self, call: tuple[str, Any]) -> Result:
        name, params = call
        statement = self._statements[name]
        cursor = self._cursor
        try:
            if params.__class__ is list:
                cursor.executemany(statement.sql.encode(), rows_for(statement, params))
                return Result(_NO_ROWS, cursor.rowcount)
            cursor.execute(statement.sql.encode(), row_for(statement, params))
            rows = cast("list[tuple[object, ...]]", cursor.fetchall()) if cursor.rownumber is not None else _NO_ROWS
            return Result(rows, cursor.rowcount)
        except (psycopg.Error, OverflowError, UnicodeError) as error:
            raise translate(error) from error


# -- values ----------------------------------------------------------------------------------------------------------


class _IdDumper(Dumper):
    """16 bytes, or a `Blob` of them, as a uuid; nothing else that we write is bytes."""

    oid = psycopg.adapters.types["uuid"].oid
    format = Format.BINARY

    def dump(self, obj: bytes | Blob) -> Buffer | None:
        return obj


class _IdLoader(Loader):
    format = Format.BINARY

    def load(self, data: Buffer) -> bytes:
        return bytes(data)


class _TextDumper(StrDumper):
    """PostgreSQL cannot store NUL in a text. Names and keys have none and JSON escapes it; in an error message or a log
    line the symbol ␀ replaces it, because a failure that cannot be written would be lost."""

    def dump(self, obj: str) -> Buffer | None:
        return super().dump(obj.replace("\x00", "\u2400"))


def _register(adapters: AdaptersMap) -> None:
    """One type per kind of value: integers are always bigint, so a statement is the same for all numbers."""
    adapters.register_dumper(bytes, _IdDumper)
    adapters.register_dumper(Blob, _IdDumper)
    adapters.register_dumper(str, _TextDumper)
    adapters.register_dumper(int, Int8Dumper)
    adapters.register_loader("uuid", _IdLoader)
    adapters.register_loader("text", TextBinaryLoader)
    adapters.register_loader("int2", Int2BinaryLoader)
    adapters.register_loader("int4", Int4BinaryLoader)
    adapters.register_loader("int8", Int8BinaryLoader)


# -- errors ----------------------------------------------------------------------------------------------------------


def translate(error: Exception) -> StoreError:
    """The error a user gets for what PostgreSQL said: what it means and what to do, with a stable code."""
    if not isinstance(error, psycopg.Error):
        return _value_invalid(error)
    state = error.sqlstate
    if state is None:
        return _without_state(error)
    known = _BY_STATE.get(state) or _BY_CLASS.get(state[:2])
    if known is None:
        return StoreError(f"the database refused: {_said(error)} (SQLSTATE {state}); nothing was written")
    cls, code, advice = known
    return cls(f"PostgreSQL: {_said(error)}; {advice}", code=code)


def _said(error: Exception) -> str:
    """The first line: the rest quotes the statement or its values."""
    return str(error).split("\n", 1)[0].strip()


def _value_invalid(error: Exception) -> StoreError:
    return StoreError(f"a value does not fit into the database ({error}); nothing was written", code="value_invalid")


def _without_state(error: psycopg.Error) -> StoreError:
    if isinstance(error, psycopg.DataError):
        return _value_invalid(error)
    if isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)):
        return ConnectionLost(f"the connection to PostgreSQL was lost ({_said(error)})")
    return StoreError(f"the database refused: {_said(error)}; nothing was written")


Known = tuple[type[StoreError], str, str]

_LOST: Known = (ConnectionLost, "connection_lost", "the server ended the connection")
_GIVE_WAY: Known = (Serialization, "serialization_failure", "nothing was written; it is safe to try again")
_WAITED: Known = (
    Locked,
    "database_busy",
    "another transaction held it for too long; nothing was written. Try again, and find that one in pg_stat_activity",
)
_STOPPED: Known = (
    DatabaseBusy,
    "database_busy",
    "the statement took too long or was cancelled; nothing was written. Try again",
)
_NO_SCHEMA: Known = (
    SchemaError,
    "schema_missing",
    "there are no Perdure tables; run perdure db upgrade, and see that a tx= is a connection to the same database",
)
_GRANT = (
    "nothing was written; perdure db grants --role USER --for read, enqueue or work prints what this user lacks (an"
    " upgrade needs the owner of the tables)"
)
_LOGIN: Known = (DatabaseUnavailable, "login_refused", "check user and password of the database URL")

_BY_STATE: dict[str, Known] = {
    "23505": (UniqueViolation, "unique_violation", "a row with this key exists already"),
    "25006": (
        DatabaseUnavailable,
        "database_readonly",
        "this is a standby or a read-only session; give the URL of the primary server",
    ),
    "25P02": (
        TransactionError,
        "tx_aborted",
        "an earlier statement failed and PostgreSQL ignores the rest of the transaction; roll it back and begin again",
    ),
    "25P03": _LOST,
    "3D000": (DatabaseUnavailable, "database_unreachable", "create the database, or correct its name in the URL"),
    "3F000": _NO_SCHEMA,
    "40001": _GIVE_WAY,
    "40P01": _GIVE_WAY,
    "42501": (DatabaseUnavailable, "permission_denied", _GRANT),
    "42P01": _NO_SCHEMA,
    "53100": (DatabaseUnavailable, "disk_full", "free some space on the server; nothing of this operation was written"),
    "53300": (DatabaseUnavailable, "too_many_connections", "raise max_connections, or run fewer processes"),
    "55P03": _WAITED,
    "57014": _STOPPED,
    "57P01": _LOST,
    "57P02": _LOST,
    "57P03": _LOST,
    "57P05": _LOST,
}
_BY_CLASS: dict[str, Known] = {
    "08": _LOST,
    "22": (StoreError, "value_invalid", "a value does not fit into the database; nothing was written"),
    "28": _LOGIN,
    "53": (DatabaseUnavailable, "out_of_resources", "the server is short of resources; nothing was written"),
    "58": (DatabaseUnavailable, "disk_error", "the server's disk refused to read or write; look at its log"),
    "XX": (DatabaseUnavailable, "database_corrupt", "look at the server's log before you continue"),
}
