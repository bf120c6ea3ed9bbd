"""What a worker asks MariaDB all the time is found in an index, in its order, whatever the statistics say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from pymysql.cursors import DictCursor

from perdure.store.engine import Statement, Statements, row_for
from perdure.store.mysql.driver import literal, widened
from perdure.store.mysql.statements import Flavour, dialect
from perdure.testing.contract.rig import NONE, Rig
from tests.mariadb_server import MariaDBServer

pytestmark = pytest.mark.mariadb


@pytest.fixture
def statements(mariadb_server: MariaDBServer) -> Statements:
    return dialect(mariadb_server.flavour).writing


FEW, MANY = (3, 0), (300, 300)
"""How many jobs wait, and for later. Of a small table the server likes to read, and lock, every row."""


@pytest.fixture(params=[FEW, MANY], ids=["few", "many"])
def rig(request: pytest.FixtureRequest, mariadb_url: str) -> Iterator[Rig]:
    rig = Rig(mariadb_url)
    rig.store.upgrade()
    queued, later = request.param
    rig.enqueue_many(queued)
    rig.enqueue_many(later, delay_s=60)
    yield rig
    rig.close()


@pytest.fixture
def explained(rig: Rig, mariadb_server: MariaDBServer) -> Iterator[Any]:
    with closing(mariadb_server.connect(rig.url, cursorclass=DictCursor)) as connection:
        if mariadb_server.flavour is Flavour.MYSQL:
            connection.query("SET explain_format = 'TRADITIONAL'")  # MySQL 9 would draw a tree

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


def test_parked_jobs_are_claimed_in_order(rig: Rig, explained: Any, statements: Statements) -> None:
    rig.claim(300, kinds=NONE)
    steps = explained(last_part(statements["claim_parked"], queue=rig.queue, node_id=rig.node, kind=rig.kind))
    assert ("r", "ready_parked") in [step[:2] for step in steps]
    assert ("j", "PRIMARY") in [step[:2] for step in steps]
    assert not any("filesort" in remarks or "temporary" in remarks for _, _, remarks in steps)


def test_a_rescue_reads_the_jobs_of_its_node_in_order(rig: Rig, explained: Any, statements: Statements) -> None:
    rig.claim(1)
    rig.store.stop(rig.node, "crash", rig.now)
    steps = explained(last_part(statements["running_of_node"], node_id=rig.node, job_id=None))
    [(index, remarks)] = [step[1:] for step in steps if step[0] == "perdure_ready"]
    assert (index, "filesort" in remarks) == ("ready_node", False)


def test_jobs_set_aside_are_listed_by_their_index(
    rig: Rig, explained: Any, statements: Statements, mariadb_server: MariaDBServer
) -> None:
    """Only what is shown is sorted: the page."""
    rig.claim(300, kinds=NONE)
    whole = {"state": "parked", "below": b"\xff" * 16, "from_id": b"\x00" * 16}
    filters = dict.fromkeys(("queue", "kind", "owner", "business_key", "idempotency_key", "tag"))
    steps = explained(last_part(statements["list_aside"], **whole, **filters))
    assert ("d", "ready_aside") in [step[:2] for step in steps]
    sorted_ones = [table for table, _, remarks in steps if "filesort" in remarks]
    assert sorted_ones == ([] if mariadb_server.flavour is Flavour.MYSQL else ["<derived3>"])


def test_due_jobs_are_read_in_order(explained: Any, statements: Statements) -> None:
    [(_, index, remarks)] = explained(last_part(statements["due_jobs"], now=1))
    assert (index, "filesort" in remarks) == ("ready_aside", False)


KEYED = ["claim_ready", "delete_ready_of_run", "close_run_plainly", "update_ready", "delete_old_lock"]


@pytest.mark.parametrize("name", KEYED)
def test_a_batch_finds_each_row_by_its_key(rig: Rig, explained: Any, statements: Statements, name: str) -> None:
    wide = widened(statements[name].sql)
    assert wide is not None
    row = wide.row % tuple(literal("x" if named == "name" else b"x" * 16) for named in statements[name].names)
    steps = explained(wide.written([row] * 50))
    assert [index for table, index, _ in steps if table.startswith("perdure_")] == ["PRIMARY"]
