"""Reading jobs, runs and queues. Called through `store`; pages go by key, so a page costs the same however deep."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from perdure.ids import JobId
from perdure.job.job import Job
from perdure.job.model import JobRow, JobView, RunRow
from perdure.job.run import Run
from perdure.job.states import FINAL, RunState, State
from perdure.store.answers import FIRST_ID, JobFilter, RunFilter
from perdure.store.sql.engine import Call, Op

_LISTED_LIVE = {
    State.QUEUED: "list_live",
    State.SCHEDULED: "list_live",
    State.RUNNING: "list_running",
    State.PAUSED: "list_aside",
    State.BLOCKED: "list_aside",
    State.HELD: "list_aside",
    State.PARKED: "list_aside",
}


def view_of(job_id: JobId, *, deduplicated: bool = False) -> Op[Job | None]:
    """The job as it is now. None: there is no such job."""
    rows = (yield Call("read_job", {"job_id": job_id})).rows
    return Job(_job_view(rows[0]), deduplicated=deduplicated) if rows else None


def row_of(job_id: JobId) -> Op[JobRow | None]:
    """The cold row, secrets included. None: there is no such job."""
    rows = (yield Call("read_job_row", {"job_id": job_id})).rows
    return JobRow._make(rows[0]) if rows else None


def page_of_jobs(wanted: JobFilter, after: Job | None, size: int) -> Op[list[Job]]:
    """The jobs after `after` (None: from the start), newest first; queued jobs of one queue in queue order instead."""
    statement = _driving_statement(wanted)
    params: dict[str, object] = {**wanted._asdict(), "page": size}
    if statement == "list_queue":
        last = after.row if after is not None else None
        params |= {
            "rank": last.rank if last else -(2**31),
            "position": last.position if last else -(2**62),
            "after": last.id if last else FIRST_ID,
        }
    elif after is not None:
        params["below"] = after.row.id
    rows = (yield Call(statement, params)).rows
    return [Job(_job_view(row)) for row in rows]


def _driving_statement(wanted: JobFilter) -> str:
    """The listing whose index narrows most; the other filters are applied to what it finds."""
    if wanted.business_key is not None:
        return "list_by_business_key"
    if wanted.idempotency_key is not None:
        return "list_by_idempotency_key"
    if wanted.state == State.QUEUED and wanted.queue is not None:
        return "list_queue"
    if wanted.state in FINAL - {State.COMPLETED}:
        return "list_ended"
    if wanted.tag is not None:
        return "list_by_tag"
    if wanted.state in _LISTED_LIVE:
        return _LISTED_LIVE[State(wanted.state)]
    return "list_all" if wanted.kind is None else "list_by_kind"


def count_ahead(job: Job) -> Op[int]:
    """How many queued jobs start before this one."""
    row = job.row
    place = {"queue": row.queue, "rank": row.rank, "position": row.position, "job_id": row.id}
    return cast("int", (yield Call("count_ahead", place)).rows[0][0])


def waited_for(job_id: JobId, limit: int) -> Op[list[JobId]]:
    """The jobs that have to end before this one may start."""
    rows = (yield Call("list_waited_for", {"job_id": job_id, "page": limit})).rows
    return [cast("JobId", row[0]) for row in rows]


def page_of_runs(wanted: RunFilter, after: Run | None, size: int) -> Op[list[Run]]:
    """The runs after `after` (None: from the start), newest first."""
    params: dict[str, object] = {**wanted._asdict(), "page": size}
    if after is not None:
        params["below"] = after.row.id
    rows = (yield Call(_driving_runs(wanted), params)).rows
    return [Run(RunRow._make(row)) for row in rows]


def _driving_runs(wanted: RunFilter) -> str:
    if wanted.job_id is not None:
        return "list_runs_of_job"
    return "list_runs" if wanted.state in (None, RunState.RUNNING, RunState.COMPLETED) else "list_runs_by_state"


def _job_view(row: Iterable[object]) -> JobView:
    return JobView._make(row)
