"""Runs operations on a database server: joined transactions, retries, the user's `tx=`, forks. Made by `open`; the
dialect's part is its `Server` (see `pool`)."""

from __future__ import annotations

import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from perdure.clock import TOLERATED_S, ServerClock
from perdure.errors import DatabaseUnavailable, StoreError, TransactionError
from perdure.store import transaction as transactions
from perdure.store.copy import closure
from perdure.store.engine import (
    BEGIN_OPERATION,
    END_OPERATION,
    UNDO_OPERATION,
    AsyncDriver,
    Call,
    Make,
    Op,
    Serialization,
    drive,
    drive_async,
    in_savepoint,
)
from perdure.store.enqueue import OneJob
from perdure.store.migrate import Applied
from perdure.store.pool import Checkout, CommitUnknown, Pool, Server
from perdure.store.protocols import Bell, ConnectionLost
from perdure.store.rows import Fact, Verdict
from perdure.store.shared import SharedEnqueues
from perdure.store.transaction import (
    async_connection,
    behind_a_job,
    driver_connection,
    ended,
    open_block,
    over,
    unknown,
)
from perdure.uninterrupted import uninterrupted

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")

ATTEMPTS = 8
"""How often an operation is started that was aborted by the server or lost its connection before the commit."""

FIRST_LOOK_S, LAST_LOOK_S = 0.2, 2.0
"""How often a worker looks that nobody can wake: after something to do, and after a long rest."""
PART_OF_REST = 0.02
HOW_OFTEN = f"looks for work every {FIRST_LOOK_S:g} s, and after a rest less often, up to every {LAST_LOOK_S:g} s"

Identity = tuple[object, ...]
"""Identifies a database: the row of `read_identity`."""


MakeBell = Callable[[Sequence[str] | None, Identity], Bell]


class ServerRunner:
    """Runs operations in one database of a server. Nothing is opened before the first call."""

    look_every_s = 5.0
    """Many workers share a server: an idle one sends about two statements a second."""

    def __init__(self, server: Server, bell: MakeBell | None = None) -> None:
        """`bell` makes one that listens, where the server can ring; without it workers poll."""
        self._server = server
        self._make_bell = bell
        contact = weakref.WeakMethod(self._contact)
        self.clock = ServerClock(lambda: _called(contact))
        """It does not keep the runner: the connections of one that nobody uses any more are closed at once."""
        self._pool: Pool | None = None
        self._opening = threading.Lock()
        self._shared = SharedEnqueues()
        _runners.add(self)

    def write(self, make: Make[T], *, brief: bool = False) -> T:
        with uninterrupted:
            if (joined := self.joined()) is not None:
                return joined.run(make)
            if isinstance(make, OneJob):
                return cast("T", self._shared.submit(make, self._write_alone))
            return self._write_alone(make, brief=brief)

    async def awrite(self, make: Make[T]) -> T:
        if self.joined() is None and isinstance(make, OneJob):
            return cast("T", await self._shared.asubmit(make, self._write_alone))
        from asyncio import to_thread

        return await to_thread(self.write, make)

    def read(self, make: Make[T]) -> T:
        with uninterrupted:
            joined = self.joined()
            return self._insist(lambda: self._read(make)) if joined is None else joined.read(make)

    def look(self, make: Make[T]) -> T:
        with uninterrupted:
            joined = self.joined()
            return self._insist(lambda: self._look(make)) if joined is None else joined.read(make)

    def joined(self) -> ServerTransaction | None:
        """The transaction of ours that is open in this thread or task."""
        found: ServerTransaction | None = transactions.joined(self)
        return found

    def joining(self, tx: object) -> AbstractContextManager[None]:
        return transactions.joining(self, partial(self.write_within, tx))

    @contextmanager
    def transaction(self, *, join: bool = False) -> Generator[ServerTransaction, None, None]:
        """A transaction on its own connection, which calls without `tx=` join."""
        with uninterrupted:
            yield from open_block(self, _CheckoutBlock(self._writable), join=join)

    def _write_alone(self, make: Make[T], *, brief: bool = False) -> T:
        return self._insist(lambda: self._write(make, brief=brief))

    def _write(self, make: Make[T], *, brief: bool) -> T:
        def work(checkout: Checkout) -> T:
            result = drive(make(), checkout.session.writer)
            checkout.commit()
            return result

        return self._writable.run(work, brief=brief, alone=True)

    def _read(self, make: Make[T]) -> T:
        return self.pool.run(lambda checkout: drive(make(), checkout.session.reader), reading=True, alone=True)

    def _look(self, make: Make[T]) -> T:
        try:
            return self.pool.run(lambda checkout: drive(make(), checkout.session.reader), bare=True)
        except ConnectionLost:
            self.pool.close_idle()
            raise

    def _insist(self, once: Callable[[], T]) -> T:
        """Run it again from the start if that is safe: it was aborted, or lost its connection before the commit."""
        attempt = 1
        while True:
            try:
                return once()
            except CommitUnknown:
                raise
            except Serialization:
                if attempt == ATTEMPTS:
                    raise
            except ConnectionLost as lost:
                if attempt == ATTEMPTS:
                    raise DatabaseUnavailable(
                        f"{self._server.shown}: {lost.message}, {ATTEMPTS} times in a row; nothing was written. Check"
                        " the server and the network",
                        code="database_unreachable",
                    ) from lost
                self.pool.close_idle()
            # jitter, so that the same transactions do not collide again
            time.sleep(random.uniform(0, 0.005 * 2**attempt))
            attempt += 1

    # -- the user's transaction --------------------------------------------------------------------------------------

    def write_within(self, tx: object, make: Make[T]) -> T:
        """If the user's transaction has not begun, psycopg begins it with our first statement."""
        with uninterrupted:
            home = self._writable.identity
            tx = behind_a_job(tx)
            if isinstance(tx, ServerTransaction):
                return tx.run(lambda: _at_home(make, home))
            connection = driver_connection(tx)
            if hasattr(connection, "run_async"):
                answer: T = connection.run_async(partial(self.awrite_within, make=make))
                return answer
            if not isinstance(connection, self._server.connection_types):
                raise unknown(tx, self._server.wanted)
            checked = _checked(make, connection, home, self.clock)
            result = self._server.borrow(connection, lambda driver: in_savepoint(checked, driver))
            _seen[connection] = home
            return result

    async def awrite_within(self, tx: object, make: Make[T]) -> T:
        """One operation at a time on a connection, however many tasks use it: their savepoints must not mix."""
        connection = await async_connection(tx)
        home = await self._home()
        async with turn_on(connection):
            driver = await self._server.borrow_async(connection)
            result = await in_savepoint_async(_checked(make, connection, home, self.clock), driver)
            _seen[connection] = home
            return result

    async def _home(self) -> Identity:
        """The database of this app; a thread opens it, if need be."""
        if self._pool is None:
            from asyncio import to_thread

            await to_thread(lambda: self.pool)
        return self._writable.identity

    # -- the database as a whole -------------------------------------------------------------------------------------

    def _contact(self) -> None:
        """What opens the pool tells the clock."""
        with uninterrupted:
            self.pool  # noqa: B018 - made on first use

    @property
    def pool(self) -> Pool:
        """The connections of this process. Made on first use, after a check of the schema."""
        pool = self._pool
        if pool is None:
            with self._opening:
                pool = self._pool = self._pool or self._opened()
        return pool

    @property
    def _writable(self) -> Pool:
        """The same for whoever may write. Refuses a closed database."""
        pool = self.pool
        if pool.closure is not None:
            raise pool.closure.refusal(self._server.shown)
        return pool

    def _opened(self) -> Pool:
        pool = Pool(self._server, self.clock)
        try:
            _prepare(pool, allowed=bool(self._server.settings.auto_migrate))
        except BaseException:
            pool.close()
            raise
        return pool

    def bell(self, queues: Sequence[str] | None = None) -> Bell:
        identity = self._writable.identity  # a worker begins with this: it sees a wrong schema early
        return PollingBell() if self._make_bell is None else self._make_bell(queues, identity)

    def upgrade(self) -> str:
        pool = Pool(self._server, self.clock)
        try:
            done = _prepare(pool, allowed=True)
        finally:
            pool.close()
        return f"{self._server.shown} is at the newest schema ({done} step{'s' * (done != 1)} done now)"

    def applied(self) -> list[Applied]:
        return self._looked(lambda checkout: checkout.session.applied())

    def facts(self) -> list[Fact]:
        return [*self._looked(lambda checkout: checkout.session.facts()), _clock_fact(self.clock)]

    def _looked(self, look: Callable[[Checkout], T]) -> T:
        """What one look gives at the database as it is, even if it cannot be used so."""
        pool = Pool(self._server, self.clock)
        try:
            return pool.run(look, reading=True)
        finally:
            pool.close()

    def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def start_afresh(self) -> None:
        """Called in a forked child, before any of its code runs: the old pool belongs to the parent."""
        if self._pool is not None:
            _left_behind.append(self._pool)
        self._pool = None
        self._opening = threading.Lock()
        self._shared = SharedEnqueues()


def _prepare(pool: Pool, *, allowed: bool) -> int:
    def work(checkout: Checkout) -> int:
        done = checkout.session.prepare(allowed=allowed)
        pool.identity = checkout.session.reader.execute(Call("read_identity")).rows[0]
        if not pool.server.settings.closed_too:
            pool.closure = drive(closure(), checkout.session.reader)
        checkout.commit()
        return done

    return pool.run(work)


def _called(method: weakref.WeakMethod[Callable[[], None]]) -> None:
    if (found := method()) is not None:
        found()


def _clock_fact(clock: ServerClock) -> Fact:
    """Nothing of ours breaks, but people compare times, and their own programs do."""
    if (wrong := clock.complaint) is None:
        return Fact("clock", f"this machine's is the server's, within {TOLERATED_S} s")
    return Fact("clock", wrong, Verdict.WARNING, "nothing breaks: jobs go by the server's; set the one that is wrong")


_seen: weakref.WeakKeyDictionary[object, Identity] = weakref.WeakKeyDictionary()
"""Which database a user's connection leads to: read once for each."""
_turns: weakref.WeakKeyDictionary[object, asyncio.Lock] = weakref.WeakKeyDictionary()
_runners: weakref.WeakSet[ServerRunner] = weakref.WeakSet()
_left_behind: list[Pool] = []


def _start_afresh() -> None:
    for runner in _runners:
        runner.start_afresh()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_afresh)


def _timed(make: Make[T], clock: ServerClock) -> Op[T]:
    """The operation, after a question for the time, whose answer the clock learns."""
    sent_us = clock.boot_us()
    ((now,),) = (yield Call("read_time")).rows
    clock.learn(now, sent_us)
    return (yield from make())


def turn_on(connection: object) -> asyncio.Lock:
    """For one operation at a time on a user's asynchronous connection."""
    from asyncio import Lock

    return _turns.setdefault(connection, Lock())


def _checked(make: Make[T], connection: object, home: Identity, clock: ServerClock) -> Make[T]:
    """The operation, after what has to be asked on this connection of the user's: a process may write on such only."""
    checked = make if _seen.get(connection) == home else lambda: _at_home(make, home)
    return partial(_timed, checked, clock) if clock.is_due else checked


def _at_home(make: Make[T], home: Identity) -> Op[T]:
    """The operation, after a check that the connection leads to the app's own database."""
    if (yield Call("read_identity")).rows != [home]:
        raise TransactionError(
            "tx= is a connection to another database than this app's; give one to that database: a job and your rows"
            " share a transaction only in the same one",
            code="tx_wrong_database",
        )
    return (yield from make())


# -- a transaction that carries more than one call -------------------------------------------------------------------


class _CheckoutBlock:
    """A transaction around the caller's code, on a session that is lent until its end."""

    def __init__(self, pool: Pool) -> None:
        self._lent = Checkout(pool)
        self._opened: ServerTransaction | None = None

    def begin(self) -> ServerTransaction:
        self._lent.begin()
        self._opened = ServerTransaction(self._lent)
        return self._opened

    def commit(self) -> None:
        if self._opened is not None:
            self._opened.end()
            self._opened.check_not_ended()
        self._lent.commit()

    def end(self, *, at_rest: bool) -> None:
        if self._opened is not None:
            self._opened.end()
        self._lent.at_rest = at_rest
        self._lent.give_back()


class ServerTransaction:
    """An open transaction of ours, which calls on the same thread or task join."""

    def __init__(self, checkout: Checkout) -> None:
        self._lent = checkout
        # Tasks started inside the block share the transaction, and their calls may come from several threads. Always
        # taken by a bare `with`: with Python code around it an interrupt could leave the lock taken.
        self._turn = threading.RLock()
        self._ended = False
        self._is_new = True
        """Nothing has been run in it."""

    def is_joinable(self) -> bool:
        """False after the end of the block, and in a forked child."""
        return not self._ended and self._lent.ours

    def execute(self, sql: str, params: Sequence[Any] | Mapping[str, Any] | None = None) -> Any:
        """Run your own statement, with parameters as `:name` or in the driver's style (`%s`, `%(name)s`). The cursor
        has its rows.

        BEGIN, COMMIT and ROLLBACK are refused: the block does them. As always on PostgreSQL, a failed statement aborts
        the whole transaction, unless it ran in a SAVEPOINT.
        """
        with self._turn:
            self._check_open()
            cursor = self._lent.session.execute(sql, params, is_new=self._is_new)
            self._is_new = self._is_new and not cursor.rowcount and cursor.description is None
            self.check_not_ended()
            return cursor

    def run(self, make: Make[T]) -> T:
        """Run an operation inside; on an error nothing of it remains, and the transaction continues."""
        with self._turn:
            self._check_open()
            self._is_new = False
            return in_savepoint(make, self._lent.session.writer)

    def read(self, make: Make[T]) -> T:
        """Run a reading operation inside. It locks nothing."""
        with self._turn:
            self._check_open()
            self._is_new = False
            return in_savepoint(make, self._lent.session.reader)

    def check_not_ended(self) -> None:
        """Raise TransactionError if a statement inside has ended it before the block."""
        if not self._lent.session.in_transaction:
            raise ended()

    def end(self) -> None:
        """Nothing joins from now on: the connection goes back to the pool."""
        with self._turn:
            self._ended = True

    def _check_open(self) -> None:
        if not self.is_joinable():
            raise over()
        self.check_not_ended()


async def in_savepoint_async(make: Make[T], driver: AsyncDriver) -> T:
    """The same on an asynchronous connection, also if the task is cancelled. If it is cancelled again meanwhile, or so
    late that the savepoint is gone, the transaction cannot be committed any more."""
    await driver.run(BEGIN_OPERATION)
    try:
        result = await drive_async(make(), driver)
        await driver.run(END_OPERATION)
    except GeneratorExit:  # its event loop is gone
        driver.abandon()
        raise
    except BaseException:
        driver.drop()
        try:
            with suppress(StoreError):
                await driver.run(UNDO_OPERATION)
                await driver.run(END_OPERATION)
        except BaseException:
            driver.abandon()
            raise
        raise
    return result


# -- what a worker sleeps on -----------------------------------------------------------------------------------------


class Rest:
    """Decides when a worker looks that nobody can wake; times are in seconds by any clock. The pauses are a fiftieth of
    its rest so far: a job that comes after a minute of nothing waits for 1.2 s at most, and one that comes after two
    minutes for 2 s. A worker at rest then sends about two statements a second."""

    def __init__(self, at: float) -> None:
        self._active_at = self._looked_at = at

    def wakes(self, at: float) -> None:
        """Somebody has rung, from this process: one of its jobs has ended, or there is a new one."""
        self._active_at = at

    def looks(self, at: float) -> None:
        """It looks now."""
        self._looked_at = at

    def look_in(self, at: float) -> float:
        """In how many seconds to look."""
        pause_s = min(LAST_LOOK_S, PART_OF_REST * (self._looked_at - self._active_at))
        return self._looked_at + max(FIRST_LOOK_S, pause_s) - at


class PollingBell:
    """Rung from inside the process; otherwise it says every now and then that there may be work."""

    tells_when = True

    def __init__(self) -> None:
        self._rung = False
        self._rest = Rest(time.monotonic())
        self._changed = threading.Condition()  # reentrant: a signal handler may ring while its thread does

    def ring(self) -> None:
        with self._changed:
            self._rung = True
            self._changed.notify()

    def wait(self, timeout_s: float, *, rung_only: bool = False) -> bool:
        look_s = max(0.0, self._rest.look_in(time.monotonic()))
        with self._changed:
            self._changed.wait_for(lambda: self._rung, timeout_s if rung_only else min(timeout_s, look_s))
            rung, self._rung = self._rung, False
        return heard(self._rest, rung=rung, or_look=look_s < timeout_s and not rung_only)

    def close(self) -> None:
        """Nothing is held."""


def heard(rest: Rest, *, rung: bool, or_look: bool) -> bool:
    """Whether there may be something to do: noted in the rest of the worker."""
    at = time.monotonic()
    if rung:
        rest.wakes(at)
    if rung or or_look:
        rest.looks(at)
    return rung or or_look
