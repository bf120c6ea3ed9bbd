"""Many rows at once are written by INSERTs of fifty: the same rows, the same count, whatever is left over."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from perdure import Perdure
from perdure.store.sql.dialects.sqlite.sql import STATEMENTS
from perdure.store.sql.drivers.sqlite import WIDTH, SqliteDriver
from perdure.store.sql.engine import UniqueViolation

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
