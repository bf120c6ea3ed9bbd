"""The SQL Perdure runs, for people who want to read it or apply it by hand. Called by `perdure db sql`."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from importlib.resources import files
from types import ModuleType

from perdure.clock import SystemClock
from perdure.errors import ConfigError
from perdure.store.sql import migrate, statements
from perdure.store.sql.migrate import Migration, Naming
from perdure.version import __version__

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
    own = (files(f"perdure.store.sql.dialects.{dialect}") / "statements.sql").read_text("utf-8")
    for name, statement in sorted(statements.load(own, names.table, names.marker).items()):
        yield name, statement.sql


def _names(dialect: str) -> ModuleType:
    if dialect not in DIALECTS:
        raise ConfigError(
            f"{dialect!r} is not a database Perdure knows; --dialect is one of: {', '.join(DIALECTS)}",
            code="dialect_unknown",
        )
    return import_module(f"perdure.store.sql.dialects.{dialect}.naming")


def _recorded(step: Migration, naming: Naming) -> str:
    row = (step.revision, step.name, step.checksum, SystemClock().now(), __version__)
    values = ", ".join(str(value) if isinstance(value, int) else f"'{value}'" for value in row)
    columns = "revision, name, checksum, applied_at, perdure_version"
    return f"INSERT INTO {naming.table('schema_version')} ({columns})\nVALUES ({values})"
