"""Limits under SIGKILL and with cut connections: four workers are killed, or cut off, again and again in the middle of
their turns. At every look the sum of the permits of a key is within its limit and belongs to running jobs; in the end
nothing is stranded, no permit is left, and runs beside each other never held more than the limit but for lost ones."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from multiprocessing.context import ForkServerProcess
from typing import cast
from uuid import UUID

import psycopg
import pytest

from perdure import Perdure
from perdure.ids import JobId, NodeId
from perdure.job.model import Failure, NewJob
from perdure.limit.key import Need, key_of, needs_of, written
from perdure.ops.doctor import QUICK, Severity, examine
from perdure.store.protocols import clock_of
from perdure.store.rows import LimitRule
from perdure.testing.contract.rig import Rig
from tests import history
from tests.conftest import SIZE
from tests.crash import points
from tests.crash.databases import Databases
from tests.crash.handlers import Place
from tests.crash.workers import ended, forked

WORKERS = 4
MOST = 6
ENOUGH = 250
"""Live jobs that keep all workers busy."""
QUEUES = ("one", "two")
LOST = Failure("NodeLost", "killed by the test")


class Killed:
    """Some workers on one database, each started anew when it was killed."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._app = Perdure(place.url, busy_timeout_s=60)
        self._workers = [self._start() for _ in range(WORKERS)]
        self.kills = 0

    def _start(self) -> tuple[ForkServerProcess, NodeId]:
        node = NodeId(self._app.ids.new())
        process = forked.Process(target=points.end_limited, args=(self._place, node))
        process.start()
        return process, node

    def kill_one(self, which: int) -> None:
        """Kill it, rescue what it held, and start another."""
        self._end(*self._workers[which])
        self._workers[which] = self._start()
        self.kills += 1

    def _end(self, process: ForkServerProcess, node: NodeId) -> None:
        assert process.exitcode is None, "a worker ended by itself"
        process.kill()
        ended(process)
        process.close()
        rescued(self._app, node)

    def close(self) -> None:
        for worker in self._workers:
            self._end(*worker)
        self._app.close()


def rescued(app: Perdure, node: NodeId) -> None:
    """All that a dead node held, as workers do: again and again while its last transaction is still under way on the
    server, whose rows a rescue passes over."""
    store, now = app.store, app.clock.now()
    store.stop(node, "crash", now)
    while store.held_by(node):
        store.rescue(node, LOST, 10_000, [JobId(one) for one in app.ids.new_many(50)], now)


@contextmanager
def killed(place: Place) -> Generator[Killed, None, None]:
    workers = Killed(place)
    try:
        yield workers
    finally:
        workers.close()


def enqueue(rig: Rig, count: int, chance: random.Random) -> None:
    """Jobs of three keys, some of two, as heavy as chance will have it."""
    jobs: list[NewJob] = []
    now = clock_of(rig.store).now()
    for _ in range(count):
        needs = [Need(key_of("tenant", chance.randrange(3)), chance.randint(1, 5))]
        if chance.random() < 0.3:
            needs.append(Need("gpu", chance.randint(1, 3)))
        new = rig.new(queue=chance.choice(QUEUES), limit_key=written(needs) or "", max_attempts=10_000)
        jobs.append(new._replace(created_at=now, run_at=now))
    rig.store.enqueue(jobs)


def look(rig: Rig) -> dict[str, int]:
    """What is in use of each key, which must be within its limit; and the doctor must find nothing."""
    in_use = {
        str(key): int(str(total)) for key, total in rig.execute("SELECT key, SUM(weight) FROM {permit} GROUP BY key")
    }
    assert all(total <= MOST for total in in_use.values()), in_use
    found = [finding for finding in examine(rig.store, None, QUICK) if finding.severity is Severity.VIOLATION]
    assert found == []
    return in_use


def check_record(rig: Rig, place: Place) -> None:
    """Each job has completed once, in one run; and runs beside each other, but for lost ones, never weighed more than a
    limit. By what the workers noted: their clocks are read before a transaction waits for its turn."""
    needs = {_id(one): needs_of(str(text)) for one, text in rig.execute("SELECT id, limit_key FROM {job}")}
    ends = rig.execute("SELECT job_id, life, state FROM {outcome}")
    assert sorted(_id(job_id) for job_id, *_ in ends) == sorted(needs)
    assert {(life, state) for _, life, state in ends} == {(1, "completed")}
    kept = {_id(run): _id(job_id) for run, job_id in rig.execute("SELECT id, job_id FROM {run} WHERE state <> 'lost'")}
    assert sorted(kept.values()) == sorted(needs)

    beside, seen, highest = set[bytes](), set[bytes](), 0
    for one in history.events(place.history):
        runs = {UUID(run).bytes for run in one["runs"]} & kept.keys()
        beside = beside | runs if one["event"] == "start" else beside - runs
        in_use = Counter[str]()
        for run in beside:
            in_use.update(dict(needs[kept[run]]))
        highest = max([highest, *in_use.values()])
        assert highest <= MOST, (one, in_use)
        seen |= runs
    assert (seen, beside, highest) == (set(kept), set[bytes](), MOST)


def _id(value: object) -> bytes:
    """PostgreSQL's driver makes a UUID of it."""
    return value.bytes if isinstance(value, UUID) else bytes(cast("bytes", value))


def live(rig: Rig) -> int:
    [(count,)] = rig.execute("SELECT COUNT(*) FROM {ready}")
    return int(str(count))


def prepared(place: Place) -> Rig:
    rig = Rig(place.url)
    rig.store.upgrade()
    rules = [LimitRule("tenant", "at_once", MOST), LimitRule("gpu", "at_once", MOST)]
    rig.store.declare_limits(rules, ["contract"], rig.now)
    return rig


@pytest.mark.timeout(1_800)
def test_limits_hold_while_workers_are_killed(place: Place, databases: Databases) -> None:
    kills = 210 if SIZE == "full" else max(5, 24 // databases.thrift)
    chance = random.Random(7)
    rig = prepared(place)
    highest, pause = 0, threading.Event()
    with killed(place) as workers:
        while workers.kills < kills or (
            highest < MOST and workers.kills < 5 * kills
        ):  # few looks may not see it used up
            if live(rig) < ENOUGH:
                enqueue(rig, ENOUGH, chance)
            pause.wait(chance.uniform(0.02, 0.15))  # kills must come at any point of a turn
            highest = max([highest, *look(rig).values()])
            workers.kill_one(chance.randrange(WORKERS))
            look(rig)
        while live(rig):
            pause.wait(0.05)
            look(rig)
    print(f"{workers.kills} kills")  # noqa: T201 - shown with -s
    assert highest == MOST
    assert look(rig) == {}
    assert rig.execute("SELECT COUNT(*) FROM {permit}") == [(0,)]
    check_record(rig, place)
    rig.close()


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("databases", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
def test_limits_hold_while_connections_are_cut(place: Place, databases: Databases) -> None:
    """Every tenth of a second all workers lose theirs, in the middle of a turn or of its commit."""
    wanted = 1_000 if SIZE == "full" else 60
    chance = random.Random(11)
    rig = prepared(place)
    cuts, pause = 0, threading.Event()
    theirs = place._replace(url=f"{place.url}{'&' if '?' in place.url else '?'}application_name=cut")
    with killed(theirs), psycopg.connect(place.url, autocommit=True) as server:
        while cuts < wanted:
            if live(rig) < ENOUGH:
                enqueue(rig, ENOUGH, chance)
            pause.wait(0.1)  # they must have the time to connect and begin
            cuts += server.execute(CUT).rowcount
            look(rig)
        while live(rig):
            pause.wait(0.05)
            look(rig)
    assert look(rig) == {}
    check_record(rig, place)
    rig.close()


CUT = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE application_name = 'cut' AND datname = current_database()
"""


def worked_off(rig: Rig, place: Place, *, wakes: bool) -> None:
    """By a worker that ends when it finds nothing."""
    worker = forked.Process(target=points.end_limited, args=(place, NodeId(rig.ids.new()), wakes, True))
    worker.start()
    ended(worker)
    assert worker.exitcode == 0
    worker.close()


def test_without_the_wake_jobs_are_stranded_and_the_doctor_says_so(place: Place) -> None:
    rig = prepared(place)
    enqueue(rig, 300, random.Random(3))
    for _ in range(3):
        worked_off(rig, place, wakes=False)

    assert live(rig) > 0
    assert "line_asleep" in {finding.name for finding in examine(rig.store)}
    rig.store.repair("wake_lines", rig.now, rig.ids, 500)
    worked_off(rig, place, wakes=True)
    assert live(rig) == 0
    rig.close()
