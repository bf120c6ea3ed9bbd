"""What becomes of a job: one pure function per verb, each returns a `Transition` for the store to apply.

Called by `store` (claim, finish, promote, rescue) and the verbs of `app`. None of them reads a clock,
a database or a random number: the same arguments give the same transition. None: there is nothing to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, assert_never

from perdure.clock import Micros
from perdure.errors import TransitionRefused
from perdure.ids import JobId, NodeId, RunId, to_uuid
from perdure.job.flow import UNMET
from perdure.job.model import (
    NO_STATS,
    Failure,
    LiveJob,
    OutcomeRow,
    RunClosing,
    RunStats,
    Successor,
    Transition,
    Waiter,
)
from perdure.job.reports import Cancelled, Completed, Failed, Finish, Released, Skipped, Snoozed, TimedOut, Unreadable
from perdure.job.states import TRANSITIONS, WAITING, Park, RunState, State, Suspicion, Verb

LAST_ERROR_LIMIT = 500
CRASHES_AT_LARGE = 1
"""After so few crashes a job still runs like any other: most nodes die of no job, and their jobs continue at once."""
NO_FAILURE = (None, None, None, False)
_TEXT = {state: state.value for states in (State, RunState) for state in states}  # .value is a slow property
INTERRUPTED = Failure("Interrupted", "the run was interrupted and no attempt is left")


def waiting_state(live: LiveJob | Waiter, now: Micros) -> State:
    """The state of a job that waits: the one rule for every way into the queue and back to it."""
    if live.paused:
        return State.PAUSED
    if live.waits_for > 0:
        return State.BLOCKED
    if live.run_at > now:
        return State.SCHEDULED
    if live.limit_key is not None:
        return State.HELD
    return State.QUEUED


def require(verb: Verb, live: LiveJob) -> None:
    """Refuse a verb that the job's state does not allow; the error names both."""
    sources = TRANSITIONS[verb].sources
    if live.state not in sources:
        allowed = ", ".join(sorted(sources))
        raise TransitionRefused(
            f"cannot {verb.words} job {to_uuid(live.job_id)}: it is {live.state}, and this needs a job that"
            f" is {allowed}",
            code=f"{verb}_refused",
        )


def land(live: LiveJob, now: Micros) -> LiveJob:
    """The row of a job that goes (back) to waiting. It keeps its place in the queue."""
    row = live._replace(
        node_id=None,
        run_id=None,
        claimed_at=None,
        deadline_at=None,
        cancel_requested=0,
        park_reason=None,
        held_by=None,
        updated_at=now,
        version=live.version + 1,
    )
    return row._replace(state=waiting_state(row, now))


# -- into the queue and out of it ------------------------------------------------------------------------------------


def promote(live: LiveJob, now: Micros) -> Transition | None:
    """A scheduled job whose time has come."""
    require(Verb.PROMOTE, live)
    return None if live.run_at > now else Transition(Verb.PROMOTE, live, after=land(live, now))


def unblock(waiter: Waiter, now: Micros, met: int = 1) -> Waiter:
    """So many of those that this job waits for have ended as needed. A job that is paused, or waits for more, keeps its
    state. One that waits for nothing more could have started since now."""
    job_id, queue, state, run_at, queued_at, limit_key, paused, waits_for, traits, version = waiter
    left = max(0, waits_for - met)
    freed_at = queued_at if left else now
    after = Waiter(job_id, queue, state, run_at, freed_at, limit_key, paused, left, traits, version + 1)
    if left or state != _BLOCKED:
        return after
    return after._replace(state=waiting_state(after, now).value)


_BLOCKED = State.BLOCKED.value


def claim(row: Sequence[Any], run_id: RunId, node_id: NodeId, now: Micros, lease_us: int) -> LiveJob:
    """The row of a job that `node_id` starts to run. The caller has seen it queued (or parked and now runnable).

    `row` begins with the columns of a LiveJob. It is not made into one first: this runs for every job.
    """
    limit = row[_TIMEOUT]
    deadline_at = None if limit is None else now + limit * 1000 + lease_us
    # From `state` on; a _replace of these eleven fields costs four times as much.
    changed = (_RUNNING, node_id, run_id, now, deadline_at, None, None, row[_STARTED] or now, row[_ATTEMPTS] + 1, now)
    return LiveJob._make((*row[:_FIRST_CLAIMED], *changed, row[_VERSION] + 1))


_RUNNING = State.RUNNING.value
_FIRST_CLAIMED, _STARTED, _ATTEMPTS, _TIMEOUT, _VERSION = map(
    LiveJob._fields.index, ("state", "started_at", "attempts", "timeout_ms", "version")
)


def park(live: LiveJob, reason: Park, now: Micros, message: str | None = None) -> Transition:
    """Set aside a job that this node cannot run. A running one gives its attempt back and closes its run."""
    require(Verb.PARK, live)
    failure = Failure("Unreadable", message) if message else None
    if live.cancel_requested:
        return end(Verb.PARK, live, State.CANCELLED, now, run_state=RunState.RELEASED, failure=failure)
    running = live.state == State.RUNNING
    row = land(live, now)._replace(
        state=State.PARKED.value,
        attempts=live.attempts - running,
        park_reason=reason.value,
        last_error=_short(message) or live.last_error,
    )
    return Transition(Verb.PARK, live, after=row, run=_close(live, RunState.RELEASED, now, NO_STATS, failure))


# -- a run ended ---------------------------------------------------------------------------------------------------


def after_run(finish: Finish, live: LiveJob, now: Micros) -> Transition:
    """The transition of `live`, the job as it is now, after this report."""
    _, report, next_id, stats, _ = finish
    match report:
        case Completed(result):
            return complete(live, result, now, stats)
        case Failed(failure, delay_us):
            return fail(live, failure, delay_us, now, next_id, stats)
        case TimedOut(failure, delay_us):
            verb, state = Verb.TIME_OUT, RunState.TIMED_OUT
            return fail(live, failure, delay_us, now, next_id, stats, verb=verb, run_state=state)
        case Snoozed(delay_us):
            return snooze(live, delay_us, now, next_id, stats)
        case Released(counts):
            return release(live, now, next_id, stats, counts=counts)
        case Cancelled(reason):
            return cancelled(live, reason, now, stats)
        case Skipped(reason):
            return skip(live, reason, now, stats)
        case Unreadable(message):
            return park(live, Park.UNREADABLE, now, message)
        case _:
            assert_never(report)


# -- the end ---------------------------------------------------------------------------------------------------------


def end(
    verb: Verb,
    live: LiveJob,
    state: State,
    now: Micros,
    *,
    run_state: RunState | None = None,
    result: str | None = None,
    failure: Failure | None = None,
    stats: RunStats = NO_STATS,
    superseded_by: JobId | None = None,
    successor: Successor | None = None,
) -> Transition:
    """Every verb that ends a job comes here: the run is closed, the outcome recorded, the hot row deleted."""
    outcome = OutcomeRow(
        live.job_id,
        live.life,
        _TEXT[state],
        now,
        live.rank,
        live.position,
        live.run_at,
        live.queued_at,
        live.started_at,
        live.attempts,
        live.crashes,
        live.max_attempts,
        result,
        failure.error_type if failure else None,
        failure.message if failure else None,
        superseded_by or live.superseded_by,
        successor.live.job_id if successor else None,
        live.version + 1,
    )
    run = _close(live, run_state or RunState.CANCELLED, now, stats, failure)
    return Transition(verb, live, None, run, outcome, successor)


def complete(live: LiveJob, result: str | None, now: Micros, stats: RunStats = NO_STATS) -> Transition:
    """The handler returned. This counts even if a cancel was requested meanwhile: the work is done."""
    require(Verb.COMPLETE, live)
    return end(Verb.COMPLETE, live, State.COMPLETED, now, run_state=RunState.COMPLETED, result=result, stats=stats)


def skip(live: LiveJob, reason: str | None, now: Micros, stats: RunStats = NO_STATS) -> Transition:
    """There was nothing to do."""
    failure = Failure("Skipped", reason) if reason else None
    state = State.CANCELLED if live.cancel_requested else State.SKIPPED
    return end(Verb.SKIP, live, state, now, run_state=RunState.SKIPPED, failure=failure, stats=stats)


def unmet(live: LiveJob, why: str, now: Micros, error_type: str = UNMET) -> Transition:
    """What the job waited for ended otherwise than it needs, its condition does not hold, or its flow has stopped."""
    return end(Verb.SKIP, live, State.SKIPPED, now, failure=Failure(error_type, why))


def cancel(live: LiveJob, now: Micros) -> Transition | None:
    """Someone cancels the job. A waiting one ends at once; a running one is asked to stop, and ends when it does."""
    if live.state != State.RUNNING:
        return end(Verb.CANCEL, live, State.CANCELLED, now)
    if live.cancel_requested:
        return None
    return Transition(
        Verb.REQUEST_CANCEL, live, after=live._replace(cancel_requested=1, updated_at=now, version=live.version + 1)
    )


def cancelled(live: LiveJob, reason: str | None, now: Micros, stats: RunStats = NO_STATS) -> Transition:
    """The running job stopped because it was cancelled, or cancelled itself."""
    require(Verb.COMPLETE, live)
    failure = Failure("Cancelled", reason) if reason else None
    state = State.CANCELLED
    return end(Verb.CANCEL, live, state, now, run_state=RunState.CANCELLED, failure=failure, stats=stats)


def supersede(live: LiveJob, replacement: JobId, now: Micros) -> Transition:
    """Another job takes this one's place. A running one is asked to stop; the replacement waits for its end."""
    if live.state != State.RUNNING:
        return end(Verb.SUPERSEDE, live, State.CANCELLED, now, superseded_by=replacement)
    row = live._replace(cancel_requested=1, superseded_by=replacement, updated_at=now, version=live.version + 1)
    return Transition(Verb.SUPERSEDE, live, after=row)


# -- ways back -------------------------------------------------------------------------------------------------------


def fail(
    live: LiveJob,
    failure: Failure,
    delay_us: int,
    now: Micros,
    next_id: JobId,
    stats: RunStats = NO_STATS,
    *,
    verb: Verb = Verb.FAIL,
    run_state: RunState = RunState.FAILED,
) -> Transition:
    """An attempt failed. A permanent failure, or no attempt left, ends the job; else it waits for its next attempt."""
    require(verb, live)
    if live.cancel_requested:
        return end(verb, live, State.CANCELLED, now, run_state=run_state, failure=failure, stats=stats)
    if failure.permanent or live.attempts >= live.max_attempts:
        return end(verb, live, State.FAILED, now, run_state=run_state, failure=failure, stats=stats)
    again = live._replace(run_at=Micros(now + delay_us), last_error=_short(f"{failure.error_type}: {failure.message}"))
    return _back(verb, live, again, State.FAILED, next_id, _Close(run_state, now, stats, failure))


def snooze(live: LiveJob, delay_us: int, now: Micros, next_id: JobId, stats: RunStats = NO_STATS) -> Transition:
    """The handler wants to be called later. The attempt is given back."""
    require(Verb.SNOOZE, live)
    if live.cancel_requested:
        return end(Verb.SNOOZE, live, State.CANCELLED, now, run_state=RunState.RELEASED, stats=stats)
    again = live._replace(run_at=Micros(now + delay_us), attempts=live.attempts - 1)
    return _back(Verb.SNOOZE, live, again, State.SKIPPED, next_id, _Close(RunState.RELEASED, now, stats))


def release(
    live: LiveJob, now: Micros, next_id: JobId, stats: RunStats = NO_STATS, *, counts: bool = False
) -> Transition:
    """The node gives the job back. `counts`: the handler had started and did not reach a checkpoint."""
    require(Verb.RELEASE, live)
    if live.cancel_requested:
        return end(Verb.RELEASE, live, State.CANCELLED, now, run_state=RunState.RELEASED, stats=stats)
    if counts and live.attempts >= live.max_attempts:
        state, failure = State.FAILED, INTERRUPTED
        return end(Verb.RELEASE, live, state, now, run_state=RunState.RELEASED, failure=failure, stats=stats)
    again = live if counts else live._replace(attempts=live.attempts - 1)
    return _back(Verb.RELEASE, live, again, State.SKIPPED, next_id, _Close(RunState.RELEASED, now, stats))


def rescue(live: LiveJob, failure: Failure, max_crashes: int | None, now: Micros, next_id: JobId) -> Transition:
    """The job's node died. The attempt counts, the place is kept, there is no backoff.

    `max_crashes` None: crashes never end the job, only the attempts do.
    """
    require(Verb.RESCUE, live)
    crashed = live._replace(crashes=live.crashes + 1)
    if live.cancel_requested:
        return end(Verb.RESCUE, crashed, State.CANCELLED, now, run_state=RunState.LOST, failure=failure)
    if live.attempts >= live.max_attempts or (max_crashes is not None and crashed.crashes >= max_crashes):
        return end(Verb.RESCUE, crashed, State.FAILED, now, run_state=RunState.LOST, failure=failure)
    again = crashed._replace(last_error=_short(f"{failure.error_type}: {failure.message}"))
    return _back(Verb.RESCUE, crashed, again, State.FAILED, next_id, _Close(RunState.LOST, now, failure=failure))


def suspicion(crashes: int, attempt: int, max_attempts: int, max_crashes: int) -> Suspicion:
    """How suspect a job with this many crashes is; `attempt` is the number of its next run.

    A job must not fail because of a job that ran beside it. So a job that another crash would end is a suspect, and a
    suspect runs beside no job that has crashed: the job that it crashed with is one of those.
    """
    if not crashes:
        return Suspicion.NONE
    is_last_chance = attempt >= max_attempts or crashes + 1 >= max_crashes
    return Suspicion.SUSPECT if is_last_chance or crashes > CRASHES_AT_LARGE else Suspicion.CRASHED


def retry(last: OutcomeRow, live: LiveJob, now: Micros) -> LiveJob:
    """The row of a new life for an ended job, retried by hand. Attempts and crashes start again at 0.

    `live` has what the cold row knows (queue, kind, keys, budget); place and rank are those the job ended with.
    """
    row = live._replace(
        rank=last.rank, position=last.position, life=last.life + 1, run_at=now, queued_at=now, version=last.version + 1
    )
    return row._replace(state=waiting_state(row, now))


# -- by hand ---------------------------------------------------------------------------------------------------------


def pause(live: LiveJob, now: Micros) -> Transition | None:
    """Set a waiting job aside until it is resumed."""
    if live.paused:
        return None
    require(Verb.PAUSE, live)
    return Transition(Verb.PAUSE, live, after=land(live._replace(paused=1), now))


def resume(live: LiveJob, now: Micros) -> Transition | None:
    """Let a paused or parked job continue. Nothing to do for a job that is neither."""
    if live.state not in TRANSITIONS[Verb.RESUME].sources:
        return None
    return Transition(Verb.RESUME, live, after=land(live._replace(paused=0), now))


def place(live: LiveJob, rank: int, position: int, now: Micros, verb: Verb = Verb.MOVE) -> Transition | None:
    """Give a waiting job another place in its queue."""
    require(verb, live)
    if (live.rank, live.position) == (rank, position):
        return None
    row = live._replace(rank=rank, position=position, updated_at=now, version=live.version + 1)
    return Transition(verb, live, after=row)


def is_waiting(live: LiveJob) -> bool:
    return live.state in WAITING


# -- pieces ----------------------------------------------------------------------------------------------------------


class _Close(NamedTuple):
    """How the run of a job that goes back to waiting closes."""

    state: RunState
    now: Micros
    stats: RunStats = NO_STATS
    failure: Failure | None = None


def _back(verb: Verb, live: LiveJob, again: LiveJob, chain_end: State, next_id: JobId, close: _Close) -> Transition:
    """Back to waiting: the same job, or its successor if every attempt is a new job."""
    state, now, stats, failure = close
    if live.as_new_job:
        following = Successor(_successor(again, now, next_id), live.job_id)
        return end(verb, live, chain_end, now, run_state=state, failure=failure, stats=stats, successor=following)
    return Transition(verb, live, after=land(again, now), run=_close(live, state, now, stats, failure))


def _successor(again: LiveJob, now: Micros, next_id: JobId) -> LiveJob:
    row = land(again._replace(job_id=next_id, life=1, started_at=None, queued_at=now), now)
    return row._replace(version=1)


def _close(live: LiveJob, state: RunState, now: Micros, stats: RunStats, failure: Failure | None) -> RunClosing | None:
    if live.run_id is None:
        return None
    error_type, message, traceback, _ = failure or NO_FAILURE
    return RunClosing(
        _TEXT[state],
        now,
        stats.duration_ms,
        stats.exit_code,
        error_type,
        message,
        traceback,
        stats.log_path,
        stats.metrics,
        live.run_id,
    )


def _short(text: str | None) -> str | None:
    if text is None:
        return None
    line = text.splitlines()[0] if text else text
    return line[:LAST_ERROR_LIMIT]
