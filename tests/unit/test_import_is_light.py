"""`import perdure` costs little: what only a worker, the CLI or a server database needs is loaded on use."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ["typer", "rich", "asyncio", "sqlalchemy", "django", "psycopg", "pymysql", "fastapi"]


@pytest.fixture(scope="module")
def loaded_by_import() -> set[str]:
    """The modules of a fresh interpreter that has done nothing but `import perdure`."""
    script = "import sys, perdure; print(*sys.modules)"
    fresh = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert fresh.returncode == 0, fresh.stderr
    return set(fresh.stdout.split())


def test_the_fresh_interpreter_did_import_perdure(loaded_by_import: set[str]) -> None:
    assert "perdure" in loaded_by_import


@pytest.mark.parametrize("module", HEAVY)
def test_importing_perdure_does_not_load(module: str, loaded_by_import: set[str]) -> None:
    assert module not in loaded_by_import
