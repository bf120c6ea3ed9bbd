"""The project in examples/django, in this process, on every database. On SQLite each test has a copy of a migrated
file; on a server one migrated database, without what the tests before have left."""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import django
import pytest

from tests.contrib_django.project import EXAMPLE
from tests.django_databases import entry, need_mysqlclient
from tests.mariadb_server import mariadb_server
from tests.postgres_server import postgres_server, postgres_url

__all__ = ["mariadb_server", "postgres_server", "postgres_url"]

sys.path.insert(0, str(EXAMPLE))
os.environ["DJANGO_SETTINGS_MODULE"] = "shop.settings"
django.setup()

EVERY_DATABASE = [
    "sqlite",
    pytest.param("postgres", marks=pytest.mark.postgres),
    pytest.param("mariadb", marks=pytest.mark.mariadb),
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Modules that say ON_EVERY_DATABASE have their tests of the app on each; the others on SQLite."""
    if "app" in metafunc.fixturenames and hasattr(metafunc.module, "ON_EVERY_DATABASE"):
        metafunc.parametrize("database", EVERY_DATABASE, indirect=True)


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file on which `migrate` has run, and nobody else."""
    file = tmp_path_factory.mktemp("migrated") / "shop.sqlite3"
    _migrate(_file(file))
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return file


@pytest.fixture
def database(request: pytest.FixtureRequest) -> str:
    """Which one the test runs on."""
    return str(getattr(request, "param", "sqlite"))


@pytest.fixture
def app(request: pytest.FixtureRequest, database: str) -> Iterator[Any]:
    """The Perdure app behind the project's tasks, on a database of the test's own, which is Django's too."""
    if database == "sqlite":
        file = request.getfixturevalue("tmp_path") / "shop.db"
        shutil.copy(request.getfixturevalue("migrated"), file)
        settings, clear = _file(file), None
    else:
        settings, clear = request.getfixturevalue(f"migrated_{database}")
    _use(settings)
    from perdure.contrib.django.backend import app_of

    app = app_of()
    yield app
    if clear is not None:
        clear()
    _use(settings)


@pytest.fixture(scope="session")
def migrated_postgres(postgres_server: Any) -> tuple[dict[str, Any], Callable[[], None]]:
    return _migrated_on(postgres_server.new_database(), "TRUNCATE {}")


@pytest.fixture(scope="session")
def migrated_mariadb(mariadb_server: Any) -> tuple[dict[str, Any], Callable[[], None]]:
    need_mysqlclient()
    return _migrated_on(mariadb_server.new_database(), "DELETE FROM {}")


def _migrated_on(url: str, clearing: str) -> tuple[dict[str, Any], Callable[[], None]]:
    """The entry of DATABASES for a database on which `migrate` has run, and what empties it of all that came later."""
    from django.db import connection

    settings = entry(url)
    _migrate(settings)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT table_schema, table_name FROM information_schema.tables WHERE table_type = 'BASE TABLE'"
            " AND table_schema IN ('perdure', 'public', %s)",
            (settings["NAME"],),
        )
        tables = [f"{schema}.{name}" for schema, name in cursor.fetchall()]
        filled = [name for name in tables if _has_rows(cursor, name)]
    empty = [name for name in tables if name not in filled]
    lists = [", ".join(empty)] if clearing.startswith("TRUNCATE") else empty

    def clear() -> None:
        with connection.constraint_checks_disabled(), connection.cursor() as cursor:
            for names in lists:
                cursor.execute(clearing.format(names))

    return settings, clear


def _has_rows(cursor: Any, table: str) -> bool:
    cursor.execute(f"SELECT 1 FROM {table} LIMIT 1")
    return cursor.fetchone() is not None


def _file(file: Path) -> dict[str, Any]:
    from django.conf import settings

    return {**settings.SQLITE, "NAME": str(file)}


def _migrate(settings: dict[str, Any]) -> None:
    from django.core.management import call_command

    _use(settings)
    call_command("migrate", verbosity=0)
    _use(settings)


def _use(settings: dict[str, Any]) -> None:
    """As Django's test runner does: close the connections, and name another database."""
    from django.db import connections

    from perdure.contrib.django.backend import backends

    connections.close_all()
    connections.settings["default"] = connections.configure_settings({"default": {**settings}})["default"]
    del connections["default"]
    for backend in backends():
        backend.app.close()
