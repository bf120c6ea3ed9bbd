"""A rig on a fresh database, SQLite, PostgreSQL and MariaDB."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.testing.contract.rig import Rig
from tests.mariadb_server import MariaDBServer, mariadb_server
from tests.postgres_server import PostgresServer, postgres_server

__all__ = ["mariadb_server", "postgres_server"]


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("postgres", marks=pytest.mark.postgres),
        pytest.param("mariadb", marks=pytest.mark.mariadb),
    ]
)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    server: PostgresServer | MariaDBServer = request.getfixturevalue(f"{request.param}_server")
    return server.new_database()


@pytest.fixture
def rig(url: str) -> Iterator[Rig]:
    rig = Rig(url)
    rig.store.upgrade()
    yield rig
    rig.close()
