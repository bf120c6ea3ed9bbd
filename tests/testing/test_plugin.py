"""The pytest plugin, in projects of its own: pytest is started as a user would start it."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from perdure import Perdure
from tests.mariadb_server import mariadb_server
from tests.postgres_server import postgres_server

__all__ = ["mariadb_server", "postgres_server"]

ROOT = Path(__file__).parents[2]

JOBS = """
from perdure import Perdure
app = Perdure("jobs.db")

@app.job
def send(to: str) -> str:
    return f"sent {to}"
"""

TEST = """
from shop.jobs import send

def test_a_mail_is_sent(perdure):
    send.enqueue(to="a@x.org")
    assert [job.result for job in perdure.drain()] == ["sent a@x.org"]

def test_every_test_has_a_database_of_its_own(perdure):
    perdure.assert_not_enqueued()
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "jobs.py").write_text(JOBS)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_shop.py").write_text(TEST)
    return tmp_path


def run_pytest(folder: Path, *args: str, **environment: str) -> str:
    """What pytest prints. The plugin is named, so that it need not be the installed one."""
    # The coverage of this run is of no interest, and the plugins of this machine neither.
    settings = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT / "src")}
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PERDURE", "PYTEST", "COV"))}
    command = [sys.executable, "-m", "pytest", "-p", "pytest_perdure", "-W", "error", "--color=no", *args]
    done = subprocess.run(
        command, cwd=folder, env=kept | settings | environment, capture_output=True, text=True, check=False, timeout=120
    )
    return done.stdout + done.stderr


def test_the_app_is_named_in_pytests_settings(project: Path) -> None:
    (project / "pytest.ini").write_text("[pytest]\nperdure_app = shop.jobs:app\n")
    assert "2 passed" in run_pytest(project)
    assert not (project / "jobs.db").exists()


def test_the_app_is_named_in_the_environment_and_the_url_there_is_ignored(project: Path) -> None:
    assert "2 passed" in run_pytest(project, PERDURE_APP="shop.jobs:app", PERDURE_URL=str(project / "real.db"))
    assert not (project / "real.db").exists()


def test_the_app_is_named_in_pyproject_and_found_from_a_folder_below(project: Path) -> None:
    settings = '[tool.perdure]\napp = "shop.jobs:app"\nurl = "real.db"\n[tool.pytest.ini_options]\npythonpath = "."\n'
    (project / "pyproject.toml").write_text(settings)
    assert "2 passed" in run_pytest(project / "tests", "--rootdir", str(project))
    assert not list(project.rglob("*.db"))


def test_the_app_comes_from_a_fixture_of_the_projects_own(project: Path) -> None:
    fixture = "import pytest\nfrom shop.jobs import app\n@pytest.fixture\ndef perdure_app():\n    return app\n"
    (project / "conftest.py").write_text(fixture)
    assert "2 passed" in run_pytest(project)


def test_without_a_name_the_error_is_one_sentence_that_says_what_to_do(project: Path) -> None:
    printed = run_pytest(project, "tests/test_shop.py")
    assert "2 errors" in printed
    assert "perdure_app = shop.jobs:app" in printed
    assert "[app_not_found]" in printed
    assert "Traceback" not in printed


def test_a_wrong_name_says_what_was_found_instead(project: Path) -> None:
    printed = run_pytest(project, "-o", "perdure_app=shop.jobs:queue")
    assert "[app_not_found]" in printed
    assert "shop.jobs:app" in printed


def test_a_handlers_error_is_shown_without_frames_of_ours(project: Path) -> None:
    (project / "shop" / "jobs.py").write_text(JOBS.replace('return f"sent {to}"', 'raise OSError("no route")'))
    failing = TEST.replace("perdure.drain()", "perdure.drain(raise_errors=True)")
    (project / "tests" / "test_shop.py").write_text(failing)
    printed = run_pytest(project, "-o", "perdure_app=shop.jobs:app")
    assert "shop/jobs.py:7: OSError" in printed.replace(os.sep, "/")
    assert "src/perdure/" not in printed.partition("Captured log")[0]


def test_the_suite_runs_on_a_database_of_the_users(project: Path) -> None:
    for _ in range(2):
        assert "2 passed" in run_pytest(project, "-o", "perdure_app=shop.jobs:app", "--perdure-url", "tests.db")
    assert not (project / "jobs.db").exists()
    assert (project / "tests.db").exists()


def test_a_database_with_jobs_in_it_is_left_alone(project: Path) -> None:
    app = Perdure(project / "real.db")
    app.job(name="work")(lambda: None)
    app.enqueue("work")
    printed = run_pytest(project, "-o", "perdure_app=shop.jobs:app", "--perdure-url", "real.db")
    assert "2 errors" in printed
    assert "testing_not_empty" in printed
    assert len(list(app.jobs())) == 1
    app.close()


@pytest.mark.parametrize(
    "sort",
    [
        "sqlite",
        pytest.param("postgres", marks=pytest.mark.postgres),
        pytest.param("mariadb", marks=pytest.mark.mariadb),
    ],
)
def test_processes_of_xdist_do_not_meet(project: Path, sort: str, request: pytest.FixtureRequest) -> None:
    url = "tests.db" if sort == "sqlite" else request.getfixturevalue(f"{sort}_server").new_database()
    many = TEST + "".join(
        f"""
def test_{number}(perdure):
    perdure.assert_not_enqueued()
    send.enqueue(to="{number}")
    assert [job.result for job in perdure.drain()] == ["sent {number}"]
"""
        for number in range(6)
    )
    (project / "tests" / "test_shop.py").write_text(many)
    printed = run_pytest(project, "-p", "xdist.plugin", "-n2", "-o", "perdure_app=shop.jobs:app", "--perdure-url", url)
    assert "8 passed" in printed, printed
    if sort == "sqlite":
        assert sorted(path.name for path in project.glob("tests*.db")) == ["tests_gw0.db", "tests_gw1.db"]


def test_the_plugin_is_light() -> None:
    """pytest imports it at every start of every project that has Perdure installed."""
    heavy = "('perdure', 'pydantic', 'asyncio')"
    script = (
        f"import pytest, sys; before = set(sys.modules); import pytest_perdure; print(*[name for name in"
        f" set(sys.modules) - before if name.partition('.')[0] in {heavy}])"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert (ran.stdout, ran.stderr) == ("\n", "")


def test_the_plugin_is_declared_and_shipped() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert project["project"]["entry-points"]["pytest11"] == {"perdure": "pytest_perdure"}
    assert "src/pytest_perdure.py" in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
