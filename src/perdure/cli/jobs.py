"""`perdure jobs`: what there is. All about one of them is in `job`. Asks `app`."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from perdure.cli.choosing import BusinessKey, Follow, Kind, Limit, Owner, Queue, Since, State, Tag, Until, chosen
from perdure.cli.missing import none_like_that
from perdure.cli.show import Json, ago, first_line, moment, print_json
from perdure.cli.tables import id_text, print_table
from perdure.cli.target import App, Url, front_door

if TYPE_CHECKING:
    from perdure.app import Perdure
    from perdure.job.views import Job

T = TypeVar("T")
LISTED = 20


def jobs(
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
    follow: Follow = False,
    url: Url = None,
    app: App = None,
    json: Json = False,
) -> None:
    """List jobs, the newest first.

    Those that fit all filters, 20 of them, or as many as --limit says. With --state queued and --queue, in the order in
    which they will start.
    """
    from perdure.cli.plain import plain_job

    filters = chosen(
        state=state, queue=queue, kind=kind, tag=tag, owner=owner, since=since, until=until, business_key=business_key
    )
    with front_door(url, app) as door:
        if follow:
            with suppress(KeyboardInterrupt):  # that is how a live view ends
                _follow(door, filters, limit or LISTED, json=json)
            return
        found, more = listed(door.jobs(**filters), limit)
        none = "" if found or json else none_like_that(door, "No jobs", filters)
    if json:
        print_json([plain_job(job) for job in found])
    elif not found:
        print(none)
    else:
        print_jobs(found)
        if more:
            print(f"The first {len(found)}; --limit N shows more.")


def listed(found: Iterable[T], limit: int | None) -> tuple[list[T], bool]:
    """As many as wanted, and whether there are more."""
    wanted = limit or LISTED
    some = list(islice(found, wanted + 1))
    return some[:wanted], len(some) > wanted


def print_jobs(found: Iterable[Job]) -> None:
    columns = ("id", "kind", "queue", "state", "tries", "created", "note")
    rows = [
        (
            id_text(job.id),
            job.kind,
            job.queue,
            job.state.value,
            f"{job.attempts}/{job.max_attempts}",
            ago(job.created_at),
            note(job),
        )
        for job in found
    ]
    last = None if any(row[-1] for row in rows) else -1
    print_table(
        columns[:last],
        [row[:last] for row in rows],
        keep=("id", "state", "tries", "created"),
        clip=("note",),
        drop=("tries", "queue", "created", "note"),
    )


def note(job: Job) -> str:
    """What is special about the job, in a few words."""
    if job.unreadable:
        return f"unreadable: {', '.join(job.unreadable)}"
    if job.state == "scheduled":
        return f"due {ago(job.run_at)}" + (f" after {first_line(job.error)}" if job.error else "")
    if job.state == "parked":
        return (job.park_reason or "").replace("_", " ")
    if job.cancel_requested and not job.is_final:
        return "asked to stop"
    if job.superseded_by is not None:
        return f"superseded by {id_text(job.superseded_by)}"
    if job.error:
        return ": ".join(part for part in (job.error_type, first_line(job.error)) if part)
    return ""


def _follow(door: Perdure, filters: dict[str, Any], first: int, *, json: bool) -> None:
    from perdure.cli.following import news
    from perdure.cli.plain import plain_job
    from perdure.cli.show import print_json_line
    from perdure.cli.tables import print_line

    for job in news(lambda: door.jobs(**filters), lambda job: (job.id, job.state), first):
        if json:
            print_json_line(plain_job(job))
        else:
            at = moment(job.finished_at or job.started_at or job.queued_at) or ""
            print_line(
                [(at[11:19], 8), (id_text(job.id), 8), (job.kind, 18), (job.queue, 10), (job.state, 9), (note(job), 0)],
                drop=3,
            )
