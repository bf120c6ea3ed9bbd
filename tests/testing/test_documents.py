"""docs/testing.md is run: its files are written to a new project, and pytest is started in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.django_databases import need_mysqlclient, settings_for
from tests.mariadb_server import mariadb_server
from tests.postgres_server import PostgresServer, postgres_server
from tests.testing.test_plugin import run_pytest

__all__ = ["mariadb_server", "postgres_server"]

PAGE = (Path(__file__).parents[2] / "docs" / "testing.md").read_text("utf-8")
FILES = re.findall(r"^```(?:python|toml)\n# (\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in FILES:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")
    return tmp_path


def test_every_test_on_the_page_passes(project: Path) -> None:
    known = [name for name, _ in FILES if name.startswith(("shop/", "tests/", "with_"))]
    assert len(known) == len(re.findall(r"^```python$", PAGE, re.MULTILINE))
    tests = [len(re.findall(r"^def test_", text, re.MULTILINE)) for name, text in FILES if name.startswith("tests/")]
    assert all(tests)
    printed = run_pytest(project, "-q", "tests")
    assert f"{sum(tests)} passed" in printed, printed
    assert not list(project.rglob("*.db"))


DJANGO = """
SECRET_KEY = "only for tests"
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes"]
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
"""
ON_SQLITE = 'DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}\n'


def run_with(project: Path, folder: str, plugin: str, *args: str) -> str:
    """What pytest prints in a folder of the page, with a plugin of other people."""
    (project / folder / "pytest.ini").write_text("[pytest]\nperdure_app = shop.jobs:app\npythonpath = . ..\n")
    return run_pytest(project / folder, "-q", "-p", plugin, *args)


def test_the_recipe_for_pytest_django_works(project: Path) -> None:
    (project / "with_django" / "settings.py").write_text(DJANGO + ON_SQLITE)
    printed = run_with(project, "with_django", "pytest_django.plugin", "--ds=settings")
    assert "2 passed" in printed, printed
    assert not list(project.rglob("*.db"))


@pytest.mark.postgres
def test_the_recipe_for_pytest_django_works_on_postgres(project: Path, postgres_server: PostgresServer) -> None:
    databases = settings_for(postgres_server.new_database())
    (project / "with_django" / "settings.py").write_text(DJANGO + databases)
    printed = run_with(project, "with_django", "pytest_django.plugin", "--ds=settings")
    assert "2 passed" in printed, printed


TASKS = """
INSTALLED_APPS += ["django_tasks", "perdure.contrib.django"]
TASKS = {"default": {"BACKEND": "perdure.contrib.django.PerdureBackend"}}
"""


COROUTINES = """
from django.contrib.auth.models import Group
from django_tasks import task


@task
async def count():
    return await Group.objects.acount()


def test_a_coroutine_sees_what_the_test_has_written(perdure):
    Group.objects.create(name="ann")
    result = count.enqueue()
    perdure.drain()
    result.refresh()
    assert (result.return_value, Group.objects.count()) == (1, 1)


def test_every_test_begins_with_nothing(perdure):
    assert not Group.objects.exists()
"""


@pytest.mark.parametrize(
    "database",
    [
        "sqlite",
        pytest.param("postgres", marks=pytest.mark.postgres),
        pytest.param("mariadb", marks=pytest.mark.mariadb),
    ],
)
def test_the_recipe_for_django_s_tasks_works(project: Path, database: str, request: pytest.FixtureRequest) -> None:
    databases = ON_SQLITE
    if database == "mariadb":
        need_mysqlclient()
    if database != "sqlite":
        databases = settings_for(request.getfixturevalue(f"{database}_server").new_database())
    (project / "with_tasks" / "settings.py").write_text(DJANGO + databases + TASKS)
    (project / "with_tasks" / "test_coroutines.py").write_text(COROUTINES)
    printed = run_with(project, "with_tasks", "pytest_django.plugin", "--ds=settings")
    assert "4 passed" in printed, printed
    assert not list(project.rglob("*.db"))


def test_the_recipe_for_sqlalchemy_works(project: Path) -> None:
    printed = run_with(project, "with_sqlalchemy", "no:django")
    assert "1 passed" in printed, printed
    assert not list(project.rglob("*.db"))


def test_the_recipe_for_pytest_asyncio_works(project: Path) -> None:
    once = "asyncio_default_fixture_loop_scope=function"
    printed = run_with(project, "with_asyncio", "pytest_asyncio.plugin", "-o", once)
    assert "1 passed" in printed, printed


def test_the_recipe_for_asynchronous_sessions_works(project: Path) -> None:
    once = "asyncio_default_fixture_loop_scope=function"
    printed = run_with(project, "with_async", "pytest_asyncio.plugin", "-o", once)
    assert "1 passed" in printed, printed


@pytest.mark.parametrize("recipe", ["with_asyncio/test_pages.py", "with_async/test_orders.py"])
def test_the_recipes_for_coroutines_work_with_anyio(project: Path, recipe: str) -> None:
    test = project / recipe
    written = test.read_text("utf-8").replace("import pytest_asyncio\n", "").replace("pytest_asyncio.f", "pytest.f")
    test.write_text(written.replace("pytest.mark.asyncio", "pytest.mark.anyio"), "utf-8")
    (test.parent / "conftest.py").write_text(
        "import pytest\n\n\n@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n"
    )
    printed = run_with(project, test.parent.name, "anyio.pytest_plugin")
    assert "1 passed" in printed, printed


def test_a_disappointed_test_prints_what_the_page_says(project: Path) -> None:
    (shown,) = re.findall(r"^```text\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    test = project / "tests" / "test_shop.py"
    test.write_text(test.read_text("utf-8").replace("ann@example.org", "bob@example.org"), "utf-8")
    printed = run_pytest(project, "tests/test_shop.py")
    assert shown in re.sub(r"^E {7}", "", printed, flags=re.MULTILINE), printed
