"""`perdure logs`: what a job's handler has logged. Asks `app`. (How this program logs is in `logs`.)"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, cast

import typer

from perdure.cli.following import PAUSE_S
from perdure.cli.show import Json, print_json, print_json_line, visible
from perdure.cli.target import App, JobName, Url, find_job, front_door

if TYPE_CHECKING:
    from perdure.app import Perdure
    from perdure.job.views import Job
    from perdure.store.rows import LogLine

Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Go on until the job has ended, or Ctrl-C; with --json one per line.")
]


def logs(id: JobName, *, follow: Follow = False, url: Url = None, app: App = None, json: Json = False) -> None:
    """Print what a job has logged.

    The lines captured from all its runs, in the order they were written.
    """
    with front_door(url, app) as door:
        job = find_job(door, id)
        if json and not follow:
            from perdure.cli.plain import plain_line

            print_json([plain_line(line) for line in door.logs(job)])
        elif not follow:
            _print(door.logs(job), json=json, live=False)
        else:
            with suppress(KeyboardInterrupt):  # that is how a live view ends
                _print(_until_ended(door, job), json=json, live=True)


def _print(lines: Iterable[LogLine], *, json: bool, live: bool) -> None:
    """One per line; `live`: each at once."""
    from perdure.cli.plain import plain_line

    none = True
    for line in lines:
        none = False
        if json:
            print_json_line(plain_line(line))
        else:
            print(_text(line), flush=live)
    if none and not json:
        print("Nothing was logged.")


def _text(line: LogLine) -> str:
    from perdure.cli.plain import fields_of
    from perdure.clock import to_datetime

    at = f"{to_datetime(line.at):%Y-%m-%d %H:%M:%S}"
    fields = fields_of(line)
    told = "" if fields is None else f" {fields}"
    if isinstance(fields, dict):
        told = "".join(f" {name}={value}" for name, value in cast("dict[str, object]", fields).items())
    return visible(f"{at} {line.level:<7} {line.message}{told}")


def _until_ended(door: Perdure, job: Job) -> Iterator[LogLine]:
    """Every line as it comes, until the job has ended and all are given."""
    last: LogLine | None = None
    while True:
        ended = door.existing(job).is_final  # asked before the lines: none can come after
        while page := door.store.log(job.row.id, last, 200):
            yield from page
            last = page[-1]
        if ended:
            return
        time.sleep(PAUSE_S)
