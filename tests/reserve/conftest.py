"""An app with one queue, on a fresh database: every test here runs on SQLite, PostgreSQL and MariaDB."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure import Perdure
from tests.mariadb_server import mariadb_server, mariadb_url
from tests.postgres_server import postgres_server, postgres_url
from tests.reserve.jobs import made
from tests.worker.patience import seen_by_the_doctor

__all__ = ["mariadb_server", "mariadb_url", "postgres_server", "postgres_url"]


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("postgres", marks=pytest.mark.postgres),
        pytest.param("mariadb", marks=pytest.mark.mariadb),
    ]
)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the database is."""
    if request.param == "sqlite":
        return str(tmp_path / "jobs.db")
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
def app(url: str) -> Iterator[Perdure]:
    app = made(url)
    app.store.upgrade()
    yield app
    seen_by_the_doctor(app)
