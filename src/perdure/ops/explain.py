"""Why a job is where it is, state by state. Called by `app.explain` and `perdure explain`; asks the store, and
`workers` who could run the job. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from shlex import quote
from typing import NamedTuple

from perdure.clock import Micros
from perdure.ids import FlowId, JobId, to_uuid
from perdure.job.flow import UNMET, EdgeRow, EdgeState, FlowRow, FlowState, Needs
from perdure.job.states import Park, State
from perdure.job.views import Job
from perdure.limit import key as limit_key
from perdure.ops.progress import progress_of, progress_text
from perdure.ops.workers import Crew, about, crew_for, kind_of, name_of, silence, summary
from perdure.store.protocols import Store
from perdure.store.rows import EVERY_QUEUE, LINE_COUNTED, KeyState, NodeRow, QueueHold
from perdure.text import counted, distance, first_line, length, moment, short_id

START_A_WORKER = "perdure worker MODULE:APP"
"""The command line fills in the app, which only the caller may know."""

Facts = tuple[tuple[str, str], ...]


class Explanation(NamedTuple):
    """`why` the job is in its state; `next`: what moves it on; `facts`: the evidence, as names and texts.

    `remedy` is the command that helps, where someone has to do something. None: nobody has to.
    """

    state: State | FlowState
    why: str
    next: str
    facts: Facts = ()
    remedy: str | None = None

    def __str__(self) -> str:
        return f"{self.state}: {self.why}. {self.next}."


def last_error(job: Job) -> Facts:
    return (("last error", first_line(job.error)),) if job.error else ()


def gate_facts(gates: Sequence[QueueHold], now: Micros) -> Facts:
    return tuple(("closed", closed.why) for gate in gates if (closed := closure(gate, now)))


def closure(gate: QueueHold, now: Micros) -> Explanation | None:
    """What keeps all jobs of a queue from being claimed. None: it is open."""
    name = "every queue" if gate.name == EVERY_QUEUE else f"queue {gate.name!r}"
    if gate.paused_at is not None:
        return Explanation(
            State.QUEUED,
            f"{name} is paused since {moment(gate.paused_at)}",
            f"app.queues.resume({gate.name!r}) lets it continue",
            remedy=f"perdure queues resume {quote(gate.name)}",
        )
    if gate.reserved_until is not None:
        by = gate.reserved_by or "nobody that is known"
        since = "" if gate.reserved_at is None else f" since {moment(gate.reserved_at)}"
        is_late = gate.reserved_until <= now
        return Explanation(
            State.QUEUED,
            f"{name} is reserved by {by}{since}, until {moment(gate.reserved_until)} unless it is renewed",
            "A worker opens it soon, if its time is over" if is_late else "It continues when the reservation ends",
            remedy="perdure reservations",
        )
    return None


def full(gate: QueueHold) -> Explanation | None:
    """What keeps more jobs of a queue from starting, because of `app.queues.limit`. None: it has room, or no limit."""
    if gate.concurrency is None or gate.running < gate.concurrency:
        return None
    jobs = "all queues together are" if gate.name == EVERY_QUEUE else f"queue {gate.name!r} is"
    return Explanation(
        State.QUEUED,
        f"{jobs} limited to {counted(gate.concurrency, 'job')} at once, and {gate.running:,}"
        f" {'runs' if gate.running == 1 else 'run'}",
        f"It starts when enough of them have ended; app.queues.limit({gate.name!r}, NUMBER) lets more run (None: all)",
        remedy=f"perdure queues limit {quote(gate.name)} none",
    )


_SHOWN = 5
_LOOKED_AT = 100
"""How many of a flow's jobs are looked at for one that could go on."""

COUNTED = 10_000
"""How far the jobs ahead of one are counted; more of them are `10,000+`."""


def queued(store: Store, job: Job, now: Micros) -> Explanation:
    ahead = store.count_ahead(job, COUNTED)
    gates = store.queue_holds(job.queue)
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
    return (_shortage(job, crew, now) or _first_full(gates) or _in_line(job, ahead, crew))._replace(facts=facts)


def _first_full(gates: Iterable[QueueHold]) -> Explanation | None:
    return next((limited for gate in gates if (limited := full(gate))), None)


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
        *gate_facts(store.queue_holds(job.queue), now),
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
    edges = store.waited_for(job.row.id, COUNTED_EDGES)
    left = [edge for edge in edges if edge.state == EdgeState.WAITING]
    named = [_awaited(store, edge) for edge in left[:_SHOWN]]
    facts = [
        ("waits for", f"{what} {to_uuid(edge.depends_on)} ({state}): its {edge.needs}") for edge, what, state in named
    ]
    if job.waits_for > len(named):
        facts.append(("waits for", f"{job.waits_for - len(named)} more"))
    names = ", ".join(f"{what} {short_id(edge.depends_on)}" for edge, what, _ in named)
    more = ", …" if job.waits_for > len(named) else ""
    of = f"{job.waits_for:,} of {len(edges):,}: " if 1 < len(edges) < COUNTED_EDGES else ""
    why = f"it waits for {of}{names or 'others'}{more}"
    they = "it has" if job.waits_for == 1 else "they have"
    then = f"It is queued when {they} ended"
    if any(edge.needs != Needs.END for edge in left):
        then += " as it needs, and skipped if not"
    if job.row.run_at > now:
        facts.append(("run_at", f"{moment(job.row.run_at)} ({distance(job.row.run_at, now)})"))
        then += f"; not before {moment(job.row.run_at)}"
    return Explanation(State.BLOCKED, why, then, (*facts, *gate_facts(store.queue_holds(job.queue), now)))


COUNTED_EDGES = 1_000


def _awaited(store: Store, edge: EdgeRow) -> tuple[EdgeRow, str, str]:
    """What an edge leads to, as people call it, and its state."""
    found = store.get(JobId(edge.depends_on))
    if found is not None:
        return edge, found.kind, found.state.value
    flow = store.flow(FlowId(edge.depends_on))
    return (edge, "job", "gone") if flow is None else (edge, f"{flow.sort} {flow.name}", flow.state)


def held(store: Store, job: Job, now: Micros) -> Explanation:
    live = store.live(job.row.id)
    if live is None or live.held_by is None:
        names = ", ".join(limit_key.shown(key) for key in limit_key.keys_of(None if live is None else live.limit_key))
        why = f"it needs a permit of {names or 'a limit'}, and no worker has looked for one yet"
        if not crew_for(store, job, now).awake:
            return Explanation(State.HELD, why, "Start a worker", remedy=START_A_WORKER)
        gates = store.queue_holds(job.queue)
        shut = next((closed for gate in gates if (closed := closure(gate, now))), None) or _first_full(gates)
        if shut is not None:
            return shut._replace(state=State.HELD)
        return Explanation(State.HELD, why, "The next worker with room does")
    key = live.held_by
    state, ahead = store.key_state(key, now), store.line_ahead(live)
    before = f"{ahead:,}+ before it" if ahead >= LINE_COUNTED else f"{ahead} before it"
    if state.paused_at is None:
        return _in_line_of(_key_named(store, key), state, before, now)
    limit = limit_key.name_of(key)
    paused_whole = any(one.name == limit and one.paused_at is not None for one in store.limits())
    return _limit_is_paused(key, None if paused_whole else limit_key.value_of(key), state.paused_at, before)


def _limit_is_paused(key: str, value: str | None, paused_at: Micros, before: str) -> Explanation:
    """`value`: only this value of the limit is paused; None: all of it."""
    limit = limit_key.name_of(key)
    argument = "" if value is None else f", key={value!r}"
    option = "" if value is None else f" --key {quote(value)}"
    return Explanation(
        State.HELD,
        f"it waits for a permit of {limit_key.shown(key)}, which is paused since {moment(paused_at)}",
        f"app.limits.resume({limit!r}{argument}) lets it continue",
        (("in line", before),),
        f"perdure limits resume {quote(limit)}{option}",
    )


def _key_named(store: Store, key: str) -> str:
    """A key as people call it: that of a flow which lets only so many of its members run at once, by the flow."""
    flow_id = limit_key.flow_of(key)
    flow = None if flow_id is None else store.flow(FlowId(flow_id))
    return limit_key.shown(key) if flow is None else f"{flow.sort} {flow.name} {to_uuid(flow.id)} (at_once)"


def _in_line_of(name: str, state: KeyState, before: str, now: Micros) -> Explanation:
    facts = (("in line", before),)
    if state.most is None:
        return Explanation(State.HELD, f"it waited for a permit of {name}", "A worker lets its line go now", facts)
    holders = ", ".join(short_id(holder) for holder in state.holders[:_SHOWN])
    users = [f"jobs {holders}{', …' if len(state.holders) > _SHOWN else ''}"] if holders else []
    if state.blocks:
        users.append(f"{counted(state.blocks, 'block')} of code (app.limits.hold)")
    by = f" by {' and '.join(users)}" if users else ""
    why = f"it waits for a permit of {name}: {state.in_use} of {state.most} in use{by}, {before}"
    if state.opens_at is not None:
        return Explanation(State.HELD, why, f"The next opening is {distance(state.opens_at, now)}", facts)
    return Explanation(State.HELD, why, "It starts when enough of them have ended", facts)


def paused(store: Store, job: Job) -> Explanation:
    live = store.live(job.row.id)
    facts = () if live is None else (("paused since", moment(live.updated_at)),)
    return Explanation(
        State.PAUSED,
        "it was paused by hand",
        "app.resume(job) lets it continue",
        (*facts, *last_error(job)),
        f"perdure resume {job.id}",
    )


_PARKED = {
    Park.UNKNOWN_KIND: Explanation(
        State.PARKED,
        "it reached a worker that has no kind of that name",
        "A worker that has it takes the job; else app.cancel(job)",
    ),
    Park.NEWER_VERSION: Explanation(
        State.PARKED,
        "it reached a worker whose code is older than the one that enqueued it",
        "A worker with the newer code takes the job",
    ),
    Park.UNREADABLE: Explanation(
        State.PARKED, "its payload cannot be decoded", "Repair it and app.resume(job), or app.cancel(job)"
    ),
}


def parked(store: Store, job: Job, now: Micros) -> Explanation:
    reason = Park(job.park_reason or Park.UNREADABLE)
    parked = _PARKED[reason]
    facts = (("parked because", reason.value.replace("_", " ")), *last_error(job))
    if reason is Park.UNREADABLE:
        return parked._replace(facts=facts, remedy=f"perdure resume {job.id}")
    crew = crew_for(store, job, now)
    facts = (*facts, *gate_facts(store.queue_holds(job.queue), now), ("who could run it", summary(crew, job, now)))
    if crew.ready:
        return parked._replace(next="A live worker has it and takes the job at its next turn", facts=facts)
    return parked._replace(facts=facts, remedy=START_A_WORKER)


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
    progress = progress_of(store, job)
    if progress is not None:
        yield "progress", progress_text(progress)


def _holder(store: Store, job: Job, crew: Crew) -> NodeRow | None:
    """None: it has stopped, and many nodes have come and gone since."""
    nodes = (*crew.live, *store.nodes(_NODES_LOOKED_AT))
    return next((node for node in nodes if node.id == job.row.node_id), None)


def _left_behind(why: str, crew: Crew, facts: Facts, if_dead: str = "") -> Explanation:
    """Any worker takes back what a dead one held; if there is none, one has to be started."""
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
            why, then = f"{why}, and job {job.superseded_by} takes its place", "That one continues"
        return Explanation(job.state, why, then, facts)
    if job.superseded_by is not None:
        return Explanation(job.state, f"job {job.superseded_by} took its place", "That one continues", facts)
    if job.successor is not None:
        return Explanation(job.state, f"job {job.successor} continues its work", "Look there", facts)
    if job.state == State.SKIPPED and job.error_type == UNMET:
        return _unmet(job, facts)
    why = f"it {'failed' if job.state == State.FAILED else f'was {job.state}'} {attempts}"
    if job.error:
        why += f" with {': '.join(part for part in (job.error_type, first_line(job.error)) if part)}"
    if job.state == State.SKIPPED:
        again = "app.retry(job, as_new=True) runs it as a new job"
        return Explanation(job.state, why, again, facts, f"perdure retry {job.id} --as-new")
    return Explanation(job.state, why, "app.retry(job) opens a new life", facts, f"perdure retry {job.id}")


def _unmet(job: Job, facts: Facts) -> Explanation:
    """It never ran: what it waited for ended otherwise, or its condition did not hold."""
    why = f"it was skipped: {first_line(job.error or 'what it waited for ended otherwise')}"
    flow_id = job.row.flow_id
    if flow_id is None:
        again = "app.retry(job, as_new=True) runs it as a new job, which waits for nothing"
        return Explanation(job.state, why, again, facts, f"perdure retry {job.id} --as-new")
    flow = to_uuid(flow_id)
    then = "If the flow failed, app.retry(flow) runs again what failed, and this one waits for it again"
    return Explanation(job.state, why, then, (*facts, ("flow", str(flow))), f"perdure flow {flow}")


def explain_flow(store: Store, row: FlowRow, now: Micros) -> Explanation:
    """Why the flow is where it is."""
    state = FlowState(row.state)
    facts: list[tuple[str, str]] = [("sort", row.sort), ("name", row.name)]
    if row.key is not None:
        facts.append(("key", row.key))
    so_far = " so far" if row.sealed_at is None and state is FlowState.RUNNING else ""
    facts.append(("members", f"{row.total:,}{so_far}"))
    ends = (f"{getattr(row, name):,} {name}" for name in ("completed", "failed", "cancelled", "skipped"))
    facts.append(("ended", ", ".join(ends)))
    if state is not FlowState.RUNNING:
        return _ended_flow(row, state, tuple(facts))
    facts.append(("running", f"{row.running:,}"))
    flow = f"perdure flow {to_uuid(row.id)}"
    if row.cancel_requested_at is not None:
        why, then = f"it was cancelled at {moment(row.cancel_requested_at)}", "It ends when its members have"
        return Explanation(state, why, then, tuple(facts))
    if row.paused_at is not None:
        why = f"it is paused since {moment(row.paused_at)}"
        if row.failed and row.on_failure == "pause":
            why += f", because {counted(row.failed, 'member')} failed"
        resume = f"perdure resume {to_uuid(row.id)}"
        return Explanation(state, why, "app.resume(flow) lets it continue", tuple(facts), resume)
    left = row.total - row.ended
    if row.sealed_at is None:
        why = f"it is open since {moment(row.created_at)} ({distance(row.created_at, now)}): more members may come"
        if row.filled_by is not None:
            filler = store.get(row.filled_by)
            is_now = "gone" if filler is None else f"{filler.kind}, {filler.state}"
            return Explanation(state, why, f"The end of job {to_uuid(row.filled_by)} ({is_now}) seals it", tuple(facts))
        seal = f"perdure seal {to_uuid(row.id)}"
        return Explanation(state, why, "Whoever fills it seals it; else app.flows.seal(flow) does", tuple(facts), seal)
    why = f"{left:,} of {counted(row.total, 'member')} {'has' if left == 1 else 'have'} not ended"
    idle = None if row.running else _first_idle(store, row)
    if idle is not None:
        why = f"{why}; none runs now, and {idle.kind} is {idle.state}"
        return Explanation(state, why, "It ends with the last of them", tuple(facts), f"perdure explain {idle.id}")
    return Explanation(state, why, "It ends with the last of them", tuple(facts), flow if row.failed else None)


def _first_idle(store: Store, row: FlowRow) -> Job | None:
    """A job of the flow that could go on by itself and does not, among its first ones."""
    waiting = (job for job in store.flow_jobs(row.id, None, None, _LOOKED_AT).items if not job.is_final)
    return next((job for job in waiting if job.state not in (State.BLOCKED, State.RUNNING)), None)


def _ended_flow(row: FlowRow, state: FlowState, facts: Facts) -> Explanation:
    facts = facts if row.finished_at is None else (*facts, ("ended at", moment(row.finished_at)))
    if state is FlowState.COMPLETED:
        return Explanation(state, "nothing of it failed, and nothing was cancelled", "Nothing more happens", facts)
    what = f"{counted(row.failed, 'member')} failed" if row.failed else f"{counted(row.cancelled, 'member')} cancelled"
    then = "app.retry(flow) runs those again that failed or were cancelled, and what was skipped because of them"
    return Explanation(state, what, then, facts, f"perdure retry {to_uuid(row.id)}")


def explain(store: Store, job: Job, now: Micros) -> Explanation:
    """Why the job is where it is: from the database, and from the workers of this machine whether they still run."""
    found = _explained(store, job, now)
    return found._replace(facts=(*_common(job), *_origin(store, job), *found.facts))


def _origin(store: Store, job: Job) -> Facts:
    name, planned = schedule_of(store, job), job.row.scheduled_for
    return () if name is None or planned is None else (("schedule", f"{name}, for {moment(planned)}"),)


def schedule_of(store: Store, job: Job) -> str | None:
    """The name of the schedule that made the job; its id, should there be no such schedule. None: none made it."""
    schedule_id = job.row.schedule_id
    schedule = None if schedule_id is None else store.schedule_by_id(schedule_id)
    return schedule.name if schedule is not None else None if schedule_id is None else str(to_uuid(schedule_id))


def _common(job: Job) -> Facts:
    facts = [("kind", job.kind + (f" (version {job.kind_version})" if job.kind_version > 1 else ""))]
    facts.append(("queue", job.queue))
    if job.priority:
        facts.append(("priority", str(job.priority)))
    facts.append(("attempts", f"{job.attempts} of {job.max_attempts}" + (f", life {job.life}" if job.life > 1 else "")))
    if job.crashes:
        facts.append(("crashes", f"{job.crashes}: its worker died while it ran"))
    facts += [(f"unreadable {name}", why) for name, why in job.unreadable.items()]
    return tuple(facts)


def _explained(store: Store, job: Job, now: Micros) -> Explanation:
    match job.state:
        case State.QUEUED:
            return queued(store, job, now)
        case State.RUNNING:
            return running(store, job, now)
        case State.SCHEDULED:
            return scheduled(store, job, now)
        case State.BLOCKED:
            return blocked(store, job, now)
        case State.HELD:
            return held(store, job, now)
        case State.PAUSED:
            return paused(store, job)
        case State.PARKED:
            return parked(store, job, now)
        case State.COMPLETED | State.FAILED | State.CANCELLED | State.SKIPPED:
            return ended(job)
