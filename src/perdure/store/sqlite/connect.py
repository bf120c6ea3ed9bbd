"""Opens SQLite connections the way Perdure needs them. Used by `database`; calls `files` and `wal`."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from perdure.errors import ConfigError
from perdure.store.protocols import StoreSettings
from perdure.store.sqlite.driver import translate, translated
from perdure.store.sqlite.wal import affected

OLDEST = (3, 35, 0)  # RETURNING
CACHE_KIB = 8_000
"""Four times SQLite's default: a worker empties a queue of 50,000 jobs a twelfth faster with it."""
SQLITE_VERSION = sqlite3.sqlite_version_info


def guarded() -> bool:
    """True on an SQLite whose checkpoints can corrupt a file that several processes write: see `wal`."""
    return affected(SQLITE_VERSION[:3])


def set_patience(connection: sqlite3.Connection, seconds: float) -> None:
    """How long the connection waits for a lock that another one holds."""
    _set(connection, f"busy_timeout={round(seconds * 1000)}")


def open_writer(path: Path, settings: StoreSettings) -> sqlite3.Connection:
    """A connection that may write. It is shared between threads under the mutex of its database."""
    connection = _open(path, settings)
    try:
        set_durability(connection, settings)
        _set(connection, f"cache_size=-{CACHE_KIB}")
        _set(connection, "temp_store=MEMORY")  # else a savepoint of a large batch writes its own file
        tame(connection)
    except BaseException as error:
        connection.close()
        if isinstance(error, sqlite3.Error):  # the first look at the file: it may be no database, or not readable
            raise translate(error, str(path)) from error
        raise
    return connection


def set_durability(connection: sqlite3.Connection, settings: StoreSettings) -> None:
    """FULL: a commit returns when it is on the disk. NORMAL: when the system has it."""
    _set(connection, f"synchronous={'FULL' if settings.durability == 'full' else 'NORMAL'}")


def open_reader(path: Path, settings: StoreSettings) -> sqlite3.Connection:
    """A connection that cannot write. Still opened read-write: a WAL reader must write to the shared-memory file."""
    connection = open_writer(path, settings)
    _set(connection, "query_only=ON")
    return connection


def tame(connection: sqlite3.Connection) -> None:
    """Switch off auto-checkpoints on an affected SQLite. Also done to every connection that is given as `tx=`."""
    if guarded():
        _set(connection, "wal_autocheckpoint=0")


def give_pages_back(connection: sqlite3.Connection) -> None:
    """Let the file give single pages back when they are free: at once if it is empty, else with the next VACUUM."""
    _set(connection, "auto_vacuum=INCREMENTAL")


def is_wal(connection: sqlite3.Connection) -> bool:
    """Whether the file is in WAL mode already."""
    mode: str = connection.execute("PRAGMA journal_mode").fetchone()[0]
    return mode == "wal"


def use_wal(connection: sqlite3.Connection, path: Path) -> None:
    """Put the file into WAL mode, for good. The caller makes sure that no other process does the same now."""
    mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
    if mode != "wal":
        raise ConfigError(f"{path} cannot be put into WAL mode (it says {mode!r}); use a file on a local disk")


def _open(path: Path, settings: StoreSettings) -> sqlite3.Connection:
    if SQLITE_VERSION < OLDEST:
        raise ConfigError(
            f"this Python has SQLite {sqlite3.sqlite_version}; Perdure needs {'.'.join(map(str, OLDEST))} or newer"
        )
    uri = f"{path.absolute().as_uri()}?mode=rw"
    patience_s = settings.busy_timeout_s
    with translated(path):
        return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=patience_s)


def _set(connection: sqlite3.Connection, pragma: str) -> None:
    sqlite3.Cursor(connection).execute(f"PRAGMA {pragma}").fetchall()  # the connection may make its own kind of rows
