"""An app on each database, and somebody else who writes to it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from perdure import Perdure
from tests.postgres_server import postgres_server, postgres_url

__all__ = ["postgres_server", "postgres_url"]


class Scene:
    """An app with one kind, `send`. What others see and do goes through connections that are not ours."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.app = Perdure(url, auto_migrate=True)

        @self.app.job
        def send(to: str) -> None: ...

        self.send: Any = send

    @property
    def is_sqlite(self) -> bool:
        return not self.url.startswith("postgresql")

    def connect(self) -> Any:
        return sqlite3.connect(self.url) if self.is_sqlite else psycopg.connect(self.url)

    def make_table(self) -> None:
        with closing(self.connect()) as connection:
            connection.execute("CREATE TABLE elsewhere (n INTEGER)")
            connection.commit()

    def commit_elsewhere(self) -> None:
        """Somebody else writes: a snapshot that is still held is an old one from now on."""
        with closing(self.connect()) as connection:
            connection.execute("INSERT INTO elsewhere VALUES (1)")
            connection.commit()

    def sent(self) -> list[str]:
        """The recipients of all jobs that are committed."""
        return [payload["to"] for payload in self.payloads() if "to" in payload]

    def payloads(self) -> list[dict[str, Any]]:
        table = "perdure_job" if self.is_sqlite else "perdure.job"
        with closing(self.connect()) as connection:
            rows = connection.execute(f"SELECT payload FROM {table}").fetchall()
        return [payload if isinstance(payload, dict) else json.loads(payload) for (payload,) in rows]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    url = str(tmp_path / "jobs.db") if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    scene = Scene(url)
    scene.send.enqueue("first")
    scene.make_table()
    yield scene
    scene.app.close()
