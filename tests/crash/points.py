"""Processes that kill (or stop) themselves before the nth statement they send to the database, or after a COMMIT.

The seam is the connection: it knows of every statement before it is run, BEGIN, COMMIT and, on SQLite, each row of a
batch among them. One operation at a time, in an order that does not depend on timing, so that n names one boundary.
"""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import threading
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pymysql

from perdure import Perdure
from perdure.ids import NodeId
from perdure.schedule.scheduler import Scheduler
from perdure.store.mysql import session
from perdure.store.open import dialect_of
from perdure.upkeep.rescue import Rescuer
from perdure.worker.node import Node
from perdure.worker.options import WorkerOptions
from perdure.worker.run import Inbox
from perdure.worker.worker import Pools
from tests.crash import handlers
from tests.crash.handlers import Place


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

    def boundary(self, where: str) -> None:
        if self.reached is None or not where.startswith(self.only):
            return
        self.passed += 1
        with self.reached.open("a") as told:
            told.write(f"{' '.join(where.split())[:60]}\n")
        if self.passed == self.nth:
            os.kill(os.getpid(), self.signal)


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
            points.boundary(f"before {_named(sql)}")

    def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
        answer = super().execute(sql, *args)
        if sql == "COMMIT" and not self.only_reads:
            points.boundary("after COMMIT")
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
            points.boundary(f"before {_named(text)}")
        answer = super().query(sql, unbuffered)
        if self.writes and text in ("COMMIT", "ROLLBACK"):
            points.boundary(f"after {text}")
            self.writes = False
        return answer


def _named(sql: str) -> str:
    """What a statement does to which of our tables."""
    table = _TABLE.search(sql)
    return " ".join(sql.split()) if table is None else f"{sql.split(maxsplit=1)[0]} {table[1]}"


_TABLE = re.compile(r"\bperdure_(\w+)")


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
    node.turn()
    ready.write_text(node.id.hex())
    signal.pause()


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
