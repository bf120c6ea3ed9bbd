"""An app on a fresh file, as durable as by default."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure import Perdure


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def app(path: Path) -> Iterator[Perdure]:
    app = Perdure(path)
    yield app
    app.close()


@pytest.fixture
def send(app: Perdure) -> Any:
    @app.job
    def send(to: str) -> None: ...

    return send
