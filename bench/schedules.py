"""The rows about schedules: what a tick costs with 10,000 of them, how late a busy worker is, what they cost a drain.

Run as a module it is a process of one of these rows: `python -m bench.schedules busy PATH` is a worker that is never
idle; `… with PATH` and `… without PATH` drain a file of their own and print how many jobs a second that were.
"""

from __future__ import annotations

import gc
import logging
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import NamedTuple

from bench import drain
from bench.floor import Floor, LaidOut, changed, insert_into, same_shape
from bench.measure import ROOT, in_turns, middle_half, percentile, scratch_folder
from bench.report import Figure, Target, at_least, at_most, compared
from bench.sample import QUEUE, Columns, Desk, Sample, arguments, only_row
from perdure import JobContext, Perdure
from perdure.clock import ManualClock, Micros
from perdure.schedule.scheduler import AT_ONCE, Scheduler
from perdure.schedules import LAST

SCHEDULES = 10_000
GROUPS = 10
"""Every minute another tenth of the schedules is due."""
DUE = SCHEDULES // GROUPS
LOOKS = 50
TICK_ROUNDS = 21
START = datetime(2030, 1, 1, tzinfo=UTC)

BUSY_S = 30.0
BACKLOG = 2_000
EACH_SECOND = 10
APART_S = 2.0
"""From the worker's start to the first instant that counts, and from the last one to its end."""

PAIRS = 11
"""Of drains. The target is close to 1, so there are more of them than in the row about the drain."""


# -- a tick ----------------------------------------------------------------------------------------------------------


def ticks(rounds: int) -> list[Figure]:
    """A tick with 1,000 due schedules, beside the same rows by the bare driver; and one with nothing due."""
    rounds = min(rounds, TICK_ROUNDS)
    with scratch_folder() as folder:
        made = folder / "ours.db"
        make_schedules(made)
        shutil.copy(made, folder / "floor.db")
        ours, floor = Ticker(made), TickFloor(folder / "floor.db", *_take_sample(folder / "sample.db"))
        idle: list[float] = []

        def tick() -> float:
            taken = ours.tick()
            idle.extend(ours.idle_ms() for _ in range(LOOKS))
            return taken

        measured = in_turns(tick, floor.tick, rounds)
        ours.close()
        floor.close()
        same_shape(made, floor.path, ("schedule", "slot", "job", "ready"))
    seconds, bare = map(statistics.median, measured)
    return [
        Figure(
            "tick",
            f"a tick with {DUE:,} of {SCHEDULES:,} schedules due",
            seconds,
            "s",
            middle_half(measured.ours),
            f"{DUE / seconds:,.0f} slots/s",
            f"floor {bare:.3f} s, {DUE / bare:,.0f} slots/s",
            at_most(1, "s"),
            rounds=measured._asdict(),
        ),
        Figure(
            "tick-idle",
            f"… with none of {SCHEDULES:,} due",
            statistics.median(idle),
            "ms",
            middle_half(idle),
            f"p99 {percentile(idle, 99):.2f} ms",
            f"{len(idle):,} looks",
            at_most(5, "ms"),
            rounds={"idle_ms": idle},
        ),
    ]


def make_schedules(path: Path) -> None:
    """One of each group by the API, the others copied from it."""
    desk = Desk(path, ManualClock(START))
    for group in range(GROUPS):
        desk.app.schedules.put(f"s{group}", f"{group}-59/{GROUPS} * * * *", kind=desk.kind, payload=arguments())
    desk.close()
    _multiply(path, SCHEDULES // GROUPS)


def _multiply(path: Path, times: int) -> None:
    """Copies of every schedule, with ids and names of their own."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        names = [str(row[1]) for row in connection.execute("PRAGMA table_info(perdure_schedule)")]
        own = {"id": "randomblob(16)", "name": "s.name || '-' || n.i"}
        connection.execute(
            f"""INSERT INTO perdure_schedule ({", ".join(names)})
            WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
            SELECT {", ".join(own.get(name, f"s.{name}") for name in names)} FROM perdure_schedule AS s, n
            WHERE i < ?""",
            (times, times),
        )


class Ticker:
    """A worker's part in schedules, without the worker. Each tick is a minute after the one before."""

    def __init__(self, path: Path) -> None:
        self._clock = ManualClock(START)
        self._desk = Desk(path, self._clock)
        parts = self._desk.app.parts()
        self._scheduler = Scheduler(parts.store, parts.clock, parts.ids, parts.owner, parts.declared)
        self._scheduler.look(self._desk.node)

    def tick(self) -> float:
        """Seconds. Before that, and not timed, the jobs of the tick before are completed."""
        self._desk.finish(self._desk.claim(DUE))
        self._clock.advance(minutes=1)
        return _seconds(self._take_all)

    def _take_all(self) -> None:
        made = self._scheduler.look(self._desk.node)
        while self._scheduler.rest_s() == 0:
            made += self._scheduler.look(self._desk.node)
        assert made == DUE, f"{made} of {DUE} slots were taken"

    def idle_ms(self) -> float:
        began = time.perf_counter()
        self._scheduler.look(self._desk.node)
        return (time.perf_counter() - began) * 1e3

    def close(self) -> None:
        self._desk.close()


class LaidOutSlot(NamedTuple):
    """All that one due schedule leaves: how its row changes, its slot, and its job."""

    change: tuple[object, ...]
    slot: tuple[object, ...]
    job: LaidOut


_DUE = "SELECT id, next_trigger_at FROM perdure_schedule WHERE enabled = 1 AND next_trigger_at <= ?"
_MOVE_ON = """
UPDATE perdure_schedule SET next_trigger_at = ?, last_trigger_at = ?, version = version + 1 WHERE id = ?
"""


class TickFloor(Floor):
    """The same rows in the same batches. Which schedules are due, and for when next, is known beforehand."""

    def __init__(self, path: Path, sample: Sample, slot: Columns) -> None:
        super().__init__(path, sample)
        self._slot = slot
        self._insert_slot = insert_into("slot", slot)
        self._clock = ManualClock(START)
        self._connection.execute("INSERT INTO perdure_queue (name, next_position) VALUES (?, 100)", (QUEUE,))

    def tick(self) -> float:
        """Seconds. Before that, and not timed, the jobs of the tick before are removed and all rows laid out."""
        self._connection.execute("DELETE FROM perdure_ready")
        self._clock.advance(minutes=1)
        slots = self._lay_out_slots(self._clock.now())
        batches = [slots[first : first + AT_ONCE] for first in range(0, len(slots), AT_ONCE)]
        return _seconds(lambda: [self._fire(batch) for batch in batches])

    def _lay_out_slots(self, now: Micros) -> list[LaidOutSlot]:
        due = self._connection.execute(_DUE, (now,)).fetchall()
        return [self._laid_out_slot(schedule, at, now) for schedule, at in due]

    def _laid_out_slot(self, schedule: bytes, at: int, now: Micros) -> LaidOutSlot:
        job_id, later = self._ids.new(), at + GROUPS * 60_000_000
        facts = {"schedule_id": schedule, "scheduled_for": at, "created_at": now, "run_at": now, "queued_at": now}
        around = {"job_id": job_id, "previous_at": at - GROUPS * 60_000_000, "following_at": later}
        slot = changed(self._slot, facts | around)
        return LaidOutSlot((later, at, schedule), slot, self._laid_out(job_id, facts | {"updated_at": now}))

    def _fire(self, slots: list[LaidOutSlot]) -> None:
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(_MOVE_ON, [slot.change for slot in slots])
        connection.executemany(self._insert_slot, [slot.slot for slot in slots])
        self._insert([slot.job for slot in slots])
        connection.execute("COMMIT")
        self._committed()


def _take_sample(path: Path) -> tuple[Sample, Columns]:
    """The rows that one due schedule leaves."""
    clock = ManualClock(START)
    desk = Desk(path, clock)
    desk.app.schedules.put("s", f"*/{GROUPS} * * * *", kind=desk.kind, payload=arguments())
    clock.advance(minutes=GROUPS)
    parts = desk.app.parts()
    Scheduler(parts.store, parts.clock, parts.ids, parts.owner, parts.declared).look(desk.node)
    desk.close()
    return Sample(only_row(path, "job"), only_row(path, "ready"), {}, {}), only_row(path, "slot")


def _seconds(work: Callable[[], object]) -> float:
    gc.collect()
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def profile_tick(path: Path) -> Callable[[], object]:
    make_schedules(path)
    ticker = Ticker(path)
    ticker.tick()
    return ticker.tick


# -- lateness --------------------------------------------------------------------------------------------------------


def lateness(_rounds: int) -> list[Figure]:
    """From a planned instant until a worker whose places are never free takes it."""
    with scratch_folder() as folder:
        app = _busy_app(folder / "jobs.db")
        for number in range(EACH_SECOND):
            start = datetime.now(UTC) + timedelta(seconds=number / EACH_SECOND)
            app.schedules.put(f"s{number}", every=1, start=start, kind="tick", overlap="allow")
        app.kinds.get("again").enqueue_many([{}] * BACKLOG)
        begin, end = _be_busy(folder / "jobs.db")
        waits = [wait for one in app.schedules.list() for wait in _waits_ms(app, one.id.bytes, begin, end)]
        app.close()
        starts = _starts_ms(folder / "jobs.db", begin, end)
        done = _ended(folder / "jobs.db", begin, end) / BUSY_S
    assert len(waits) >= EACH_SECOND * (BUSY_S - 1), f"only {len(waits)} instants were taken or recorded"
    beside = f"{len(waits)} instants, {done:,.0f} jobs/s beside"
    what = "a slot on a worker that is never idle"
    return [
        _late("lateness", f"{what}, p50", waits, 50, beside, None),
        _late("lateness-p99", f"{what}, p99", waits, 99, beside, at_most(250, "ms")),
        _late("lateness-start", "… until its job starts, p99", starts, 99, f"{len(starts)} runs", None),
    ]


def _late(name: str, what: str, waits: list[float], percent: int, beside: str, target: Target | None) -> Figure:
    shown = f"max {max(waits):.1f} ms"
    value = percentile(waits, percent)
    return Figure(name, what, value, "ms", middle_half(waits), shown, beside, target, rounds={"waits_ms": waits})


def _be_busy(path: Path) -> tuple[int, int]:
    """A worker for some time; answers from when to when, without its start and its end."""
    command = [sys.executable, "-m", "bench.schedules", "busy", str(path)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        time.sleep(APART_S)
        begin = time.time_ns() // 1_000
        time.sleep(BUSY_S + APART_S)
        return begin, begin + round(BUSY_S * 1e6)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def _waits_ms(app: Perdure, schedule_id: bytes, begin: int, end: int) -> list[float]:
    """How late each instant was taken, or recorded because a newer one had come."""
    taken = [(slot.scheduled_for, slot.created_at, 1) for slot in app.store.slots(schedule_id, LAST, 100_000)]
    missed = [
        (one.first_at, one.recorded_at, one.instants or 1) for one in app.store.missed(schedule_id, LAST, 100_000)
    ]
    return [(late - at) / 1e3 for at, late, times in taken + missed if begin <= at < end for _ in range(times)]


def _starts_ms(path: Path, begin: int, end: int) -> list[float]:
    """From the instant to the start of the run: a slot's own time is that of the look, before its transaction."""
    sql = """
        SELECT (r.started_at - j.scheduled_for) / 1e3
        FROM perdure_slot AS s JOIN perdure_job AS j ON j.id = s.job_id JOIN perdure_run AS r ON r.job_id = j.id
        WHERE j.scheduled_for >= ? AND j.scheduled_for < ?
    """
    with closing(sqlite3.connect(path)) as connection:
        return [float(wait) for (wait,) in connection.execute(sql, (begin, end))]


def _ended(path: Path, begin: int, end: int) -> int:
    with closing(sqlite3.connect(path)) as connection:
        sql = "SELECT COUNT(*) FROM perdure_outcome WHERE finished_at BETWEEN ? AND ?"
        return int(connection.execute(sql, (begin, end)).fetchone()[0])


# -- beside a drain --------------------------------------------------------------------------------------------------


def beside_a_drain(rounds: int) -> list[Figure]:
    """The same drain in a file with 10,000 schedules, none of them due, and in one without, in turns."""
    with scratch_folder() as folder:
        numbers = count()

        def measured(side: str) -> float:
            command = [sys.executable, "-m", "bench.schedules", side, str(folder / f"{next(numbers)}.db")]
            return float(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)

        pairs = in_turns(lambda: measured("with"), lambda: measured("without"), min(rounds, PAIRS))
    what = f"drain of {drain.JOBS:,} async jobs beside {SCHEDULES:,} schedules"
    return [compared("drain-schedules", what, pairs, at_least(0.97, "without"), "without")]


# -- the processes ---------------------------------------------------------------------------------------------------


def main(side: str, path: Path) -> None:
    logging.disable(logging.CRITICAL)
    if side == "busy":
        with _busy_app(path).worker(concurrency=drain.CONCURRENCY).running():
            print("ready", flush=True)
            signal.pause()
    _plan_next_year(path)
    if side == "without":
        _forget_all(path)
    print(drain.perdure(path, drain.JOBS, "async"))


def _busy_app(path: Path) -> Perdure:
    app = Perdure(path)

    @app.job
    async def again(ctx: JobContext) -> None:
        ctx.enqueue(again)

    @app.job(priority=1)
    async def tick() -> None: ...

    return app


def _plan_next_year(path: Path) -> None:
    """Both sides do so: else one of them would begin with a file, and with code, that has been used before."""
    app = _busy_app(path)
    for number in range(GROUPS):
        app.schedules.put(f"s{number}", at=datetime.now(UTC) + timedelta(days=365), kind="tick")
    app.close()
    _multiply(path, SCHEDULES // GROUPS)


def _forget_all(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("DELETE FROM perdure_schedule")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
