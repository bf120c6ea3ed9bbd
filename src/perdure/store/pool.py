"""The connections of one process to one server, each lent to one transaction at a time. Used by `server`; starts no
thread. A dialect supplies `Session` and `Server`; all else is the same for every server."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from perdure.clock import ServerClock
from perdure.errors import DatabaseBusy, PerdureError, TransactionError
from perdure.store.copy import Closure
from perdure.store.engine import AsyncDriver, Driver
from perdure.store.line import Line, new_ticket
from perdure.store.migrate import Applied
from perdure.store.protocols import ConnectionLost, StoreSettings
from perdure.store.rows import Fact

T = TypeVar("T")

SIZE = 10
"""How many transactions a process can have open at once; the next one waits."""


class Session(Protocol):
    """One connection of ours and the transaction on it. Used by one thread at a time, in the process that opened it.

    Every error it raises is a StoreError: `Serialization` if the transaction was aborted in favour of others,
    `ConnectionLost` if the connection ended.
    """

    @property
    def writer(self) -> Driver:
        """Runs statements in a transaction that may write."""
        ...

    @property
    def reader(self) -> Driver:
        """Runs statements that only read: it locks no row."""
        ...

    @property
    def in_transaction(self) -> bool:
        """Whether the transaction that was begun is still open."""
        ...

    def begin(self, *, reading: bool, brief: bool, alone: bool) -> None:
        """Open a transaction that may write, or one that reads a single snapshot. `brief`: wait little for locks.
        `alone`: it is for one operation of ours, so it may begin with the first statement of that, which then may find
        the connection lost. Where the clock `is_due`, the server is asked for the time in the same message."""
        ...

    def commit(self) -> None:
        """Returns when the transaction is durable. CommitUnknown: it may be; any other error: nothing is written."""
        ...

    def roll_back(self) -> bool:
        """End the open transaction, if any. False: the connection cannot be used any more."""
        ...

    def execute(self, sql: str, params: Sequence[Any] | Mapping[str, Any] | None, *, is_new: bool) -> Any:
        """Run a user's statement, with parameters as `:name` or in the driver's style. Refuses to begin or end a
        transaction. `is_new`: nothing was run in it before, so that a statement which commits by itself does no harm.
        """
        ...

    def prepare(self, *, allowed: bool) -> int:
        """Bring the database to the newest schema in the open transaction; done once if many processes start together.

        Returns how many steps were done. If upgrading is not allowed, an old schema is refused.
        """
        ...

    def applied(self) -> list[Applied]:
        """The steps that the database has recorded. Empty: it has none of our tables."""
        ...

    def facts(self) -> list[Fact]:
        """The condition of the database, also of one that cannot be used as it is. Changes nothing."""
        ...

    def close(self) -> None: ...


class Server(Protocol):
    """Where one database is, and how to connect to it."""

    @property
    def shown(self) -> str:
        """Its name in messages: without the password."""
        ...

    @property
    def settings(self) -> StoreSettings: ...

    @property
    def connection_types(self) -> tuple[type, ...]:
        """The types that the user may give as `tx=`."""
        ...

    @property
    def wanted(self) -> str:
        """The same in words."""
        ...

    def connect(self, clock: ServerClock) -> Session:
        """A new connection. The clock learns what the server's reads, now and from time to time."""
        ...

    def borrow(self, connection: Any, work: Callable[[Driver], T]) -> T:
        """Run `work` in the transaction of the user's own connection, and leave its settings as they were. Refuses a
        connection that has no transaction and cannot begin one."""
        ...

    async def borrow_async(self, connection: Any) -> AsyncDriver:
        """The same for an asynchronous connection, of whatever type: what runs in its transaction from now on."""
        ...


class CommitUnknown(ConnectionLost):
    """The connection ended during COMMIT: it may have taken effect, so simply running it again is not safe."""


class Pool:
    """Lends sessions with an open transaction, the last used first. Connections are opened when needed, and kept."""

    def __init__(self, server: Server, clock: ServerClock) -> None:
        self.server = server
        self._clock = clock
        self._idle: list[Session] = []
        self.line = Line(SIZE)
        self._closed = False
        self.identity: tuple[object, ...] = ()
        """Which database this is; known once the schema has been checked."""
        self.closure: Closure | None = None
        """Why nobody may write to it; None: it is open, or was when this process began to use it."""
        weakref.finalize(self, _close_all, self._idle, os.getpid())

    def run(
        self,
        work: Callable[[Checkout], T],
        *,
        reading: bool = False,
        brief: bool = False,
        alone: bool = False,
        bare: bool = False,
    ) -> T:
        """Run `work` in a new transaction, which it commits itself; without a commit it is rolled back.

        `bare`: in no transaction, every statement by itself.
        """
        checkout = Checkout(self)
        try:
            checkout.begin(reading=reading, brief=brief, alone=alone, bare=bare)
            result = work(checkout)
        except PerdureError:
            checkout.at_rest = True
            raise
        else:
            checkout.at_rest = True
            return result
        finally:
            try:
                checkout.give_back()
            except BaseException:  # an interrupt just now: finish the clean-up in any case
                checkout.at_rest = False
                checkout.give_back()
                raise

    def idle(self) -> Session:
        """A session without a transaction. An idle connection that has died is not noticed here."""
        try:
            return self._idle.pop()
        except IndexError:
            return self.server.connect(self._clock)

    def begun(self, *, reading: bool, brief: bool, alone: bool) -> Session:
        """A session with a new transaction. If an idle connection has died, all idle ones are closed and a new one is
        opened."""
        try:
            session = self._idle.pop()
        except IndexError:
            session = self.server.connect(self._clock)
        else:
            try:
                session.begin(reading=reading, brief=brief, alone=alone)
            except ConnectionLost:
                session.close()
                self.close_idle()
                session = self.server.connect(self._clock)
            else:
                return session
        session.begin(reading=reading, brief=brief, alone=alone)
        return session

    def close_idle(self) -> None:
        """When one connection has died, those that wait have probably died too."""
        _close_all(self._idle, os.getpid())

    def take_back(self, checkout: list[Session]) -> None:
        """Keep the session for the next caller, if possible. An interrupt may lose it, but never gives it to two."""
        if checkout[0].roll_back() and not self._closed:
            self._idle.append(checkout.pop())

    def close(self) -> None:
        """Close the idle sessions now, and the lent ones when they come back."""
        self._closed = True
        _close_all(self._idle, os.getpid())


class Checkout:
    """A place among the connections of the process and, once begun, a session with an open transaction."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._ticket = new_ticket()
        self._session: list[Session] = []
        self._process = os.getpid()
        self.at_rest = False
        """The session can be used again. Not after an interrupt: nobody knows which reply it read last."""

    @property
    def ours(self) -> bool:
        """False in a forked child: the connection belongs to the parent."""
        return self._process == os.getpid()

    @property
    def session(self) -> Session:
        return self._session[0]

    def begin(self, *, reading: bool = False, brief: bool = False, alone: bool = False, bare: bool = False) -> None:
        server = self._pool.server
        patience_s = server.settings.busy_timeout_s
        if not self._pool.line.join(self._ticket, patience_s):
            raise DatabaseBusy(
                f"all {SIZE} connections of this process to {server.shown} were in use for longer than"
                f" {patience_s:g} s; nothing was written. Keep app.transaction() blocks short"
            )
        begun = partial(self._pool.begun, reading=reading, brief=brief, alone=alone)
        self._session.append(self._pool.idle() if bare else begun())

    def commit(self) -> None:
        if not self.ours:
            raise TransactionError(
                "the transaction was begun by the parent process and cannot be committed in a forked child; leave the"
                " block before forking",
                code="tx_forked",
            )
        self.session.commit()

    def give_back(self) -> None:
        """Roll back what was not committed, and return the session. May be repeated after an interrupt."""
        try:
            if self._session and self.at_rest and self.ours:
                self._pool.take_back(self._session)
        finally:
            for session in self._session:  # it was not taken back
                if self.ours:
                    session.close()
            self._pool.line.leave(self._ticket)


def _close_all(idle: list[Session], process: int) -> None:
    """Not in a forked child, whose exit may call this: the sessions belong to the parent."""
    while idle and process == os.getpid():
        idle.pop().close()
