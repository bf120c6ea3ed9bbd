"""`perdure kinds` and `perdure check`: what an app declares, and whether it can run the stored jobs. Asks `ops`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.discovery import no_app
from perdure.cli.render import Json, print_json, print_table
from perdure.cli.target import App, AppArgument, Url, app_name, existing_database, named_app
from perdure.errors import ConfigError, PerdureError, StoreError
from perdure.text import counted, span

if TYPE_CHECKING:
    from perdure.app import Perdure
    from perdure.ops.status import Unrunnable
    from perdure.store.rows import StoredKind

CodeOnly = Annotated[bool, typer.Option("--code-only", help="Look at the code alone, not at the stored jobs.")]


def kinds(*, url: Url = None, app: App = None, json: Json = False) -> None:
    """List the kinds of an app, and of the jobs stored.

    Of the jobs, those that have not ended.
    """
    from perdure.ops.forms import kind_json, stored_kind_json

    found = named_app(url, app)
    stored = _stored(url, app, needed=found is None)
    declared = [] if found is None else sorted(found.kinds, key=lambda kind: kind.name)
    known = set[str]() if found is None else set(found.kinds.versions())
    rows = [kind_json(kind, stored) for kind in declared]
    rows += [
        stored_kind_json(kind, declared=None if found is None else False) for kind in stored if kind.name not in known
    ]
    if json:
        print_json(rows)
    elif not rows:
        print("No kinds: no job waits here, and no app with kinds was named.")
    else:
        columns = ("kind", "version", "live", "queue", "retry", "timeout", "isolation", "place")
        print_table(
            columns,
            [_row(row) for row in rows],
            keep=("version", "live", "retry", "timeout", "isolation"),
            drop=("isolation", "timeout", "retry", "version", "place", "queue"),
        )


def _stored(url: str | None, app: str | None, *, needed: bool) -> list[StoredKind]:
    """The kinds in the database. An app may be looked at before it has one."""
    try:
        with existing_database(url, app) as store:
            return store.live_kinds()
    except (ConfigError, StoreError):
        if needed:
            raise
        return []


def _row(kind: dict[str, Any]) -> tuple[str, ...]:
    retry, timeout = kind["max_attempts"], kind["timeout_s"]
    return (
        kind["name"],
        str(kind["version"]),
        str(kind["live"]),
        kind["queue"] or "-",
        "-" if retry is None else str(retry),
        "-" if timeout is None else span(timeout),
        kind["isolation"] or "-",
        _short(kind["place"]) or ("not in this app" if kind["declared"] is False else "-"),
    )


def _short(place: str | None) -> str | None:
    """Relative to the working directory, if it is below."""
    if place is None:
        return None
    try:
        return str(Path(place).relative_to(Path.cwd()))
    except ValueError:
        return place


def check(
    target: AppArgument = None, *, code_only: CodeOnly = False, url: Url = None, app: App = None, json: Json = False
) -> None:
    """Check that an app can run the jobs that are stored.

    For CI, before it is deployed. Imports the app and its imports=, and looks at every kind's signature. Stored jobs
    whose kind is gone, or that were written by newer code, are problems. Exits with 1 if there is one. Without a
    database only the code is checked.
    """
    perdure = named_app(url, app_name(target, app))
    if perdure is None:
        raise no_app("check needs the app to check; give MODULE:APP or --app")
    try:
        problems = _of_kinds(perdure)
        looked = not code_only and _has_database(perdure)
        problems += _of_jobs(perdure) if looked else ()
    finally:
        perdure.close()
    if json:
        found = [problem._asdict() for problem in problems]
        kinds = sorted(kind.name for kind in perdure.kinds)
        print_json({"sound": not problems, "kinds": kinds, "database_checked": looked, "problems": found})
    else:
        _print_check(problems, len(list(perdure.kinds)), looked=looked, code_only=code_only)
    raise typer.Exit(1 if problems else 0)


def _of_kinds(perdure: Perdure) -> list[Unrunnable]:
    """Kinds that would be refused when they are first used."""
    from perdure.ops.status import Unrunnable
    from perdure.worker.executors.wire import path_of_kind

    problems: list[Unrunnable] = []
    for kind in perdure.kinds:
        try:
            _ = kind.codec
            if kind.isolation == "process":
                path_of_kind(kind)
        except PerdureError as error:
            problems.append(Unrunnable(kind.name, 0, str(error)))
    return problems


def _of_jobs(perdure: Perdure) -> Iterator[Unrunnable]:
    """Stored jobs this code cannot run."""
    from perdure.ops.status import orphans

    perdure.store.require_current()
    return orphans(perdure.store.live_kinds(), perdure.kinds.versions())


def _has_database(perdure: Perdure) -> bool:
    from perdure.store.open import is_sqlite, sqlite_path

    try:
        url = perdure.url
    except ConfigError:
        return False
    return not is_sqlite(url) or sqlite_path(url).exists()


def _print_check(problems: list[Unrunnable], kinds: int, *, looked: bool, code_only: bool) -> None:
    without = (
        "" if looked else " Only the code was checked." if code_only else " No database yet: only the code was checked."
    )
    if not problems:
        print(f"Fine: {counted(kinds, 'kind')}{', every stored job has its code' if looked else ''}.{without}")
        return
    rows = [(each.kind, str(each.live) if each.live else "-", each.problem) for each in problems]
    print_table(("kind", "jobs", "problem"), rows, keep=("jobs",))
    print(f"{counted(len(problems), 'problem')} in {counted(kinds, 'kind')}.{without}")
