"""Why a job is where it is. Called by `app.explain`; asks the store and changes nothing."""

from __future__ import annotations

from typing import NamedTuple

from perdure.clock import Micros, iso
from perdure.ids import to_uuid
from perdure.job.job import Job
from perdure.job.states import Park, State
from perdure.store.answers import QueueRow
from perdure.store.protocols import Store

EVERYTHING = "*"
_SHOWN = 5


class Explanation(NamedTuple):
    """`why` the job is in its state; `next`: what moves it on."""

    state: State
    why: str
    next: str

    def __str__(self) -> str:
        return f"{self.state}: {self.why}. {self.next}."


def explain(store: Store, job: Job, now: Micros) -> Explanation:
    """What keeps the job where it is, from the database alone."""
    why, following = _reasons(store, job, now)
    return Explanation(job.state, why, following)


def _reasons(store: Store, job: Job, now: Micros) -> tuple[str, str]:
    match job.state:
        case State.QUEUED:
            return _queued(store, job, now)
        case State.RUNNING:
            asked = "; a cancel was asked for" if job.cancel_requested else ""
            return f"node {job.node_id} runs attempt {job.attempts} of {job.max_attempts}{asked}", "It ends by itself"
        case State.SCHEDULED:
            why = f"it may not start before {iso(job.row.run_at)}"
            if job.row.run_at <= now:
                return f"{why}, which has passed", "A worker queues it at its next turn"
            return why + (f", after {job.error}" if job.error else ""), "It is queued then"
        case State.BLOCKED:
            return _blocked(store, job), "It is queued when they have ended"
        case State.HELD:
            return "it waits for a permit", "It is queued when one is free"
        case State.PAUSED:
            return "it was paused by hand", "app.resume(job) lets it go on"
        case State.PARKED:
            return _PARKED[Park(job.park_reason or Park.UNREADABLE)]
        case State.COMPLETED | State.FAILED | State.CANCELLED | State.SKIPPED:
            return _ended(job)


_PARKED = {
    Park.UNKNOWN_KIND: (
        "a worker reached it that has no kind of that name",
        "A worker that has it takes the job; else app.cancel(job)",
    ),
    Park.NEWER_VERSION: (
        "a worker reached it whose code is older than the one that enqueued it",
        "A worker with the newer code takes the job",
    ),
    Park.UNREADABLE: ("its payload cannot be decoded", "Mend it and app.resume(job), or app.cancel(job)"),
}


def _queued(store: Store, job: Job, now: Micros) -> tuple[str, str]:
    for queue in store.queues():
        if queue.name in (job.queue, EVERYTHING) and (closed := _closed(queue, now)):
            return closed
    ahead = store.count_ahead(job)
    if all(node.stopped_at is not None for node in store.nodes(100)):
        return "no worker is registered", "Start a worker for this database"
    return f"{ahead} jobs of queue {job.queue!r} go first", "A worker with a free place claims it"


def _closed(queue: QueueRow, now: Micros) -> tuple[str, str] | None:
    name = "every queue" if queue.name == EVERYTHING else f"queue {queue.name!r}"
    if queue.paused_at is not None:
        return f"{name} is paused since {iso(queue.paused_at)}", f"app.queues.resume({queue.name!r}) lets it go on"
    if queue.reserved_until is not None and queue.reserved_until > now:
        return f"{name} is reserved until {iso(queue.reserved_until)}", "It goes on when the reservation ends"
    return None


def _blocked(store: Store, job: Job) -> str:
    named = ", ".join(str(to_uuid(other)) for other in store.waited_for(job.row.id, _SHOWN))
    return f"it waits for {job.waits_for} jobs to end ({named})"


def _ended(job: Job) -> tuple[str, str]:
    attempts = f"after {job.attempts} attempt{'' if job.attempts == 1 else 's'}"
    if job.superseded_by is not None:
        return f"job {job.superseded_by} took its place", "That one goes on"
    if job.successor is not None:
        return f"job {job.successor} goes on with its work", "Look there"
    if job.state == State.COMPLETED:
        return f"it completed {attempts}", "Nothing more happens"
    why = f"it {'failed' if job.state == State.FAILED else f'was {job.state}'} {attempts}"
    if job.error:
        why += f" with {job.error_type}: {job.error}"
    if job.state == State.SKIPPED:
        return why, "app.retry(job, as_new=True) runs it as a new job"
    return why, "app.retry(job) opens a new life"
