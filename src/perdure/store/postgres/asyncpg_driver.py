"""Calls on the user's own connection of asyncpg, inside his transaction. Used by `session`.

asyncpg is never imported here: whoever has such a connection has imported it. It sends one statement at a time, so each
call is a round trip; statements and values mean the same as in `driver`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, cast
from uuid import UUID
from weakref import WeakSet

from perdure.errors import DatabaseBusy, StoreError, TransactionError
from perdure.store.borrowed import Fetched
from perdure.store.engine import Outrun, Pair, Result, Statement, Statements, Tell, row_for, rows_for
from perdure.store.postgres.arrays import array_form, storable
from perdure.store.postgres.driver import translate, value_invalid
from perdure.store.protocols import ConnectionLost
from perdure.store.transaction import busy, closed, not_open

_NO_ROWS: list[tuple[Any, ...]] = []


def is_asyncpg(connection: object) -> bool:
    library = sys.modules.get("asyncpg")
    return library is not None and isinstance(connection, library.Connection)


async def borrow_asyncpg(connection: Any, statements: Statements) -> AsyncpgDriver:
    """Refuses a connection without a transaction, and one that reads ids, numbers or texts in another way than ours."""
    if connection.is_closed():
        raise closed()
    if not connection.is_in_transaction():
        raise not_open()
    driver = AsyncpgDriver(connection, statements)
    if connection not in _sound:
        await driver.check_types()
        _sound.add(connection)
    return driver


_sound: WeakSet[Any] = WeakSet()
"""Connections whose types were checked."""


async def fetched_by_asyncpg(connection: Any, sql: str, params: Any) -> Fetched:
    """A statement with parameters in psycopg's style."""
    text, values = _numbered(sql, params)
    statement = await connection.prepare(text)
    rows = [tuple(record) for record in await statement.fetch(*values)]
    count = statement.get_statusmsg().rsplit(" ", 1)[-1]
    attributes = statement.get_attributes()
    return Fetched(rows, int(count) if count.isdecimal() else -1, [(each.name,) for each in attributes] or None)


def _numbered(sql: str, params: Any) -> tuple[str, list[Any]]:
    """`%s` and `%(name)s` as asyncpg wants them: `$1`."""
    if params is None:
        return sql, []
    values: list[Any] = []
    given = iter(()) if isinstance(params, Mapping) else iter(params)

    def marker(found: re.Match[str]) -> str:
        if found[0] == "%%":
            return "%"
        values.append(params[found[1]] if found[1] else next(given))
        return f"${len(values)}"

    return re.sub(r"%%|%(?:\((\w+)\))?s", marker, sql), values


class AsyncpgDriver:
    """Executes calls on one connection, each at once."""

    def __init__(self, connection: Any, statements: Statements) -> None:
        self._connection = connection
        self._statements = statements

    async def run(self, call: Pair | Tell) -> Result:
        statement, params = self._statements[call[0]], cast("Any", call[1])
        if params.__class__ is list:
            result = await self._run_many(statement, rows_for(statement, params))
        else:
            result = await self._run_one(statement, row_for(statement, params))
        if isinstance(call, Tell) and call.changes is not None and result.changed != call.changes:
            raise Outrun
        return result

    async def _run_many(self, statement: Statement, rows: Sequence[tuple[object, ...]]) -> Result:
        form = array_form(statement) if len(rows) > 1 else None
        if form is None:
            return Result(_NO_ROWS, sum([(await self._run_one(statement, row)).changed for row in rows]))
        columns = [[given(value) for value in column] for column in zip(*rows, strict=True)]
        return await self._run(form.sql.decode(), columns, returns_rows=False)

    async def _run_one(self, statement: Statement, row: tuple[object, ...]) -> Result:
        sql = typed(statement.sql, tuple([type_of(value) for value in row]))
        return await self._run(sql, [given(value) for value in row], returns_rows=statement.returns_rows)

    async def _run(self, sql: str, params: Sequence[object], *, returns_rows: bool) -> Result:
        try:
            if returns_rows:
                rows = [tuple(map(_taken, record)) for record in await self._connection.fetch(sql, *params)]
                return Result(rows, len(rows))
            said: str = await self._connection.execute(sql, *params)
        except Exception as error:
            raise _meaning_of(error) from error
        count = said.rsplit(" ", 1)[-1]
        return Result(_NO_ROWS, int(count) if count.isdecimal() else 0)

    async def check_types(self) -> None:
        found = await self._run("SELECT $1::uuid, $2::bigint, $3::text", (_SAMPLE, 1, "x"), returns_rows=True)
        if found.rows != [(_SAMPLE.bytes, 1, "x")]:
            raise TransactionError(
                "tx= is an asyncpg Connection whose set_type_codec() has changed uuid, bigint or text, so that jobs"
                " cannot be read on it; give one without that",
                code="tx_unusable",
            )

    def drop(self) -> None:
        """Nothing waits."""

    def abandon(self) -> None:
        with suppress(RuntimeError):  # its event loop is closed
            self._connection.terminate()


# -- values ----------------------------------------------------------------------------------------------------------

_MARKER = re.compile(r"\$(\d+)")
_SAMPLE = UUID(int=1)


def type_of(value: object) -> str:
    """The same types as those of `driver`; asyncpg lets the server find the others out."""
    match value:
        case None:
            return ""
        case bytes() | bytearray():
            return "::uuid"
        case str():
            return "::text"
        case int():
            return "::bigint"
        case _:
            return "::float8"


@cache
def typed(sql: str, types: tuple[str, ...]) -> str:
    return _MARKER.sub(lambda marker: marker[0] + types[int(marker[1]) - 1], sql)


def given(value: object) -> object:
    match value:
        case bytes() | bytearray():
            return UUID(bytes=bytes(value))
        case str():
            return storable(value)
        case bool():
            return int(value)
        case _:
            return value


def _taken(value: object) -> object:
    return value.bytes if isinstance(value, UUID) else value


# -- errors ----------------------------------------------------------------------------------------------------------


def _meaning_of(error: Exception) -> StoreError:
    if getattr(error, "sqlstate", None) is not None:
        return translate(error)
    if isinstance(error, TimeoutError):
        return DatabaseBusy("the statement took longer than command_timeout of the connection; nothing was written")
    if isinstance(error, OSError):
        return ConnectionLost(f"the connection to PostgreSQL was lost ({error})")
    if isinstance(error, (ValueError, TypeError)):
        return value_invalid(error)
    text = str(error)
    if "in progress" in text:
        return busy()
    return closed() if "closed" in text else StoreError(f"the database refused: {text}; nothing was written")
