"""A child process as its worker sees it: start it, talk with it, end it. Used by `processes`, in one thread each.

The conversation has a socket of its own: standard input and output belong to the handlers. Nothing a job holds is ever
on a command line.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import subprocess
import sys
import time
import weakref
from contextlib import suppress
from typing import Any, cast

from perdure.worker.executors.wire import Unframer, framed

_BOOT = (
    "import sys; sys.path[:] = sys.argv[4:];"  # as in the worker, before anything is imported
    "from perdure.worker.executors.child import main; main(*map(int, sys.argv[1:4]))"
)
_AT_ONCE = 1 << 18
_LAST_BREATH_S = 1.0
"""For a child that has hung up to end by itself, so that its own exit code is kept."""


class ChildProcess:
    """A fresh interpreter, in a session and process group of its own, that runs one job after the other.

    The thread that makes it must live as long as the child: the system tells a child of its parent's death when the
    thread that started it ends.
    """

    def __init__(self) -> None:
        self.runs = 0
        """How many it was given."""
        self.has_hung_up = False
        """It ended, or closed its side of the conversation: nothing more will come from it."""
        self._unsent = bytearray()
        self._unframer = Unframer()
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)
        with theirs:
            self._lifeline: int | None
            hung_on, self._lifeline = os.pipe()
            try:
                self._process = _started(theirs.fileno(), hung_on)
            except BaseException:
                os.close(self._lifeline)
                self._socket.close()
                raise
            finally:
                os.close(hung_on)
        self._poll = select.poll()
        self._death: int | None = _watched(self._process.pid)
        if self._death is not None:
            self._poll.register(self._death, select.POLLIN)
        _children.add(self)
        self.send("hello", sys.argv, logging.getLogger().level)

    @property
    def pid(self) -> int:
        return self._process.pid

    # -- talking -----------------------------------------------------------------------------------------------------

    def send(self, *frame: Any) -> None:
        """Never waits: what does not go out now goes out while listening."""
        self._unsent += framed(*frame)
        self._push()

    def heard(self, wait_s: float) -> list[list[Any]]:
        """The frames that arrive within that time. ValueError: it sent something else."""
        wanted = select.POLLIN | (select.POLLOUT if self._unsent else 0)
        self._poll.register(self._socket, wanted)
        ready = {fd for fd, _ in self._poll.poll(max(0.0, wait_s) * 1000)}
        if self._socket.fileno() not in ready and self._death not in ready:
            return []
        self._push()
        frames = self._pull()
        if self._death in ready:
            while not self.has_hung_up and (more := self._pull()):  # what it said last
                frames += more
            self.has_hung_up = True
        return frames

    def _push(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:  # it is gone, which the next look at it shows
            self._unsent.clear()

    def _pull(self) -> list[list[Any]]:
        try:
            data = self._socket.recv(_AT_ONCE)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self.has_hung_up = True
        return list(self._unframer.feed(data))

    # -- the end -----------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """End it and everything it started, now."""
        with suppress(ProcessLookupError, PermissionError):  # the leader's number is its own until `bury`
            os.killpg(self._process.pid, signal.SIGKILL)

    def bury(self, patience_s: float = _LAST_BREATH_S) -> int:
        """Hang up, let it end by itself for a while, then kill what is left of its group.

        Answers its exit code; a negative one is the signal that ended it.
        """
        self._socket.close()
        self._await_death(patience_s)
        self.kill()
        code = self._process.wait()
        self.part()
        return code

    def _await_death(self, patience_s: float) -> None:
        """Without taking its exit code: until that is taken, its number is not given to another process."""
        if self._death is not None:
            death = select.poll()  # not select(), which refuses numbers from 1024 on
            death.register(self._death, select.POLLIN)
            death.poll(max(0.0, patience_s) * 1000)
            return
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline and os.waitid(os.P_PID, self.pid, _LOOK_ONLY) is None:
            time.sleep(0.01)

    def part(self) -> None:
        """Give back what is held open for it. In a fork of the worker: the child is not the fork's."""
        self._socket.close()
        for fd in (self._lifeline, self._death):
            if fd is not None:
                os.close(fd)
        self._lifeline = self._death = None


def _started(conversation: int, lifeline: int) -> subprocess.Popen[bytes]:
    args = getattr(subprocess, "_args_from_interpreter_flags")  # noqa: B009 - -W, -X, -O: as multiprocessing does
    flags = cast("list[str]", args())
    numbers = (str(conversation), str(lifeline), str(os.getpid()))
    return subprocess.Popen(  # noqa: S603 - our own interpreter
        [sys.executable, *flags, "-c", _BOOT, *numbers, *sys.path],
        stdin=subprocess.DEVNULL,
        pass_fds=(conversation, lifeline),
        start_new_session=True,
    )


def _watched(pid: int) -> int | None:
    """Something that becomes readable when the process ends, where the system has that."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:  # forbidden to us; then the end of the conversation has to do
        return None


def _forked() -> None:
    """A fork of the worker lets go: otherwise the children would live as long as the fork."""
    for child in list(_children):
        child.part()
    _children.clear()


_LOOK_ONLY = os.WEXITED | os.WNOHANG | os.WNOWAIT
_children: weakref.WeakSet[ChildProcess] = weakref.WeakSet()
os.register_at_fork(after_in_child=_forked)
