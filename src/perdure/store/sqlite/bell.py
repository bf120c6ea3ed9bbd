"""Wakes a sleeping worker when any process writes to the file. Used by `database`; calls the kernel.

A sleeping worker sets a byte of the gate's file and listens on a datagram socket whose name contains the number of that
byte. After a commit the writer looks at the bytes and sends a datagram to each sleeper. Programs that are not Perdure
send none, so the sleeper also checks every 50 ms whether the file has changed.

Socket names are global on the machine: every user can send to them or take them first. So the kernel tells who sent:
only root and the users who own the worker or the gate's file count, and a socket to which strangers keep sending is
closed. A worker without a socket only checks every 50 ms.
"""

from __future__ import annotations

import atexit
import os
import select
import socket
import struct
import sys
import threading
import time
import weakref
from contextlib import suppress

from perdure.store.sqlite.files import Identity
from perdure.store.sqlite.gate import BOARD_SIZE, Board, Gate
from perdure.store.sqlite.wal import WalMeter

SLEEPERS = BOARD_SIZE - 1
"""The byte of the board that says whether any of the others is set."""
SLOTS = range(1, SLEEPERS)
LOOK_S = 0.05
MANY = 64
"""Wakes read at once; if there are more, the next sleep is short."""
STRANGERS = 256
"""Wakes by users who do not count, before the socket is closed."""
_SENDER = struct.Struct("=iII")  # process, user, group


class SqliteBell:
    """One worker's bell. `wait` is for one thread; `ring` and `close` for any."""

    tells_when = False
    """Looking costs little, and programs that are not Perdure do not ring."""

    def __init__(self, meter: WalMeter, gate: Gate, file: Identity | None) -> None:
        self._meter = meter
        self._gate = gate  # kept: the board exists only as long as the gate
        self._trusted = _trusted(gate)
        self._strangers = 0
        self._lock = threading.RLock()  # a signal handler may ring while its thread does
        self._closed = False
        self._rung = False
        self._seen = meter.state()
        self._slot, self._socket = _take_slot(file)
        self._reading, self._writing = _quiet_pipe()
        self._poll = self._poller()
        _bells.add(self)

    def ring(self) -> None:
        """Wake the worker from inside its own process. After `close`, nothing happens."""
        if self._rung:
            return
        with self._lock:  # a closed descriptor's number may mean another file by now
            if not self._closed:
                self._rung = True
                with suppress(OSError):  # full: it has been rung already
                    os.write(self._writing, b"!")

    def wait(self, timeout_s: float, *, rung_only: bool = False) -> bool:
        """Sleep until rung, until the file has changed, or until the time-out. True: there may be something to do."""
        if self._closed:
            return False
        deadline = time.monotonic() + timeout_s
        board, slot = self._gate.board, 0 if rung_only else self._slot
        woken = False
        try:
            if slot:
                board[slot] = board[SLEEPERS] = 1  # before the check: a commit after it sees the bytes
            while not (self._rung or (not rung_only and self._changed())):
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                if self._poll.poll((left if rung_only else min(left, LOOK_S)) * 1000) and (woken := self._take_in()):
                    break
            else:
                woken = True
        finally:
            if slot:
                board[slot] = 0
            woken = self._take_in() or woken
        return woken

    def close(self) -> None:
        """Give back what is held. A repeat does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._let_go()

    def _let_go(self) -> None:
        os.close(self._reading)
        os.close(self._writing)
        if self._socket is not None:
            self._socket.close()

    def _poller(self) -> select.poll:
        poll = select.poll()
        poll.register(self._reading, select.POLLIN)
        if self._socket is not None:
            poll.register(self._socket, select.POLLIN)
        return poll

    def _changed(self) -> bool:
        now = self._meter.state()
        changed, self._seen = now != self._seen, now
        return changed

    def _take_in(self) -> bool:
        """Whether anyone has rung or sent, even just after the time-out; resets the bell."""
        with self._lock:
            woken, self._rung = self._rung, False
            with suppress(OSError):
                os.read(self._reading, MANY)
        return self._take_in_wakes() or woken

    def _take_in_wakes(self) -> bool:
        """Whether a user who may wake this worker has sent."""
        woken = False
        if self._socket is not None:
            with suppress(OSError):
                for _ in range(MANY):
                    if _sent_by(self._socket) in self._trusted:
                        woken = True
                    else:
                        self._strangers += 1
            if self._strangers >= STRANGERS:
                self._take_down()
        return woken

    def _take_down(self) -> None:
        """From now on this worker only polls: being woken costs it more than polling."""
        with self._lock:
            if not self._closed and self._socket is not None:
                self._poll.unregister(self._socket)
                self._socket.close()
                self._slot, self._socket = 0, None

    def forget_parent(self) -> None:
        """Called in a forked child: the inherited socket belongs to the parent. The child's copy only polls."""
        self._lock = threading.RLock()
        if not self._closed:
            self._let_go()
            self._slot, self._socket = 0, None
            self._reading, self._writing = _quiet_pipe()
            self._poll = self._poller()


_bells: weakref.WeakSet[SqliteBell] = weakref.WeakSet()


def _forget_parent() -> None:
    for bell in list(_bells):
        bell.forget_parent()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_forget_parent)


def _quiet_pipe() -> tuple[int, int]:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    return reading, writing


def ring_sleepers(board: Board, file: Identity | None) -> None:
    """Wake every worker that sleeps on this file. Called after a commit."""
    board[SLEEPERS] = 0  # first: who goes to sleep from here on sets it again
    asleep = board.all()
    for slot in SLOTS:
        if asleep[slot]:
            board[slot] = 0
            with suppress(OSError):  # it is awake already, or gone
                _sender().sendto(b"!", _name(file, slot))


def _trusted(gate: Gate) -> frozenset[int]:
    """The users whose wakes count: those who could also write to the board."""
    if sys.platform == "win32":
        return frozenset()
    return frozenset({0, os.getuid(), os.geteuid(), *gate.owners()})


def _take_slot(file: Identity | None) -> tuple[int, socket.socket | None]:
    """A byte of the board and its socket. 0 and None if there is none free: then the worker polls."""
    if sys.platform != "linux":  # names without a file are Linux's own
        return 0, None
    for slot in SLOTS:
        bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            bell.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            bell.bind(_name(file, slot))
        except OSError:
            bell.close()
        else:
            return slot, bell
    return 0, None


def _sent_by(bell: socket.socket) -> int | None:
    """The user who sent the next wake. OSError: there is none."""
    if sys.platform != "linux":  # never asked: see _take_slot
        return None
    for level, sort, data in bell.recvmsg(16, socket.CMSG_SPACE(_SENDER.size))[1]:
        if (level, sort, len(data)) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS, _SENDER.size):
            user: int = _SENDER.unpack(data)[1]
            return user
    return None


def _name(file: Identity | None, slot: int) -> str:
    device, inode = file or (0, 0)
    return f"\0perdure-{device:x}-{inode:x}-{slot}"


_senders: dict[int, socket.socket] = {}


def _sender() -> socket.socket:
    """One socket per process: a forked child does not use its parent's."""
    pid = os.getpid()
    known = _senders.get(pid)
    if known is None:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        known = _senders.setdefault(pid, made)
        if known is made:
            atexit.register(made.close)
        else:  # another thread was quicker
            made.close()
    return known
