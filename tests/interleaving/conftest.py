"""A theatre on each of the servers on which transactions run side by side. SQLite has one writer at a time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interleaving.theatre import DIALECTS, Theatre
from tests.mariadb_server import mariadb_server
from tests.postgres_server import postgres_server

__all__ = ["mariadb_server", "postgres_server"]


@pytest.fixture(scope="module", params=[pytest.param(name, marks=getattr(pytest.mark, name)) for name in DIALECTS])
def theatre(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Theatre]:
    dialect = DIALECTS[request.param]
    url = request.getfixturevalue(dialect.server).new_database()
    with dialect.doctor(url) as doctor:
        theatre = Theatre(dialect, url, tmp_path_factory.mktemp("notes") / "notes", doctor)
        yield theatre
        theatre.close()
