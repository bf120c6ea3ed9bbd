"""A rig on a fresh database, SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.testing.contract.rig import Rig
from tests.postgres_server import PostgresServer, postgres_server

__all__ = ["postgres_server"]


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return server.new_database()


@pytest.fixture
def rig(url: str) -> Iterator[Rig]:
    rig = Rig(url)
    rig.store.upgrade()
    yield rig
    rig.close()
