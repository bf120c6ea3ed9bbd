"""`perdure job`: all about one job. Asks `app`."""

from __future__ import annotations

import json as json_text
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, cast

from perdure.cli.show import Json, ago, moment, one_line, print_json, sentence, visible
from perdure.cli.tables import print_fields, print_heading
from perdure.cli.target import App, JobName, Url, find_job, front_door
from perdure.cli.typed import as_typed
from perdure.job.model import json_of

if TYPE_CHECKING:
    from perdure.app import Perdure
    from perdure.job.views import Job, Run

HIDDEN = "***"


def job(id: JobName, *, url: Url = None, app: App = None, json: Json = False) -> None:
    """Show everything about one job.

    Its fields, its payload with secrets hidden, its runs, why it is where it is, and the traceback of the last attempt
    that raised.
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
    print_fields([*_fields(found), ("why", sentence(one_line(why.why))), ("next", remedy or f"{why.next}.")])
    if payload is not None:
        print_heading("payload")
        print_fields(_values(payload))
    if "params" not in found.unreadable and found.params:
        print_heading("params")
        print_fields(_values(found.params))
    if runs:
        from perdure.cli.runs import print_runs

        print_heading("runs")
        print_runs(runs, of_one=True)
        _print_traceback(runs)


def _print_traceback(runs: Sequence[Run]) -> None:
    """Of the last attempt that left one."""
    last = max((run for run in runs if run.traceback), key=lambda run: run.started_at, default=None)
    if last is not None and last.traceback is not None:
        print_heading(f"traceback of attempt {last.attempt}" + (f" of life {last.life}" if last.life > 1 else ""))
        print(visible(last.traceback.rstrip()))


def payload_of(door: Perdure, job: Job) -> dict[str, object] | None:
    """The arguments, with stars in the place of secret ones."""
    if "payload" in job.unreadable:
        return None
    row = door.store.row(job.row.id)
    secrets = None if row is None else row.secrets
    return None if job.payload is None else {**job.payload, **dict.fromkeys(_names(secrets), HIDDEN)}


def _names(secrets: str | None) -> Sequence[str]:
    """Of the secret arguments; one that stands for all of them where they cannot be read."""
    try:
        read = json_of(secrets)
    except (TypeError, ValueError):
        return ["(secret arguments)"]
    return list(cast("dict[str, object]", read)) if isinstance(read, dict) else []


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
    for name, reason in job.unreadable.items():
        yield f"unreadable {name}", reason
    known = "result" not in job.unreadable
    yield (
        "result",
        None if not known or job.result is None else json_text.dumps(job.result, indent=2, ensure_ascii=False),
    )
    yield "error", None if not job.error else ": ".join(part for part in (job.error_type, job.error) if part)
