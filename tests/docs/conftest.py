"""Where a page is followed."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A reader's empty folder."""
    return tmp_path
