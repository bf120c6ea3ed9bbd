"""Idempotency keys (for ever) and business keys (while the job is live). Used by `jobs` and `apply`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from perdure.errors import KeyConflict, Remedy
from perdure.ids import JobId, to_uuid
from perdure.job.job import Job
from perdure.job.model import NewJob
from perdure.job.states import FINAL, State
from perdure.store.sql.engine import Call, Op
from perdure.store.sql.reads import view_of


def is_keyed(new: NewJob) -> bool:
    return new.idempotency_key is not None or new.business_key is not None


def reserve(new: Sequence[NewJob]) -> Op[bool]:
    """Take every key of these jobs. False: some were taken already, and the caller must roll back.

    An idempotency key is taken under every name of its kind: whoever knows but one of them (another release of the
    program, side by side with this one) finds it taken. In the order of the keys, not of the jobs: else two callers
    with the same keys could wait for each other (servers).
    """
    ledger = [
        (name, job.idempotency_key, job.id, job.plan.kind_version, job.fingerprint, job.created_at)
        for job in new
        if job.idempotency_key is not None
        for name in job.plan.names
    ]
    if ledger and (yield Call("reserve_idempotency_key", sorted(ledger))).changed != len(ledger):
        return False
    live = [(job.business_key, job.id) for job in new if job.business_key is not None]
    return not live or (yield Call("reserve_business_key", sorted(live))).changed == len(live)


def find(new: NewJob) -> Op[Job | KeyConflict | None]:
    """The job that holds one of this job's keys: as an answer where that is wanted, as an error where it is not."""
    if new.idempotency_key is not None:
        original = yield from _find_original(new, new.idempotency_key)
        if original is not None:
            return original
    if new.business_key is not None:
        return (yield from _find_holder(new, new.business_key))
    return None


def _find_original(new: NewJob, key: str) -> Op[Job | KeyConflict | None]:
    for kind in new.plan.names:
        rows = (yield Call("read_idempotency_key", {"kind": kind, "key": key})).rows
        if rows:
            job_id, version, fingerprint, final_state = cast("tuple[JobId, int, str, str | None]", rows[0])
            if version == new.plan.kind_version and fingerprint != new.fingerprint:
                return KeyConflict(
                    f"idempotency key {key!r} of kind {new.plan.kind!r} was used for job {to_uuid(job_id)} with other"
                    " arguments; use a new key for new work, or pass the same arguments to get that job back",
                    code="idempotency_mismatch",
                )
            job = yield from view_of(job_id, deduplicated=True)
            return job or Job.pruned(job_id, new, State(final_state or State.COMPLETED))
    return None


def _find_holder(new: NewJob, key: str) -> Op[Job | KeyConflict | None]:
    holder = yield from holder_of(key)
    if holder is None or new.plan.conflict == "return":
        return holder
    return business_key_taken(key, holder.row.id)


def holder_of(key: str) -> Op[Job | None]:
    """The live job that holds a business key. None: it can be reserved; a key whose job is not live is freed here."""
    rows = (yield Call("read_business_key", {"key": key})).rows
    if not rows:
        return None
    job_id = cast("JobId", rows[0][0])
    holder = yield from view_of(job_id, deduplicated=True)
    if holder is None or holder.row.state in FINAL:
        yield Call("free_orphaned_business_key", {"key": key, "job_id": job_id})
        return None
    return holder


def business_key_taken(key: str, holder: JobId) -> KeyConflict:
    job_id = to_uuid(holder)
    return KeyConflict(
        f"business key {key!r} is held by live job {job_id}",
        code="business_key_taken",
        remedy=Remedy(
            'wait for it, supersede it, or enqueue with conflict="return" to get that job',
            f"wait until it has ended, or cancel it with perdure cancel {job_id}{{database}}",
        ),
    )
