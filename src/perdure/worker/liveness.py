"""Which process is which, and whether another one on this machine is still there. Reads /proc; used by rescue."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Protocol

from perdure.store.answers import NodeRow, Process


class Liveness(Protocol):
    """Who I am, and who is gone."""

    def own(self) -> Process:
        """What tells this process from every other."""
        ...

    def is_gone(self, node: NodeRow) -> bool:
        """True only where it is certain: the node ran on this machine, under this kernel, and its process has ended."""
        ...


class ProcLiveness:
    """By pid and start time, which together name one process of one boot."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc

    def own(self) -> Process:
        pid = os.getpid()
        return Process(
            host=socket.gethostname(),
            pid=pid,
            process_start=self._start_of(pid),
            boot_id=self._boot_id(),
            pid_namespace=self._pid_namespace(),
        )

    def is_gone(self, node: NodeRow) -> bool:
        here = self.own()
        if node.pid is None or node.process_start is None or node.boot_id is None or node.pid_namespace is None:
            return False
        if node.boot_id != here.boot_id:
            # The same host under another boot id has been started anew; another host just has another one.
            return node.host == here.host and here.boot_id is not None and node.pid_namespace == here.pid_namespace
        if node.pid_namespace != here.pid_namespace:
            return False
        return self._start_of(node.pid) != node.process_start

    def _start_of(self, pid: int) -> str | None:
        """The process's start in clock ticks since the boot; None for one that has ended, a zombie too."""
        try:
            stat = (self._proc / str(pid) / "stat").read_text()
        except OSError:
            return None
        state, *rest = stat.rpartition(")")[2].split()  # the name before it may contain anything
        return None if state in "ZXx" else rest[18]

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
