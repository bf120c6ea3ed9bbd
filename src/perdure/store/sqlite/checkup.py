"""What can be told about a database file without changing it. Called by `runner` for `perdure db check`."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

from perdure.errors import DatabaseUnavailable, SchemaError
from perdure.store import migrate
from perdure.store.protocols import StoreSettings
from perdure.store.sqlite import connect, schema
from perdure.store.sqlite.driver import translate
from perdure.store.sqlite.files import filesystem_of, refuse_network_filesystem
from perdure.store.sqlite.wal import WalMeter

_SYNCHRONOUS = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}
_FAULTS = 20


class Checkup(NamedTuple):
    """How a file stands. `revision` 0: it has no Perdure tables. `schema_fault`: why this version cannot use it."""

    path: Path
    size: int
    mode: int
    filesystem: str | None
    over_network: bool
    revision: int
    newest: int
    schema_fault: str | None
    faults: tuple[str, ...]
    journal_mode: str
    synchronous: str
    wal_frames: int
    wal_bytes: int
    sqlite_version: str
    wal_guarded: bool


def require_file(path: Path) -> None:
    """Refuse a path where there is no file, so that looking never creates one."""
    if path.is_dir():
        raise DatabaseUnavailable(f"{path} is a folder; give the path of the database file in it", code="database_path")
    if not path.exists():
        raise DatabaseUnavailable(
            f"there is no database at {path}; check the path, or make one with perdure db upgrade",
            code="database_missing",
        )


def require_current(path: Path, settings: StoreSettings) -> None:
    """Refuse a file that would have to be made or upgraded before it can be used."""
    require_file(path)
    try:
        with closing(connect.open_reader(path, settings)) as connection:
            schema.require_current(connection, path, migrate.migrations_of("sqlite"))
    except sqlite3.Error as error:
        raise translate(error, str(path)) from error


def examine(path: Path, settings: StoreSettings) -> Checkup:
    """Look at the file through a connection like Perdure's own, which cannot write."""
    require_file(path)
    try:
        with closing(connect.open_reader(path, settings)) as connection:
            return _examine(connection, path)
    except sqlite3.Error as error:
        raise translate(error, str(path)) from error


def _examine(connection: sqlite3.Connection, path: Path) -> Checkup:
    known = migrate.migrations_of("sqlite")
    applied = schema.applied(connection)  # the first look; it also opens the -wal
    (synchronous,) = connection.execute("PRAGMA synchronous").fetchone()
    (journal_mode,) = connection.execute("PRAGMA journal_mode").fetchone()
    wal_frames, wal_bytes = WalMeter(path).frames(), _size(Path(f"{path}-wal"))
    info = path.stat()
    return Checkup(
        path=path,
        size=info.st_size,
        mode=info.st_mode & 0o777,
        filesystem=_filesystem(path),
        over_network=_over_network(path),
        revision=applied[-1].revision if applied else 0,
        newest=known[-1].revision,
        schema_fault=_schema_fault(connection, path),
        faults=_faults(connection),
        journal_mode=str(journal_mode),
        synchronous=_SYNCHRONOUS.get(synchronous, str(synchronous)),
        wal_frames=wal_frames,
        wal_bytes=wal_bytes,
        sqlite_version=sqlite3.sqlite_version,
        wal_guarded=connect.guarded(),
    )


def _schema_fault(connection: sqlite3.Connection, path: Path) -> str | None:
    try:
        schema.require_current(connection, path, migrate.migrations_of("sqlite"))
    except SchemaError as error:
        return error.message
    return None


def _faults(connection: sqlite3.Connection) -> tuple[str, ...]:
    """What `quick_check` complains of. Empty: nothing."""
    try:
        said = tuple(str(line) for (line,) in connection.execute(f"PRAGMA quick_check({_FAULTS})"))
    except sqlite3.DatabaseError as error:  # so damaged that even the look at it breaks off
        return (str(error),)
    return () if said == ("ok",) else said


def _filesystem(path: Path) -> str | None:
    with suppress(OSError):
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
        return filesystem_of(str(path.resolve()), mounts)
    return None


def _over_network(path: Path) -> bool:
    try:
        refuse_network_filesystem(path, allow=False)
    except DatabaseUnavailable:
        return True
    return False


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
