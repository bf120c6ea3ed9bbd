"""An app on a database of each sort, with the user's own table beside Perdure's; on servers one for all tests of a
module, which each leaves empty. A test says which `sort`."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from perdure import Perdure
from perdure.ops.doctor import examine, is_healthy
from perdure.store.store import SqlStore
from perdure.store.tables import tables
from tests.mariadb_server import MariaDBServer

MARKS: dict[str, list[pytest.MarkDecorator]] = {
    "sqlite": [],
    "postgres": [pytest.mark.postgres],
    "mariadb": [pytest.mark.mariadb],
}


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    """The databases on servers, each made once."""
    return {}


@pytest.fixture
def url(sort: str, made: dict[str, str], tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """A database with the user's own table beside Perdure's, both empty."""
    if sort in made:
        return made[sort]
    if sort == "sqlite":
        url = str(tmp_path / "jobs.db")
        user: Any = closing(sqlite3.connect(url))
    elif sort == "postgres":
        url = made[sort] = request.getfixturevalue("postgres_server").new_database()
        user = psycopg.connect(url)
    else:
        server: MariaDBServer = request.getfixturevalue("mariadb_server")
        url = made[sort] = server.new_database()
        user = server.connect(url)
    with user as connection:
        connection.cursor().execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    return url


@pytest.fixture
def app(url: str) -> Iterator[Perdure]:
    app = Perdure(url, auto_migrate=True, busy_timeout_s=2)
    app.store.upgrade()
    yield app
    assert isinstance(app.store, SqlStore)
    findings = examine(app.store)
    app.store.empty(tables())
    with app.transaction() as tx:
        tx.execute("DELETE FROM orders")
    app.close()
    assert is_healthy(findings), findings


@pytest.fixture
def send(app: Perdure) -> Any:
    @app.job(queue="mail")
    def send(to: str, subject: str = "hi") -> str:
        return f"{subject} {to}"

    return send


def names(app: Perdure) -> list[Any]:
    """Whom the queued jobs are for."""
    return [(job.payload or {})["to"] for job in app.jobs(state="queued", queue="mail")]


def ordered(app: Perdure) -> list[int]:
    """The user's rows."""
    with app.transaction() as tx:
        return [number for (number,) in tx.execute("SELECT id FROM orders ORDER BY id").fetchall()]
