"""The contract suite against SQLite: a fresh file for every case."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.testing.contract import Case, NotSupported, Rig, cases, run_case


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(f"sqlite:///{tmp_path}/jobs.db")
    yield rig
    rig.close()


@pytest.mark.parametrize("case", cases(), ids=str)
def test_sqlite_keeps_the_contract(case: Case, rig: Rig) -> None:
    try:
        run_case(case, rig)
    except NotSupported as reason:
        pytest.skip(str(reason))
