"""Why a job is where it is. Called by `app.explain` and `perdure explain`; asks the store and changes nothing.

Of jobs that wait `waiting` knows it, of the others `at_work`.
"""

from __future__ import annotations

from perdure.clock import Micros
from perdure.job.job import Job
from perdure.job.states import State
from perdure.ops import at_work, waiting
from perdure.ops.explanation import Explanation, Facts
from perdure.store.protocols import Store

__all__ = ["Explanation", "explain"]


def explain(store: Store, job: Job, now: Micros) -> Explanation:
    """What keeps the job where it is: from the database, and of workers of this machine whether they still run."""
    found = _explained(store, job, now)
    return found._replace(facts=(*_common(job), *found.facts))


def _common(job: Job) -> Facts:
    facts = [("kind", job.kind + (f" (version {job.kind_version})" if job.kind_version > 1 else ""))]
    facts.append(("queue", job.queue))
    if job.priority:
        facts.append(("priority", str(job.priority)))
    facts.append(("attempts", f"{job.attempts} of {job.max_attempts}" + (f", life {job.life}" if job.life > 1 else "")))
    if job.crashes:
        facts.append(("crashes", f"{job.crashes}: its worker died while it ran"))
    facts += [(f"unreadable {name}", why) for name, why in job.unreadable.items()]
    return tuple(facts)


def _explained(store: Store, job: Job, now: Micros) -> Explanation:
    match job.state:
        case State.QUEUED:
            return waiting.queued(store, job, now)
        case State.RUNNING:
            return at_work.running(store, job, now)
        case State.SCHEDULED:
            return waiting.scheduled(store, job, now)
        case State.BLOCKED:
            return waiting.blocked(store, job, now)
        case State.HELD:
            return waiting.held(store, job)
        case State.PAUSED:
            return waiting.paused(store, job)
        case State.PARKED:
            return waiting.parked(store, job, now)
        case State.COMPLETED | State.FAILED | State.CANCELLED | State.SKIPPED:
            return at_work.ended(job)
