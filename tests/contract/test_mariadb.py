"""The contract suite against a real MariaDB. See `servers`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from perdure.store.mysql.statements import dialect
from perdure.testing.contract import Case, Rig, cases
from tests.contract.servers import Server, finds_what_is_wrong, prepared, rig_on
from tests.mariadb_server import MariaDBServer

pytestmark = pytest.mark.mariadb


@pytest.fixture(scope="module")
def server(mariadb_server: MariaDBServer) -> Iterator[Server]:
    url = mariadb_server.new_database()
    with prepared(url) as store, closing(mariadb_server.connect(url, autocommit=True)) as connection:

        def ask(sql: str) -> list[tuple[object, ...]]:
            with connection.cursor() as cursor:
                cursor.execute(sql)
                return list(cursor.fetchall())

        yield Server(url, store, dialect(mariadb_server.flavour).reading, ask)


@pytest.fixture
def rig(server: Server) -> Iterator[Rig]:
    with rig_on(server) as rig:
        yield rig


@pytest.mark.parametrize("case", cases(), ids=str)
def test_mariadb_keeps_the_contract(case: Case, server: Server, rig: Rig) -> None:
    server.keeps_the_contract(case, rig)


def test_one_question_finds_what_the_doctor_would(server: Server, rig: Rig) -> None:
    finds_what_is_wrong(server, rig)
