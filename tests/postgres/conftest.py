"""An app on a fresh PostgreSQL database with one kind in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from perdure import Perdure
from tests.postgres_server import postgres_server, postgres_url

__all__ = ["postgres_server", "postgres_url"]


@pytest.fixture
def app(postgres_url: str) -> Iterator[Perdure]:
    app = Perdure(postgres_url, auto_migrate=True)
    yield app
    app.close()


@pytest.fixture
def other(app: Perdure, postgres_url: str) -> Iterator[Perdure]:
    """Another app on the same database, as in another process, that does not wait long for anything."""
    app.store.upgrade()
    other = Perdure(postgres_url, busy_timeout_s=0.2)
    yield other
    other.close()


@pytest.fixture
def send(app: Perdure) -> Any:
    """A kind."""
    return declare(app)


def declare(app: Perdure) -> Any:
    @app.job(queue="mail")
    def send(to: str, subject: str = "hi") -> str:
        return f"{subject} {to}"

    return send
