"""Why a job is where it is. Called by `app.explain` and `perdure explain`; asks the store and changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote
from typing import NamedTuple

from perdure.clock import Micros
from perdure.ids import to_uuid
from perdure.job.job import Job
from perdure.job.states import Park, State
from perdure.ops.spans import counted, distance, moment, span
from perdure.ops.workers import Crew, about, crew_for, name_of, summary
from perdure.store.protocols import Store
from perdure.store.tallies import EVERY_QUEUE, Gate

_SHOWN = 5
_NODES_LOOKED_AT = 100

Facts = tuple[tuple[str, str], ...]


class Explanation(NamedTuple):
    """`why` the job is in its state; `next`: what moves it on; `facts`: what that rests on, as names and texts.

    `remedy` is the command that helps, where someone has to do something. None: nobody has to.
    """

    state: State
    why: str
    next: str
    facts: Facts = ()
    remedy: str | None = None

    def __str__(self) -> str:
        return f"{self.state}: {self.why}. {self.next}."


class _Reason(NamedTuple):
    why: str
    next: str
    facts: Facts = ()
    remedy: str | None = None


def explain(store: Store, job: Job, now: Micros) -> Explanation:
    """What keeps the job where it is, from the database alone."""
    reason = _reason(store, job, now)
    return Explanation(job.state, reason.why, reason.next, (*_common(job), *reason.facts), reason.remedy)


def _common(job: Job) -> Facts:
    facts = [("kind", job.kind + (f" (version {job.kind_version})" if job.kind_version > 1 else ""))]
    facts.append(("queue", job.queue))
    if job.priority:
        facts.append(("priority", str(job.priority)))
    facts.append(("attempts", f"{job.attempts} of {job.max_attempts}" + (f", life {job.life}" if job.life > 1 else "")))
    if job.crashes:
        facts.append(("crashes", f"{job.crashes}: its worker died while it ran"))
    return tuple(facts)


def _reason(store: Store, job: Job, now: Micros) -> _Reason:
    match job.state:
        case State.QUEUED:
            return _queued(store, job, now)
        case State.RUNNING:
            return _running(store, job, now)
        case State.SCHEDULED:
            return _scheduled(store, job, now)
        case State.BLOCKED:
            return _blocked(store, job, now)
        case State.HELD:
            return _held(store, job)
        case State.PAUSED:
            return _paused(store, job)
        case State.PARKED:
            return _parked(store, job, now)
        case State.COMPLETED | State.FAILED | State.CANCELLED | State.SKIPPED:
            return _ended(job)


# -- waiting ---------------------------------------------------------------------------------------------------------


def _queued(store: Store, job: Job, now: Micros) -> _Reason:
    ahead = store.count_ahead(job)
    gates = store.gates(job.queue)
    crew = crew_for(store, job)
    facts = (
        ("queued since", moment(max(job.row.queued_at, job.row.run_at))),
        *_last_error(job),
        ("place in queue", f"{ahead + 1:,}"),
        ("jobs ahead", f"{ahead:,}"),
        *_gate_facts(gates, now),
        ("who could run it", summary(crew, now)),
    )
    for gate in gates:
        if closed := _closed(gate, now):
            return closed._replace(facts=facts)
    return (_shortage(job, crew) or _in_line(job, ahead, crew))._replace(facts=facts)


def _in_line(job: Job, ahead: int, crew: Crew) -> _Reason:
    if not ahead:
        workers = counted(len(crew.able), "live worker")
        return _Reason(f"it is the next of queue {job.queue!r}, for {workers}", "A worker with a free place claims it")
    first = f"{counted(ahead, 'job')} of queue {job.queue!r} {'goes' if ahead == 1 else 'go'} first"
    return _Reason(first, "A worker with a free place claims it")


def _shortage(job: Job, crew: Crew) -> _Reason | None:
    """None: there is a worker for it."""
    if not crew.live:
        return _Reason(
            "no worker is registered", "Start a worker for this database", remedy="perdure worker MODULE:APP"
        )
    if not crew.serving:
        return _Reason(
            f"no live worker serves queue {job.queue!r}",
            "Start one that does",
            remedy=f"perdure worker MODULE:APP --queue {quote(job.queue)}",
        )
    if not crew.able:
        return _Reason(
            f"no live worker of queue {job.queue!r} has {_kind(job)}",
            "A worker that reaches the job sets it aside for one that has it; start such a worker",
            remedy="perdure worker MODULE:APP",
        )
    return None


def _scheduled(store: Store, job: Job, now: Micros) -> _Reason:
    run_at, crew = job.row.run_at, crew_for(store, job)
    facts = (
        ("run_at", f"{moment(run_at)} ({distance(run_at, now)})"),
        *_last_error(job),
        *_gate_facts(store.gates(job.queue), now),
        ("who could run it", summary(crew, now)),
    )
    why = f"it may not start before {moment(run_at)}"
    if job.attempts and job.error:
        after = f"attempt {job.attempts} of {job.max_attempts} ended with {_first_line(job.error)}"
        why = f"{after}, and the next one may not start before {moment(run_at)}"
    if run_at > now:
        return _Reason(why, "It is queued then", facts)
    if not crew.live:
        return _Reason(
            f"{why}, which has passed, but no worker is registered",
            "Start a worker for this database",
            facts,
            "perdure worker MODULE:APP",
        )
    return _Reason(f"{why}, which has passed", "A worker queues it at its next turn", facts)


def _blocked(store: Store, job: Job, now: Micros) -> _Reason:
    ids = store.waited_for(job.row.id, _SHOWN)
    others = [store.get(other) for other in ids]
    named = ", ".join(str(to_uuid(other)) for other in ids)
    facts = [
        ("blocked by", f"{to_uuid(other)} ({'gone' if found is None else f'{found.kind}, {found.state}'})")
        for other, found in zip(ids, others, strict=True)
    ]
    if job.waits_for > len(ids):
        facts.append(("blocked by", f"{job.waits_for - len(ids)} more"))
    why = f"it waits for {counted(job.waits_for, 'job')} to end ({named})"
    return _Reason(why, "It is queued when they have ended", (*facts, *_gate_facts(store.gates(job.queue), now)))


def _held(store: Store, job: Job) -> _Reason:
    live = store.live(job.row.id)
    limit = None if live is None else live.limit_key
    why = "it waits for a permit" + (f" of limit {limit!r}" if limit else "")
    return _Reason(why, "It is queued when one is free", (("held by", f"limit {limit}" if limit else "a limit"),))


def _paused(store: Store, job: Job) -> _Reason:
    live = store.live(job.row.id)
    facts = () if live is None else (("paused since", moment(live.updated_at)),)
    return _Reason(
        "it was paused by hand",
        "app.resume(job) lets it go on",
        (*facts, *_last_error(job)),
        f"perdure resume {job.id}",
    )


_PARKED = {
    Park.UNKNOWN_KIND: _Reason(
        "a worker reached it that has no kind of that name",
        "A worker that has it takes the job; else app.cancel(job)",
    ),
    Park.NEWER_VERSION: _Reason(
        "a worker reached it whose code is older than the one that enqueued it",
        "A worker with the newer code takes the job",
    ),
    Park.UNREADABLE: _Reason("its payload cannot be decoded", "Mend it and app.resume(job), or app.cancel(job)"),
}


def _parked(store: Store, job: Job, now: Micros) -> _Reason:
    reason = Park(job.park_reason or Park.UNREADABLE)
    parked = _PARKED[reason]
    facts = (("parked because", reason.value.replace("_", " ")), *_last_error(job))
    if reason is Park.UNREADABLE:
        return parked._replace(facts=facts, remedy=f"perdure resume {job.id}")
    crew = crew_for(store, job)
    facts = (*facts, *_gate_facts(store.gates(job.queue), now), ("who could run it", _who(job, crew, now)))
    if crew.able:
        return parked._replace(next="A live worker has it and takes the job at its next turn", facts=facts)
    return parked._replace(facts=facts, remedy="perdure worker MODULE:APP")


def _who(job: Job, crew: Crew, now: Micros) -> str:
    if crew.able:
        return about(crew.able, now)
    if crew.knowing:
        return f"{about(crew.knowing, now)}: for other queues only"
    return f"no live worker has {_kind(job)}"


# -- running and ended -----------------------------------------------------------------------------------------------


def _running(store: Store, job: Job, now: Micros) -> _Reason:
    asked = "; a cancel was asked for" if job.cancel_requested else ""
    why = f"node {job.node_id} runs attempt {job.attempts} of {job.max_attempts}{asked}"
    live = store.live(job.row.id)
    facts: list[tuple[str, str]] = []
    if live is not None and live.claimed_at is not None:
        facts.append(("running for", f"{span(now - live.claimed_at)}, since {moment(live.claimed_at)}"))
        if live.timeout_ms is not None:
            facts.append(("time-out", f"{live.timeout_ms / 1_000:g} s"))
    node = next((node for node in store.nodes(_NODES_LOOKED_AT) if node.id == job.row.node_id), None)
    if node is None:
        facts.append(("held by", f"node {job.node_id}"))
    elif node.stopped_at is None:
        facts.append(("held by", about([node], now)))
    else:
        stopped = f"{name_of(node)}, stopped {distance(node.stopped_at, now)}"
        facts.append(("held by", f"{stopped} ({(node.stop_reason or 'unknown').replace('_', ' ')})"))
        return _Reason(f"{why}, but that node has stopped", "A live worker takes the job back", tuple(facts))
    return _Reason(why, "It ends by itself", tuple(facts))


def _ended(job: Job) -> _Reason:
    attempts = f"after {counted(job.attempts, 'attempt')}"
    facts = () if job.row.finished_at is None else (("ended", moment(job.row.finished_at)),)
    if job.superseded_by is not None:
        return _Reason(f"job {job.superseded_by} took its place", "That one goes on", facts)
    if job.successor is not None:
        return _Reason(f"job {job.successor} goes on with its work", "Look there", facts)
    if job.state == State.COMPLETED:
        return _Reason(f"it completed {attempts}", "Nothing more happens", facts)
    why = f"it {'failed' if job.state == State.FAILED else f'was {job.state}'} {attempts}"
    if job.error:
        why += f" with {': '.join(part for part in (job.error_type, job.error) if part)}"
    if job.state == State.SKIPPED:
        again = "app.retry(job, as_new=True) runs it as a new job"
        return _Reason(why, again, facts, f"perdure retry {job.id} --as-new")
    return _Reason(why, "app.retry(job) opens a new life", facts, f"perdure retry {job.id}")


# -- parts -----------------------------------------------------------------------------------------------------------


def _kind(job: Job) -> str:
    return f"kind {job.kind!r}" + (f" in version {job.kind_version} or later" if job.kind_version > 1 else "")


def _last_error(job: Job) -> Facts:
    return (("last error", _first_line(job.error)),) if job.error else ()


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


def _gate_facts(gates: Sequence[Gate], now: Micros) -> Facts:
    return tuple(("closed", closed.why) for gate in gates if (closed := _closed(gate, now)))


def _closed(gate: Gate, now: Micros) -> _Reason | None:
    name = "every queue" if gate.name == EVERY_QUEUE else f"queue {gate.name!r}"
    if gate.paused_at is not None:
        return _Reason(
            f"{name} is paused since {moment(gate.paused_at)}",
            f"app.queues.resume({gate.name!r}) lets it go on",
            remedy=f"perdure queues resume {quote(gate.name)}",
        )
    if gate.reserved_until is not None and gate.reserved_until > now:
        return _Reason(
            f"{name} is reserved until {moment(gate.reserved_until)}", "It goes on when the reservation ends"
        )
    return None
