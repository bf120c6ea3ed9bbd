"""How a run ended, and the transition that follows. Built by the worker for `store/finish`.

The store calls `after_run` again whenever the job has changed since the claim: a report stays true, a decision may not.
"""

from __future__ import annotations

from typing import NamedTuple, assert_never

from perdure.clock import Micros
from perdure.ids import JobId
from perdure.job import transitions
from perdure.job.model import Failure, LiveJob, NewJob, RunStats, Transition
from perdure.job.states import Park, RunState, Verb


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
    stats: RunStats = transitions.NO_STATS
    children: tuple[NewJob, ...] = ()
    """Jobs the handler asked for: enqueued if the job completes, dropped otherwise."""


def after_run(finish: Finish, live: LiveJob, now: Micros) -> Transition:
    """The transition of `live`, the job as it is now, after this report."""
    _, report, next_id, stats, _ = finish
    match report:
        case Completed(result):
            return transitions.complete(live, result, now, stats)
        case Failed(failure, delay_us):
            return transitions.fail(live, failure, delay_us, now, next_id, stats)
        case TimedOut(failure, delay_us):
            verb, state = Verb.TIME_OUT, RunState.TIMED_OUT
            return transitions.fail(live, failure, delay_us, now, next_id, stats, verb=verb, run_state=state)
        case Snoozed(delay_us):
            return transitions.snooze(live, delay_us, now, next_id, stats)
        case Released(counts):
            return transitions.release(live, now, next_id, stats, counts=counts)
        case Cancelled(reason):
            return transitions.cancelled(live, reason, now, stats)
        case Skipped(reason):
            return transitions.skip(live, reason, now, stats)
        case Unreadable(message):
            return transitions.park(live, Park.UNREADABLE, now, message)
        case _:
            assert_never(report)
