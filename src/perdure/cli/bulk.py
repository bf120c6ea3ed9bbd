"""A verb over all jobs that fit a filter: shows what it would touch, asks, and does it. Called by `verbs`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.show import plural, print_json
from perdure.errors import InvalidOption

if TYPE_CHECKING:
    from perdure.app import Perdure
    from perdure.job.job import Job

    ChangeAll = Callable[..., int]

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Ask no questions.")]

SHOWN = 5
COUNTED = 10_000
"""Beyond this the question says `more than`: counting would take longer than reading it."""


def change_chosen(
    door: Perdure, verb: str, filters: dict[str, Any], limit: int | None, *, yes: bool, json: bool
) -> None:
    """Apply the verb to every job that fits and whose state allows it, after asking."""
    found = _fitting(door, verb, filters)
    first = list(islice(found, SHOWN if limit is None else min(SHOWN, limit)))
    count = len(first) + sum(1 for _ in islice(found, (COUNTED + 1 if limit is None else limit) - len(first)))
    if count:
        agreed(verb, first, count, yes=yes, json=json)
    changed = _all(door, verb)(limit=limit, **filters) if count else 0
    if json:
        print_json({"verb": verb, "changed": changed})
    else:
        print(f"{plural(changed, 'job')} {_DONE[verb]}." if count else f"No jobs to {verb} like that.")


def agreed(verb: str, first: Sequence[Job], count: int, *, yes: bool, json: bool) -> None:
    """Go on only if the user wants it. Refused where nobody can be asked."""
    from perdure.cli.jobs import print_jobs

    if yes:
        return
    if json or not sys.stdin.isatty():
        raise InvalidOption(
            f"this would {verb} {_counted(count)} and nobody can be asked here; add --yes if that is meant",
            code="not_confirmed",
        )
    print_jobs(first)
    if count > len(first):
        print(f"… and {_counted(count - len(first)) if count <= COUNTED else 'many'} more")
    if not typer.confirm(f"{verb.capitalize()} {_counted(count)}?"):
        print("Nothing was changed.")
        raise typer.Exit(0)


def _counted(count: int) -> str:
    return plural(count, "job") if count <= COUNTED else f"more than {COUNTED:,} jobs"


def _fitting(door: Perdure, verb: str, filters: dict[str, Any]) -> chain[Job]:
    from perdure.job.states import TRANSITIONS, State, Verb

    allowed = [state for state in State if state in TRANSITIONS[Verb(verb)].sources]
    wanted = filters.get("state")
    others = {name: value for name, value in filters.items() if name != "state"}
    if wanted is None:
        states = [state for state in allowed if (verb, state) not in _LEFT_OUT]
    elif wanted in allowed:
        states = [State(str(wanted))]
    else:
        raise InvalidOption(
            f"--state {wanted}: there is nothing to {verb} there; {verb} takes {', '.join(allowed)} jobs",
            code="filter_invalid",
        )
    return chain.from_iterable(door.jobs(state=state, **others) for state in states)


_LEFT_OUT = {("retry", "cancelled"), ("pause", "paused")}
"""What a verb does not do to many unless it is asked for by name: someone cancelled them on purpose."""

_DONE = {"retry": "will run again", "cancel": "cancelled, or asked to stop", "pause": "paused", "resume": "resumed"}


def _all(door: Perdure, verb: str) -> ChangeAll:
    return {"retry": door.retry_all, "cancel": door.cancel_all, "pause": door.pause_all, "resume": door.resume_all}[
        verb
    ]
