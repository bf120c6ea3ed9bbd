"""An app on a fresh MariaDB database with one kind in it, and the user's own table beside Perdure's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from perdure import Perdure
from tests.mariadb_server import MariaDBServer, mariadb_server, mariadb_url
from tests.worker.patience import seen_by_the_doctor

__all__ = ["mariadb_server", "mariadb_url"]


@pytest.fixture
def app(mariadb_url: str) -> Iterator[Perdure]:
    app = Perdure(mariadb_url, auto_migrate=True)
    yield app
    seen_by_the_doctor(app)


@pytest.fixture
def send(app: Perdure) -> Any:
    """A kind."""

    @app.job(queue="mail")
    def send(to: str, subject: str = "hi") -> str:
        return f"{subject} {to}"

    return send


@pytest.fixture
def orders(app: Perdure, mariadb_server: MariaDBServer, mariadb_url: str) -> None:
    app.store.upgrade()
    with mariadb_server.connect(mariadb_url) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
