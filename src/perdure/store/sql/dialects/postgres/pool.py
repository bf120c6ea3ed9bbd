"""The few connections of one process to one database, the last used first. Used by `runner`; starts no thread."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TypeVar

import psycopg

from perdure.errors import DatabaseBusy, PerdureError
from perdure.store.away import ConnectionLost
from perdure.store.sql.dialects.postgres.connect import Address, Settings, open_connection
from perdure.store.sql.dialects.postgres.session import Session
from perdure.store.sql.drivers.postgres import translate
from perdure.store.sql.line import Line, Ticket, new_ticket

T = TypeVar("T")

SIZE = 10
"""How many transactions a process can have open at a time; the next one waits."""


class Pool:
    """Lends sessions with an open transaction. Connections are opened when they are wanted and kept."""

    def __init__(self, address: Address, settings: Settings) -> None:
        self._address = address
        self._settings = settings
        self._idle: list[Session] = []
        self._line = Line(SIZE)
        self._closed = False
        self.identity: tuple[object, ...] = ()
        """Which database this is; known once the schema has been looked at."""
        weakref.finalize(self, _close_all, self._idle)

    def run(self, work: Callable[[Session], T], *, reading: bool = False, brief: bool = False) -> T:
        """Do it in a transaction of its own, which `work` commits; what was not committed is rolled back."""
        lent = Lent(self)
        try:
            answer = work(lent.begin(reading=reading, brief=brief))
        except PerdureError:
            lent.at_rest = True
            raise
        else:
            lent.at_rest = True
            return answer
        finally:
            try:
                lent.give_back()
            except BaseException:  # an interrupt just now: what has to be done is done all the same
                lent.at_rest = False
                lent.give_back()
                raise

    def join(self, ticket: Ticket) -> None:
        """Wait for one of the places; the caller leaves it, also when this fails."""
        if not self._line.join(ticket, self._settings.busy_timeout_s):
            raise DatabaseBusy(
                f"all {SIZE} connections of this process to {self._address.shown} were in use for longer than"
                f" {self._settings.busy_timeout_s:g} s; nothing was written. Keep app.transaction() blocks short"
            )

    def begun(self, *, reading: bool, brief: bool) -> Session:
        """An idle connection may have died unnoticed, and all others with it: then a new one is opened."""
        try:
            session = self._idle.pop()
        except IndexError:
            session = self._opened()
        else:
            try:
                session.begin(reading=reading, brief=brief)
            except ConnectionLost:
                session.close()
                _close_all(self._idle)
                session = self._opened()
            else:
                return session
        session.begin(reading=reading, brief=brief)
        return session

    def _opened(self) -> Session:
        connection = open_connection(self._address)
        try:
            return Session(connection, self._settings)
        except psycopg.Error as error:
            connection.close()
            raise translate(error) from error

    def take_back(self, lent: list[Session]) -> None:
        """Keep the session for the next one, if it can be. An interrupt may lose it, but leaves it to one owner."""
        if lent[0].roll_back() and not self._closed:
            self._idle.append(lent.pop())

    def leave(self, ticket: Ticket) -> None:
        self._line.leave(ticket)

    def close(self) -> None:
        """Close what is idle now, and what is lent when it comes back."""
        self._closed = True
        _close_all(self._idle)


class Lent:
    """A place among the connections of the process and, once begun, a session with an open transaction."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._ticket = new_ticket()
        self._session: list[Session] = []
        self.at_rest = False
        """The session can be used again. Not if it was interrupted: nobody knows which answer it has read last."""

    def begin(self, *, reading: bool = False, brief: bool = False) -> Session:
        self._pool.join(self._ticket)
        self._session.append(self._pool.begun(reading=reading, brief=brief))
        return self._session[0]

    def give_back(self) -> None:
        """What was not committed is rolled back. May be repeated: whatever an interrupt left undone is done then."""
        try:
            if self._session and self.at_rest:
                self._pool.take_back(self._session)
        finally:
            for session in self._session:  # it was not taken back
                session.close()
            self._pool.leave(self._ticket)


def _close_all(idle: list[Session]) -> None:
    while idle:
        idle.pop().close()
