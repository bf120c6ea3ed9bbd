"""`perdure db …`: the database as a whole. Asks the store."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.commands import Command, Commands
from perdure.cli.render import Json, one_line, print_json, print_table, visible
from perdure.cli.target import App, Url, database, existing_database
from perdure.errors import ConfigError

if TYPE_CHECKING:
    from perdure.store.migrate import Naming

DIALECTS = ("sqlite", "postgres", "mysql")

db = typer.Typer(
    cls=Commands,
    help="Create, upgrade, check, show and back up the database.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@db.command(cls=Command)
def upgrade(url: Url = None, app: App = None) -> None:
    """Create the database, or bring its schema to the newest revision. A repeat does nothing."""
    with database(url, app) as store:
        print(one_line(store.upgrade()))


@db.command(cls=Command)
def check(url: Url = None, app: App = None, json: Json = False) -> None:
    """Show the state of the database, without changing it. Exits with 1 if there is a problem."""
    from perdure.store.rows import Verdict

    with database(url, app) as store:
        facts = store.facts()
    sound = all(fact.verdict is not Verdict.PROBLEM for fact in facts)
    if json:
        print_json({"sound": sound, "facts": [fact._asdict() for fact in facts]})
    else:
        print_table(("what", "value", "verdict", "note"), facts, keep=("what", "verdict"))
    raise typer.Exit(0 if sound else 1)


@db.command(cls=Command)
def sql(
    dialect: Annotated[str, typer.Option(metavar="NAME", help="sqlite, postgres or mysql (MariaDB)")] = "sqlite",
    statements: Annotated[bool, typer.Option("--statements", help="Also the statements Perdure runs.")] = False,
) -> None:
    """Print the SQL that makes a Perdure database. Piped into an empty one, it is ready for use."""
    for statement in _schema_sql(dialect):
        print(f"{statement};\n")
    if statements:
        for name, text in _statements_sql(dialect):
            commented = "\n".join(f"-- {line}".rstrip() for line in text.splitlines())
            print(f"-- statement: {name}\n{commented}\n")


@db.command(cls=Command)
def backup(
    target: Annotated[Path, typer.Argument(metavar="FILE", help="The new file; an existing one is never overwritten.")],
    url: Url = None,
    app: App = None,
) -> None:
    """Copy an SQLite database to a new file, while jobs run. Only you may read the copy."""
    with database(url, app) as store:
        store.back_up(target)
    print(visible(f"Copied to {target} ({target.stat().st_size} bytes)."))


@db.command(cls=Command)
def vacuum(url: Url = None, app: App = None) -> None:
    """Write an SQLite file anew, without free space in it. Stop workers first: nobody can write meanwhile.

    Files made by this version give space back by themselves after pruning; older ones do so from then on.
    """
    with existing_database(url, app) as store:
        store.vacuum()
    print("done")


def _schema_sql(dialect: str) -> Iterator[str]:
    """The statements that make an empty database one that Perdure takes for its own, in order."""
    from perdure.store import migrate

    naming: Naming = _names(dialect).NAMING
    for step in migrate.migrations_of(dialect):
        yield from migrate.statements_of(step, naming)


def _statements_sql(dialect: str) -> Iterator[tuple[str, str]]:
    """Every named statement as the database gets it, by name."""
    from perdure.store.statements import load

    names = _names(dialect)
    own_words = [names.written] if dialect == "mysql" else []
    for name, statement in sorted(load(names.OWN, names.table, names.MARKER, *own_words).items()):
        yield name, statement.sql


def _names(dialect: str) -> ModuleType:
    if dialect not in DIALECTS:
        raise ConfigError(
            f"{dialect!r} is not a database Perdure knows; --dialect is one of: {', '.join(DIALECTS)}",
            code="dialect_unknown",
        )
    return import_module(f"perdure.store.{dialect}.statements")
