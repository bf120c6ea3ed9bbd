"""Which app the pytest fixtures are about: as the command line has it, but for the database. Called by the plugin."""

from __future__ import annotations

from contextlib import chdir
from pathlib import Path
from typing import TYPE_CHECKING

from perdure.cli.discovery import APP_VARIABLE, load_app, places
from perdure.errors import ConfigError

if TYPE_CHECKING:
    from perdure.app import Perdure


def named_app(app: str | None, root: Path) -> Perdure:
    """The app that the nearest place names, looked for from the project's folder, wherever pytest was started."""
    with chdir(root):
        for named in places(None, app):
            if named.app:
                return load_app(named.app)
    raise ConfigError(
        "the fixture does not know which app to test; write perdure_app = shop.jobs:app in pytest's settings, set"
        f" {APP_VARIABLE}, write app under [tool.perdure] in pyproject.toml, or define a fixture perdure_app in"
        " conftest.py that returns it",
        code="app_not_found",
    )
