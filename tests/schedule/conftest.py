"""An app on a fresh file whose clock is the test's, and workers that fire when they are told to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from perdure import Perdure
from perdure.clock import ManualClock
from perdure.ids import NodeId
from perdure.schedule.scheduler import Scheduler
from perdure.store.rows import NewNode
from perdure.upkeep.retention import Work
from tests.mariadb_server import MariaDBServer, mariadb_server
from tests.postgres_server import PostgresServer, postgres_server

__all__ = ["mariadb_server", "postgres_server"]

START = datetime(2030, 1, 1, tzinfo=UTC)


class Firer:
    """A worker's part in schedules, without the worker."""

    def __init__(self, app: Perdure, upkeep: Sequence[Work] = ()) -> None:
        parts = app.parts()
        self._store = parts.store
        self.node = NodeId(parts.ids.new())
        self.scheduler = Scheduler(parts.store, parts.clock, parts.ids, parts.owner, parts.declared, upkeep)
        self._store.register(NewNode(self.node, parts.clock.now()))
        self._clock = parts.clock

    def look(self) -> int:
        """Until nothing is due. Returns how many jobs were made."""
        made = self.scheduler.look(self.node)
        while self.scheduler.rest_s() == 0.0:
            made += self.scheduler.look(self.node)
        return made

    def end(self) -> None:
        self._store.stop(self.node, "clean_shutdown", self._clock.now())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("postgres", marks=pytest.mark.postgres),
        pytest.param("mariadb", marks=pytest.mark.mariadb),
    ]
)
def url(request: pytest.FixtureRequest, path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{path}"
    server: PostgresServer | MariaDBServer = request.getfixturevalue(f"{request.param}_server")
    return server.new_database()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def app(path: Path, clock: ManualClock) -> Iterator[Perdure]:
    app = Perdure(path, durability="normal", clock=clock)
    yield app
    app.close()


@pytest.fixture
def send(app: Perdure) -> Any:
    @app.job
    def send(to: str, subject: str = "hi") -> str:
        return f"{subject} {to}"

    return send
