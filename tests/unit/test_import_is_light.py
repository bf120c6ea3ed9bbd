"""Importing the app costs little: what only a worker, the CLI or a server database needs is loaded on use."""

from __future__ import annotations

import subprocess
import sys

import pytest

import perdure

HEAVY = ["typer", "rich", "asyncio", "sqlalchemy", "django", "psycopg", "pymysql", "fastapi"]


@pytest.fixture(scope="module")
def loaded_by_import() -> set[str]:
    """The modules of a fresh interpreter that has done nothing but import the app."""
    script = "import sys; from perdure import Perdure; print(*sys.modules)"
    fresh = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert fresh.returncode == 0, fresh.stderr
    return set(fresh.stdout.split())


def test_the_fresh_interpreter_did_import_perdure(loaded_by_import: set[str]) -> None:
    assert "perdure.app" in loaded_by_import


@pytest.mark.parametrize("module", HEAVY)
def test_importing_perdure_does_not_load(module: str, loaded_by_import: set[str]) -> None:
    assert module not in loaded_by_import


def test_every_public_name_is_there_and_listed() -> None:
    assert all(getattr(perdure, name) is not None for name in perdure.__all__)
    assert set(perdure.__all__) <= set(dir(perdure))


def test_another_name_is_an_error_of_the_usual_kind() -> None:
    with pytest.raises(AttributeError, match="module 'perdure' has no attribute 'Purdure'"):
        getattr(perdure, "Purdure")  # noqa: B009 - mypy would find it
    assert not hasattr(perdure, "Purdure")
