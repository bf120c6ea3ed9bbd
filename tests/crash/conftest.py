"""A scene on a fresh file, which ends with the doctor and the history check."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.workers import Scene


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path / "jobs.db")
    try:
        yield scene
        scene.check()
    finally:
        scene.close()
