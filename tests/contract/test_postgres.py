"""The contract suite against a real PostgreSQL. See `servers`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from uuid import UUID

import psycopg
import pytest

from perdure import Perdure
from perdure.testing.contract import Case, Rig, cases
from tests.contract.servers import Server, in_words, missed, prepared, rig_on
from tests.hurried_doctor import on_postgres
from tests.postgres_server import PostgresServer
from tests.unit.patient import Case as Damage
from tests.unit.patient import populate

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def server(postgres_server: PostgresServer) -> Iterator[Server]:
    url = postgres_server.new_database()
    with prepared(url) as store, psycopg.connect(url, autocommit=True) as connection:
        yield Server(url, store, on_postgres(connection))


@pytest.fixture
def rig(server: Server) -> Iterator[Rig]:
    with rig_on(server) as rig:
        yield rig


@pytest.mark.parametrize("case", cases(), ids=str)
def test_postgres_keeps_the_contract(case: Case, server: Server, rig: Rig) -> None:
    server.keeps_the_contract(case, rig)


def test_one_question_finds_what_the_doctor_would(postgres_server: PostgresServer) -> None:
    url = postgres_server.new_database()
    with closing(Perdure(url, auto_migrate=True)) as app:
        ids = {name: UUID(bytes=value) for name, value in populate(app).items()}

    with psycopg.connect(url) as connection:

        @contextmanager
        def hurt(damage: Damage) -> Iterator[None]:
            for statement, names in in_words(damage, lambda text: text.replace("perdure_", "perdure.")):
                connection.execute(statement.encode(), [ids[name] for name in names])
            yield
            connection.rollback()

        assert missed(on_postgres(connection), hurt) == {}
