"""`perdure check`: whether this code can run the jobs that are stored. For CI. Asks `app` and `ops/status`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from perdure.cli.instead import of_nothing
from perdure.cli.show import Json, plural, print_json
from perdure.cli.tables import print_table
from perdure.cli.target import App, Url, named_app
from perdure.errors import ConfigError, PerdureError

if TYPE_CHECKING:
    from perdure.app import Perdure

Target = Annotated[
    str | None, typer.Argument(metavar="MODULE:APP", help="The app, such as shop.jobs:app; else --app or PERDURE_APP.")
]
CodeOnly = Annotated[bool, typer.Option("--code-only", help="Look at the code alone, not at the stored jobs.")]


class Problem(NamedTuple):
    """One thing that would go wrong. `live`: how many stored jobs it keeps from running; 0 for the code itself."""

    kind: str
    live: int
    problem: str


def check(
    target: Target = None, *, code_only: CodeOnly = False, url: Url = None, app: App = None, json: Json = False
) -> None:
    """Check that an app can run the jobs that are stored.

    For CI, before it is deployed. Imports the app and its imports=, and looks at every kind's signature. Stored jobs
    whose kind is gone, or that were written by newer code, are problems. Exits with 1 if there is one. Without a
    database only the code is checked.
    """
    if target is not None and app is not None:
        raise typer.BadParameter("name the app once: as the argument, or with --app")
    door = named_app(url, target or app)
    if door is None:
        raise ConfigError(
            "check needs the app to check; give MODULE:APP or --app, set PERDURE_APP, or write app under"
            f" [tool.perdure] in pyproject.toml{of_nothing()}",
            code="app_not_found",
        )
    try:
        problems = _of_kinds(door)
        looked, gone = (False, list[Problem]()) if code_only else _of_jobs(door)
    finally:
        door.close()
    problems += gone
    if json:
        found = [problem._asdict() for problem in problems]
        kinds = sorted(kind.name for kind in door.kinds)
        print_json({"sound": not problems, "kinds": kinds, "database_checked": looked, "problems": found})
    else:
        _tell(problems, len(list(door.kinds)), looked=looked, code_only=code_only)
    raise typer.Exit(1 if problems else 0)


def _of_kinds(door: Perdure) -> list[Problem]:
    """Kinds that would be refused when they are first used."""
    from perdure.worker.executors.whereabouts import place_of_kind

    problems: list[Problem] = []
    for kind in door.kinds:
        try:
            _ = kind.codec
            if kind.isolation == "process":
                place_of_kind(kind)
        except PerdureError as error:
            problems.append(Problem(kind.name, 0, str(error)))
    return problems


def _of_jobs(door: Perdure) -> tuple[bool, list[Problem]]:
    """Stored jobs this code cannot run. False: there is no database yet."""
    from perdure.ops.database import require_current
    from perdure.ops.status import orphans, stored_kinds

    if not _has_database(door):
        return False, []
    require_current(door.store)
    found = orphans(stored_kinds(door.store), door.kinds.versions())
    return True, [Problem(each.kind.name, each.kind.live, each.reason) for each in found]


def _has_database(door: Perdure) -> bool:
    from perdure.store.open import is_sqlite, sqlite_path

    try:
        url = door.url
    except ConfigError:
        return False
    return not is_sqlite(url) or sqlite_path(url).exists()


def _tell(problems: list[Problem], kinds: int, *, looked: bool, code_only: bool) -> None:
    without = (
        "" if looked else " Only the code was checked." if code_only else " No database yet: only the code was checked."
    )
    if not problems:
        print(f"Fine: {plural(kinds, 'kind')}{', every stored job has its code' if looked else ''}.{without}")
        return
    rows = [(each.kind, str(each.live) if each.live else "-", each.problem) for each in problems]
    print_table(("kind", "jobs", "problem"), rows, keep=("jobs",))
    print(f"{plural(len(problems), 'problem')} in {plural(kinds, 'kind')}.{without}")
