"""The database as a whole: is it there, is it sound, can it be copied, which SQL is it made of. Called by `perdure db`
and `perdure doctor`. What only a file can tell comes from its runner; a server has tools of its own."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, Protocol, cast, runtime_checkable

from perdure.clock import SystemClock
from perdure.errors import ConfigError
from perdure.ops.doctor import runner_of
from perdure.store import migrate, statements
from perdure.store.engine import Call, Op
from perdure.store.migrate import Migration, Naming
from perdure.store.protocols import Store
from perdure.store.sqlite.checkup import Checkup
from perdure.text import size
from perdure.version import __version__

LONG_WAL_FRAMES = 5_000
"""Ten times what Perdure lets a log grow to before it is copied back."""

GUARD_LIMIT = (
    "this SQLite can corrupt a file that several processes write (its WAL-reset bug). Perdure's own connections and"
    " those given as tx= checkpoint under a lock; a foreign connection with auto-checkpoint on does not: run PRAGMA"
    " wal_autocheckpoint=0 on it"
)


class Verdict(StrEnum):
    """What to think of a fact."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Fact(NamedTuple):
    """One thing that is known about the database; `note` says what to do, where there is something."""

    name: str
    value: str
    verdict: Verdict = Verdict.OK
    note: str = ""


@runtime_checkable
class FileDatabase(Protocol):
    """A runner whose database is one file."""

    @property
    def path(self) -> Path: ...

    def require_current(self) -> None: ...

    def checkup(self) -> Checkup: ...

    def back_up(self, target: Path) -> None: ...


def require_current(store: Store) -> None:
    """Refuse a database that using it would create or upgrade. Servers refuse by themselves on first use."""
    runner = runner_of(store)
    if isinstance(runner, FileDatabase):
        runner.require_current()


def check_database(store: Store) -> list[Fact]:
    """What is known about the database. Changes nothing: a missing file is an error, an old one stays old."""
    runner = runner_of(store)
    if isinstance(runner, FileDatabase):
        return _facts(runner.checkup())
    return [Fact("schema", f"revision {runner.read(_revision)}")]


def back_up(store: Store, target: Path) -> None:
    """Copy the database to a new file, readable by its owner only. Jobs may run meanwhile."""
    runner = runner_of(store)
    if not isinstance(runner, FileDatabase):
        raise ConfigError(
            "perdure db backup copies SQLite files; back up a server with its own tool (PostgreSQL: pg_dump)",
            code="backup_unsupported",
        )
    runner.back_up(target)


def _revision() -> Op[int]:
    rows = (yield Call("read_revision")).rows
    return cast("int | None", rows[0][0]) or 0


def _facts(found: Checkup) -> list[Fact]:
    return [
        Fact("file", f"{found.path} ({size(found.size)})"),
        _schema(found),
        Fact("integrity", "ok")
        if not found.faults
        else Fact("integrity", "; ".join(found.faults), Verdict.PROBLEM, "keep the files, and restore a backup"),
        Fact("journal_mode", found.journal_mode)
        if found.journal_mode == "wal"
        else Fact("journal_mode", found.journal_mode, Verdict.WARNING, "Perdure sets wal when it opens the file"),
        Fact("synchronous", found.synchronous)
        if found.synchronous == "FULL"
        else Fact("synchronous", found.synchronous, Verdict.WARNING, "a power cut can lose the newest jobs"),
        _wal(found),
        Fact("sqlite", found.sqlite_version),
        Fact("wal_reset_guard", "active", note=GUARD_LIMIT)
        if found.wal_guarded
        else Fact("wal_reset_guard", "not needed: this SQLite has the bug repaired"),
        _mode(found),
        _filesystem(found),
    ]


def _schema(found: Checkup) -> Fact:
    value = f"revision {found.revision}, the newest is {found.newest}" if found.revision else "no Perdure tables"
    if found.schema_fault is None:
        return Fact("schema", value)
    return Fact("schema", value, Verdict.PROBLEM, found.schema_fault)


def _wal(found: Checkup) -> Fact:
    value = f"{found.wal_frames} frames to copy back, {size(found.wal_bytes)}"
    if found.wal_frames <= LONG_WAL_FRAMES:
        return Fact("wal", value)
    advice = "someone reads for very long, or writes without Perdure; find and end the long transaction"
    return Fact("wal", value, Verdict.WARNING, advice)


def _mode(found: Checkup) -> Fact:
    if found.mode & 0o077 == 0:
        return Fact("file_mode", f"{found.mode:04o}")
    advice = f"others may read or write jobs and their secrets; chmod 600 {found.path}"
    return Fact("file_mode", f"{found.mode:04o}", Verdict.WARNING, advice)


def _filesystem(found: Checkup) -> Fact:
    value = found.filesystem or "unknown"
    if not found.over_network:
        return Fact("filesystem", value)
    advice = "SQLite can lose or corrupt jobs over a network; move the file to a local disk"
    return Fact("filesystem", value, Verdict.PROBLEM, advice)


DIALECTS = ("sqlite", "postgres")


def schema_sql(dialect: str) -> Iterator[str]:
    """The statements that make an empty database one that Perdure takes for its own, in order."""
    naming: Naming = _names(dialect).NAMING
    for step in migrate.migrations_of(dialect):
        yield from migrate.script(step.text, naming)
        yield _recorded(step, naming)


def statements_sql(dialect: str) -> Iterator[tuple[str, str]]:
    """Every named statement as the database gets it, by name."""
    names = _names(dialect)
    own = (files(f"perdure.store.{dialect}") / "statements.sql").read_text("utf-8")
    for name, statement in sorted(statements.load(own, names.table, names.marker).items()):
        yield name, statement.sql


def _names(dialect: str) -> ModuleType:
    if dialect not in DIALECTS:
        raise ConfigError(
            f"{dialect!r} is not a database Perdure knows; --dialect is one of: {', '.join(DIALECTS)}",
            code="dialect_unknown",
        )
    return import_module(f"perdure.store.{dialect}.statements")


def _recorded(step: Migration, naming: Naming) -> str:
    row = (step.revision, step.name, step.checksum, SystemClock().now(), __version__)
    values = ", ".join(str(value) if isinstance(value, int) else f"'{value}'" for value in row)
    columns = "revision, name, checksum, applied_at, perdure_version"
    return f"INSERT INTO {naming.table('schema_version')} ({columns})\nVALUES ({values})"
