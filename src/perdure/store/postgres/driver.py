"""Calls on a psycopg connection, ours or the user's, and what PostgreSQL's errors mean."""

from __future__ import annotations

import re
import struct
from functools import cache
from typing import Any, cast

import psycopg

from perdure.errors import DatabaseBusy, DatabaseUnavailable, SchemaError, StoreError, TransactionError
from perdure.store.engine import (
    Outrun,
    Pair,
    Result,
    Serialization,
    Statement,
    Statements,
    Tell,
    UniqueViolation,
    row_for,
    rows_for,
)
from perdure.store.grants import NOT_NEW
from perdure.store.postgres.arrays import ARRAY_OIDS, OIDS, array_form, array_of, encoded
from perdure.store.postgres.pipeline import Answer, Failure, Message, Pipeline
from perdure.store.postgres.statements import SCHEMA
from perdure.store.protocols import ConnectionLost, Locked


class PostgresDriver:
    """Executes calls on one connection. What it is told waits for the next call, and both take one exchange."""

    def __init__(self, pipeline: Pipeline, statements: Statements) -> None:
        self._pipeline = pipeline
        self._statements = statements

    def execute(self, call: Pair) -> Result:
        answer = self._add(*call)
        self.exchange()
        return answer

    def tell(self, call: Tell) -> Result:
        return self._add(*call)

    def exchange(self) -> None:
        """Send what was told, and wait until it is done."""
        failure = self._pipeline.exchange()
        if failure is not None:
            raise meaning_of(failure) from failure.error

    def drop(self) -> None:
        """Forget what was told and not sent."""
        self._pipeline.drop()

    def _add(self, name: str, params: Any, changes: int | None = None) -> Result:
        statement = self._statements[name]
        answer = Answer()
        try:
            for message in self._messages(statement, params, changes):
                self._pipeline.add(message, answer)
        except (OverflowError, UnicodeError, struct.error) as error:
            raise translate(error) from error
        return cast("Result", answer)

    def _messages(self, statement: Statement, params: Any, changes: int | None) -> list[Message]:
        if params.__class__ is not list:
            return [self._message(statement, row_for(statement, params), changes)]
        rows = rows_for(statement, params)
        form = array_form(statement) if len(rows) > 1 else None
        if form is None:
            return [self._message(statement, row, changes) for row in rows]
        encoding = self._pipeline.encoding
        columns = zip(form.types, zip(*rows, strict=True), strict=True)
        arrays = tuple([array_of(kind, values, encoding) for kind, values in columns])
        oids = tuple([ARRAY_OIDS[kind] for kind in form.types])
        return [_guarded(Message(form.sql, arrays, oids, form.steady), changes)]

    def _message(self, statement: Statement, row: tuple[object, ...], changes: int | None) -> Message:
        encoding = self._pipeline.encoding
        values = [_dumped(value, encoding) for value in row]
        message = Message(
            _encoded(statement), tuple([dumped for dumped, _ in values]), tuple([oid for _, oid in values])
        )
        return _guarded(message, changes)


class AsyncPostgresDriver:
    """The same on a connection whose exchanges are awaited."""

    def __init__(self, connection: psycopg.AsyncConnection[Any], statements: Statements) -> None:
        self._connection = connection
        self._pipeline = Pipeline(connection, prepares=False)
        self._plain = PostgresDriver(self._pipeline, statements)
        self.drop = self._pipeline.drop

    async def run(self, call: Pair | Tell) -> Result:
        answer = self._plain.tell(call if isinstance(call, Tell) else Tell(*call))
        if not isinstance(call, Tell):
            failure = await self._pipeline.exchange_async()
            if failure is not None:
                raise meaning_of(failure) from failure.error
        return answer

    def abandon(self) -> None:
        self._connection.pgconn.finish()


@cache
def _encoded(statement: Statement) -> bytes:
    return statement.sql.encode()


def _guarded(message: Message, changes: int | None) -> Message:
    if changes is None:
        return message
    sql = _guard(message.sql, len(message.params) + 1)
    return Message(sql, (*message.params, _BIGINT(changes)), (*message.oids, OIDS["bigint"]), message.steady, True)


@cache
def _guard(sql: bytes, number: int) -> bytes:
    """Divides by zero if it changes another number of rows: then nothing behind it is run, not even COMMIT."""
    return b"WITH changed AS (%s RETURNING 1) SELECT 1 / (COUNT(*) = $%d)::int FROM changed" % (sql, number)


_BIGINT = struct.Struct(">q").pack
_DOUBLE = struct.Struct(">d").pack


def _dumped(value: Any, encoding: str) -> tuple[bytes | None, int]:
    """One type per kind of value: integers are always bigint, so a statement is the same for all numbers."""
    match value:
        case None:
            return None, 0
        case bytes() | bytearray():
            return bytes(value), OIDS["uuid"]
        case str():
            return encoded(value, encoding), OIDS["text"]
        case int():
            return _BIGINT(value), OIDS["bigint"]
        case _:
            return _DOUBLE(value), 701


# -- errors ----------------------------------------------------------------------------------------------------------


def meaning_of(failure: Failure) -> StoreError:
    if failure.message.guarded and failure.error.sqlstate == "22012":
        return Outrun()
    return translate(failure.error)


def translate(error: Exception) -> StoreError:
    """The error a user gets for what PostgreSQL said: what it means and what to do, with a stable code."""
    state: str | None = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)  # psycopg2 calls it so
    if state is None:
        return _without_state(error) if isinstance(error, psycopg.Error) else value_invalid(error)
    known = _BY_STATE.get(state) or _BY_CLASS.get(state[:2])
    if known is None or (known is _NO_SCHEMA and not _OURS.search(_said(error))):
        return StoreError(f"the database refused: {_said(error)} (SQLSTATE {state}); nothing was written")
    cls, code, advice = known
    return cls(f"PostgreSQL: {_said(error)}; {advice}", code=code)


def _said(error: Exception) -> str:
    """The first line: the rest quotes the statement or its values."""
    return str(error).split("\n", 1)[0].strip()


def value_invalid(error: Exception) -> StoreError:
    return StoreError(f"a value does not fit into the database ({error}); nothing was written", code="value_invalid")


def _without_state(error: psycopg.Error) -> StoreError:
    if isinstance(error, psycopg.DataError):
        return value_invalid(error)
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
_OURS = re.compile(rf'"{SCHEMA}[".]')
"""A table or schema that is missing may be the user's own."""
_NO_SCHEMA: Known = (
    SchemaError,
    "schema_missing",
    "there are no Perdure tables; run perdure db upgrade, and see that a tx= is a connection to the same database",
)
_GRANT = (
    "nothing was written; perdure db grants --role USER --for read, enqueue or work prints what this user lacks"
    f" ({NOT_NEW}; an upgrade needs the owner of the tables)"
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
    "26000": _GIVE_WAY,  # a prepared statement that a DEALLOCATE removed: prepared again the next time
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
