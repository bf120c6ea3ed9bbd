"""A server that others have set up in their own way, and others who sit on it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from perdure import Perdure
from perdure.ops.status import DEAD_ROWS
from tests import history
from tests.app import by_hand
from tests.outages.company import Company
from tests.outages.programs import declare
from tests.outages.server import Server

CLAIMERS = 16


@pytest.mark.parametrize("isolation", ["serializable", "repeatable read"])
def test_sixteen_claimers_at_a_strict_isolation_take_every_job_once(
    server: Server, company: Company, isolation: str, full_size: bool
) -> None:
    """Also in transactions that the user has begun, which have the strict isolation."""
    server.isolate(isolation)
    app = Perdure(server.url)
    declare(app, company.notes)
    with app.transaction() as tx:
        assert tx.execute(server.isolation).fetchone() == ("read committed",)
    count = 4_000 if full_size else 400
    jobs = app.enqueue_many([app.draft("step", {"n": n}, {}) for n in range(count)])
    with server.user() as user:
        assert answer(user, server.isolation) == (isolation,)
        jobs += [app.enqueue("step", {"n": n}, tx=user) for n in range(20)]
    start = threading.Barrier(CLAIMERS)

    def claim_all(_: int) -> list[bytes]:
        own = Perdure(server.url)
        done: list[bytes] = []
        start.wait()
        while taken := by_hand.claim(own, room=7):
            by_hand.finish(own, taken, by_hand.Completed())
            done += [claim.job_id for claim in taken]
        own.close()
        return done

    with ThreadPoolExecutor(CLAIMERS) as threads:
        shares = list(threads.map(claim_all, range(CLAIMERS)))
    app.close()
    assert sorted(job_id for share in shares for job_id in share) == sorted(job.row.id for job in jobs)
    company.check(handlers_note=False)


def test_a_long_idle_transaction_stops_nobody(server: Server, company: Company, full_size: bool) -> None:
    """It keeps the server from removing dead rows: those of all jobs that have come and gone are passed over.
    PostgreSQL says whose it is."""
    rounds, size = (25, 4_000) if full_size else (5, 400)
    app = company.app
    count = f"SELECT COUNT(*) FROM {history.table_at(server.url, 'job')}"
    with server.user() as idle, idle.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        assert answer(idle, count) == (0,)
        for _ in range(rounds):
            jobs = app.enqueue_many([app.draft("step", {"n": n}, {}) for n in range(size)])
            for job in jobs:
                history.note(company.notes, "enqueued", job=job.id)
            assert app.worker(concurrency=50).run(until_idle=True) == 0
        assert answer(idle, count) == (0,), "it sees what it saw"
        if isinstance(idle, psycopg.Connection):
            named = [found.who for found in app.store.hindrances(0, DEAD_ROWS) if found.sort == "transaction"]
            assert str(idle.info.backend_pid) in named
    assert len(company.starts()) == rounds * size
    company.check()


def answer(connection: Any, question: str) -> object:
    with connection.cursor() as cursor:
        cursor.execute(question)
        return cursor.fetchone()
