"""From a draft to the rows of a new job: arguments checked, keys derived, times fixed. Called by `app`."""

from __future__ import annotations

import hashlib
import json
from contextvars import ContextVar
from typing import Any

from perdure.clock import Micros
from perdure.errors import InvalidOption
from perdure.ids import JobId
from perdure.job.model import JobRow, LiveJob, NewJob
from perdure.job.states import State
from perdure.kind import Draft
from perdure.options import KEY_LIMIT, Unique, check_name

principal: ContextVar[str | None] = ContextVar("perdure.principal", default=None)
"""On whose behalf jobs are enqueued from here on, unless an option says otherwise."""


def new_job(draft: Draft, job_id: JobId, now: Micros, owner: str) -> NewJob:
    """Check a draft and lay out its rows. Raises InvalidPayload or InvalidOption; nothing is written here."""
    kind, options = draft.kind, draft.options
    codec = kind.codec
    payload, secrets, _ = codec.encode(draft.arguments)
    idempotency_key, business_key, conflict = options.idempotency_key, options.business_key, options.conflict
    if options.unique is not None:
        derived = _derived_key(options.unique, kind.name, payload, secrets)
        if options.unique.until == "ever":
            idempotency_key = idempotency_key or derived
        else:
            business_key, conflict = business_key or derived, options.unique.conflict
    run_at = options.start_at(now)
    policy = options.policy
    # _make, in the order of the fields: half the cost of the constructors, in the inner loop of enqueue_many
    row = JobRow._make(
        (
            job_id,
            kind.name,
            kind.version,
            owner,
            options.queue,
            payload,
            secrets,
            options.params_json,
            options.stored,
            options.principal or _principal(),
            idempotency_key,
            business_key,
            *_NO_LINKS,
            1,
            now,
        ),
    )
    live = LiveJob._make(
        (
            job_id,
            options.queue,
            kind.name,
            kind.version,
            _SCHEDULED if run_at > now else _QUEUED,
            options.rank,
            0,
            run_at,
            now,
            None,
            0,
            0,
            1,
            policy.max_attempts,
            int(policy.as_new_job),
            options.timeout_ms,
            None,
            None,
            None,
            None,
            0,
            None,
            business_key,
            None,
            0,
            0,
            None,
            None,
            now,
            1,
        ),
    )
    if idempotency_key is None and business_key is None:
        return NewJob(row, live, tuple(options.tags), None, conflict)
    fingerprint = codec.fingerprint(payload, secrets) if idempotency_key is not None else None
    return NewJob(row, live, tuple(options.tags), fingerprint, conflict, (kind.name, *kind.aliases))


_QUEUED, _SCHEDULED = State.QUEUED.value, State.SCHEDULED.value
_NO_LINKS = (None,) * 11
assert JobRow._fields[12 : 12 + len(_NO_LINKS)] == (
    "template_id",
    "schedule_id",
    "scheduled_for",
    "batch_id",
    "group_id",
    "sequence",
    "workflow_id",
    "parent_id",
    "root_id",
    "retry_of",
    "auto_retry_of",
)


def _principal() -> str | None:
    name = principal.get()
    return None if name is None else check_name(name, "principal", KEY_LIMIT)


def _derived_key(unique: Unique, kind: str, payload: str, secrets: str | None) -> str:
    """The same text for the same arguments of the same kind; a digest, so that neither length nor secrets show."""
    arguments: dict[str, Any] = json.loads(payload)
    if unique.names is None:
        if secrets is not None:
            arguments |= json.loads(secrets)
    else:
        arguments = {name: _argument(arguments, name, kind) for name in unique.names}
    canonical = json.dumps(arguments, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return f"{kind}:{hashlib.sha256(canonical.encode()).hexdigest()}"


def _argument(arguments: dict[str, Any], name: str, kind: str) -> Any:
    if name not in arguments:
        raise InvalidOption(
            f"Unique(by={name!r}) on {kind!r}: this job was enqueued without that argument (or it is secret); pass it,"
            " or make the job unique by something else",
            code="unique_invalid",
        )
    return arguments[name]
