"""An app on a fresh file with one kind in it."""

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
    app = Perdure(path, durability="normal", busy_timeout_s=2)
    yield app
    app.close()


@pytest.fixture
def send(app: Perdure) -> Any:
    """A kind; untyped, because many tests call it wrongly."""

    @app.job
    def send(to: str, subject: str = "hi") -> str:
        return f"{subject} {to}"

    return send
