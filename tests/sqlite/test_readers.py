"""Readers: they cannot write, see one moment each, and are in nobody's way."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import pytest

from perdure import DatabaseUnavailable, Perdure
from perdure.clock import Micros
from perdure.store import admin
from perdure.store.engine import Call, Op
from perdure.store.sqlite.wal import affected
from tests.app.contents import contents


@pytest.fixture
def runner(app: Perdure) -> Any:
    return app.store.runner  # type: ignore[attr-defined]  # beneath the protocol


def test_a_reader_cannot_write(runner: Any, path: Path) -> None:
    runner.read(admin.queues)
    before = contents(path)
    with pytest.raises(DatabaseUnavailable) as refused:
        runner.read(lambda: admin.pause_queue("mail", Micros(1)))
    assert refused.value.code == "database_readonly"
    assert contents(path) == before


def test_a_read_that_failed_leaves_the_next_one_alone(app: Perdure, runner: Any, send: Any) -> None:
    job = send.enqueue("a")
    with pytest.raises(DatabaseUnavailable):
        runner.read(lambda: admin.pause_queue("mail", Micros(1)))
    assert app.get(job) == job


def test_a_reading_operation_sees_one_moment(app: Perdure, runner: Any, send: Any) -> None:
    send.enqueue("before")

    def twice() -> Op[tuple[int, int]]:
        first = (yield Call("list_queues")).rows[0]
        send.enqueue("meanwhile")
        second = (yield Call("list_queues")).rows[0]
        return first, second  # type: ignore[return-value]

    first, second = runner.read(twice)
    assert first == second
    assert app.queues.list()[0].queued == 2


def test_many_threads_read_at_once(app: Perdure, send: Any) -> None:
    job = send.enqueue("a")
    with ThreadPoolExecutor(24) as pool:
        assert set(pool.map(app.get, [job] * 200)) == {job}


def test_readers_are_kept_in_small_numbers(app: Perdure, runner: Any, send: Any) -> None:
    job = send.enqueue("a")

    def nested(depth: int) -> Op[None]:
        yield Call("list_queues")
        if depth:
            runner.read(lambda: nested(depth - 1))

    runner.read(lambda: nested(20))
    assert len(runner.database._readers) <= 8
    assert app.get(job) == job


def test_closing_gives_back_every_file(app: Perdure, send: Any, path: Path) -> None:
    with app.transaction() as tx:
        tx.execute("SELECT * FROM perdure_job")
        send.enqueue("a")
    list(app.jobs())
    app.close()
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["jobs.db", "jobs.db-gate"]


def test_a_closed_app_opens_again(app: Perdure, send: Any) -> None:
    job = send.enqueue("a")
    app.close()
    assert app.get(job) == job


def test_two_apps_share_a_file_and_one_may_close(app: Perdure, send: Any, path: Path) -> None:
    other = Perdure(path)
    job = send.enqueue("a")
    assert other.get(job) == job
    other.close()
    assert app.get(send.enqueue("b")) is not None


def test_the_more_durable_of_two_apps_decides_for_both(path: Path) -> None:
    careless = Perdure(path, durability="normal")
    careless.queues.pause("a")
    careful = Perdure(path, durability="full")
    careful.queues.pause("b")
    runner: Any = careful.store.runner  # type: ignore[attr-defined]  # beneath the protocol
    assert runner.database._writer.execute("PRAGMA synchronous").fetchone() == (2,)
    careless.close()
    careful.close()


@pytest.mark.parametrize(("durability", "level"), [("full", 2), ("normal", 1)])
def test_durability_is_what_was_asked_for(durability: Literal["full", "normal"], level: int, path: Path) -> None:
    app = Perdure(path, durability=durability)
    with app.transaction() as tx:
        assert tx.execute("PRAGMA synchronous").fetchone() == (level,)
    app.close()


def test_the_file_is_in_wal_mode(app: Perdure, send: Any, path: Path) -> None:
    send.enqueue("a")
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_no_connection_of_ours_checkpoints_by_itself_where_that_can_corrupt(runner: Any, send: Any) -> None:
    send.enqueue("a")
    pages = 0 if affected(sqlite3.sqlite_version_info[:3]) else 1000
    connection, _ = runner.database._take_reader()
    with closing(connection):
        for ours in (runner.database._writer, connection):
            assert ours.execute("PRAGMA wal_autocheckpoint").fetchone() == (pages,)


def test_the_log_stays_short_however_much_is_written(runner: Any, send: Any) -> None:
    for _ in range(60):
        send.enqueue_many([{"to": "x" * 1000}] * 50)
    assert runner.database.wal_frames() < 2_000


def test_a_file_that_was_deleted_under_the_app_is_noticed(app: Perdure, runner: Any, send: Any, path: Path) -> None:
    send.enqueue("lost")
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink()
    runner.database._looked_until = 0  # a look is good for a moment; this is after it
    with pytest.raises(DatabaseUnavailable) as refused:
        send.enqueue("a")
    assert refused.value.code == "database_replaced"
    assert app.get(send.enqueue("b")) is not None


def test_a_file_that_was_moved_away_and_back_is_opened_again(app: Perdure, runner: Any, send: Any, path: Path) -> None:
    first = send.enqueue("kept")
    elsewhere = path.with_name("elsewhere.db")
    path.rename(elsewhere)
    runner.database._looked_until = 0
    with pytest.raises(DatabaseUnavailable) as refused:
        send.enqueue("a")
    assert refused.value.code == "database_replaced"
    elsewhere.rename(path)

    second = send.enqueue("b")
    assert [job.id for job in app.jobs()] == [second.id, first.id]
