"""A real MariaDB for tests, from the system's `mariadbd`: one server per test session, a database per test.

The server belongs to a process of its own: see `own_server`. PERDURE_TEST_MYSQL_URL names a server to use instead:
databases called perdure_test_… are made there and dropped.

In a conftest: `from tests.mariadb_server import mariadb_server, mariadb_url`.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pymysql
import pytest

from perdure.store.mysql.statements import Flavour
from tests import own_server
from tests.needs import GIVEN_MYSQL, Need, need, program

KEPT = ("perdure_schema_version", "perdure_mutex")


class MariaDBServer:
    """A running server. Databases made here are empty."""

    def __init__(self, url: str) -> None:
        self._url = urlsplit(url)
        self._shared: str | None = None

    @property
    def flavour(self) -> Flavour:
        """Which of the two servers it is: PERDURE_TEST_MYSQL_URL may name a MySQL."""
        with closing(self.connect()) as connection:
            return flavour_of(connection)

    def url(self, database: str) -> str:
        """The URL of one of its databases."""
        return self._url._replace(path=f"/{database}").geturl()

    def new_database(self) -> str:
        """The URL of a database that nobody has used."""
        name = f"perdure_test_{uuid.uuid4().hex}"
        self.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def shared_database(self) -> str:
        """The URL of one that tests use in turn, each after `empty`."""
        self._shared = self._shared or self.new_database()
        return self._shared

    def empty(self, url: str) -> None:
        """Without rows of Perdure and tables of others: twenty times as fast as to make all tables again."""
        name = self._throw_out(url)
        tables = (
            "SELECT table_name FROM information_schema.tables WHERE table_schema = %s AND table_type = 'BASE TABLE'"
        )
        with closing(self.connect(url)) as connection, connection.cursor() as cursor:
            cursor.execute(tables, (name,))
            for (table,) in cursor.fetchall():
                ours = table.startswith("perdure_")
                if table not in KEPT:
                    cursor.execute(f"DELETE FROM {table}" if ours else f"DROP TABLE {table}")
            connection.commit()

    def drop(self, url: str) -> None:
        self.execute(f"DROP DATABASE {self._throw_out(url)}")

    def _throw_out(self, url: str) -> str:
        """Whoever is still connected: an open transaction would keep us waiting. Returns the name of the database."""
        name = urlsplit(url).path[1:]
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT id FROM information_schema.processlist WHERE db = %s", (name,))
            for (number,) in cursor.fetchall():
                with suppress(pymysql.Error):  # it has just gone
                    cursor.execute(f"KILL {number}")
        return name

    def execute(self, statement: str) -> None:
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(statement)

    def connect(self, url: str | None = None, **options: Any) -> pymysql.Connection[Any]:
        """A connection as a user would open it."""
        return connected(url or self._url.geturl(), **options)


def connected(url: str, **options: Any) -> pymysql.Connection[Any]:
    """A connection as a user would open it."""
    parts = urlsplit(url)
    where: dict[str, Any] = dict(parse_qsl(parts.query)) or {"host": parts.hostname, "port": parts.port or 3306}
    where["ssl_disabled"] = "unix_socket" in where  # PyMySQL takes 50 ms to prepare it
    known = {"user": unquote(parts.username or ""), "password": unquote(parts.password or "")}
    return pymysql.connect(**where, **known, database=parts.path[1:] or None, **options)


def flavour_of(connection: pymysql.Connection[Any]) -> Flavour:
    return Flavour.MARIADB if "mariadb" in str(connection.get_server_info()).lower() else Flavour.MYSQL


@contextmanager
def running(*, folder: Path | None = None) -> Iterator[MariaDBServer]:
    """Start a server and stop it for sure. With `folder`, where its files are to be, it flushes what it commits."""
    with own_server.kept("tests.mariadb_server", folder) as url:
        yield MariaDBServer(url)


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariaDBServer]:
    if given := os.environ.get(GIVEN_MYSQL):
        yield MariaDBServer(given)
        return
    need(Need.MARIADB)
    with running() as server:
        yield server


@pytest.fixture
def mariadb_url(mariadb_server: MariaDBServer) -> Iterator[str]:
    """An empty database that the test has for itself; Perdure's tables may be there."""
    url = mariadb_server.shared_database()
    yield url
    mariadb_server.empty(url)


# -- servers of our own ----------------------------------------------------------------------------------------------

_OWNER = f"--user={pwd.getpwuid(os.getuid()).pw_name}"
_NO_PASSWORD = "--auth-root-authentication-method=normal"
_SMALL = (
    # no test cuts the power: whatever the server has written is there for it after a crash, flushed or not
    *("--innodb-flush-method=nosync", "--innodb-file-per-table=OFF", "--innodb-log-file-size=32M"),
    *("--innodb-buffer-pool-size=64M", "--performance-schema=OFF"),
)


def install(data: Path) -> None:
    """Put the files of a new server there, whose root has no password."""
    own_server.put_blank("mariadb", data, _install)


def _install(data: Path) -> None:
    options = ["--no-defaults", *_where(data), "--skip-test-db", _NO_PASSWORD, *_SMALL]
    subprocess.run([str(program("mariadb-install-db")), *options], check=True, stdout=subprocess.DEVNULL)


def start(data: Path, line: Path, log: Path, *options: str) -> subprocess.Popen[bytes]:
    """A server on these files, as a child of ours, which listens on this socket only."""
    here = [*_where(data), f"--socket={line}", f"--pid-file={line}.pid", "--skip-networking"]
    many = ["--max-connections=500", "--skip-name-resolve", "--skip-log-bin"]
    command = [str(program("mariadbd")), "--no-defaults", *here, *many, *_SMALL, *options]
    with log.open("ab") as told:
        return subprocess.Popen(command, stdout=told, stderr=told)


def _where(data: Path) -> list[str]:
    """A server that starts removes the temporary tables of all others in the same folder: it has one of its own."""
    return [f"--datadir={data}", f"--tmpdir={data.parent}", _OWNER]


def url_of(line: Path, database: str = "") -> str:
    return f"mysql://root@localhost/{database}?unix_socket={line}"


_FLUSHED = ("--innodb-flush-method=fsync", "--innodb-flush-log-at-trx-commit=1", "--innodb-buffer-pool-size=512M")
_UNFLUSHED = ("--innodb-flush-log-at-trx-commit=0",)
"""Nobody kills it and looks at the rest."""


def keep_until_closed(within: str | None = None) -> None:
    """The process that owns the server: starts it, and in the end stops and deletes it."""
    # not pytest's tmp_path: a socket's path must be short, and the server may run as another user
    folder = Path(tempfile.mkdtemp(prefix="perdure-maria-", dir=within))
    data, line, log = folder / "data", folder / "socket", folder / "log"
    install(data)
    server = start(data, line, log, *(_FLUSHED if within else _UNFLUSHED))
    try:
        own_server.wait_for(server, lambda: _answers(line), log)
        own_server.until_closed(url_of(line))
    finally:
        server.kill()  # at once: nobody will look at these files again
        server.wait(own_server.STOP_S)
        shutil.rmtree(folder, ignore_errors=True)


def _answers(line: Path) -> bool:
    with suppress(pymysql.Error):
        connected(url_of(line)).close()
        return True
    return False


if __name__ == "__main__":
    keep_until_closed(*sys.argv[1:])
