"""Every command finds its database by option, environment or pyproject.toml, and says clearly when it cannot."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from perdure.cli.render import one_line
from perdure.version import __version__
from tests.cli.terminal import Perdure, Ran, process, refusal

APP = 'from perdure import Perdure\nclass Shop:\n    app = Perdure("{}.db")\napp = Shop.app\nnothing = 5\n'

ODD = """
import perdure

class Odd(perdure.Perdure):
    @property
    def store(self):
        raise ZeroDivisionError("a\\nb")

app = Odd()
"""


def made(ran: Ran) -> str:
    """The name of the database that `db upgrade` made."""
    assert ran.status == 0, ran
    return Path(ran.out.split()[1]).name


def project(folder: Path, settings: str) -> None:
    (folder / "pyproject.toml").write_text(f"[tool.perdure]\n{settings}\n")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working directory with an app in it."""
    (tmp_path / "shop.py").write_text(APP.format("of_app"))
    return tmp_path


def test_by_a_path(perdure: Perdure, folder: Path) -> None:
    assert made(perdure("db", "upgrade", "--url", "by_path.db", cwd=folder)) == "by_path.db"


def test_by_a_url(perdure: Perdure, folder: Path) -> None:
    assert made(perdure("db", "upgrade", "--url", "sqlite:///by_url.db", cwd=folder)) == "by_url.db"


@pytest.mark.parametrize("name", ["shop:app", "shop:Shop.app", "shop"])
def test_by_an_app_of_the_working_directory(name: str, folder: Path) -> None:
    assert made(process("db", "upgrade", "--app", name, cwd=folder)) == "of_app.db"


def test_by_the_environment(perdure: Perdure, folder: Path) -> None:
    assert made(perdure("db", "upgrade", cwd=folder, PERDURE_URL="by_env.db")) == "by_env.db"


def test_by_an_app_in_the_environment(perdure: Perdure, folder: Path) -> None:
    assert made(perdure("db", "upgrade", cwd=folder, PERDURE_APP="shop:app")) == "of_app.db"


def test_by_the_project(folder: Path) -> None:
    project(folder, 'url = "by_project.db"')

    assert made(process("db", "upgrade", cwd=folder)) == "by_project.db"


def test_by_an_app_of_the_project(perdure: Perdure, folder: Path) -> None:
    project(folder, 'app = "shop:app"')

    assert made(perdure("db", "upgrade", cwd=folder)) == "of_app.db"


def test_the_option_wins_over_the_environment_and_that_over_the_project(perdure: Perdure, folder: Path) -> None:
    project(folder, 'url = "by_project.db"')

    assert made(perdure("db", "upgrade", "--app", "shop:app", cwd=folder, PERDURE_URL="by_env.db")) == "of_app.db"
    assert made(perdure("db", "upgrade", cwd=folder, PERDURE_URL="by_env.db")) == "by_env.db"


def test_a_url_beside_an_app_says_where(perdure: Perdure, folder: Path) -> None:
    assert made(perdure("db", "upgrade", "--app", "shop:app", "--url", "other.db", cwd=folder)) == "other.db"


def test_nothing_named_is_an_error_that_tells_how(perdure: Perdure, folder: Path) -> None:
    line = refusal(perdure("doctor", cwd=folder))

    assert "[url_missing]" in line
    for way in ("--url", "--app", "PERDURE_URL", "PERDURE_APP", "[tool.perdure]"):
        assert way in line


@pytest.mark.parametrize(
    ("name", "code"),
    [
        (":app", "app_invalid"),
        ("shop:", "app_invalid"),
        ("shop:missing", "app_not_found"),
        ("shop:nothing", "app_invalid"),
        ("nowhere:app", "app_import_failed"),
        ("broken:app", "app_import_failed"),
        ("leaving:app", "app_import_failed"),
    ],
)
def test_an_app_that_cannot_be_had_is_one_line(perdure: Perdure, name: str, code: str, folder: Path) -> None:
    (folder / "broken.py").write_text("1 / 0\n")
    (folder / "leaving.py").write_text("raise SystemExit(0)\n")

    assert f"[{code}]" in refusal(perdure("doctor", "--app", name, cwd=folder))


@pytest.mark.parametrize(
    "text",
    ["[tool.perdure]\nurl =", "[tool.perdure]\nurl = 5", "[tool.perdure]\napp = []", '[tool]\nperdure = "jobs.db"'],
)
def test_a_project_file_that_makes_no_sense_is_one_line(perdure: Perdure, text: str, folder: Path) -> None:
    (folder / "pyproject.toml").write_text(text)

    assert "[pyproject_invalid]" in refusal(perdure("doctor", cwd=folder))


def test_a_url_of_no_known_database_is_one_line(perdure: Perdure, folder: Path) -> None:
    assert "[url_unsupported]" in refusal(perdure("doctor", "--url", "gopher://x", cwd=folder))


@pytest.mark.parametrize(
    "url", ["sqlite://user:hunter2@host/x", "postgresql://user:hunter2@localhost:1/x", "oracle://user:hunter2@h/x"]
)
def test_the_password_of_a_url_is_never_shown(url: str, folder: Path) -> None:
    ran = process("doctor", "--url", url, cwd=folder)

    assert ran.status == 2
    assert "hunter2" not in ran.out + ran.err


def test_a_surprise_is_one_line_too(perdure: Perdure, folder: Path) -> None:
    (folder / "odd.py").write_text(ODD)

    line = refusal(perdure("doctor", "--app", "odd:app", cwd=folder))

    assert line == "perdure: unexpected ZeroDivisionError: a b [internal_error]"


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("two\n  lines", "two lines"),
        ("at postgresql://me:p@ss:w/rd@host/db now", "at postgresql://me:***@host/db now"),
        ("postgresql://host/db?password=hunter2&x=1", "postgresql://host/db?password=***&x=1"),
        ("at postgresql://me@host/db", "at postgresql://me@host/db"),
    ],
)
def test_messages_become_one_line_without_passwords(message: str, shown: str) -> None:
    assert one_line(message) == shown


def test_the_version_is_told(folder: Path) -> None:
    assert process("--version", cwd=folder) == Ran(0, f"perdure {__version__}\n", "")


def test_without_a_command_the_help_is_shown(perdure: Perdure, folder: Path) -> None:
    ran = perdure(cwd=folder)

    assert "doctor" in ran.out + ran.err
    assert "db" in ran.out + ran.err


def test_a_wrong_option_is_status_two_without_a_traceback(folder: Path) -> None:
    ran = process("doctor", "--colour", "red", cwd=folder)

    assert ran.status == 2
    assert "Traceback" not in ran.err


def test_telling_the_version_loads_no_table_printer_and_no_database(folder: Path) -> None:
    from subprocess import run

    script = (
        "import sys\nfrom perdure.cli.main import main\n"
        "try:\n    main(['--version'])\nexcept SystemExit:\n    print(*sys.modules)\n"
    )
    loaded = run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()

    assert {"rich", "sqlite3", "psycopg", "asyncio"}.isdisjoint(loaded)


def test_a_setting_that_means_nothing_is_named(perdure: Perdure, folder: Path) -> None:
    (folder / "pyproject.toml").write_text('[tool.perdure]\nap = "shop:app"\n')
    told = refusal(perdure("doctor", cwd=folder))
    assert "'ap', which means nothing; known are url and app [pyproject_invalid]" in told


def test_an_app_without_a_database_is_told_how_to_name_one_here(perdure: Perdure, tmp_path: Path) -> None:
    (tmp_path / "bare.py").write_text("from perdure import Perdure\n\napp = Perdure()\n")

    line = refusal(perdure("jobs", "--app", "bare:app", cwd=tmp_path))

    assert "no database was named; give --url, name it in Perdure('jobs.db'), or set PERDURE_URL [url_missing]" in line


def test_in_the_folder_of_a_django_project_its_own_command_is_named(perdure: Perdure, tmp_path: Path) -> None:
    (tmp_path / "manage.py").write_text("")

    for command in ("jobs", "worker"):
        line = refusal(perdure(command, cwd=tmp_path))

        assert "for the tasks of this Django project write python manage.py perdure …" in line
