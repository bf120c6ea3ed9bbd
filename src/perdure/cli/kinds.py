"""`perdure kinds` and `perdure check`: what an app declares, and whether it can run the stored jobs. Asks `ops`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from perdure.cli.discovery import hint_without_app
from perdure.cli.render import Json, plural, print_json, print_table
from perdure.cli.target import App, AppArgument, Url, existing_database, named_app, once
from perdure.clock import span
from perdure.errors import ConfigError, PerdureError, StoreError

if TYPE_CHECKING:
    from perdure.app import Perdure
    from perdure.kind import Kind
    from perdure.ops.kinds import StoredKind


def kinds(*, url: Url = None, app: App = None, json: Json = False) -> None:
    """List the kinds of an app, and of the jobs stored.

    Of the jobs, those that have not ended.
    """
    found = named_app(url, app)
    stored = _stored(url, app, needed=found is None)
    rows = (
        [] if found is None else [_declared(kind, stored) for kind in sorted(found.kinds, key=lambda kind: kind.name)]
    )
    known = set[str]() if found is None else set(found.kinds.versions())
    rows += [_undeclared(kind, by_app=found is not None) for kind in stored if kind.name not in known]
    if json:
        print_json(rows)
    elif not rows:
        print("No kinds: no job waits here, and no app was named that declares any.")
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
    from perdure.ops.kinds import stored_kinds

    try:
        with existing_database(url, app) as store:
            return stored_kinds(store)
    except (ConfigError, StoreError):
        if needed:
            raise
        return []


def _declared(kind: Kind[..., Any, ..., Any], stored: list[StoredKind]) -> dict[str, object]:
    names = kind.names
    timeout = kind.defaults.timeout_ms
    return {
        "name": kind.name,
        "aliases": list(kind.aliases),
        "version": kind.version,
        "queue": kind.defaults.queue,
        "max_attempts": kind.defaults.policy.max_attempts,
        "timeout_s": None if timeout is None else timeout / 1000,
        "isolation": _isolation(kind),
        "place": kind.place,
        "declared": True,
        "live": sum(known.live for known in stored if known.name in names),
    }


def _undeclared(kind: StoredKind, *, by_app: bool) -> dict[str, object]:
    return {
        "name": kind.name,
        "aliases": [],
        "version": kind.version,
        "queue": None,
        "max_attempts": None,
        "timeout_s": None,
        "isolation": None,
        "place": None,
        "declared": False if by_app else None,
        "live": kind.live,
    }


def _isolation(kind: Kind[..., Any, ..., Any]) -> str:
    if kind.isolation is not None:
        return kind.isolation
    return "loop" if kind.is_async else "thread"


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
    """The path from here, where it is below."""
    if place is None:
        return None
    try:
        return str(Path(place).relative_to(Path.cwd()))
    except ValueError:
        return place


CodeOnly = Annotated[bool, typer.Option("--code-only", help="Look at the code alone, not at the stored jobs.")]


class Problem(NamedTuple):
    """One thing that would go wrong. `live`: how many stored jobs it keeps from running; 0 for the code itself."""

    kind: str
    live: int
    problem: str


def check(
    target: AppArgument = None, *, code_only: CodeOnly = False, url: Url = None, app: App = None, json: Json = False
) -> None:
    """Check that an app can run the jobs that are stored.

    For CI, before it is deployed. Imports the app and its imports=, and looks at every kind's signature. Stored jobs
    whose kind is gone, or that were written by newer code, are problems. Exits with 1 if there is one. Without a
    database only the code is checked.
    """
    perdure = named_app(url, once(target, app))
    if perdure is None:
        raise ConfigError(
            "check needs the app to check; give MODULE:APP or --app, set PERDURE_APP, or write app under"
            f" [tool.perdure] in pyproject.toml{hint_without_app()}",
            code="app_not_found",
        )
    try:
        problems = _of_kinds(perdure)
        looked, gone = (False, list[Problem]()) if code_only else _of_jobs(perdure)
    finally:
        perdure.close()
    problems += gone
    if json:
        found = [problem._asdict() for problem in problems]
        kinds = sorted(kind.name for kind in perdure.kinds)
        print_json({"sound": not problems, "kinds": kinds, "database_checked": looked, "problems": found})
    else:
        _print_check(problems, len(list(perdure.kinds)), looked=looked, code_only=code_only)
    raise typer.Exit(1 if problems else 0)


def _of_kinds(perdure: Perdure) -> list[Problem]:
    """Kinds that would be refused when they are first used."""
    from perdure.worker.executors.whereabouts import place_of_kind

    problems: list[Problem] = []
    for kind in perdure.kinds:
        try:
            _ = kind.codec
            if kind.isolation == "process":
                place_of_kind(kind)
        except PerdureError as error:
            problems.append(Problem(kind.name, 0, str(error)))
    return problems


def _of_jobs(perdure: Perdure) -> tuple[bool, list[Problem]]:
    """Stored jobs this code cannot run. False: there is no database yet."""
    from perdure.ops.database_check import require_current
    from perdure.ops.kinds import orphans, stored_kinds

    if not _has_database(perdure):
        return False, []
    require_current(perdure.store)
    found = orphans(stored_kinds(perdure.store), perdure.kinds.versions())
    return True, [Problem(each.kind.name, each.kind.live, each.reason) for each in found]


def _has_database(perdure: Perdure) -> bool:
    from perdure.store.open import is_sqlite, sqlite_path

    try:
        url = perdure.url
    except ConfigError:
        return False
    return not is_sqlite(url) or sqlite_path(url).exists()


def _print_check(problems: list[Problem], kinds: int, *, looked: bool, code_only: bool) -> None:
    without = (
        "" if looked else " Only the code was checked." if code_only else " No database yet: only the code was checked."
    )
    if not problems:
        print(f"Fine: {plural(kinds, 'kind')}{', every stored job has its code' if looked else ''}.{without}")
        return
    rows = [(each.kind, str(each.live) if each.live else "-", each.problem) for each in problems]
    print_table(("kind", "jobs", "problem"), rows, keep=("jobs",))
    print(f"{plural(len(problems), 'problem')} in {plural(kinds, 'kind')}.{without}")
