"""Free space in an SQLite file is given back, little by little."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from perdure import ConfigError, Retention
from perdure.job.reports import Completed
from perdure.store import retention
from perdure.testing.contract.rig import Rig
from perdure.upkeep.retention import Prune
from tests.cli.terminal import process
from tests.postgres_server import PostgresServer
from tests.retention.test_sweeps import done


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


def filled(file: Path, jobs: int = 200) -> Rig:
    """A megabyte or two of ended jobs, which are old."""
    rig = Rig(str(file))
    for payload in [f'{{"text":"{"x" * 8_000}"}}'] * (jobs // 50):
        rig.enqueue_many(50, payload=payload)
        rig.store.finish([rig.report(claim, Completed()) for claim in rig.claim(50)], rig.now)
    rig.clock.advance(days=91)
    return rig


def pages(file: Path) -> tuple[int, int]:
    """How many the file has, and how many of them are free."""
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        numbers = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count")]
        return numbers[0], numbers[1]


def test_pruning_makes_the_file_smaller(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "SPARE_PAGES", 20)
    monkeypatch.setattr(retention, "FREED_AT_ONCE", 50)
    rig = filled(file)
    rig.store.vacuum()
    before, _ = pages(file)

    assert done(Prune(rig.store, rig.clock, Retention()), rig.now)["jobs"] == 200

    after, free = pages(file)
    assert after < before / 4
    assert free <= 20


def test_no_more_than_a_little_is_given_back_in_one_transaction(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "SPARE_PAGES", 20)
    monkeypatch.setattr(retention, "FREED_AT_ONCE", 50)
    rig = filled(file)
    rig.store.vacuum()
    rig.store.remove(rig.store.ended(None, b"\xff" * 16, 1_000))
    _, before = pages(file)

    assert rig.store.give_back()

    assert pages(file)[1] == before - 50


def test_a_new_file_can_give_pages_back(file: Path) -> None:
    Rig(str(file)).enqueue()

    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("PRAGMA auto_vacuum").fetchone() == (2,)


def test_some_room_is_kept_for_new_jobs(file: Path) -> None:
    rig = filled(file)
    rig.store.vacuum()
    rig.store.remove(rig.store.ended(None, b"\xff" * 16, 1_000))
    before = pages(file)

    assert not rig.store.give_back()
    assert pages(file) == before


def test_a_file_that_cannot_give_single_pages_back_keeps_them(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those made by older versions are."""
    monkeypatch.setattr(retention, "SPARE_PAGES", 20)
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE mine (x)")
    rig = filled(file)
    rig.store.remove(rig.store.ended(None, b"\xff" * 16, 1_000))

    assert not rig.store.give_back()


def test_vacuum_writes_the_file_anew(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE mine (x)")
    rig = filled(file)
    job_id = rig.enqueue()
    rig.store.remove(rig.store.ended(None, b"\xff" * 16, 1_000))
    before, _ = pages(file)

    ran = process("db", "vacuum", "--url", str(file), cwd=file.parent)

    assert (ran.status, ran.out) == (0, "done\n")
    after, free = pages(file)
    assert after < before / 4
    assert free == 0
    assert rig.in_order() == [job_id]
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("PRAGMA auto_vacuum").fetchone() == (2,)


def test_a_server_needs_none_of_it(postgres_server: PostgresServer) -> None:
    rig = Rig(postgres_server.new_database())
    rig.store.upgrade()

    assert not rig.store.give_back()
    with pytest.raises(ConfigError) as caught:
        rig.store.vacuum()
    assert caught.value.code == "vacuum_unsupported"
    rig.close()
