"""Rows about database servers: a drain on PostgreSQL beside PgQueuer, Procrastinate and the floor, enqueueing, depth,
several workers; a drain and depth on MariaDB.

All sides use one server, which the row starts, with `fsync` on and its files on a disk; each round has a database of
its own. Run as a module it is one side of the drain: `python -m bench.servers perdure|floor|pgqueuer-500|procrastinate
URL JOBS` drains a thousand jobs to warm up, then that many, and prints how many a second that were.
"""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import psycopg

from bench.depth import CHUNK, FEW, ROOM, Jobs, cost_us, microseconds
from bench.enqueue import SINGLES, THREADS, enqueue_each, together
from bench.floor_postgres import PostgresFloor
from bench.measure import ROOT, Rounds, in_turns, rate
from bench.report import Figure, at_least, at_most, compared, ratio_figure
from bench.sample import QUEUE, Desk, arguments
from perdure import Perdure
from tests import mariadb_server, postgres_server
from tests.mariadb_server import MariaDBServer
from tests.postgres_server import PostgresServer

JOBS = 20_000
SHARED_JOBS = 60_000
"""For several workers: enough that their start and stop are a small part."""
CONCURRENCY = 500
ROUNDS = 5
PGQUEUERS = ("pgqueuer-100", "pgqueuer-500", "pgqueuer-1000")  # by batch size; the best of them is the one to beat
PROCRASTINATE_JOBS = 3_000  # it keeps its pace however many there are; more would only take longer
PROCRASTINATE_TASKS = 20
PER_CALL = 1_000
WARM_UP = 1_000
"""Jobs that each side drains before it is timed: what is loaded, connected and planned once does not count."""
WORKERS = 4
DISK = Path("/var/tmp")


@contextmanager
def server() -> Generator[PostgresServer, None, None]:
    with postgres_server.running(folder=DISK) as started:
        yield started


# -- drain -----------------------------------------------------------------------------------------------------------


def drain(_rounds: int) -> list[Figure]:
    """Async no-ops, one worker process, every audit row."""
    with server() as started:
        sides = {side: list[float]() for side in (*PGQUEUERS, "procrastinate", "floor", "perdure")}
        for _ in range(ROUNDS):
            for side, rates in sides.items():
                jobs = PROCRASTINATE_JOBS if side == "procrastinate" else JOBS
                rates.append(_asked(side, started.new_database(), jobs))
    best = max(PGQUEUERS, key=lambda side: median(sides[side]))
    ours = sides["perdure"]
    what = f"PostgreSQL: drain of {JOBS:,} no-op async jobs"
    pgqueuer = f"PgQueuer (batches of {best.removeprefix('pgqueuer-')})"
    return [
        compared("drain-postgres", what, Rounds(ours, sides[best]), at_least(1.2, "PgQueuer"), pgqueuer),
        compared(
            "drain-postgres-procrastinate",
            "… beside Procrastinate",
            Rounds(ours, sides["procrastinate"]),
            at_least(5, "Procrastinate"),
            "Procrastinate",
        ),
        compared(
            "drain-postgres-floor", "… beside the bare driver", Rounds(ours, sides["floor"]), at_least(0.6, "floor")
        ),
    ]


def drain_mariadb(_rounds: int) -> list[Figure]:
    """The same on MariaDB, beside our own drain on PostgreSQL."""
    with server() as postgres, mariadb_server.running(folder=DISK) as mariadb:
        rates = Rounds([], [])
        for _ in range(ROUNDS):
            urls = (mariadb.new_database(), postgres.new_database())
            for side, url in zip(rates, urls, strict=True):
                side.append(_asked("perdure", url, JOBS))
    what = f"MariaDB: drain of {JOBS:,} no-op async jobs"
    return [compared("drain-mariadb", what, rates, at_least(0.4, "PostgreSQL"), "PostgreSQL")]


def workers(_rounds: int) -> list[Figure]:
    """Several worker processes on one queue, each job once."""
    with server() as started:
        rates = Rounds([], [])
        for _ in range(ROUNDS):
            for side, count in zip(rates, (WORKERS, 1), strict=True):
                side.append(_drained_by(count, started.new_database()))
    what = f"PostgreSQL: {WORKERS} worker processes drain {SHARED_JOBS:,} jobs"
    return [compared("workers-postgres", what, rates, at_least(1, "one"), "one")]


def _drained_by(count: int, url: str) -> float:
    """All workers wait for a line on their input, so that the start of Python is not timed. Registering, the first
    statements of each connection and the end of each process are."""
    fill(Perdure(url, auto_migrate=True), SHARED_JOBS)
    command = [sys.executable, "-m", "bench.servers", "worker", url, "0"]
    processes = [
        subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(count)
    ]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    started = time.perf_counter()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        process.communicate()
    taken = time.perf_counter() - started
    _each_ran_once(url, SHARED_JOBS)
    return SHARED_JOBS / taken


def _each_ran_once(url: str, jobs: int) -> None:
    sql = "SELECT count(*), count(DISTINCT job_id), (SELECT count(*) FROM perdure.outcome) FROM perdure.run"
    with psycopg.connect(url) as connection:
        found = connection.execute(sql).fetchone()
    if found != (jobs, jobs, jobs):
        raise SystemExit(f"Not every one of {jobs} jobs ran once: runs, jobs with runs and ends are {found}.")


def _asked(side: str, url: str, jobs: int) -> float:
    command = [sys.executable, "-m", "bench.servers", side, url, str(jobs)]
    return float(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)


# -- enqueue_many ----------------------------------------------------------------------------------------------------


def many(rounds: int) -> list[Figure]:
    """A thousand jobs in a call, beside PgQueuer's bulk form of enqueue."""
    with server() as started, asyncio.Runner() as runner:
        desk = Desk(started.new_database())
        queries = runner.run(_pgqueuer_queries(started.new_database()))
        batch = [arguments()] * PER_CALL
        payload = str(arguments()).encode()
        names: list[Any] = [["noop"] * PER_CALL, [payload] * PER_CALL, [0] * PER_CALL]
        measured = in_turns(
            lambda: rate(PER_CALL, lambda: desk.kind.enqueue_many(batch)),
            lambda: rate(PER_CALL, lambda: runner.run(queries.enqueue(*names))),
            rounds,
        )
        desk.close()
    what = f"PostgreSQL: enqueue_many, {PER_CALL:,} a call"
    return [compared("many-postgres", what, measured, at_least(0.8, "PgQueuer"), "PgQueuer")]


def threads(rounds: int) -> list[Figure]:
    """Sixteen threads share commits; compared with one thread."""
    with server() as started:
        many, one = Desk(started.new_database()), Desk(started.new_database())
        enqueue_each(many, SINGLES)  # connected, and planned
        measured = in_turns(lambda: together(many), lambda: rate(SINGLES, lambda: enqueue_each(one, SINGLES)), rounds)
        many.close()
        one.close()
    what = f"PostgreSQL: enqueue from {THREADS} threads"
    return [compared("threads-postgres", what, measured, at_least(2, "one thread"), "one thread")]


# -- depth -----------------------------------------------------------------------------------------------------------


def depth(rounds: int, jobs: Jobs) -> list[Figure]:
    """The median cost of a claim of ten, in its own transaction, in both databases in turns."""
    with server() as started:
        deep, few = _filled(started.new_database(), jobs), _filled(started.new_database(), FEW)
        return [_claim_cost("depth-postgres", "PostgreSQL", deep, few, rounds, jobs)]


def depth_mariadb(rounds: int, jobs: Jobs) -> list[Figure]:
    """The same on MariaDB."""
    with mariadb_server.running(folder=DISK) as started:
        deep, few = (_filled_mariadb(started, number) for number in (jobs, FEW))
        return [_claim_cost("depth-mariadb", "MariaDB", deep, few, rounds, jobs)]


def _claim_cost(name: str, database: str, deep_url: str, few_url: str, rounds: int, jobs: Jobs) -> Figure:
    deep, few = Desk(deep_url), Desk(few_url)
    measured = in_turns(lambda: cost_us(deep), lambda: cost_us(few), rounds)
    deep.close()
    few.close()
    target = at_most(1.3, "× with 1 k jobs")
    return ratio_figure(name, f"{database}: claim of {ROOM}: {jobs}", measured, target, "1 k queued", microseconds)


def _leave_rows(url: str) -> None:
    """One job goes all the way and leaves its rows, another waits."""
    desk = Desk(url)
    desk.kind.enqueue_many([arguments()])
    desk.finish(desk.claim(1))
    desk.kind.enqueue_many([arguments()])
    desk.close()


def _filled(url: str, jobs: Jobs) -> str:
    """The other jobs are copies of what two have left, with ids and places of their own."""
    _leave_rows(url)
    with psycopg.connect(url, autocommit=True) as connection:
        kept = "SELECT * FROM (SELECT * FROM perdure.{0} WHERE {1} LIMIT 1) AS one"
        live, ended = ("IN (SELECT job_id FROM perdure.ready)", "NOT IN (SELECT job_id FROM perdure.ready)")
        connection.execute(f"CREATE TEMP TABLE a_ready AS {kept.format('ready', 'true')}".encode())
        connection.execute(f"CREATE TEMP TABLE a_job AS {kept.format('job', f'id {live}')}".encode())
        for table in ("run", "outcome"):
            connection.execute(f"CREATE TEMP TABLE a_{table} AS {kept.format(table, f'job_id {ended}')}".encode())
        first_queued = jobs.finished + jobs.scheduled
        _copy(connection, "job", {"id": _NTH}, range(sum(jobs)))
        _copy(connection, "run", {"id": _NTH, "job_id": _NTH}, range(jobs.finished))
        _copy(connection, "outcome", {"job_id": _NTH}, range(jobs.finished))
        place = {"job_id": _NTH, "position": "nextval('perdure.position')"}
        later = {**place, "state": "'scheduled'", "run_at": "run_at + 31536000000000"}
        _copy(connection, "ready", later, range(jobs.finished, first_queued))
        _copy(connection, "ready", place, range(first_queued, sum(jobs)))
        connection.execute("VACUUM ANALYZE")
    return url


_NTH = "left(lpad(to_hex(i / 4 + 1577836800000), 12, '0') || '700' || i % 4 || '8000' || md5(i::text), 32)::uuid"
"""A UUIDv7 that rises with the number: four a millisecond, the other bits scattered."""


def _copy(connection: psycopg.Connection[Any], table: str, own: dict[str, str], numbers: range) -> None:
    asked = (
        "SELECT column_name FROM information_schema.columns"
        " WHERE table_schema = 'perdure' AND table_name = %s AND is_generated = 'NEVER'"
    )
    names = [name for (name,) in connection.execute(asked, (table,))]
    values = ", ".join(own.get(name, name) for name in names)
    series = f"generate_series({numbers.start}, {numbers.stop - 1}) AS i"
    sql = f"INSERT INTO perdure.{table} ({', '.join(names)}) SELECT {values} FROM a_{table} CROSS JOIN {series}"
    connection.execute(sql.encode())


def _filled_mariadb(started: MariaDBServer, jobs: Jobs) -> str:
    url = started.new_database()
    _leave_rows(url)
    with closing(started.connect(url, autocommit=True)) as connection, connection.cursor() as cursor:
        first_queued = jobs.finished + jobs.scheduled
        place = {"job_id": _NTH_MARIADB, "position": "NEXTVAL(perdure_position)"}
        later = {**place, "state": "'scheduled'", "run_at": "run_at + 31536000000000"}
        for table, own, numbers in (
            ("job", {"id": _NTH_MARIADB}, range(sum(jobs))),
            ("run", {"id": _NTH_MARIADB, "job_id": _NTH_MARIADB}, range(jobs.finished)),
            ("outcome", {"job_id": _NTH_MARIADB}, range(jobs.finished)),
            ("ready", place, range(first_queued, sum(jobs))),
            ("ready", later, range(jobs.finished, first_queued)),  # copies of a queued one too
        ):
            _copy_mariadb(cursor, table, own, numbers)
        for table in ("job", "run", "outcome", "ready"):
            cursor.execute(f"ANALYZE TABLE perdure_{table}")
    return url


_NTH_MARIADB = (
    "UNHEX(LEFT(CONCAT(LPAD(HEX(seq DIV 4 + 1577836800000), 12, '0'), '700', seq % 4, '8000', MD5(seq)), 32))"
)


def _copy_mariadb(cursor: Any, table: str, own: dict[str, str], numbers: range) -> None:
    """A part per transaction, so that the log of what could be rolled back stays short."""
    asked = (
        "SELECT column_name FROM information_schema.columns"
        " WHERE table_schema = DATABASE() AND table_name = %s AND is_generated = 'NEVER'"
    )
    cursor.execute(asked, (f"perdure_{table}",))
    names = [name for (name,) in cursor.fetchall()]
    values = ", ".join(own.get(name, f"one.`{name}`") for name in names)
    columns = ", ".join(f"`{name}`" for name in names)
    cursor.execute(f"CREATE TEMPORARY TABLE one_{table} AS SELECT * FROM perdure_{table} LIMIT 1")
    for first in numbers[::CHUNK]:
        series = f"seq_{first}_to_{min(first + CHUNK, numbers.stop) - 1}"
        cursor.execute(
            f"INSERT INTO perdure_{table} ({columns}) SELECT {values} FROM one_{table} AS one CROSS JOIN {series}"
        )
    cursor.execute(f"DROP TABLE one_{table}")


# -- the processes ---------------------------------------------------------------------------------------------------


def main(side: str, url: str, jobs: int) -> None:
    logging.disable(logging.CRITICAL)
    if side == "worker":
        work(url)
    elif side == "perdure":
        print(perdure(url, jobs))
    elif side == "floor":
        print(floor(url, jobs))
    elif side == "procrastinate":
        print(asyncio.run(procrastinate(url, jobs)))
    else:
        print(asyncio.run(pgqueuer(url, jobs, int(side.removeprefix("pgqueuer-")))))


def perdure(url: str, jobs: int) -> float:
    app = Perdure(url, auto_migrate=True)
    fill(app, WARM_UP)
    app.worker(concurrency=CONCURRENCY).run(until_idle=True)
    fill(app, jobs)
    worker = app.worker(concurrency=CONCURRENCY)
    started = time.perf_counter()
    worker.run(until_idle=True)
    return jobs / (time.perf_counter() - started)


def work(url: str) -> None:
    app = Perdure(url)
    declare(app)
    app.queues.list()  # connected
    worker = app.worker(concurrency=CONCURRENCY)
    print("ready", flush=True)
    sys.stdin.readline()
    worker.run(until_idle=True)


def declare(app: Perdure) -> Any:
    @app.job(queue=QUEUE, name="aside")
    async def aside() -> None: ...

    return aside


def fill(app: Perdure, jobs: int) -> None:
    kind = app.kinds.find("aside") or declare(app)
    for _ in range(0, jobs, 1_000):
        kind.enqueue_many([{}] * 1_000)


def floor(url: str, jobs: int) -> float:
    app = Perdure(url, auto_migrate=True)
    fill(app, WARM_UP)
    bare = PostgresFloor(url)
    bare.drain(CONCURRENCY)
    fill(app, jobs)
    app.close()
    started = time.perf_counter()
    bare.drain(CONCURRENCY)
    taken = time.perf_counter() - started
    bare.close()
    _each_ran_once(url, WARM_UP + jobs)
    return jobs / taken


async def _pgqueuer_queries(url: str) -> Any:
    import asyncpg  # pyright: ignore[reportMissingTypeStubs]
    from pgqueuer.db import AsyncpgDriver
    from pgqueuer.queries import Queries

    queries = Queries(AsyncpgDriver(await asyncpg.connect(url)))
    await queries.install()
    return queries


async def pgqueuer(url: str, jobs: int, batch: int) -> float:
    """PgQueuer on asyncpg, its faster driver, with its own log of every job."""
    from pgqueuer import PgQueuer
    from pgqueuer.types import QueueExecutionMode

    queries = await _pgqueuer_queries(url)

    async def drained(jobs: int) -> float:
        for _ in range(0, jobs, PER_CALL):
            await queries.enqueue(["noop"] * PER_CALL, [None] * PER_CALL, [0] * PER_CALL)
        queue = PgQueuer(queries.driver)

        @queue.entrypoint("noop")
        async def noop(job: Any) -> None: ...

        started = time.perf_counter()
        await queue.qm.run(batch_size=batch, mode=QueueExecutionMode.drain)
        return jobs / (time.perf_counter() - started)

    await drained(WARM_UP)
    return await drained(jobs)


async def procrastinate(url: str, jobs: int) -> float:
    from procrastinate import App, PsycopgConnector

    app = App(connector=PsycopgConnector(conninfo=url))

    @app.task(queue="bench")
    async def noop() -> None: ...

    async with app.open_async():
        await app.schema_manager.apply_schema_async()

        async def drained(jobs: int) -> float:
            for _ in range(0, jobs, PER_CALL):
                await noop.batch_defer_async(*[{}] * PER_CALL)
            started = time.perf_counter()
            await app.run_worker_async(concurrency=PROCRASTINATE_TASKS, wait=False, install_signal_handlers=False)
            return jobs / (time.perf_counter() - started)

        await drained(WARM_UP)
        return await drained(jobs)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
