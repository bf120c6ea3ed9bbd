"""docs/guarantees.md and docs/recovery.md name only tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_NAMED = re.compile(r"`((?:tests|perdure)/[\w/]+\.py)::(test_\w+)`")


@pytest.mark.parametrize("name", ["guarantees.md", "recovery.md"])
def test_a_document_names_only_tests_that_exist(name: str) -> None:
    named = _NAMED.findall((ROOT / "docs" / name).read_text("utf-8"))
    assert len(named) > 20
    missing = [f"{path}::{test}" for path, test in named if f"def {test}(" not in _source(path)]
    assert missing == []


def _source(path: str) -> str:
    found = ROOT / ("src" if path.startswith("perdure") else "") / path
    return found.read_text("utf-8") if found.exists() else ""
