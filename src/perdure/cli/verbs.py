"""`perdure retry`, `cancel`, `pause`, `resume` and `delete`: decisions about jobs. Asks `app`.

Jobs named by id here; the same verbs over all jobs that fit a filter are in `bulk`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from perdure.cli.bulk import Yes, agreed, change_chosen
from perdure.cli.choosing import BusinessKey, Kind, Limit, Owner, Queue, Since, State, Tag, Until, chosen
from perdure.cli.show import Json, complain, print_json, visible
from perdure.cli.target import App, JobNames, Url, find_jobs, front_door
from perdure.errors import PerdureError, TransitionRefused

if TYPE_CHECKING:
    from perdure.app import Perdure
    from perdure.job.views import Job

    Change = Callable[[Job], Job]

AsNew = Annotated[bool, typer.Option("--as-new", help="As a new job; the old one stays as it ended. Takes ids.")]


class Wish(NamedTuple):
    """Which jobs a verb is meant for, and how it may ask and answer."""

    verb: str
    ids: Sequence[str]
    filters: dict[str, Any]
    limit: int | None
    yes: bool
    json: bool


def _command(verb: str, help: str) -> Callable[..., None]:
    """The command of a verb that takes jobs by id or by filter."""

    def command(
        ids: JobNames = None,
        *,
        state: State = None,
        queue: Queue = None,
        kind: Kind = None,
        tag: Tag = None,
        owner: Owner = None,
        since: Since = None,
        until: Until = None,
        business_key: BusinessKey = None,
        limit: Limit = None,
        yes: Yes = False,
        url: Url = None,
        app: App = None,
        json: Json = False,
    ) -> None:
        filters = chosen(
            state=state,
            queue=queue,
            kind=kind,
            tag=tag,
            owner=owner,
            since=since,
            until=until,
            business_key=business_key,
        )
        wish = Wish(verb, ids or (), filters, limit, yes, json)
        _change(wish, lambda door: getattr(door, verb), url, app)

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
    """Let paused or parked jobs go on.

    Those named, or all that fit the filters. With filters it shows what it would touch, and asks.
    """,
)


def retry(
    ids: JobNames = None,
    *,
    as_new: AsNew = False,
    state: State = None,
    queue: Queue = None,
    kind: Kind = None,
    tag: Tag = None,
    owner: Owner = None,
    since: Since = None,
    until: Until = None,
    business_key: BusinessKey = None,
    limit: Limit = None,
    yes: Yes = False,
    url: Url = None,
    app: App = None,
    json: Json = False,
) -> None:
    """Run failed or cancelled jobs again.

    Those named, or all that fit the filters. With filters it takes failed ones, or with --state cancelled those; it
    shows what it would touch, and asks.
    """
    filters = chosen(
        state=state, queue=queue, kind=kind, tag=tag, owner=owner, since=since, until=until, business_key=business_key
    )
    if as_new and not ids:
        raise typer.BadParameter("--as-new takes jobs by id, not by filter")
    wish = Wish("retry", ids or (), filters, limit, yes, json)
    _change(wish, lambda door: lambda job: door.retry(job, as_new=as_new), url, app)


def delete(ids: JobNames = None, *, yes: Yes = False, url: Url = None, app: App = None, json: Json = False) -> None:
    """Remove ended jobs with their runs and logs.

    Asks first. Their idempotency keys stay taken.
    """
    if not ids:
        raise typer.BadParameter("name the jobs to delete by their ids")
    with front_door(url, app) as door:
        found, kept = _ended(find_jobs(door, ids))
        if found:
            agreed("delete", found, len(found), yes=yes, json=json)
        _each("delete", found, door.delete, json=json, refused=len(kept))


def _change(wish: Wish, change_of: Callable[[Perdure], Change], url: str | None, app: str | None) -> None:
    if wish.ids and (wish.filters or wish.limit):
        raise typer.BadParameter("name jobs by id or choose them with filters, not both")
    if not wish.ids and not wish.filters:
        raise typer.BadParameter(
            f"name the jobs to {wish.verb} by id, or choose them with a filter such as --kind or --queue"
        )
    with front_door(url, app) as door:
        if wish.ids:
            _each(wish.verb, find_jobs(door, wish.ids), change_of(door), json=wish.json)
        else:
            change_chosen(door, wish.verb, wish.filters, wish.limit, yes=wish.yes, json=wish.json)


def _ended(jobs: Sequence[Job]) -> tuple[list[Job], list[Job]]:
    """Those that can be deleted, and those that cannot: told at once, since nobody should be asked for nothing."""
    kept = [job for job in jobs if not job.is_final]
    refusals = [
        TransitionRefused(f"cannot delete job {job.id}: it is {job.state}; cancel it first", code="delete_refused")
        for job in kept
    ]
    if len(jobs) == len(refusals) == 1:
        raise refusals[0]
    for refusal in refusals:
        complain(refusal)
    return [job for job in jobs if job.is_final], kept


def _each(verb: str, found: Sequence[Job], change: Change, *, json: bool, refused: int = 0) -> None:
    """Change one after the other; one that cannot be is told and does not keep the others. Exits with 2 then.

    `refused`: how many there were before.
    """
    from perdure.cli.plain import plain_job

    changed: list[Job] = []
    for job in found:
        try:
            now = change(job)
        except PerdureError as error:
            if len(found) == 1 and not refused:
                raise
            complain(error)
            refused += 1
            continue
        changed.append(now)
        if not json:
            print(visible(_told(verb, job, now)))
    if json:
        print_json([plain_job(job) for job in changed])
    if refused:
        raise typer.Exit(2)


def _told(verb: str, before: Job, now: Job) -> str:
    if verb == "delete":
        return f"{before.id} {before.kind}: deleted"
    if now.id != before.id:
        return f"{before.id} {before.kind}: runs again as {now.id}"
    if now.version == before.version:
        return f"{now.id} {now.kind}: is {now.state} already"
    if now.state == "running":
        return f"{now.id} {now.kind}: running, asked to stop"
    return f"{now.id} {now.kind}: {before.state} → {now.state}"
