"""`perdure jobs` and `perdure job`: what there is, and all about one of it. Asks `app`."""

from __future__ import annotations

import json as json_text
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from perdure.cli.choosing import BusinessKey, Follow, Kind, Limit, Owner, Queue, Since, State, Tag, Until, chosen
from perdure.cli.missing import none_like_that
from perdure.cli.show import Json, ago, moment, print_json
from perdure.cli.tables import id_text, print_fields, print_heading, print_table
from perdure.cli.target import App, JobName, Url, find_job, front_door
from perdure.cli.typed import as_typed

if TYPE_CHECKING:
    from perdure.app import Perdure
    from perdure.job.job import Job

T = TypeVar("T")
LISTED = 20
HIDDEN = "***"


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


def first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0]


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


def job(id: JobName, *, url: Url = None, app: App = None, json: Json = False) -> None:
    """Show everything about one job.

    Its fields, its payload with secrets hidden, its runs, and why it is where it is.
    """
    from perdure.cli.plain import plain_job, plain_run

    with front_door(url, app) as door:
        found = find_job(door, id)
        payload = payload_of(door, found)
        runs = list(door.runs(found))
        why = door.explain(found)
    remedy = None if why.remedy is None else as_typed(why.remedy, url, app)
    if json:
        print_json(
            plain_job(found)
            | {
                "payload": payload,
                "explanation": {"why": why.why, "next": why.next, "command": remedy},
                "runs": [plain_run(run) for run in runs],
            }
        )
        return
    print_fields([*_fields(found), ("why", " ".join(f"{why.why}.".split())), ("next", remedy or f"{why.next}.")])
    if payload is not None:
        print_heading("payload")
        print_fields(_values(payload))
    if found.params:
        print_heading("params")
        print_fields(_values(found.params))
    if runs:
        from perdure.cli.runs import print_runs

        print_heading("runs")
        print_runs(runs, of_one=True)


def payload_of(door: Perdure, job: Job) -> dict[str, object] | None:
    """The arguments, with stars in the place of secret ones."""
    row = door.store.row(job.row.id)
    secret: dict[str, object] = {} if row is None or row.secrets is None else json_text.loads(row.secrets)
    return None if job.payload is None else {**job.payload, **dict.fromkeys(secret, HIDDEN)}


def _values(payload: dict[str, object]) -> Iterator[tuple[str, str]]:
    for name, value in payload.items():
        plain = isinstance(value, str) and value not in ("", HIDDEN) and value == value.strip()
        yield name, str(value) if plain or value == HIDDEN else json_text.dumps(value, indent=2, ensure_ascii=False)
    if not payload:
        yield "(no arguments)", ""


def _fields(job: Job) -> Iterator[tuple[str, str | None]]:
    yield "id", str(job.id)
    yield "kind", job.kind + (f" (version {job.kind_version})" if job.kind_version != 1 else "")
    yield "queue", job.queue
    yield "state", job.state.value
    yield "priority", str(job.priority) if job.priority else None
    yield "attempts", f"{job.attempts} of {job.max_attempts}" + (f", life {job.life}" if job.life > 1 else "")
    yield "crashes", str(job.crashes) if job.crashes else None
    yield "owner", job.owner
    yield "principal", job.principal
    yield "tags", ", ".join(job.tags) or None
    yield "idempotency key", job.idempotency_key
    yield "business key", job.business_key
    for name in ("created", "started", "finished"):
        at = getattr(job, f"{name}_at")
        yield name, None if at is None else f"{moment(at)} ({ago(at)})"
    yield "due", f"{moment(job.run_at)} ({ago(job.run_at)})" if job.state == "scheduled" else None
    for name in ("parent_id", "retry_of", "root_id", "superseded_by", "successor", "node_id"):
        linked = getattr(job, name)
        yield name.removesuffix("_id").replace("_", " "), None if linked is None else str(linked)
    yield "result", None if job.result is None else json_text.dumps(job.result, indent=2, ensure_ascii=False)
    yield "error", None if not job.error else ": ".join(part for part in (job.error_type, job.error) if part)
