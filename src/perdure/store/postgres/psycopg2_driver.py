"""Calls on the user's own connection of psycopg2, inside his transaction. Used by `session`.

psycopg2 is never imported here: whoever has such a connection has imported it. It writes values into the statement, one
statement at a time; statements and values mean the same as in `driver`.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from typing import Any
from uuid import UUID

from perdure.errors import StoreError
from perdure.store.engine import ImmediateDriver, Result, Statement, Statements, row_for, rows_for
from perdure.store.postgres.arrays import array_form
from perdure.store.postgres.asyncpg_driver import given, type_of, typed
from perdure.store.postgres.driver import translate, value_invalid
from perdure.store.protocols import ConnectionLost
from perdure.store.transaction import busy, closed, not_open

_NO_ROWS: list[tuple[Any, ...]] = []
_MARKER = re.compile(r"\$(\d+)")
_UUID_OID = 2950
_IDLE, _ACTIVE, _UNKNOWN = 0, 1, 4
"""Of `connection.info.transaction_status`."""


def connection_types() -> tuple[type, ...]:
    """Its connections, if the program has loaded it."""
    library = sys.modules.get("psycopg2.extensions")
    return () if library is None else (library.connection,)


def cursor(connection: Any) -> Any:
    """One whose rows are tuples."""
    return sys.modules["psycopg2.extensions"].cursor(connection)


def borrow_psycopg2(connection: Any, statements: Statements) -> Psycopg2Driver:
    """Refuses a connection that has no transaction and cannot begin one, as psycopg2 does with our first statement."""
    status = _UNKNOWN if connection.closed else connection.info.transaction_status
    if status == _UNKNOWN:
        raise closed()
    if status == _ACTIVE:
        raise busy()
    if status == _IDLE and connection.autocommit:
        raise not_open()
    return Psycopg2Driver(connection, statements)


class Psycopg2Driver(ImmediateDriver):
    """Executes calls on one connection, each at once, on a cursor of ours."""

    def __init__(self, connection: Any, statements: Statements) -> None:
        self._library = sys.modules["psycopg2"]
        self._cursor = cursor(connection)
        self._statements = statements

    def execute(self, call: tuple[str, Any]) -> Result:
        name, params = call
        statement = self._statements[name]
        if params.__class__ is not list:
            return self._run_one(statement, row_for(statement, params))
        rows = rows_for(statement, params)
        form = array_form(statement) if len(rows) > 1 else None
        if form is None:
            return Result(_NO_ROWS, sum([self._run_one(statement, row).changed for row in rows]))
        columns = [[_written(value) for value in column] for column in zip(*rows, strict=True)]
        return self._run(form.sql.decode(), columns, returns_rows=False)

    def _run_one(self, statement: Statement, row: tuple[object, ...]) -> Result:
        sql = typed(statement.sql, tuple([type_of(value) for value in row]))
        return self._run(sql, [_written(value) for value in row], returns_rows=statement.returns_rows)

    def _run(self, sql: str, params: list[Any], *, returns_rows: bool) -> Result:
        own = self._cursor
        try:
            own.execute(_in_its_style(sql), {f"p{number}": value for number, value in enumerate(params, 1)})
            if returns_rows:
                ids = [number for number, column in enumerate(own.description) if column.type_code == _UUID_OID]
                return Result([_taken(row, ids) for row in own.fetchall()], own.rowcount)
        except (self._library.Error, ValueError, OverflowError) as error:
            raise _meaning_of(error, self._library) from error
        return Result(_NO_ROWS, own.rowcount)


@cache
def _in_its_style(sql: str) -> str:
    return _MARKER.sub(r"%(p\1)s", sql.replace("%", "%%"))


def _written(value: object) -> object:
    """It knows no UUIDs, unless the program has told it."""
    prepared = given(value)
    return str(prepared) if isinstance(prepared, UUID) else prepared


def _taken(row: tuple[Any, ...], ids: list[int]) -> tuple[Any, ...]:
    """Ids are 16 bytes."""
    if not ids:
        return row
    values = list(row)
    for number in ids:
        if values[number] is not None:
            values[number] = UUID(str(values[number])).bytes
    return tuple(values)


def _meaning_of(error: Exception, library: Any) -> StoreError:
    if not isinstance(error, library.Error):
        return value_invalid(error)
    if getattr(error, "pgcode", None) is not None:
        return translate(error)
    if isinstance(error, library.InterfaceError):
        return closed()
    if isinstance(error, library.OperationalError):
        return ConnectionLost(f"the connection to PostgreSQL was lost ({str(error).strip()})")
    return StoreError(f"the database refused: {error}; nothing was written")
