"""Who runs a job, and how one has ended. Called by `explain`; asks the store, and `workers` whether its node lives."""

from __future__ import annotations

from collections.abc import Iterator

from perdure.clock import Micros
from perdure.job.job import Job
from perdure.job.states import State
from perdure.ops.explanation import START_A_WORKER, Explanation, Facts, first_line
from perdure.ops.spans import counted, distance, length, moment
from perdure.ops.workers import Crew, about, crew_for, name_of
from perdure.store.answers import NodeRow
from perdure.store.protocols import Store

_NODES_LOOKED_AT = 100


def running(store: Store, job: Job, now: Micros) -> Explanation:
    asked = "; a cancel was asked for" if job.cancel_requested else ""
    why = f"node {job.node_id} runs attempt {job.attempts} of {job.max_attempts}{asked}"
    facts = list(_run_facts(store, job, now))
    crew = crew_for(store, job, now)
    node = _holder(store, job, crew)
    if node is None:
        return Explanation(State.RUNNING, why, "It ends by itself", (*facts, ("held by", f"node {job.node_id}")))
    if node.stopped_at is not None:
        stopped = f"{name_of(node)}, stopped {distance(node.stopped_at, now)}"
        facts.append(("held by", f"{stopped} ({(node.stop_reason or 'unknown').replace('_', ' ')})"))
        return _left_behind(f"{why}, but that node has stopped", crew, tuple(facts))
    facts.append(("held by", about([node], now)))
    if node in crew.gone:
        return _left_behind(f"{why}, but the process of that node has ended", crew, tuple(facts))
    if node in crew.silent:
        silent = f"{why}, but that node was last heard of {distance(node.beat_at, now)}"
        return _left_behind(silent, crew, tuple(facts), if_dead="If it is dead, ")
    return Explanation(State.RUNNING, why, "It ends by itself", tuple(facts))


def _run_facts(store: Store, job: Job, now: Micros) -> Iterator[tuple[str, str]]:
    live = store.live(job.row.id)
    if live is not None and live.claimed_at is not None:
        yield "running for", f"{length(now - live.claimed_at)}, since {moment(live.claimed_at)}"
        if live.timeout_ms is not None:
            yield "time-out", f"{live.timeout_ms / 1_000:g} s"


def _holder(store: Store, job: Job, crew: Crew) -> NodeRow | None:
    """None: it has stopped, and many nodes have come and gone since."""
    nodes = (*crew.live, *store.nodes(_NODES_LOOKED_AT))
    return next((node for node in nodes if node.id == job.row.node_id), None)


def _left_behind(why: str, crew: Crew, facts: Facts, if_dead: str = "") -> Explanation:
    """Any worker takes back what a dead one held; somebody has to start one if there is none."""
    then = f"{if_dead}another worker takes the job back"
    then = then[0].upper() + then[1:]
    if crew.awake:
        return Explanation(State.RUNNING, why, then, facts)
    return Explanation(State.RUNNING, why, f"{then}: start one", facts, START_A_WORKER)


def ended(job: Job) -> Explanation:
    attempts = f"after {counted(job.attempts, 'attempt')}"
    facts = () if job.row.finished_at is None else (("ended", moment(job.row.finished_at)),)
    if job.state == State.COMPLETED:
        why, then = f"it completed {attempts}", "Nothing more happens"
        if job.superseded_by is not None:
            why, then = f"{why}, and job {job.superseded_by} takes its place", "That one goes on"
        return Explanation(job.state, why, then, facts)
    if job.superseded_by is not None:
        return Explanation(job.state, f"job {job.superseded_by} took its place", "That one goes on", facts)
    if job.successor is not None:
        return Explanation(job.state, f"job {job.successor} goes on with its work", "Look there", facts)
    why = f"it {'failed' if job.state == State.FAILED else f'was {job.state}'} {attempts}"
    if job.error:
        why += f" with {': '.join(part for part in (job.error_type, first_line(job.error)) if part)}"
    if job.state == State.SKIPPED:
        again = "app.retry(job, as_new=True) runs it as a new job"
        return Explanation(job.state, why, again, facts, f"perdure retry {job.id} --as-new")
    return Explanation(job.state, why, "app.retry(job) opens a new life", facts, f"perdure retry {job.id}")
