"""`perdure jobs`, `job`, `runs`, `logs` and `explain`: what there is to know about jobs. Asks `app` and `ops`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

import typer

from perdure.cli.completion import offer_jobs
from perdure.cli.filters import Follow, Limit, with_filters
from perdure.cli.flows import existing_flow
from perdure.cli.render import (
    PAUSE_S,
    Json,
    ago,
    current_time,
    error_line,
    id_text,
    moment,
    news,
    one_line,
    print_fields,
    print_heading,
    print_json,
    print_json_line,
    print_line,
    print_table,
    sentence,
    visible,
)
from perdure.cli.suggest import none_like_that
from perdure.cli.target import App, JobName, Url, completed, existing_app, existing_database
from perdure.text import measured, stamp

if TYPE_CHECKING:
    from uuid import UUID

    from perdure.app import Perdure
    from perdure.job.views import Job, Run
    from perdure.store.rows import LogLine

Row = TypeVar("Row", "Job", "Run")
LISTED = 20

OfJob = Annotated[
    str | None,
    typer.Argument(
        metavar="ID",
        help="Only of this job: its id, or the last 4 or more characters of it.",
        autocompletion=offer_jobs,
    ),
]
OfFlow = Annotated[
    str | None,
    typer.Option(
        "--flow", metavar="ID", help="Of this flow: its id, or the last 4 or more characters of it; or its name."
    ),
]
FollowLog = Annotated[
    bool,
    typer.Option("--follow", "-f", help="Keep printing until the job has ended, or Ctrl-C; with --json one per line."),
]


@with_filters
def jobs(
    *,
    filters: dict[str, Any],
    flow: OfFlow = None,
    limit: Limit = None,
    follow: Follow = False,
    url: Url = None,
    app: App = None,
    json: Json = False,
) -> None:
    """List jobs, the newest first.

    Those that fit all filters, 20 of them, or as many as --limit says. With --state queued and --queue, in the order in
    which they will start; with --flow, callbacks and then members in their order.
    """
    from perdure.ops.forms import job_json

    if follow and flow is not None:
        raise typer.BadParameter("--follow takes no --flow; perdure flow ID shows how a flow stands")
    with existing_app(url, app) as perdure:
        if flow is not None:
            filters |= {"flow": existing_flow(perdure, flow).id}
        if follow:
            _follow(lambda: perdure.jobs(**filters), limit, job_json if json else None, _job_line)
            return
        found, more = _first(perdure.jobs(**filters), limit)
        none = "" if found or json else none_like_that(perdure, "No jobs", filters)
        progress = {} if json else _progress(perdure, found)
    if json:
        print_json(list(map(job_json, found)))
    elif not found:
        print(none)
    else:
        print_jobs(found, progress)
        if more:
            print(f"The first {len(found)}; --limit N shows more.")


@partial(with_filters, of_runs=True)
def runs(
    id: OfJob = None,
    *,
    filters: dict[str, Any],
    limit: Limit = None,
    follow: Follow = False,
    url: Url = None,
    app: App = None,
    json: Json = False,
) -> None:
    """List attempts, of all jobs or of one, the newest first.

    Those that fit all filters, 20 of them, or as many as --limit says.
    """
    from perdure.ops.forms import run_json
    from perdure.ops.lookup import find_job

    with existing_app(url, app) as perdure:
        of = None if id is None else find_job(perdure.store, id)
        if follow:
            _follow(lambda: perdure.runs(of, **filters), limit, run_json if json else None, _run_line)
            return
        found, more = _first(perdure.runs(of, **filters), limit)
        what = "No runs" if filters else "No runs of this job yet" if of else "No runs yet"
        none = "" if found or json else none_like_that(perdure, what, filters)
    if json:
        print_json(list(map(run_json, found)))
    elif not found:
        print(none)
    else:
        _print_runs(found, of_one=of is not None)
        if more:
            print(f"The newest {len(found)}; --limit N shows more.")


def _first(found: Iterable[Row], limit: int | None) -> tuple[list[Row], bool]:
    """As many as wanted, and whether there are more."""
    wanted = limit or LISTED
    some = list(islice(found, wanted + 1))
    return some[:wanted], len(some) > wanted


def _follow(
    read: Callable[[], Iterator[Row]],
    limit: int | None,
    as_json: Callable[[Row], object] | None,
    as_line: Callable[[Row], list[tuple[str, int]]],
) -> None:
    with suppress(KeyboardInterrupt):  # that is how a live view ends
        for row in news(read, lambda row: (row.id, row.state), limit or LISTED):
            if as_json is not None:
                print_json_line(as_json(row))
            else:
                print_line(as_line(row), drop=3)


def _progress(perdure: Perdure, found: Iterable[Job]) -> dict[UUID, str]:
    """Of those that run and have said something."""
    from perdure.ops.progress import progress_of, progress_text

    told = ((job.id, progress_of(perdure.store, job)) for job in found)
    return {job_id: progress_text(progress) for job_id, progress in told if progress is not None}


def print_jobs(found: Iterable[Job], progress: Mapping[UUID, str] | None = None) -> None:
    """`progress`: what some of them have said of it, by id."""
    columns = ("id", "kind", "queue", "state", "tries", "created", "note")
    rows = [
        (
            id_text(job.id),
            job.kind,
            job.queue,
            job.state.value,
            f"{job.attempts}/{job.max_attempts}",
            ago(job.created_at),
            _note(job) or (progress or {}).get(job.id, ""),
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


def _job_line(job: Job) -> list[tuple[str, int]]:
    at = moment(job.finished_at or job.started_at or job.queued_at) or ""
    about = [(_clock_time(at), 9), (id_text(job.id), 8), (job.kind, 18), (job.queue, 10)]
    return [*about, (job.state, 9), (_note(job), 0)]


def _clock_time(at: str) -> str:
    return f"{at[11:19]}Z" if at else ""


def _note(job: Job) -> str:
    """What is special about the job, in a few words."""
    if job.unreadable:
        return f"unreadable: {', '.join(job.unreadable)}"
    if job.state == "scheduled":
        return f"due {ago(job.run_at)}" + (f" after {error_line(None, job.error)}" if job.error else "")
    if job.state == "parked":
        return (job.park_reason or "").replace("_", " ")
    if job.cancel_requested and not job.is_final:
        return "asked to stop"
    if job.superseded_by is not None:
        return f"superseded by {id_text(job.superseded_by)}"
    return error_line(job.error_type, job.error) if job.error else ""


def _print_runs(found: Sequence[Run], *, of_one: bool) -> None:
    """A table of runs; those of one job need not name it."""
    columns = ["job", "kind", "attempt", "state", "started", "took", "error"]
    rows = [
        [id_text(run.job_id), run.kind, str(run.attempt), run.state.value, ago(run.started_at), _took(run), _error(run)]
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


def _run_line(run: Run) -> list[tuple[str, int]]:
    at = _clock_time(moment(run.finished_at or run.started_at) or "")
    end = _error(run) or (f"took {_took(run)}" if run.duration_ms is not None else "")
    return [(at, 9), (id_text(run.job_id), 8), (run.kind, 18), (str(run.attempt), 2), (run.state, 9), (end, 0)]


def _took(run: Run) -> str:
    return "-" if run.duration_ms is None else measured(run.duration_ms)


def _error(run: Run) -> str:
    if run.unreadable:
        return f"unreadable: {', '.join(run.unreadable)}"
    return error_line(run.error_type, run.error)


def job(id: JobName, *, url: Url = None, app: App = None, json: Json = False) -> None:
    """Show everything about one job.

    Its fields, its payload with secrets hidden, its runs, why it is where it is, and the traceback of the last attempt
    that raised.
    """
    from perdure.ops.explain import schedule_of
    from perdure.ops.forms import job_json, payload_json, run_json
    from perdure.ops.lookup import find_job

    with existing_app(url, app) as perdure:
        found = find_job(perdure.store, id)
        payload = payload_json(perdure.store, found)
        template = None if found.template_id is None else perdure.templates.of(found)
        runs = list(perdure.runs(found))
        progress = _progress(perdure, [found]).get(found.id)
        why = perdure.explain(found)
        schedule = schedule_of(perdure.store, found)
    remedy = None if why.remedy is None else completed(why.remedy, url, app)
    if json:
        print_json(
            job_json(found)
            | {
                "payload": payload,
                "template": None if template is None else template.name,
                "schedule": schedule,
                "explanation": {"why": why.why, "next": why.next, "command": remedy},
                "runs": list(map(run_json, runs)),
            }
        )
        return
    made_from = None if template is None else f"{template.name} (version {template.version})"
    made_for = None if schedule is None else f"{schedule}, for {moment(found.scheduled_for)}"
    print_fields(
        [
            *_fields(found),
            ("progress", progress),
            ("template", made_from),
            ("schedule", made_for),
            ("why", sentence(one_line(why.why))),
            ("next", remedy or f"{why.next}."),
        ]
    )
    if payload is not None:
        print_heading("payload")
        print_fields(values_of(payload))
    if "params" not in found.unreadable and found.params:
        print_heading("params")
        print_fields(values_of(found.params))
    if runs:
        print_heading("runs")
        _print_runs(runs, of_one=True)
        _print_traceback(runs)


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
    for name in ("flow_id", "parent_id", "retry_of", "root_id", "superseded_by", "successor", "node_id"):
        linked = getattr(job, name)
        yield name.removesuffix("_id").replace("_", " "), None if linked is None else str(linked)
    for name, reason in job.unreadable.items():
        yield f"unreadable {name}", reason
    yield "result", None if "result" in job.unreadable or job.result is None else _indented(job.result)
    yield "error", ": ".join(filter(None, (job.error_type, job.error))) if job.error else None


def values_of(payload: dict[str, object]) -> Iterator[tuple[str, str]]:
    """Texts as they are, if nothing is lost by that; everything else as JSON."""
    for name, value in payload.items():
        is_text = isinstance(value, str) and value != "" and value == value.strip()
        yield name, str(value) if is_text else _indented(value)
    if not payload:
        yield "(no arguments)", ""


def _indented(value: object) -> str:
    from json import dumps

    return dumps(value, indent=2, ensure_ascii=False)


def _print_traceback(runs: Sequence[Run]) -> None:
    last = max((run for run in runs if run.traceback), key=lambda run: run.started_at, default=None)
    if last is not None and last.traceback is not None:
        print_heading(f"traceback of attempt {last.attempt}" + (f" of life {last.life}" if last.life > 1 else ""))
        print(visible(last.traceback.rstrip()))


def explain(id: JobName, *, url: Url = None, app: App = None, json: Json = False) -> None:
    """Say why a job, or a flow, is not running, or how it ended: in one sentence, with the facts and what to do."""
    from perdure.ids import to_uuid
    from perdure.job.flow import FlowRow
    from perdure.ops.explain import explain as explanation_of
    from perdure.ops.explain import explain_flow
    from perdure.ops.lookup import find_either

    with existing_database(url, app) as store:
        (job,) = find_either(store, [id])
        if isinstance(job, FlowRow):
            found = explain_flow(store, job, current_time())
            what, name, said = "flow", to_uuid(job.id), f"{job.sort} {job.name} is {job.state}: {found.why}"
        else:
            found = explanation_of(store, job, current_time())
            what, name, said = "job", job.id, _explained(job, found.why)
    remedy = None if found.remedy is None else completed(found.remedy, url, app)
    if json:
        print_json(
            {
                "id": str(name),
                "state": found.state.value,
                "why": found.why,
                "next": found.next,
                "command": remedy,
                "facts": [{"name": name, "text": text} for name, text in found.facts],
            }
        )
        return
    print(one_line(sentence(said)) + "\n")
    print_fields([(what, str(name)), *found.facts, ("next", remedy or f"{found.next}.")])


def _explained(job: Job, why: str) -> str:
    """`why` of an ended job says its state by itself: "it failed after 3 attempts with …"."""
    if job.is_final and why.startswith("it "):
        return f"{job.kind} {why.removeprefix('it ')}"
    return f"{job.kind} is {job.state}: {why}"


def logs(id: JobName, *, follow: FollowLog = False, url: Url = None, app: App = None, json: Json = False) -> None:
    """Print what a job has logged.

    The lines captured from all its runs, in the order they were written.
    """
    from perdure.ops.forms import log_json
    from perdure.ops.lookup import find_job

    with existing_app(url, app) as perdure:
        job = find_job(perdure.store, id)
        if json and not follow:
            print_json(list(map(log_json, perdure.logs(job))))
        elif not follow:
            _print_log(perdure.logs(job), json=json, live=False)
        else:
            with suppress(KeyboardInterrupt):  # that is how a live view ends
                _print_log(_until_ended(perdure, job), json=json, live=True)


def _print_log(lines: Iterable[LogLine], *, json: bool, live: bool) -> None:
    """One per line; `live`: each at once."""
    from perdure.ops.forms import log_json

    none = True
    for line in lines:
        none = False
        if json:
            print_json_line(log_json(line))
        else:
            print(_log_text(line), flush=live)
    if none and not json:
        print("Nothing was logged.")


def _log_text(line: LogLine) -> str:
    from perdure.ops.forms import fields_of

    fields = fields_of(line)
    beside = "" if fields is None else f" {fields}"
    if isinstance(fields, dict):
        beside = "".join(f" {name}={value}" for name, value in cast("dict[str, object]", fields).items())
    return visible(f"{stamp(line.at)} {line.level:<7} {line.message}{beside}")


def _until_ended(perdure: Perdure, job: Job) -> Iterator[LogLine]:
    """Every line as it comes, until the job has ended and all are given."""
    last: LogLine | None = None
    while True:
        ended = perdure.existing(job).is_final  # asked before the lines: none can come after
        while page := perdure.store.log(job.row.id, last, 200):
            yield from page
            last = page[-1]
        if ended:
            return
        time.sleep(PAUSE_S)
