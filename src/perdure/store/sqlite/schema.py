"""Checks an SQLite file and brings it to the newest schema. Used by `runner`; the steps are in `migrate`."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

from perdure.errors import DatabaseBusy, DatabaseUnavailable, SchemaError
from perdure.store import migrate
from perdure.store.copy import closure
from perdure.store.engine import drive
from perdure.store.migrate import Applied, Migration
from perdure.store.protocols import StoreSettings
from perdure.store.rows import Fact, Verdict
from perdure.store.sqlite.driver import (
    SqliteDriver,
    give_pages_back,
    guarded,
    is_wal,
    open_reader,
    open_writer,
    translated,
    use_wal,
)
from perdure.store.sqlite.files import back_up, filesystem_of, refuse_network_filesystem
from perdure.store.sqlite.gate import gate_for
from perdure.store.sqlite.statements import NAMING, STATEMENTS, table
from perdure.store.sqlite.wal import WalMeter
from perdure.text import size

VERSIONS = table("schema_version")
_SYNCHRONOUS = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}
_FAULTS = 20
LONG_WAL_FRAMES = 5_000
"""Five times the length at which Perdure copies the log back (`CHECKPOINT_FRAMES`)."""

GUARD_LIMIT = (
    "this SQLite can corrupt a file that several processes write (its WAL-reset bug). Perdure's own connections and"
    " those given as tx= checkpoint under a lock; a foreign connection with auto-checkpoint on does not: run PRAGMA"
    " wal_autocheckpoint=0 on it"
)


class Upgrade(NamedTuple):
    """What was done to a file. `before` 0: it had no Perdure tables. `backup`: the file as it was before."""

    path: Path
    before: int
    after: int
    backup: Path | None = None

    def __str__(self) -> str:
        if self.before == self.after:
            return f"nothing to do: {self.path} is at schema revision {self.after}, the newest"
        if not self.before:
            return f"created {self.path} at schema revision {self.after}"
        kept = f"; the file as it was is kept at {self.backup}" if self.backup else ""
        return f"upgraded {self.path} from schema revision {self.before} to {self.after}{kept}"


def prepare(connection: sqlite3.Connection, path: Path, known: Sequence[Migration], *, allowed: bool = True) -> Upgrade:
    """Put the file into WAL mode and bring it to the newest schema while other processes wait at the gate.

    A file that is ready needs no turn: it opens even while someone writes for long.
    """
    done = applied(connection)
    if done and not migrate.pending(known, done) and is_wal(connection):
        return Upgrade(path, done[-1].revision, done[-1].revision)
    if not allowed:
        _refuse(path, known, done)
    gate = gate_for(path)
    entered = gate.enter(30.0)
    try:
        give_pages_back(connection)
        use_wal(connection, path)
        return upgrade(connection, path, known, allowed=allowed)
    finally:
        if entered:
            gate.leave()


def upgrade(connection: sqlite3.Connection, path: Path, known: Sequence[Migration], *, allowed: bool = True) -> Upgrade:
    """Bring the file to the newest schema, in one transaction; done once if many processes start together.

    A file with an older schema is backed up first. `allowed` False: an older schema is refused, and so is none at all.
    """
    done = applied(connection)
    if not migrate.pending(known, done):
        return Upgrade(path, done[-1].revision, done[-1].revision)
    if not allowed:
        _refuse(path, known, done)
    backup = _back_up(connection, path) if done else None
    connection.execute("BEGIN EXCLUSIVE")
    try:
        done = applied(connection)
        for step in migrate.pending(known, done):
            for statement in migrate.statements_of(step, NAMING):
                connection.execute(statement)
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise
    return Upgrade(path, done[-1].revision if done else 0, known[-1].revision, backup)


def is_ready(path: Path, settings: StoreSettings) -> bool:
    """Whether the file, as everybody sees it, is at the newest schema and in WAL mode: then it opens without a write.
    Also False where someone's transaction keeps readers out."""
    try:
        with closing(open_reader(path, settings._replace(busy_timeout_s=0))) as connection:
            done = applied(connection)
            return bool(done) and not migrate.pending(migrate.migrations_of("sqlite"), done) and is_wal(connection)
    except (sqlite3.OperationalError, DatabaseBusy):
        return False


def prepare_within(connection: sqlite3.Connection, path: Path | None, settings: StoreSettings) -> None:
    """Bring the file to the newest schema inside the user's transaction, which commits the tables or takes them back.

    A file with an older schema is backed up first. The file keeps its journal mode until Perdure opens it itself.
    Without a path it is a database for tests, perhaps in memory.
    """
    known = migrate.migrations_of("sqlite")
    where = path or Path("the database")
    with translated(where):
        cursor = sqlite3.Cursor(connection)  # the connection may make its own kind of rows
        done = applied(cursor)
        todo = migrate.pending(known, done)
        if todo and settings.auto_migrate is False:
            _refuse(where, known, done)
        if todo and done and path is not None:
            with closing(open_writer(path, settings)) as other:
                _back_up(other, path)
        for statement in (statement for step in todo for statement in migrate.statements_of(step, NAMING)):
            cursor.execute(statement)
    closed = None if settings.closed_too else drive(closure(), SqliteDriver(connection, STATEMENTS))
    if closed is not None:
        raise closed.refusal(str(where))


def _refuse(path: Path, known: Sequence[Migration], done: Sequence[Applied]) -> None:
    """Refuse a file that would have to be made or upgraded, if that is not allowed."""
    if not done:
        raise missing(path, "has no Perdure tables")
    if migrate.pending(known, done):
        raise _older(path, done, known, "auto_migrate is off")


def missing(path: Path, how: str) -> SchemaError:
    return SchemaError(
        f"{path} {how}, and auto_migrate is off; run perdure db upgrade once, or leave auto_migrate=False out",
        code="schema_missing",
    )


def require_current(path: Path, settings: StoreSettings) -> None:
    """Refuse a file that would have to be made or upgraded before it can be used."""
    require_file(path)
    with translated(path), closing(open_reader(path, settings)) as connection:
        require_newest(connection, path, migrate.migrations_of("sqlite"))


def require_newest(connection: sqlite3.Connection, path: Path, known: Sequence[Migration]) -> None:
    """Refuse a file that is not at the newest schema."""
    done = applied(connection)
    if not done:
        raise SchemaError(
            f"{path} has no Perdure tables; give the path of a Perdure database, or run perdure db upgrade to make it"
            " one",
            code="schema_missing",
        )
    if migrate.pending(known, done):
        raise _older(path, done, known, "this command does not upgrade it")


def _older(path: Path, done: Sequence[Applied], known: Sequence[Migration], why: str) -> SchemaError:
    todo = migrate.steps_in_words(migrate.pending(known, done))
    return SchemaError(
        f"{path} is at schema revision {done[-1].revision}, this version of Perdure needs {known[-1].revision}"
        f" (still to do: {todo}), and {why}; run perdure db upgrade first",
        code="schema_older",
    )


def applied(connection: sqlite3.Connection | sqlite3.Cursor) -> list[Applied]:
    """The steps that the file has recorded. Empty: it is not ours yet."""
    found = connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (VERSIONS,)).fetchone()
    if found is None:
        return []
    return migrate.applied(connection.execute(migrate.recorded_in(NAMING)).fetchall())


def _back_up(connection: sqlite3.Connection, path: Path) -> Path:
    target = path.with_name(f"{path.name}.backup-{time.time_ns() // 1_000_000}")
    back_up(connection, target)
    return target


# -- the condition of a file -------------------------------------------------------------------------------------------


class Checkup(NamedTuple):
    """The condition of a file. `revision` 0: no Perdure tables. `schema_fault`: why this version cannot use it.
    `objects`: whether all its tables, indexes and views are there."""

    path: Path
    size: int
    mode: int
    filesystem: str | None
    over_network: bool
    revision: int
    newest: int
    schema_fault: str | None
    objects: Fact | None
    faults: tuple[str, ...]
    journal_mode: str
    synchronous: str
    wal_frames: int
    wal_bytes: int
    sqlite_version: str
    wal_guarded: bool


def require_file(path: Path) -> None:
    """Refuse a path where there is no file, so that a check never creates one."""
    if path.is_dir():
        raise DatabaseUnavailable(f"{path} is a folder; give the path of the database file in it", code="database_path")
    if not path.exists():
        raise DatabaseUnavailable(
            f"there is no database at {path}; check the path, or make one with perdure db upgrade",
            code="database_missing",
        )


def examine(path: Path, settings: StoreSettings) -> Checkup:
    """Check the file through a connection with Perdure's settings that cannot write."""
    require_file(path)
    with translated(path), closing(open_reader(path, settings)) as connection:
        return _examine(connection, path)


def _examine(connection: sqlite3.Connection, path: Path) -> Checkup:
    done = applied(connection)  # the first look; it also opens the -wal
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
        revision=done[-1].revision if done else 0,
        newest=migrate.migrations_of("sqlite")[-1].revision,
        schema_fault=_schema_fault(connection, path),
        objects=_objects(connection, done),
        faults=_faults(connection),
        journal_mode=str(journal_mode),
        synchronous=_SYNCHRONOUS.get(synchronous, str(synchronous)),
        wal_frames=wal_frames,
        wal_bytes=wal_bytes,
        sqlite_version=sqlite3.sqlite_version,
        wal_guarded=guarded(),
    )


def _schema_fault(connection: sqlite3.Connection, path: Path) -> str | None:
    try:
        require_newest(connection, path, migrate.migrations_of("sqlite"))
    except SchemaError as error:
        return error.message
    return None


def _objects(connection: sqlite3.Connection, done: Sequence[Applied]) -> Fact | None:
    if not done:
        return None
    found = {(str(sort), str(name)) for sort, name in connection.execute("SELECT type, name FROM sqlite_master")}
    return migrate.objects_fact(migrate.migrations_of("sqlite"), done, NAMING, found)


def _faults(connection: sqlite3.Connection) -> tuple[str, ...]:
    """What `quick_check` reports. Empty: nothing."""
    try:
        said = tuple(str(line) for (line,) in connection.execute(f"PRAGMA quick_check({_FAULTS})"))
    except sqlite3.DatabaseError as error:  # so damaged that even the check fails
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


def facts(found: Checkup) -> list[Fact]:
    """The same for people, with verdicts."""
    return [
        Fact("file", f"{found.path} ({size(found.size)})"),
        _schema_fact(found),
        *([found.objects] if found.objects else []),
        Fact("integrity", "ok")
        if not found.faults
        else Fact("integrity", "; ".join(found.faults), Verdict.PROBLEM, "keep the files, and restore a backup"),
        Fact("journal_mode", found.journal_mode)
        if found.journal_mode == "wal"
        else Fact("journal_mode", found.journal_mode, Verdict.WARNING, "Perdure sets wal when it opens the file"),
        Fact("synchronous", found.synchronous)
        if found.synchronous == "FULL"
        else Fact("synchronous", found.synchronous, Verdict.WARNING, "a power cut can lose the newest jobs"),
        _wal_fact(found),
        Fact("sqlite", found.sqlite_version),
        Fact("wal_reset_guard", "active", note=GUARD_LIMIT)
        if found.wal_guarded
        else Fact("wal_reset_guard", "not needed: this SQLite has the bug repaired"),
        _mode_fact(found),
        _filesystem_fact(found),
    ]


def _schema_fact(found: Checkup) -> Fact:
    value = f"revision {found.revision}, the newest is {found.newest}" if found.revision else "no Perdure tables"
    if found.schema_fault is None:
        return Fact("schema", value)
    return Fact("schema", value, Verdict.PROBLEM, found.schema_fault)


def _wal_fact(found: Checkup) -> Fact:
    value = f"{found.wal_frames} frames to copy back, {size(found.wal_bytes)}"
    if found.wal_frames <= LONG_WAL_FRAMES:
        return Fact("wal", value)
    advice = "someone reads for very long, or writes without Perdure; find and end the long transaction"
    return Fact("wal", value, Verdict.WARNING, advice)


def _mode_fact(found: Checkup) -> Fact:
    if found.mode & 0o077 == 0:
        return Fact("file_mode", f"{found.mode:04o}")
    advice = f"others may read or write jobs and their secrets; chmod 600 {found.path}"
    return Fact("file_mode", f"{found.mode:04o}", Verdict.WARNING, advice)


def _filesystem_fact(found: Checkup) -> Fact:
    value = found.filesystem or "unknown"
    if not found.over_network:
        return Fact("filesystem", value)
    advice = "SQLite can lose or corrupt jobs over a network; move the file to a local disk"
    return Fact("filesystem", value, Verdict.PROBLEM, advice)
