"""An app on a fresh file, with a doctor's visit at the end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure import Perdure
from perdure.ops.doctor import examine, is_healthy


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def app(path: Path) -> Iterator[Perdure]:
    app = Perdure(path, durability="normal", busy_timeout_s=2)
    yield app
    findings = examine(app.store) if path.exists() else []
    app.close()
    assert is_healthy(findings), findings
