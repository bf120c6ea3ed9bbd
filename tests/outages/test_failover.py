"""The primary dies under load and a streaming replica takes its place: with synchronous commits nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import history
from tests.faults.scene import until
from tests.outages.company import Company, heard, stopped
from tests.outages.postgres import Postgres

pytestmark = pytest.mark.parametrize("dialect", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)


@pytest.fixture
def pair(servers: list[Postgres], server: Postgres) -> list[Postgres]:
    """A primary that commits only what its standby has too, and that standby."""
    primary, standby = servers
    standby.copy_from(primary)
    standby.start()
    primary.set(synchronous_standby_names="*")
    until(lambda: primary.execute("SELECT sync_state FROM pg_stat_replication") == [("sync",)], "the standby follows")
    return servers


@pytest.fixture
def company(pair: list[Postgres], tmp_path: Path) -> Iterator[Company]:
    """It knows both servers, and asks for the one that takes writes."""
    primary, standby = pair
    hosts = f"{primary.folder},{standby.folder}"
    company = Company(
        f"postgresql://postgres@/postgres?host={hosts}&target_session_attrs=read-write", tmp_path / "notes"
    )
    company.app.store.upgrade()
    yield company
    company.close()


def test_a_promoted_replica_has_all_that_was_acknowledged(pair: list[Postgres], company: Company) -> None:
    primary, standby = pair
    enqueuers = [company.start("enqueue", name) for name in ("one", "two")]
    assert [heard(enqueuer) for enqueuer in enqueuers] == ["ready"] * 2
    company.hire(2)
    company.all_work(0, within_s=60)
    until(lambda: len(company.starts()) > 100, "there is some load")

    before = acknowledged(company)
    primary.stop_replication()
    until(lambda: somebody_waits(primary) or acknowledged(company) > before + 20, "a commit is not replicated")
    primary.kill()
    before = acknowledged(company)
    standby.set(synchronous_standby_names="")
    standby.promote()

    company.all_work(len(company.starts()))
    until(lambda: acknowledged(company) > before + 20, "jobs are enqueued again")
    enqueued = sum(int(stopped(enqueuer)[0]) for enqueuer in enqueuers)
    company.rest()
    company.check()
    assert acknowledged(company) == enqueued


def acknowledged(company: Company) -> int:
    return len(history.events(company.notes, "enqueued"))


def somebody_waits(primary: Postgres) -> bool:
    """Whether a commit waits for the standby."""
    return bool(primary.execute("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"))
