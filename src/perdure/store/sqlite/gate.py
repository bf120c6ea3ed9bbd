"""Turns between the processes that write one SQLite file. Used by the writer, once it has its turn in the process.

SQLite's writers poll for its lock, and the last holder mostly gets it again: beside two busy writers a third one waited
up to 12 s. So if several processes write, each first takes two record locks on a file of our own. T is the turnstile, L
the room: take T, take L, give T back, write, give L back. The last writer finds T held by the next one and cannot
overtake it.

A process that writes alone need not pay for that. The first byte of the file says whether anyone has had to wait
lately; only then do writers use the gate. It is a hint: a wrong one costs some milliseconds.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from math import exp2
from os import PathLike
from time import monotonic, sleep
from weakref import WeakValueDictionary

from perdure.store.sqlite.files import Identity, identity

BOARD_SIZE = 64
"""Bytes of the gate's file that all processes share: the first is the gate's, the others belong to `bell`."""
_T = 0  # byte of the turnstile
_L = 1  # byte of the room behind it
_TAKE = 2 | 4  # LOCK_EX | LOCK_NB, which a platform without fcntl does not name
_GIVE = 8  # LOCK_UN
_CALM = 16  # entries in a row without a wait, before a process assumes that it is alone
_HELD = (BlockingIOError, PermissionError)  # POSIX lets a system say either for "held by another process"


class Board:
    """A few bytes that all processes with the same database share: only hints, nothing depends on them.

    Read and written by system calls of half a microsecond, not mapped into memory: if a mapped file is shortened
    (`: > jobs.db-gate`, a restored backup), every process that touches it is killed. Here the bytes of a shortened file
    are 0, and a full disk keeps the old ones. Without a file the board is local to this process.
    """

    __slots__ = ("_alone", "_fd", "file")

    def __init__(self, fd: int | None, file: Identity | None) -> None:
        self._fd = fd
        self.file = file
        self._alone = bytearray(BOARD_SIZE)

    def __getitem__(self, slot: int) -> int:
        if self._fd is None:
            return self._alone[slot]
        try:
            found = os.pread(self._fd, 1, slot)
        except OSError:
            return 0
        return found[0] if found else 0

    def __setitem__(self, slot: int, value: int) -> None:
        if self._fd is None:
            self._alone[slot] = value
        elif not self.is_robbed():  # else the descriptor may belong to another file by now
            with suppress(OSError):
                os.pwrite(self._fd, b"\1" if value else b"\0", slot)

    def all(self) -> bytes:
        """Every byte at once."""
        if self._fd is None:
            return bytes(self._alone)
        with suppress(OSError):
            return os.pread(self._fd, BOARD_SIZE, 0).ljust(BOARD_SIZE, b"\0")
        return bytes(BOARD_SIZE)

    def is_robbed(self) -> bool:
        """Whether other code closed our descriptor, and so surely those of the database too."""
        try:
            return self._fd is not None and identity(os.fstat(self._fd)) != self.file
        except OSError:
            return True


class Gate:
    """The turnstile in front of one database file, for this process. Get it from `gate_for`, never build one.

    If `board[0]` is not 0, writers should `enter` before they write. A writer that finds the database locked sets it.

    It is only for fairness. `enter` may return False (time-out, no right to create the file, no record locks on this
    filesystem or platform): then nothing is held and the caller writes anyway; SQLite's own lock keeps it correct.

    Record locks belong to the process, not to a thread: the caller holds the process's turn at this database from
    before `enter` until after `leave`. A process that dies leaves the gate; a forked child is never inside it.
    """

    __slots__ = ("__weakref__", "_calm", "_fd", "board", "inside")

    def __init__(self, fd: int | None, file: Identity | None) -> None:
        self._fd = fd
        self.inside = False
        self._calm = 0
        self.board = Board(fd, file)

    def enter(self, timeout_s: float) -> bool:
        """Wait for this process's turn. True: inside until `leave`. False: nothing is held, write without it."""
        fd = self._fd
        if fd is None:
            return False
        try:
            try:
                lockf(fd, _TAKE, 2, _T)  # T and L in one call: nobody is inside, nobody is next
                self._calm += 1
                if self._calm == _CALM:
                    self._calm = self.board[0] = 0
            except _HELD:
                self._calm = 0
                if not self._wait_in_line(fd, timeout_s):
                    return False
            lockf(fd, _GIVE, 1, _T)
        except OSError:  # no record locks here, or other code closed our descriptor
            _drop_both(fd)
            return False
        except BaseException:
            _drop_both(fd)
            raise
        self.inside = True
        return True

    def leave(self) -> None:
        """Let the next process in. Does nothing if the last `enter` returned False."""
        if self.inside and self._fd is not None:
            try:  # noqa: SIM105 - suppress() is Python code, and this is on the way of every write
                lockf(self._fd, _GIVE, 1, _L)
            except OSError:
                pass
            self.inside = False  # last: an interrupted call may be repeated

    def _wait_in_line(self, fd: int, timeout_s: float) -> bool:
        """Take T, then L. On False neither is held."""
        deadline = monotonic() + timeout_s
        if not self._poll(fd, _T, _pause_at_turnstile, deadline):
            return False
        if self._poll(fd, _L, _pause_at_room, deadline):
            return True
        _drop_both(fd)
        return False

    def _poll(self, fd: int, byte: int, pause: Callable[[float], float], deadline: float) -> bool:
        """Poll for a free byte until the deadline: a blocking F_SETLKW has no time-out."""
        started = monotonic()
        while True:
            self.board[0] = 1
            try:
                lockf(fd, _TAKE, 1, byte)
            except _HELD:
                now = monotonic()
                if now >= deadline:
                    return False
                sleep(min(pause(now - started), deadline - now))
            else:
                return True

    def is_robbed(self) -> bool:
        return self.board.is_robbed()

    def owners(self) -> tuple[int, ...]:
        """The user who owns the file; empty if there is no file."""
        with suppress(OSError):
            if self._fd is not None:
                return (os.fstat(self._fd).st_uid,)
        return ()

    def forget_parent(self) -> None:
        """Called in a forked child, which inherits this object but none of its parent's record locks."""
        self.inside = False

    def __del__(self) -> None:
        # Closing any descriptor of the file drops every lock this process has on it; here none is left.
        # The descriptor may belong to another file by now, if the program closed all of them to become a daemon.
        with suppress(OSError):
            if self._fd is not None and not self.is_robbed():
                os.close(self._fd)


def gate_for(db_path: str | PathLike[str]) -> Gate:
    """The one gate of this process for a database, by whatever path. Creates `<db>-gate` (0600) beside it.

    Keep a reference: without one the gate and its descriptor are closed. If the file cannot be created or opened, the
    gate is disabled: its `enter` returns False at once.
    """
    path = os.path.realpath(db_path) + "-gate"
    with _registry.lock:
        return _registry.known(path) or _registry.open(path)


class _Registry:
    """The gates of this process, by device and inode of their files. An open descriptor keeps its inode from reuse."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._gates: WeakValueDictionary[Identity, Gate] = WeakValueDictionary()

    def known(self, path: str) -> Gate | None:
        """Found by path: opening and closing the file would drop the locks held on it."""
        with suppress(OSError):
            return self._gates.get(identity(os.stat(path)))  # noqa: PTH116 - the path is a string already
        return None

    def open(self, path: str) -> Gate:
        try:
            fd = _open(path)
        except OSError:
            return Gate(None, None)
        file = identity(os.fstat(fd))
        gate = self._gates[file] = Gate(fd, file)
        return gate

    def forget_parent(self) -> None:
        self.lock = threading.Lock()
        for gate in self._gates.values():
            gate.forget_parent()


_registry = _Registry()
if sys.platform != "win32":
    os.register_at_fork(after_in_child=_registry.forget_parent)


def _pause_at_turnstile(waited_s: float) -> float:
    """New waiters poll seldom, old ones often: this makes polling nearly first come, first served.

    From 2 ms, halved every 5 ms, down to 0.1 ms; then up to 1 ms again, so that a long wait costs little. Beside two
    writers with 1 ms transactions p99 was 1–10 ms; with pauses that grow from the start it was 17–34 ms.
    """
    newcomer = 0.002 * exp2(-waited_s / 0.005)
    return max(newcomer, min(0.001, max(0.0001, waited_s / 100)))


def _pause_at_room(waited_s: float) -> float:
    """Only one process at a time waits here, so it may poll often: after a tenth of its wait, 50 µs to 1 ms."""
    return min(0.001, max(0.00005, waited_s / 10))


def _drop_both(fd: int) -> None:
    with suppress(OSError):
        lockf(fd, _GIVE, 2, _T)


if sys.platform == "win32":  # no record locks: the file is never opened, every gate is a disabled one

    def lockf(_fd: int, _command: int, _length: int, _start: int, /) -> None:
        raise OSError

    def _open(_path: str, /) -> int:
        raise OSError
else:
    from fcntl import lockf

    def _open(path: str, /) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
