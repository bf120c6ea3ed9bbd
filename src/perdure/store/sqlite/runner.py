"""Runs operations on an SQLite file, which is made and upgraded on first use. Made by `store/open`; calls `database`.

There is one database object per file, shared by all apps of the process, because record locks and group commit belong
to the process. Before a fork all are closed; parent and child open the file again when they need it.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from perdure.errors import DatabaseUnavailable
from perdure.store import migrate
from perdure.store.copy import closure
from perdure.store.engine import Make, drive
from perdure.store.migrate import Applied
from perdure.store.protocols import StoreSettings
from perdure.store.rows import Fact
from perdure.store.sqlite import schema
from perdure.store.sqlite import transaction as transactions
from perdure.store.sqlite.bell import SqliteBell
from perdure.store.sqlite.database import Database, Retired
from perdure.store.sqlite.driver import SqliteDriver, give_pages_back, open_reader, open_writer, translated
from perdure.store.sqlite.files import back_up, create_private, identity_of, refuse_network_filesystem
from perdure.store.sqlite.statements import STATEMENTS
from perdure.store.transaction import joining
from perdure.uninterrupted import uninterrupted

_databases: dict[tuple[int, int] | None, Database] = {}
_to_let_go: list[Callable[[], None]] = []
_left_behind: list[Database] = []
_in_use: set[tuple[int, int] | None] = set()
"""In a forked child: files that its parent could not close before the fork."""
_registry = threading.Lock()
PATIENCE_S = 5.0
"""How long a fork, or a close, waits for other threads that use the file."""

generation: int = 0
"""Rises in a forked child: what a store found before the fork belongs to the parent."""


def database_at(path: Path, settings: StoreSettings) -> Database:
    """The one database object of this process for this file; makes the file at the newest schema on first use.

    With `auto_migrate` False nothing is made or changed; a missing file or an old schema is refused.
    """
    refuse_network_filesystem(path, allow=settings.allow_network_filesystem)
    may_upgrade = settings.auto_migrate is not False
    if not may_upgrade and not path.exists():
        raise schema.missing(path, "does not exist")
    create_private(path)
    with _registry:
        identity = identity_of(path)
        if identity in _in_use:
            raise _forked_in_use(path)
        known = _databases.get(identity)
        if known is None or not known.usable:
            known = _prepared(path, settings, may_upgrade=may_upgrade)
            _databases[identity] = known
        known.strengthen(settings)
        return known


def upgrade_at(path: Path, settings: StoreSettings) -> schema.Upgrade:
    """Make the file or bring it to the newest schema, even with `auto_migrate` False. Returns what was done."""
    refuse_network_filesystem(path, allow=settings.allow_network_filesystem)
    create_private(path)
    with translated(path), closing(open_writer(path, settings)) as connection:
        return schema.prepare(connection, path, migrate.migrations_of("sqlite"))


def _prepared(path: Path, settings: StoreSettings, *, may_upgrade: bool) -> Database:
    with translated(path), closing(open_writer(path, settings)) as connection:
        schema.prepare(connection, path, migrate.migrations_of("sqlite"), allowed=may_upgrade)
        database = Database(path, settings)
        database.closure = None if settings.closed_too else drive(closure(), SqliteDriver(connection, STATEMENTS))
        return database


def forget(database: Database) -> None:
    """Close a database; the next use opens it again. If it stays in use for PATIENCE_S, it is not closed."""
    with _registry:
        if database.retire(PATIENCE_S):
            _drop(database)


def _drop(database: Database) -> None:
    for identity in [identity for identity, known in _databases.items() if known is database]:
        del _databases[identity]


def _before_fork() -> None:
    """SQLite records its locks in memory, per process and file, and a fork copies that record: a child with an
    inherited connection believes that it holds locks which the kernel did not give it, and loses what it writes as soon
    as the parent closes the file. So nothing of ours is open while the process forks."""
    if _registry.acquire(timeout=PATIENCE_S):
        _to_let_go.append(_registry.release)
    for identity, database in list(_databases.items()):
        if database.retire(PATIENCE_S):
            _drop(database)
        else:
            _in_use.add(identity)


def _after_in_parent() -> None:
    _in_use.clear()
    while _to_let_go:
        _to_let_go.pop()()


def _after_in_child() -> None:
    global _registry, generation  # noqa: PLW0603 - a forked child must not inherit a held lock
    _registry = threading.Lock()
    generation += 1
    _left_behind.extend(_databases.values())
    _databases.clear()
    _to_let_go.clear()


def _forked_in_use(path: Path) -> DatabaseUnavailable:
    return DatabaseUnavailable(
        f"this process was forked while its parent was in a transaction on {path}: SQLite's locks do not work in it,"
        " and nothing was written. Fork outside of transactions, or start new processes (spawn)",
        code="forked_in_use",
    )


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child)


T = TypeVar("T")


class SqliteRunner:
    """Runs operations on one SQLite file. Nothing is opened before the first call."""

    single_writer = True

    def __init__(self, path: Path, settings: StoreSettings) -> None:
        self.path = path
        self._settings = settings
        self._database: Database | None = None
        self._generation = -1

    @property
    def database(self) -> Database:
        if self._database is None or not self._database.usable or self._generation != generation:
            self._database = database_at(self.path, self._settings)
            self._generation = generation
        return self._database

    @property
    def _writable(self) -> Database:
        """The same for whoever may write. Refuses a closed database."""
        database = self.database
        if database.closure is not None:
            raise database.closure.refusal(str(self.path))
        return database

    def write(self, make: Make[T], *, brief: bool = False) -> T:  # noqa: ARG002 - no row is ever locked here
        with uninterrupted:
            while True:
                database = self._database
                if database is None or not database.usable or self._generation != generation:
                    database = self.database
                if database.closure is not None:
                    raise database.closure.refusal(str(self.path))
                try:
                    return database.write(make)
                except Retired:
                    continue

    async def awrite(self, make: Make[T]) -> T:
        while True:
            try:
                return await self._writable.awrite(make)
            except Retired:
                continue

    def write_within(self, tx: object, make: Make[T]) -> T:
        with uninterrupted:
            return transactions.write_within(tx, make, self.path, self._prepare)

    async def awrite_within(self, tx: object, make: Make[T]) -> T:
        return await transactions.awrite_within(tx, make, self.path, self._prepare)

    def _prepare(self, connection: sqlite3.Connection) -> Callable[[sqlite3.Connection], None] | None:
        """See `transactions.Prepare`. Whether the tables are there is what everybody sees: those that this transaction
        has made may go with its rollback. To make them, or to switch to WAL mode, would wait for this very transaction.
        """
        if self._is_open or not connection.in_transaction or schema.is_ready(self.path, self._settings):
            self._writable  # noqa: B018 - opened on first use
            return None
        refuse_network_filesystem(self.path, allow=self._settings.allow_network_filesystem)
        return partial(schema.prepare_within, path=self.path, settings=self._settings)

    @property
    def _is_open(self) -> bool:
        """Whether the file that is at the path now has been opened, and so has our tables."""
        found = self._database
        return found is not None and self._generation == generation and found.is_at_its_path()

    def read(self, make: Make[T]) -> T:
        with uninterrupted:
            while True:
                try:
                    return self.database.read(make)
                except Retired:
                    continue

    def look(self, make: Make[T]) -> T:
        return self.read(make)

    @contextmanager
    def transaction(self, *, join: bool = False) -> Generator[object, None, None]:
        # `yield from`, not a second `with`: an interrupt between the two could leave the inner one open.
        with uninterrupted:
            while True:
                try:
                    return (yield from self._writable.transaction(join=join))
                except Retired:
                    continue

    def joining(self, tx: object) -> AbstractContextManager[None]:
        return joining(self._writable, partial(self.write_within, tx))

    def joined(self) -> object | None:
        """The transaction of this thread or task that calls would join. None: there is none."""
        return None if self._database is None else self._database.joined()

    def bell(self, queues: Sequence[str] | None = None) -> SqliteBell:  # noqa: ARG002 - it rings for all of them
        with uninterrupted:
            while True:
                try:
                    return self._writable.bell()
                except Retired:
                    continue

    def upgrade(self) -> str:
        return str(upgrade_at(self.path, self._settings))

    def require_current(self) -> None:
        """Refuse a missing file, and one that needs an upgrade; nothing is changed."""
        schema.require_current(self.path, self._settings)

    def checkup(self) -> schema.Checkup:
        """The condition of the file. Changes nothing."""
        return schema.examine(self.path, self._settings)

    def facts(self) -> list[Fact]:
        """The same for people, with a verdict."""
        return schema.facts(self.checkup())

    def applied(self) -> list[Applied]:
        """The steps that the file has recorded. Empty: it has none of our tables."""
        schema.require_file(self.path)
        with translated(self.path), closing(open_reader(self.path, self._settings)) as connection:
            return schema.applied(connection)

    def back_up(self, target: Path) -> None:
        """Copy all that is committed now to a new file. Jobs continue meanwhile."""
        schema.require_file(self.path)
        with translated(self.path), closing(open_writer(self.path, self._settings)) as connection:
            back_up(connection, target)

    def vacuum(self) -> None:
        """Write the file anew; from then on it can give single pages back. Others wait, or are told that it is busy."""
        schema.require_file(self.path)
        with translated(self.path), closing(open_writer(self.path, self._settings)) as connection:
            give_pages_back(connection)
            connection.execute("VACUUM")

    def close(self) -> None:
        if self._database is not None and self._generation == generation:
            forget(self._database)
        self._database = None
