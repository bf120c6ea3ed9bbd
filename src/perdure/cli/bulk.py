"""A verb over all jobs that fit a filter: shows what it would touch, asks, and does it. Called by `verbs`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from perdure.cli.missing import none_like_that
from perdure.cli.show import plural, print_json
from perdure.errors import InvalidOption

if TYPE_CHECKING:
    from perdure.app import Perdure
    from perdure.ids import JobId
    from perdure.job.states import State as JobState
    from perdure.job.states import Verb
    from perdure.job.views import Job

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Ask no questions.")]

SHOWN = 5
MOST = 10_000
"""So many are changed at once: exactly those that were counted, and their ids have to be kept meanwhile."""


class Choice(NamedTuple):
    """The jobs that a command is about, as they were when they were counted."""

    verb: Verb
    states: Sequence[JobState]
    first: Sequence[Job]
    ids: Sequence[JobId]
    more: bool
    """There are others that fit, beyond what can be changed at once."""


def change_chosen(
    door: Perdure, verb: str, filters: dict[str, Any], limit: int | None, *, yes: bool, json: bool
) -> None:
    """Apply the verb to every job that fits and whose state allows it, after asking: to those counted, and no others.

    What came to fit meanwhile is not touched; what has moved on is skipped. At most `MOST` at once.
    """
    from perdure.listing import change_these

    choice = _choose(door, verb, filters, limit)
    count = len(choice.ids)
    if count:
        agreed(verb, choice.first, count, yes=yes, json=json, more=choice.more)
    changed = change_these(door, choice.verb, choice.states, choice.ids)
    if json:
        print_json({"verb": verb, "changed": changed, "skipped": count - changed, "more": choice.more})
    elif not count:
        print(none_like_that(door, f"No jobs to {verb}", filters))
    else:
        print(f"{plural(changed, 'job')} {_DONE[verb]}.")
        if changed < count:
            print(f"{plural(count - changed, 'job')} skipped: changed meanwhile, or there was nothing to do.")
        if choice.more:
            print("There are more; the same command takes the next ones.")


def agreed(verb: str, first: Sequence[Job], count: int, *, yes: bool, json: bool, more: bool = False) -> None:
    """Go on only if the user wants it. Refused where nobody can be asked. `more`: fit, but are not among these."""
    from perdure.cli.jobs import print_jobs

    if yes:
        return
    if json or not sys.stdin.isatty():
        raise InvalidOption(
            f"this would {verb} {plural(count, 'job')} and nobody can be asked here; add --yes if that is meant",
            code="not_confirmed",
        )
    print_jobs(first)
    if count > len(first):
        print(f"… and {plural(count - len(first), 'more job')}")
    if more:
        print(f"There are more, but only {MOST:,} are changed at once; repeat the command for the others.")
    if not typer.confirm(f"{verb.capitalize()} {plural(count, 'job')}?"):
        print("Nothing was changed.")
        raise typer.Exit(0)


def _choose(door: Perdure, verb: str, filters: dict[str, Any], limit: int | None) -> Choice:
    from perdure.job.states import Verb

    states = _states(Verb(verb), filters.get("state"))
    others = {name: value for name, value in filters.items() if name != "state"}
    most = MOST if limit is None else min(MOST, limit)
    found = chain.from_iterable(door.jobs(state=state, **others) for state in states)
    first = list(islice(found, min(SHOWN, most)))
    ids = [job.row.id for job in chain(first, islice(found, most - len(first)))]
    more = most == MOST and limit != MOST and next(found, None) is not None
    return Choice(Verb(verb), states, first, ids, more)


def _states(verb: Verb, wanted: str | None) -> Sequence[JobState]:
    from perdure.listing import POSSIBLE, TAKEN

    if wanted is None:
        return TAKEN[verb]
    if states := [state for state in POSSIBLE[verb] if state == wanted]:
        return states
    raise InvalidOption(
        f"--state {wanted}: there is nothing to {verb} there; {verb} takes {', '.join(POSSIBLE[verb])} jobs",
        code="filter_invalid",
    )


_DONE = {"retry": "will run again", "cancel": "cancelled, or asked to stop", "pause": "paused", "resume": "resumed"}
