"""`perdure purge` and `perdure archive …`: ended jobs that are no longer needed where the queue is. Asks `app`."""

from __future__ import annotations

from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from perdure.cli.commands import Command, Commands
from perdure.cli.completion import offer_kinds, offer_states
from perdure.cli.control import confirm
from perdure.cli.filters import Limit, span_of, states_of, with_filters
from perdure.cli.render import (
    SHORT,
    Json,
    Yes,
    console,
    error_line,
    json_text,
    print_fields,
    print_heading,
    print_json,
    print_table,
)
from perdure.cli.suggest import none_like_that
from perdure.cli.target import App, Url, existing_app
from perdure.errors import InvalidOption, JobNotFound, shown
from perdure.job.states import FINAL
from perdure.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from perdure.app import Perdure
    from perdure.job.views import Job

OlderThan = Annotated[
    str | None, typer.Option("--older-than", metavar="SPAN", help="Ended at least this long ago: 12h, 30d, 8w.")
]
To = Annotated[
    str | None,
    typer.Option("--to", metavar="PATH", help="A folder, or a file that ends in .jsonl; else the app's, or the table."),
]
From = Annotated[
    str | None, typer.Option("--from", metavar="PATH", help="The folder or file to read; else the app's, or the table.")
]
ArchivedJob = Annotated[str, typer.Argument(metavar="ID", help="The job's id, or the last 4 or more characters of it.")]

State = Annotated[
    str | None,
    typer.Option(
        "--state", "-s", metavar="STATE", help="In this state; several: failed,skipped.", autocompletion=offer_states
    ),
]
Kind = Annotated[
    str | None, typer.Option("--kind", "-k", metavar="NAME", help="Of this kind.", autocompletion=offer_kinds)
]

LISTED = 50
LOOKED_THROUGH = 10_000
_SHOWN = (
    *("id", "kind", "queue", "owner", "state", "payload", "result", "tags", "attempts"),
    *("created_at", "finished_at"),
)
_DONE = {"purge": "removed for good", "archive": "moved into the archive"}


class Request(NamedTuple):
    """Which jobs are meant, and whether the command may ask and how it prints."""

    verb: str
    filters: dict[str, Any]
    older_than: str | None
    limit: int | None
    yes: bool
    json: bool


@with_filters
def purge(
    *,
    older_than: OlderThan = None,
    filters: dict[str, Any],
    limit: Limit = None,
    yes: Yes = False,
    url: Url = None,
    app: App = None,
    json: Json = False,
) -> None:
    """Remove ended jobs for good, with their runs and logs.

    Those in the state named that fit the other filters; it shows what it would touch, and asks. Their idempotency keys
    stay taken.
    """
    with existing_app(url, app) as perdure:
        _take_out(perdure, None, Request("purge", filters, older_than, limit, yes, json))


archive = typer.Typer(cls=Commands, invoke_without_command=True, rich_markup_mode=None)


@archive.callback()
def list_archived(
    context: typer.Context,
    *,
    state: State = None,
    kind: Kind = None,
    limit: Limit = None,
    source: From = None,
    url: Url = None,
    app: App = None,
    json: Json = False,
) -> None:
    """List the jobs of the archive; show one; move jobs there."""
    if context.invoked_subcommand is not None:
        return
    wanted = None if state is None else states_of(state, sorted(FINAL))
    with existing_app(url, app) as perdure:
        fitting = _fitting(perdure.archived_jobs(at=source), {"state": wanted, "kind": kind and [kind]})
        found = list(islice(fitting, limit or LISTED))
        more = next(fitting, None) is not None
    if json:
        print_json(list(map(_summary, found)))
        return
    if not found:
        print("There are no such jobs in the archive." if state or kind else "The archive is empty.")
        return
    columns = ("id", "kind", "queue", "state", "finished", "error")
    rows = [_row(document) for document in found]
    print_table(columns, rows, keep=("id", "state", "finished"), clip=("error",), drop=("queue", "error"))
    if more and limit is None:
        print("There are more; --limit lists as many as you like.")


def _fitting(jobs: Iterator[dict[str, Any]], wanted: dict[str, Any]) -> Iterator[dict[str, Any]]:
    given = {name: values for name, values in wanted.items() if values}
    return (one for one in jobs if all(one["job"].get(name) in values for name, values in given.items()))


@archive.command(cls=Command)
def show(id: ArchivedJob, *, source: From = None, url: Url = None, app: App = None, json: Json = False) -> None:
    """Show everything that the archive has about one job."""
    with existing_app(url, app) as perdure:
        document = _find(perdure, id, source)
    if json:
        print_json(document)
        return
    job = document["job"]
    names = (
        "id",
        "kind",
        "queue",
        "owner",
        "state",
        "payload",
        "result",
        "tags",
        "attempts",
        "created_at",
        "finished_at",
    )
    print_fields((name, _text(job.get(name))) for name in names)
    print_fields([("error", error_line(job.get("error_type"), job.get("error")) or None)])
    print_fields([("archived_at", document["archived_at"])])
    print_heading("runs")
    columns = ("attempt", "state", "started", "took", "error")
    print_table(columns, map(_run_row, document["runs"]), keep=columns[:-1])
    if document["logs"]:
        print_heading("log")
        print_table(
            ("at", "level", "message"), [(line["at"], line["level"], line["message"]) for line in document["logs"]]
        )


def _run_row(run: dict[str, Any]) -> tuple[str, ...]:
    took = "" if run["duration_ms"] is None else f"{run['duration_ms']} ms"
    error = error_line(run["error_type"], run["error_message"])
    return str(run["attempt"]), run["state"], run["started_at"], took, error


@archive.command(cls=Command)
@with_filters
def put(
    *,
    to: To = None,
    older_than: OlderThan = None,
    filters: dict[str, Any],
    limit: Limit = None,
    yes: Yes = False,
    url: Url = None,
    app: App = None,
    json: Json = False,
) -> None:
    """Move ended jobs into the archive, with their runs and logs.

    Those in the state named that fit the other filters; it shows what it would touch, and asks.
    """
    from perdure.upkeep.archive import archive_of

    with existing_app(url, app) as perdure:
        _take_out(perdure, archive_of(perdure.config, to), Request("archive", filters, older_than, limit, yes, json))


def _take_out(perdure: Perdure, where: str | Path | None, request: Request) -> None:
    """Those that were counted, and no others; one that has changed meanwhile stays."""
    from perdure.listing import put_away
    from perdure.upkeep.archive import exit_to

    verb, json = request.verb, request.json
    chosen, more = _chosen(perdure, request)
    if chosen:
        confirm(verb, chosen[:5], len(chosen), yes=request.yes, json=json, more=more)
    gone = put_away(perdure, verb, exit_to(perdure.store, perdure.clock, where), chosen)
    if json:
        print_json({"verb": verb, "changed": gone, "skipped": len(chosen) - gone, "more": more})
    elif not chosen:
        print(none_like_that(perdure, f"No jobs to {verb}", request.filters))
    else:
        print(f"{counted(gone, 'job')} {_DONE[verb]}.")
        if gone < len(chosen):
            print(f"{counted(len(chosen) - gone, 'job')} skipped: changed meanwhile.")
        if more:
            print("There are more; the same command takes the next ones.")


def _chosen(perdure: Perdure, request: Request) -> tuple[list[Job], bool]:
    """The jobs that are meant, and whether there are more than can be taken at once."""
    from perdure.listing import old_jobs
    from perdure.ops.lookup import AT_ONCE

    if "state" not in request.filters:
        raise typer.BadParameter(f"say which jobs to {request.verb}: --state completed, failed, cancelled or skipped")
    age = timedelta(seconds=0 if request.older_than is None else span_of(request.older_than, "--older-than"))
    most = AT_ONCE if request.limit is None else min(AT_ONCE, request.limit)
    found = list(old_jobs(perdure, request.filters, age, most + 1))
    return found[:most], len(found) > most and request.limit != most


def _find(perdure: Perdure, text: str, source: str | None) -> dict[str, Any]:
    tail = text.strip().replace("-", "").lower()
    if len(tail) < 4 or not set(tail) <= set("0123456789abcdef"):
        raise InvalidOption(f"{shown(text)} is no id; give a job's id, or at least its last 4 characters")
    if len(tail) == 32:
        document = perdure.archived(tail, at=source)
        found = [] if document is None else [document]
    else:
        newest = islice(perdure.archived_jobs(at=source), LOOKED_THROUGH)
        found = [one for one in newest if one["job"]["id"].replace("-", "").endswith(tail)]
    if not found:
        raise JobNotFound(f"the archive has no job {shown(text)}; perdure archive lists what it has")
    if len(found) > 1:
        raise InvalidOption(f"{len(found)} archived jobs have an id that ends with {shown(text)}; give more of it")
    return found[0]


def _summary(document: dict[str, Any]) -> dict[str, Any]:
    job = document["job"]
    names = ("id", "kind", "owner", "queue", "state", "created_at", "finished_at", "error_type", "error")
    return {name: job.get(name) for name in names} | {"archived_at": document["archived_at"]}


def _row(document: dict[str, Any]) -> tuple[str, ...]:
    job = document["job"]
    name = job["id"] if console().width >= 130 else job["id"].replace("-", "")[-SHORT:]
    error = error_line(job.get("error_type"), job.get("error"))
    return name, job["kind"], job["queue"], job["state"], str(job["finished_at"])[:19].replace("T", " "), error


def _text(value: object) -> str | None:
    if value is None or value == []:
        return None
    return value if isinstance(value, str) else json_text(value)
