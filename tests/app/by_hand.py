"""A worker without a worker: claims the jobs of an app and says how they ended."""

from __future__ import annotations

from perdure import Perdure
from perdure.ids import JobId, NodeId, RunId
from perdure.job.model import Claim, Failure
from perdure.job.reports import Completed, Failed, Finish, Released, Report, Skipped
from perdure.store.rows import Claimer, Finished, Lane, NewNode

__all__ = ["Completed", "Failed", "Released", "Skipped", "claim", "complete", "fail", "finish"]

LEASE_US = 60_000_000


def claim(app: Perdure, queue: str = "default", room: int = 100) -> list[Claim]:
    """Take what may start now, as a fresh node that knows every kind."""
    node = NodeId(app.ids.new())
    now = app.clock.now()
    app.store.register(NewNode(node, now))
    runs = [RunId(run) for run in app.ids.new_many(room)]
    return app.store.claim([Lane(queue, room)], Claimer(node, None, runs, LEASE_US), now)


def finish(app: Perdure, claims: list[Claim], report: Report) -> list[Finished]:
    batch = [Finish(taken.live, report, JobId(app.ids.new())) for taken in claims]
    return app.store.finish(batch, app.clock.now())


def complete(app: Perdure, result: str | None = None, queue: str = "default") -> int:
    """Let every job of a queue succeed with this result (JSON text); answers how many there were."""
    return len(finish(app, claim(app, queue), Completed(result)))


def fail(app: Perdure, message: str = "no luck", queue: str = "default") -> int:
    """Let every job of a queue fail for good."""
    return len(finish(app, claim(app, queue), Failed(Failure("RuntimeError", message, permanent=True))))
