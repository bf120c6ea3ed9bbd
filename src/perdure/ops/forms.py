"""Jobs, runs and the rest as JSON data: stable keys, ids as text, times in ISO 8601 UTC. Used by every `--json`.

Secret arguments are in none of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from perdure.clock import Micros, iso, to_micros
from perdure.ids import to_uuid
from perdure.job.model import json_of

if TYPE_CHECKING:
    from perdure.flow.views import Flow, Graph
    from perdure.job.views import Job, Run
    from perdure.kind import Kind
    from perdure.ops.doctor import Finding
    from perdure.ops.progress import Working
    from perdure.ops.status import Status
    from perdure.queues import Queue
    from perdure.schedule.policy import Policy
    from perdure.schedule.trigger import Trigger
    from perdure.schedules import MissedSlots, Schedule, Slot
    from perdure.store.protocols import Store
    from perdure.store.rows import LogLine, NodeRow, ReservationRow, StoredKind
    from perdure.templates import Template

HIDDEN = "***"
"""Shown instead of a secret argument."""
JOB_KEYS = (
    "id", "kind", "kind_version", "owner", "queue", "state", "priority", "position", "payload", "params", "tags",
    "attempts", "max_attempts", "crashes", "life", "result", "error_type", "error", "park_reason", "cancel_requested",
    "waits_for", "created_at", "queued_at", "run_at", "started_at", "finished_at", "idempotency_key", "business_key",
    "principal", "template_id", "template_version", "parent_id", "root_id", "retry_of", "superseded_by", "successor",
    "schedule_id", "scheduled_for", "flow_id",
    "node_id", "run_id", "version",
)  # fmt: skip
RUN_KEYS = (
    "id", "job_id", "kind", "state", "attempt", "life", "node_id", "started_at", "finished_at", "wait_ms",
    "duration_ms", "exit_code", "error_type", "error", "traceback", "artifacts", "log_path", "metrics",
)  # fmt: skip
_QUEUE_KEYS = (
    "name",
    "paused",
    "paused_at",
    "reserved",
    "reserved_until",
    "concurrency",
    "queued",
    "running",
    "live",
    "more_queued",
    "more_live",
)
_TEMPLATE_KEYS = (
    "id", "name", "version", "latest", "kind", "kind_version", "payload", "queue", "priority", "tags", "params",
    "principal", "max_attempts", "description", "created_at", "written_at", "archived_at", "problem",
)  # fmt: skip
_SCHEDULE_KEYS = (
    "id", "name", "kind", "words", "enabled", "disabled_reason", "problem", "description", "source", "owner",
    "last_trigger_at", "next_trigger_at", "created_at", "version",
)  # fmt: skip
_SLOT_KEYS = ("scheduled_for", "status", "job_id", "node_id", "taken_at", "previous", "following")
_MISSED_KEYS = ("first", "last", "count", "reason", "recorded_at")
_FLOW_KEYS = (
    "id", "sort", "name", "key", "owner", "state", "total", "added", "completed", "failed", "cancelled", "skipped",
    "running", "waiting", "progress", "success_rate", "on_failure", "at_once", "attempt", "attempts", "run_ms",
    "wait_ms", "parent_id", "filled_by", "properties", "principal", "cancel_requested", "created_at", "sealed_at",
    "paused_at", "finished_at", "eta",
)  # fmt: skip
_FLOW_IN_STATUS = (
    "id", "sort", "name", "total", "added", "completed", "failed", "cancelled", "skipped", "running", "paused_at",
    "created_at", "eta",
)  # fmt: skip
_FINDING_KEYS = ("name", "severity", "explanation", "count", "examples", "repair")
_QUESTIONS = ("outstanding", "failed", "stuck", "durations", "duplicates", "ran")
_INSTANTS = ("since", "last")


def job_json(job: Job) -> dict[str, object]:
    """What cannot be read is null, and the key `unreadable`, which whole rows do not have, says why."""
    return _readable(job, JOB_KEYS)


def flow_json(flow: Flow) -> dict[str, object]:
    return _read(flow, _FLOW_KEYS)


def graph_json(graph: Graph) -> dict[str, object]:
    """A flow with its jobs, the flows inside it, and what waits for what."""
    return {
        "flow": flow_json(graph.flow),
        "jobs": [
            {"id": str(job.id), "kind": job.kind, "state": job.state.value, "error": job.error} for job in graph.jobs
        ],
        "inner": list(map(graph_json, graph.inner)),
        "edges": [
            {"depends_on": str(edge.depends_on), "job": str(edge.job), "needs": edge.needs, "state": edge.state}
            for edge in graph.edges
        ],
        "more": graph.more,
    }


def run_json(run: Run) -> dict[str, object]:
    return _readable(run, RUN_KEYS)


def payload_json(store: Store, job: Job) -> dict[str, object] | None:
    """The arguments, with stars instead of secret ones."""
    if "payload" in job.unreadable:
        return None
    row = store.row(job.row.id)
    secrets = None if row is None else row.secrets
    return None if job.payload is None else with_stars(job.payload, secrets)


def with_stars(payload: Mapping[str, object], secrets: str | None) -> dict[str, object]:
    """The arguments, and stars for those in the column `secrets`."""
    return {**payload, **dict.fromkeys(_names(secrets), HIDDEN)}


def log_json(line: LogLine) -> dict[str, object]:
    return {
        "run_id": str(to_uuid(line.run_id)),
        "line": line.line,
        "at": _instant(line.at),
        "level": line.level,
        "message": line.message,
        "fields": fields_of(line),
    }


def fields_of(line: LogLine) -> object:
    """What was logged beside the message; as it is stored where that is not JSON."""
    try:
        return json_of(line.fields)
    except ValueError:
        return line.fields


def node_json(node: NodeRow, state: str, running: int) -> dict[str, object]:
    return {
        "id": str(to_uuid(node.id)),
        "state": state,
        "host": node.host,
        "pid": node.pid,
        "kinds": kind_names(node),
        "running": running,
        "started_at": _instant(node.started_at),
        "beat_at": _instant(node.beat_at),
        "stopped_at": _instant(node.stopped_at),
        "stop_reason": node.stop_reason,
        "lease_s": _seconds(node.lease_us),
    }


def kind_names(node: NodeRow) -> list[str]:
    """The kinds a node has, those of a later version with it: `send v2`. Empty as well if it names none."""
    from perdure.ops.workers import kinds_of

    return [name if version == 1 else f"{name} v{version}" for name, version in (kinds_of(node) or {}).items()]


def kind_json(kind: Kind[..., Any, ..., Any], stored: Iterable[StoredKind]) -> dict[str, object]:
    """A kind that an app declares. `live`: how many of the stored jobs have one of its names and have not ended."""
    timeout = kind.defaults.timeout_ms
    return {
        "name": kind.name,
        "aliases": list(kind.aliases),
        "version": kind.version,
        "queue": kind.defaults.queue,
        "max_attempts": kind.defaults.policy.max_attempts,
        "timeout_s": None if timeout is None else timeout / 1000,
        "isolation": kind.isolation or ("loop" if kind.is_async else "thread"),
        "place": kind.place,
        "declared": True,
        "live": sum(known.live for known in stored if known.name in kind.names),
    }


def stored_kind_json(kind: StoredKind, *, declared: bool | None) -> dict[str, object]:
    """A kind that only stored jobs name. `declared` None: no app was asked."""
    unknown = dict.fromkeys(("queue", "max_attempts", "timeout_s", "isolation", "place"))
    return {
        "name": kind.name,
        "aliases": [],
        "version": kind.version,
        **unknown,
        "declared": declared,
        "live": kind.live,
    }


def queue_json(queue: Queue) -> dict[str, object]:
    return _read(queue, _QUEUE_KEYS)


def template_json(template: Template) -> dict[str, Any]:
    """The arguments with stars instead of secret ones."""
    timeout = None if template.timeout is None else template.timeout.total_seconds()
    payload = template.payload | dict.fromkeys(template.secrets, HIDDEN)
    return _read(template, _TEMPLATE_KEYS) | {"payload": payload, "timeout_s": timeout}


def schedule_json(schedule: Schedule, now: Micros) -> dict[str, object]:
    """Spans in seconds. `trigger` is null where the row cannot be understood."""
    from perdure.ops.status import schedule_state

    return {
        **_read(schedule, _SCHEDULE_KEYS[:2]),
        "state": schedule_state(schedule, now).value,
        **_read(schedule, _SCHEDULE_KEYS[2:]),
        "payload": dict(schedule.payload),
        "trigger": _trigger_json(schedule.trigger),
        "policy": _policy_json(schedule.policy),
    }


def _trigger_json(trigger: Trigger | None) -> dict[str, object] | None:
    if trigger is None:
        return None
    bounds = {"at": trigger.at, "start": trigger.start, "end": trigger.end}
    return {
        "cron": trigger.cron,
        "every_s": _seconds(trigger.every_us),
        "tz": trigger.tz,
        **{name: _instant(at) for name, at in bounds.items()},
    }


def _policy_json(policy: Policy) -> dict[str, object]:
    return {
        "catch_up": policy.catch_up,
        "overlap": policy.overlap,
        "misfire_grace_s": _seconds(policy.misfire_grace_us),
        "catch_up_limit": policy.catch_up_limit,
        "catch_up_window_s": _seconds(policy.catch_up_window_us),
        "jitter_s": _seconds(policy.jitter_us),
        "max_runtime_s": _seconds(policy.max_runtime_us),
        "at_most_once": policy.at_most_once,
    }


def slot_json(slot: Slot) -> dict[str, object]:
    return _read(slot, _SLOT_KEYS) | {"note": dict(slot.note)}


def missed_json(missed: MissedSlots) -> dict[str, object]:
    return _read(missed, _MISSED_KEYS)


def status_json(found: Status) -> dict[str, object]:
    """What is going on; the keys of each row are its fields in the store."""
    rows = {name: [_row_json(row._asdict()) for row in getattr(found, name)] for name in _QUESTIONS}
    from perdure.flow.views import Flow
    from perdure.ops.status import remedy

    reserved = [reservation_json(row) for row in found.reservations]
    schedules = [_row_json(row._asdict()) for row in found.schedules]
    hindrances = [{**row._asdict(), "remedy": remedy(row)} for row in found.hindrances]
    about = {"at": _instant(found.at), "complete": found.is_complete}
    running = [_working_json(one) for one in found.running]
    flows = [_read(Flow(row, found.at), _FLOW_IN_STATUS) for row in found.flows]
    limits = [{"name": row.name, "paused_at": _instant(row.paused_at)} for row in found.limits if row.paused_at]
    others = {"running": running, "reservations": reserved, "schedules": schedules, "flows": flows, "limits": limits}
    return {**about, **rows, **others, "hindrances": hindrances}


def _working_json(one: Working) -> dict[str, object]:
    job = one.job
    return {
        "id": str(job.id),
        "kind": job.kind,
        "queue": job.queue,
        "attempt": job.attempts,
        "since": iso(one.since),
        "progress": None if one.progress is None else dict(one.progress),
    }


def reservation_json(row: ReservationRow) -> dict[str, object]:
    """Who holds, or held, a queue; `*` means every queue."""
    return {
        "id": str(to_uuid(row.id)),
        "queue": row.queue,
        "by": row.reserved_by,
        "status": row.status,
        "reserved_at": _instant(row.reserved_at),
        "entered_at": _instant(row.entered_at),
        "expires_at": _instant(row.expires_at),
        "closed_at": _instant(row.closed_at),
        "host": row.host,
        "pid": row.pid,
    }


def finding_json(found: Finding) -> dict[str, object]:
    return _read(found, _FINDING_KEYS)


def _readable(row: Job | Run, keys: Sequence[str]) -> dict[str, object]:
    unreadable = row.unreadable
    read = _read(row, [key for key in keys if key not in unreadable])
    return {key: read.get(key) for key in keys} | ({"unreadable": unreadable} if unreadable else {})


def _read(row: object, keys: Sequence[str]) -> dict[str, object]:
    return {key: _value(getattr(row, key)) for key in keys}


def _value(value: object) -> object:
    if isinstance(value, datetime):
        return iso(to_micros(value))
    if isinstance(value, UUID):
        return str(value)
    return list(cast("tuple[object, ...]", value)) if isinstance(value, tuple) else value


def _row_json(row: dict[str, object]) -> dict[str, object]:
    shown = dict(row)
    for name, value in row.items():
        if name in _INSTANTS and isinstance(value, int):
            shown[name] = _instant(Micros(value))
        elif isinstance(value, bytes):
            shown[name] = str(to_uuid(value))
    return shown


def _seconds(micros: int | None) -> float | None:
    return None if micros is None else micros / 1_000_000


def _instant(at: Micros | None) -> str | None:
    return None if at is None else iso(at)


def _names(secrets: str | None) -> Sequence[str]:
    """The names of the secret arguments; one for all of them where they cannot be read."""
    try:
        read = json_of(secrets)
    except (TypeError, ValueError):
        return ["(secret arguments)"]
    return list(cast("dict[str, object]", read)) if isinstance(read, dict) else []
