"""The runner of SQLite stores: opens the file on first use, and afresh after a fork. Used by `store/open`."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

from perdure.store.sql.dialects.sqlite import checkup, connect, registry
from perdure.store.sql.dialects.sqlite import tx as borrowed
from perdure.store.sql.dialects.sqlite.backup import back_up
from perdure.store.sql.dialects.sqlite.bell import SqliteBell
from perdure.store.sql.dialects.sqlite.checkup import Checkup
from perdure.store.sql.dialects.sqlite.connect import Pragmas
from perdure.store.sql.dialects.sqlite.database import Database, Retired
from perdure.store.sql.drivers.sqlite import translate
from perdure.store.sql.engine import Make
from perdure.uninterrupted import uninterrupted

T = TypeVar("T")


class SqliteRunner:
    """Runs operations on one SQLite file. Nothing is opened before the first call."""

    single_writer = True

    def __init__(
        self, path: Path, pragmas: Pragmas, *, auto_migrate: bool = True, allow_network_filesystem: bool = False
    ) -> None:
        self.path = path
        self._pragmas = pragmas
        self._auto_migrate = auto_migrate
        self._allow_network_filesystem = allow_network_filesystem
        self._database: Database | None = None
        self._generation = -1

    @property
    def database(self) -> Database:
        if self._database is None or not self._database.usable or self._generation != registry.generation:
            self._database = self._opened(may_upgrade=self._auto_migrate)
            self._generation = registry.generation
        return self._database

    def _opened(self, *, may_upgrade: bool) -> Database:
        return registry.database_at(
            self.path,
            self._pragmas,
            may_upgrade=may_upgrade,
            allow_network_filesystem=self._allow_network_filesystem,
        )

    def write(self, make: Make[T], *, brief: bool = False) -> T:  # noqa: ARG002 - no row is ever locked here
        with uninterrupted:
            while True:
                database = self._database
                if database is None or not database.usable or self._generation != registry.generation:
                    database = self.database
                try:
                    return database.write(make)
                except Retired:
                    continue

    async def awrite(self, make: Make[T]) -> T:
        while True:
            try:
                return await self.database.awrite(make)
            except Retired:
                continue

    def write_within(self, tx: object, make: Make[T]) -> T:
        with uninterrupted:
            return borrowed.write_within(tx, make, self.database.path)

    def read(self, make: Make[T]) -> T:
        with uninterrupted:
            while True:
                try:
                    return self.database.read(make)
                except Retired:
                    continue

    @contextmanager
    def transaction(self, *, join: bool = False) -> Generator[object, None, None]:
        # `yield from`, not another `with`: there an interrupt could come between the two and leave the inner one open.
        with uninterrupted:
            while True:
                try:
                    return (yield from self.database.transaction(join=join))
                except Retired:
                    continue

    def joined(self) -> object | None:
        """The transaction of this thread or task that calls join. None: there is none."""
        return None if self._database is None else self._database.joined()

    def bell(self) -> SqliteBell:
        with uninterrupted:
            while True:
                try:
                    return self.database.bell()
                except Retired:
                    continue

    def upgrade(self) -> str:
        allow = self._allow_network_filesystem
        return str(registry.upgrade_at(self.path, self._pragmas, allow_network_filesystem=allow))

    def require_current(self) -> None:
        """Refuse a missing file, and one that the next call would have to make or upgrade; nothing is changed."""
        checkup.require_current(self.path, self._pragmas)

    def checkup(self) -> Checkup:
        """How the file stands. Changes nothing, and upgrades nothing."""
        return checkup.examine(self.path, self._pragmas)

    def back_up(self, target: Path) -> None:
        """Copy all that is committed now to a new file. Jobs go on meanwhile."""
        checkup.require_file(self.path)
        try:
            with closing(connect.open_writer(self.path, self._pragmas)) as connection:
                back_up(connection, target)
        except sqlite3.Error as error:
            raise translate(error, str(self.path)) from error

    def close(self) -> None:
        if self._database is not None and self._generation == registry.generation:
            registry.forget(self._database)
        self._database = None
