"""`perdure db …`: the database as a whole. Asks the store."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.commands import Command, Commands
from perdure.cli.render import Json, one_line, print_json, print_table, visible
from perdure.cli.target import App, Url, database, database_options, existing_database
from perdure.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from perdure.ops.copying import Progress, Side, Tell
    from perdure.store.migrate import Migration
    from perdure.store.protocols import Store

DIALECTS = ("sqlite", "postgres", "mysql")


class Server(StrEnum):
    """A database with users."""

    POSTGRES = "postgres"
    MYSQL = "mysql"


class Purpose(StrEnum):
    """What a user of the database does."""

    READ = "read"
    ENQUEUE = "enqueue"
    WORK = "work"


db = typer.Typer(
    cls=Commands,
    help="Create, upgrade, check, show, back up and move the database.",
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
    after: Annotated[
        int, typer.Option("--after", min=0, metavar="REVISION", help="Only the steps after this schema revision.")
    ] = 0,
    url: Annotated[
        str | None, typer.Option("--url", metavar="URL", help="Only what this database still lacks, in its dialect.")
    ] = None,
    statements: Annotated[bool, typer.Option("--statements", help="Also the statements Perdure runs.")] = False,
) -> None:
    """Print the SQL that makes a Perdure database, for people who apply it themselves: Perdure recognises it.

    Piped into an empty database (psql, sqlite3 -bail) it is ready for use; with --after or --url, an older one is
    upgraded. Nothing is changed by this command.
    """
    if url is None:
        steps = [step for step in _steps(dialect) if step.revision > after]
    else:
        dialect, steps = _lacking(url)
    _print_script(dialect, steps)
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


@db.command(cls=Command)
def copy(
    source: Annotated[str, typer.Option("--from", metavar="URL", help="The database to move the queue from.")],
    target: Annotated[str, typer.Option("--to", metavar="URL", help="An empty database; an SQLite file is made.")],
    despite_workers: Annotated[
        bool, typer.Option("--despite-workers", help="Even if workers live on the source: their jobs will run twice.")
    ] = False,
    json: Json = False,
) -> None:
    """Move a queue to another database: jobs with their history, keys, queues, schedules, templates, archive.

    Stop all workers and all that enqueues first. From the beginning on the source is closed: whoever opens it can read,
    but not write; it stays so in the end (see perdure db reopen). The copy is verified by counts and by the doctor, and
    then opened. Killed or failed anywhere: give the same command again, it begins anew.
    """
    from perdure.ops.copying import copy as move

    with _side(source, new=False) as moved, _side(target, new=True) as made, _progress() as tell:
        try:
            counts = move(moved, made, tell, despite_workers=despite_workers)
        except StoreError:
            _tell_if_closed(moved, source)
            raise
    if json:
        print_json({"from": moved.name, "to": made.name, "rows": counts})
        return
    if not counts:
        print(visible(f"nothing to do: {moved.name} has been moved to {made.name}"))
        return
    print_table(("table", "rows"), [(name, f"{count:,}") for name, count in counts.items() if count], keep=("table",))
    print(visible(f"\nMoved to {made.name}, and verified. Start apps and workers with that URL."))
    print(visible(f"{moved.name} is closed and paused: keep it until you trust the new one, then delete it."))


@db.command(cls=Command)
def reopen(url: Url = None, app: App = None) -> None:
    """Use a database again that was closed by perdure db copy, because the move was given up."""
    from perdure.ops.copying import reopen as open_again

    with database(url, app, closed_too=True) as store:
        store.require_current()
        closed = open_again(_sql_side(store, url or "the database"))
    if closed is None:
        print("nothing to do: it is open")
    else:
        print(visible(f"open again. Do not use {closed.other} as well: the same jobs would run twice."))


@db.command(cls=Command)
def grants(
    role: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="The user of the database that is to get the rights; with MariaDB also user@host."
        ),
    ],
    purpose: Annotated[Purpose, typer.Option("--for", help="What it is to do.")],
    dialect: Annotated[Server, typer.Option(help="Which server it is; mysql: MariaDB too.")] = Server.POSTGRES,
) -> None:
    """Print the SQL that lets a user of a database server read, enqueue (and read), or work (and do both).

    The owner of the tables runs it in their database, once, and again after an upgrade that adds tables. Only the owner
    can upgrade.
    """
    from perdure.store.grants import on_mysql, on_postgres

    statements = on_postgres if dialect is Server.POSTGRES else on_mysql
    for statement in statements(role, purpose.value):
        print(f"{statement};")


@contextmanager
def _side(url: str, *, new: bool) -> Generator[Side, None, None]:
    """A database for `copy`, which has to be there and at the newest schema; a new SQLite file is made."""
    from perdure.store.open import is_sqlite, open_store, sqlite_path, without_password
    from perdure.store.protocols import StoreSettings

    name = str(sqlite_path(url)) if is_sqlite(url) else without_password(url)
    store = open_store(url, StoreSettings(closed_too=True))
    try:
        if new and is_sqlite(url) and not sqlite_path(url).exists():
            store.upgrade()
        store.require_current()
        yield _sql_side(store, name)
    finally:
        store.close()


def _tell_if_closed(moved: Side, url: str) -> None:
    """Who has to decide at night what to do next should not have to look for it."""
    with suppress(StoreError):
        if moved.store.closure() is not None:
            way_back = f"perdure db reopen{database_options(url, None)}"
            print(
                visible(f"{moved.name} is closed. To go on with it and give up the move: {way_back}"), file=sys.stderr
            )


def _sql_side(store: Store, name: str) -> Side:
    from perdure.ops.copying import Side
    from perdure.store.store import SqlStore

    if not isinstance(store, SqlStore):
        raise ConfigError(
            f"{name} is opened by {type(store).__name__}; only databases of Perdure itself can be copied",
            code="store_unsupported",
        )
    return Side(store, name)


@contextmanager
def _progress() -> Generator[Tell, None, None]:
    """Tells on standard error how far it is: a line that changes at a terminal, else one per table."""
    from perdure.ops.copying import Progress

    at_terminal = sys.stderr.isatty()
    last = Progress("", 0, 0)

    def tell(now: Progress) -> None:
        nonlocal last
        last = now
        if at_terminal:
            print(f"\r\x1b[K{_so_far(now)}", end="", file=sys.stderr, flush=True)
        elif now.done == now.of:
            print(_so_far(now), file=sys.stderr, flush=True)

    try:
        yield tell
    finally:
        if at_terminal and last.of:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _so_far(now: Progress) -> str:
    return f"{now.table}: {now.done:,} of {now.of:,} rows"


def _steps(dialect: str) -> list[Migration]:
    from perdure.store.migrate import migrations_of

    _names(dialect)
    return migrations_of(dialect)


def _lacking(url: str) -> tuple[str, list[Migration]]:
    """The dialect of a database, and the steps that it still lacks."""
    from perdure.store.migrate import pending
    from perdure.store.open import dialect_of, open_store, without_password

    dialect = dialect_of(url)
    if dialect is None:
        raise ConfigError(f"{without_password(url)} is not a database Perdure has SQL for", code="dialect_unknown")
    store = _sql_side(open_store(url), url).store
    try:
        return dialect, pending(_steps(dialect), store.applied())
    finally:
        store.close()


def _print_script(dialect: str, steps: Sequence[Migration]) -> None:
    """The statements of these steps and those that record them, as one transaction."""
    from perdure.store.migrate import statements_of

    names = _names(dialect)
    if not steps:
        print("-- nothing to do: there are no such steps")
        return
    begin, end = names.AROUND
    made = [statement for step in steps for statement in statements_of(step, names.NAMING)]
    for statement in (begin, *made, end):
        print(f"{statement};\n")


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
