"""`perdure retry`, `cancel`, `pause`, `resume`, `delete`, `move` and `priority`: decisions about jobs. Asks `app`.

Jobs are named by id, or chosen by filter: then what would be touched is shown, and the user is asked.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast

import typer

from perdure.cli.filters import Limit, with_filters
from perdure.cli.render import Json, Yes, error_text, one_line, print_json, visible
from perdure.cli.suggest import none_like_that
from perdure.cli.target import App, JobName, JobNames, Url, database_options_in, existing_app
from perdure.errors import InvalidOption, PerdureError, TransitionRefused
from perdure.text import counted

if TYPE_CHECKING:
    from perdure.app import Perdure
    from perdure.flow.views import Flow
    from perdure.job.states import State as JobState
    from perdure.job.states import Verb
    from perdure.job.views import Job

    Change = Callable[[Any], Any]

AsNew = Annotated[bool, typer.Option("--as-new", help="As a new job; the old one stays as it ended. Takes ids.")]
Again = Annotated[
    bool, typer.Option("--again", help="Of flows: jobs that waited for the end, and have run, run once more too.")
]
To = Annotated[str | None, typer.Option("--to", metavar="front|back", help="To an end of its priority.")]
Before = Annotated[str | None, typer.Option("--before", metavar="ID", help="Right before this job.")]
After = Annotated[str | None, typer.Option("--after", metavar="ID", help="Right after this job.")]
Priority = Annotated[int, typer.Argument(metavar="N", help="The new priority; higher starts earlier, 0 is usual.")]

_DONE = {"retry": "will run again", "cancel": "cancelled, or asked to stop", "pause": "paused", "resume": "resumed"}


class Request(NamedTuple):
    """Which jobs a verb is meant for, and whether it may ask and how it prints."""

    verb: str
    ids: Sequence[str]
    filters: dict[str, Any]
    limit: int | None
    yes: bool
    json: bool


def _command(verb: str, help: str) -> Callable[..., None]:
    """The command of a verb that takes jobs by id or by filter."""

    @with_filters
    def command(
        ids: JobNames = None,
        *,
        filters: dict[str, Any],
        limit: Limit = None,
        yes: Yes = False,
        url: Url = None,
        app: App = None,
        json: Json = False,
    ) -> None:
        request = Request(verb, ids or (), filters, limit, yes, json)
        _change(request, lambda perdure: getattr(perdure, verb), url, app)

    command.__name__, command.__doc__ = verb, help
    return command


cancel = _command(
    "cancel",
    """Cancel waiting jobs, and ask running ones to stop.

    Those named, or all that fit the filters. With filters it shows what it would touch, and asks.
    """,
)
pause = _command(
    "pause",
    """Set waiting jobs aside until they are resumed.

    Those named, or all that fit the filters. With filters it shows what it would touch, and asks. For whole queues see
    perdure queues pause.
    """,
)
resume = _command(
    "resume",
    """Let paused or parked jobs continue.

    Those named, or all that fit the filters. With filters it shows what it would touch, and asks.
    """,
)


@with_filters
def retry(
    ids: JobNames = None,
    *,
    as_new: AsNew = False,
    again: Again = False,
    filters: dict[str, Any],
    limit: Limit = None,
    yes: Yes = False,
    url: Url = None,
    app: App = None,
    json: Json = False,
) -> None:
    """Run failed or cancelled jobs again, or what failed in a flow.

    Those named, or all that fit the filters. With filters it takes failed ones, or with --state cancelled those; it
    shows what it would touch, and asks.
    """
    if as_new and not ids:
        raise typer.BadParameter("--as-new takes jobs by id, not by filter")
    request = Request("retry", ids or (), filters, limit, yes, json)
    _change(request, lambda perdure: lambda job: perdure.retry(job, as_new=as_new, again=again), url, app)


def delete(ids: JobNames = None, *, yes: Yes = False, url: Url = None, app: App = None, json: Json = False) -> None:
    """Remove ended jobs with their runs and logs.

    Asks first. Their idempotency keys stay taken.
    """
    from perdure.ops.lookup import find_jobs

    if not ids:
        raise typer.BadParameter("name the jobs to delete by their ids")
    with existing_app(url, app) as perdure:
        named = find_jobs(perdure.store, ids)
        found = _ended(named)
        if found:
            confirm("delete", found, len(found), yes=yes, json=json)
        _each("delete", found, perdure.delete, json=json, refused=len(named) - len(found))


def _ended(jobs: Sequence[Job]) -> list[Job]:
    """Those that can be deleted; those that cannot are reported before the user is asked."""
    refusals = [
        TransitionRefused(f"cannot delete job {job.id}: it is {job.state}; cancel it first", code="delete_refused")
        for job in jobs
        if not job.is_final
    ]
    if len(jobs) == len(refusals) == 1:
        raise refusals[0]
    for refusal in refusals:
        _complain(refusal)
    return [job for job in jobs if job.is_final]


def _named(perdure: Perdure, ids: Sequence[str]) -> list[Job | Flow]:
    """The jobs and flows with these ids."""
    from perdure.job.views import Job
    from perdure.ops.lookup import find_either

    found = find_either(perdure.store, ids)
    return [one if isinstance(one, Job) else perdure.flows.view(one) for one in found]


def _change(request: Request, change_of: Callable[[Perdure], Change], url: str | None, app: str | None) -> None:
    if request.ids and (request.filters or request.limit):
        raise typer.BadParameter("name jobs by id or choose them with filters, not both")
    if not request.ids and not request.filters:
        raise typer.BadParameter(
            f"name the jobs to {request.verb} by id, or choose them with a filter such as --kind or --queue"
        )
    with existing_app(url, app) as perdure:
        if request.ids:
            _each(request.verb, _named(perdure, request.ids), change_of(perdure), json=request.json)
        else:
            _change_chosen(perdure, request)


def _each(verb: str, found: Sequence[Job | Flow], change: Change, *, json: bool, refused: int = 0) -> None:
    """Change one after the other; a refusal is printed, and the others are changed. Exits with 2 then.

    `refused`: how many there were before.
    """
    from perdure.job.views import Job
    from perdure.ops.forms import flow_json, job_json

    changed: list[Job | Flow] = []
    for job in found:
        try:
            now = change(job)
        except PerdureError as error:
            if len(found) == 1 and not refused:
                raise
            _complain(error)
            refused += 1
            continue
        changed.append(now)
        if not json:
            print(visible(_result(verb, job, now) if isinstance(job, Job) else _flow_result(verb, now)))
    if json:
        print_json([job_json(one) if isinstance(one, Job) else flow_json(one) for one in changed])
    if refused:
        raise typer.Exit(2)


def _complain(error: PerdureError) -> None:
    """Print an error that does not end the command."""
    print(f"perdure: {one_line(error_text(error, database_options_in(sys.argv[1:])))}", file=sys.stderr)


def _result(verb: str, before: Job, now: Job) -> str:
    if verb == "delete":
        return f"{before.id} {before.kind}: deleted"
    if now.id != before.id:
        return f"{before.id} {before.kind}: runs again as {now.id}"
    if now.version == before.version:
        return f"{now.id} {now.kind}: is {now.state} already"
    if now.state == "running":
        return f"{now.id} {now.kind}: running, asked to stop"
    return f"{now.id} {now.kind}: {before.state} → {now.state}"


def _flow_result(verb: str, now: Any) -> str:
    from perdure.ops.graph import standing

    done = {"resume": "resumed; ", "retry": "runs again; "}.get(verb, "")  # the others are seen from how it stands
    return f"{now.id} {now.sort} {now.name}: {done}{standing(now)}"


def _change_chosen(perdure: Perdure, request: Request) -> None:
    """Apply the verb to every job that fits and whose state allows it, after asking: to those counted, and no others.

    Jobs that begin to fit meanwhile are not touched; those that have changed are skipped. At most `AT_ONCE` at once.
    """
    from perdure.job.states import Verb
    from perdure.listing import change_these
    from perdure.ops.lookup import choose_jobs

    verb, json = request.verb, request.json
    states = _states(Verb(verb), request.filters.get("state"))
    choice = choose_jobs(perdure, states, request.filters, request.limit)
    count = len(choice.ids)
    if count:
        confirm(verb, choice.first, count, yes=request.yes, json=json, more=choice.more)
    changed = change_these(perdure, Verb(verb), states, choice.ids)
    if json:
        print_json({"verb": verb, "changed": changed, "skipped": count - changed, "more": choice.more})
    elif not count:
        print(none_like_that(perdure, f"No jobs to {verb}", request.filters))
    else:
        print(f"{counted(changed, 'job')} {_DONE[verb]}.")
        if changed < count:
            print(f"{counted(count - changed, 'job')} skipped: changed meanwhile, or there was nothing to do.")
        if choice.more:
            print("There are more; the same command takes the next ones.")


def _states(verb: Verb, wanted: Sequence[str] | None) -> Sequence[JobState]:
    from perdure.listing import POSSIBLE, TAKEN

    if wanted is None:
        return TAKEN[verb]
    for state in wanted:
        if state not in POSSIBLE[verb]:
            raise InvalidOption(
                f"--state {state}: there is nothing to {verb} there; {verb} takes {', '.join(POSSIBLE[verb])} jobs",
                code="filter_invalid",
            )
    return [state for state in POSSIBLE[verb] if state in wanted]


def confirm(verb: str, first: Sequence[Job], count: int, *, yes: bool, json: bool, more: bool = False) -> None:
    """Return only if the user wants it. Refused where nobody can be asked. `more`: fit, but are not among these."""
    from perdure.cli.jobs import print_jobs
    from perdure.ops.lookup import AT_ONCE

    if yes:
        return
    if json or not sys.stdin.isatty():
        raise InvalidOption(
            f"this would {verb} {counted(count, 'job')} and nobody can be asked here; add --yes to do it",
            code="not_confirmed",
        )
    print_jobs(first)
    if count > len(first):
        print(f"… and {counted(count - len(first), 'more job')}")
    if more:
        print(f"There are more, but only {AT_ONCE:,} are changed at once; repeat the command for the others.")
    if not typer.confirm(f"{verb.capitalize()} {counted(count, 'job')}?"):
        print("Nothing was changed.")
        raise typer.Exit(0)


def move(
    id: JobName,
    *,
    to: To = None,
    before: Before = None,
    after: After = None,
    url: Url = None,
    app: App = None,
    json: Json = False,
) -> None:
    """Give a waiting job another place in its queue.

    Among those of its priority; the order of all other jobs stays.
    """
    from perdure.ops.explain import COUNTED, at_least
    from perdure.ops.forms import job_json
    from perdure.ops.lookup import find_job

    if to not in (None, "front", "back"):
        raise InvalidOption(f"--to takes front or back, not {to!r}")
    if sum(place is not None for place in (to, before, after)) != 1:
        raise typer.BadParameter("say where to with one of --to front, --to back, --before ID and --after ID")
    with existing_app(url, app) as perdure:
        near = [None if name is None else find_job(perdure.store, name) for name in (before, after)]
        moved = perdure.move(find_job(perdure.store, id), before=near[0], after=near[1], to=cast("Any", to))
        ahead = perdure.store.count_ahead(moved, COUNTED) if moved.state == "queued" else None
    if json:
        print_json(job_json(moved))
    else:
        there = "" if ahead is None else f", {at_least(ahead)} job{'s' * (ahead != 1)} of queue {moved.queue} before it"
        print(visible(f"{moved.id} {moved.kind}: moved{there}"))


def priority(id: JobName, n: Priority, *, url: Url = None, app: App = None, json: Json = False) -> None:
    """Give a waiting job another priority.

    It goes to the back of it.
    """
    from perdure.ops.forms import job_json
    from perdure.ops.lookup import find_job

    with existing_app(url, app) as perdure:
        changed = perdure.set_priority(find_job(perdure.store, id), n)
    if json:
        print_json(job_json(changed))
    else:
        print(visible(f"{changed.id} {changed.kind}: priority {changed.priority}"))
