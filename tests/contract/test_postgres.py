"""The contract suite against a real PostgreSQL. See `servers`."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from perdure.store.postgres.statements import READING
from perdure.testing.contract import Case, Rig, cases
from tests.contract.servers import Server, finds_what_is_wrong, prepared, rig_on
from tests.postgres_server import PostgresServer

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def server(postgres_server: PostgresServer) -> Iterator[Server]:
    url = postgres_server.new_database()
    with prepared(url) as store, psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET jit = off")

        def ask(sql: str) -> list[tuple[object, ...]]:
            return connection.execute(sql.encode(), prepare=True).fetchall()

        yield Server(url, store, READING, ask)


@pytest.fixture
def rig(server: Server) -> Iterator[Rig]:
    with rig_on(server) as rig:
        yield rig


@pytest.mark.parametrize("case", cases(), ids=str)
def test_postgres_keeps_the_contract(case: Case, server: Server, rig: Rig) -> None:
    server.keeps_the_contract(case, rig)


def test_one_question_finds_what_the_doctor_would(server: Server, rig: Rig) -> None:
    finds_what_is_wrong(server, rig)
