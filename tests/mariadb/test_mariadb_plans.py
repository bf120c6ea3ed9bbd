"""What a worker asks MariaDB all the time is found in an index, in its order, whatever the statistics say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from pymysql.cursors import DictCursor

from perdure.store.engine import Statement, Statements, row_for
from perdure.store.mysql.driver import literal, widened
from perdure.store.mysql.statements import dialect
from perdure.testing.contract.rig import Rig
from tests.mariadb_server import MariaDBServer

pytestmark = pytest.mark.mariadb


@pytest.fixture
def statements(mariadb_server: MariaDBServer) -> Statements:
    return dialect(mariadb_server.flavour).writing


@pytest.fixture
def rig(mariadb_url: str) -> Iterator[Rig]:
    rig = Rig(mariadb_url)
    rig.store.upgrade()
    rig.enqueue_many(300)
    rig.enqueue_many(300, delay_s=60)
    yield rig
    rig.close()


@pytest.fixture
def explained(rig: Rig, mariadb_server: MariaDBServer) -> Iterator[Any]:
    with closing(mariadb_server.connect(rig.url, cursorclass=DictCursor)) as connection:

        def explain(sql: str) -> list[tuple[Any, ...]]:
            """Table, index and remarks of each step."""
            with connection.cursor() as cursor:
                cursor.execute(f"EXPLAIN {sql}")
                return [(row["table"] or "", row["key"], row["Extra"] or "") for row in cursor.fetchall()]

        yield explain


def last_part(statement: Statement, **values: object) -> str:
    """The statement as it is sent; of several the last."""
    parts = statement.sql.split(";\n")
    given = row_for(statement, {**dict.fromkeys(statement.names, 1), **values})
    markers = parts[-1].count("%s")
    return parts[-1] % tuple(map(literal, given[len(given) - markers :]))


def test_a_claim_reads_its_lane_in_order(rig: Rig, explained: Any, statements: Statements) -> None:
    steps = explained(last_part(statements["claim_head"], queue=rig.queue, node_id=rig.node))
    assert ("r", "ready_claim") in [step[:2] for step in steps]
    assert ("j", "PRIMARY") in [step[:2] for step in steps]
    assert not any("filesort" in remarks or "temporary" in remarks for _, _, remarks in steps)


def test_due_jobs_are_read_in_order(explained: Any, statements: Statements) -> None:
    [(_, index, remarks)] = explained(last_part(statements["due_jobs"], now=1))
    assert (index, "filesort" in remarks) == ("ready_aside", False)


@pytest.mark.parametrize("name", ["claim_ready", "delete_ready_of_run", "close_run_plainly", "update_ready"])
def test_a_batch_finds_each_row_by_its_key(rig: Rig, explained: Any, statements: Statements, name: str) -> None:
    wide = widened(statements[name].sql)
    assert wide is not None
    row = wide.row % tuple(literal(b"x" * 16) for _ in statements[name].names)
    steps = explained(wide.written([row] * 50))
    assert [index for table, index, _ in steps if table.startswith("perdure_")] == ["PRIMARY"]
