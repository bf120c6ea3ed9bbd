"""What identifies a process, and whether another one on this machine still runs. Reads /proc; used by `upkeep`."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Protocol

from perdure.store.rows import NodeRow, Process, ReservationRow


class Liveness(Protocol):
    """Identifies this process, and tells which nodes and holders of reservations are gone."""

    def own(self) -> Process:
        """What identifies this process among all others."""
        ...

    def is_gone(self, node: NodeRow | ReservationRow) -> bool:
        """True only where it is certain: it ran on this machine, under this kernel, and its process has ended."""
        ...


class ProcLiveness:
    """By pid and start time, which together name one process of one boot."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc

    def own(self) -> Process:
        return Process(
            host=socket.gethostname(),
            pid=os.getpid(),
            process_start=self._own_start(),
            boot_id=self._boot_id(),
            pid_namespace=self._pid_namespace(),
        )

    def is_gone(self, node: NodeRow | ReservationRow) -> bool:
        """A node of a host of the same name under another boot is not certain to be gone: names repeat, and so do the
        numbers of pid namespaces. It is declared dead when it is silent."""
        if node.pid is None or node.process_start is None or node.boot_id is None or node.pid_namespace is None:
            return False
        here = (self._boot_id(), self._pid_namespace())
        if here != (node.boot_id, node.pid_namespace) or self._own_start() is None:
            return False
        stat = self._stat_of(node.pid)
        if stat is None:
            return _is_free(node.pid)
        state, start = stat
        return state in "ZXx" or start != node.process_start

    def _own_start(self) -> str | None:
        """None where /proc shows the processes of another namespace: then its numbers are not ours."""
        try:
            shows_us = os.readlink(self._proc / "self") == str(os.getpid())  # noqa: PTH115 - a number, no path
        except OSError:
            return None
        stat = self._stat_of(os.getpid()) if shows_us else None
        return stat and stat[1]

    def _stat_of(self, pid: int) -> tuple[str, str] | None:
        """A process's state and its start in clock ticks since the boot. None: it cannot be seen."""
        try:
            stat = (self._proc / str(pid) / "stat").read_bytes()
        except OSError:
            return None
        state, *rest = stat.rpartition(b")")[2].split()  # the name before it may contain anything
        return state.decode(), rest[18].decode()

    def _boot_id(self) -> str | None:
        try:
            return (self._proc / "sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            return None

    def _pid_namespace(self) -> str | None:
        try:
            return os.readlink(self._proc / "self/ns/pid")  # noqa: PTH115 - "pid:[…]" is no path
        except OSError:
            return None


def _is_free(pid: int) -> bool:
    """Whether no process has this number. /proc may hide one of another user (hidepid), this does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
