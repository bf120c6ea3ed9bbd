"""Two at once on the same jobs: every pair of acts that touch the same rows, one stopped inside its transaction before
each of its statements in turn while the other runs. Whatever comes of it, no job is stranded and the doctor agrees."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

import psycopg
import pytest

from perdure import Job, JobNotFound, KeyConflict, Perdure, Retry, TransitionRefused
from perdure.errors import StoreError
from perdure.ids import JobId, NodeId, RunId
from perdure.job.model import Claim, Failure, LiveJob
from perdure.job.reports import Completed, Failed, Finish, Report
from perdure.ops.doctor import examine, is_healthy
from perdure.ops.repairs import repair
from perdure.store.engine import Make, Op
from perdure.store.protocols import Locked
from perdure.store.rows import Claimer, FinishStatus, Lane, NewNode
from perdure.store.store import SqlStore
from perdure.testing.contract.faults import PassingRunner
from tests.app import by_hand
from tests.worker.patience import eventually

pytestmark = pytest.mark.postgres

T = TypeVar("T")

REFUSALS = (TransitionRefused, KeyConflict, JobNotFound)
"""What an act may be told because the other came first."""

GOES_ON = Failed(Failure("OSError", "try again"))
FAILS = Failed(Failure("ValueError", "no use", permanent=True))


class StoppingRunner(PassingRunner):
    """Stops what runs on it before its nth statement, or before its commit, until it is told to go on."""

    def __init__(self, app: Perdure, nth: int) -> None:
        assert isinstance(app.store, SqlStore)
        super().__init__(app.store.runner)
        self._left = nth
        self.reached = threading.Event()
        self.go = threading.Event()

    def write(self, make: Make[T], *, brief: bool = False) -> T:
        return self.inner.write(lambda: self._stopping(make()), brief=brief)

    def _stopping(self, op: Op[T]) -> Op[T]:
        try:
            call = next(op)
            while True:
                self._step()
                try:
                    result = yield call
                except StoreError as error:
                    call = op.throw(error)
                else:
                    call = op.send(result)
        except StopIteration as stop:
            self._step()
            answer: T = stop.value
            return answer

    def _step(self) -> None:
        self._left -= 1
        if self._left == 0:
            self.reached.set()
            self.go.wait()


class Town:
    """A database, an app for each of the two, and what both have to do with."""

    def __init__(self, url: str, queue: str = "town") -> None:
        self.url = url
        self.queue = queue
        self.numbers = count()
        self.app = self.new_app()
        self.app.store.upgrade()
        self.other = self.new_app()
        self.watcher = psycopg.connect(url, autocommit=True)
        self.jobs: dict[str, Job] = {}
        self.claims: dict[str, Claim] = {}
        self.key = ""
        self.met_a_lock = threading.Event()
        self.let_go = threading.Event()

    def new_app(self) -> Perdure:
        app = Perdure(self.url, durability="normal", busy_timeout_s=30)

        @app.job(queue=self.queue, retry=Retry(3, backoff="none"))
        def work(n: int) -> None: ...

        @app.job(queue=self.queue, retry=Retry(3, backoff="none", as_new_job=True))
        def chain(n: int) -> None: ...

        return app

    def close(self) -> None:
        self.watcher.close()
        self.app.close()
        self.other.close()

    def is_somebody_waiting(self) -> bool:
        if self.met_a_lock.is_set():
            return True
        rows = self.watcher.execute(
            "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        return rows.fetchone() is not None

    # -- scenes ------------------------------------------------------------------------------------------------------

    def draft(self, kind: str = "work", **options: Any) -> Any:
        return self.app.kinds.find(kind).options(**options).new(n=next(self.numbers))  # type: ignore[union-attr]

    def enqueue(self, name: str, kind: str = "work", **options: Any) -> Job:
        (job,) = self.app.enqueue_many([self.draft(kind, **options)])
        self.jobs[name] = job
        return job

    def run(self, name: str, kind: str = "work", **options: Any) -> None:
        job = self.enqueue(name, kind, **options)
        (claim,) = by_hand.claim(self.app, self.queue)
        assert claim.job_id == job.row.id
        self.claims[name] = claim

    def replaced(self, kind: str = "work") -> None:
        """A running job, and the one that waits for its end."""
        self.key = f"b{next(self.numbers)}"
        self.run("old", kind, business_key=self.key)
        superseded = self.app.supersede(self.jobs["old"], self.draft())
        self.jobs["new"] = self.app.existing(superseded.superseded_by or "")

    def replaced_in_vain(self, kind: str = "work") -> None:
        self.replaced(kind)
        self.app.cancel(self.jobs["new"])

    def lane(self) -> None:
        """Three in a row, with no room between the last two."""
        for name in ("a", "b", "c"):
            self.enqueue(name)
        for _ in range(8):
            self.app.move(self.jobs["a"], before=self.jobs["c"])
            self.app.move(self.jobs["b"], before=self.jobs["c"])

    def failed(self) -> None:
        self.key = f"b{next(self.numbers)}"
        self.run("job", business_key=self.key)
        by_hand.finish(self.app, [self.claims["job"]], FAILS)

    def due(self) -> None:
        self.enqueue("job", delay=0.000001)

    # -- the end of each race ----------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Let everything end that can. Whoever is left waits for nobody."""
        app = self.app
        app.queues.resume(self.queue)
        while live := self.live():
            before = len(live)
            for job_id, state in live:
                if state in ("paused", "parked"):
                    app.resume(UUID(bytes=job_id))
            app.store.promote(app.clock.now(), 100)
            by_hand.claim(app, self.queue)
            for job_id, _ in self.live():
                row = app.store.live(JobId(job_id))
                if row is not None and row.state == "running":
                    finish(self, app, row, Completed())
            assert len(self.live()) < before, self.live()

    def live(self) -> list[tuple[bytes, str]]:
        rows = self.watcher.execute("SELECT job_id, state FROM perdure.ready").fetchall()
        return [(job_id.bytes, state) for job_id, state in rows]


def finish(town: Town, app: Perdure, live: LiveJob, report: Report) -> FinishStatus:
    """As a worker does: what meets the other's lock is tried again later."""
    while True:
        (finished,) = app.store.finish([Finish(live, report, JobId(app.ids.new()))], app.clock.now())
        if finished.status is not FinishStatus.WAITS:
            return finished.status
        town.met_a_lock.set()
        town.let_go.wait()


# -- acts ------------------------------------------------------------------------------------------------------------

Act = Callable[[Town, Perdure], object]


def ends(name: str, report: Report) -> Act:
    return lambda town, app: finish(town, app, town.claims[name].live, report)


def verb(verb: str, name: str, *others: str, **options: Any) -> Act:
    def act(town: Town, app: Perdure) -> object:
        given = {key: town.jobs[value] if key in ("before", "after") else value for key, value in options.items()}
        return getattr(app, verb)(town.jobs[name], *(town.draft() for _ in others), **given)

    return act


def enqueue_with_the_key(town: Town, app: Perdure) -> object:
    return app.enqueue_many([town.draft(business_key=town.key, conflict="return")])


def stop_and_rescue(name: str) -> Act:
    def act(town: Town, app: Perdure) -> object:
        node, now = town.claims[name].live.node_id, app.clock.now()
        assert node is not None
        app.store.stop(node, "crash", now)
        while True:
            try:
                return app.store.rescue(node, Failure("NodeLost", "gone"), 3, [JobId(app.ids.new())], now)
            except Locked:
                town.met_a_lock.set()
                town.let_go.wait()

    return act


def claim_all(town: Town, app: Perdure) -> object:
    return by_hand.claim(app, town.queue)


def claim_as_a_stranger(town: Town, app: Perdure) -> object:
    """Parks everything."""
    node, now = NodeId(app.ids.new()), app.clock.now()
    app.store.register(NewNode(node, now, kinds="{}"))
    return app.store.claim([Lane(town.queue, 5)], Claimer(node, {}, [RunId(app.ids.new())], 1_000_000), now)


def pause_queue(town: Town, app: Perdure) -> None:
    app.queues.pause(town.queue)


def promote(town: Town, app: Perdure) -> object:
    return app.store.promote(app.clock.now(), 10)


WITH_THE_OLD = {
    "complete the old": ends("old", Completed()),
    "fail the old": ends("old", FAILS),
    "let the old go on": ends("old", GOES_ON),
    "cancel the old": verb("cancel", "old"),
    "rescue the old": stop_and_rescue("old"),
}

SCENES: dict[str, tuple[Callable[[Town], None], dict[str, Act]]] = {
    "a cancelled replacement": (
        Town.replaced_in_vain,
        WITH_THE_OLD
        | {
            "retry the new": verb("retry", "new"),
            "retry the new as new": verb("retry", "new", as_new=True),
            "delete the new": verb("delete", "new"),
        },
    ),
    "a cancelled replacement in a chain": (
        lambda town: town.replaced_in_vain("chain"),
        {"let the old go on": ends("old", GOES_ON), "retry the new": verb("retry", "new")},
    ),
    "a blocked replacement": (
        Town.replaced,
        WITH_THE_OLD
        | {
            "cancel the new": verb("cancel", "new"),
            "pause the new": verb("pause", "new"),
            "supersede the new": verb("supersede", "new", "draft"),
            "prioritise the new": verb("set_priority", "new", priority=3),
            "enqueue with the key": enqueue_with_the_key,
        },
    ),
    "a lane": (
        Town.lane,
        {
            "claim all": claim_all,
            "park all": claim_as_a_stranger,
            "cancel a": verb("cancel", "a"),
            "pause a": verb("pause", "a"),
            "edit a": verb("edit", "a", payload={"n": -1}),
            "move a before c": verb("move", "a", before="c"),
            "move a after b": verb("move", "a", after="b"),
            "move b before a": verb("move", "b", before="a"),
            "move c to the front": verb("move", "c", to="front"),
            "prioritise a": verb("set_priority", "a", priority=3),
            "supersede a": verb("supersede", "a", "draft"),
            "pause the queue": pause_queue,
        },
    ),
    "a failed job": (
        Town.failed,
        {
            "retry": verb("retry", "job"),
            "retry as new": verb("retry", "job", as_new=True),
            "delete": verb("delete", "job"),
            "cancel": verb("cancel", "job"),
            "edit": verb("edit", "job", payload={"n": -1}),
            "supersede": verb("supersede", "job", "draft"),
            "enqueue with the key": enqueue_with_the_key,
        },
    ),
    "a job that is due": (
        Town.due,
        {
            "promote": promote,
            "cancel": verb("cancel", "job"),
            "pause": verb("pause", "job"),
            "edit": verb("edit", "job", payload={"n": -1}),
            "move": verb("move", "job", to="front"),
        },
    ),
}

PAIRS = [(scene, first) for scene, (_, acts) in SCENES.items() for first in acts]


@pytest.fixture
def town(postgres_url: str) -> Iterator[Town]:
    town = Town(postgres_url)
    yield town
    town.close()


def attempt(act: Act, town: Town, app: Perdure) -> object:
    try:
        return act(town, app)
    except REFUSALS as refused:
        return refused


def race(town: Town, scene: str, first: str, second: str, nth: int) -> bool:
    """Let the two meet in a fresh scene, and everything end afterwards."""
    build, acts = SCENES[scene]
    build(town)
    is_stopped = meet(town, acts[first], acts[second], nth)
    town.drain()
    return is_stopped


def meet(town: Town, first: Act, second: Act, nth: int) -> bool:
    """`first` stops before its nth statement until `second` is done or waits for it. False: it has not so many."""
    town.met_a_lock.clear()
    town.let_go.clear()
    stopping = StoppingRunner(town.app, nth)
    slow = town.new_app()
    slow.__dict__["store"] = SqlStore(stopping)
    with ThreadPoolExecutor(2) as pool:
        one: Future[object] = pool.submit(attempt, first, town, slow)
        eventually(lambda: stopping.reached.is_set() or one.done())
        is_stopped = stopping.reached.is_set()
        two: Future[object] = pool.submit(attempt, second, town, town.other)
        try:
            eventually(lambda: two.done() or town.is_somebody_waiting())
        finally:
            town.let_go.set()
            stopping.go.set()
        one.result()
        two.result()
    return is_stopped


def check(town: Town) -> None:
    assert is_healthy(examine(town.app.store)), examine(town.app.store)


@pytest.mark.parametrize(("scene", "first"), PAIRS)
def test_two_acts_at_once_strand_no_job(town: Town, scene: str, first: str, full_size: bool) -> None:
    """At full size every pair is stopped everywhere; at small size each pair is met once, somewhere."""
    acts = list(SCENES[scene][1])
    here = acts.index(first)
    for there, second in enumerate(acts):
        if full_size:
            nth = 1
            while race(town, scene, first, second, nth):
                nth += 1
        elif (here + there) % 2 == (here > there):
            race(town, scene, first, second, 2 + (3 * here + 5 * there) % 8)
    check(town)


@pytest.mark.parametrize("scene", ["a cancelled replacement", "a cancelled replacement in a chain"])
@pytest.mark.parametrize("is_retry_first", [True, False])
def test_a_retry_and_the_end_it_waits_for_never_miss_each_other(town: Town, scene: str, is_retry_first: bool) -> None:
    other = "complete the old" if scene == "a cancelled replacement" else "let the old go on"
    first, second = ("retry the new", other) if is_retry_first else (other, "retry the new")
    nth = 1
    while race(town, scene, first, second, nth):
        nth += 1
    assert nth > MANY
    check(town)


MANY = 8
"""So many statements at least has each of them."""


def test_many_at_once_strand_no_job(town: Town, full_size: bool) -> None:
    """Threads that do whatever they like to the same few jobs, in an order that a seed decides."""
    for seed in range(50 if full_size else 2):
        order = random.Random(seed)
        scene = order.choice(["a cancelled replacement", "a blocked replacement", "a lane"])
        build, acts = SCENES[scene]
        build(town)
        town.let_go.set()
        plans = [[order.choice(list(acts.values())) for _ in range(15)] for _ in range(4)]

        def live_through(plan: list[Act]) -> None:
            for act in plan:
                attempt(act, town, town.other)

        with ThreadPoolExecutor(len(plans)) as pool:
            for done in [pool.submit(live_through, plan) for plan in plans]:
                done.result()
        town.drain()
    check(town)


# -- pairs that need a stage of their own ----------------------------------------------------------------------------


def test_a_claim_that_waits_while_a_job_is_edited_gets_the_new_payload(town: Town) -> None:
    """It has read the job before it waits, here for its node's row; the run must be of what the record shows."""
    job = town.enqueue("a")
    node, now = NodeId(town.app.ids.new()), town.app.clock.now()
    town.app.store.register(NewNode(node, now))
    claimer = Claimer(node, None, [RunId(run) for run in town.app.ids.new_many(2)], 1_000_000)
    with psycopg.connect(town.url) as holder, ThreadPoolExecutor(1) as pool:
        holder.execute("UPDATE perdure.node SET host = 'held' WHERE id = %s", (UUID(bytes=node),))
        waits = pool.submit(town.other.store.claim, [Lane(town.queue, 1)], claimer, now)
        eventually(town.is_somebody_waiting)
        town.app.edit(job, payload={"n": -1})
        holder.commit()
        claims = waits.result() or town.other.store.claim([Lane(town.queue, 1)], claimer, now)
    assert [claim.payload for claim in claims] == ['{"n":-1}']
    town.drain()
    check(town)


@pytest.mark.parametrize("first", [0, 1])
def test_two_moves_at_once_leave_the_order_that_both_asked_for(town: Town, first: int) -> None:
    """One makes room behind a by pushing b away, the other goes right behind b."""
    nth = 1
    while True:
        jobs = dict(zip("abcde", town.app.enqueue_many([town.draft() for _ in "abcde"]), strict=True))
        for name, position in {"d": 1, "e": 2, "a": 1_000, "b": 1_001, "c": 1_010}.items():
            town.watcher.execute("UPDATE perdure.ready SET position = %s WHERE job_id = %s", (position, jobs[name].id))
        moves: list[Act] = [
            lambda _town, app, jobs=jobs: app.move(jobs["d"], after=jobs["a"]),  # type: ignore[misc]
            lambda _town, app, jobs=jobs: app.move(jobs["e"], after=jobs["b"]),  # type: ignore[misc]
        ]
        stopped = meet(town, moves[first], moves[1 - first], nth)
        order = [job.id for job in town.app.jobs(state="queued", queue=town.queue)]
        assert order == [jobs[name].id for name in "adbec"], nth
        town.drain()
        if not stopped:
            return
        nth += 1


class Mended(NamedTuple):
    """A database that is damaged, somebody who does something about it, and a repair that has seen it before."""

    repair: str
    damage: str
    meanwhile: Act
    answer: int


def give_the_run_back(town: Town, app: Perdure) -> None:
    claim = town.claims["old"]
    with app.store.transaction(join=True) as tx:
        tx.execute(
            "INSERT INTO perdure.run (id, job_id, state, node_id, attempt, life, started_at, wait_ms)"
            " SELECT run_id, job_id, 'running', node_id, 1, 1, 0, 0 FROM perdure.ready WHERE job_id = %s FOR UPDATE",
            (UUID(bytes=claim.job_id),),
        )


MENDED = (
    Mended(
        "recount_waits",
        "UPDATE perdure.ready SET waits_for = 5 WHERE state = 'blocked'",
        WITH_THE_OLD["complete the old"],
        1,
    ),
    Mended("settle_running", "DELETE FROM perdure.run", give_the_run_back, 0),
    Mended("reserve_business_keys", "DELETE FROM perdure.business_key", verb("cancel", "new"), 0),
    Mended(
        "fail_lost_jobs",
        "DELETE FROM perdure.edge; DELETE FROM perdure.ready WHERE state = 'blocked'; DELETE FROM perdure.business_key",
        lambda _town, app: repair(app.store, "fail_lost_jobs"),
        0,
    ),
)


@pytest.mark.parametrize("case", MENDED, ids=lambda case: case.repair)
def test_a_repair_decides_on_what_is_there_when_it_has_it(town: Town, case: Mended) -> None:
    town.replaced()
    for statement in case.damage.split(";"):
        town.watcher.execute(statement.encode())
    with ThreadPoolExecutor(1) as pool:
        with town.app.transaction():
            case.meanwhile(town, town.app)
            mends = pool.submit(repair, town.other.store, case.repair)
            eventually(lambda: mends.done() or town.is_somebody_waiting())
        assert mends.result() == case.answer
    check(town)
    town.drain()
    check(town)
