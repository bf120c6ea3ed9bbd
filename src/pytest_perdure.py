"""The pytest plugin: the fixture `perdure` is a test kit (`app.testing()`) for the app that the project names.

pytest imports this at every start, so the package itself is imported by the fixtures only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from perdure import Perdure
    from perdure.testing import Kit


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("perdure_app", "the app that the `perdure` fixture tests, as module:name (shop.jobs:app)", default="")


@pytest.fixture(scope="session")
def perdure_app(pytestconfig: pytest.Config) -> Perdure:
    """The app under test: `perdure_app` in pytest's settings, else PERDURE_APP, else `[tool.perdure]` in
    pyproject.toml. A project that makes its app otherwise has a fixture of this name in its conftest.py."""
    from perdure.errors import ConfigError
    from perdure.testing.discovery import named_app

    try:
        return named_app(str(pytestconfig.getini("perdure_app")) or None, pytestconfig.rootpath)
    except ConfigError as error:
        problem = str(error)
    pytest.fail(problem, pytrace=False)  # out here: pytest would show the error and what it came from, the same twice


@pytest.fixture
def perdure(perdure_app: Perdure) -> Iterator[Kit]:
    """A test kit: the app on a temporary database with a manual clock, for the length of one test."""
    with perdure_app.testing() as kit:
        yield kit
