"""`perdure status` names what keeps PostgreSQL from removing dead rows, where that takes a server set up for it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from perdure import Perdure
from perdure.ops.status import DEAD_ROWS, remedy
from perdure.store.rows import Hindrance
from tests.faults.scene import until
from tests.outages.postgres import Postgres

pytestmark = pytest.mark.parametrize("dialect", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)

SLOT = "copy_of_a"
HELD = """
SELECT COALESCE(s.xmin, r.backend_xmin)::text::bigint
FROM pg_stat_replication AS r
LEFT JOIN pg_replication_slots AS s ON s.active_pid = r.pid
"""
"""Up to which transaction the standby keeps rows."""
Report = psycopg.Connection[Any]


@pytest.fixture
def app(server: Postgres) -> Iterator[Perdure]:
    with closing(Perdure(server.url)) as app:
        app.store.upgrade()
        app.job(name="work")(work)
        yield app


def work() -> None:
    """Its run ends at once."""


def run_one(app: Perdure) -> None:
    app.enqueue("work")
    assert app.worker().run(until_idle=True) == 0


def named(app: Perdure, sort: str) -> list[Hindrance]:
    return [found for found in app.store.hindrances(0, DEAD_ROWS) if found.sort == sort]


def command(found: Hindrance, begin: str) -> str:
    """The one that the remedy of this tells to run."""
    match = re.search(rf"{begin}.*", remedy(found))
    assert match is not None
    return match[0]


@pytest.fixture(params=[None, SLOT], ids=["without a slot", "with a slot"])
def standby(request: pytest.FixtureRequest, servers: list[Postgres], app: Perdure) -> Postgres:
    """It tells the primary every second what its transactions need."""
    primary, standby = servers
    standby.copy_from(primary)
    told = {"hot_standby_feedback": "on", "wal_receiver_status_interval": "1s"}
    if request.param is not None:
        primary.execute(f"SELECT pg_create_physical_replication_slot('{SLOT}')")
        told["primary_slot_name"] = SLOT
    with (standby.data / "postgresql.auto.conf").open("a") as settings:
        settings.writelines(f"{name} = '{value}'\n" for name, value in told.items())
    standby.start()
    return standby


@pytest.fixture
def report(standby: Postgres) -> Iterator[Report]:
    with closing(psycopg.connect(standby.url)) as connection:
        connection.execute("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.commit()
        yield connection


def test_a_standby_with_an_old_transaction_is_named_until_that_ends(
    app: Perdure, server: Postgres, report: Report
) -> None:
    report.execute("SELECT 1 FROM pg_class")
    run_one(app)
    until(lambda: named(app, "standby") != [], "the standby is named")

    [found] = named(app, "standby")

    assert found.who == "walreceiver"
    assert "standby 'walreceiver'" in remedy(found)
    assert "hot_standby_feedback" in remedy(found)
    assert named(app, "slot") == []
    report.rollback()
    knows_the_run = f"SELECT ({HELD}) > (SELECT MAX(xmin::text::bigint) FROM perdure.run)"
    until(lambda: server.execute(knows_the_run) == [(True,)], "the standby knows of the run's end")
    assert named(app, "standby") == []


def test_a_standby_is_not_to_blame_for_a_transaction_of_the_primary(
    app: Perdure, server: Postgres, report: Report
) -> None:
    """What has written there is open for the standby too, so its newest snapshot is as old."""
    with server.user() as writer:
        writer.execute("CREATE TABLE mine (n integer)")
        begun = writer.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
        run_one(app)
        report.execute("SELECT 1 FROM pg_class")
        until(lambda: server.execute(HELD) == [begun], "the standby keeps what the writer does")
        assert named(app, "standby") == []


@pytest.mark.parametrize("standby", [SLOT], indirect=True)
def test_the_slot_of_a_standby_that_is_gone_is_named_with_its_end(
    app: Perdure, server: Postgres, standby: Postgres, report: Report
) -> None:
    report.execute("SELECT 1 FROM pg_class")
    until(
        lambda: server.execute("SELECT xmin IS NOT NULL FROM pg_replication_slots") == [(True,)], "it keeps something"
    )
    assert named(app, "slot") == []
    standby.kill()
    until(lambda: named(app, "slot") != [], "the slot is named")

    [found] = named(app, "slot")

    assert (found.who, found.detail) == (SLOT, "physical")
    server.execute(command(found, "SELECT"))
    assert named(app, "slot") == []


def test_a_prepared_transaction_is_named_with_its_end(app: Perdure, server: Postgres) -> None:
    with psycopg.connect(server.url) as connection:
        connection.execute("CREATE TABLE mine (n integer)")
        connection.execute("PREPARE TRANSACTION 'left behind'")

    [found] = named(app, "prepared")

    assert (found.who, found.detail) == ("left behind", "postgres")
    assert "ROLLBACK PREPARED" in remedy(found)
    server.execute("ROLLBACK PREPARED 'left behind'")
    assert named(app, "prepared") == []
