"""Many rows at once are written by statements for fifty: the same rows, the same count, whatever is left over."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from perdure import Perdure
from perdure.store.engine import UniqueViolation
from perdure.store.sqlite.driver import WIDTH, SqliteDriver, widened
from perdure.store.sqlite.statements import STATEMENTS

SIZES = (1, WIDTH - 1, WIDTH, WIDTH + 1, 2 * WIDTH, 3 * WIDTH + 7)


def rows(count: int) -> list[tuple[object, ...]]:
    return [(n.to_bytes(16), bytes(16), b"node", n, 1, n, n) for n in range(1, count + 1)]


@pytest.fixture
def connection(app: Perdure, path: Path) -> Iterator[sqlite3.Connection]:
    """In a transaction that is rolled back: no doctor would like these rows."""
    app.store.upgrade()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        yield connection
        connection.execute("ROLLBACK")


@pytest.mark.parametrize("count", SIZES)
def test_every_row_is_written_as_it_was_given(connection: sqlite3.Connection, count: int) -> None:
    written = SqliteDriver(connection, STATEMENTS).execute(("insert_run", rows(count)))
    assert written.changed == count
    found = connection.execute("SELECT id, job_id, node_id, attempt, life, started_at, wait_ms, state FROM perdure_run")
    assert found.fetchall() == [(*row, "running") for row in rows(count)]


@pytest.mark.parametrize("count", SIZES)
def test_rows_that_were_there_are_not_counted(connection: sqlite3.Connection, count: int) -> None:
    given = [(n.to_bytes(16), "tag") for n in range(count)]
    driver = SqliteDriver(connection, STATEMENTS)
    driver.execute(("insert_tag", given[::2]))
    assert driver.execute(("insert_tag", given)).changed == len(given[1::2])
    assert connection.execute("SELECT COUNT(*) FROM perdure_tag").fetchone() == (count,)


@pytest.mark.parametrize("count", SIZES)
def test_a_key_given_twice_is_refused_wherever_it_stands(connection: sqlite3.Connection, count: int) -> None:
    with pytest.raises(UniqueViolation):
        SqliteDriver(connection, STATEMENTS).execute(("insert_run", [*rows(count), rows(count)[-1]]))


@pytest.mark.parametrize("count", SIZES)
def test_every_row_is_changed_as_it_was_told(connection: sqlite3.Connection, count: int) -> None:
    driver = SqliteDriver(connection, STATEMENTS)
    driver.execute(("insert_run", rows(count)))
    told = [(f"state {n}", n, 2 * n, n.to_bytes(16)) for n in range(1, count + 1)]
    assert driver.execute(("close_run_plainly", told)).changed == count
    found = connection.execute("SELECT state, finished_at, duration_ms, id FROM perdure_run")
    assert found.fetchall() == told


@pytest.mark.parametrize("count", SIZES)
def test_rows_that_are_guarded_are_neither_changed_nor_counted(connection: sqlite3.Connection, count: int) -> None:
    driver = SqliteDriver(connection, STATEMENTS)
    driver.execute(("insert_run", rows(count)))
    connection.execute("UPDATE perdure_run SET state = 'closed' WHERE attempt % 2")
    told = [("done", 1, 1, n.to_bytes(16)) for n in range(1, count + 1)]
    assert driver.execute(("close_run_plainly", told)).changed == count // 2
    assert connection.execute("SELECT COUNT(*) FROM perdure_run WHERE state = 'closed'").fetchone() == (-(-count // 2),)


@pytest.mark.parametrize("count", SIZES)
def test_only_rows_that_meet_the_whole_guard_are_deleted(connection: sqlite3.Connection, count: int) -> None:
    driver = SqliteDriver(connection, STATEMENTS)
    keys = [(f"key {n}", n.to_bytes(16)) for n in range(count)]
    driver.execute(("reserve_business_key", keys))
    owners = [(key, owner if n % 2 else b"somebody else") for n, (key, owner) in enumerate(keys)]
    assert driver.execute(("free_business_key", owners)).changed == count // 2
    left = connection.execute("SELECT key, job_id FROM perdure_business_key ORDER BY job_id").fetchall()
    assert left == keys[::2]


@pytest.mark.parametrize("count", SIZES)
def test_a_row_that_is_like_a_removed_one_in_one_column_stays(connection: sqlite3.Connection, count: int) -> None:
    driver = SqliteDriver(connection, STATEMENTS)
    given = [("gpu", n.to_bytes(16)) for n in range(count)]
    others = [("gpu", b"another holder")] + [("cpu", holder) for _, holder in given]
    driver.execute(("insert_permit", [(*permit, 1) for permit in given + others]))

    assert driver.execute(("free_permit", given)).changed == count

    left = connection.execute("SELECT key, holder FROM perdure_permit ORDER BY key, holder").fetchall()
    assert left == sorted(others)


def test_what_every_turn_of_a_worker_writes_is_written_wide() -> None:
    usual = ("claim_ready", "insert_run", "delete_ready_of_run", "close_run_plainly", "insert_plain_outcome")
    assert [name for name in usual if widened(STATEMENTS[name]) is None] == []


ONCE = {"set_aside_damaged"}
"""Said once, when a row is damaged, and then about all rows."""


@pytest.mark.parametrize(
    "name", [name for name, statement in STATEMENTS.items() if widened(statement) and name not in ONCE]
)
def test_sqlite_finds_every_row_by_a_key(connection: sqlite3.Connection, name: str) -> None:
    wide = widened(STATEMENTS[name])
    assert wide is not None
    plan = connection.execute(f"EXPLAIN QUERY PLAN {wide.sql}", [None] * len(STATEMENTS[name].names) * wide.rows)
    assert not [step for *_, step in plan if step.startswith("SCAN perdure")]
