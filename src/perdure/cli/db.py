"""`perdure db …`: the database as a whole. Asks the store and `ops/database`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perdure.cli.commands import Command, Commands
from perdure.cli.render import Json, one_line, print_json, print_table, visible
from perdure.cli.target import App, Url, database

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
    dialect: Annotated[str, typer.Option(metavar="NAME", help="sqlite or postgres")] = "sqlite",
    statements: Annotated[bool, typer.Option("--statements", help="Also the statements Perdure runs.")] = False,
) -> None:
    """Print the SQL that makes a Perdure database. Piped into an empty one, it is ready for use."""
    from perdure.ops.database import schema_sql, statements_sql

    for statement in schema_sql(dialect):
        print(f"{statement};\n")
    if statements:
        for name, text in statements_sql(dialect):
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
