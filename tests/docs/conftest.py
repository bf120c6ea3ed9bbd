"""What every page leaves behind is examined: the doctor finds nothing in any database it made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure import Perdure
from perdure.ops.doctor import examine, is_healthy


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A reader's empty folder."""
    yield tmp_path
    for path in tmp_path.rglob("*.db"):
        app = Perdure(path)
        findings = examine(app.store)
        app.close()
        assert is_healthy(findings), (path, findings)
