"""How a run ended. Built by the worker for `store/turn`; `transitions.after_run` decides what becomes of the job.

A report, not a decision: when the job has changed since the claim the report is still true, and is decided on again.
"""

from __future__ import annotations

from typing import NamedTuple

from perdure.ids import JobId
from perdure.job.model import NO_STATS, Failure, LiveJob, NewJob, RunStats


class Completed(NamedTuple):
    """The handler returned; `result` is JSON text."""

    result: str | None = None


class Failed(NamedTuple):
    """The handler raised."""

    failure: Failure
    delay_us: int = 0


class TimedOut(NamedTuple):
    """The run went past its time-out."""

    failure: Failure
    delay_us: int = 0


class Snoozed(NamedTuple):
    """The handler asked to be called later."""

    delay_us: int


class Released(NamedTuple):
    """The node gives the job back. `counts`: the handler had started and did not stop at a checkpoint."""

    counts: bool = False


class Cancelled(NamedTuple):
    """The handler stopped because the job was cancelled, or cancels the job itself and says why."""

    reason: str | None = None


class Skipped(NamedTuple):
    """The handler found nothing to do."""

    reason: str | None = None


class Unreadable(NamedTuple):
    """The payload could not be decoded; the handler was not called."""

    message: str


Report = Completed | Failed | TimedOut | Snoozed | Released | Cancelled | Skipped | Unreadable


class Finish(NamedTuple):
    """One run's report, with the job as it was after the claim. `next_id`: the id of a successor, if one is needed."""

    live: LiveJob
    report: Report
    next_id: JobId
    stats: RunStats = NO_STATS
    children: tuple[NewJob, ...] = ()
    """Jobs the handler asked for: enqueued if the job completes, dropped otherwise."""
