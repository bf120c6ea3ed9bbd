"""Operations and what carries them to a database. Used by everything in this folder.

An operation (`enqueue`, `claim`, `finish`, …) is a generator: it yields a `Call` and receives a `Result`, so it is
written once and runs on any connection, also on the user's own. A database's driver executes calls; its runner owns
BEGIN, COMMIT and the retry of whole operations.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from perdure.errors import DatabaseBusy, StoreError

T = TypeVar("T")

Params = tuple[object, ...] | Mapping[str, object]


class Call(NamedTuple):
    """One named statement with its parameters: by name, or a tuple in the order of their first appearance.

    A list means the same statement once per element, in one round trip where the database can; it returns no rows.
    """

    name: str
    params: Params | Sequence[Params] = ()


Blob = bytearray
"""An id as a parameter, where every microsecond counts: before `sqlite3` binds bytes it looks for an adapter, which
takes half a microsecond to find none."""

Pair = tuple[str, Params | Sequence[Params]]
"""A call, or where every microsecond counts the same without the name `Call`."""


class Result(NamedTuple):
    """`rows` as plain tuples; `changed`: how many rows the call wrote."""

    rows: list[tuple[Any, ...]]
    changed: int


Op = Generator[Pair, Result, T]
"""An operation that returns T. It may yield savepoints, never BEGIN or COMMIT. It is run again from the start after a
serialisation failure, so what it is given must not be used up by running it."""


class UniqueViolation(StoreError):
    """A unique index refused a row."""

    default_code = "unique_violation"


class Serialization(DatabaseBusy):
    """The database chose this transaction to give way; running it again is safe."""

    default_code = "serialization_failure"


class Driver(Protocol):
    """Executes calls on one connection, inside a transaction that someone else began."""

    def execute(self, call: Pair) -> Result:
        """Run the call to its end. Raises the errors above, or another StoreError, never the driver's own."""
        ...


def drive(op: Op[T], driver: Driver) -> T:
    """Run an operation to its end on one connection. A failed call is raised inside the operation, at its `yield`."""
    execute = driver.execute
    try:
        call = next(op)
        while True:
            try:
                result = execute(call)
            except StoreError as error:
                call = op.throw(error)
            else:
                call = op.send(result)
    except StopIteration as stop:
        result_of_all: T = stop.value
        return result_of_all


Make = Callable[[], Op[T]]
"""Begins an operation afresh; called again when the operation has to be run again."""


BEGIN_OPERATION = Call("begin_operation")
END_OPERATION = Call("end_operation")
UNDO_OPERATION = Call("undo_operation")
"""For runners, around an operation that shares a transaction with others; UNDO is followed by END."""

SAVEPOINT = Call("savepoint")
RELEASE = Call("release")
ROLLBACK_TO = Call("rollback_to")

BEGIN_PART = Call("begin_part")
END_PART = Call("end_part")
UNDO_PART = Call("undo_part")
"""Around a part of an operation that may break off anywhere, savepoints of its own open; UNDO is followed by END."""
