"""A server that may be killed, and the processes that work with it; checked at the end of every test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.outages.company import Company
from tests.outages.mariadb import MariaDB
from tests.outages.postgres import Postgres
from tests.outages.server import Server, two_servers

SERVERS: dict[str, type[Server]] = {"postgres": Postgres, "mariadb": MariaDB}


@pytest.fixture(scope="session", params=[pytest.param(name, marks=getattr(pytest.mark, name)) for name in SERVERS])
def dialect(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="session")
def blank(dialect: str) -> Iterator[Path]:
    """The files of a new server: copied for each test, since making them takes seconds."""
    with two_servers(SERVERS[dialect]) as (made, _):
        made.create()
        yield made.data


@pytest.fixture
def servers(dialect: str) -> Iterator[list[Server]]:
    with two_servers(SERVERS[dialect]) as made:
        yield made


@pytest.fixture
def server(servers: list[Server], blank: Path) -> Server:
    """One that runs."""
    servers[0].create(blank)
    servers[0].start()
    return servers[0]


@pytest.fixture
def company(server: Server, tmp_path: Path) -> Iterator[Company]:
    company = Company(server.url, tmp_path / "notes")
    company.app.store.upgrade()
    yield company
    company.close()
