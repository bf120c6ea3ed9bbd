"""The contract suite against SQLite: a file of its own for every case, copied from an empty one."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from perdure.store.open import open_store
from perdure.testing.contract import Case, NotSupported, Rig, cases, run_case


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not the test's own, where all that is left is examined: that is what `run_case` ends with."""
    return tmp_path_factory.mktemp("contract")


@pytest.fixture(scope="module")
def empty(folder: Path) -> Path:
    file = folder / "empty.db"
    store = open_store(str(file))
    store.upgrade()
    store.close()
    return file


@pytest.fixture
def rig(folder: Path, empty: Path) -> Iterator[Rig]:
    file = folder / "case" / "jobs.db"
    file.parent.mkdir()
    shutil.copy(empty, file)
    rig = Rig(f"sqlite:///{file}")
    yield rig
    rig.close()
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    shutil.rmtree(file.parent)


@pytest.mark.parametrize("case", cases(), ids=str)
def test_sqlite_keeps_the_contract(case: Case, rig: Rig) -> None:
    try:
        run_case(case, rig)
    except NotSupported as reason:
        pytest.skip(str(reason))
