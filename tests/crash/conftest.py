"""A scene on a fresh database, which ends with the doctor and the history check."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import SIZE
from tests.crash.databases import Databases, Files, OnMariaDB, OnPostgres
from tests.crash.handlers import Place
from tests.crash.workers import Scene
from tests.mariadb_server import MariaDBServer, mariadb_server
from tests.postgres_server import PostgresServer, postgres_server

__all__ = ["mariadb_server", "postgres_server"]


@pytest.fixture(scope="session")
def on_sqlite() -> Databases:
    return Files()


@pytest.fixture(scope="session")
def on_postgres(postgres_server: PostgresServer) -> Databases:
    return OnPostgres(postgres_server)


@pytest.fixture(scope="session")
def on_mariadb(mariadb_server: MariaDBServer) -> Databases:
    return OnMariaDB(mariadb_server)


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("postgres", marks=pytest.mark.postgres),
        pytest.param("mariadb", marks=pytest.mark.mariadb),
    ]
)
def databases(request: pytest.FixtureRequest) -> Databases:
    if request.param != "sqlite" and SIZE != "full" and request.node.get_closest_marker("rare"):
        pytest.skip("runs on servers at full size only (make test-full)")
    found: Databases = request.getfixturevalue(f"on_{request.param}")
    return found


@pytest.fixture
def place(databases: Databases, tmp_path: Path) -> Iterator[Place]:
    path = tmp_path / "jobs.db"
    place = Place(databases.made(path), path)
    yield place
    databases.remove(place.url)


@pytest.fixture
def scene(place: Place, databases: Databases) -> Iterator[Scene]:
    scene = Scene(place, databases)
    try:
        yield scene
        scene.check()
    finally:
        scene.close()
