"""An app whose own database must never be made, and a kit for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure import Perdure
from perdure.ops.doctor import examine, is_healthy
from perdure.testing import Kit


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Where the app's own database would be."""
    return tmp_path / "own.db"


@pytest.fixture
def app(own: Path) -> Iterator[Perdure]:
    app = Perdure(own)
    yield app
    assert not own.exists(), "the test kit has opened the app's own database"


@pytest.fixture
def t(app: Perdure) -> Iterator[Kit]:
    with app.testing() as kit:
        yield kit
        findings = examine(app.store)
        assert is_healthy(findings), findings
