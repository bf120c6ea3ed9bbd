"""Connections that the server ends again and again."""

from __future__ import annotations

import time

import psycopg

from perdure.clock import SystemClock
from tests.outages.company import Company, heard, stopped
from tests.outages.postgres import Postgres

EVERY_S = 0.05
TERMINATE = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'perdure'"


def test_backends_that_are_terminated_all_the_time_lose_nothing(
    server: Postgres, company: Company, full_size: bool
) -> None:
    enqueuer = company.start("enqueue", "shop")
    assert heard(enqueuer) == "ready"
    company.hire(2)
    company.all_work(0, within_s=60)
    ended, until = 0, time.monotonic() + (60 if full_size else 4)
    with psycopg.connect(server.url, autocommit=True) as connection:
        while time.monotonic() < until:
            ended += len(connection.execute(TERMINATE).fetchall())
            SystemClock().wait(EVERY_S)
    company.all_work(len(company.starts()))
    enqueued, _ = map(int, stopped(enqueuer))
    company.rest()
    company.check()
    assert ended > 20
    assert enqueued > 0
