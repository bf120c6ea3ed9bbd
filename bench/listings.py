"""The row about looking: first pages of listings, counts and `explain`, in databases full of jobs.

Half of the jobs have ended, the newer half wait. The same rows are in SQLite and in PostgreSQL: those of the file are
copied. A server is started for the row, as the tests start theirs, and gone afterwards.
"""

from __future__ import annotations

import sqlite3
import statistics
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import psycopg

from bench.measure import middle_half, scratch_folder
from bench.questions import build, milliseconds
from bench.report import Figure, at_most
from bench.sample import take_sample
from perdure import Perdure
from perdure.clock import SystemClock
from perdure.store.open import open_store
from perdure.store.rows import JobFilter
from tests.postgres_server import PostgresServer, running

USUAL = 100_000
LARGE = 1_000_000
ROUNDS = 9
SHOWN = 20
"""As many as `perdure jobs` shows."""
TARGET_MS = 20

_RARE = 5
_TABLES = ("job", "ready", "run", "outcome", "queue", "tag")


def looks(rounds: int, jobs: int) -> list[Figure]:
    """The median time of each look, on both databases."""
    with scratch_folder() as folder, running() as server:
        path = _build(folder / "listings.db", jobs)
        sqlite = _figures("SQLite", str(path), min(rounds, ROUNDS), jobs)
        return sqlite + _figures("PostgreSQL", _copied(path, server), min(rounds, ROUNDS), jobs)


def _figures(database: str, url: str, rounds: int, jobs: int) -> list[Figure]:
    app = Perdure(url)
    figures = [_figure(f"{what}, {database}, {jobs:,} jobs", look, rounds) for what, look in _looks(app).items()]
    app.close()
    return figures


def _looks(app: Perdure) -> dict[str, Callable[[], object]]:
    def first(**filters: Any) -> Callable[[], object]:
        return lambda: list(islice(app.jobs(**filters), SHOWN))

    def first_runs(**filters: Any) -> Callable[[], object]:
        return lambda: list(islice(app.runs(**filters), SHOWN))

    deep = next(app.jobs(state="queued", limit=1))  # the newest: nearly all of its queue goes first
    return {
        "jobs()": first(),
        'jobs(state="completed")': first(state="completed"),
        'jobs(state="failed")': first(state="failed"),
        'jobs(state="queued")': first(state="queued"),
        'jobs(queue="rare")': first(queue="rare"),
        'jobs(queue="rare", state="completed")': first(queue="rare", state="completed"),
        'jobs(queue="queue-3")': first(queue="queue-3"),
        'jobs(kind="rare", state="completed")': first(kind="rare", state="completed"),
        'jobs(tag="rare")': first(tag="rare"),
        'runs(kind="rare")': first_runs(kind="rare"),
        'runs(state="failed")': first_runs(state="failed"),
        "queues.list()": app.queues.list,
        "explain, deep in its queue": lambda: app.explain(deep),
        'a page of jobs(owner="nobody"), which fits none': lambda: _one_page(app),
    }


def _one_page(app: Perdure) -> object:
    return app.store.jobs(JobFilter(owner="nobody"), None, SHOWN)


def _figure(what: str, look: Callable[[], object], rounds: int) -> Figure:
    for _ in range(2):
        assert look() is not None
    taken = [milliseconds(look) for _ in range(rounds)]
    middle = statistics.median(taken)
    target = at_most(TARGET_MS, "ms")
    return Figure(
        "listings", what, middle, "ms", middle_half(taken), f"{middle:.1f} ms", "", target, rounds={"ours": taken}
    )


# -- the databases ---------------------------------------------------------------------------------------------------


def _build(path: Path, jobs: int) -> Path:
    rare = jobs // _RARE
    own = {
        "queue": f"CASE WHEN i % {rare} = 7 THEN 'rare' ELSE 'queue-' || (i % 20) END",
        "kind": f"CASE WHEN i % {rare} = 8 THEN 'rare' ELSE 'kind-' || (i % 12) END",
    }
    build(path, jobs // 2, SystemClock().now(), take_sample(path.with_name("sample.db")), own)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(
        "INSERT OR IGNORE INTO perdure_queue (name, next_position) SELECT DISTINCT queue, 100 FROM perdure_job"
    )
    connection.execute("INSERT INTO perdure_tag SELECT id, 'rare' FROM perdure_job WHERE rowid % ? = 9", (rare,))
    connection.close()
    return path


def _copied(path: Path, server: PostgresServer) -> str:
    """The URL of a new database with the same rows."""
    url = server.new_database()
    store = open_store(url)
    store.upgrade()
    store.close()
    source = sqlite3.connect(path)
    with psycopg.connect(url, autocommit=True) as connection:
        for table in _TABLES:
            rows = source.execute(f"SELECT * FROM perdure_{table}")
            names = ", ".join(column[0] for column in rows.description)
            with connection.cursor().copy(f"COPY perdure.{table} ({names}) FROM STDIN".encode()) as copy:
                for row in rows:
                    copy.write_row([value.hex() if isinstance(value, bytes) else value for value in row])
        connection.execute("VACUUM ANALYZE")
    source.close()
    return url
