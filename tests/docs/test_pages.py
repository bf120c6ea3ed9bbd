"""The guides do what they say: their files are written, their programs and commands run, their output is compared."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from perdure.store.open import open_store
from tests.customers import free_port
from tests.django_databases import settings_for
from tests.docs import pages
from tests.mariadb_server import mariadb_server
from tests.postgres_server import postgres_server

__all__ = ["mariadb_server", "postgres_server"]

PAGES = {
    "coming-from-apscheduler.md": 5,
    "coming-from-celery.md": 6,
    "databases.md": 10,
    "django.md": 10,
    "doctor.md": 3,
    "flows.md": 6,
    "handlers.md": 4,
    "jobs.md": 4,
    "limits.md": 5,
    "operations.md": 6,
    "processes.md": 1,
    "reservations.md": 4,
    "retention.md": 6,
    "schedules.md": 12,
    "stores.md": 2,
    "templates.md": 8,
    "tutorial.md": 22,
    "web.md": 5,
    "worker.md": 3,
}
"""And how many programs and commands there are at least: a page that runs nothing would pass."""
TUTORIALS = {"tutorial-django.md": 11, "tutorial-fastapi.md": 9}
"""The same for pages with web servers, whose port is 8000 to readers."""
LEFT_OUT = {"performance.md": 2}
"""How many blocks of a page are marked as not to be run, with the reason above them."""
ELSEWHERE = ("testing.md",)
"""Whose programs are tests, which tests/testing/test_documents.py runs."""


@pytest.mark.parametrize(("name", "at_least"), PAGES.items(), ids=PAGES)
def test_a_page_runs_as_printed(name: str, at_least: int, folder: Path) -> None:
    ran = pages.run(name, folder)
    assert ran.problems == [], "\n\n".join(ran.problems)
    assert ran.commands >= at_least
    assert ran.left_out == LEFT_OUT.get(name, 0)


@pytest.mark.parametrize(("name", "at_least"), TUTORIALS.items(), ids=TUTORIALS)
def test_a_tutorial_can_be_followed_over_http(name: str, at_least: int, folder: Path) -> None:
    page = (pages.DOCS / name).read_text("utf-8").replace("8000", str(free_port()))
    ran = pages.run_text(page, folder)
    assert ran.problems == [], "\n\n".join(ran.problems)
    assert (ran.commands >= at_least, ran.left_out) == (True, 0)


SERVERS = [
    pytest.param("postgres", marks=pytest.mark.postgres),
    pytest.param("mariadb", marks=[pytest.mark.mariadb, pytest.mark.full]),
]


@pytest.mark.parametrize("sort", SERVERS)
def test_the_fastapi_tutorial_is_the_same_on_servers(sort: str, folder: Path, request: pytest.FixtureRequest) -> None:
    """But for the URL."""
    url = request.getfixturevalue(f"{sort}_server").new_database()
    tutorial = (pages.DOCS / "tutorial-fastapi.md").read_text("utf-8").replace("8000", str(free_port()))
    driver = {"postgres": "psycopg", "mariadb": "aiomysql"}[sort]
    page = tutorial.replace("sqlite+aiosqlite:///shop.db", url.replace("://", f"+{driver}://", 1))
    assert page != tutorial
    store = open_store(url)
    store.upgrade()
    store.close()
    ran = pages.run_text(page, folder)
    assert ran.problems == [], "\n\n".join(ran.problems)
    assert not (folder / "shop.db").exists()


@pytest.mark.parametrize("sort", SERVERS)
def test_the_django_tutorial_is_the_same_on_servers(sort: str, folder: Path, request: pytest.FixtureRequest) -> None:
    """But for DATABASES."""
    url = request.getfixturevalue(f"{sort}_server").new_database()
    tutorial = (pages.DOCS / "tutorial-django.md").read_text("utf-8").replace("8000", str(free_port()))
    (on_sqlite,) = re.findall(r"^DATABASES.*# SQLite only$", tutorial, re.MULTILINE)
    ran = pages.run_text(tutorial.replace(on_sqlite, settings_for(url)), folder)
    assert ran.problems == [], "\n\n".join(ran.problems)
    assert not (folder / "db.sqlite3").exists()


@pytest.mark.parametrize("sort", SERVERS)
def test_the_tutorial_is_the_same_on_servers(sort: str, folder: Path, request: pytest.FixtureRequest) -> None:
    """But for the URL, and what a worker says first, of its database."""
    url = request.getfixturevalue(f"{sort}_server").new_database()
    tutorial = (pages.DOCS / "tutorial.md").read_text("utf-8")
    page = tutorial.replace('"jobs.db"', repr(url)).replace("database  …/jobs.db (found)", "database  …")
    page = page.replace(
        "$ perdure worker --until-idle\n", "$ perdure worker --until-idle\n…\n"
    )  # "this worker listens"
    command, export = "perdure db upgrade", "$ export PERDURE_APP=jobs:app\n"
    assert tutorial.count(f'put its URL in place of "jobs.db", run `{command}`') == tutorial.count(export) == 1
    ran = pages.run_text(page.replace(export, f"{export}$ {command}\n…\n"), folder)
    assert ran.problems == [], "\n\n".join(ran.problems)
    assert not (folder / "jobs.db").exists()


def test_the_commands_of_the_readme_can_be_typed_one_after_the_other(folder: Path) -> None:
    readme = (pages.DOCS.parent / "README.md").read_text("utf-8")
    (block,) = (one for one in pages.blocks(readme) if one.language == "sh" and "perdure init" in one.text)
    typed = [line.partition(" #")[0].rstrip() for line in block.text.splitlines()]
    unknown = [command for command in typed if command.startswith("perdure explain")]  # an id of nobody's
    shown = ((command, "perdure: …" if command in unknown else "…") for command in typed)
    page = "".join(f"```console\n$ {command}\n{output}\n```\n" for command, output in shown)

    ran = pages.run_text(page, folder)

    assert ran.problems == [], "\n\n".join(ran.problems)
    assert (ran.commands, len(unknown)) == (len(typed), 1)


def test_no_page_has_programs_or_commands_that_nobody_runs() -> None:
    runnable = {
        path.name: [block for block in pages.blocks(path.read_text("utf-8")) if block.language in ("python", "console")]
        for path in pages.DOCS.glob("*.md")
    }
    left_out = {name: sum(block.left_out for block in found) for name, found in runnable.items()}
    unmarked = {name for name, found in runnable.items() if not all(block.left_out for block in found)}

    assert unmarked == {*PAGES, *TUTORIALS, *ELSEWHERE}
    assert {name: count for name, count in left_out.items() if count} == LEFT_OUT
