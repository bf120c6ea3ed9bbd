"""Runs every operation inside one transaction of the user's, on his connection: for tests that are rolled back
(`app.testing(tx=…)`). Made by `open`; the dialect's part is its `Loan`.

Nothing of ours is opened, so it may be any database, also one in memory. What is a transaction of ours elsewhere is a
savepoint here. The connection may be an asynchronous one: coroutines await it, and threads wait for its event loop.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, TypeVar

from perdure.errors import PerdureError, StoreError, TransactionError
from perdure.store import transaction as transactions
from perdure.store.admin import begin_writing
from perdure.store.engine import Make
from perdure.store.protocols import Bell
from perdure.store.transaction import (
    Grammar,
    async_connection,
    behind_a_job,
    by_name,
    driver_connection,
    of_this_thread,
    refuse_control,
)
from perdure.uninterrupted import uninterrupted

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")


class Loan(Protocol):
    """What a database can do on a connection of the user's."""

    @property
    def single_writer(self) -> bool: ...

    @property
    def grammar(self) -> Grammar: ...

    def run(self, connection: Any, make: Make[T]) -> T:
        """Run an operation in a savepoint; a transaction that has not begun begins."""
        ...

    def cursor(self, connection: Any) -> Any:
        """A cursor whose rows are tuples."""
        ...

    def prepare(self, connection: Any) -> None:
        """Make our tables in the transaction, or bring them to the newest schema; refuse where that would commit it."""
        ...

    def translate(self, error: Exception) -> StoreError:
        """What the database's error means."""
        ...


class AsyncLoan(Loan, Protocol):
    """The same for a connection that is asynchronous; `run` and the cursor are for threads, where they wait."""

    async def arun(self, connection: Any, make: Make[T]) -> T:
        """`run` for coroutines."""
        ...


class BorrowedRunner:
    """Runs operations on the connection that `tx` gives."""

    def __init__(self, tx: object, loan: Loan) -> None:
        self.tx = of_this_thread(tx)
        """The user's connection, or what he has it in."""
        self._loan = loan
        self.single_writer = loan.single_writer

    @property
    def _connection(self) -> Any:
        return driver_connection(self.tx)

    def write(self, make: Make[T], *, brief: bool = False) -> T:  # noqa: ARG002 - as with tx=
        with uninterrupted:
            return self._loan.run(self._connection, make)

    async def awrite(self, make: Make[T]) -> T:
        """In this thread, which the connection may belong to."""
        return self.write(make)

    def read(self, make: Make[T]) -> T:
        return self.write(make)

    def look(self, make: Make[T]) -> T:
        return self.write(make)

    def write_within(self, tx: object, make: Make[T]) -> T:
        given = behind_a_job(tx)
        if not isinstance(given, BorrowedTransaction) and driver_connection(given) is not self._connection:
            raise _elsewhere()
        return self.write(make)

    async def awrite_within(self, tx: object, make: Make[T]) -> T:
        del tx, make
        raise _elsewhere()

    @contextmanager
    def transaction(self, *, join: bool = False) -> Generator[Any, None, None]:
        with uninterrupted:
            yield from transactions.open_block(self, _Part(self), join=join)

    def joining(self, tx: object) -> AbstractContextManager[None]:
        del tx
        return transactions.joining(self, self.write)

    def joined(self) -> object | None:
        found: object | None = transactions.joined(self)
        return found

    def execute(self, sql: str, params: Sequence[Any] | Mapping[str, Any] | None = None) -> Any:
        refuse_control(sql, self._loan.grammar)
        return self.control(sql, params)

    def control(self, sql: str, params: Sequence[Any] | Mapping[str, Any] | None = None) -> Any:
        written = sql if self.single_writer else by_name(sql, params, self._loan.grammar)
        try:
            cursor = self._loan.cursor(self._connection)
            cursor.execute(written, *([params] if params else []))
        except PerdureError:
            raise
        except Exception as error:
            raise self._loan.translate(error) from error
        return cursor

    def bell(self, queues: Sequence[str] | None = None) -> Bell:
        raise NotImplementedError("no worker runs inside app.testing()")

    def upgrade(self) -> str:
        self._loan.prepare(self._connection)
        return "the transaction has Perdure's tables"

    def close(self) -> None:
        """The connection is the user's."""


class AwaitedRunner(BorrowedRunner):
    """The same on an asynchronous connection."""

    def __init__(self, tx: object, loan: AsyncLoan) -> None:
        super().__init__(tx, loan)
        self._awaited = loan

    @property
    def _connection(self) -> Any:
        return self.tx

    async def awrite(self, make: Make[T]) -> T:
        return await self._awaited.arun(self.tx, make)

    def write_within(self, tx: object, make: Make[T]) -> T:
        given = behind_a_job(tx)
        if isinstance(given, BorrowedTransaction):
            return self.write(make)
        connection = driver_connection(given)
        if not hasattr(connection, "run_async"):
            raise _elsewhere()
        answer: T = connection.run_async(partial(self.awrite_within, make=make))
        return answer

    async def awrite_within(self, tx: object, make: Make[T]) -> T:
        if await async_connection(tx) is not await async_connection(self.tx):
            raise _elsewhere()
        return await self.awrite(make)


class OnLoop(ABC):
    """Mixed into a `Loan` whose connection is asynchronous: what a thread asks for, the event loop does, and the thread
    waits for it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    @abstractmethod
    async def arun(self, connection: Any, make: Make[T]) -> T: ...

    @abstractmethod
    async def aexecute(self, connection: Any, sql: str, params: Any = None) -> Fetched:
        """Run one statement, and read all of its rows."""

    def run(self, connection: Any, make: Make[T]) -> T:
        return self.wait(self.arun(connection, make))

    def cursor(self, connection: Any) -> FetchedCursor:
        return FetchedCursor(lambda *statement: self.wait(self.aexecute(connection, *statement)))

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """What the loop makes of it. Refused in the loop's own thread, which would wait for itself, and while nobody
        runs the loop."""
        from asyncio import _get_running_loop, run_coroutine_threadsafe

        if _get_running_loop() is self._loop or not self._loop.is_running():
            coroutine.close()
            raise TransactionError(
                "inside async with app.testing(tx=…) a test and its coroutines have to await what they ask Perdure:"
                " write await kind.aenqueue(…), await app.aio.get(job), await t.adrain(), await"
                " t.aassert_enqueued(kind) and so on",
                code="tx_async",
            )
        return run_coroutine_threadsafe(coroutine, self._loop).result()


class Fetched(NamedTuple):
    """All that a statement has returned."""

    rows: list[tuple[Any, ...]]
    rowcount: int
    description: Any


class FetchedCursor:
    """A cursor for a thread; the event loop runs its statements."""

    def __init__(self, run: Callable[..., Fetched]) -> None:
        self._run = run
        self._rows: Iterator[tuple[Any, ...]] = iter(())
        self.rowcount = -1
        self.description: Any = None

    def execute(self, sql: str, *params: Any) -> Self:
        rows, self.rowcount, self.description = self._run(sql, *params)
        self._rows = iter(rows)
        return self

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return self._rows

    def fetchone(self) -> tuple[Any, ...] | None:
        return next(self._rows, None)

    def fetchall(self) -> list[tuple[Any, ...]]:
        return list(self._rows)


class _Part:
    """A savepoint around the caller's code."""

    def __init__(self, runner: BorrowedRunner) -> None:
        self._runner = runner
        self._opened: BorrowedTransaction | None = None

    def begin(self) -> BorrowedTransaction:
        self._runner.write(begin_writing)
        self._runner.control("SAVEPOINT perdure_block")
        self._opened = BorrowedTransaction(self._runner)
        return self._opened

    def commit(self) -> None:
        if self._opened is not None:
            self._opened.over = True
            self._runner.control("RELEASE SAVEPOINT perdure_block")
            self._opened = None

    def end(self, *, at_rest: bool) -> None:
        del at_rest
        if self._opened is not None:
            self._opened.over = True
            self._runner.control("ROLLBACK TO SAVEPOINT perdure_block")
            self._runner.control("RELEASE SAVEPOINT perdure_block")
            self._opened = None


class BorrowedTransaction:
    """What `app.transaction()` and `ctx.transaction()` give there."""

    def __init__(self, runner: BorrowedRunner) -> None:
        self.execute = runner.execute
        self.run = runner.write
        self.read = runner.write
        self.over = False

    def is_joinable(self) -> bool:
        return not self.over

    def give_up(self, reason: str) -> bool:
        """Nobody waits for it."""
        del reason
        return False


def _elsewhere() -> TransactionError:
    return TransactionError(
        "this app is inside app.testing(tx=…), where all jobs are written on that connection; give the same one as tx=,"
        " or what is bound to it",
        code="tx_wrong_database",
    )
