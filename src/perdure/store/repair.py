"""The doctor's checks and repairs, by name; a repair is one transaction that checks again before it writes. Called by
`ops/doctor` and `ops/repairs` through `store`.

As everywhere, `job/transitions` decides about live jobs and `write` writes them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar, cast

from perdure.clock import Micros
from perdure.ids import FlowId, IdFactory, JobId, NodeId
from perdure.job import transitions
from perdure.job.flow import Trait
from perdure.job.model import Failure, JobRow, LiveJob, OutcomeRow, Transition
from perdure.job.retry import Retry
from perdure.job.states import FINAL, RunState, State, Verb
from perdure.store import read
from perdure.store.engine import Call, Op
from perdure.store.enqueue import take_place
from perdure.store.flow import look
from perdure.store.follow import End, apply, follow, leave, release, sources
from perdure.store.limit import Keys, keep_moving, reopen
from perdure.store.rows import FIRST_ID, HOLD_LEASE_US
from perdure.store.write import flag, remove_ended

T = TypeVar("T", JobRow, LiveJob)

SAMPLE = 10_000
"""How many of the newest payloads and results are read, if the database cannot check JSON itself."""
LONG_AGO_US = 300 * 1_000_000
DAY_US = 86_400 * 1_000_000
CLOCKS_DIFFER_US = 5 * 1_000_000
"""What was written just now, by another clock, is not yet too far off."""

CLOSED_BY_DOCTOR = Failure("Lost", "closed by perdure doctor: the run held no running job")
RESCUED_BY_DOCTOR = Failure("Lost", "rescued by perdure doctor: the job's node was not there to finish it")
FOUND_WITHOUT_RUN = Failure("Lost", "recorded by perdure doctor: the job was running without an open run")
FOUND_WITHOUT_STATE = Failure("Lost", "recorded by perdure doctor: the job was neither live nor ended")


def check(name: str, now: Micros, limit: int) -> Op[list[tuple[object, ...]]]:
    """What the check of this name finds, up to `limit` rows.

    A row is an example, how many there are in all, and what else the check or its repair needs.
    """
    return (yield Call(name, check_params(now, limit))).rows


def check_params(now: Micros, limit: int) -> dict[str, object]:
    """The parameters of all checks."""
    late = {"late": now + CLOCKS_DIFFER_US, "lease": HOLD_LEASE_US}
    ago = {"long_ago": now - LONG_AGO_US, "day_ago": now - DAY_US}
    return {"examples": limit, "sample": SAMPLE, **ago, **late}


def repair(name: str, now: Micros, ids: IdFactory, limit: int) -> Op[int]:
    """Run the repair of this name. Returns how much it changed: at least `limit` if more may be left."""
    return _REPAIRS[name](Visit(now, ids, limit))


class Visit(NamedTuple):
    """What a repair needs besides the database: the time, new ids, and how many jobs it may change."""

    now: Micros
    ids: IdFactory
    limit: int


Treat = Callable[[Visit], Op[int]]
"""One repair. Returns how many rows or jobs it changed; 0: there was nothing (left) to do."""


def by_statement(*names: str) -> Treat:
    """A repair whose statements contain their own condition."""

    def treat(visit: Visit) -> Op[int]:
        changed = 0
        for name in names:
            changed += (yield Call(name, {"now": visit.now, **_error(CLOSED_BY_DOCTOR)})).changed
        return changed

    return treat


def fail_lost_jobs(visit: Visit) -> Op[int]:
    """Record jobs that are neither live nor ended as failed: visible, with the reason, and they can be retried."""
    lost = yield from _read_again("job_without_state", visit, read.row)
    for job in lost:
        yield from _record_lost(job, visit)
    return len(lost)


def _record_lost(job: JobRow, visit: Visit) -> Op[None]:
    job_id = job.id
    lives = (yield Call("read_newest_life", {"job_id": job_id})).rows
    position = yield from take_place(job.queue)
    outcome = OutcomeRow(
        job_id=job_id,
        life=cast("int | None", lives[0][0]) or 1,
        state=State.FAILED.value,
        finished_at=visit.now,
        rank=0,
        position=position,
        run_at=job.created_at,
        queued_at=job.created_at,
        started_at=None,
        attempts=0,
        crashes=0,
        max_attempts=_budget(job),
        result=None,
        error_type=FOUND_WITHOUT_STATE.error_type,
        error=FOUND_WITHOUT_STATE.message,
        superseded_by=None,
        successor=None,
        version=1,
    )
    yield Call("insert_outcome", outcome)


def _budget(job: JobRow) -> int:
    """The attempts that the job was enqueued with, so that a retry by hand has as many again."""
    try:
        kept = json.loads(job.options or "{}").get("retry")
        return (Retry() if kept is None else Retry.from_json(kept)).max_attempts
    except (ValueError, TypeError, AttributeError, KeyError):
        return Retry().max_attempts


def settle_running(visit: Visit) -> Op[int]:
    """Running jobs that no open run holds: end them the way their run closed, or put them back as after a crash."""
    return (yield from _each(["running_without_run"], visit, _settle))


def _settle(live: LiveJob, visit: Visit) -> Op[Transition | None]:
    unheld = live._replace(run_id=None)
    closed = (yield Call("read_run_of_job", {"run_id": live.run_id, "job_id": live.job_id})).rows
    if not closed:
        yield Call("insert_lost_run", _lost_run(live, visit))
    elif closed[0][0] in FINAL - {State.FAILED}:
        return transitions.end(Verb.RESCUE, unheld, State(cast("str", closed[0][0])), visit.now)
    return _rescued(unheld, FOUND_WITHOUT_RUN, visit)


def _lost_run(live: LiveJob, visit: Visit) -> dict[str, object]:
    return {
        "id": visit.ids.new(),  # not live.run_id: another job's run may have it
        "job_id": live.job_id,
        "node_id": live.node_id or NodeId(FIRST_ID),
        "attempt": max(1, live.attempts),
        "life": live.life,
        "started_at": live.claimed_at or visit.now,
        "now": visit.now,
        **_error(FOUND_WITHOUT_RUN),
    }


def rescue_running(visit: Visit) -> Op[int]:
    """Running jobs whose node is stopped, unknown or not named: the run is lost, the attempt counts."""

    def rescued(live: LiveJob, visit: Visit) -> Op[Transition | None]:
        held = (yield Call("read_run_of_job", {"run_id": live.run_id, "job_id": live.job_id})).rows
        if not held or held[0][0] != RunState.RUNNING:
            return None  # for `settle_running`
        return _rescued(live, RESCUED_BY_DOCTOR, visit)

    checks = ["running_without_node", "running_on_unknown_node", "running_on_stopped_node"]
    return (yield from _each(checks, visit, rescued))


def _rescued(live: LiveJob, failure: Failure, visit: Visit) -> Transition:
    """`max_crashes` is a setting of the workers: the next worker that sees a crash decides."""
    return transitions.rescue(live, failure, None, visit.now, JobId(visit.ids.new()))


def recount_waits(visit: Visit) -> Op[int]:
    """Remove dependencies on what is gone, settle those on what has ended, and let every job wait for those that are
    left."""
    removed = (yield Call("remove_dead_edges")).changed
    changed = yield from _settle_edges(visit)
    flagged = yield from _read_again("dependents_not_flagged", visit, read.live)
    yield from flag(flagged, Trait.HAS_DEPENDENTS, visit.now)
    changed += len(flagged)
    for job_id, *_ in (yield from _found("waits_for_differs", visit)):
        edges = yield from read.count_waits(cast("JobId", job_id))
        live = yield from read.live(cast("JobId", job_id))
        if live is None or live.waits_for == edges:
            continue
        counted = live._replace(waits_for=edges)
        parked = live.state == State.PARKED and not counted.waits_for
        after = _changed(counted, visit.now) if parked else transitions.land(counted, visit.now)
        yield from apply([Transition(Verb.RESUME, live, after=after)], visit.now)
        changed += 1
    return removed + changed


def _settle_edges(visit: Visit) -> Op[int]:
    """Those to jobs and flows that have ended without letting go."""
    parents = {cast("bytes", row[2]) for row in (yield from _found("edge_on_ended_job", visit))}
    found = yield from sources(parents)
    ends = {
        parent: End(known.state, known.error_type, is_flow=known.counts is not None)
        for parent, known in found.items()
        if known.state is not None
    }
    if not ends:
        return 0
    decided = yield from release(ends, visit.now)
    flows = yield from follow(decided, visit.now)
    yield from leave(((one, "look") for one in sorted(flows.unfinished)), visit.now)
    return len(decided)


def recount_flows(visit: Visit) -> Op[int]:
    """Let flows have as many members as have ended and have not. What workers count meanwhile is kept."""
    found = yield from _found("flow_sum_differs", visit)
    for flow_id, _, missing in found:
        yield Call("correct_total", {"missing": missing, "id": flow_id})
    yield from leave(((FlowId(cast("bytes", row[0])), "look") for row in found), visit.now)
    return len(found)


def end_flows(visit: Visit) -> Op[int]:
    """Flows whose members have all ended."""
    flows = [FlowId(cast("bytes", row[0])) for row in (yield from _found("flow_not_ended", visit))]
    yield from look(flows, visit.now)
    return len(flows)


def land_again(visit: Visit) -> Op[int]:
    """Give jobs whose row contradicts itself the state that `waiting_state` returns."""

    def landed(live: LiveJob, visit: Visit) -> Op[Transition | None]:
        yield from ()
        if live.state == State.RUNNING:  # it has started, so it waits for nothing
            started = live._replace(paused=0, waits_for=0, held_by=None)
            return Transition(Verb.RESUME, live, after=_changed(started, visit.now))
        return Transition(Verb.RESUME, live, after=transitions.land(live, visit.now))

    checks = [
        "waiting_but_held",
        "pause_disagrees",
        "block_disagrees",
        "queued_too_early",
        "held_without_limit",
        "park_reason_disagrees",
        "in_line_not_held",
    ]
    return (yield from _each(checks, visit, landed))


def free_permits(visit: Visit) -> Op[int]:
    """Free permits that no running job holds, and look at the lines of their keys."""
    keys = {cast("str", key) for key, *_ in (yield from _found("permit_without_run", visit))}
    freed = (yield Call("free_stray_permits")).changed
    yield from keep_moving(keys, Keys(visit.now))
    return freed


def wake_lines(visit: Visit) -> Op[int]:
    """Look at lines that have room and where nobody is awake."""
    keys = {cast("str", key) for key, *_ in (yield from _found("line_asleep", visit))}
    return (yield from keep_moving(keys, Keys(visit.now)))


def reopen_keys(visit: Visit) -> Op[int]:
    """Look anew at keys that open further away than a window."""
    return (
        yield from reopen({cast("str", key) for key, *_ in (yield from _found("key_opens_never", visit))}, visit.now)
    )


def reserve_business_keys(visit: Visit) -> Op[int]:
    """Give live jobs the business key they lack, where it is free."""
    reserved = 0
    for job_id, *_ in (yield from _found("business_key_not_reserved", visit)):
        live = yield from read.live(cast("JobId", job_id))
        if live is not None and live.business_key is not None:
            own = {"key": live.business_key, "job_id": job_id}
            reserved += (yield Call("reserve_business_key", own)).changed
    return reserved


# -- pieces ----------------------------------------------------------------------------------------------------------


def _each(checks: Iterable[str], visit: Visit, decide: Callable[[LiveJob, Visit], Op[Transition | None]]) -> Op[int]:
    """Call `decide` for every live job these checks find, and write what it returns. None: no change."""
    treated: set[JobId] = set()
    for check in checks:
        for live in (yield from _read_again(check, visit, read.live)):
            if live.job_id not in treated:
                transition = yield from decide(live, visit)
                if transition is not None:
                    yield from apply([transition], visit.now)
                    treated.add(live.job_id)
    return len(treated)


def _read_again(check: str, visit: Visit, read_row: Callable[[JobId], Op[T | None]]) -> Op[list[T]]:
    """The rows of the jobs that the check finds, locked if the database locks rows. The check runs again once they are
    locked: a worker or another repair may have changed them before."""
    rows: dict[object, T] = {}
    for job_id, *_ in (yield from _found(check, visit)):
        row = yield from read_row(cast("JobId", job_id))
        if row is not None:
            rows[job_id] = row
    return [rows[job_id] for job_id, *_ in (yield from _found(check, visit)) if job_id in rows] if rows else []


def _found(name: str, visit: Visit) -> Op[list[tuple[object, ...]]]:
    """What the check finds now, inside the repair's transaction."""
    return (yield from check(name, visit.now, visit.limit))


def _changed(live: LiveJob, now: Micros) -> LiveJob:
    return live._replace(updated_at=now, version=live.version + 1)


def _error(failure: Failure) -> dict[str, object]:
    return {"error_type": failure.error_type, "error_message": failure.message}


_REPAIRS: Mapping[str, Treat] = {
    "remove_ended_rows": lambda _: remove_ended(),  # the outcome counts: a live row of an ended life is wrong
    "fail_lost_jobs": fail_lost_jobs,
    "settle_running": settle_running,
    "rescue_running": rescue_running,
    "close_open_runs": by_statement("close_open_runs"),
    "recount_waits": recount_waits,
    "recount_flows": recount_flows,
    "end_flows": end_flows,
    "land_again": land_again,
    "free_permits": free_permits,
    "wake_lines": wake_lines,
    "reopen_keys": reopen_keys,
    "free_business_keys": by_statement("free_unowned_business_keys"),
    "reserve_business_keys": reserve_business_keys,
    "raise_queue_counters": by_statement("add_missing_queues", "raise_queue_counters"),
    "settle_reservations": by_statement("add_reserved_queues", "close_reserved_queues", "open_unreserved_queues"),
    "remove_orphan_runs": by_statement("remove_orphan_runs"),
    "remove_orphan_outcomes": by_statement("remove_orphan_outcomes"),
    "remove_orphan_tags": by_statement("remove_orphan_tags"),
    "remove_orphan_logs": by_statement("remove_orphan_logs"),
}
