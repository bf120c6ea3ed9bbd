"""The contract suite against a real MariaDB. See `servers`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from perdure import Perdure
from perdure.store.mysql.statements import Flavour, written
from perdure.testing.contract import Case, Rig, cases
from tests.contract.servers import Server, in_words, missed, prepared, rig_on
from tests.hurried_doctor import on_mariadb
from tests.mariadb_server import MariaDBServer
from tests.unit.patient import Case as Damage
from tests.unit.patient import populate

pytestmark = pytest.mark.mariadb


@pytest.fixture(scope="module")
def server(mariadb_server: MariaDBServer) -> Iterator[Server]:
    url = mariadb_server.new_database()
    with prepared(url) as store, closing(mariadb_server.connect(url, autocommit=True)) as connection:
        yield Server(url, store, on_mariadb(connection, mariadb_server.flavour))


@pytest.fixture
def rig(server: Server) -> Iterator[Rig]:
    with rig_on(server) as rig:
        yield rig


@pytest.mark.parametrize("case", cases(), ids=str)
def test_mariadb_keeps_the_contract(case: Case, server: Server, rig: Rig) -> None:
    server.keeps_the_contract(case, rig)


def test_one_question_finds_what_the_doctor_would(mariadb_server: MariaDBServer) -> None:
    url = mariadb_server.new_database()
    with closing(Perdure(url, auto_migrate=True)) as app:
        ids = populate(app)

    with closing(mariadb_server.connect(url)) as connection, connection.cursor() as cursor:

        @contextmanager
        def hurt(damage: Damage) -> Iterator[None]:
            for statement, names in in_words(damage, _words):
                cursor.execute(statement, [ids[name] for name in names])
            yield
            connection.rollback()

        flavour = mariadb_server.flavour
        unseen = "queue_counter_behind" if flavour is Flavour.MYSQL else ""  # it cannot read its counter
        assert missed(on_mariadb(connection, flavour), hurt, unseen=unseen) == {}


def _words(statement: str) -> str:
    """An index is not rolled back, but no other damage needs the one that is dropped."""
    return re.sub(r"^DROP INDEX perdure_(\w+)$", r"DROP INDEX \1 ON perdure_job", written(statement))
