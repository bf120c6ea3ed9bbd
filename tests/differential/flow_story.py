"""A seeded sequence of operations on flows and limits, told to several databases at once, as `story` tells of jobs.

Each database has an app of its own, with the same seed for its ids and the same clock: what users do is done through
the app, what workers do through the store. At the end everything is let go, and has to come to its end by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from random import Random
from typing import Any, NamedTuple, get_args

from perdure import Limit, Perdure, Rate, Retention, Retry, each, previous
from perdure.clock import ManualClock
from perdure.errors import PerdureError
from perdure.ids import FlowId, IdFactory, JobId, NodeId, RunId, to_uuid
from perdure.job.flow import FlowRow, NeedsName, OnFailure
from perdure.job.model import Claim, NewJob
from perdure.job.reports import Cancelled, Completed, Failed, Finish, Released, Report, Skipped, Snoozed
from perdure.job.states import FINAL, State
from perdure.job.views import Job
from perdure.kind import Draft
from perdure.limit.key import key_of
from perdure.store.protocols import Store
from perdure.store.rows import LAST_ID, Claimer, Glance, JobFilter, Lane, LimitRule, NewNode, Turn, Turned
from perdure.testing.contract.rig import BROKEN, CRASHED, HOPELESS, LEASE_US
from perdure.upkeep.retention import Prune
from perdure.worker.growth import derived_id, number_of, ordered_number
from perdure.workflow import Batch, InnerFlow, Workflow

SECOND = 1_000_000
MINUTE = timedelta(minutes=1)
NEEDS: Sequence[NeedsName] = get_args(NeedsName)
ON_FAILURE: Sequence[OnFailure] = get_args(OnFailure)
GPU, API = Limit("gpu", 4, weight="weight"), Limit("api", 3)
TENANT = Limit("tenant", 2, by="tenant")
KINDS: dict[str, dict[str, Any]] = {
    "free": {},
    "tenant": {"limit": TENANT},
    "heavy": {"limit": [GPU, API]},
    "four": {"limit": [GPU, API, TENANT], "rate": Rate("sliding", 3, per=60)},
    "window": {"rate": Rate("window", 2, per=60, by="tenant", algorithm="fixed")},
    "bucket": {"rate": Rate("bucket", 3, per=70, weight="weight", algorithm="bucket", burst=4), "limit": API},
}
LIMITS = ("gpu", "api", "tenant", "sliding", "window", "bucket")
TENANTS = ("a", "")
BY_TENANT = ("tenant", "window")
RATES = ("sliding", "window", "bucket")
RETENTION = Retention(MINUTE, MINUTE, MINUTE, 5 * MINUTE, logs=MINUTE, records=None)


def work(n: object = 0, tenant: str = "a", weight: int = 1, given: object = None) -> None:
    """Never called: the story says how runs end."""


class Company:
    """One database: the app of its users, and what its workers hold."""

    def __init__(self, store: Store, clock: ManualClock, seed: int) -> None:
        luck = Random(seed)
        ids = IdFactory(lambda: clock.now() // 1000, luck.randbytes)
        self.store = store
        self.app = Perdure(store=store, clock=clock, ids=ids)
        self.kinds = {name: self.app.job(name=name, **options)(work) for name, options in KINDS.items()}
        self.claims: dict[RunId, Claim] = {}
        self.batches: list[Batch] = []
        """Those that are being filled."""
        self.counted: Sequence[FlowId] = ()
        """Flows that the next turn looks at."""

    def keep(self, turned: Turned) -> Turned:
        """What a turn has done, but for looks at lines that may be empty."""
        self.claims.update({claim.run_id: claim for claim in turned.claims})
        self.counted = turned.flows
        return turned._replace(settled=False)


Step = Callable[[Company], object]


class Wanted(NamedTuple):
    """A job to be made, in each database alike."""

    kind: str
    arguments: dict[str, Any]
    options: dict[str, Any]

    def draft(self, told: Company, **more: Any) -> Draft[Any]:
        """`more`: arguments, or what it waits for."""
        waits = {name: more.pop(name) for name in ("after", "on") if name in more}
        return told.kinds[self.kind].options(**self.options, **waits).new(**{**self.arguments, **more})


def _is_free(job: Job) -> bool:
    """It does not wait for others: what it waits for may be the flow that a member is added to."""
    return job.state != State.BLOCKED


class FlowStory:
    """Call `step`, and do what it returns on every database before the next. Jobs are moved only where there is one
    queue, as in `Story`."""

    def __init__(self, seed: int, clock: ManualClock, first: Company) -> None:
        self.luck = Random(seed)
        self.clock = clock
        self.first = first
        self.ids = IdFactory(lambda: clock.now() // 1000, self.luck.randbytes)
        self.queues = ("q0",) if seed % 2 else ("q0", "q0", "q1")
        self.nodes: list[NodeId] = []
        self.runs: list[RunId] = []
        self.holds: list[tuple[str, bytes, int]] = []
        """Places of limits that blocks of code hold: key, who, and until when."""

    def step(self) -> tuple[str, Step]:
        if not self.nodes:
            return "register", self.register()
        [name] = self.luck.choices(list(CHANCES), list(CHANCES.values()))
        if self.luck.random() < 0.3:
            self.clock.advance(milliseconds=self.luck.choice((1, 1_000, 5_000, 30_000, 70_000)))
        made: Step = getattr(self, name)()
        return name, made

    # -- choices -----------------------------------------------------------------------------------------------------

    def _is(self, chance: float) -> bool:
        return self.luck.random() < chance

    def _queue(self) -> str:
        return self.luck.choice(self.queues)

    def _need(self) -> NeedsName:
        return self.luck.choice(NEEDS)

    def _policy(self) -> OnFailure:
        return self.luck.choice(ON_FAILURE)

    def _at_once(self) -> int | None:
        return self.luck.choice((None, None, 1, 2))

    def _newest(self) -> list[Job]:
        return self.first.store.jobs(JobFilter(), None, 25).items

    def _job(self, fits: Callable[[Job], bool] = bool) -> JobId:
        """One that is there, if there is any that fits."""
        known = [job.row.id for job in self._newest() if fits(job)]
        return self.luck.choice(known) if known else JobId(self.ids.new())

    def _flows(self) -> list[FlowRow]:
        """The newest, with those inside them."""
        store = self.first.store
        outer = store.flows(None, None, LAST_ID, 6)
        return [*outer, *(inner for flow in outer for inner in store.inner_flows(flow.id))]

    def _flow(self) -> FlowId:
        known = self._flows()
        return self.luck.choice(known).id if known else FlowId(self.ids.new())

    def _wanted(self, kinds: Sequence[str] = tuple(KINDS)) -> Wanted:
        luck = self.luck
        attempts, as_new = luck.choice((1, 1, 2)), self._is(0.1)
        options: dict[str, Any] = {
            "queue": self._queue(),
            "priority": luck.choice((0, 0, 0, 2)),
            "delay": luck.choice((None, None, None, 1, 60)),
            "retry": Retry(attempts, as_new_job=as_new),
        }
        if len(self.queues) > 1 and self._is(0.05):
            options["business_key"] = luck.choice("xy")
        kind = luck.choice(kinds if self._is(0.5) else kinds[:1])
        arguments = {"n": luck.randint(0, 3), "tenant": luck.choice(TENANTS), "weight": luck.choice((1, 1, 2, 3, 9))}
        return Wanted(kind, arguments, options)

    def _several(self, least: int, most: int) -> list[Wanted]:
        return [self._wanted() for _ in range(self.luck.randint(least, most))]

    def _keyed(self) -> dict[str, Any]:
        if self._is(0.7):
            return {}
        return {"key": self.luck.choice("kl"), "conflict": self.luck.choice(("raise", "return"))}

    # -- what users make ---------------------------------------------------------------------------------------------

    def enqueue(self) -> Step:
        wanted = self._several(1, 4)
        return lambda told: told.app.enqueue_many([one.draft(told) for one in wanted])

    def enqueue_after(self) -> Step:
        """After jobs and flows, whatever has become of them."""
        known = [*(job.row.id for job in self._newest()), *(flow.id for flow in self._flows())]
        chosen = self.luck.sample(known, min(len(known), self.luck.randint(1, 3)))
        after = [(to_uuid(one), self._need()) for one in chosen]
        wanted = self._wanted()
        return lambda told: told.app.enqueue_many([wanted.draft(told, after=after)])

    def workflow(self) -> Step:
        """A diamond with a flow inside, one of several ways to go on, and callbacks."""
        wanted = [self._wanted() for _ in range(5)]
        needs = [self._need() for _ in range(3)]
        is_asked, has_choice, is_filled = (self._is(0.4) for _ in range(3))
        inside, callbacks = self._inside(), [(self._wanted(), need) for need in NEEDS if self._is(0.5)]
        made: dict[str, Any] = {"on_failure": self._policy(), "at_once": self._at_once(), **self._keyed()}

        def act(told: Company) -> object:
            with told.app.workflow("graph", **made) as wf:
                first = wf.add(wanted[0].draft(told))
                result: Any = first.result
                wf.add(wanted[1].draft(told), after=first, on=needs[0], when=result > 1 if is_asked else None)
                side = wf.add(wanted[2].draft(told, given=result), after=first, on=needs[1] if is_asked else None)
                inner = inside(told, wf)
                if has_choice:
                    summary: Any = inner.summary
                    wf.choose((summary.failed > 0, wanted[3].draft(told)), otherwise=wanted[1].draft(told))
                if is_filled:
                    wf.batch("more", filled_by=first, at_once=made["at_once"])
                wf.add(wanted[4].draft(told), after=[side, inner], on=needs[2])
                for one, need in callbacks:
                    wf.add(one.draft(told), after=wf, on=need)
            return wf.flow.row

        return act

    def _inside(self) -> Callable[[Company, Workflow], InnerFlow]:
        sort, wanted = self.luck.choice(("chain", "group", "map")), self._several(1, 3)
        made: dict[str, Any] = {"on_failure": self._policy(), "at_once": self._at_once()}
        mode: Any = self.luck.choice(("parallel", "sequential"))

        def act(told: Company, wf: Workflow) -> InnerFlow:
            if sort == "chain":
                return wf.chain(*[one.draft(told) for one in wanted])
            if sort == "group":
                return wf.group([one.draft(told) for one in wanted], mode=mode, **made)
            return wf.map(wanted[0].draft(told, n=each), over=range(len(wanted)), **made)

        return act

    def chain(self) -> Step:
        head, *rest, made = *self._several(1, 4), self._keyed()
        return lambda told: (
            told.app.chain(head.draft(told), *[one.draft(told, given=previous) for one in rest], **made).row
        )

    def group(self) -> Step:
        wanted = self._several(0, 4)
        mode: Any = self.luck.choice(("parallel", "sequential"))
        made: dict[str, Any] = {"on_failure": self._policy(), "at_once": self._at_once(), **self._keyed()}
        return lambda told: told.app.group([one.draft(told) for one in wanted], mode=mode, **made).row

    def batch(self) -> Step:
        """Sealed, still open, or given up."""
        wanted, fate = self._several(0, 3), self.luck.choice(("sealed", "open", "open", "cancel", "keep"))
        callbacks = {f"on_{need}": self._wanted() for need in NEEDS if self._is(0.4)}
        policy: Any = None if "on_failure" in callbacks else self._policy()
        made: dict[str, Any] = {"at_once": self._at_once(), "abandon": "keep" if fate == "keep" else "cancel"}

        def act(told: Company) -> object:
            waiting: dict[str, Any] = {name: one.draft(told) for name, one in callbacks.items()}
            batch = told.app.batch("batch", **{"on_failure": policy, **waiting}, **made, **keyed)
            batch.begin(None)
            for one in wanted:
                batch.add(one.draft(told))
            if fate == "open":
                batch.flush(None)
                told.batches.append(batch)
            else:
                batch.end(fate != "sealed", None)
            return told.app.flows.existing(batch).row

        keyed = self._keyed()
        return act

    def fill_a_batch(self) -> Step:
        which, wanted, ends = self.luck.randint(0, 9), self._several(0, 2), self._is(0.3)
        after = [(to_uuid(self._job(_is_free)), self._need())] if self._is(0.2) else None

        def act(told: Company) -> object:
            if not told.batches:
                return None
            batch = told.batches[which % len(told.batches)]
            if ends:
                told.batches.remove(batch)
            for one in wanted:
                batch.add(one.draft(told), after=after)
            if ends:
                batch.end(False, None)
            else:
                batch.flush(None)
            return told.app.flows.existing(batch).row

        return act

    # -- what users decide -------------------------------------------------------------------------------------------

    def change(self) -> Step:
        job, verb = to_uuid(self._job()), self.luck.choice(("cancel", "pause", "pause", "resume", "resume", "retry"))
        return lambda told: getattr(told.app, verb)(job)

    def change_flow(self) -> Step:
        flow, verb = to_uuid(self._flow()), self.luck.choice(("cancel", "pause", "resume", "resume", "seal"))

        def act(told: Company) -> object:
            if verb == "seal":
                return told.app.flows.seal(flow).row
            return getattr(told.app, verb)(told.app.flows.existing(flow)).row

        return act

    def retry_flow(self) -> Step:
        flow, again = to_uuid(self._flow()), self._is(0.5)
        return lambda told: told.app.retry(told.app.flows.existing(flow), again=again).row

    def retry_as_new(self) -> Step:
        job = to_uuid(self._job())
        return lambda told: told.app.retry(job, as_new=True)

    def supersede(self) -> Step:
        job, wanted = to_uuid(self._job()), self._wanted()
        return lambda told: told.app.supersede(job, wanted.draft(told))

    def edit(self) -> Step:
        job, payload = (
            to_uuid(self._job()),
            {"tenant": self.luck.choice(TENANTS), "weight": self.luck.choice((1, 2, 9))},
        )
        changes: dict[str, Any] = self.luck.choice(
            ({"queue": self._queue()}, {"tags": ["e"]}, {"delay": 30}, {"timeout": 5}, {"payload": payload})
        )
        return lambda told: told.app.edit(job, **changes)

    def move(self) -> Step:
        job, other = to_uuid(self._job()), to_uuid(self._job())
        places: tuple[dict[str, Any], ...] = ({"to": "back"}, {"to": "front"}, {"before": other}, {"after": other})
        place = self.luck.choice(places if len(self.queues) == 1 else places[:1])
        return lambda told: told.app.move(job, **place)

    def set_priority(self) -> Step:
        job, priority = to_uuid(self._job()), self.luck.choice((0, 2, -1))
        return lambda told: told.app.set_priority(job, priority)

    def delete(self) -> Step:
        job = to_uuid(self._job())
        return lambda told: told.app.delete(job)

    # -- limits ------------------------------------------------------------------------------------------------------

    def change_a_limit(self) -> Step:
        name, most = self.luck.choice(LIMITS), self.luck.choice((1, 2, 3, 5, 6))
        key = self.luck.choice((None, *TENANTS)) if name in BY_TENANT else None
        verb = self.luck.choice(("set", "set", "reset", "pause", "resume", "resume"))
        given = (name, most) if verb == "set" else (name,)
        return lambda told: getattr(told.app.limits, verb)(*given, key=key)

    def limit_the_queue(self) -> Step:
        queue, most = self.luck.choice((*self.queues, "*")), self.luck.choice((None, None, 1, 2, 3))
        return lambda told: told.app.queues.limit(queue, most)

    def pause_the_queue(self) -> Step:
        queue, verb = self.luck.choice((*self.queues, "*")), self.luck.choice(("pause", "resume", "resume"))
        return lambda told: getattr(told.app.queues, verb)(queue)

    def hold(self) -> Step:
        """A block of code takes a place, keeps it, or gives it back."""
        now = self.clock.now()
        if self.holds and self._is(0.6):
            key, holder, until = self.luck.choice(self.holds)
            if self._is(0.3):
                self.holds.append((key, holder, now + 30 * SECOND))
                self.holds.remove((key, holder, until))
                return lambda told: told.store.renew_hold(key, holder, now, 30 * SECOND)
            self.holds.remove((key, holder, until))
            return lambda told: told.store.drop_hold(key, holder)
        name, holder, weight = self.luck.choice(LIMITS), self.ids.new(), self.luck.choice((1, 1, 2, 9))
        key = key_of(name, self.luck.choice(TENANTS), has_value=name in BY_TENANT)

        def act(told: Company) -> object:
            taken = told.store.take_hold(key, weight, holder, now, 30 * SECOND)
            if taken and told is self.first and name in ("gpu", "api", "tenant"):
                self.holds.append((key, holder, now + 30 * SECOND))
            return taken

        return act

    # -- workers -----------------------------------------------------------------------------------------------------

    def register(self) -> Step:
        """As a worker begins: it tells what its limits are."""
        node = NewNode(NodeId(self.ids.new()), self.clock.now(), kinds='{"free":1}', lease_us=LEASE_US)
        self.nodes.append(node.id)

        def act(told: Company) -> object:
            rules = [
                LimitRule(name, rule.sort, rule.most, rule.per_us, rule.burst, tuple(users))
                for name, rule, users in told.app.kinds.rules()
            ]
            told.store.register(node)
            return told.store.declare_limits(rules, list(KINDS), node.started_at)

        return act

    def _node(self) -> NodeId:
        return self.luck.choice(self.nodes[-2:])

    def _claimer(self, room: int) -> Claimer:
        kinds = self.luck.choice((None, None, None, None, None, {"free": 1, "heavy": 1}))
        runs = [RunId(run_id) for run_id in self.ids.new_many(room)]
        self.runs += runs
        return Claimer(self._node(), kinds, runs, LEASE_US)

    def _lanes(self) -> list[Lane]:
        return [Lane(queue, self.luck.randint(1, 3)) for queue in dict.fromkeys(self.queues)]

    def _report(self) -> Report:
        delay = self.luck.choice((0, SECOND, 40 * SECOND))
        reports: tuple[Report, ...] = (
            *[Completed(str(self.luck.randint(0, 3)))] * 6,
            *[Failed(HOPELESS)] * 3,
            Failed(BROKEN, delay),
            Snoozed(delay),
            Released(),
            Released(counts=True),
            Cancelled("enough"),
            Skipped("nothing to do"),
        )
        return self.luck.choice(reports)

    def _finish(self) -> Callable[[Company], list[Finish]]:
        """Of one of the runs that were opened last; some of them have ended long ago."""
        known = [run_id for run_id in self.runs if run_id in self.first.claims]
        run_id = self.luck.choice(known[-10:]) if known else RunId(self.ids.new())
        report, next_id = self._report(), JobId(self.ids.new())
        grown = self._wanted() if self._is(0.15) else None

        def made(told: Company) -> list[Finish]:
            claim = told.claims.get(run_id)
            if claim is None:
                return []
            children = () if grown is None else self._child(told, claim, grown)
            return [Finish(claim.live, report, next_id, children=children)]

        return made

    def _child(self, told: Company, claim: Claim, wanted: Wanted) -> tuple[NewJob, ...]:
        """What a handler adds to the flow of its job."""
        flow_id = claim.live.flow_id
        if flow_id is None:
            return ()
        new = told.app.new_job(wanted.draft(told))
        return (new._replace(flow_id=flow_id, sequence=number_of(new.id)),)

    def turn(self) -> Step:
        """What a worker repeats, all of it."""
        finishes = [self._finish() for _ in range(self.luck.choice((0, 1, 1, 2)))]
        lanes, claimer, now = self._lanes(), self._claimer(4), self.clock.now()
        promoted, settles = self.luck.choice((0, 10)), self._is(0.6)

        def act(told: Company) -> Turned:
            once = {entry.live.run_id: entry for made in finishes for entry in made(told)}
            wanted = Turn(list(once.values()), None, promoted, lanes, claimer, flows=told.counted, settle=settles)
            return told.keep(told.store.turn(wanted, now))

        return act

    def finish(self) -> Step:
        made, now = self._finish(), self.clock.now()
        return lambda told: told.store.finish(made(told), now) if made(told) else None

    def fill(self) -> Step:
        """A handler adds members to a flow that its job fills, perhaps once more."""
        filled = [flow for flow in self._flows() if flow.filled_by is not None]
        if not filled:
            return self.turn()
        flow, count, now = self.luck.choice(filled), self.luck.randint(1, 3), self.clock.now()
        wanted = self._wanted()

        def act(told: Company) -> object:
            assert flow.filled_by is not None
            new: list[NewJob] = []
            for number in range(count):
                member = derived_id(flow.filled_by, flow.id, str(number))
                place = ordered_number(flow.filled_by, flow.id, number)
                one = told.app.new_job(wanted.draft(told))
                new.append(one._replace(id=member, flow_id=flow.id, sequence=place))
            return told.store.add_members(flow.id, new, now, perhaps_again=True)

        return act

    def settle(self) -> Step:
        """The work list is worked off."""
        node, now = self.nodes[-1], self.clock.now()

        def act(told: Company) -> None:
            turns = 0
            while told.store.glance(node, None).todo:
                told.keep(told.store.turn(Turn(settle=True, flows=told.counted), now))
                turns += 1
                assert turns < 1_000, "the work list does not become shorter"

        return act

    def promote(self) -> Step:
        now, most = self.clock.now(), self.luck.choice((0, 2, 20))
        return lambda told: told.store.promote(now, most)

    def node_dies(self) -> Step:
        """What it was going to look at is forgotten; somebody finds it."""
        node, now = self.nodes.pop(self.luck.randrange(len(self.nodes[-2:])) - len(self.nodes[-2:])), self.clock.now()
        next_ids = [JobId(job_id) for job_id in self.ids.new_many(4)]

        def act(told: Company) -> object:
            told.counted = ()
            told.store.stop(node, "crash", now)
            return told.store.rescue(node, CRASHED, 3, next_ids, now), told.store.rescue_flows(now)

        return act

    # -- what goes ---------------------------------------------------------------------------------------------------

    def prune(self) -> Step:
        """What is old, flows as a whole."""
        now = self.clock.now()

        def act(told: Company) -> object:
            sweep = Prune(told.store, self.clock, RETENTION)
            sweep.begin(now)
            counts = sweep.step()
            while counts is None:
                counts = sweep.step()
            return counts

        return act

    # -- the end -----------------------------------------------------------------------------------------------------

    def let_go(self) -> Step:
        """Nothing is paused, open or held any more, and perhaps rates are raised."""
        holds, self.holds = self.holds, []
        is_raised = self._is(0.7)

        def act(told: Company) -> None:
            app = told.app
            for queue in {*self.queues, "*"}:
                app.queues.limit(queue, None)
                app.queues.resume(queue)
            for name in LIMITS:
                for key in (None, *TENANTS) if name in BY_TENANT else (None,):
                    app.limits.resume(name, key=key)
            for name in RATES if is_raised else ():
                app.limits.set(name, 60)
            for key, holder, _ in sorted(holds):
                told.store.drop_hold(key, holder)
            told.batches.clear()

        return act

    def go_on(self) -> Step:
        """A minute later: nobody waits for a person, and whatever can start does, and ends."""
        self.clock.advance(seconds=61)
        if not self.nodes:
            return self.register()
        settle, claimer, now = self.settle(), self._claimer(60), self.clock.now()
        lanes = [Lane(queue, 60) for queue in dict.fromkeys(self.queues)]
        next_ids = [JobId(job_id) for job_id in self.ids.new_many(60)]
        reports = [self.luck.choice((Completed("1"), Completed("2"), Failed(HOPELESS))) for _ in range(60)]

        def act(told: Company) -> object:
            self._resume_all(told)
            claims = told.keep(told.store.turn(Turn((), None, 60, lanes, claimer, settle=True), now)).claims
            running = told.store.jobs(JobFilter(state="running"), None, 200).items
            lives = [live for job in running if (live := told.store.live(job.row.id)) is not None]
            ended = [Finish(*end) for end in zip(sorted(lives), reports, next_ids, strict=False)]
            finished = told.store.finish(ended, now) if ended else []
            told.store.rescue_flows(now)
            return claims, finished, settle(told)

        return act

    def _resume_all(self, told: Company) -> None:
        for row in self._flows_that_run(told):
            if row.sealed_at is None and row.filled_by is None:
                told.store.seal_flow(row.id, self.clock.now())
            if row.paused_at is not None:
                told.store.change_flow(row.id, "resume", self.clock.now())
        for state in (State.PAUSED, State.PARKED):
            for job in told.store.jobs(JobFilter(state=state), None, 500).items:
                with suppress(PerdureError):
                    told.app.resume(job.id)

    def _flows_that_run(self, told: Company) -> list[FlowRow]:
        line = told.store.flows("running", None, LAST_ID, 500)
        found: list[FlowRow] = []
        while line:
            found.append(line.pop())
            line += [inner for inner in told.store.inner_flows(found[-1].id) if inner.finished_at is None]
        return found

    def left(self, told: Company) -> list[object]:
        """What has not come to its end."""
        jobs = [job for job in told.store.jobs(JobFilter(), None, 1_000).items if job.state not in FINAL]
        return [*jobs, *self._flows_that_run(told)]


def shown(told: Company, story: FlowStory) -> dict[str, object]:
    """What users see of flows and limits."""
    app, store, now = told.app, told.store, story.clock.now()
    jobs = [job.id for job in store.jobs(JobFilter(), None, 1_000).items]
    flows = list(app.flows.list())
    inner = [app.flows.view(one) for flow in flows for one in store.inner_flows(flow.row.id)]
    every = [*flows, *inner]
    return {
        "flows": [flow.row for flow in every],
        "explained jobs": [app.explain(job) for job in jobs],
        "explained flows": [app.explain(flow) for flow in every],
        "graphs": [_graph(app, flow) for flow in flows],
        "results": [store.results(flow.row.id, -1, 100) for flow in every],
        "limits": store.limits(),
        "keys": [store.limit_keys(name, now) for name in LIMITS],
        "ahead": [store.line_ahead(live) for job in jobs if (live := store.live(JobId(job.bytes))) and live.held_by],
        "queues": [store.queue_holds(queue) for queue in story.queues],
        "glance": [_glance(store, node) for node in story.nodes[-1:]],
        "waited for": [store.waited_for(JobId(job.bytes), 10) for job in jobs],
    }


def _glance(store: Store, node: NodeId) -> Glance:
    """Without an order of the runs to stop, and without word of lines that may be empty."""
    seen = store.glance(node, None)
    return seen._replace(cancelled=tuple(sorted(seen.cancelled)), todo=False)


def _graph(app: Perdure, flow: Any) -> object:
    graph = app.flows.graph(flow)
    return [job.id for job in graph.jobs], graph.edges, [inner.flow.row for inner in graph.inner]


CHANCES = {
    "turn": 40,
    "finish": 10,
    "settle": 4,
    "promote": 3,
    "register": 3,
    "node_dies": 3,
    "fill": 4,
    "enqueue": 6,
    "enqueue_after": 5,
    "workflow": 6,
    "chain": 2,
    "group": 4,
    "batch": 4,
    "fill_a_batch": 4,
    "change": 8,
    "change_flow": 6,
    "retry_flow": 6,
    "retry_as_new": 1,
    "supersede": 2,
    "edit": 2,
    "move": 3,
    "set_priority": 2,
    "delete": 1,
    "change_a_limit": 6,
    "limit_the_queue": 2,
    "pause_the_queue": 2,
    "hold": 5,
    "prune": 2,
}
"""Each step and how often it is chosen."""

LONGEST_END = 120
"""In so many minutes everything has come to its end."""
