"""A command line to type at, and a database to look after."""

from __future__ import annotations

from pathlib import Path

import pytest

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
