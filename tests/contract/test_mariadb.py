"""The contract suite against a real MariaDB: one database for all cases, emptied after each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from perdure.store.open import open_store
from perdure.testing.contract import Case, NotSupported, Rig, cases, run_case
from tests.mariadb_server import MariaDBServer

pytestmark = pytest.mark.mariadb


@pytest.fixture(scope="module")
def database(mariadb_server: MariaDBServer) -> str:
    url = mariadb_server.new_database()
    store = open_store(url)
    store.upgrade()
    store.close()
    return url


@pytest.fixture
def rig(database: str) -> Iterator[Rig]:
    rig = Rig(database)
    yield rig
    rig.clear()
    rig.close()


@pytest.mark.parametrize("case", cases(), ids=str)
def test_mariadb_keeps_the_contract(case: Case, rig: Rig) -> None:
    try:
        run_case(case, rig)
    except NotSupported as reason:
        pytest.skip(str(reason))
