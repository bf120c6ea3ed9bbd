"""The project in examples/django, in this process: each test has a copy of a migrated file as its database."""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import django
import pytest

from tests.contrib_django.project import EXAMPLE
from tests.postgres_server import postgres_server, postgres_url

__all__ = ["postgres_server", "postgres_url"]

sys.path.insert(0, str(EXAMPLE))
os.environ["DJANGO_SETTINGS_MODULE"] = "shop.settings"
django.setup()


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file on which `migrate` has run, and nobody else."""
    from django.core.management import call_command

    file = tmp_path_factory.mktemp("migrated") / "shop.sqlite3"
    _use(file)
    call_command("migrate", verbosity=0)
    _use(file)
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return file


@pytest.fixture
def app(migrated: Path, tmp_path: Path) -> Iterator[Any]:
    """The Perdure app behind the project's tasks, on a database of the test's own, which is Django's too."""
    file = tmp_path / "shop.db"
    shutil.copy(migrated, file)
    _use(file)
    from perdure.contrib.django.backend import app_of

    app = app_of()
    yield app
    _use(file)


def _use(file: Path) -> None:
    """As Django's test runner does: close the connections, and change the name."""
    from django.db import connections

    from perdure.contrib.django.backend import backends

    connections.close_all()
    connections["default"].settings_dict["NAME"] = str(file)
    for backend in backends():
        backend.app.close()
