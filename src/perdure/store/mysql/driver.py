"""Calls on a connection to MariaDB or MySQL, ours (PyMySQL) or the user's (also mysqlclient, aiomysql, asyncmy), and
what errors mean."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import cache
from typing import Any, NamedTuple, TypeVar

from perdure.errors import DatabaseBusy, DatabaseUnavailable, SchemaError, StoreError, TransactionError
from perdure.store.engine import (
    ImmediateDriver,
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
from perdure.store.mysql.statements import PREFIX
from perdure.store.protocols import ConnectionLost, Locked
from perdure.store.tables import is_table
from perdure.store.transaction import BUSY

T = TypeVar("T")

_NO_ROWS: list[tuple[Any, ...]] = []

IN_TRANSACTION = 1
"""The bit of the server's status that says so."""


Steps = Generator[str, Result, T]
"""Statements to run one after the other: each is answered by its result, or by the driver's error."""


class MySQLDriver(ImmediateDriver):
    """Executes calls on one connection with a cursor of ours: rows are tuples and ids 16 bytes, whatever cursors the
    connection makes.

    Values are written into the statement in a form that means the same under every sql_mode and character set.
    """

    def __init__(self, connection: Any, statements: Statements, cursor: Any) -> None:
        self._connection = connection
        self._cursor = cursor
        self._statements = statements
        self.savepoints = Savepoints()

    def execute(self, call: tuple[str, Any]) -> Result:
        steps = self.steps(*call)
        try:
            sql = next(steps)
            while True:
                try:
                    result = self._run(sql)
                except self._connection.Error as error:
                    sql = steps.throw(error)
                else:
                    sql = steps.send(result)
        except StopIteration as stop:
            result_of_all: Result = stop.value
            return result_of_all
        except (self._connection.Error, UnicodeError) as error:
            raise self.translated(error) from error

    def _run(self, sql: str) -> Result:
        try:
            self._cursor.execute(sql)
            if self._cursor.description is None:
                return Result(_NO_ROWS, self._cursor.rowcount)
            return _of_rows(self._cursor.fetchall())
        except Exception:
            raise
        except BaseException:  # Ctrl-C: half of the question may be sent, or of the answer read
            _break_off(self._connection)
            raise

    def steps(self, name: str, params: Any) -> Steps[Result]:
        """What a call runs."""
        form = _form(self._statements[name])
        if params.__class__ is list:
            return self._many(form, rows_for(form.statement, params))
        return self._one(form, row_for(form.statement, params))

    def _one(self, form: Form, row: tuple[object, ...]) -> Steps[Result]:
        at = 0
        for sql, markers in form.parts[:-1]:
            yield from _unless_taken(form, sql % tuple(map(literal, row[at : at + markers])))
            at += markers
        sql = form.parts[-1][0] % tuple(map(literal, row[at:]))
        rows, changed = yield from _unless_taken(form, self.savepoints.named(sql) if form.is_savepoint else sql)
        if form.has_sums:
            rows = [tuple(int(value) if isinstance(value, Decimal) else value for value in row) for row in rows]
        return Result(rows, changed)

    def _many(self, form: Form, rows: Sequence[tuple[object, ...]]) -> Steps[Result]:
        changed, wide = 0, form.wide
        if wide is None or len(rows) == 1:
            for row in rows:
                changed += (yield from self._one(form, row)).changed
        else:
            for some in _portions(wide.row, rows):
                changed += (yield from _unless_taken(form, wide.written(some))).changed
        return Result(_NO_ROWS, changed)

    def translated(self, error: Exception) -> StoreError:
        """What it means. If it may have ended the transaction, the connection knows so afterwards: PyMySQL learns it
        from the answer to the next statement."""
        meaning = translate(error)
        if isinstance(meaning, (Serialization, Locked)):
            with suppress(self._connection.Error):
                self._cursor.execute(_NOTHING)
        return meaning


_NOTHING = "DO 0"


def _break_off(connection: Any) -> None:
    """Nobody can use the connection any more; its owner may still close it."""
    getattr(connection, "_force_close", connection.close)()


def _unless_taken(form: Form, sql: str) -> Steps[Result]:
    try:
        return (yield sql)
    except Exception as error:
        if form.unless_taken and number_of(error) == DUPLICATE:
            return Result(_NO_ROWS, 0)
        raise


def _of_rows(rows: Iterable[tuple[Any, ...]]) -> Result:
    listed = list(rows)
    return Result(listed, len(listed))


class AsyncMySQLDriver:
    """The same on a connection of aiomysql or asyncmy, whose `errors` these are. A cancel closes such a connection."""

    def __init__(self, connection: Any, statements: Statements, cursor: Any, errors: type[Exception]) -> None:
        self._connection = connection
        self._cursor = cursor
        self._errors = errors
        self._plain = MySQLDriver(connection, statements, cursor)
        self.abandon = connection.close
        self.drop = self._plain.drop

    async def run(self, call: Pair | Tell) -> Result:
        result = await self.run_steps(self._plain.steps(call[0], call[1]))
        if isinstance(call, Tell) and call.changes is not None and result.changed != call.changes:
            raise Outrun
        return result

    async def run_steps(self, steps: Steps[T]) -> T:
        try:
            sql = next(steps)
            while True:
                try:
                    result = await self._run(sql)
                except self._errors as error:
                    sql = steps.throw(error)
                else:
                    sql = steps.send(result)
        except StopIteration as stop:
            result_of_all: T = stop.value
            return result_of_all
        except (self._errors, UnicodeError) as error:
            meaning = translate(error)
            if isinstance(meaning, (Serialization, Locked)):
                with suppress(self._errors):
                    await self._cursor.execute(_NOTHING)
            raise meaning from error

    async def _run(self, sql: str) -> Result:
        await self._cursor.execute(sql)
        if self._cursor.description is None:
            return Result(_NO_ROWS, self._cursor.rowcount)
        return _of_rows(await self._cursor.fetchall())


class Savepoints:
    """The open savepoints of a transaction. A second one of the same name would here replace the first, so each has a
    number; what is released or rolled back is the last that was opened under its name."""

    def __init__(self) -> None:
        self._open: list[str] = []

    def forget(self) -> None:
        """Another transaction begins."""
        self._open.clear()

    def named(self, sql: str) -> str:
        """The statement about the savepoint that is meant."""
        command, name = sql.rsplit(" ", 1)
        if command == "SAVEPOINT":
            self._open.append(name)
            return f"{sql}_{len(self._open)}"
        while self._open and self._open[-1] != name:
            self._open.pop()
        number = len(self._open)
        if command.startswith("RELEASE"):
            del self._open[-1:]
        return f"{sql}_{number}"


# -- values ----------------------------------------------------------------------------------------------------------


def literal(value: object) -> str:
    """A value as SQL. Bytes, and texts with letters that a connection's character set may lack or that its sql_mode may
    read as an escape, are written as hexadecimal digits."""
    if value is None:
        return "NULL"
    if isinstance(value, str):
        if value.isascii() and "\\" not in value and "\x00" not in value:
            return "'" + value.replace("'", "''") + "'"
        return f"_utf8mb4 x'{value.encode().hex()}'"
    if isinstance(value, (bytes, bytearray)):
        return f"x'{value.hex()}'"
    return str(int(value))  # type: ignore[call-overload]  # nothing else is ever bound


# -- statements ------------------------------------------------------------------------------------------------------

_INSERT = re.compile(r"(INSERT INTO .*?\bVALUES )(\(.*?\))(\s*(?:ON DUPLICATE KEY UPDATE .*|/\*.*\*/)?)", re.DOTALL)
_UPDATE = re.compile(r"UPDATE (\w+)\s+SET ((?:(?!SELECT|WHERE).)*?)\s+WHERE ((?:(?!SELECT|WHERE).)*)", re.DOTALL)
_DELETE = re.compile(r"DELETE FROM (\w+)\s+WHERE ((?:(?!SELECT|WHERE).)*)", re.DOTALL)

_KEYED = re.compile(r"(?:id|job_id|run_id|name|depends_on) = ")

WIDTH = 500
PORTION = 1 << 20
"""How many rows, and about how many bytes, one statement may have: a sixteenth of the servers' default limit."""


class Wide(NamedTuple):
    """A statement for many rows, made from one for a single row. No two of them may name the same row of the table."""

    head: str
    row: str
    between: str
    tail: str

    def written(self, rows: Sequence[str]) -> str:
        return self.head + self.between.join(rows) + self.tail


class Form(NamedTuple):
    """A statement as this driver runs it: its parts one after the other, each with the number of its markers."""

    statement: Statement
    parts: Sequence[tuple[str, int]]
    wide: Wide | None
    unless_taken: bool
    has_sums: bool
    is_savepoint: bool


@cache
def _form(statement: Statement) -> Form:
    sql = statement.sql
    parts = [(part, part.count("%s")) for part in sql.split(";\n")]
    return Form(statement, parts, widened(sql), "/* unless taken */" in sql, "SUM(" in sql, "SAVEPOINT" in sql)


def widened(sql: str) -> Wide | None:
    """None: it is none of the three simple forms that can be written for many rows."""
    if parts := _INSERT.fullmatch(sql):
        head, row, tail = parts.groups()
        return Wide(head, row, ", ", tail)
    if parts := _UPDATE.fullmatch(sql):
        table, changes, guard = parts.groups()
        given, named = _given(f"{guard}\0{changes}", changes.count("%s"))
        guard, changes = named.split("\0")
        return Wide(
            "UPDATE (", given, " UNION ALL ", f") AS v STRAIGHT_JOIN {table}{_by_key(guard)} ON {guard} SET {changes}"
        )
    if parts := _DELETE.fullmatch(sql):
        table, guard = parts.groups()
        given, guard = _given(guard, 0)
        return Wide(
            f"DELETE {table} FROM (", given, " UNION ALL ", f") AS v STRAIGHT_JOIN {table}{_by_key(guard)} ON {guard}"
        )
    return None


def _by_key(guard: str) -> str:
    """A guard that begins with an id or a name begins with the table's key. In a small table the server would look at
    every row instead, and lock it."""
    return " FORCE INDEX (PRIMARY)" if _KEYED.match(guard) else ""


def _given(text: str, first: int) -> tuple[str, str]:
    """The row of values as a SELECT, and the text with its markers replaced by the columns of that. The last `first` of
    its markers are in front of the others in the statement."""
    count = text.count("%s")
    order = [*range(first + 1, count + 1), *range(1, first + 1)]
    numbers = iter(order)
    named = re.sub("%s", lambda _: f"v.p{next(numbers)}", text)
    return "SELECT " + ", ".join(f"%s AS p{number}" for number in range(1, count + 1)), named


def _portions(row: str, rows: Sequence[tuple[object, ...]]) -> Iterator[list[str]]:
    """The rows as SQL, as many at a time as one statement may have."""
    some: list[str] = []
    size = 0
    for values in rows:
        text = row % tuple(map(literal, values))
        if some and (len(some) == WIDTH or size + len(text) > PORTION):
            yield some
            some, size = [], 0
        some.append(text)
        size += len(text)
    if some:
        yield some


# -- errors ----------------------------------------------------------------------------------------------------------

DUPLICATE = 1062
NO_SUCH_THING = 1305
NO_TABLE = 1146


def number_of(error: Exception) -> int:
    """The server's or the driver's error number; 0: it has none."""
    number = error.args[0] if error.args else 0
    return number if isinstance(number, int) else 0


def is_denied(error: Exception) -> bool:
    """Whether the user lacks a right."""
    return _BY_NUMBER.get(number_of(error)) is _DENIED


def translate(error: Exception) -> StoreError:
    """The error a user gets for what the server said: what it means and what to do, with a stable code."""
    if isinstance(error, UnicodeError):
        return StoreError(
            f"a value does not fit into the database ({error}); nothing was written", code="value_invalid"
        )
    number, said = number_of(error), str(error.args[-1] if error.args else error).split("\n", 1)[0].strip()
    known = _BY_NUMBER.get(number)
    if number == NO_SUCH_THING and not said.startswith("SAVEPOINT"):  # but a function, say
        known = None
    if number == NO_TABLE and ((name := _TABLE.search(said)) is None or not is_table(name[1])):  # the user's own
        known = None
    if known is None and (number in _CLIENTS_OWN or type(error).__name__ == "InterfaceError"):
        known = _LOST
    if known is None:
        return StoreError(f"the database refused: {said} (error {number}); nothing was written")
    cls, code, advice = known
    return cls(f"the database server: {said or 'the connection is closed'} ({number}); {advice}", code=code)


_CLIENTS_OWN = range(2000, 3000)
"""These numbers are the client's: it cannot talk to the server. Those below and above are the server's."""

Known = tuple[type[StoreError], str, str]

_LOST: Known = (ConnectionLost, "connection_lost", "the connection was lost")
_GIVE_WAY: Known = (
    Serialization,
    "serialization_failure",
    "the server rolled the whole transaction back; it is safe to try again",
)
_WAITED: Known = (
    Locked,
    "database_busy",
    "another transaction held it for too long; nothing was written. Try again, and find that one in innodb_trx",
)
_STOPPED: Known = (
    DatabaseBusy,
    "database_busy",
    "the statement took too long or was cancelled; nothing was written. Try again",
)
_TABLE = re.compile(rf"\.{PREFIX}(\w+)")
_NO_SCHEMA: Known = (
    SchemaError,
    "schema_missing",
    "there are no Perdure tables; run perdure db upgrade, and see that a tx= is a connection to the same database",
)
_LOGIN: Known = (DatabaseUnavailable, "login_refused", "check user and password of the database URL")
_GRANT = (
    "nothing was written; perdure db grants --dialect mysql --role USER --for read, enqueue or work prints what this"
    f" user lacks ({NOT_NEW}; an upgrade needs rights to the whole database)"
)
_DENIED: Known = (DatabaseUnavailable, "permission_denied", _GRANT)
_READ_ONLY: Known = (
    DatabaseUnavailable,
    "database_readonly",
    "this is a replica or a read-only server; give the URL of the primary server",
)
_FULL: Known = (
    DatabaseUnavailable,
    "disk_full",
    "free some space on the server; nothing of this operation was written",
)
_DISK: Known = (DatabaseUnavailable, "disk_error", "the server's disk refused to read or write; look at its log")
_INVALID: Known = (StoreError, "value_invalid", "a value does not fit into the database; nothing was written")

_BY_NUMBER: dict[int, Known] = {
    DUPLICATE: (UniqueViolation, "unique_violation", "a row with this key exists already"),
    **dict.fromkeys((1213, 1020), _GIVE_WAY),
    NO_SUCH_THING: _GIVE_WAY,  # its savepoint is gone, and so is the transaction
    **dict.fromkeys((1205, 3572), _WAITED),
    **dict.fromkeys((1317, 1969, 3024), _STOPPED),
    **dict.fromkeys((1053, 1077, 1079, 1152, 1158, 1159, 1160, 1161, 1184, 1927, 4031), _LOST),
    **dict.fromkeys((NO_TABLE, 1177, 4091), _NO_SCHEMA),
    **dict.fromkeys((1045, 1698, 1862, 1820), _LOGIN),
    **dict.fromkeys((1044, 1142, 1143, 1227, 1370), _DENIED),
    **dict.fromkeys((1290, 1792, 1836), _READ_ONLY),
    **dict.fromkeys((1021, 1114), _FULL),
    **dict.fromkeys((3, 5, 1030, 1034, 1035, 1194, 1195, 1877), _DISK),
    **dict.fromkeys((1153, 1264, 1366, 1367, 1406, 3988), _INVALID),
    2014: (TransactionError, "tx_busy", BUSY),
    1040: (DatabaseUnavailable, "too_many_connections", "raise max_connections, or run fewer processes"),
    1203: (DatabaseUnavailable, "too_many_connections", "raise max_user_connections, or run fewer processes"),
    1226: (DatabaseUnavailable, "out_of_resources", "this user's limit on the server is reached"),
    1049: (DatabaseUnavailable, "database_unreachable", "create the database, or correct its name in the URL"),
    1665: (
        DatabaseUnavailable,
        "out_of_resources",
        "set binlog_format to ROW (or MIXED) on the server: Perdure's transactions are READ COMMITTED",
    ),
}
