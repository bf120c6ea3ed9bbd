"""Changing a job before it was ever claimed. Called by `app.edit`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from perdure.errors import TransitionRefused
from perdure.job.job import Job
from perdure.job.transitions import waiting_state
from perdure.options import Options, unknown_option
from perdure.store.answers import Edit

if TYPE_CHECKING:
    from perdure.app import Perdure

EDITABLE = ("payload", "params", "tags", "principal", "queue", "run_at", "delay", "timeout")


def edited(app: Perdure, job: Job, changes: Mapping[str, Any], tx: object) -> Edit | None:
    """The rows as they will be, of the job as `tx` sees it. None: nothing to change."""
    for name in changes:
        if name not in EDITABLE:
            raise unknown_option(name, EDITABLE)
    if not changes:
        return None
    row, live = app.store.row(job.row.id, tx), app.store.live(job.row.id, tx)
    if row is None or live is None:
        raise TransitionRefused(
            f"cannot edit job {job.id}: it has ended; enqueue another, or retry it as it was", code="edit_refused"
        )
    now = app.clock.now()
    options = Options(queue=live.queue).changed({name: value for name, value in changes.items() if name != "payload"})
    if "payload" in changes:
        kind = app.kinds.get(job.kind)
        payload, secrets = kind.codec.encode(changes["payload"])
        row = row._replace(payload=payload, secrets=secrets, kind_version=kind.version)
    row = row._replace(
        params=options.params_json if "params" in changes else row.params,
        principal=options.principal if "principal" in changes else row.principal,
        options=_with_timeout(row.options, options.timeout_ms) if "timeout" in changes else row.options,
        queue=options.queue,
    )
    live = live._replace(
        queue=options.queue,
        kind_version=row.kind_version,
        run_at=options.start_at(now) if {"run_at", "delay"} & changes.keys() else live.run_at,
        timeout_ms=options.timeout_ms if "timeout" in changes else live.timeout_ms,
        updated_at=now,
        version=live.version + 1,
    )
    live = live._replace(state=waiting_state(live, now), park_reason=None)
    return Edit(row, live, tuple(options.tags) if "tags" in changes else job.tags)


def _with_timeout(stored: str | None, timeout_ms: int | None) -> str | None:
    """The stored options, so that a retry by hand knows the new time-out too."""
    kept: dict[str, Any] = json.loads(stored) if stored else {}
    kept.pop("timeout_ms", None)
    if timeout_ms is not None:
        kept["timeout_ms"] = timeout_ms
    return json.dumps(kept, separators=(",", ":")) if kept else None
