"""A bell for stores that cannot ring from outside: the worker looks for itself. Used by `dialects/postgres`.

The runner of PostgreSQL stores: opens connections on first use, and afresh after a fork. Used by `store/open`."""

from __future__ import annotations

import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from perdure.errors import DatabaseUnavailable, StoreError
from perdure.store import migrate
from perdure.store.engine import Call, Make, Serialization, drive
from perdure.store.postgres import schema
from perdure.store.postgres import transaction as transactions
from perdure.store.postgres.pool import CommitUnknown, Lent, Pool, Session, Settings, address_of
from perdure.store.postgres.transaction import Transaction
from perdure.store.protocols import ConnectionLost
from perdure.uninterrupted import interruptible, uninterrupted

LOOK_S = 0.2


class PollingBell:
    """Rung from inside the process; otherwise every wait ends with "perhaps" after a fifth of a second."""

    def __init__(self) -> None:
        self._rung = False
        self._changed = threading.Condition()  # reentrant: a signal handler may ring while its thread does

    def ring(self) -> None:
        with self._changed:
            self._rung = True
            self._changed.notify()

    def wait(self, timeout_s: float, *, rung_only: bool = False) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._rung, timeout_s if rung_only else min(timeout_s, LOOK_S))
            rung, self._rung = self._rung, False
        return rung or (timeout_s > LOOK_S and not rung_only)

    def close(self) -> None:
        """Nothing is held."""


T = TypeVar("T")

DEFAULTS = Settings()

ATTEMPTS = 8
"""How often an operation is begun that had to give way to others or lost its connection before the commit."""

_joined: ContextVar[dict[PostgresRunner, Transaction] | None] = ContextVar("perdure_postgres_transaction", default=None)


class PostgresRunner:
    """Runs operations in one PostgreSQL database. Nothing is opened before the first call."""

    def __init__(self, url: str, settings: Settings = DEFAULTS, *, auto_migrate: bool = False) -> None:
        self._address = address_of(url)
        self._settings = settings
        self._auto_migrate = auto_migrate
        self._pool: Pool | None = None
        self._opening = threading.Lock()
        _runners.add(self)

    def write(self, make: Make[T], *, brief: bool = False) -> T:
        with uninterrupted:
            joined = self.joined()
            return self._insist(lambda: self._write(make, brief=brief)) if joined is None else joined.run(make)

    async def awrite(self, make: Make[T]) -> T:
        from asyncio import to_thread

        return await to_thread(self.write, make)

    def write_within(self, tx: object, make: Make[T]) -> T:
        with uninterrupted:
            return transactions.write_within(tx, make, self.pool.identity)

    def read(self, make: Make[T]) -> T:
        with uninterrupted:
            joined = self.joined()
            return self._insist(lambda: self._read(make)) if joined is None else joined.read(make)

    def joined(self) -> Transaction | None:
        """The transaction of ours that this thread or task is inside of."""
        transaction = (_joined.get() or {}).get(self)
        return transaction if transaction is not None and transaction.joinable else None

    @contextmanager
    def transaction(self, *, join: bool = False) -> Generator[Transaction, None, None]:
        """A transaction of its own, on a connection of its own, that plain calls join.

        Inside another one of this thread or task it is refused, or with `join` a part of that.
        """
        with uninterrupted:
            outer = self.joined()
            if outer is None:
                yield from self._block()
            elif join:
                with interruptible:
                    yield outer
            else:
                raise StoreError("a transaction is already open here; use the one you have", code="tx_nested")

    def _block(self) -> Generator[Transaction, None, None]:
        """Should an interrupt keep a `with` from going on with it, it ends with the last reference to it."""
        lent = Lent(self.pool)
        opened: Transaction | None = None
        before = _joined.get()
        inside: dict[PostgresRunner, Transaction] = {}
        try:
            session = lent.begin()
            opened = Transaction(session)
            inside.update({**(before or {}), self: opened})
            _joined.set(inside)
            with interruptible:
                yield opened
            opened.end()
            opened.check_not_ended()
            session.commit()
        except Exception:
            lent.at_rest = True
            raise
        else:
            lent.at_rest = True
        finally:
            try:
                _end_block(lent, opened, inside, before)
            except BaseException:  # an interrupt just now: what has to be done is done all the same
                lent.at_rest = False
                _end_block(lent, opened, inside, before)
                raise

    def _write(self, make: Make[T], *, brief: bool) -> T:
        def work(session: Session) -> T:
            answer = drive(make(), session.writer)
            session.commit()
            return answer

        return self.pool.run(work, brief=brief)

    def _read(self, make: Make[T]) -> T:
        return self.pool.run(lambda session: drive(make(), session.reader), reading=True)

    def _insist(self, once: Callable[[], T]) -> T:
        """Run it again from the start where that is safe: it gave way to others, or ended before its commit."""
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
                        f"{self._address.shown}: {lost.message}, {ATTEMPTS} times in a row; nothing was written. Check"
                        " the server and the network",
                        code="database_unreachable",
                    ) from lost
            # jitter, so that those who got into each other's way do not meet again
            time.sleep(random.uniform(0, 0.005 * 2**attempt))
            attempt += 1

    # -- the database as a whole -------------------------------------------------------------------------------------

    @property
    def pool(self) -> Pool:
        """The connections of this process. Made on first use, when the schema has been found fit."""
        pool = self._pool
        if pool is None:
            with self._opening:
                pool = self._pool = self._pool or self._opened()
        return pool

    def _opened(self) -> Pool:
        pool = Pool(self._address, self._settings)
        try:
            self._prepare(pool, allowed=self._auto_migrate)
        except BaseException:
            pool.close()
            raise
        return pool

    def _prepare(self, pool: Pool, *, allowed: bool) -> int:
        def work(session: Session) -> int:
            done = schema.prepare(session, migrate.migrations_of("postgres"), self._address.shown, allowed=allowed)
            pool.identity = session.reader.execute(Call("read_identity")).rows[0]
            session.commit()
            return len(done)

        return pool.run(work)

    def bell(self) -> PollingBell:
        self.pool  # noqa: B018 - a worker asks for its bell first of all, and is to hear of an unfit schema before it acts
        return PollingBell()

    def upgrade(self) -> str:
        pool = Pool(self._address, self._settings)
        try:
            done = self._prepare(pool, allowed=True)
        finally:
            pool.close()
        return f"{self._address.shown} is at the newest schema ({done} step{'s' * (done != 1)} done now)"

    def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def start_afresh(self) -> None:
        """Leave to the parent process what is the parent's: called in a forked child, before any of its code runs."""
        if self._pool is not None:
            _left_behind.append(self._pool)
        self._pool = None
        self._opening = threading.Lock()


def _end_block(
    lent: Lent,
    opened: Transaction | None,
    inside: dict[PostgresRunner, Transaction],
    before: dict[PostgresRunner, Transaction] | None,
) -> None:
    """Nothing joins it any more, and its connection goes back. May be repeated."""
    if opened is not None:
        opened.end()
    if _joined.get() is inside:  # else the block was given up, and is ended from somewhere else
        _joined.set(before)
    lent.give_back()


_runners: weakref.WeakSet[PostgresRunner] = weakref.WeakSet()
_left_behind: list[Pool] = []


def _start_afresh() -> None:
    for runner in _runners:
        runner.start_afresh()


os.register_at_fork(after_in_child=_start_afresh)
