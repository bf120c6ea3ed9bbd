"""One simulated history: nodes on machines with clocks of their own, on one real SQLite file, in a single thread.

Everything that happens follows from the seed. The world calls what threads call in a real worker (`node.turn`,
`heart.beat`, the chores, the executor) in a random order; before any call to the database others may come first.
"""

from __future__ import annotations

import logging
import random
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property, partial
from itertools import takewhile
from operator import gt
from pathlib import Path
from typing import Any, get_args
from uuid import UUID

from perdure import KeyConflict, Limit, Perdure, Rate, Retention, Retry, TransitionRefused
from perdure.clock import Micros
from perdure.enqueue import new_job
from perdure.errors import FlowNotFound, JobNotFound, ReservationExpired, StoreError
from perdure.ids import IdFactory, JobId, NodeId, ReservationId, to_uuid
from perdure.job.flow import UNMET, NeedsName, OnFailure, is_met
from perdure.job.model import Claim, NewJob
from perdure.job.states import FINAL, RunState, State
from perdure.job.views import Job
from perdure.kind import Draft, Registry
from perdure.ops.doctor import examine, is_healthy
from perdure.schedule.definition import trigger_of
from perdure.schedule.scheduler import Scheduler
from perdure.schedules import LAST
from perdure.store.rows import (
    USUAL_LEASE_US,
    Missed,
    NewNode,
    ReservationRow,
    ScheduleRow,
    Turn,
    Turned,
    Until,
)
from perdure.store.store import SqlStore
from perdure.upkeep.chore import Chore, Chores
from perdure.upkeep.openings import OpeningWatch
from perdure.upkeep.rescue import Rescuer
from perdure.upkeep.reservations import ReservationWatch
from perdure.upkeep.retention import Archive, Prune, Work
from perdure.worker.context import JobContext
from perdure.worker.heartbeat import BEATS_PER_LEASE, Heartbeat
from perdure.worker.node import Node
from perdure.worker.options import Parts, WorkerOptions
from perdure.worker.run import Assignment, Inbox
from perdure.worker.signals import Stop
from tests import history
from tests.simulation.faults import HOWS, Died, Fault, FaultyRunner, Refused
from tests.simulation.machines import START_S, Machine, SimExecutor, SimLiveness, Time

LEASES_S = (6.0, 10.0, 10.0, 30.0)
LEASE_S = 10.0
"""The usual one: how long things take is measured by it."""
DAY_S = 86_400.0
MOST_PROCESSES = 4
MAX_CRASHES = 3
QUEUES = ("a", "b")
ON_FAILURE: tuple[OnFailure, ...] = get_args(OnFailure)
LIMITS = {"tenant": 2, "gpu": 4}
AT_ONCE = [Limit("tenant", LIMITS["tenant"], by="tenant"), Limit("gpu", LIMITS["gpu"], weight="weight")]
RATE, PER_S, SKEW_S = 3, 20.0, 4.0
"""So many starts in any 20 s by the clocks of the machines, which differ by up to 4 s."""
LIMITED: dict[str, dict[str, Any]] = {
    "heavy": {"limit": AT_ONCE},
    "rated": {"rate": Rate("rate", RATE, per=PER_S)},
    "window": {"rate": Rate("window", RATE, per=PER_S, by="tenant", algorithm="fixed"), "limit": AT_ONCE[0]},
    "bucket": {"rate": Rate("bucket", RATE, per=PER_S, weight="weight", algorithm="bucket", burst=4)},
}
ACTS = {
    "ok": 12, "talk": 2, "effect": 4, "child": 3, "orphan": 1, "fail": 8, "fatal": 1, "later": 2, "snooze": 2,
    "skip": 1, "cancel": 1, "hang": 3, "polite": 2, "deaf": 2, "heedless": 2,
}  # fmt: skip
FOREVER_S = 10_000.0
SOON = timedelta(seconds=0.5)
RETENTION = Retention(SOON, SOON, 2 * SOON, 3 * SOON, logs=SOON, records=None)
SWEEPS = ((Prune, RETENTION), (Archive, replace(RETENTION, archive="table")))
SCHEDULES: dict[str, dict[str, Any]] = {
    "often": {"every": 4.0, "overlap": "allow"},
    "alone": {"every": 9.0, "overlap": "skip", "catch_up": "none", "misfire_grace": 15},
    "in line": {"every": 30.0, "overlap": "queue", "catch_up": "all", "catch_up_limit": 3, "jitter": 2},
}


@dataclass
class Proc:
    """A worker process."""

    number: int
    machine: Machine
    runner: FaultyRunner
    heart_runner: FaultyRunner
    node: Node
    heart: Heartbeat
    chores: Chores
    executor: SimExecutor
    start: str
    lease_s: float
    nodes: set[NodeId] = field(default_factory=set)
    busy: set[str] = field(default_factory=set)
    frozen_until: float = 0.0
    leaves_at: float | None = None
    next_turn: float = 0.0
    next_beat: float = 0.0
    next_act: float = 0.0
    is_excused: bool = False
    """It died, was frozen or left: others may rightly have taken its jobs."""
    is_troubled: bool = False
    """One of its calls may have failed."""

    @property
    def alive(self) -> bool:
        return not self.runner.dead


@dataclass
class Holder:
    """Someone who has reserved a queue, in a process of its own."""

    machine: Machine
    start: str
    lasts_s: float

    @property
    def alive(self) -> bool:
        return self.start in self.machine.living

    def until(self) -> Until:
        lasts_us = round(self.lasts_s * 1_000_000)
        at_us = round(self.machine.boottime() * 1_000_000)
        return Until(Micros(self.machine.now() + lasts_us), at_us + lasts_us, lasts_us)


@dataclass
class Flows:
    """The flows that somebody has started, each with the jobs that wait for its end, and what they need of it."""

    callbacks: dict[UUID, list[tuple[UUID, NeedsName]]] = field(
        default_factory=dict[UUID, list[tuple[UUID, NeedsName]]]
    )
    in_use: dict[str, int] = field(default_factory=dict[str, int])
    """What of each key was in use at the last look."""
    starts: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """Between when and when, by the true time, jobs of the limited rate were claimed: a turn has read its clock before
    others came first."""


@dataclass
class Sweeps:
    """What is being pruned or archived, and what is gone."""

    work: Work | None = None
    gone: set[UUID] = field(default_factory=set[UUID])
    instants: defaultdict[bytes, set[int]] = field(default_factory=lambda: defaultdict[bytes, set[int]](set))
    """Of each schedule, those whose slots went with their jobs."""
    flows: set[bytes | None] = field(default_factory=set[bytes | None])
    """Those of which jobs are gone, and those around them: the rest follows, the flow itself last."""


class SimStore(SqlStore):
    """The real one; it tells the world who is said to be alive, and who is said to be dead."""

    def __init__(self, runner: FaultyRunner, world: World, *, is_old: bool = False) -> None:
        super().__init__(runner)
        self._world = world
        self._is_old = is_old
        """Its process runs an older Perdure, which does not say its lease."""

    def register(self, node: NewNode) -> None:
        if self._is_old:
            node = node._replace(lease_us=None)
        self._world.leases[node.id] = None if node.lease_us is None else node.lease_us / 1_000_000
        self._world.beaten[node.id] = self._world.time.at
        super().register(node)

    def beat(self, node_id: NodeId, now: Micros) -> bool:
        beaten = super().beat(node_id, now)
        if beaten:
            self._world.beaten[node_id] = self._world.time.at
        return beaten

    def stop(self, node_id: NodeId, reason: str, now: Micros, seen_beat: int | None = None) -> bool:
        stopped = super().stop(node_id, reason, now, seen_beat)
        if stopped and reason == "unknown":
            self._world.judge_silence(node_id)
        return stopped

    def save_schedule(self, row: ScheduleRow, seen_version: int | None, missed: Sequence[Missed] = ()) -> bool:
        try:
            return super().save_schedule(row, seen_version, missed)
        finally:  # a lost answer does not say whether it was written
            known = self._world.plain.store.schedule(row.name)
            if known is not None and known.updated_at == row.updated_at:
                planned = self._world.planned_from
                planned[row.name] = max(planned.get(row.name, Micros(0)), row.next_trigger_at or Micros(0))

    def turn(self, wanted: Turn, now: Micros) -> Turned:
        try:
            turned = super().turn(wanted, now)
        finally:  # a lost answer does not say who has started
            self._world.judge_permits()
        self._world.judge_claims(turned.claims)
        self._world.note_starts(turned.claims, now)
        return turned

    def close_reservation(
        self, reservation_id: ReservationId, status: str, now: Micros, seen_expires_at: Micros | None = None
    ) -> bool:
        held = [row for row in self._world.plain.store.active_reservations() if row.id == reservation_id]
        closed = super().close_reservation(reservation_id, status, now, seen_expires_at)
        if closed and status == "expired":
            self._world.judge_expiry(held[0])
        return closed


class World:
    """A history as it happens. `live` lets it happen, `drain` brings it to its end, `problems` judges it."""

    def __init__(self, folder: Path, template: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.path = folder / "jobs.db"
        self.path.write_bytes(template.read_bytes())
        self.notes = folder / "notes"
        self.time = Time()
        self.machines = [Machine(self.time, f"m{n}", self.random) for n in range(3)]
        self.office = self.machines[0]
        self.plain = Perdure(self.path, clock=self.office, ids=self._ids(self.office), durability="normal")
        store = self.plain.store
        assert isinstance(store, SqlStore)
        self.inner = store.runner
        self.app = Perdure(self.path, clock=self.office, ids=self._ids(self.office), durability="normal")
        self.desk = FaultyRunner(self.inner, self._meanwhile, self._is_reachable)
        self.app.__dict__["store"] = SimStore(self.desk, self)
        self.kinds = [self.app.job(name=name)(work) for name in ("common", "late")]
        self.limited = [self.app.job(name=name, **said)(limited) for name, said in LIMITED.items()]
        self.old_kinds = Registry()
        self.old_kinds.add(self.kinds[0])
        self.planned_from: dict[str, Micros] = {}
        """The first instant of each schedule that was planned when somebody last changed it."""
        for name, said in SCHEDULES.items():
            self.plain.schedules.put(name, kind=self.kinds[0], payload={"n": 0}, **said)
        self.procs: list[Proc] = []
        self.jobs: list[UUID] = []
        self.outage_until = 0.0
        self.is_draining = False
        self.counts: Counter[str] = Counter()
        """How often everything happened, and what there was of it."""
        self.began, self.overdue = dict[UUID, tuple[float, float]](), dict[UUID, bool]()
        """When handlers began, by the true time, and how long they may take; runs closed for being overdue, and whether
        they were."""
        self.beaten: dict[NodeId, float] = {}
        self.leases: dict[NodeId, float | None] = {}
        """What nodes said when they registered; of an older Perdure, nothing."""
        self.locked_until = 0.0
        """Until then someone else holds the write lock: reading works, and no write does."""
        self.wronged: list[str] = []
        self.sweeps = Sweeps()
        self.flows = Flows()
        self.holders: dict[ReservationId, Holder] = {}
        self._depth = self._processes = 0

    # -- what may happen ---------------------------------------------------------------------------------------------

    def live(self, steps: int) -> None:
        for _ in range(2):
            self.spawn()
        things = list(THINGS)
        for _ in range(steps):
            self._one_thing(self.random.choices(things, [THINGS[thing] for thing in things])[0])

    def _one_thing(self, thing: Callable[[World], None]) -> None:
        self.counts[thing.__name__] += 1
        thing(self)

    def enqueue(self) -> None:
        choice = self.random.choice
        retry = Retry(
            choice((1, 2, 3, 4)), backoff=choice(("none", "fixed", "exponential")), base=2.0,
            as_new_job=self.random.random() < 0.2,
        )  # fmt: skip
        options: dict[str, Any] = {
            "queue": choice(QUEUES),
            "delay": choice((None, None, None, 0.5, 20.0)),
            "retry": retry,
            "timeout": choice((None, None, 3.0, 8.0)),
            "priority": choice((0, 0, 1)),
            "idempotency_key": choice((None,) * 6 + tuple("xyz")),
            "business_key": choice((None,) * 6 + tuple("uvw")),
            "conflict": choice(("raise", "return")),
        }
        kind = self.kinds[self.random.random() < 0.15]
        with suppress(StoreError, KeyConflict):
            job = kind.options(**options).enqueue(n=len(self.jobs))
            history.note(self.notes, "enqueued", job=job.id)
            self.jobs.append(job.id)

    def enqueue_limited(self) -> None:
        kind = self.random.choices(self.limited, (6, 2, 1, 1))[0]
        with suppress(StoreError):
            jobs = self.app.enqueue_many([self._limited(kind) for _ in range(self.random.randrange(1, 5))])
            for job in jobs:
                history.note(self.notes, "enqueued", job=job.id)
                self.jobs.append(job.id)

    def _limited(self, kind: Any) -> Draft:
        choice = self.random.choice
        retry = Retry(choice((1, 2, 3)), backoff=choice(("none", "fixed")), base=2.0)
        options: dict[str, Any] = {"queue": choice(QUEUES), "retry": retry, "timeout": choice((None, 3.0))}
        drafted: Draft = kind.options(**options).new(tenant=choice((1, 2)), weight=choice((1, 1, 2, 3, 9)))
        return drafted

    def _member(self) -> Draft:
        if self.random.random() < 0.2:
            return self._limited(self.random.choices(self.limited, (8, 0, 1, 1))[0])
        retry = Retry(self.random.choice((1, 1, 2)), backoff="none", as_new_job=self.random.random() < 0.1)
        drafted: Draft = self.kinds[0].options(queue=self.random.choice(QUEUES), retry=retry).new(n=0)
        return drafted

    def start_a_flow(self) -> None:
        """A batch with callbacks, or a workflow: a diamond with a group inside, joined in the end."""
        with suppress(StoreError):
            if self.random.random() < 0.5:
                self._start_a_batch()
            else:
                self._start_a_workflow()

    def _start_a_batch(self) -> None:
        drafts = {need: self._member() for need in get_args(NeedsName)}
        policy = self.random.choice((None, 1, 2))
        batch = self.app.batch(
            "batch", on_success=drafts["success"], on_failure=drafts["failure"], on_end=drafts["end"],
            at_once=policy, abandon=self.random.choice(("cancel", "keep")),
        )  # fmt: skip
        with batch:
            for _ in range(self.random.randrange(6)):
                batch.add(self._member())
        self._keep(batch.id)

    def _start_a_workflow(self) -> None:
        choice = self.random.choice
        with self.app.workflow("graph", on_failure=choice(ON_FAILURE), at_once=choice((None, None, 2))) as wf:
            first = wf.add(self._member())
            sides = [wf.add(self._member(), after=first, on=choice(get_args(NeedsName))) for _ in range(2)]
            several = [self._member() for _ in range(self.random.randrange(1, 4))]
            inner = wf.group(several, on_failure=choice(ON_FAILURE))
            wf.add(self._member(), after=[*sides, inner], on=choice(("success", "end")))
            for need in get_args(NeedsName):
                wf.add(self._member(), after=wf, on=need)
        self._keep(wf.id)

    def _keep(self, flow: UUID) -> None:
        """Its members are jobs like others; its callbacks are left alone, and judged in the end."""
        edges = self.looker.execute("SELECT job_id, needs FROM perdure_edge WHERE depends_on = ?", (flow.bytes,))
        self.flows.callbacks[flow] = [(to_uuid(job_id), need) for job_id, need in edges]
        members = self.looker.execute(
            "SELECT id FROM perdure_job WHERE flow_id = ? AND sequence IS NOT NULL ORDER BY id", (flow.bytes,)
        )
        for (job_id,) in members.fetchall():
            history.note(self.notes, "enqueued", job=to_uuid(job_id))
            self.jobs.append(to_uuid(job_id))

    def operate(self) -> None:
        """Someone decides something about some job."""
        if not self.jobs:
            return
        app, job = self.app, self._some_job()
        verbs: list[Callable[[], object]] = [
            *[lambda: app.cancel(job)] * 3,
            lambda: app.pause(job),
            *[lambda: app.resume(job)] * 2,
            *[lambda: app.retry(job)] * 2,
            lambda: app.retry(job, as_new=True),
            lambda: app.move(job, to=self.random.choice(("front", "back"))),
            lambda: app.move(job, before=self._some_job()),
            lambda: app.set_priority(job, self.random.randrange(3)),
            lambda: app.supersede(job, self.kinds[0].new(n=-1)),
            lambda: app.queues.pause(self.random.choice(QUEUES)),
            *[lambda: app.queues.resume(self.random.choice(QUEUES))] * 3,
            lambda: self._delete(job),
            *self._verbs_on_schedules(),
            *self._verbs_on_flows(),
            *self._verbs_on_limits(),
        ]
        with suppress(StoreError, TransitionRefused, JobNotFound, FlowNotFound, KeyConflict):
            self.random.choice(verbs)()

    def _verbs_on_flows(self) -> list[Callable[[], object]]:
        if not self.flows.callbacks:
            return []
        app, flow = self.app, self.random.choice(list(self.flows.callbacks)[-4:])
        return [
            lambda: app.cancel(self.plain.flows.existing(flow)),
            *[lambda: app.pause(self.plain.flows.existing(flow))] * 2,
            *[lambda: app.resume(self.plain.flows.existing(flow))] * 3,
            *[lambda: app.retry(self.plain.flows.existing(flow))] * 4,
            lambda: app.flows.seal(flow),
        ]

    def _verbs_on_limits(self) -> list[Callable[[], object]]:
        limits, name = self.app.limits, self.random.choice(list(LIMITS))
        return [
            lambda: limits.set(name, self.random.randrange(1, 6)),
            lambda: limits.reset(name),
            lambda: limits.pause(name),
            *[lambda: limits.resume(name)] * 3,
        ]

    def _verbs_on_schedules(self) -> list[Callable[[], object]]:
        schedules, name = self.app.schedules, self.random.choice(list(SCHEDULES))
        every, payload = self.random.choice((4.0, 9.0, 30.0)), {"n": self.random.randrange(2)}
        said: dict[str, Any] = {**SCHEDULES[name], "every": every}
        return [
            *[lambda: self.app.trigger(name)] * 2,
            lambda: schedules.disable(name, cancel_pending=self.random.random() < 0.5),
            *[lambda: schedules.enable(name)] * 2,
            lambda: schedules.put(name, kind=self.kinds[0], payload=payload, **said),
        ]

    def _delete(self, job: UUID) -> None:
        self.plain.delete(job)
        self._note_gone(job)

    def _note_gone(self, job: UUID) -> None:
        self.sweeps.gone.add(job)
        history.note(self.notes, "deleted", job=job)

    def sweep(self) -> None:
        """Pruning or archiving goes a little further, or begins anew. Others may come first, other sweeps too."""
        work, self.sweeps.work = self.sweeps.work, None
        if work is None or self.random.random() < 0.1:
            sort, retention = self.random.choice(SWEEPS)
            work = sort(self.app.store, self.office, retention)
            work.begin(self.office.now())
        with suppress(StoreError):
            if all(self._step(work) for _ in range(self.random.randrange(1, 4))):
                self.sweeps.work = work

    def _step(self, work: Work) -> bool:
        """False: that was the last one. What is gone afterwards had ended before."""
        before = {job.id: job for job in self.plain.jobs()}
        around = dict(self.looker.execute("SELECT id, parent_id FROM perdure_flow"))
        try:
            return work.step() is None
        finally:
            left = {job.id for job in self.plain.jobs()}
            for job in map(before.__getitem__, sorted(before.keys() - left - self.sweeps.gone)):
                if job.state not in FINAL:
                    self.wronged.append(f"job {job.id} was {job.state} and was removed")
                if job.row.schedule_id is not None and job.row.scheduled_for is not None:
                    self.sweeps.instants[job.row.schedule_id].add(job.row.scheduled_for)
                if job.row.flow_id is not None:
                    self.sweeps.flows |= {job.row.flow_id, around[job.row.flow_id]}
                self._note_gone(job.id)

    def _some_job(self) -> UUID:
        return self.random.choice(self.jobs[-12:])

    def work(self) -> None:
        """One of the processes does what it has to do."""
        ready = [proc for proc in self._awake() if "store" not in proc.busy]
        if ready:
            self._act(self.random.choice(ready))

    def pass_time(self) -> None:
        spans = (0.001, 0.05, 0.3, 1.0, 2.0, 3.0)
        self.advance(self.random.choice(spans) * self.random.uniform(0.5, 1))

    def set_a_clock(self) -> None:
        self.random.choice(self.machines).set_wall(self.random.choice((-DAY_S, DAY_S, -3600.0, 90.0, -90.0)))

    def kill(self) -> None:
        if self._awake():
            self._die(self.random.choice(self._awake()))

    def freeze(self) -> None:
        if self._awake():
            proc = self.random.choice(self._awake())
            proc.frozen_until = self.time.at + self.random.uniform(0.2, 3) * LEASE_S
            proc.is_excused = True

    def thaw(self) -> None:
        """A frozen process goes on, first of all its heart."""
        frozen = [proc for proc in self.procs if proc.alive and proc not in self._awake() and not proc.busy]
        if frozen:
            proc = self.random.choice(frozen)
            proc.frozen_until = self.time.at
            self._beat(proc)

    def spawn(self) -> None:
        if sum(proc.alive for proc in self.procs) < MOST_PROCESSES:
            with suppress(StoreError):
                self.start()

    def leave(self) -> None:
        """A worker is told to stop."""
        if self._awake():
            proc = self.random.choice(self._awake())
            proc.node.request_stop()
            proc.leaves_at = proc.leaves_at or proc.machine.boottime() + self.random.choice((0.0, 2.0, 8.0))
            proc.is_excused = True

    def break_a_call(self) -> None:
        """One of the next writes of some process fails, or is its last."""
        runners = [runner for proc in self._awake() for runner in (*[proc.runner] * 5, proc.heart_runner)]
        runner = self.random.choice([self.desk, *runners])
        for proc in self.procs:
            proc.is_troubled |= runner is proc.runner
        how, error = self.random.choice(HOWS)
        if runner is not self.desk and self.random.random() < 0.2:
            error = Died
        times = 1 if error is Refused else self.random.choice((1, 1, 2, 3))
        then = Fault(self.random.randrange(2), *self.random.choice(HOWS[:5])) if self.random.random() < 0.3 else None
        runner.fault = Fault(self.random.randrange(3), how, error, self.random.randrange(1, 12), times, then)

    def reserve(self) -> None:
        """Someone reserves a queue, or all of them, if nobody is in the way."""
        self._processes += 1
        machine, start = self.random.choice(self.machines), f"start {self._processes}"
        holder = Holder(machine, start, self.random.choice((0.5, 10.0, 60.0)))
        held = ReservationId(self.plain.ids.new())
        queue = self.random.choice((*QUEUES, "*"))
        process = SimLiveness(machine, self.random.randrange(100, 103), start).own()._asdict()
        made_by = (held, queue, start, "active", machine.now(), None)
        machine.living.add(start)
        self.holders[held] = holder
        with suppress(StoreError):
            self.app.store.reserve(ReservationRow(*made_by, *holder.until(), **process))

    def hold(self) -> None:
        """One of those who have reserved a queue begins, renews it, releases it, or dies."""
        living = [(held, holder) for held, holder in self.holders.items() if holder.alive]
        if not living:
            return
        held, holder = self.random.choice(living)
        store = self.app.store
        acts: list[Callable[[], object]] = [
            *[lambda: self._enter(held, holder)] * 3,
            lambda: store.renew_reservation(held, holder.until()),
            lambda: self._release(held, holder),
            lambda: holder.machine.living.discard(holder.start),
        ]
        with suppress(StoreError, ReservationExpired):
            self.random.choice(acts)()

    def _enter(self, held: ReservationId, holder: Holder) -> None:
        if self.app.store.enter_reservation(held, holder.until(), holder.machine.now()):
            self.judge_quiet(held)

    def _release(self, held: ReservationId, holder: Holder) -> None:
        self.app.store.close_reservation(held, "released", holder.machine.now())
        holder.machine.living.discard(holder.start)

    def suspend(self) -> None:
        """All machines sleep at once and wake up together."""
        self._sleep(self.random.choice((5.0, 60.0, 4000.0)))

    def lose_the_database(self) -> None:
        self.outage_until = self.time.at + self.random.choice((0.5, 5.0, 25.0))
        for proc in self.procs:
            proc.is_troubled = True

    def lock_the_file(self) -> None:
        """Someone else holds the write lock, for up to three leases."""
        self.locked_until = self.time.at + self.random.choice((0.5, 5.0, 12.0, 35.0, 95.0))
        for proc in self.procs:
            proc.is_troubled = True

    # -- how it happens ----------------------------------------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        """Time passes. Processes that are not frozen do in time what they do by the clock: beat, and look for work."""
        end = self.time.at + seconds
        while True:
            due = [(proc.next_beat, proc.number, "heart", proc) for proc in self._awake() if "heart" not in proc.busy]
            due += [(proc.next_act, proc.number, "store", proc) for proc in self._awake() if "store" not in proc.busy]
            at, _, thread, proc = min(due, key=lambda one: one[:3], default=(end + 1, 0, "", None))
            if proc is None or at > end:
                break
            self.time.at = max(self.time.at, at)
            if thread == "store":
                self._act(proc)
            else:
                self._beat(proc)
        self.time.at = max(self.time.at, end)

    def _beat(self, proc: Proc) -> None:
        proc.next_beat = self.time.at + proc.lease_s / BEATS_PER_LEASE
        with self._as(proc, "heart"):
            if not proc.heart.beat():
                self._die(proc)  # as `perdure worker` does when its store thread hangs

    def _sleep(self, seconds: float) -> None:
        self.time.at += seconds
        for proc in self.procs:
            proc.next_beat = max(proc.next_beat, self.time.at)
            proc.next_act = max(proc.next_act, self.time.at)

    def _act(self, proc: Proc) -> None:
        at = proc.machine.boottime()
        proc.next_act = self.time.at + self.random.uniform(0.3, 1.2)
        if "handler" not in proc.busy:
            with self._as(proc, "handler"):
                proc.executor.progress()
        with self._as(proc, "store"):
            node = proc.node
            if self.random.random() < 0.3:
                node.look_again()
            if at >= proc.next_turn or node.in_trouble or self.random.random() < 0.3:
                proc.next_turn = at + node.turn()
            if not node.in_trouble:
                proc.chores.run_due()
            if proc.leaves_at is not None:
                self._wind_down(proc, at)

    def judge_silence(self, node_id: NodeId) -> None:
        """Whoever is declared dead for its silence has been silent for a whole lease of its own, of the true time; and
        not because nobody could write, or reach the database: it had died, stood still or left."""
        silent_s = self.time.at - self.beaten[node_id]
        lease_s = self.leases[node_id] or USUAL_LEASE_US / 1_000_000
        is_well = any(not proc.is_excused for proc in self.procs if node_id in proc.nodes)
        if silent_s < lease_s - 0.001 or is_well:
            how = ", and it was in good health" if is_well else ""
            self.wronged.append(
                f"node {to_uuid(node_id)} (lease {lease_s} s) was declared dead after a silence of {silent_s} s{how}"
            )

    def judge_claims(self, claims: Sequence[Claim]) -> None:
        """No job of a reserved queue is claimed: this one was just now."""
        closed = {row.queue for row in self.plain.store.active_reservations()} if claims else set[str]()
        for claim in claims:
            if closed & {claim.live.queue, "*"}:
                self.wronged.append(
                    f"job {to_uuid(claim.job_id)} of queue {claim.live.queue} was claimed beside a holder"
                )

    def note_starts(self, claims: Sequence[Claim], now: Micros) -> None:
        """The clock of a machine is up to 2 s ahead."""
        when = now / 1_000_000 - START_S - SKEW_S / 2, self.time.at
        self.flows.starts += [when for claim in claims if claim.live.kind == "rated"]

    def judge_permits(self) -> None:
        """After every turn: what is in use of a key has not risen above its limit, which may have fallen."""
        found = dict(self.looker.execute("SELECT key, SUM(weight) FROM perdure_permit GROUP BY key"))
        risen = [key for key, weight in found.items() if weight > self.flows.in_use.get(key, 0)]
        self.flows.in_use = found
        for key in risen:
            most = self.plain.store.key_state(key, self.office.now()).most
            if most is not None and found[key] > most:
                self.wronged.append(f"{found[key]} of {key!r} were taken, and its limit is {most}")

    def judge_quiet(self, held: ReservationId) -> None:
        """When the holder begins, no job of its queue runs."""
        queues = [row.queue for row in self.plain.store.active_reservations() if row.id == held]
        running = [job for job in self.plain.jobs(state="running") if {job.queue, "*"} & {*queues}]
        self.wronged += [f"job {job.id} runs beside a holder that begins" for job in running]

    def judge_expiry(self, row: ReservationRow) -> None:
        """A reservation expires when its holder has died, or its time is over by the true time, whatever clocks say."""
        holder = self.holders[row.id]
        left_s = row.expires_boot / 1_000_000 - holder.machine.boottime()
        if holder.alive and left_s > 0.001:
            self.wronged.append(f"the reservation {to_uuid(row.id)} expired {left_s} s too early")

    def _noticed(self, chore: Chore) -> int:
        """Judge what a chore did at once, and also a bug in it, which a worker would only log."""
        try:
            found = chore.run()
        except Exception as error:
            if not isinstance(error, StoreError):
                self.wronged.append(f"the chore {chore.name} failed: {error!r}")
            raise
        if found:
            self._judge_overdue()
        return found

    def _judge_overdue(self) -> None:
        """A run that was closed for being overdue really took longer than it may; whatever the clocks on walls say."""
        for run in self.plain.runs(state="timed_out"):
            is_new = run.id not in self.overdue and (run.error_message or "").startswith(
                "the run went past its deadline"
            )
            if is_new and run.id in self.began:
                at, limit_s = self.began[run.id]
                self.overdue[run.id] = self.time.at - at >= limit_s

    def _wind_down(self, proc: Proc, at: float) -> None:
        assert proc.leaves_at is not None
        if at >= proc.leaves_at and not proc.node.is_empty:
            proc.node.interrupt_all(Stop.SHUTDOWN)
        if proc.node.is_empty or at >= proc.leaves_at + 2.0:
            with suppress(StoreError):
                proc.node.sign_off()
            self._die(proc)

    @contextmanager
    def _as(self, proc: Proc, thread: str) -> Generator[None, None, None]:
        """What happens here, happens in that thread of the process, and may be its end."""
        proc.busy.add(thread)
        try:
            yield
        except Died:
            pass
        finally:
            proc.busy.discard(thread)
            proc.nodes.add(proc.node.id)
            if proc.runner.dead or proc.heart_runner.dead:
                self._die(proc)

    def _die(self, proc: Proc) -> None:
        proc.runner.dead = proc.heart_runner.dead = True
        proc.is_excused = True
        proc.machine.living.discard(proc.start)
        proc.executor.going.clear()

    def _meanwhile(self, proc: Proc | None = None) -> None:
        """Someone is about to call the database: others may come first, or the caller is stopped for a while."""
        if self.is_draining or self._depth >= 2 or self.random.random() >= 0.06:
            return
        self._depth += 1
        try:
            if proc is not None and self.random.random() < 0.15:
                self._nap(proc)
            for _ in range(self.random.randrange(1, 4)):
                self._one_thing(
                    self.random.choice((World.work, World.work, World.thaw, World.pass_time, World.operate))
                )
        finally:
            self._depth -= 1

    def _nap(self, proc: Proc) -> None:
        """The process is stopped in the middle of what it does, for longer than the lease, and goes on afterwards."""
        for other in (proc, *[other for other in self.procs if "heart" in other.busy]):
            other.is_excused = True  # those whose beat waits for this one are as silent
        end = self.time.at + self.random.uniform(1.1, 2) * LEASE_S
        proc.frozen_until = end
        while self.time.at < end:
            self.advance(1.0)

    def _is_reachable(self, *, writes: bool) -> bool:
        return self.time.at >= (max(self.outage_until, self.locked_until) if writes else self.outage_until)

    def _awake(self) -> list[Proc]:
        return [proc for proc in self.procs if proc.alive and proc.frozen_until <= self.time.at]

    def start(self) -> Proc:
        """A new worker process, on some machine."""
        self._processes += 1
        machine, start = self.random.choice(self.machines), f"start {self._processes}"
        ids, inbox = self._ids(machine), Inbox(lambda: None)
        holder: list[Proc] = []
        runner, heart_runner = (
            FaultyRunner(self.inner, lambda: self._meanwhile(*holder), self._is_reachable) for _ in range(2)
        )
        lease_s = self.random.choice(LEASES_S)
        store = SimStore(runner, self, is_old=self.random.random() < 0.2)
        executor = SimExecutor(machine, inbox, self.notes, self._pick, self._note_begin, self.kinds[0])
        liveness = SimLiveness(machine, self.random.randrange(100, 103), start)

        def new_job_of(draft: Draft) -> NewJob:
            return new_job(*draft, JobId(ids.new()), machine.now())

        parts = Parts(
            store,
            self.old_kinds if self.random.random() < 0.25 and not self.is_draining else self.app.kinds,
            machine,
            ids,
            new_job_of,
            liveness=liveness,
            jitter=self.random.random,
        )
        options = WorkerOptions(
            self.random.choice((None, QUEUES, QUEUES[:1])) if not self.is_draining else None,
            order="round_robin" if self.random.random() < 0.3 else "strict",
            concurrency=self.random.choice((1, 2, 4)),
            per_queue=self.random.choice(({}, {}, {"a": 1})),
            lease_s=lease_s,
            max_crashes=MAX_CRASHES,
            busy_timeout_s=0,  # so that the watchdog is as patient as the lease
        )
        node = Node(parts, options, executor, inbox, {"act": executor.act})
        own = [
            Rescuer(parts, options).chore(lambda: node.id),
            ReservationWatch(store, machine, liveness).chore(),
            OpeningWatch(store, machine, ids).chore(),
            Scheduler(store, machine, ids, parts.owner, parts.declared).chore(lambda: node.id),
        ]
        noticed = [chore._replace(run=partial(self._noticed, chore)) for chore in own]
        chores = Chores(noticed, machine, node.look_again)
        heart = Heartbeat(node, parts._replace(store=SimStore(heart_runner, self)), options, lambda: None)
        proc = Proc(
            self._processes, machine, runner, heart_runner, node, heart, chores, executor, start, lease_s, {node.id}
        )
        machine.living.add(start)
        proc.next_beat = self.time.at
        try:
            node.register()
            chores.start()
        except StoreError:
            self._die(proc)  # as a worker that cannot start
            raise
        # others may come first, for so long that it is taken for dead before it beats
        proc.is_excused = self.time.at - proc.next_beat >= lease_s
        self.procs.append(proc)
        holder.append(proc)
        return proc

    def _note_begin(self, task: Assignment) -> None:
        self.began[task.ctx.run_id] = (self.time.at, task.timeout_s or FOREVER_S)

    def _pick(self) -> tuple[str, float]:
        if self.is_draining:
            return self.random.choice(("ok", "ok", "fail")), 0.1
        act = self.random.choices(list(ACTS), list(ACTS.values()))[0]
        if act == "hang":
            return act, FOREVER_S
        return act, self.random.choice((0.0, 0.5, 3.0, 8.0, 20.0)) + (30.0 if act == "deaf" else 0.0)

    def _ids(self, machine: Machine) -> IdFactory:
        def tick() -> None:
            self.time.at += 0.001

        return IdFactory(lambda: machine.now() // 1000, self.random.randbytes, tick)

    # -- the end -----------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Everything works again, and a healthy node comes: all that was left undone is done."""
        self.is_draining = True
        self.outage_until = self.locked_until = 0.0
        self.desk.fault = None
        for proc in self.procs:
            proc.runner.fault = proc.heart_runner.fault = None
            if proc.alive and self.random.random() < 0.4:
                self._die(proc)
            proc.frozen_until = min(proc.frozen_until, self.time.at + self.random.uniform(0, 2) * LEASE_S)
            for one in proc.executor.going.values():
                one.ends_at = min(one.ends_at, proc.machine.boottime() + 60)
        for holder in self.holders.values():
            holder.machine.living.discard(holder.start)
        self.start()
        self.wronged += self._slots_dropped()
        self._let_everything_go()
        for turn in range(2_000):
            self._all_work()
            if turn % 8 == 0 and self._is_done():
                for _ in range(8):  # time for those who were taken for dead to notice it
                    self._all_work()
                return
        left = [job for job in self.plain.jobs() if job.state not in FINAL]
        raise AssertionError(f"it does not come to an end: {left}")

    def _let_everything_go(self) -> None:
        """Nothing is paused, nothing open, and nothing new comes."""
        for name in SCHEDULES:
            self.plain.schedules.disable(name)
        for queue in QUEUES:
            self.plain.queues.resume(queue)
        self.plain.limits.declare(*AT_ONCE)
        for name in LIMITS:
            self.plain.limits.resume(name)
        for flow in self.plain.flows.list(state="running"):
            self.plain.flows.seal(flow)

    def _all_work(self) -> None:
        self.advance(0.5)
        for proc in self._awake():
            self._act(proc)

    def _is_done(self) -> bool:
        """True if nothing is left to do. What people set aside goes on; nobody waits for what comes in days."""
        left: list[Job] = [job for job in self.plain.jobs() if job.state not in FINAL]
        for job in left:
            if job.state in (State.PAUSED, State.PARKED):
                self.plain.resume(job.id)
        later = [job for job in left if job.state == State.SCHEDULED]
        if later and all(job.state in (State.SCHEDULED, State.BLOCKED) for job in left):
            ahead_us = min(job.row.run_at for job in later) - min(proc.machine.now() for proc in self._awake())
            self._sleep(max(0.0, ahead_us / 1_000_000))
        everyone = [proc for proc in self.procs if proc.alive]
        if self.plain.store.active_reservations():
            return False
        return not left and everyone == self._awake() and all(proc.node.is_empty for proc in everyone)

    def problems(self) -> list[str]:
        findings = examine(self.plain.store)
        return [
            *self.wronged,
            *([] if is_healthy(findings) else [str(finding) for finding in findings]),
            *history.problems(self.notes, self.plain),
            *self._effects(),
            *self._unjust_losses(),
            *self._work_thrown_away(),
            *self._nodes_forgotten(),
            *self._flows_not_ended(),
            *self._callbacks(),
            *self._permits_left(),
            *self._too_many_starts(),
        ]

    def _flows_not_ended(self) -> list[str]:
        """Every flow has ended, and has counted each of its members and the flows inside it once. Nothing is left of
        one that was pruned."""
        found: list[str] = []
        known: set[bytes] = set()
        for flow_id, state, total, ended in self.looker.execute(
            "SELECT id, state, total, completed + failed + cancelled + skipped FROM perdure_flow"
        ):
            known.add(flow_id)
            ((members,),) = self.looker.execute(
                "SELECT COUNT(DISTINCT sequence) + (SELECT COUNT(*) FROM perdure_flow WHERE parent_id = :id)"
                " FROM perdure_job WHERE flow_id = :id",
                {"id": flow_id},
            )
            if state == "running" or total != ended or (members != total and flow_id not in self.sweeps.flows):
                found.append(f"flow {to_uuid(flow_id)} is {state}, with {ended} ends of {total}: it has {members}")
        self.counts["flows"] += len(known)
        left = self.looker.execute("SELECT id, flow_id FROM perdure_job WHERE flow_id IS NOT NULL")
        return found + [f"job {to_uuid(job)} is there, but not its flow" for job, flow in left if flow not in known]

    def _callbacks(self) -> list[str]:
        """Whoever waited for the end of a flow ran in one life if the flow ended as needed, and else in none."""
        found: list[str] = []
        for flow_id, callbacks in self.flows.callbacks.items():
            flow = None if flow_id.bytes in self.sweeps.flows else self.plain.flows.get(flow_id)
            for job_id, need in callbacks if flow is not None else ():
                assert flow is not None
                job = self.plain.existing(job_id)
                lives = {run.life for run in self.plain.runs(job_id)}
                was_skipped = job.state == State.SKIPPED and job.row.error_type == UNMET
                if was_skipped == is_met(need, str(flow.state), None) or len(lives) > 1 or (was_skipped and lives):
                    found.append(f"job {job_id} needs {need} of flow {flow_id} ({flow.state}): {job.state}, {lives}")
                self.counts["callbacks"] += bool(lives)
        return found

    def _permits_left(self) -> list[str]:
        left = self.looker.execute("SELECT key, holder FROM perdure_permit")
        return [f"job {to_uuid(holder)} has ended and holds {key!r}" for key, holder in left]

    def _too_many_starts(self) -> list[str]:
        """In any window of a sliding rate; where a clock was set, nobody can tell."""
        starts = [] if self.counts["set_a_clock"] else sorted(self.flows.starts)
        window = PER_S - SKEW_S
        counts = {first: sum(first <= at and until < first + window for at, until in starts) for first, _ in starts}
        return [
            f"{count} jobs of a rate of {RATE} started within {window} s, from {first} on"
            for first, count in counts.items()
            if count > RATE
        ]

    def _effects(self) -> list[str]:
        """What handlers wrote or asked for together with their end is there if, and only if, they completed."""
        with closing(sqlite3.connect(self.path)) as connection:
            effects = Counter(UUID(run) for (run,) in connection.execute("SELECT run FROM effect"))
        runs = {run.id: run for run in self.plain.runs()}
        jobs = {job.id for job in self.plain.jobs()}
        deleted = {UUID(one["job"]) for one in history.events(self.notes, "deleted")}
        found: list[str] = []
        for one in history.events(self.notes, "effect"):
            run = runs.get(UUID(one["run"]))
            if run is not None and effects[run.id] != (run.state == RunState.COMPLETED):
                found.append(f"run {run.id} is {run.state} and its own rows were written {effects[run.id]} times")
        for one in history.events(self.notes, "child"):
            run, child = runs.get(UUID(one["run"])), UUID(one["job"])
            is_there = child in jobs or child in deleted
            if run is not None and is_there != (run.state == RunState.COMPLETED):
                found.append(f"run {run.id} is {run.state}, and its child {child} is {'' if is_there else 'not '}there")
        return found

    def _unjust_losses(self) -> list[str]:
        """Jobs are taken only from processes that died, stood still or left; whatever clocks and database do."""
        just = {to_uuid(node) for proc in self.procs if proc.is_excused for node in proc.nodes}
        lost = [
            f"run {run.id} was taken from node {run.node_id}, which was in good health"
            for run in self.plain.runs(state="lost")
            if run.node_id not in just
        ]
        return lost + [f"run {run} was closed as overdue too early" for run, was in self.overdue.items() if not was]

    def _work_thrown_away(self) -> list[str]:
        """A handler that returned is not run again because its node gave the job back."""
        returned = {UUID(one["run"]) for one in history.events(self.notes, "end")}
        runs = list(self.plain.runs(state="released"))
        found = [f"run {run.id} returned, but its job was given back" for run in runs if run.id in returned]
        fine = {
            to_uuid(node) for proc in self.procs if not (proc.is_excused or proc.is_troubled) for node in proc.nodes
        }
        found += [
            f"run {run.id} was claimed and given back without ever being started, and nothing was wrong"
            for run in runs
            if run.id not in self.began and run.node_id in fine
        ]
        refused = [run for run in self.plain.runs(state="failed") if run.error_type == "FinishRefused"]
        return found + [
            f"run {run.id} returned, but is recorded as failed, because the database was away: {run.error_message}"
            for run in refused
            if "(middle)" not in (run.error_message or "")
        ]

    def _nodes_forgotten(self) -> list[str]:
        """Whoever works is known to be alive."""
        known = {node.id for node in self.plain.store.live_nodes()}
        working = [proc for proc in self._awake() if proc.leaves_at is None]
        return [f"process {proc.number} works as a node that is gone" for proc in working if proc.node.id not in known]

    def _slots_dropped(self) -> list[str]:
        """Since a schedule was last changed every instant before its next one was taken, once, or recorded."""
        found: list[str] = []
        for name in SCHEDULES:
            row = self.plain.store.schedule(name)
            assert row is not None
            slots = self.plain.store.slots(row.id, LAST, 100_000)
            stretches = self.plain.store.missed(row.id, LAST, 100_000)
            self.counts["slots"] += len(slots)
            self.counts["missed"] += len(stretches)
            if len({slot.job_id for slot in slots}) < len(slots):
                found.append(f"schedule {name} gave one job to two slots")
            taken = {slot.scheduled_for for slot in slots} | self.sweeps.instants[row.id]
            planned = trigger_of(row).instants(Micros(self.planned_from.get(name, row.created_at) - 1))
            found += [
                f"schedule {name}: {at} was neither taken nor recorded"
                for at in takewhile(partial(gt, row.next_trigger_at or 0), planned)
                if at not in taken and not any(one.first_at <= at <= one.last_at for one in stretches)
            ]
        return found

    @cached_property
    def looker(self) -> sqlite3.Connection:
        """To look at the tables."""
        return sqlite3.connect(self.path)

    def close(self) -> None:
        self.looker.close()
        self.plain.close()


def work(ctx: JobContext, n: int) -> Any:
    del n
    return ctx.state["act"](ctx)


def limited(ctx: JobContext, tenant: int, weight: int) -> Any:
    del tenant, weight
    return ctx.state["act"](ctx)


THINGS: dict[Callable[[World], None], int] = {
    World.enqueue: 12,
    World.enqueue_limited: 4,
    World.start_a_flow: 4,
    World.pass_time: 25,
    World.work: 10,
    World.operate: 9,
    World.sweep: 6,
    World.reserve: 2,
    World.hold: 6,
    World.break_a_call: 12,
    World.spawn: 5,
    World.freeze: 3,
    World.thaw: 1,
    World.kill: 1,
    World.leave: 1,
    World.set_a_clock: 1,
    World.lose_the_database: 1,
    World.lock_the_file: 1,
    World.suspend: 1,
}


def make_template(path: Path) -> None:
    """An empty database to copy, with a table for the handlers' own rows."""
    app = Perdure(path, durability="normal")
    app.store.upgrade()
    app.close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE effect (run TEXT NOT NULL)")
        connection.commit()


def run_history(folder: Path, template: Path, seed: int, steps: int) -> list[str]:
    """Let one history happen; answers what is wrong with it."""
    quiet = logging.getLogger("perdure")
    before, quiet.level = quiet.level, logging.CRITICAL + 1
    world = World(folder, template, seed)
    try:
        world.live(steps)
        world.drain()
        return world.problems()
    finally:
        world.close()
        quiet.setLevel(before)
