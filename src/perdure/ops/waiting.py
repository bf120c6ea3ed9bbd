"""Why a job waits, state by state. Called by `explain`; asks the store, and `workers` who could take the job."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote

from perdure.clock import Micros
from perdure.ids import to_uuid
from perdure.job.job import Job
from perdure.job.states import Park, State
from perdure.ops.explanation import START_A_WORKER, Explanation, closure, first_line, gate_facts, last_error
from perdure.ops.spans import counted, distance, moment
from perdure.ops.workers import Crew, crew_for, kind_of, silence, summary
from perdure.store.answers import NodeRow
from perdure.store.protocols import Store

_SHOWN = 5

COUNTED = 10_000
"""How far the jobs ahead of one are counted; more of them are `10,000+`."""


def queued(store: Store, job: Job, now: Micros) -> Explanation:
    ahead = store.count_ahead(job, COUNTED)
    gates = store.gates(job.queue)
    crew = crew_for(store, job, now)
    facts = (
        ("queued since", moment(max(job.row.queued_at, job.row.run_at))),
        *last_error(job),
        ("place in queue", f"{ahead + 1:,}" if ahead < COUNTED else f"behind the first {COUNTED:,}"),
        ("jobs ahead", at_least(ahead)),
        *gate_facts(gates, now),
        ("who could run it", summary(crew, job, now)),
    )
    for gate in gates:
        if closed := closure(gate, now):
            return closed._replace(facts=facts)
    return (_shortage(job, crew, now) or _in_line(job, ahead, crew))._replace(facts=facts)


def at_least(ahead: int) -> str:
    """How many jobs go first, as people read it."""
    return f"{ahead:,}" if ahead < COUNTED else f"{COUNTED:,}+"


def _in_line(job: Job, ahead: int, crew: Crew) -> Explanation:
    why = f"it is the next of queue {job.queue!r}, for {counted(len(crew.ready), 'live worker')}"
    if ahead >= COUNTED:
        why = f"{at_least(ahead)} jobs of queue {job.queue!r} go first"
    elif ahead:
        why = f"{counted(ahead, 'job')} of queue {job.queue!r} {'goes' if ahead == 1 else 'go'} first"
    return Explanation(State.QUEUED, why, "A worker with a free place claims it")


def _shortage(job: Job, crew: Crew, now: Micros) -> Explanation | None:
    """None: there is a worker for it."""
    if not crew.live:
        return Explanation(
            State.QUEUED, "no worker is registered", "Start a worker for this database", remedy=START_A_WORKER
        )
    for_the_queue = f"{START_A_WORKER} --queue {quote(job.queue)}"
    if not crew.serving:
        return Explanation(
            State.QUEUED, f"no live worker serves queue {job.queue!r}", "Start one that does", remedy=for_the_queue
        )
    if not crew.able:
        return Explanation(
            State.QUEUED,
            f"no live worker of queue {job.queue!r} has {kind_of(job)}",
            "A worker that reaches the job sets it aside for one that has it; start such a worker",
            remedy=START_A_WORKER,
        )
    if not crew.ready:
        remedy = START_A_WORKER if any(node.queues is None for node in crew.able) else for_the_queue
        return Explanation(State.QUEUED, silence(crew.able, crew, now), _take_over(crew.able, crew), remedy=remedy)
    return None


def _take_over(nodes: Sequence[NodeRow], crew: Crew) -> str:
    if all(node in crew.gone for node in nodes):
        return "Another worker takes over: start one"
    return f"If {'it is' if len(nodes) == 1 else 'they are'} dead, another worker takes over: start one"


def scheduled(store: Store, job: Job, now: Micros) -> Explanation:
    run_at, crew = job.row.run_at, crew_for(store, job, now)
    facts = (
        ("run_at", f"{moment(run_at)} ({distance(run_at, now)})"),
        *last_error(job),
        *gate_facts(store.gates(job.queue), now),
        ("who could run it", summary(crew, job, now)),
    )
    why = f"it may not start before {moment(run_at)}"
    if job.attempts and job.error:
        after = f"attempt {job.attempts} of {job.max_attempts} ended with {first_line(job.error)}"
        why = f"{after}, and the next one may not start before {moment(run_at)}"
    if run_at > now:
        return Explanation(State.SCHEDULED, why, "It is queued then", facts)
    why += ", which has passed"
    if not crew.live:
        return Explanation(
            State.SCHEDULED,
            f"{why}, but no worker is registered",
            "Start a worker for this database",
            facts,
            START_A_WORKER,
        )
    if not crew.awake:  # any worker queues what is due, whatever it serves
        silent = f"{why}, but {silence(crew.live, crew, now)}"
        return Explanation(State.SCHEDULED, silent, _take_over(crew.live, crew), facts, START_A_WORKER)
    return Explanation(State.SCHEDULED, why, "A worker queues it at its next turn", facts)


def blocked(store: Store, job: Job, now: Micros) -> Explanation:
    ids = store.waited_for(job.row.id, _SHOWN)
    others = [store.get(other) for other in ids]
    named = ", ".join(str(to_uuid(other)) for other in ids)
    facts = [
        ("blocked by", f"{to_uuid(other)} ({'gone' if found is None else f'{found.kind}, {found.state}'})")
        for other, found in zip(ids, others, strict=True)
    ]
    if job.waits_for > len(ids):
        facts.append(("blocked by", f"{job.waits_for - len(ids)} more"))
    why, then = f"it waits for {counted(job.waits_for, 'job')} to end ({named})", "It is queued when they have ended"
    if job.row.run_at > now:
        facts.append(("run_at", f"{moment(job.row.run_at)} ({distance(job.row.run_at, now)})"))
        then += f", and not before {moment(job.row.run_at)}"
    return Explanation(State.BLOCKED, why, then, (*facts, *gate_facts(store.gates(job.queue), now)))


def held(store: Store, job: Job) -> Explanation:
    live = store.live(job.row.id)
    limit = None if live is None else live.limit_key
    why = "it waits for a permit" + (f" of limit {limit!r}" if limit else "")
    facts = (("held by", f"limit {limit}" if limit else "a limit"),)
    return Explanation(State.HELD, why, "It is queued when one is free", facts)


def paused(store: Store, job: Job) -> Explanation:
    live = store.live(job.row.id)
    facts = () if live is None else (("paused since", moment(live.updated_at)),)
    return Explanation(
        State.PAUSED,
        "it was paused by hand",
        "app.resume(job) lets it go on",
        (*facts, *last_error(job)),
        f"perdure resume {job.id}",
    )


_PARKED = {
    Park.UNKNOWN_KIND: Explanation(
        State.PARKED,
        "a worker reached it that has no kind of that name",
        "A worker that has it takes the job; else app.cancel(job)",
    ),
    Park.NEWER_VERSION: Explanation(
        State.PARKED,
        "a worker reached it whose code is older than the one that enqueued it",
        "A worker with the newer code takes the job",
    ),
    Park.UNREADABLE: Explanation(
        State.PARKED,
        "its payload cannot be decoded",
        "Mend it and app.resume(job), or app.cancel(job)",
    ),
}


def parked(store: Store, job: Job, now: Micros) -> Explanation:
    reason = Park(job.park_reason or Park.UNREADABLE)
    parked = _PARKED[reason]
    facts = (("parked because", reason.value.replace("_", " ")), *last_error(job))
    if reason is Park.UNREADABLE:
        return parked._replace(facts=facts, remedy=f"perdure resume {job.id}")
    crew = crew_for(store, job, now)
    facts = (*facts, *gate_facts(store.gates(job.queue), now), ("who could run it", summary(crew, job, now)))
    if crew.ready:
        return parked._replace(next="A live worker has it and takes the job at its next turn", facts=facts)
    return parked._replace(facts=facts, remedy=START_A_WORKER)
