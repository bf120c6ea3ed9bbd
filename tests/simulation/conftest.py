"""A database to copy for every history."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.world import make_template


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "jobs.db"
    make_template(path)
    return path
