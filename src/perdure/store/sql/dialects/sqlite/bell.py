"""What a worker sleeps on: woken by whoever writes to the file, in any process. Used by `database`; calls the kernel.

A sleeping worker sets a byte of the gate's mapped file and listens on a datagram socket whose name says which byte.
Whoever has committed looks at the bytes, which costs no system call, and sends a datagram to each sleeper. Writers that
are not ours send none, so the sleeper also looks every 50 ms whether the file has changed.
"""

from __future__ import annotations

import mmap
import os
import select
import socket
import sys
import time
from contextlib import suppress

from perdure.store.sql.dialects.sqlite.files import Identity
from perdure.store.sql.dialects.sqlite.gate import BOARD_SIZE, Gate
from perdure.store.sql.dialects.sqlite.wal import WalMeter

SILENT = bytes(BOARD_SIZE - 1)
LOOK_S = 0.05

Board = mmap.mmap | bytearray


class SqliteBell:
    """One worker's bell. `wait` is for one thread; `ring` for any."""

    def __init__(self, meter: WalMeter, gate: Gate, file: Identity | None) -> None:
        self._meter = meter
        self._gate = gate  # kept: the board is mapped as long as the gate lives
        self._slot, self._socket = _take_slot(file)
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        os.set_blocking(self._writing, False)
        self._rung = False
        self._seen = meter.state()
        self._poll = select.poll()
        self._poll.register(self._reading, select.POLLIN)
        if self._socket is not None:
            self._poll.register(self._socket, select.POLLIN)

    def ring(self) -> None:
        """Wake the worker from inside its own process."""
        if not self._rung:
            self._rung = True
            with suppress(OSError):  # full: it has been rung already; closed: nobody sleeps here any more
                os.write(self._writing, b"!")

    def wait(self, timeout_s: float) -> bool:
        """Sleep until rung, until the file has changed, or for so long. True: there may be something to do."""
        deadline = time.monotonic() + timeout_s
        board, slot = self._gate.board, self._slot
        try:
            if slot:
                board[slot] = 1  # before the look: whoever commits after it sees the byte
            while not self._rung and not self._changed():
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                if self._poll.poll(min(left, LOOK_S) * 1000):
                    break
            return True
        finally:
            if slot:
                board[slot] = 0
            self._quiet()

    def close(self) -> None:
        os.close(self._reading)
        os.close(self._writing)
        if self._socket is not None:
            self._socket.close()

    def _changed(self) -> bool:
        now = self._meter.state()
        changed, self._seen = now != self._seen, now
        return changed

    def _quiet(self) -> None:
        self._rung = False
        with suppress(OSError):
            os.read(self._reading, 64)
        with suppress(OSError):
            while self._socket is not None:
                self._socket.recv(16)


def ring_sleepers(board: Board, file: Identity | None) -> None:
    """Wake every worker that sleeps on this file. Called after a commit."""
    for slot, asleep in enumerate(board[:]):
        if slot and asleep:
            board[slot] = 0
            with suppress(OSError):  # it is awake already, or gone
                _sender().sendto(b"!", _name(file, slot))


def _take_slot(file: Identity | None) -> tuple[int, socket.socket | None]:
    """A byte of the board and the socket that goes with it. 0 and None where there is none: then looking must do."""
    if sys.platform != "linux":  # names without a file are Linux's own
        return 0, None
    for slot in range(1, BOARD_SIZE):
        bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            bell.bind(_name(file, slot))
        except OSError:
            bell.close()
        else:
            return slot, bell
    return 0, None


def _name(file: Identity | None, slot: int) -> str:
    device, inode = file or (0, 0)
    return f"\0perdure-{device:x}-{inode:x}-{slot}"


_senders: dict[int, socket.socket] = {}


def _sender() -> socket.socket:
    """One for each process: a forked child does not send through its parent's."""
    pid = os.getpid()
    if pid not in _senders:
        _senders[pid] = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    return _senders[pid]
