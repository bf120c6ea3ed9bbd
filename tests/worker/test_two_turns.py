"""Two turns of a node under way at once: the test says when each reaches the database, and when the node hears so."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from contextvars import copy_context
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from perdure import JobContext, Perdure, State
from perdure.clock import ManualClock, Micros
from perdure.store.rows import Turn, Turned
from perdure.store.store import SqlStore
from perdure.upkeep.chore import Chore, Chores
from perdure.worker.loop import STOP, StopRequest, WorkLoop
from perdure.worker.node import Node
from perdure.worker.options import WorkerOptions
from perdure.worker.run import AnyKind, Assignment, Inbox, run_plain
from perdure.worker.signals import Stop
from tests.worker.patience import seen_by_the_doctor

ROOM = 8


class LateHands:
    """Two hands that carry a turn when the test says so."""

    count = 2

    def __init__(self) -> None:
        self.full: list[Callable[[], None]] = []

    def carry(self, turn: Callable[[], None]) -> None:
        self.full.append(turn)

    def deliver(self) -> None:
        """The first turn reaches the database, and its answer comes back."""
        self.full.pop(0)()


class Handlers:
    """Runs begin when they are claimed, and end when the test says so."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self.at_work: list[Assignment] = []
        self.stopped: list[Stop] = []

    def of(self, kind: AnyKind) -> Handlers:
        return self

    def start(self, tasks: Sequence[Assignment]) -> None:
        self.at_work += tasks

    def stop(self, ctx: JobContext, why: Stop) -> None:
        self.stopped.append(why)

    def close(self, patience_s: float) -> bool:
        return True

    def end(self, count: int) -> None:
        for _ in range(count):
            self._inbox.put(copy_context().run(run_plain, self.at_work.pop(0)))


class Scene:
    def __init__(self, path: Path, options: WorkerOptions) -> None:
        self.clock = ManualClock(datetime(2030, 1, 1, tzinfo=UTC))
        self.path = path
        self.app = Perdure(path, durability="normal", clock=self.clock, busy_timeout_s=0.01)
        inbox = Inbox(lambda: None)
        self.hands = LateHands()
        self.handlers = Handlers(inbox)
        self.node = Node(self.app.parts(), options, self.handlers, inbox, hands=self.hands)

        @self.app.job(queue="first")
        def note(ctx: JobContext, number: int = 0) -> None:
            ctx.log.info("number %d", number)

        self.note = note

    def enqueue(self, count: int, **options: Any) -> None:
        self.note.options(**options).enqueue_many([{"number": number} for number in range(count)])

    def execute(self, sql: str) -> list[Any]:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            return connection.execute(sql).fetchall()

    def turn(self) -> float:
        return self.node.turn()

    def turn_and_deliver(self) -> None:
        """A turn that goes and comes back before anything else happens."""
        self.turn()
        self.hands.deliver()
        self.turn()

    def count(self, state: str) -> int:
        return len(list(self.app.jobs(state=State(state))))

    def work_to_the_end(self) -> None:
        while not self.node.is_idle:
            self.clock.advance(seconds=1)
            self.handlers.end(len(self.handlers.at_work))
            self.turn()
            while self.hands.full:
                self.hands.deliver()


@pytest.fixture
def make(path: Path) -> Iterator[Callable[..., Scene]]:
    """A node with so many jobs to do; in the end all have run once, and the doctor finds nothing."""
    made: list[Scene] = []

    def scene(jobs: int, **options: Any) -> Scene:
        made.append(Scene(path, WorkerOptions(concurrency=ROOM, **options)))
        made[0].node.register()
        made[0].enqueue(jobs)
        return made[0]

    yield scene
    made[0].work_to_the_end()
    assert made[0].count("completed") == len(list(made[0].app.jobs()))
    for table in ("perdure_run WHERE state = 'completed'", "perdure_job_log"):
        assert made[0].execute(f"SELECT COUNT(*) FROM {table}") == [(made[0].count("completed"),)]
    made[0].node.sign_off()
    seen_by_the_doctor(made[0].app)


def at_work(scene: Scene) -> None:
    """As many jobs run as can, claimed by two turns."""
    scene.turn_and_deliver()
    scene.hands.deliver()
    scene.turn()
    assert (len(scene.handlers.at_work), scene.hands.full) == (ROOM, [])


def both_under_way(scene: Scene) -> None:
    """Two ends and two claims are on their way to the database, and beside them as many again. Four jobs run."""
    at_work(scene)
    for _ in range(2):
        scene.handlers.end(2)
        scene.turn()
    assert len(scene.hands.full) == 2


def test_what_ends_while_a_turn_is_under_way_is_written_beside_it(make: Callable[..., Scene]) -> None:
    scene = make(20)
    both_under_way(scene)

    scene.hands.full.reverse()
    scene.hands.deliver()
    assert (scene.count("completed"), scene.count("running")) == (2, 8)
    scene.turn()
    assert len(scene.handlers.at_work) == 6

    scene.hands.deliver()
    scene.turn()
    assert (scene.count("completed"), len(scene.handlers.at_work)) == (4, 8)


def test_there_are_never_more_turns_under_way_than_hands(make: Callable[..., Scene]) -> None:
    scene = make(20)
    both_under_way(scene)
    scene.handlers.end(4)
    scene.turn()
    assert len(scene.hands.full) == 2


def test_one_end_waits_for_the_turn_that_is_under_way(make: Callable[..., Scene]) -> None:
    scene = make(20)
    at_work(scene)
    for _ in range(2):
        scene.handlers.end(1)
        scene.turn()
    assert len(scene.hands.full) == 1

    scene.hands.deliver()
    scene.turn()
    assert len(scene.hands.full) == 1
    assert scene.count("completed") == 1


def test_what_turns_under_way_may_claim_takes_room(make: Callable[..., Scene]) -> None:
    scene = make(20)
    both_under_way(scene)
    while scene.hands.full:
        scene.hands.deliver()
    assert scene.count("running") == ROOM


def test_what_turns_under_way_may_claim_takes_the_room_of_its_queue(make: Callable[..., Scene]) -> None:
    scene = make(20, queues=("first", "second"), per_queue={"first": 4, "second": 4})
    scene.enqueue(20, queue="second")
    at_work(scene)
    scene.handlers.end(2)
    scene.turn()
    scene.handlers.at_work.reverse()
    scene.handlers.end(2)
    scene.turn()
    assert len(scene.hands.full) == 2
    while scene.hands.full:
        scene.hands.deliver()
    assert len(list(scene.app.jobs(state="running", queue="first"))) == 4


def test_a_node_with_a_turn_under_way_is_neither_empty_nor_idle_nor_ready_to_sleep(make: Callable[..., Scene]) -> None:
    scene = make(2)
    scene.turn_and_deliver()
    scene.handlers.end(2)
    scene.turn()
    assert (scene.node.is_empty, scene.node.is_idle, scene.node.is_full) == (False, False, True)


def fail_the_first(scene: Scene) -> None:
    with closing(sqlite3.connect(scene.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        scene.hands.deliver()
        other.execute("ROLLBACK")


def test_the_ends_of_a_turn_that_failed_are_written_by_a_later_one(make: Callable[..., Scene]) -> None:
    scene = make(20)
    both_under_way(scene)
    fail_the_first(scene)
    assert scene.turn() == pytest.approx(0.1)
    assert scene.node.in_trouble

    scene.handlers.end(2)
    scene.turn()
    assert len(scene.hands.full) == 1, "first it is found out what the database knows"
    scene.hands.deliver()
    scene.turn()
    scene.hands.deliver()
    assert scene.count("completed") == 6


def test_what_a_turn_has_claimed_is_not_given_back_before_the_node_has_heard_of_it(
    make: Callable[..., Scene], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other turn failed, so the node wants to compare what it runs with what the database says."""
    scene, turn = make(20), SqlStore.turn
    both_under_way(scene)
    fail_the_first(scene)
    scene.turn()

    def heard_late(store: SqlStore, wanted: Turn, now: Micros) -> Turned:
        turned = turn(store, wanted, now)
        scene.turn()
        return turned

    with monkeypatch.context() as patched:
        patched.setattr(SqlStore, "turn", heard_late)
        scene.hands.deliver()
    assert scene.execute("SELECT COUNT(*) FROM perdure_run WHERE state = 'released'") == [(0,)]


def test_a_node_that_was_declared_dead_hears_of_all_it_has_claimed_before_it_comes_back(
    make: Callable[..., Scene],
) -> None:
    scene = make(20)
    both_under_way(scene)
    before = scene.node.id
    scene.node.declared_dead = True
    scene.hands.deliver()
    scene.handlers.end(2)
    scene.turn()
    assert scene.node.id == before

    scene.hands.deliver()
    scene.turn()
    assert scene.node.id != before
    assert scene.handlers.stopped == [Stop.LOST] * ROOM


@pytest.mark.parametrize("crashes", [1, 2])
def test_a_turn_beside_one_that_may_claim_a_suspect_claims_no_job_that_has_crashed(
    make: Callable[..., Scene], crashes: int
) -> None:
    scene = make(ROOM)
    at_work(scene)
    scene.enqueue(4)
    scene.execute(f"UPDATE perdure_ready SET crashes = {crashes} WHERE state = 'queued'")
    scene.enqueue(4)
    for _ in range(2):
        scene.node.look_again()
        scene.handlers.end(2)
        scene.turn()
    scene.hands.full.reverse()
    scene.hands.deliver()
    assert scene.count("running") == ROOM
    assert scene.execute("SELECT DISTINCT crashes FROM perdure_ready WHERE state = 'running'") == [(0,)]


def test_what_runs_say_that_have_not_ended_is_written_by_a_turn_alone(make: Callable[..., Scene]) -> None:
    """Another beside it could close those very runs, and each would wait for the other's rows."""
    scene = make(20)
    at_work(scene)
    scene.clock.advance(seconds=2)
    scene.handlers.at_work[3].ctx.metric(done=1)
    for _ in range(2):
        scene.handlers.end(2)
        scene.turn()
    assert len(scene.hands.full) == 1


def test_notes_of_running_jobs_are_not_put_off_by_turns_that_follow_each_other(make: Callable[..., Scene]) -> None:
    scene = make(40)
    both_under_way(scene)
    scene.clock.advance(seconds=2)
    scene.hands.deliver()
    scene.turn()
    scene.handlers.end(2)
    scene.turn()
    assert len(scene.hands.full) == 1


class PatientBell:
    """Nobody rings: time passes, and after a while the worker is asked to stop."""

    tells_when = True

    def __init__(self, clock: ManualClock, waits: int) -> None:
        self._clock = clock
        self._waits = waits
        self.stopping = StopRequest(lambda: None)

    def ring(self) -> None: ...

    def wait(self, timeout_s: float, *, rung_only: bool = False) -> bool:
        assert rung_only or self.stopping.level
        self._clock.advance(seconds=timeout_s)
        self._waits -= 1
        if not self._waits:
            self.stopping.ask(STOP)
        return False

    def close(self) -> None: ...


def test_a_turn_that_never_ends_looks_to_the_watchdog_like_a_thread_that_hangs(make: Callable[..., Scene]) -> None:
    scene = make(20)
    scene.turn()
    before = scene.node.last_success

    bell = PatientBell(scene.clock, waits=5)
    chores = Chores([Chore("nothing", 3600, lambda: 0)], scene.clock, lambda: None)
    loop = WorkLoop(scene.node, chores, bell, scene.clock, bell.stopping, grace_s=1)
    assert not loop.run()
    assert (loop.moves, scene.node.last_success) == (0, before)
    scene.node.accepting = True
