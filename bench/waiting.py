"""Rows about waiting: from enqueue to start, from a killed worker to the next start, and what idling costs.

Run as a module it is a worker process: `python -m bench.waiting URL`. Its handler prints when it started, by
CLOCK_MONOTONIC, which all processes of a machine share. `python -m bench.waiting URL bare` does the same with nothing
but psycopg.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

from bench.floor_postgres import Enqueuer, listen
from bench.measure import ROOT, middle_half, percentile, scratch_folder
from bench.report import Figure, Target, at_most
from perdure import JobContext, Perdure
from perdure.kind import Kind
from tests.postgres.proxy import proxy_to
from tests.postgres_server import running

ASKED = 300
PAUSE_S = 0.005  # the worker has gone to sleep again
ASKED_ASLEEP, REST_S = 100, 0.15
KILLS = 5
IDLE_S, IDLE_ASKING_S = 10.0, 20.0


def latency(_rounds: int) -> list[Figure]:
    """From the call of enqueue until the handler's first line, beside an idle worker."""
    return [
        *_figures("same", "enqueue → start, worker in the same process", _same_process(), 2),
        *_figures("other", "enqueue → start, worker in another process", _another_process(), 6),
    ]


def _figures(name: str, what: str, waits: list[float], p50: float, beside: str = "") -> list[Figure]:
    shown = f"p50 {percentile(waits, 50):.2f} ms, max {max(waits):.1f} ms"
    spread = middle_half(waits)
    few = beside or f"{len(waits)} enqueues"
    return [
        Figure(f"latency-{name}", f"{what}, p50", percentile(waits, 50), "ms", spread, shown, few, at_most(p50, "ms")),
        Figure(
            f"latency-{name}-p99", f"{what}, p99", percentile(waits, 99), "ms", spread, shown, few, at_most(20, "ms")
        ),
    ]


def _same_process() -> list[float]:
    starts: SimpleQueue[int] = SimpleQueue()
    with scratch_folder() as folder:
        app = Perdure(folder / "jobs.db")

        @app.job
        async def touch() -> None:
            starts.put(time.monotonic_ns())

        with app.worker().running():
            return [waited_until(touch.enqueue, starts.get) for _ in range(ASKED)]


def _another_process() -> list[float]:
    with scratch_folder() as folder:
        app = Perdure(folder / "jobs.db")
        touch = declared(app, sys.stdout)
        with _worker(folder / "jobs.db") as (_, lines):
            return [_waited(touch.enqueue, lines) for _ in range(ASKED)]


def _waited(enqueue: Callable[[], object], lines: IO[str], pause_s: float = PAUSE_S) -> float:
    """In milliseconds, until the handler in the process that prints these lines."""
    return waited_until(enqueue, lambda: int(lines.readline().split()[1]), pause_s)


def waited_until(enqueue: Callable[[], object], started: Callable[[], int], pause_s: float = PAUSE_S) -> float:
    """In milliseconds, from the call of `enqueue` until what `started` returns; after a pause."""
    time.sleep(pause_s)
    asked = time.monotonic_ns()
    enqueue()
    return (started() - asked) / 1e6


def latency_postgres(_rounds: int) -> list[Figure]:
    """The same on PostgreSQL, with `fsync` on: to a worker that has a job every few ms, and to one that sleeps."""
    with _postgres() as url:
        app = Perdure(url)
        touch = declared(app, sys.stdout)
        with _worker(url) as (_, lines):
            busy = [_waited(touch.enqueue, lines) for _ in range(ASKED)]
            asleep = [_waited(touch.enqueue, lines, REST_S) for _ in range(ASKED_ASLEEP)]
        app.close()
        with Enqueuer(url) as bare, _worker(url, "bare") as (_, lines):
            floor = [_waited(bare.enqueue, lines) for _ in range(ASKED)]
    beside = (
        f"bare psycopg p50 {percentile(floor, 50):.2f} ms, p99 {percentile(floor, 99):.1f} ms, max {max(floor):.1f} ms"
    )
    return [
        *_figures("postgres", "enqueue → start on PostgreSQL, other process", busy, 5, beside),
        *_figures("postgres-asleep", "the same, worker asleep for a while", asleep, 5, beside),
    ]


def idle_postgres(_rounds: int) -> list[Figure]:
    """What a worker with nothing to do asks of its server."""
    with _postgres() as url, proxy_to(url) as proxy, _worker(proxy.url):
        time.sleep(IDLE_S / 2)
        before = proxy.statements
        time.sleep(IDLE_ASKING_S)
        asked = (proxy.statements - before) / IDLE_ASKING_S
    return [_single("idle-postgres", "idle worker on PostgreSQL, statements", asked, "/s", 2, IDLE_ASKING_S)]


@contextmanager
def _postgres() -> Generator[str, None, None]:
    with running() as server:
        server.execute("ALTER SYSTEM SET fsync = on")
        server.execute("SELECT pg_reload_conf()")
        url = server.new_database()
        Perdure(url, auto_migrate=True).store.upgrade()
        yield url


def rescue(_rounds: int) -> list[Figure]:
    """A worker is killed with SIGKILL in the middle of a job; a second one beside it starts the job again."""
    waits: list[float] = []
    for number in range(KILLS):
        with scratch_folder() as folder:
            app = Perdure(folder / "jobs.db")
            hold = declared_hold(app, sys.stdout)
            with _worker(folder / "jobs.db") as (first, first_lines):
                hold.enqueue()
                first_lines.readline()
                with _worker(folder / "jobs.db") as (_, second_lines):
                    time.sleep(1 + number / KILLS)  # it looks for the dead when it starts, then about once a second
                    killed = time.monotonic_ns()
                    os.kill(first.pid, signal.SIGKILL)
                    waits.append((int(second_lines.readline().split()[1]) - killed) / 1e9)
    worst = max(waits)
    return [
        Figure(
            "rescue",
            "a killed worker's job starts again on the same host",
            worst,
            "s",
            middle_half(waits),
            f"slowest of {KILLS}",
            f"fastest {min(waits):.2f} s",
            at_most(2, "s"),
        )
    ]


def idle(_rounds: int) -> list[Figure]:
    """What a worker with nothing to do takes."""
    with scratch_folder() as folder:
        app = Perdure(folder / "jobs.db")
        touch = declared(app, sys.stdout)
        with _worker(folder / "jobs.db") as (process, lines):
            touch.enqueue()
            lines.readline()
            before = _cpu_s(process.pid)
            time.sleep(IDLE_S)
            share = (_cpu_s(process.pid) - before) / IDLE_S * 100
            megabytes = _resident_mb(process.pid)
    return [
        _single("idle-cpu", "idle worker, of a core", share, "%", 1),
        _single("idle-memory", "idle worker, resident", megabytes, "MB", 90),
    ]


def _single(name: str, what: str, value: float, unit: str, bound: float, over_s: float = IDLE_S) -> Figure:
    target = Target(bound, False, f"< {bound:g} {unit}")
    return Figure(name, what, value, unit, (value, value), f"over {over_s:g} s", "", target)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize() / 1e6


# -- the worker process ----------------------------------------------------------------------------------------------


@contextmanager
def _worker(path: Path | str, *how: str) -> Generator[tuple[subprocess.Popen[str], IO[str]], None, None]:
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.waiting", str(path), *how], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield process, process.stdout
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def declared(app: Perdure, to: IO[str]) -> Kind[[], None, ..., Any]:
    @app.job(name="touch")
    async def touch() -> None:
        print("touch", time.monotonic_ns(), file=to, flush=True)

    return touch


def declared_hold(app: Perdure, to: IO[str]) -> Kind[[], None, ..., Any]:
    @app.job(name="hold")
    def hold(ctx: JobContext) -> None:
        print("hold", time.monotonic_ns(), file=to, flush=True)
        while not ctx.should_stop:
            time.sleep(0.01)

    return hold


def main(url: str, how: str = "") -> None:
    logging.disable(logging.CRITICAL)
    if how == "bare":
        listen(url, sys.stdout)
    app = Perdure(url)
    declared(app, sys.stdout)
    declared_hold(app, sys.stdout)
    with app.worker().running():
        print("ready", flush=True)
        signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
