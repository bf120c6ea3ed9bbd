"""The SQL that makes a database, and the statements Perdure runs on it. Called by `perdure db sql`."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from types import ModuleType

from perdure.errors import ConfigError
from perdure.store import migrate, statements
from perdure.store.migrate import Naming

DIALECTS = ("sqlite", "postgres")


def schema_sql(dialect: str) -> Iterator[str]:
    """The statements that make an empty database one that Perdure takes for its own, in order."""
    naming: Naming = _names(dialect).NAMING
    for step in migrate.migrations_of(dialect):
        yield from migrate.statements_of(step, naming)


def statements_sql(dialect: str) -> Iterator[tuple[str, str]]:
    """Every named statement as the database gets it, by name."""
    names = _names(dialect)
    for name, statement in sorted(statements.load(names.OWN, names.table, names.MARKER).items()):
        yield name, statement.sql


def _names(dialect: str) -> ModuleType:
    if dialect not in DIALECTS:
        raise ConfigError(
            f"{dialect!r} is not a database Perdure knows; --dialect is one of: {', '.join(DIALECTS)}",
            code="dialect_unknown",
        )
    return import_module(f"perdure.store.{dialect}.statements")
