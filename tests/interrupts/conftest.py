"""An app on each database, and somebody else who writes to it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from perdure import Perdure
from perdure.store.open import dialect_of
from tests.history import table_at
from tests.mariadb_server import connected, mariadb_server, mariadb_url
from tests.postgres_server import postgres_server, postgres_url

__all__ = ["mariadb_server", "mariadb_url", "postgres_server", "postgres_url"]

CONNECT: dict[str | None, Callable[[str], Any]] = {
    "sqlite": sqlite3.connect,
    "postgres": psycopg.connect,
    "mysql": connected,
}


class Scene:
    """An app with one kind, `send`. What others see and do goes through connections that are not ours."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.app = Perdure(url, auto_migrate=True)

        @self.app.job
        def send(to: str) -> None: ...

        self.send: Any = send

    @property
    def dialect(self) -> str | None:
        return dialect_of(self.url)

    @property
    def thrift(self) -> int:
        """Everyday tests do so many times less here: most of what they try on MariaDB is the same on PostgreSQL."""
        return 4 if self.dialect == "mysql" else 1

    def connect(self) -> Any:
        return CONNECT[self.dialect](self.url)

    def make_table(self) -> None:
        self._commit("CREATE TABLE elsewhere (n INTEGER)")

    def commit_elsewhere(self) -> None:
        """Somebody else writes: a snapshot that is still held is an old one from now on."""
        self._commit("INSERT INTO elsewhere VALUES (1)")

    def _commit(self, sql: str) -> None:
        with closing(self.connect()) as connection:
            connection.cursor().execute(sql)
            connection.commit()

    def sent(self) -> list[str]:
        """The recipients of all jobs that are committed."""
        return [payload["to"] for payload in self.payloads() if "to" in payload]

    def payloads(self) -> list[dict[str, Any]]:
        with closing(self.connect()) as connection, closing(connection.cursor()) as cursor:
            cursor.execute(f"SELECT payload FROM {table_at(self.url, 'job')}")
            rows = cursor.fetchall()
        return [payload if isinstance(payload, dict) else json.loads(payload) for (payload,) in rows]


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("postgres", marks=pytest.mark.postgres),
        pytest.param("mariadb", marks=pytest.mark.mariadb),
    ]
)
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    url = str(tmp_path / "jobs.db") if request.param == "sqlite" else request.getfixturevalue(f"{request.param}_url")
    scene = Scene(url)
    scene.send.enqueue("first")
    scene.make_table()
    yield scene
    scene.app.close()
