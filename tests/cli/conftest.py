"""A command line to type at, a database to look after, and a shop whose jobs can be listed and decided about."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure import Perdure as App
from perdure.ops.doctor import examine
from tests.cli import shop
from tests.cli.terminal import InProcess, Perdure
from tests.unit.patient import Patient, healthy


@pytest.fixture(scope="session")
def model_patient(tmp_path_factory: pytest.TempPathFactory) -> Patient:
    return healthy(tmp_path_factory.mktemp("healthy") / "jobs.db")


@pytest.fixture
def patient(model_patient: Patient, tmp_path: Path) -> Patient:
    """A database in which nothing is wrong yet, as jobs.db in the test's own folder."""
    return model_patient.copy(tmp_path / "jobs.db")


@pytest.fixture
def perdure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Perdure:
    return InProcess(monkeypatch, capsys)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working directory with the app `shop:app` in it, whose database is shop.db."""
    (tmp_path / "shop.py").write_text(Path(shop.__file__).read_text())
    return tmp_path


@pytest.fixture
def here(folder: Path) -> Iterator[App]:
    """The same app in the test's process. In the end the doctor finds nothing wrong with what the commands did."""
    spare = sys.modules.pop("shop", None)
    assert spare is None, "a test left its shop behind"
    app = shop.made(folder / "shop.db")
    yield app
    findings = examine(app.store)
    app.close()
    assert findings == []
