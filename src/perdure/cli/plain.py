"""Jobs, runs and the rest as JSON data: stable keys, ids as text, times in ISO 8601 UTC. Used by every `--json`.

Secret arguments are in none of them.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

from perdure.cli.show import moment_json
from perdure.clock import to_datetime
from perdure.ids import to_uuid
from perdure.job.model import json_of

if TYPE_CHECKING:
    from perdure.job.views import Job, Run
    from perdure.store.rows import LogLine, NodeRow

JOB_KEYS = (
    "id", "kind", "kind_version", "owner", "queue", "state", "priority", "position", "payload", "params", "tags",
    "attempts", "max_attempts", "crashes", "life", "result", "error_type", "error", "park_reason", "cancel_requested",
    "waits_for", "created_at", "queued_at", "run_at", "started_at", "finished_at", "idempotency_key", "business_key",
    "principal", "parent_id", "root_id", "retry_of", "superseded_by", "successor", "node_id", "run_id", "version",
)  # fmt: skip
RUN_KEYS = (
    "id", "job_id", "kind", "state", "attempt", "life", "node_id", "started_at", "finished_at", "wait_ms",
    "duration_ms", "exit_code", "error_type", "error_message", "traceback", "artifacts", "log_path", "metrics",
)  # fmt: skip


def plain_job(job: Job) -> dict[str, object]:
    """What cannot be read is null, and the key `unreadable`, which whole rows do not have, says why."""
    unreadable = job.unreadable
    plain = {key: None if key in unreadable else _plain(getattr(job, key)) for key in JOB_KEYS}
    return plain | {"unreadable": unreadable} if unreadable else plain


def plain_run(run: Run) -> dict[str, object]:
    """The same of a run."""
    unreadable = run.unreadable
    plain = {key: None if key in unreadable else _plain(getattr(run, key)) for key in RUN_KEYS}
    return plain | {"unreadable": unreadable} if unreadable else plain


def plain_line(line: LogLine) -> dict[str, object]:
    return {
        "run_id": str(to_uuid(line.run_id)),
        "line": line.line,
        "at": moment_json(to_datetime(line.at)),
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


def plain_node(node: NodeRow, state: str, running: int) -> dict[str, object]:
    return {
        "id": str(to_uuid(node.id)),
        "state": state,
        "host": node.host,
        "pid": node.pid,
        "kinds": kind_names(node),
        "running": running,
        "started_at": moment_json(to_datetime(node.started_at)),
        "beat_at": moment_json(to_datetime(node.beat_at)),
        "stopped_at": None if node.stopped_at is None else moment_json(to_datetime(node.stopped_at)),
        "stop_reason": node.stop_reason,
        "lease_s": None if node.lease_us is None else node.lease_us / 1_000_000,
    }


def kind_names(node: NodeRow) -> list[str]:
    """The kinds a node has, those of a later version with it: `send v2`. Empty as well if it names none."""
    from perdure.ops.workers import kinds_of

    return [name if version == 1 else f"{name} v{version}" for name, version in (kinds_of(node) or {}).items()]


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return moment_json(value)
    if isinstance(value, UUID):
        return str(value)
    return list(value) if isinstance(value, tuple) else value  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
