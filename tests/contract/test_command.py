"""`python -m perdure.testing.contract`: the suite for people with stores of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from perdure import Perdure
from perdure.testing.contract.__main__ import main

FOREIGN = "tests.contract.foreign"


def test_a_store_that_passes_is_reported_by_protocol(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "perdure.testing.contract",
        f"sqlite:///{tmp_path}/new.db",
        "--only",
        "locks",
        "tags",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in done.stdout.splitlines() if "│" in line]
    assert [row[0] for row in rows] == ["tags", "locks", "all"]
    assert all(int(passed) > 0 and (failed, missing) == ("0", "0") for _, passed, failed, missing in rows)


def test_a_database_that_holds_jobs_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app = Perdure(tmp_path / "used.db")

    @app.job
    def work() -> None: ...

    job = work.enqueue()

    assert main([f"{tmp_path}/used.db", "--only", "locks"]) == 2
    assert "database_in_use" in capsys.readouterr().out
    assert app.get(job) == job

    assert main([f"{tmp_path}/used.db", "--only", "locks", "--force"]) == 0
    assert app.get(job) is None
    app.close()


def test_a_store_that_breaks_the_contract_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = ["--store", f"{FOREIGN}:open_generous"]

    assert main([f"{tmp_path}/jobs.db", "--only", "locks", "nodes", *store]) == 1
    printed = capsys.readouterr().out
    assert "FAILED locks: a held lock is not taken" in printed
    assert "AssertionError" in printed


WRONG_BY_PYTEST = """
import pytest
from perdure.testing.contract import Rig, cases, run_case
from tests.contract.foreign import open_generous

@pytest.mark.parametrize("case", cases(["locks"]), ids=str)
def test_my_store_keeps_the_contract(case, tmp_path):
    rig = Rig(f"sqlite:///{tmp_path}/jobs.db", open_generous)
    run_case(case, rig)
    rig.close()
"""


def without_asserts(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    surroundings = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-O", *arguments]
    return subprocess.run(command, cwd=cwd, env=surroundings, capture_output=True, text=True, check=False)


def test_the_suite_is_not_run_without_asserts(tmp_path: Path) -> None:
    """`python -O` leaves them out: the wrong store would pass, and so would any other."""
    store = ["--store", f"{FOREIGN}:open_generous"]
    done = without_asserts("-m", "perdure.testing.contract", "jobs.db", "--only", "locks", *store, cwd=tmp_path)

    assert done.returncode == 2, done.stdout + done.stderr
    assert "[asserts_off]" in " ".join(done.stdout.split())
    assert not (tmp_path / "jobs.db").exists()


def test_the_suite_passes_nothing_without_asserts_in_pytest_either(tmp_path: Path) -> None:
    (tmp_path / "test_wrong.py").write_text(WRONG_BY_PYTEST)
    done = without_asserts("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_wrong.py", cwd=tmp_path)

    assert done.returncode == 1, done.stdout + done.stderr
    assert "passed" not in done.stdout
    assert "asserts_off" in done.stdout


def test_our_own_tests_are_not_run_without_asserts() -> None:
    """Pytest warns of it, and for us every warning is an error."""
    here = Path(__file__).parents[2]
    done = without_asserts("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/contract/test_command.py", cwd=here)

    assert done.returncode != 0
    assert "assert statements are not executed" in done.stderr
    assert "passed" not in done.stdout


def test_what_a_store_does_not_have_is_not_supported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = ["--store", f"{FOREIGN}:open_without_locks"]

    assert main([f"{tmp_path}/jobs.db", "--only", "locks", "nodes", *store]) == 0
    assert "this store has no locks" in capsys.readouterr().out


def test_a_store_the_suite_cannot_look_into_is_tested_by_its_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = ["--store", f"{FOREIGN}:open_foreign"]

    assert main([f"{tmp_path}/jobs.db", "--only", "rescue", "supersede", *store]) == 0
    printed = capsys.readouterr().out
    assert "the suite cannot look into the tables of this store" in printed


@pytest.mark.parametrize("name", ["nowhere:open", "tests.contract.foreign:nothing", "tests.contract.foreign", ""])
def test_a_store_that_cannot_be_found_says_so(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"{tmp_path}/jobs.db", "--store", name]) == 2
    assert "store_unknown" in capsys.readouterr().out
