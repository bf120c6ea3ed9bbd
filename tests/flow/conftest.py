"""An app with a few kinds, on a fresh database of each sort, with a kit that runs its jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure import Perdure, workflow
from perdure.testing import Kit
from perdure.worker import growth
from perdure.workflow import PORTION
from tests.flow.kinds import Kinds, kinds_of
from tests.mariadb_server import MariaDBServer, mariadb_server
from tests.postgres_server import PostgresServer, postgres_server

__all__ = ["mariadb_server", "postgres_server"]

_DATABASES: dict[str, str] = {}
FEW = 100


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("postgres", marks=pytest.mark.postgres),
        pytest.param("mariadb", marks=pytest.mark.mariadb),
    ]
)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """On a server one database for all tests: `testing(url=)` empties it."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    server: PostgresServer | MariaDBServer = request.getfixturevalue(f"{request.param}_server")
    if request.param not in _DATABASES:
        _DATABASES[request.param] = server.new_database()
    return _DATABASES[request.param]


@pytest.fixture
def portion(url: str, full_size: bool, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many members of a batch are written at once. In everyday tests few on a server: to run a thousand there shows
    nothing that it does not show on SQLite, and takes ten times as long."""
    if full_size or url.startswith("sqlite"):
        return PORTION
    for module in (workflow, growth):
        monkeypatch.setattr(module, "PORTION", FEW)
    return FEW


@pytest.fixture
def app(url: str) -> Iterator[Perdure]:
    app = Perdure(url, durability="normal" if url.startswith("sqlite") else "full")
    yield app
    app.close()


@pytest.fixture
def k(app: Perdure) -> Kinds:
    return kinds_of(app)


@pytest.fixture
def t(app: Perdure, k: Kinds, url: str) -> Iterator[Kit]:
    """The kit of the app, on its own database."""
    del k
    with app.testing(url=url) as kit:
        yield kit
