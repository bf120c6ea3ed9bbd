"""The few connections of one process to one database, the last used first. Used by `runner`; starts no thread."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Generator
from contextlib import contextmanager

import psycopg

from perdure.errors import DatabaseBusy
from perdure.store.away import ConnectionLost
from perdure.store.sql.dialects.postgres.connect import Address, Settings, open_connection
from perdure.store.sql.dialects.postgres.session import Session
from perdure.store.sql.drivers.postgres import translate

SIZE = 10
"""How many transactions a process can have open at a time; the next one waits."""


class Pool:
    """Lends sessions with an open transaction. Connections are opened when they are wanted and kept."""

    def __init__(self, address: Address, settings: Settings) -> None:
        self._address = address
        self._settings = settings
        self._idle: list[Session] = []
        self._room = threading.BoundedSemaphore(SIZE)
        self._closed = False
        self.identity: tuple[object, ...] = ()
        """Which database this is; known once the schema has been looked at."""
        weakref.finalize(self, _close_all, self._idle)

    @contextmanager
    def transaction(self, *, reading: bool = False) -> Generator[Session, None, None]:
        """A session inside a transaction that the caller commits; whatever was not committed is rolled back."""
        if not self._room.acquire(timeout=self._settings.busy_timeout_s):
            raise DatabaseBusy(
                f"all {SIZE} connections of this process to {self._address.shown} were in use for longer than"
                f" {self._settings.busy_timeout_s:g} s; nothing was written. Keep app.transaction() blocks short"
            )
        try:
            session = self._begun(reading=reading)
            try:
                yield session
            finally:
                self._give_back(session)
        finally:
            self._room.release()

    def _begun(self, *, reading: bool) -> Session:
        """An idle connection may have died unnoticed, and all others with it: then a new one is opened."""
        try:
            session = self._idle.pop()
        except IndexError:
            session = self._opened()
        else:
            try:
                session.begin(reading=reading)
            except ConnectionLost:
                session.close()
                _close_all(self._idle)
                session = self._opened()
            else:
                return session
        session.begin(reading=reading)
        return session

    def _opened(self) -> Session:
        connection = open_connection(self._address)
        try:
            return Session(connection, self._settings)
        except psycopg.Error as error:
            connection.close()
            raise translate(error) from error

    def _give_back(self, session: Session) -> None:
        if session.roll_back() and not self._closed:
            self._idle.append(session)
        else:
            session.close()

    def close(self) -> None:
        """Close what is idle now, and what is lent when it comes back."""
        self._closed = True
        _close_all(self._idle)


def _close_all(idle: list[Session]) -> None:
    while idle:
        idle.pop().close()
