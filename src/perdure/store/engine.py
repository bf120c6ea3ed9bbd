"""Operations, and how they run on a database. Used by everything in this folder.

An operation (`enqueue`, `claim`, `finish`, …) is a generator: it yields a `Call` (or a `Tell`, which can wait) and
receives a `Result`, so it is written once and runs on any connection, also on the user's own. A driver finds the
`Statement` of each call and executes it; a runner begins, commits and retries whole operations.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, TypeVar

from perdure.errors import DatabaseBusy, StoreError

T = TypeVar("T")

Params = tuple[object, ...] | Mapping[str, object]


class Call(NamedTuple):
    """One named statement with its parameters: by name, or a tuple in the order of their first appearance.

    A list runs the statement once per element, in one round trip if the database can; it returns no rows.
    """

    name: str
    params: Params | Sequence[Params] = ()


class Tell(NamedTuple):
    """A statement whose answer the operation does not need before it goes on: it tells, where a `Call` asks.

    A database far away may keep it and send it together with the next `Call`, or with the commit, which saves a round
    trip; one that is near runs it at once. Either way the order of statements is kept, and after one that fails none is
    run. So its `Result` is filled in, and its error raised, no later than at the next `Call` or at the commit. An
    operation that has to catch the error therefore yields a `Call` before it leaves the `try`.

    `changes`: how many rows it must change. If it changes another number, `Outrun` is raised and nothing is committed.
    """

    name: str
    params: Params | Sequence[Params] = ()
    changes: int | None = None


Blob = bytearray
"""An id as a parameter on hot paths: for bytes `sqlite3` first looks for an adapter, which costs half a microsecond."""

Pair = tuple[str, Params | Sequence[Params]]
"""A call; on hot paths a tuple, without the cost of a `Call`."""


class Result(NamedTuple):
    """`rows` as plain tuples; `changed`: how many rows the call wrote."""

    rows: list[tuple[Any, ...]]
    changed: int


Op = Generator[Pair | Tell, Result, T]
"""An operation that returns T. It may yield savepoints, never BEGIN or COMMIT. After a serialisation failure it runs
again from the start, so its arguments must not be consumed by running it."""


class Statement(NamedTuple):
    """One statement in a driver's style. `names` are its parameters in the driver's order: if markers have no numbers,
    a parameter that is used twice is listed twice."""

    name: str
    sql: str
    names: tuple[str, ...]
    returns_rows: bool
    verb: str | None


Statements = Mapping[str, Statement]


def row_for(statement: Statement, params: Params) -> tuple[object, ...]:
    """The parameters of one execution, in the driver's order."""
    names = statement.names
    if isinstance(params, tuple):
        if len(params) == len(names):
            return params
        params = dict(zip(dict.fromkeys(names), params, strict=True))  # given in the order of first appearance
    return tuple([params[name] for name in names])


def rows_for(statement: Statement, params: Sequence[Params]) -> Sequence[tuple[object, ...]]:
    """The same for many; tuples that already fit are not copied."""
    if params and not (isinstance(params[0], tuple) and len(params[0]) == len(statement.names)):
        return [row_for(statement, row) for row in params]
    return params  # type: ignore[return-value]  # as the first is, so are all


class UniqueViolation(StoreError):
    """A unique index refused a row."""

    default_code = "unique_violation"


class Serialization(DatabaseBusy):
    """The database aborted this transaction in favour of another; running it again is safe."""

    default_code = "serialization_failure"


class Outrun(Serialization):
    """A row was changed by another transaction between reading and writing it."""

    def __init__(self) -> None:
        super().__init__("a job changed between reading and writing it; the operation runs again")


class Driver(Protocol):
    """Executes calls on one connection, inside a transaction that someone else began."""

    def execute(self, call: Pair) -> Result:
        """Run the call, and before it what was told. Raises the errors above, or another StoreError, never the database
        module's own."""
        ...

    def tell(self, call: Tell) -> Result:
        """Run the call, now or later. Its result can be read after the next `execute`."""
        ...

    def drop(self) -> None:
        """Forget what it was told and has not run: the operation has failed."""
        ...


class AsyncDriver(Protocol):
    """Executes calls on an asynchronous connection of the user's, inside his transaction."""

    async def run(self, call: Pair | Tell) -> Result:
        """Run the call, and before it what was told. A `Tell` may wait for the next call, as in `Driver.tell`."""
        ...

    def drop(self) -> None:
        """Forget what it was told and has not run: the operation has failed."""
        ...

    def abandon(self) -> None:
        """Close the connection at once: nobody can commit its transaction any more."""
        ...


class ImmediateDriver:
    """A driver that has no reason to wait: what it is told it runs at once."""

    def execute(self, call: Pair) -> Result:
        raise NotImplementedError

    def tell(self, call: Tell) -> Result:
        name, params, changes = call
        result = self.execute((name, params))
        if changes is not None and result.changed != changes:
            raise Outrun
        return result

    def drop(self) -> None:
        """Nothing waits."""


def drive(op: Op[T], driver: Driver) -> T:
    """Run an operation on one connection. A failed call is raised inside the operation, at its `yield`."""
    execute, tell = driver.execute, driver.tell
    try:
        call = next(op)
        while True:
            try:
                result = tell(call) if call.__class__ is Tell else execute(call)  # type: ignore[arg-type]
            except StoreError as error:
                call = op.throw(error)
            else:
                call = op.send(result)
    except StopIteration as stop:
        result_of_all: T = stop.value
        return result_of_all


async def drive_async(op: Op[T], driver: AsyncDriver) -> T:
    """The same on an asynchronous connection."""
    try:
        call = next(op)
        while True:
            try:
                result = await driver.run(call)
            except StoreError as error:
                call = op.throw(error)
            else:
                call = op.send(result)
    except StopIteration as stop:
        result_of_all: T = stop.value
        return result_of_all


Make = Callable[[], Op[T]]
"""Starts an operation; called again when the operation has to run again."""


BEGIN_OPERATION = Call("begin_operation")
END_OPERATION = Call("end_operation")
UNDO_OPERATION = Call("undo_operation")
"""For runners, around an operation that shares a transaction with others; UNDO is followed by END."""


def in_savepoint(make: Make[T], driver: Driver) -> T:
    """Run an operation in a savepoint; on an error nothing of it remains, and the transaction can continue."""
    driver.execute(BEGIN_OPERATION)
    try:
        result = drive(make(), driver)
    except BaseException:
        driver.drop()
        with suppress(StoreError):  # a lost connection has nothing left to roll back
            driver.execute(UNDO_OPERATION)
            driver.execute(END_OPERATION)
        raise
    driver.execute(END_OPERATION)
    return result


SAVEPOINT = Tell("savepoint")
RELEASE = Tell("release")
ROLLBACK_TO = Tell("rollback_to")

BEGIN_PART = Tell("begin_part")
END_PART = Tell("end_part")
UNDO_PART = Tell("undo_part")
"""Around a part of an operation that may fail anywhere, also with open savepoints; UNDO is followed by END."""
