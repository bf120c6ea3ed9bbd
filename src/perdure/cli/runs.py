"""`perdure runs`: the record of attempts. Asks `app`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.choosing import Follow, Kind, Limit, Owner, chosen
from perdure.cli.jobs import LISTED, listed
from perdure.cli.missing import none_like_that
from perdure.cli.show import Json, ago, first_line, moment, print_json
from perdure.cli.tables import id_text, print_table
from perdure.cli.target import App, Url, find_job, front_door
from perdure.text import measured

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from perdure.job.views import Run

OfJob = Annotated[
    str | None, typer.Argument(metavar="ID", help="Only of this job: its id, or the last 4 or more characters of it.")
]
RunState = Annotated[
    str | None, typer.Option("--state", "-s", metavar="STATE", help="Running, or closed as completed, failed, lost, …")
]
Since = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Started at or after it: 10m, 2h or 3d ago, or 2026-01-31T12:00Z."),
]
Until = Annotated[
    str | None, typer.Option("--until", metavar="TIME", help="Started before it; written as for --since.")
]


def runs(
    id: OfJob = None,
    *,
    state: RunState = None,
    kind: Kind = None,
    owner: Owner = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = None,
    follow: Follow = False,
    url: Url = None,
    app: App = None,
    json: Json = False,
) -> None:
    """List attempts, of all jobs or of one, the newest first.

    Those that fit all filters, 20 of them, or as many as --limit says.
    """
    from perdure.cli.plain import plain_run

    filters = chosen(of_runs=True, state=state, kind=kind, owner=owner, since=since, until=until)
    with front_door(url, app) as door:
        of = None if id is None else find_job(door, id)
        if follow:
            with suppress(KeyboardInterrupt):  # that is how a live view ends
                _follow(lambda: door.runs(of, **filters), limit or LISTED, json=json)
            return
        found, more = listed(door.runs(of, **filters), limit)
        what = "No runs" if filters else "No runs of this job yet" if of else "No runs yet"
        none = "" if found or json else none_like_that(door, what, filters)
    if json:
        print_json([plain_run(run) for run in found])
    elif not found:
        print(none)
    else:
        print_runs(found, of_one=of is not None)
        if more:
            print(f"The newest {len(found)}; --limit N shows more.")


def print_runs(found: Sequence[Run], *, of_one: bool) -> None:
    """A table of runs; those of one job need not name it."""
    columns = ["job", "kind", "attempt", "state", "started", "took", "error"]
    rows = [
        [id_text(run.job_id), run.kind, str(run.attempt), run.state.value, ago(run.started_at), took(run), error(run)]
        for run in found
    ]
    first, last = 2 if of_one else 0, len(columns) if any(row[-1] for row in rows) else len(columns) - 1
    print_table(
        columns[first:last],
        [row[first:last] for row in rows],
        keep=("job", "attempt", "state", "started", "took"),
        clip=("error",),
        drop=("took", "started", "error") if of_one else ("attempt", "took", "started", "error"),
    )


def took(run: Run) -> str:
    return "-" if run.duration_ms is None else measured(run.duration_ms)


def error(run: Run) -> str:
    if run.unreadable:
        return f"unreadable: {', '.join(run.unreadable)}"
    return ": ".join(part for part in (run.error_type, first_line(run.error_message)) if part)


def _follow(read: Callable[[], Iterator[Run]], first: int, *, json: bool) -> None:
    from perdure.cli.following import news
    from perdure.cli.plain import plain_run
    from perdure.cli.show import print_json_line
    from perdure.cli.tables import print_line

    for run in news(read, lambda run: (run.id, run.state), first):
        if json:
            print_json_line(plain_run(run))
        else:
            at = (moment(run.finished_at or run.started_at) or "")[11:19]
            told = error(run) or (f"took {took(run)}" if run.duration_ms is not None else "")
            print_line(
                [(at, 8), (id_text(run.job_id), 8), (run.kind, 18), (str(run.attempt), 2), (run.state, 9), (told, 0)],
                drop=3,
            )
