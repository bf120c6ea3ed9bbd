"""`perdure trigger` and `backfill`: slots of a schedule that are taken by hand. Asks `app.schedules`."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.filters import moment_of
from perdure.cli.render import Json, Yes, current_time, moment, one_line, print_json, visible
from perdure.cli.schedules import Name
from perdure.cli.target import App, Url, existing_app
from perdure.clock import Micros, iso, to_datetime, to_micros
from perdure.errors import InvalidOption, PerdureError
from perdure.text import counted

if TYPE_CHECKING:
    from perdure.app import Perdure
    from perdure.job.views import Job

ASKED_ABOVE = 100
"""Back-filling more instants than this is asked about first."""
COUNTED = 1_000_000

For = Annotated[
    str | None, typer.Option("--for", metavar="TIME", help="For this instant: 2026-01-31T12:00Z; else for this second.")
]
From = Annotated[
    str, typer.Option("--from", metavar="TIME", help="The first instant: 2026-01-31T12:00Z, or 7d (that long ago).")
]
To = Annotated[str | None, typer.Option("--to", metavar="TIME", help="Before this one; written as --from; else now.")]


def trigger(name: Name, *, at: For = None, url: Url = None, app: App = None, json: Json = False) -> None:
    """Make the job of a schedule now, or for a planned instant.

    It takes the slot as a worker does: if that is taken, its job is printed, and nothing is made.
    """
    from perdure.ops.forms import job_json

    instant = None if at is None else moment_of(at, "--for")
    with existing_app(url, app) as perdure:
        job = perdure.trigger(name, instant)
    if json:
        print_json(job_json(job) | {"deduplicated": job.deduplicated})
    else:
        print(visible(_made(job)))


def _made(job: Job) -> str:
    planned = moment(job.scheduled_for)
    if job.deduplicated:
        return f"{job.id} {job.kind}: was made before for {planned}, {job.state}"
    return f"{job.id} {job.kind}: {job.state} in {job.queue} for {planned}"


def backfill(
    name: Name,
    *,
    start: From,
    end: To = None,
    yes: Yes = False,
    url: Url = None,
    app: App = None,
    json: Json = False,
) -> None:
    """Make the jobs of all planned instants of a stretch of time, the oldest first.

    Slots that are taken already stay as they are, so that it can be repeated. With more than 100 instants it asks.
    """
    first = moment_of(start, "--from", ago=True)
    with existing_app(url, app) as perdure:
        last = to_datetime(current_time()) if end is None else moment_of(end, "--to", ago=True)
        if last <= first:
            raise InvalidOption(f"--to has to be later than --from: {moment(last)} is not later than {moment(first)}")
        instants = _planned(perdure, name, first, last)
        _confirm(name, instants, yes=yes, json=json)
        filled = _Filled(name, instants)
        try:
            for job in perdure.schedules.backfill(name, first, last):
                filled.count(job)
        except (PerdureError, KeyboardInterrupt):
            filled.stop()
            raise
    if json:
        span = {"from": iso(to_micros(first)), "to": iso(to_micros(last))}
        print_json({"schedule": name, **span, "made": filled.made, "taken_before": filled.taken})
    else:
        print(visible(filled.summary()))


def _planned(perdure: Perdure, name: str, first: datetime, last: datetime) -> int:
    """How many instants there are; not counted beyond `COUNTED`."""
    perdure.schedules.describe(name)  # refuses an unknown name, and a row that cannot be understood
    found = perdure.schedules.get(name)
    assert found is not None
    assert found.trigger is not None
    return found.trigger.count(_before(first), _before(last), COUNTED)


def _before(at: datetime) -> Micros:
    return Micros(to_micros(at) - 1)


def _confirm(name: str, instants: int, *, yes: bool, json: bool) -> None:
    if yes or instants <= ASKED_ABOVE:
        return
    jobs = f"{COUNTED:,} jobs or more" if instants >= COUNTED else f"up to {counted(instants, 'job')}"
    if json or not sys.stdin.isatty():
        raise InvalidOption(
            f"this would make {jobs} and nobody can be asked here; add --yes to do it", code="not_confirmed"
        )
    if not typer.confirm(visible(f"Make {jobs} of schedule {name}?")):
        print("Nothing was changed.")
        raise typer.Exit(0)


class _Filled:
    """How far back-filling has come; shown while it goes on, where someone looks."""

    def __init__(self, name: str, instants: int) -> None:
        self._name = name
        self._instants = instants
        self._shows = sys.stderr.isatty()
        self.made = 0
        self.taken = 0

    def count(self, job: Job) -> None:
        self.taken += job.deduplicated
        self.made += not job.deduplicated
        if self._shows:
            print(f"\r{self.made + self.taken:,} of {self._instants:,}", end="", file=sys.stderr, flush=True)
            if self.made + self.taken == self._instants:
                print(file=sys.stderr)

    def stop(self) -> None:
        """Say what was done before an error, or Ctrl-C."""
        if self.made or self.taken:
            start = "\n" if self._shows else ""
            print(f"{start}{one_line(self.summary())} The same command goes on from there.", file=sys.stderr)

    def summary(self) -> str:
        taken = "" if not self.taken else f"; {counted(self.taken, 'slot')} had been taken before"
        if not self.made and not self.taken:
            return f"{self._name} has no planned instant there."
        return f"{self._name}: {counted(self.made, 'job')} made{taken}."
