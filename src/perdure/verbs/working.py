"""From `app.worker(…)` to a worker. Brings together what only the app knows; called by `app`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perdure.ids import JobId
from perdure.job.model import NewJob
from perdure.kind import Draft
from perdure.verbs.drafting import new_job
from perdure.worker.node import Duty
from perdure.worker.worker import Worker, WorkerOptions, WorkerParts

if TYPE_CHECKING:
    from perdure.app import Perdure


def worker_of(
    app: Perdure, queues: Sequence[str] | Mapping[str, int] | None, concurrency: int, options: dict[str, Any]
) -> Worker:
    """A worker for the jobs of this app's database."""

    def lay_out(draft: Draft) -> NewJob:
        now = app.clock.now()
        return new_job(draft, JobId(app.ids.new()), now)

    duty = Duty(
        queues=None if queues is None else tuple(queues),
        concurrency=concurrency,
        per_queue=dict(queues) if isinstance(queues, Mapping) else {},
        lease_s=app.config.lease_s,
    )
    parts = WorkerParts(app.store, app.kinds, app.clock, app.ids, lay_out)
    return Worker(parts, WorkerOptions(duty, **options))
