"""Processes that kill (or stop) themselves before the nth statement they send to the database, or after a COMMIT.

The seam is the connection: it knows of every statement before it is run, BEGIN, COMMIT and, on SQLite, each row of a
batch among them. One operation at a time, in an order that does not depend on timing, so that n names one boundary.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sqlite3
import threading
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import psycopg
import pymysql

from perdure import Flow, Perdure
from perdure.errors import DatabaseBusy, StoreError, TransitionRefused
from perdure.ids import FlowId, JobId, NodeId, RunId, to_uuid
from perdure.job.flow import Edge, Trait
from perdure.job.model import Failure, LiveJob, NewJob
from perdure.job.reports import Completed, Failed, Finish
from perdure.schedule.scheduler import Scheduler
from perdure.store import limit
from perdure.store.engine import Op
from perdure.store.mysql import session
from perdure.store.open import dialect_of
from perdure.store.rows import Claimer, FinishStatus, Lane, NewNode, Turn
from perdure.testing.contract.rig import Rig
from perdure.upkeep.rescue import Rescuer
from perdure.worker.growth import derived_id, number_of, ordered_number
from perdure.worker.node import Node
from perdure.worker.options import WorkerOptions
from perdure.worker.run import Inbox
from perdure.worker.worker import Pools
from tests import history
from tests.crash import handlers
from tests.crash.handlers import Place

T = TypeVar("T")


class Points:
    """Counts boundaries from `arm` on. The nth is where the process ends; all that were passed are in `reached`."""

    def __init__(self) -> None:
        self.nth = 0
        self.passed = 0
        self.reached: Path | None = None
        self.only: tuple[str, ...] = ("",)
        self.signal = signal.SIGKILL

    def arm(self, nth: int, reached: Path) -> None:
        self.nth, self.reached = nth, reached

    def boundary(self, when: str, sql: str = "") -> None:
        where = f"{when} {_named(sql)}"
        if self.reached is None or not where.startswith(self.only):
            return
        self.passed += 1
        with self.reached.open("a") as told:
            told.write(f"{' '.join(where.split())[:60]}\n")
        if self.passed == self.nth:
            os.kill(os.getpid(), self.signal)


class OfOneSort(Points):
    """Counts the boundaries of one sort only: a statement, whatever its values. Each sort that is passed for the first
    time is noted, and the one where the process ends. It ends at its 800th boundary at the latest."""

    LATEST = 800

    def __init__(self, sort: str, nth: int, noted: Path) -> None:
        super().__init__()
        self._sort, self._seen, self._all = sort, set[str](), 0
        self.arm(nth, noted)

    def boundary(self, when: str, sql: str = "") -> None:
        sort = f"{when} {_shape(sql)}"
        if sort not in self._seen:
            self._seen.add(sort)
            history.note(self._noted, "passed", sort=sort)
        self._all += 1
        self.passed += self._sort in ("", sort)
        if self.passed == self.nth or self._all == self.LATEST:
            history.note(self._noted, "died", sort=sort)
            os.kill(os.getpid(), signal.SIGKILL)

    @property
    def _noted(self) -> Path:
        assert self.reached is not None
        return self.reached


points = Points()


class Mortal(sqlite3.Connection):
    """A connection whose statements are boundaries; those that only read, in a transaction of their own, are not."""

    only_reads = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.set_trace_callback(self._before)

    def _before(self, sql: str) -> None:
        if sql == "PRAGMA query_only=ON":
            self.only_reads = True
        if not sql.startswith("PRAGMA") and not self.only_reads:
            points.boundary("before", sql)

    def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
        answer = super().execute(sql, *args)
        if sql == "COMMIT" and not self.only_reads:
            points.boundary("after", "COMMIT")
        return answer


class MortalPostgres(psycopg.Connection[Any]):
    """The same on PostgreSQL, where statements are sent together: what was sent, and what was answered."""

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        points.boundary("sent")
        answer = super().wait(*args, **kwargs)
        points.boundary("answered")
        return answer


class MortalMySQL(pymysql.connections.Connection):  # type: ignore[misc]  # it has no types
    """The same on MariaDB: the statements of transactions that may write."""

    writes = False

    def query(self, sql: str | bytes, unbuffered: bool = False) -> int:
        text = sql if isinstance(sql, str) else sql.decode()
        self.writes = self.writes or text.endswith("START TRANSACTION")
        if self.writes:
            points.boundary("before", text)
        answer = super().query(sql, unbuffered)
        if self.writes and text in ("COMMIT", "ROLLBACK"):
            points.boundary("after", text)
            self.writes = False
        return answer


def _named(sql: str) -> str:
    """What a statement does to which of our tables."""
    table = _TABLE.search(sql)
    return " ".join(sql.split()) if table is None else f"{sql.split(maxsplit=1)[0]} {table[1]}"


_TABLE = re.compile(r"\bperdure_(\w+)")


def _shape(sql: str) -> str:
    """A statement without its values, and without how many rows it has."""
    bare = _VALUE.sub("?", " ".join(_COMMENT.sub("", sql).split()))
    return _MORE.sub(r"\1", bare)


_COMMENT = re.compile(r"--[^\n]*")
_VALUE = re.compile(r"""(?:\b[xX]|\b_binary ?)?'(?:[^'\\]|''|\\.)*'|\bNULL\b|-?\b\d+\b""")
_MORE = re.compile(r"(\([?, ]+\)|\?)(?:, ?\1)+")


def begin(place: Place) -> Perdure:
    match dialect_of(place.url):  # in this process, which is ours alone
        case "sqlite":
            vars(sqlite3)["connect"] = partial(sqlite3.connect, factory=Mortal)
        case "postgres":
            vars(psycopg)["connect"] = MortalPostgres.connect
        case _:
            vars(session)["Connection"] = MortalMySQL
    return handlers.begin(place)


# -- what is done ----------------------------------------------------------------------------------------------------


def take_turns(place: Place, nth: int, reached: Path) -> None:
    """Claim, run, finish and claim, run, finish, until nothing is left: each turn by itself, handlers in threads."""
    app = begin(place)
    node, ends = node_of(app)
    node.register()
    points.arm(nth, reached)
    while True:
        node.look_again()
        node.turn()
        if node.is_idle:
            return
        for _ in node.held:
            ends.acquire()


def sleep_between(place: Place, nth: int, reached: Path) -> None:
    """The same, but stop before or after the nth transaction, and go on when somebody says so."""
    points.only, points.signal = ("before BEGIN", "after COMMIT"), signal.SIGSTOP
    take_turns(place, nth, reached)


def take_back(place: Place, nth: int, reached: Path) -> None:
    """Declare dead who is, and take back what was left behind."""
    app = begin(place)
    node, _ = node_of(app)
    node.register()
    points.arm(nth, reached)
    rescuer_of(app).look(node.id)


def start_flows(place: Place, nth: int, reached: Path) -> None:
    """A workflow, which is one transaction, and a batch, which is one for each portion."""
    app = begin(place)
    app.store.live_nodes()
    points.arm(nth, reached)
    start_workflow(app)
    with app.batch("batch", on_end=app.draft("work", {"ms": 0}, {})) as batch:
        for _ in range(3):
            batch.add(app.draft("work", {"ms": 0}, {}))
            batch.flush(None)


def start_workflow(app: Perdure) -> Flow:
    """One with all that a flow can have: a batch that a job fills, a part that fails and stops, a join, callbacks."""
    work = app.draft("work", {"ms": 0}, {})
    with app.workflow("workflow") as flow:
        filler = flow.add(app.draft("grow", {"members": 2}, {}))
        more = flow.batch("more", filled_by=filler)
        flow.add(work, after=more)
        part = flow.group([app.draft("spoil", {}, {}), work, work], name="part", mode="sequential", on_failure="stop")
        flow.add(work, after=part, on="success")
        flow.add(work, after=part, on="failure")
        flow.add(work, after=flow, on="failure")
        flow.add(work, after=flow, on="success")
    return flow.flow


def cancel_flow(place: Place, nth: int, reached: Path) -> None:
    """Cancel the flow that there is, as a whole."""
    app = begin(place)
    [flow] = app.flows.list()
    points.arm(nth, reached)
    app.cancel(flow.id)


def live_and_leave(place: Place, nth: int, reached: Path) -> None:
    """Register, beat twice and sign off, without a job."""
    app = begin(place)
    node, _ = node_of(app)
    app.store.live_nodes()
    points.arm(nth, reached)
    node.register()
    for _ in range(2):
        assert app.store.beat(node.id, app.clock.now())
    node.sign_off()


def whole_life(place: Place, nth: int, reached: Path) -> None:
    """A worker with all its threads, from its first statement to its last."""
    app = begin(place)
    app.store.live_nodes()
    points.arm(nth, reached)
    raise SystemExit(app.worker(max_crashes=1_000).run(until_idle=True))


def fire(place: Place, nth: int, reached: Path) -> None:
    """Take the slots that are due."""
    app = begin(place)
    node, _ = node_of(app)
    node.register()
    parts = app.parts()
    scheduler = Scheduler(parts.store, parts.clock, parts.ids, parts.owner, parts.declared)
    points.arm(nth, reached)
    scheduler.look(node.id)


def hold(place: Place, ready: Path) -> None:
    """Claim whatever there is and do nothing with it, until killed."""
    app = handlers.begin(place)
    node, _ = node_of(app)
    node.register()
    while not node.held:  # a first turn may only see to the limits that are new
        node.look_again()
        node.turn()
    ready.write_text(node.id.hex())
    signal.pause()


def end_flows(place: Place, node: NodeId, sort: str, nth: int, noted: Path) -> None:
    """Claim the jobs of flows and end them, until dead: at the nth boundary of this sort, or of any if it is empty."""
    app = begin(place)
    rig = Rig(place.url, lambda _: app.store)
    app.store.register(NewNode(node, app.clock.now()))
    globals()["points"] = OfOneSort(sort, nth, noted)
    finishes: list[Finish] = []
    flows: Sequence[FlowId] = ()
    while True:
        claimer = Claimer(node, None, [RunId(one) for one in app.ids.new_many(6)], 0, max_crashes=10_000)
        settle = app.store.glance(node, None).todo
        wanted = Turn(finishes, lanes=[Lane("flows", 6)], claimer=claimer, flows=flows, settle=settle)
        try:
            turned = app.store.turn(wanted, app.clock.now())
        except DatabaseBusy:
            continue
        flows = turned.flows
        waits = [one for one, so in zip(finishes, turned.finished, strict=True) if so.status is FinishStatus.WAITS]
        finishes = [*waits, *(_handled(app, rig, claim.live) for claim in turned.claims)]


def fails(job_id: bytes) -> bool:
    """What a job of a flow does depends on the job alone, so that one that runs twice ends in the same way."""
    return zlib.crc32(job_id) % 5 == 0


def result_of(job_id: bytes) -> int:
    return zlib.crc32(job_id) % 3


def grows(job_id: bytes) -> bool:
    """Whether it adds a member to its flow. Members that were added so do not."""
    return zlib.crc32(job_id) % 7 < 2


GROWN = "grown"
"""The kind of members that others have added; their payload says who."""
FILLED = 2
"""So many members are added by a job that fills a flow."""


def _handled(app: Perdure, rig: Rig, live: LiveJob) -> Finish:
    """What the handler of this job does, and reports."""
    if live.traits & Trait.FILLS:
        _fill(app, rig, live)
    broken = Failed(Failure("ValueError", "it broke", permanent=True))
    report = broken if fails(live.job_id) else Completed(str(result_of(live.job_id)))
    children: tuple[NewJob, ...] = ()
    if live.flow_id is not None and live.kind != GROWN and grows(live.job_id):
        child = _member(app, rig, live, live.flow_id)
        after = (Edge(live.job_id),) if result_of(live.job_id) else ()
        children = (child._replace(sequence=number_of(child.id), after=after),)
    return Finish(live, report, JobId(app.ids.new()), children=children)


def _fill(app: Perdure, rig: Rig, live: LiveJob) -> None:
    """As a handler does with `ctx.flow["more"].add_many(…)`: another attempt adds the same, and nothing twice."""

    def add_to(flow: FlowId) -> None:
        members = [
            _member(app, rig, live, flow)._replace(
                id=derived_id(live.job_id, flow, str(number)), sequence=ordered_number(live.job_id, flow, number)
            )
            for number in range(FILLED)
        ]
        with suppress(TransitionRefused):  # it was cancelled
            app.store.add_members(flow, members, app.clock.now(), perhaps_again=True)

    assert live.flow_id is not None
    outer = live.flow_id
    for flow in _until_it_works(lambda: app.store.inner_flows(outer)):
        if flow.filled_by == live.job_id:
            _until_it_works(partial(add_to, flow.id))


def _member(app: Perdure, rig: Rig, adder: LiveJob, flow: FlowId) -> NewJob:
    by = json.dumps({"by": adder.job_id.hex()})
    new = rig.new(kind=GROWN, queue="flows", flow_id=flow, payload=by, max_attempts=10_000)
    now = app.clock.now()
    return new._replace(created_at=now, run_at=now)


def end_limited(place: Place, node: NodeId, wakes: bool = True, once: bool = False) -> None:
    """Claim jobs of two queues and complete them, until killed; `once`: until there are none. Not `wakes`: nobody in a
    line is ever woken. A job runs for some turns, and each run is noted: its start when it is claimed for certain, its
    end before that is reported, so that a run has its permits for longer than the notes say."""
    app = Perdure(place.url, busy_timeout_s=60)
    if not wakes:
        vars(limit)["_wake"] = _wakes_nobody
    lanes = [Lane("one", 3), Lane("two", 3)]
    chance = random.Random(node)

    def take_turn(held: Sequence[LiveJob]) -> list[LiveJob]:
        done = [live for live in held if chance.random() < 0.6]
        _note_runs(place, "end", done)
        finishes = [Finish(live, Completed(), JobId(app.ids.new())) for live in done]
        claimer = Claimer(node, None, [RunId(one) for one in app.ids.new_many(4)], 0, max_crashes=10_000)
        settle = app.store.glance(node, None).todo
        turned = app.store.turn(Turn(finishes, lanes=lanes, claimer=claimer, settle=settle), app.clock.now())
        waits = [one.live for one, so in zip(finishes, turned.finished, strict=True) if so.status is FinishStatus.WAITS]
        claimed = [claim.live for claim in turned.claims]
        _note_runs(place, "start", [*waits, *claimed])
        return [*(live for live in held if live not in done), *waits, *claimed]

    def held_now() -> list[LiveJob]:
        held = list(app.store.held_by(node))
        _note_runs(place, "start", held)
        return held

    _until_it_works(lambda: app.store.register(NewNode(node, app.clock.now())))
    held: list[LiveJob] = []
    while True:
        before = held
        try:
            held = take_turn(held)
        except StoreError:  # somebody was in the way, or the connection was cut, perhaps after the commit
            held = _until_it_works(held_now)
        else:
            if once and not held and not before:
                return


def _note_runs(place: Place, event: str, runs: Sequence[LiveJob]) -> None:
    if runs:
        history.note(place.history, event, runs=[str(to_uuid(live.run_id)) for live in runs if live.run_id])


def _wakes_nobody(*_: object) -> Op[tuple[int, set[str]]]:
    yield from ()
    return 0, set()


def _until_it_works(act: Callable[[], T]) -> T:
    while True:
        try:
            return act()
        except StoreError:
            pass


def node_of(app: Perdure, **duty: Any) -> tuple[Node, threading.Semaphore]:
    """A node without a worker around it; the semaphore counts the runs that have come back."""
    ends = threading.Semaphore(0)
    inbox = Inbox(ends.release)
    options = WorkerOptions(concurrency=2, lease_s=handlers.LEASE_S, **duty)
    return Node(app.parts(), options, Pools(inbox), inbox), ends


def rescuer_of(app: Perdure, max_crashes: int = 1_000) -> Rescuer:
    return Rescuer(app.parts(), WorkerOptions(lease_s=handlers.LEASE_S, max_crashes=max_crashes))


def stop_reasons(app: Perdure) -> dict[NodeId, str | None]:
    return {node.id: node.stop_reason for node in app.store.nodes(100)}
