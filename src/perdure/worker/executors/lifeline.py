"""Children end with their worker, and their own children with them. `processes` holds the line, `child` hangs on it.

A pipe into which nobody ever writes. The worker has the only writing end, and when that is closed, which the kernel
does however the worker ends, the kernel itself kills the child's whole process group (O_ASYNC with F_SETSIG): no
Python code has to run for it, so a handler that holds the interpreter dies as well. Where the system has no such
thing, the end of the conversation and the death signal remain.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import sys
import threading
from contextlib import suppress
from types import FrameType

_PR_SET_PDEATHSIG = 1
_OURS = (signal.SIGTERM, signal.SIGINT)
_masks = threading.local()


def hang_on(fd: int, parent: int) -> None:
    """From here on this process and its group do not outlive the parent. Called once, by a leader of its own group."""

    def told(_number: int, _frame: FrameType | None) -> None:
        """A worker's whole control group may be sent SIGTERM: the worker decides what becomes of its runs, not we."""
        if os.getppid() != parent:
            end_group()

    for number in _OURS:
        signal.signal(number, told)
    os.register_at_fork(before=_hold_signals, after_in_parent=_let_signals_in, after_in_child=_be_ordinary)
    os.set_inheritable(fd, False)
    if sys.platform == "linux":
        fcntl.fcntl(fd, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)
        # SIGKILL here would come before the pipe is closed, kill this process alone and spare its children.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it died before we asked to be told
        end_group()


def end_group() -> None:
    """End this process and all that it started."""
    with suppress(PermissionError):
        os.killpg(0, signal.SIGKILL)
    os._exit(1)  # some of the group are not ours to kill


def _be_ordinary() -> None:
    """What a handler forks can be ended as usual: `multiprocessing.Pool.terminate` waits for that."""
    for number in _OURS:
        signal.signal(number, signal.SIG_DFL)
    _let_signals_in()


def _hold_signals() -> None:
    """A signal to a process just forked waits until it has its ordinary meaning; it would be lost otherwise."""
    _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, _OURS)


def _let_signals_in() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _masks.before)
