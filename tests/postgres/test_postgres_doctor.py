"""The doctor's queries and repairs are the same on PostgreSQL: what is found and cured on SQLite is so here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from uuid import UUID

import pytest

from perdure import Perdure
from perdure.ops.doctor import examine
from perdure.ops.repairs import REPAIRS, repair, repairs_for
from perdure.store.migrate import migrations_of
from tests.postgres_server import PostgresServer
from tests.unit.patient import CASES, NOW, Case, populate

pytestmark = pytest.mark.postgres

NOT_HERE = {"queue_counter_behind", "queue_missing"}
"""Here one sequence serves all queues, which need no row."""


class Undo(Exception):
    """Rolls a transaction back."""


class Ward:
    """A healthy database, and transactions in which it is injured, looked at, and healthy again afterwards."""

    def __init__(self, app: Perdure, ids: dict[str, bytes]) -> None:
        self.app = app
        self.ids = ids
        with app.transaction() as tx:
            [self.now] = tx.execute(f"SELECT {NOW}".replace("perdure_", "perdure.")).fetchone()

    def suffer(self, tx: object, *statements: str) -> None:
        for statement in statements:
            names = re.findall(r":(\w+)", statement)
            text = re.sub(r":(\w+)", "%s", statement).replace("perdure_", "perdure.")
            tx.execute(text, [UUID(bytes=self.ids[name]) for name in names])  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def ward(postgres_server: PostgresServer) -> Iterator[Ward]:
    app = Perdure(postgres_server.new_database(), auto_migrate=True)
    yield Ward(app, populate(app))
    app.close()


def test_nothing_is_found_in_a_healthy_database(ward: Ward) -> None:
    assert examine(ward.app.store) == []


@pytest.mark.parametrize("case", [case for case in CASES if not NOT_HERE & case.findings.keys()], ids=str)
def test_an_injury_is_found_and_cured_as_on_sqlite(case: Case, ward: Ward) -> None:
    with pytest.raises(Undo), ward.app.transaction() as tx:
        ward.suffer(tx, *case.statements)
        findings = examine(ward.app.store, ward.now)
        assert {found.name: sorted(found.examples) for found in findings} == case.expected(ward.ids)
        if all(found.repair for found in findings):
            assert all(repair(ward.app.store, cure.name) for cure in repairs_for(findings))
            assert examine(ward.app.store, ward.now) == []
        raise Undo


def test_a_sequence_that_is_behind_is_raised(ward: Ward) -> None:
    with pytest.raises(Undo), ward.app.transaction() as tx:
        ward.suffer(tx, "UPDATE perdure_ready SET position = 9000000 WHERE job_id = :scheduled")
        assert [found.name for found in examine(ward.app.store)] == ["queue_counter_behind"]
        assert repair(ward.app.store, "raise_queue_counters") > 0
        assert examine(ward.app.store) == []
        raise Undo


@pytest.mark.parametrize("name", [cure.name for cure in REPAIRS])
def test_a_healthy_database_needs_no_repair(name: str, ward: Ward) -> None:
    assert repair(ward.app.store, name) == 0


def test_the_revision_of_the_schema_is_told(ward: Ward) -> None:
    [schema] = [fact for fact in ward.app.store.facts() if fact.name == "schema"]
    newest = migrations_of("postgres")[-1].revision
    assert schema.value == f"revision {newest}, the newest is {newest}"
