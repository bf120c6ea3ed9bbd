"""One log line for each event in the life of a job. Called by `node`, `unwritten`, `rescue` and `app`.

The facts are in the record's attribute `perdure`, a dict; `cli/log_lines` prints them as JSON. Messages name a job by
the end of its id, which every command takes. Without logging set up by the program nothing is printed.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any

from perdure.flow.views import Flow
from perdure.ids import NodeId, to_uuid
from perdure.job.model import NO_STATS, Claim, Failure, LiveJob, RunStats
from perdure.job.reports import Cancelled, Failed, Released, Report, Skipped, Snoozed, TimedOut
from perdure.job.states import Park, State
from perdure.job.transitions import INTERRUPTED
from perdure.job.views import Job
from perdure.options import principal
from perdure.store.rows import EVERY_QUEUE, Finished, FinishStatus, Rescued, ReservationRow
from perdure.text import counted, measured, short_id, span

if TYPE_CHECKING:
    from perdure.worker.context import ExcInfo
    from perdure.worker.run import Ended  # which loads asyncio, and `app` imports this module

logger = logging.getLogger("perdure.lifecycle")

is_logged = logger.isEnabledFor
"""Whether events of a level are logged at all. Asked first on the way of every job, where mostly none are."""

WRITTEN = Finished(FinishStatus.APPLIED, State.COMPLETED)
"""A job that has completed, also by `ctx.transaction()` in its handler: logged only if INFO is."""


def log_enqueued(jobs: Iterable[Job]) -> None:
    for job in jobs:
        again = ", which was there already" if job.deduplicated else ""
        facts = {"event": "enqueued", "job_id": str(job.id), "kind": job.kind, "queue": job.queue}
        _say(logging.DEBUG, f"enqueued {job.kind} {short_id(job.row.id)} in {job.queue}{again}", facts)


def log_verb(verb: str, job: Job, *, in_transaction: bool, **facts: str) -> None:
    """Someone changed a job by hand. `in_transaction`: it is done once the caller commits, which we do not see."""
    gathered = _gathered.get()
    if gathered is not None:
        gathered.append((verb, job))
        return
    known: dict[str, Any] = {"event": "by_hand", "verb": verb, "job_id": str(job.id), "kind": job.kind}
    known |= {"queue": job.queue, "state": job.state.value, **facts}
    what = f"{verb.replace('_', ' ')} of {job.kind} {short_id(job.row.id)}"
    _say_by_hand(what, known, in_transaction, f", now {job.state}")


def log_queue(verb: str, queue: str, *, in_transaction: bool) -> None:
    facts: dict[str, Any] = {"event": "by_hand", "verb": f"{verb}_queue", "queue": queue}
    _say_by_hand(f"{verb} of queue {queue}", facts, in_transaction)


def log_limit(verb: str, limit: str, *, in_transaction: bool) -> None:
    facts: dict[str, Any] = {"event": "by_hand", "verb": f"{verb}_limit", "limit": limit}
    _say_by_hand(f"{verb} of limit {limit}", facts, in_transaction)


def log_lost_hold(limit: str) -> None:
    facts: dict[str, Any] = {"event": "hold_lost", "limit": limit}
    message = f"a block of code holds its place of limit {limit} no longer: it could not be renewed in time"
    _say(logging.WARNING, message, facts)


def log_flow(verb: str, flow: Flow, *, in_transaction: bool) -> None:
    facts: dict[str, Any] = {"event": "by_hand", "verb": f"{verb}_flow", "flow_id": str(flow.id), "flow": flow.name}
    _say_by_hand(f"{verb} of {flow.sort} {flow.name} {short_id(flow.raw_id)}", facts, in_transaction)


def log_removed(verb: str, jobs: int, *, in_transaction: bool) -> None:
    facts: dict[str, Any] = {"event": "by_hand", "verb": verb, "jobs": jobs}
    _say_by_hand(f"{verb} of {counted(jobs, 'job')}", facts, in_transaction)


def log_template(verb: str, name: str, version: int, *, in_transaction: bool) -> None:
    facts: dict[str, Any] = {"event": "by_hand", "verb": f"{verb}_template", "template": name, "version": version}
    _say_by_hand(f"{verb} of template {name}", facts, in_transaction, f", version {version}")


def log_schedule(verb: str, name: str, *, in_transaction: bool, **facts: str) -> None:
    """`facts`: the `job_id` of a slot that was taken, or what it is called now (`to`)."""
    known: dict[str, Any] = {"event": "by_hand", "verb": f"{verb}_schedule", "schedule": name, **facts}
    now = "".join(f", {what.replace('_', ' ')} {value}" for what, value in facts.items())
    _say_by_hand(f"{verb} of schedule {name}", known, in_transaction, now)


def log_reserved(row: ReservationRow) -> None:
    _say(
        logging.INFO, f"{_reservation(row)} is reserved by {row.reserved_by}", _reservation_facts("queue_reserved", row)
    )


def log_released(row: ReservationRow) -> None:
    message = f"{_reservation(row)} is released by {row.reserved_by}, and continues"
    _say(logging.INFO, message, _reservation_facts("queue_released", row))


def log_reservation_expired(row: ReservationRow, why: str) -> None:
    """Someone else has ended it."""
    message = f"the reservation of {_reservation(row)} by {row.reserved_by} has expired: {why}; its jobs continue"
    _say(logging.WARNING, message, _reservation_facts("reservation_expired", row) | {"reason": why})


def _reservation(row: ReservationRow) -> str:
    return "every queue" if row.queue == EVERY_QUEUE else f"queue {row.queue}"


def _reservation_facts(event: str, row: ReservationRow) -> dict[str, Any]:
    return {"event": event, "reservation_id": str(to_uuid(row.id)), "queue": row.queue, "by": row.reserved_by}


@contextmanager
def logged_at_the_end(in_transaction: Callable[[], bool]) -> Generator[None, None, None]:
    """Changes by hand inside the block are logged when it has ended well: it is one transaction."""
    changed: list[tuple[str, Job]] = []
    token = _gathered.set(changed)
    try:
        yield
    finally:
        _gathered.reset(token)
    for verb, job in changed:
        log_verb(verb, job, in_transaction=in_transaction())


_gathered: ContextVar[list[tuple[str, Job]] | None] = ContextVar("perdure_gathered_verbs", default=None)


def _say_by_hand(what: str, facts: dict[str, Any], in_transaction: bool, now: str = "") -> None:
    if not is_logged(logging.INFO):
        return
    facts["principal"] = _decider()
    message = f"{what} by hand, by {facts['principal']}{now}"
    if in_transaction:
        facts["in_transaction"] = True
        message += ", in the caller's transaction"
    _say(logging.INFO, message, facts)


def _decider() -> str:
    """Who decides about jobs here: the principal of this context; in a job its principal, or the job; else the user of
    this process."""
    from perdure.worker.context import current  # which loads more than `app` needs

    ctx = current()
    if (given := principal.get()) is not None:
        return given
    return _user() if ctx is None else ctx.principal or f"job {ctx.job_id}"


@cache
def _user() -> str:
    from getpass import getuser
    from socket import gethostname

    try:
        user = getuser()
    except (KeyError, OSError, ImportError):  # a container may have no name for its user
        user = str(os.getuid())
    return f"{user}@{gethostname()}"


def log_claims(claims: Iterable[Claim]) -> None:
    for claim in claims:
        facts = _facts("claimed", claim.live)
        _say(logging.DEBUG, f"claimed {_name(claim.live)}, attempt {claim.live.attempts}", facts)


def log_parked(parked: Iterable[LiveJob]) -> None:
    for live in parked:
        why = _PARKED.get(live.park_reason or "", "it cannot be read")
        facts = _facts("parked", live) | {"reason": live.park_reason}
        _say(logging.WARNING, f"parked {_name(live)}: {why}", facts)


_PARKED = {
    Park.UNKNOWN_KIND.value: "this worker has no kind of that name",
    Park.NEWER_VERSION.value: "this worker's code is older than the one that enqueued it",
}


def log_ends(reports: Sequence[Ended], results: Iterable[Finished]) -> None:
    """`results`: of the reports that were not written by the handler itself, in their order."""
    wants_all = is_logged(logging.INFO)
    following = iter(results)
    for ended in reports:
        finished = WRITTEN if ended.written else next(following)
        if wants_all or finished != WRITTEN:
            log_end(ended, ended.report, finished)


def log_end(ended: Ended, report: Report, finished: Finished) -> None:
    """`report` is what was written, which may not be what the run had reported."""
    live = ended.ctx.claim.live
    if finished.status is FinishStatus.LOST:
        message = f"{_name(live)} ended here, but the job had been taken from this node; nothing was written"
        _say(logging.WARNING, message, _facts("lost", live))
    elif finished.status is FinishStatus.WAITS:
        message = (
            f"{_name(live)} ended here, but another open transaction has locked it, or a key or dependent of it; the"
            " end is written when that transaction ends (find it in pg_stat_activity)"
        )
        _say(logging.WARNING, message, _facts("waits", live))
    elif isinstance(report, Failed | TimedOut) and finished.state is not State.CANCELLED:
        log_failure(live, report.failure, finished, ended.stats, report.delay_us, ended.ctx.exc_info)
        ended.ctx.exc_info = None  # its frames hold the context, and all that the handler had
    elif finished.state is State.FAILED:
        log_failure(live, INTERRUPTED, finished, ended.stats)
    else:
        event, words = _event(report, finished)
        facts = _facts(event, live) | _measured(ended.stats)
        took = facts.get("duration_ms")
        after = "" if took is None else f" after {measured(took)}"
        again = f", attempt {live.attempts}" if live.attempts > 1 else ""
        why = ""
        if isinstance(report, Cancelled | Skipped) and report.reason:
            facts["reason"] = report.reason
            why = f": {' '.join(report.reason.split())}"
        level = logging.WARNING if event == "parked" else logging.INFO
        _say(level, f"{words} {_name(live)}{after}{again}{_shown(facts.get('metrics'))}{why}", facts)


def _event(report: Report, finished: Finished) -> tuple[str, str]:
    """What was written counts: a cancel that was asked for meanwhile wins over a snooze or a release."""
    if finished.state is not State.CANCELLED:
        if isinstance(report, Snoozed):
            return "snoozed", "snoozed"
        if isinstance(report, Released):
            return "released", "gave back"
    state = finished.state or State.COMPLETED
    return state.value, state.value


def log_failure(
    live: LiveJob,
    failure: Failure,
    finished: Finished,
    stats: RunStats = NO_STATS,
    delay_us: int = 0,
    exc_info: ExcInfo | None = None,
) -> None:
    """With the traceback: that of the exception, or as it was recorded where there is none here or it holds secrets."""
    is_over = finished.state is State.FAILED and not finished.has_successor
    facts = _facts("failed" if is_over else "retried", live) | _measured(stats)
    facts |= {"error_type": failure.error_type, "error": failure.message}
    if not is_over:
        facts["retry_in_ms"] = delay_us // 1_000
    then = " for good" if is_over else f", {_again(finished, delay_us)}"
    at = f"attempt {live.attempts} of {live.max_attempts} failed"
    message = f"{_name(live)}: {at}{then}: {failure.error_type}: {' '.join(failure.message.split())}"
    level = logging.ERROR if is_over else logging.WARNING
    recorded = (failure.traceback or "").rstrip() or None if exc_info is None else None
    _say(level, message, facts, exc_info or _stand_in(failure), recorded)


def _again(finished: Finished, delay_us: int) -> str:
    if finished.state is State.PAUSED:
        return "retrying when it is resumed"
    as_new = " as a new job" if finished.has_successor else ""
    return f"retrying{as_new} {f'in {span(delay_us / 1_000_000)}' if delay_us else 'at once'}"


def _stand_in(failure: Failure) -> ExcInfo | None:
    """For an exception that is not here: one of the same name that says the same, with the recorded traceback."""
    if failure.traceback is None:
        return None
    module, _, name = failure.error_type.rpartition(".")
    error = type(name, (Exception,), {"__module__": module or "builtins"})(failure.message)
    error.add_note(failure.traceback)
    return type(error), error, None


def log_rescue(node_id: NodeId, rescued: Sequence[Rescued]) -> None:
    """One line for all that continue, and one for each that has failed with its node."""
    if not rescued:
        return
    lost = Failure("NodeLost", f"node {to_uuid(node_id)} died while it ran this job")
    rescued_jobs = 0
    for live, finished in rescued:
        if finished.state is State.FAILED and not finished.has_successor:
            log_failure(live, lost, finished)
        else:
            rescued_jobs += 1
    jobs = "a job" if rescued_jobs == 1 else f"{rescued_jobs} jobs"
    facts = {"event": "rescued", "jobs": rescued_jobs, "node_id": str(to_uuid(node_id))}
    _say(logging.WARNING, f"rescued {jobs} of node {to_uuid(node_id)}", facts)


def _name(live: LiveJob) -> str:
    return f"{live.kind} {short_id(live.job_id)}"


def _facts(event: str, live: LiveJob) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "event": event,
        "job_id": str(to_uuid(live.job_id)),
        "kind": live.kind,
        "queue": live.queue,
        "attempt": live.attempts,
    }
    if live.run_id is not None:
        facts["run_id"] = str(to_uuid(live.run_id))
    return facts


def _measured(stats: RunStats) -> dict[str, Any]:
    metrics = {} if stats.metrics is None else {"metrics": json.loads(stats.metrics)}
    return {"duration_ms": stats.duration_ms, **metrics}


def _shown(metrics: dict[str, Any] | None) -> str:
    """Without the progress, which says little of a run that has ended."""
    return "".join(f" {name}={value}" for name, value in (metrics or {}).items() if name != "progress")


def _say(
    level: int, message: str, facts: dict[str, Any], exc_info: ExcInfo | None = None, trace: str | None = None
) -> None:
    say(logger, level, message, facts, exc_info, trace)


def say(
    to: logging.Logger,
    level: int,
    message: str,
    facts: dict[str, Any],
    exc_info: ExcInfo | None = None,
    trace: str | None = None,
) -> None:
    """Log it with these facts. `trace`: the text of the traceback, if it is another than that of `exc_info`.

    Not with `extra=`, which refuses what the record has already: inside a job, the facts of that.
    """
    if to.isEnabledFor(level):
        record = to.makeRecord(to.name, level, __file__, 0, "%s", (message,), exc_info)
        record.perdure, record.exc_text = facts, trace
        to.handle(record)
