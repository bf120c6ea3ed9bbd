"""What the doctor can put right. Called by `perdure doctor --repair`.

Only what is safe: nothing here runs a job that may have ended, drops one that could still run, or makes up a result.
Each repair is one transaction that looks again before it writes. What becomes of a live job is decided by
`job/transitions` and written through `store/write`, as everywhere else.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple, TypeVar, cast

from perdure.clock import Micros, SystemClock
from perdure.errors import InvalidInput
from perdure.ids import IdFactory, JobId, NodeId
from perdure.job import transitions
from perdure.job.model import Failure, JobRow, LiveJob, OutcomeRow, Transition
from perdure.job.retry import Retry
from perdure.job.states import FINAL, RunState, State, Verb
from perdure.ops.doctor import Finding, look_params, runner_of
from perdure.store.engine import Call, Op, Serialization
from perdure.store.enqueue import take_place
from perdure.store.protocols import Store
from perdure.store.read import row_of
from perdure.store.rows import FIRST_ID
from perdure.store.write import apply, count_waits, read_live

T = TypeVar("T")

BATCH = 500
"""A repair treats this many jobs per transaction, so that nobody waits long for it."""

CLOSED_BY_DOCTOR = Failure("Lost", "closed by perdure doctor: the run held no running job")
RESCUED_BY_DOCTOR = Failure("Lost", "rescued by perdure doctor: the job's node was not there to finish it")
FOUND_WITHOUT_RUN = Failure("Lost", "recorded by perdure doctor: the job was running without an open run")
FOUND_WITHOUT_STATE = Failure("Lost", "recorded by perdure doctor: the job was neither live nor ended")


class Visit(NamedTuple):
    """What a repair needs besides the database: the time, and fresh ids."""

    now: Micros
    ids: IdFactory


Operation = Callable[[Visit], Op[int]]
"""Returns how many rows or jobs it put right. 0: there was nothing (left) to do."""


def by_statement(*names: str) -> Operation:
    """A repair whose statements carry their condition themselves."""

    def run(visit: Visit) -> Op[int]:
        changed = 0
        for name in names:
            changed += (yield Call(name, {"now": visit.now, **_error(CLOSED_BY_DOCTOR)})).changed
        return changed

    return run


def fail_lost_jobs(visit: Visit) -> Op[int]:
    """Record jobs that are neither live nor ended as failed: visible, with the reason, and open to a retry by hand."""
    lost = yield from _found_again("job_without_state", visit, row_of)
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
    """How often the job was meant to be tried, so that a retry by hand has as many attempts again."""
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
    """After how many crashes a job is given up is the workers' setting: the next of them to see a crash decides."""
    return transitions.rescue(live, failure, None, visit.now, JobId(visit.ids.new()))


def recount_waits(visit: Visit) -> Op[int]:
    """Remove dependencies on what is not there or has ended, and let every job wait for as many as are left."""
    removed = (yield Call("remove_dead_edges")).changed
    changed = 0
    for job_id, *_ in (yield from _found("waits_for_differs", visit)):
        edges = yield from count_waits(cast("JobId", job_id))
        live = yield from read_live(cast("JobId", job_id))
        if live is None or live.waits_for == edges:
            continue
        counted = live._replace(waits_for=edges)
        parked = live.state == State.PARKED and not counted.waits_for
        after = _changed(counted, visit.now) if parked else transitions.land(counted, visit.now)
        yield from _write(Transition(Verb.UNBLOCK, live, after=after), visit.now)
        changed += 1
    return removed + changed


def land_again(visit: Visit) -> Op[int]:
    """Put jobs whose row contradicts itself where the one rule of `waiting_state` says."""

    def landed(live: LiveJob, visit: Visit) -> Op[Transition | None]:
        yield from ()
        if live.state == State.RUNNING:  # it started: nothing keeps it waiting any more
            return Transition(Verb.RESUME, live, after=_changed(live._replace(paused=0, waits_for=0), visit.now))
        return Transition(Verb.RESUME, live, after=transitions.land(live, visit.now))

    checks = [
        "waiting_but_held",
        "pause_disagrees",
        "block_disagrees",
        "queued_too_early",
        "held_without_limit",
        "park_reason_disagrees",
    ]
    return (yield from _each(checks, visit, landed))


def reserve_business_keys(visit: Visit) -> Op[int]:
    """Give live jobs the business key they lack, where it is free."""
    reserved = 0
    for job_id, *_ in (yield from _found("business_key_not_reserved", visit)):
        live = yield from read_live(cast("JobId", job_id))
        if live is not None and live.business_key is not None:
            own = {"key": live.business_key, "job_id": job_id}
            reserved += (yield Call("reserve_business_key", own)).changed
    return reserved


# -- pieces ----------------------------------------------------------------------------------------------------------


def _each(checks: Iterable[str], visit: Visit, decide: Callable[[LiveJob, Visit], Op[Transition | None]]) -> Op[int]:
    """Let `decide` say what becomes of every live job these checks find, one after the other. None: it stays."""
    repaired: set[JobId] = set()
    for check in checks:
        for live in (yield from _found_again(check, visit, read_live)):
            if live.job_id not in repaired:
                transition = yield from decide(live, visit)
                if transition is not None:
                    yield from _write(transition, visit.now)
                    repaired.add(live.job_id)
    return len(repaired)


def _found_again(check: str, visit: Visit, read: Callable[[JobId], Op[T | None]]) -> Op[list[T]]:
    """What the check finds, read, and so locked where the database locks rows. It is asked again when they are: what
    was found may have been a worker's doing, or repaired by another, before we had it."""
    rows: dict[object, T] = {}
    for job_id, *_ in (yield from _found(check, visit)):
        row = yield from read(cast("JobId", job_id))
        if row is not None:
            rows[job_id] = row
    return [rows[job_id] for job_id, *_ in (yield from _found(check, visit)) if job_id in rows] if rows else []


def _found(check: str, visit: Visit) -> Op[list[tuple[object, ...]]]:
    """What the check finds now, inside the transaction that will repair it."""
    return (yield Call(check, look_params(visit.now, BATCH))).rows


def _changed(live: LiveJob, now: Micros) -> LiveJob:
    return live._replace(updated_at=now, version=live.version + 1)


def _write(transition: Transition, now: Micros) -> Op[None]:
    if not (yield from apply([transition], now)):
        raise Serialization("a job changed while it was being repaired; the repair starts again")


def _error(failure: Failure) -> dict[str, object]:
    return {"error_type": failure.error_type, "error_message": failure.message}


log = logging.getLogger("perdure.doctor")


class Repair(NamedTuple):
    """A named repair; `does` completes the sentence "this will …"."""

    name: str
    does: str
    operation: Operation


REPAIRS: tuple[Repair, ...] = (
    Repair("remove_ended_rows", "remove the live rows of jobs that have ended", by_statement("remove_ended_rows")),
    Repair("fail_lost_jobs", "record jobs without a state as failed", fail_lost_jobs),
    Repair(
        "settle_running",
        "record a lost run for jobs that run without one and put them back, or end them as their run did",
        settle_running,
    ),
    Repair("rescue_running", "put jobs of stopped or unknown nodes back as after a crash", rescue_running),
    Repair("close_open_runs", "close runs that hold no job as lost", by_statement("close_open_runs")),
    Repair("recount_waits", "remove dead dependencies and count anew what jobs wait for", recount_waits),
    Repair("land_again", "put jobs whose row contradicts itself where they belong", land_again),
    Repair("free_business_keys", "free business keys without a live owner", by_statement("free_unowned_business_keys")),
    Repair("reserve_business_keys", "reserve the business keys that live jobs lack", reserve_business_keys),
    Repair(
        "raise_queue_counters",
        "raise the counters of queues beyond their last job",
        by_statement("add_missing_queues", "raise_queue_counters"),
    ),
    Repair("remove_orphan_runs", "remove runs without a job", by_statement("remove_orphan_runs")),
    Repair("remove_orphan_outcomes", "remove outcomes without a job", by_statement("remove_orphan_outcomes")),
    Repair("remove_orphan_tags", "remove tags without a job", by_statement("remove_orphan_tags")),
    Repair("remove_orphan_logs", "remove log lines without a job", by_statement("remove_orphan_logs")),
)
"""In the order in which they are applied: what one leaves behind, a later one finds."""


def repairs_for(findings: Iterable[Finding]) -> list[Repair]:
    """The repairs for these findings, in the order in which to apply them."""
    wanted = {found.repair for found in findings}
    return [repair for repair in REPAIRS if repair.name in wanted]


def repair(store: Store, name: str) -> int:
    """Apply one repair and return how much it changed. 0: there was nothing (left) to put right.

    Each transaction looks again before it writes, changes a limited number of jobs, and is logged once it is durable;
    it is safe to run while workers do.
    """
    cure = next((known for known in REPAIRS if known.name == name), None)
    if cure is None:
        known_names = ", ".join(known.name for known in REPAIRS)
        raise InvalidInput(f"there is no repair {name!r}; known are {known_names}", code="repair_unknown")
    runner, clock, ids = runner_of(store), SystemClock(), IdFactory()
    total = 0
    while True:
        changed = runner.write(partial(cure.operation, Visit(clock.now(), ids)))
        if changed:
            log.info("repair %s: %d changed", cure.name, changed)
        total += changed
        if changed < BATCH:
            return total
