"""A database server that a test may kill, restart and replace: what is the same for every dialect.

It is a child of the test's own process, and ends with its group at the latest.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from tests.faults.scene import until
from tests.outages.proxy import LOCAL


class Server(ABC):
    """One server, in a folder of its own; its address stays the same over restarts."""

    isolation: ClassVar[str]
    """The statement that tells the isolation of transactions on a connection."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.log = folder / "log"
        self._process: subprocess.Popen[bytes] | None = None

    # -- its life ----------------------------------------------------------------------------------------------------

    def create(self, blank: Path | None = None) -> None:
        """Make its files, or copy those of one that was never started."""
        if blank is None:
            self.install()
        else:
            subprocess.run(["cp", "-a", blank, self.data], check=True)

    def start(self) -> None:
        """Returns when it accepts connections."""
        self._process = process = self.launched()

        def answers() -> bool:
            assert process.poll() is None, self.log.read_text()[-3000:]
            return self.answers()

        until(answers, "the server accepts connections")

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
        until(lambda: all(state_of(pid) in ("", "Z") for pid in children), "every process of the server is gone")

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(self.line))
        except OSError:
            connection.close()
            raise
        return connection

    # -- what a dialect supplies -------------------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def give(cls, folder: Path) -> None:
        """Let the server have this folder, if it runs as another user."""

    @property
    @abstractmethod
    def line(self) -> Path:
        """Its socket."""

    @property
    @abstractmethod
    def url(self) -> str: ...

    @abstractmethod
    def url_at(self, port: int, host: str = LOCAL) -> str:
        """The same database through a proxy."""

    @abstractmethod
    def install(self) -> None:
        """Make its files."""

    @abstractmethod
    def launched(self) -> subprocess.Popen[bytes]:
        """Its process, which may not accept connections yet."""

    @abstractmethod
    def clear_away(self) -> None:
        """Remove what it has left outside of its folder, being killed."""

    @abstractmethod
    def answers(self) -> bool: ...

    @abstractmethod
    def user(self) -> AbstractContextManager[Any]:
        """A connection as a user opens it, with a transaction that is committed in the end."""

    @abstractmethod
    def isolate(self, level: str) -> None:
        """Let transactions of new connections have this isolation by default."""

    @abstractmethod
    def end_connections(self) -> int:
        """Those of Perdure. Returns how many there were."""


S = TypeVar("S", bound=Server)


@contextmanager
def two_servers(sort: type[S]) -> Iterator[list[S]]:
    """Two of them, neither created nor started; each that was started is killed in the end, and its files are
    removed."""
    # not pytest's tmp_path: a socket's path must be short, and the server may run as another user
    root = Path(tempfile.mkdtemp(prefix="perdure-outage-"))
    made = [sort(root / name) for name in ("a", "b")]
    try:
        for path in (root, *(server.folder for server in made)):
            path.mkdir(exist_ok=True)
            sort.give(path)
        yield made
    finally:
        for server in made:
            server.kill()
            server.clear_away()
        shutil.rmtree(root, ignore_errors=True)


def _children_of(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


def state_of(pid: int) -> str:
    """The letter that the kernel has for what a process does; empty: there is no such process."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""
