"""A seeded sequence of operations, told to several databases at once: each step is the same for all of them.

Ids, times and choices come from the seed. What a step chooses from is what was answered before, which is compared: as
long as no difference is found, all databases have answered the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from perdure.clock import Micros
from perdure.ids import IdFactory, JobId, NodeId, ReservationId, RunId
from perdure.job import transitions
from perdure.job.model import Claim, NewJob, RunStats
from perdure.job.reports import (
    Cancelled,
    Completed,
    Failed,
    Finish,
    Released,
    Report,
    Skipped,
    Snoozed,
    TimedOut,
    Unreadable,
)
from perdure.job.states import Suspicion, Verb
from perdure.store.protocols import Store
from perdure.store.rows import (
    EVERY_QUEUE,
    LAST_ID,
    Claimer,
    Edit,
    Ended,
    Firing,
    Lane,
    LogLine,
    Missed,
    NewNode,
    Notes,
    Place,
    Turn,
    Turned,
)
from perdure.testing.contract.rig import BROKEN, CRASHED, HOPELESS, LEASE_US, NONE, Rig, Wish, reserve
from perdure.testing.contract.schedules import MINUTE, new_schedule, new_slot

SECOND = 1_000_000


class Told:
    """One database, and the claims it has given: they know places, whose numbers differ between databases."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.claims: dict[RunId, Claim] = {}


Step = Callable[[Told], object]


class Story:
    """Call `step`, and do what it returns on every database before the next.

    In every other story jobs are moved, and there is one queue: one sequence gives the places of all queues on
    PostgreSQL, so that gaps are wider there if there are several, and a place in one is next to others.
    """

    def __init__(self, seed: int, first: Told) -> None:
        self.luck = Random(seed)
        self.first = first
        self.queues = ("q0",) if seed % 2 else ("q0", "q0", "q1", "q2")
        self.rig = Rig("story://", lambda _: first.store)
        self.rig.ids = IdFactory(lambda: self.rig.now // 1000, self.luck.randbytes)
        self.rig.mark, self.rig.queue, self.rig.kind = "story", "q0", "k0"
        self.jobs: list[JobId] = []
        self.runs: list[RunId] = []
        self.nodes: list[NodeId] = []
        self.names: list[str] = []
        self.held: list[ReservationId] = []

    def step(self) -> tuple[str, Step]:
        if not self.nodes:
            return "register", self.register()
        [name] = self.luck.choices(list(CHANCES), list(CHANCES.values()))
        if self.luck.random() < 0.3:
            self.rig.clock.advance(milliseconds=self.luck.choice((1, 1_000, 30_000, 120_000)))
        made: Step = getattr(self, name)()
        return name, made

    # -- choices -----------------------------------------------------------------------------------------------------

    def _one(self, known: Sequence[Any]) -> Any:
        """One of the last, mostly; an id that nobody knows if there is none."""
        recent = known[-12:] if self.luck.random() < 0.9 else known
        return self.luck.choice(recent) if recent else self.rig.ids.new()

    def _queue(self) -> str:
        return self.luck.choice(self.queues)

    def _node(self) -> NodeId:
        """One of the newest: others may have stopped."""
        return NodeId(self._one(self.nodes[-3:]))

    def _job(self) -> JobId:
        """One that is there, mostly: ids that were given out are not always used."""
        for _ in range(8):
            job_id = JobId(self._one(self.jobs))
            if self.rig.store.row(job_id) is not None:
                return job_id
        return JobId(self._one(self.jobs))

    def _ended_job(self) -> JobId:
        ended = self.first.store.ended(None, LAST_ID, 100)
        return JobId(self.luck.choice(ended).job_id) if ended and self.luck.random() < 0.8 else self._job()

    def _neighbours(self) -> tuple[JobId, JobId]:
        """Two jobs of one queue, if there are."""
        queued = self.rig.in_order(self._queue())
        if len(queued) < 2 or self.luck.random() < 0.2:
            return self._job(), self._job()
        one, two = self.luck.sample(queued, 2)
        return one, two

    def _run(self) -> RunId:
        for _ in range(8):
            run_id = RunId(self._one(self.runs))
            if run_id in self.first.claims:
                return run_id
        return RunId(self._one(self.runs))

    def _wish(self) -> Wish:
        luck = self.luck
        wish: Wish = {
            "queue": self._queue(),
            "kind": luck.choice(("k0", "k0", "k1")),
            "kind_version": luck.choice((1, 1, 2)),
            "priority": luck.choice((0, 0, 0, 5, -3)),
            "delay_s": luck.choice((0, 0, 0, 1, 60)),
            "max_attempts": luck.randint(1, 4),
            "as_new_job": luck.random() < 0.2,
            "timeout_ms": luck.choice((None, None, 5_000)),
            "tags": tuple(luck.sample(("a", "b", "ä"), luck.randint(0, 2))),
            "payload": luck.choice(('{"n":1}', '{"text":"ß\\u0000 😀"}')),
            "secrets": luck.choice((None, '{"k":"s"}')),
            "conflict": luck.choice(("raise", "return")),
        }
        if luck.random() < 0.25:
            wish["business_key"] = luck.choice("xyzXä")
        if luck.random() < 0.25:
            wish["idempotency_key"] = luck.choice("xyzX ")
            wish["fingerprint"] = luck.choice(("same", "same", "other"))
        if luck.random() < 0.05:
            wish["limit_key"] = "limit"
        return wish

    def _new(self) -> NewJob:
        plain: Wish = {"queue": self._queue(), "delay_s": self.luck.choice((0, 0, 1))}
        is_plain = self.luck.random() < 0.3
        new = self.rig.new(**(plain if is_plain else self._wish()))
        if is_plain:
            new = new._replace(plan=new.plan._replace(options=None, plain=True))
        elif self.luck.random() < 0.1:
            new = new._replace(parent_id=self._job())
        self.jobs.append(new.id)
        return new

    def _at_once(self, new: NewJob) -> NewJob:
        """The same job without a delay or a limit, as those who start it themselves make it."""
        return new._replace(plan=new.plan._replace(limit_key=None), state="queued", run_at=new.created_at)

    def _report(self) -> Report:
        delay = self.luck.choice((0, SECOND, 40 * SECOND))
        reports: tuple[Report, ...] = (
            Completed('{"r":1}'),
            Completed(),
            Completed(),
            Failed(HOPELESS),
            Failed(BROKEN, delay),
            Failed(HOPELESS),
            TimedOut(BROKEN, delay),
            Snoozed(delay),
            Released(),
            Released(counts=True),
            Cancelled("enough"),
            Skipped("nothing to do"),
            Unreadable("?"),
        )
        return self.luck.choice(reports)

    def _finish(self) -> Callable[[Told], list[Finish]]:
        """Of a run that may have ended long ago. Empty: nothing was claimed yet."""
        run_id, report, next_id = self._run(), self._report(), JobId(self.rig.ids.new())
        stats = RunStats(duration_ms=self.luck.randint(0, 9))
        children = (self._new(),) if self.luck.random() < 0.1 else ()
        self.jobs.append(next_id)

        def made(told: Told) -> list[Finish]:
            claim = told.claims.get(run_id)
            return [] if claim is None else [Finish(claim.live, report, next_id, stats, children)]

        return made

    def _claimer(self, room: int) -> Claimer:
        kinds = self.luck.choice((None, None, None, {"k0": 1}, {"k0": 2, "k1": 2}, NONE))
        runs = [RunId(run_id) for run_id in self.rig.ids.new_many(room)]
        self.runs += runs
        company = self.luck.choice((Suspicion.NONE, Suspicion.NONE, Suspicion.CRASHED, Suspicion.SUSPECT))
        return Claimer(self._node(), kinds, runs, LEASE_US, company, 3)

    def _lanes(self) -> list[Lane]:
        return [Lane(self._queue(), self.luck.randint(0, 3)) for _ in range(self.luck.randint(1, 3))]

    # -- jobs --------------------------------------------------------------------------------------------------------

    def enqueue(self) -> Step:
        new = [self._new() for _ in range(self.luck.choice((1, 1, 1, 2, 4)))]
        if len(new) > 1 and len(self.queues) == 1:  # a batch that is refused has used up places of a sequence
            new = [job._replace(idempotency_key=None, business_key=None, fingerprint=None) for job in new]
        return lambda told: told.store.enqueue(new)

    def claim(self) -> Step:
        lanes, claimer, now = self._lanes(), self._claimer(4), self.rig.now
        return lambda told: _kept(told, told.store.claim(lanes, claimer, now))

    def finish(self) -> Step:
        batch, now = [self._finish() for _ in range(self.luck.choice((1, 1, 2, 3)))], self.rig.now

        def act(told: Told) -> object:
            once = {entry.live.run_id: entry for made in batch for entry in made(told)}
            return told.store.finish(list(once.values()), now) if once else None

        return act

    def turn(self) -> Step:
        batch, lanes, claimer, now = self._finish(), self._lanes(), self._claimer(3), self.rig.now
        line, promoted = self._line(), self.luck.choice((0, 2, 10))

        def act(told: Told) -> Turned:
            notes = Notes(line(told), metrics=[(entry.run_id, '{"m":1}') for entry in line(told)])
            turned = told.store.turn(Turn(batch(told), notes, promoted, lanes, claimer), now)
            _kept(told, turned.claims)
            return turned

        return act

    def _line(self) -> Callable[[Told], list[LogLine]]:
        run_id, number, now = self._run(), self.luck.randint(1, 5), self.rig.now

        def made(told: Told) -> list[LogLine]:
            claim = told.claims.get(run_id)
            return [] if claim is None else [LogLine(run_id, number, claim.job_id, now, "INFO", "line ä", '{"f":1}')]

        return made

    def append_log(self) -> Step:
        line = self._line()
        return lambda told: told.store.append_log(line(told))

    def append_artifacts(self) -> Step:
        run_id, paths = self._run(), self.luck.sample(("a", "b", "c"), 2)
        return lambda told: told.store.append_artifacts(run_id, paths)

    def promote(self) -> Step:
        now, limit = self.rig.now, self.luck.randint(1, 5)
        return lambda told: told.store.promote(now, limit)

    def change(self) -> Step:
        job_id, now = self._job(), self.rig.now
        verb, decide = self.luck.choice(
            (
                (Verb.CANCEL, transitions.cancel),
                (Verb.PAUSE, transitions.pause),
                (Verb.RESUME, transitions.resume),
            )
        )
        expected = self.luck.choice((None, None, None, 1))
        return lambda told: told.store.change(job_id, verb, decide, now, expected)

    def retry(self) -> Step:
        job_id, now = self._ended_job(), self.rig.now
        return lambda told: told.store.retry(job_id, now)

    def retry_as_new(self) -> Step:
        job_id, new_id, now = self._ended_job(), JobId(self.rig.ids.new()), self.rig.now
        self.jobs.append(new_id)
        return lambda told: told.store.retry_as_new(job_id, new_id, now)

    def supersede(self) -> Step:
        job_id, new, now = self._job(), self._new(), self.rig.now
        return lambda told: told.store.supersede(job_id, new, now)

    def edit(self) -> Step:
        job_id, queue, tags = self._job(), self._queue(), self.luck.choice(((), ("e",)))

        def act(told: Told) -> object:
            row, live = told.store.row(job_id), told.store.live(job_id)
            if row is None or live is None:
                return None
            after = live._replace(queue=queue, version=live.version + 1)
            return told.store.edit(Edit(row._replace(payload='{"n":2}', queue=queue), after, tags), live.version)

        return act

    def delete(self) -> Step:
        job_id = self._ended_job()
        return lambda told: told.store.delete(job_id)

    def move(self) -> Step:
        (job_id, other), now = self._neighbours(), self.rig.now
        anywhere = [Place(front=True), Place(before=other), Place(before=other), Place(after=other), Place()]
        place = self.luck.choice(anywhere if len(self.queues) == 1 else [Place()])
        return lambda told: told.store.move(job_id, place, now)

    def set_priority(self) -> Step:
        job_id, rank, now = self._job(), self.luck.choice((0, -5, 3)), self.rig.now
        return lambda told: told.store.set_priority(job_id, rank, now)

    # -- nodes, queues, locks ----------------------------------------------------------------------------------------

    def register(self) -> Step:
        node = NewNode(NodeId(self.rig.ids.new()), self.rig.now, kinds='{"k0":1}', lease_us=LEASE_US)
        self.nodes.append(node.id)
        return lambda told: told.store.register(node)

    def beat(self) -> Step:
        node, now = self._node(), self.rig.now
        return lambda told: told.store.beat(node, now)

    def stop_and_rescue(self) -> Step:
        node, now, reason = self._node(), self.rig.now, self.luck.choice(("crash", "signal"))
        next_ids = [JobId(job_id) for job_id in self.rig.ids.new_many(4)]
        self.jobs += next_ids
        return lambda told: (
            told.store.stop(node, reason, now),
            told.store.rescue(node, CRASHED, 3, next_ids, now),
        )

    def pause_queue(self) -> Step:
        queue = self.luck.choice(("q0", "q1", EVERY_QUEUE))
        paused_at = self.rig.now if self.luck.random() < 0.4 else None
        return lambda told: told.store.pause_queue(queue, paused_at)

    def lock(self) -> Step:
        name, owner, now = self.luck.choice("lm"), self.luck.choice(("ann", "bob")), self.rig.now
        verbs: tuple[Step, ...] = (
            lambda told: told.store.take_lock(name, owner, now, 10 * SECOND),
            lambda told: told.store.renew_lock(name, owner, now, 10 * SECOND),
            lambda told: told.store.release_lock(name, owner),
            lambda told: told.store.lock_holder(name, now),
        )
        return self.luck.choice(verbs)

    # -- reservations, schedules, templates --------------------------------------------------------------------------

    def reserve(self) -> Step:
        new = self.rig.reservation(self.luck.choice(("q0", "q1", EVERY_QUEUE)))
        self.held.append(new.id)
        return lambda told: reserve(told.store, new)

    def hold(self) -> Step:
        active = [held.id for held in self.first.store.active_reservations()]
        held, until, now = ReservationId(self._one(active or self.held)), self.rig.until(20), self.rig.now
        status = self.luck.choice(("released", "expired"))
        verbs: tuple[Step, ...] = (
            lambda told: told.store.enter_reservation(held, until, now),
            lambda told: told.store.renew_reservation(held, until),
            lambda told: told.store.close_reservation(held, status, now),
            lambda told: told.store.close_reservation(held, status, now),
        )
        return self.luck.choice(verbs)

    def start_reserved(self) -> Step:
        active = [held.id for held in self.first.store.active_reservations()]
        held, claimer, now = ReservationId(self._one(active or self.held)), self._claimer(1), self.rig.now
        new = self._at_once(self._new())

        def act(told: Told) -> object:
            job, claim = told.store.start_reserved(new, held, claimer, now)
            _kept(told, [claim] if claim is not None else [])
            return job, claim

        return act

    def save_schedule(self) -> Step:
        name = self.luck.choice(("daily", "hourly", "ä"))
        row = new_schedule(self.rig, name, kind="k0", plan=_plan(self.rig))
        self.names.append(row.name)
        seen = self.luck.choice((None, None, 1))
        missed = [Missed(self.rig.now, Micros(self.rig.now + MINUTE), 2, "disabled", self.rig.now)] if seen else []

        def act(told: Told) -> object:
            known = told.store.schedule(row.name)
            if seen is None or known is None:
                return told.store.save_schedule(row, None)
            changed = known._replace(enabled=1 - known.enabled, version=known.version + 1)
            return told.store.save_schedule(changed, known.version, missed)

        return act

    def fire(self) -> Step:
        """What is due; or what was fired already, a minute ago."""
        node, now, overlap = self._node(), self.rig.now, self.luck.choice(("skip", "queue", "allow"))
        new = [self._at_once(self._new())._replace(idempotency_key=None, business_key=None) for _ in range(4)]

        def act(told: Told) -> object:
            firings: list[Firing] = []
            for row, job in zip(told.store.due_schedules(now, 4), new, strict=False):
                at = Micros(row.next_trigger_at or now)
                slot = new_slot(self.rig, row, at, overlap)
                assert slot.job is not None
                slot = slot._replace(job=job._replace(origin=slot.job.origin))
                firings.append(Firing(row, [slot], (), Micros(at + MINUTE)))
            return told.store.fire(firings, node, now), told.store.fire(firings[:1], node, now)

        return act

    def trigger(self) -> Step:
        name, now, overlap = self._one(self.names), self.rig.now, self.luck.choice(("skip", "queue", "allow"))
        new = self._at_once(self._new())._replace(idempotency_key=None, business_key=None)

        def act(told: Told) -> object:
            row = told.store.schedule(str(name))
            if row is None:
                return None
            slot = new_slot(self.rig, row, Micros(now - now % MINUTE), overlap)
            assert slot.job is not None
            return told.store.take_slot(row.id, slot._replace(job=new._replace(origin=slot.job.origin)), now)

        return act

    def template(self) -> Step:
        name, other, now = self.luck.choice("tu"), self.luck.choice("tuv"), self.rig.now
        new = self.rig.new_template(name, self.luck.choice(('{"n":1}', '{"n":2}')))
        verbs: tuple[Step, ...] = (
            lambda told: told.store.put_template(new, now),
            lambda told: told.store.put_template(new, now, 1),
            lambda told: told.store.archive_template(name, now, now),
            lambda told: told.store.archive_template(name, None, now),
            lambda told: told.store.rename_template(name, other, now),
        )
        return self.luck.choice(verbs)

    # -- what goes ---------------------------------------------------------------------------------------------------

    def _ended(self) -> Callable[[Told], list[Ended]]:
        chosen = {self._ended_job() for _ in range(4)}
        below = self.rig.ids.new()
        return lambda told: [one for one in told.store.ended(None, below, 200) if one.job_id in chosen]

    def remove(self) -> Step:
        old = self._ended()
        return lambda told: sorted(told.store.remove(old(told)))

    def archive(self) -> Step:
        old, now = self._ended(), self.rig.now
        return lambda told: sorted(told.store.archive(old(told), now))

    def remove_records(self) -> Step:
        before = Micros(self.rig.now - self.luck.choice((0, 60 * SECOND)))
        return lambda told: (
            told.store.remove_logs(before, 3),
            _alike(told.store.remove_records(before, 3)),
            told.store.remove_nodes(None, before, 5),
        )


def _kept(told: Told, claims: list[Claim]) -> list[Claim]:
    told.claims.update({claim.run_id: claim for claim in claims})
    return claims


def _alike(removed: Mapping[str, int]) -> dict[str, int]:
    """Without the rows of keys: servers make one for each key that they lock, SQLite locks the whole file."""
    return {sort: number for sort, number in removed.items() if sort != "limit keys"}


def _plan(rig: Rig) -> str:
    return str(new_schedule(rig).plan)


CHANCES = {
    "enqueue": 18,
    "claim": 12,
    "finish": 14,
    "turn": 8,
    "promote": 3,
    "change": 8,
    "retry": 4,
    "retry_as_new": 2,
    "supersede": 4,
    "edit": 3,
    "delete": 1,
    "move": 3,
    "set_priority": 2,
    "register": 4,
    "beat": 1,
    "stop_and_rescue": 3,
    "pause_queue": 3,
    "lock": 2,
    "reserve": 1,
    "hold": 3,
    "start_reserved": 1,
    "save_schedule": 2,
    "fire": 3,
    "trigger": 2,
    "template": 2,
    "remove": 2,
    "archive": 2,
    "remove_records": 1,
    "append_log": 1,
    "append_artifacts": 1,
}
"""Each step and how often it is chosen."""
