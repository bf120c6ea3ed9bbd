"""The pytest plugin: the fixture `perdure` is a test kit (`app.testing()`) for the app that the project names.

pytest imports this at every start, so the package itself is imported by the fixtures only.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from perdure import Perdure
    from perdure.testing import Kit


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("perdure_app", "the app that the `perdure` fixture tests, as module:name (shop.jobs:app)", default="")
    about = "a database for tests alone, on which the `perdure` fixture runs them: it is emptied"
    parser.getgroup("perdure").addoption("--perdure-url", metavar="URL", help=about)


@pytest.fixture(scope="session")
def perdure_app(pytestconfig: pytest.Config) -> Perdure:
    """The app under test: `perdure_app` in pytest's settings, else PERDURE_APP, else `[tool.perdure]` in
    pyproject.toml. A project that makes its app otherwise has a fixture of this name in its conftest.py."""
    from perdure.errors import ConfigError

    try:
        return _named_app(str(pytestconfig.getini("perdure_app")) or None, pytestconfig.rootpath)
    except ConfigError as error:
        problem = str(error)
    pytest.fail(problem, pytrace=False)  # out here: pytest would show the error and what it came from, the same twice


def _named_app(app: str | None, root: Path) -> Perdure:
    """The app that the nearest place names, looked for from the project's folder, wherever pytest was started. As the
    command line has it, but for the database."""
    from perdure.cli.discovery import APP_VARIABLE, load_app, places
    from perdure.errors import ConfigError

    with chdir(root):
        for named in places(None, app):
            if named.app:
                return load_app(named.app)[0]
    raise ConfigError(
        "the fixture does not know which app to test; write perdure_app = shop.jobs:app in pytest's settings, set"
        f" {APP_VARIABLE}, write app under [tool.perdure] in pyproject.toml, or define a fixture perdure_app in"
        " conftest.py that returns it",
        code="app_not_found",
    )


@pytest.fixture(scope="session")
def perdure_url(pytestconfig: pytest.Config) -> str | None:
    """The database of `--perdure-url`; beside it, one for each process of pytest-xdist, made if it is missing. None:
    each test has a temporary file."""
    url: str | None = pytestconfig.getoption("--perdure-url")
    process = os.environ.get("PYTEST_XDIST_WORKER")
    if url is None or process is None:
        return url
    from perdure.store.open import database_beside

    return database_beside(url, process)


@pytest.fixture
def perdure(perdure_app: Perdure, perdure_url: str | None) -> Iterator[Kit]:
    """A test kit: the app on a database for tests with a manual clock, for the length of one test."""
    with perdure_app.testing(url=perdure_url) as kit:
        yield kit
