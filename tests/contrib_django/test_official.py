"""Django's own tests of tasks pass on Perdure; and this suite passes on every Django that has tasks of its own.

The tests come with Django's source distribution, which is fetched once for a virtual environment and kept in it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import django
import pytest

from tests.contrib_django.project import ROOT

SOURCE = "6.1.3"
"""Whose tests are run, with the package django-tasks on Django 5.2."""
OTHERS = {"6.0.10": 59, "6.1.3": 64}
"""With tasks of their own, and how many of its tests each has that are not about a backend of Django's."""
OLDEST_PYTHON = (3, 12)
SUITE_S = 900
NEEDED = ["psycopg[binary]", "pymysql", "pydantic", "cronsim", "tzdata", "typer", "rich"]
NEEDED += ["pytest", "pytest-timeout", "hypothesis"]


def pip(python: str, *arguments: str, cwd: Path | None = None) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python, *arguments]
    subprocess.run(command, cwd=cwd, check=True, timeout=SUITE_S)


def django_tests(version: str) -> Path:
    """The folder `tests` of a Django, without what is not about tasks."""
    kept = Path(sys.prefix) / "share" / "django-tests"
    folder = kept / f"django-{version}"
    if not folder.exists():
        kept.mkdir(parents=True, exist_ok=True)
        fetch = ("download", "-qq", "--no-deps", "--ignore-requires-python", "--no-binary", "django")
        pip(sys.executable, *fetch, f"django=={version}", cwd=kept)
        archive = kept / f"django-{version}.tar.gz"
        with tarfile.open(archive) as opened:
            wanted = [member for member in opened if "/tests/tasks/" in member.name]
            opened.extractall(kept, wanted, filter="data")
        archive.unlink()
    return folder / "tests"


def passed(python: str, version: str, tmp_path: Path) -> int:
    """How many of Django's tests ran, all of them well."""
    done = subprocess.run(
        [python, "-m", "tests.contrib_django.official", str(django_tests(version)), str(tmp_path / "jobs.db")],
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=SUITE_S,
    )
    assert done.returncode == 0, done.stderr
    found = re.search(r"Ran (\d+) tests", done.stderr)
    return int(found[1]) if found else 0


@pytest.mark.skipif(django.VERSION >= (6, 0), reason="this Django has tasks of its own")
def test_django_s_tests_pass_with_the_backport(tmp_path: Path) -> None:
    assert passed(sys.executable, SOURCE, tmp_path) == 58


def newest_python() -> str | None:
    """The newest of this machine, if Django 6 runs on it. (Python 3.12.0 and 3.12.1 warn of SQL that is in order.)"""
    pyenv = map(str, Path.home().glob(".pyenv/versions/*/bin/python"))
    named = filter(None, (shutil.which(f"python3.{minor}") for minor in (12, 13, 14)))
    found: dict[tuple[int, ...], str] = {}
    for python in (sys.executable, *pyenv, *named):
        asked = [python, "-c", "import sys, venv; print(*sys.version_info[:3])"]
        said = subprocess.run(asked, capture_output=True, text=True, check=False)
        if said.returncode == 0:
            found[tuple(map(int, said.stdout.split()))] = python
    newest = max(found)
    return found[newest] if newest >= OLDEST_PYTHON else None


@pytest.fixture(scope="module", params=OTHERS)
def other(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A version of Django, and a Python that has it, and the locked versions of what the tests need."""
    newer = newest_python()
    if newer is None:
        pytest.skip("no Python 3.12 or later is here, which Django 6 needs")
    folder = tmp_path_factory.mktemp("django")
    subprocess.run([newer, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=SUITE_S)
    locked = re.sub(r"(?m)^django==.*$", "", (ROOT / "requirements" / "dev.lock").read_text())
    (folder / "constraints").write_text(re.sub(r"(?m)^perdure.*$", "", locked))
    python = str(folder / "bin" / "python")
    pip(python, "install", "-qq", "--constraint", str(folder / "constraints"), f"django=={request.param}", *NEEDED)
    return request.param, python


@pytest.mark.full
def test_django_s_tests_pass_on_newer_ones(other: tuple[str, str], tmp_path: Path) -> None:
    version, python = other
    assert passed(python, version, tmp_path) == OTHERS[version]


@pytest.mark.full
@pytest.mark.timeout(SUITE_S)
def test_this_suite_passes_on_newer_ones(other: tuple[str, str], tmp_path: Path) -> None:
    _, python = other
    suite = [
        str(ROOT / "tests" / "contrib_django" / f"test_{name}.py") for name in ("tasks", "project", "admin", "example")
    ]
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 't'}", *suite],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin:/usr/sbin", "HOME": str(tmp_path), "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=SUITE_S,
    )
    assert done.returncode == 0, done.stdout
