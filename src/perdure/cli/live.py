"""A line for every job that runs, below the log lines of `perdure worker` on a terminal. Asks the worker.

What is logged or printed meanwhile appears above. Child processes get a terminal of their own, which is read here: what
they print appears above too.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TextIO, cast

from perdure.cli.log_lines import StderrHandler, is_colourful
from perdure.cli.render import visible
from perdure.text import length
from perdure.uninterrupted import uninterrupted

if TYPE_CHECKING:
    from perdure.worker.context import JobContext

EVERY_S = 0.5
_MOST = 8
_LONG_S = 1.0
"""From when on a job has its line; sooner if it has said how far it is."""


@contextmanager
def live_lines(
    running: Callable[[], Iterable[JobContext]], handler: StderrHandler | None
) -> Generator[None, None, None]:
    """While the block runs. Only on a terminal, and with our own log handler: another one would write in between."""
    if handler is None or not sys.stderr.isatty() or os.environ.get("TERM") in ("dumb", "unknown"):
        yield
        return
    below = Below(sys.stderr, lambda: lines_of(running(), time.perf_counter_ns()))
    streams = sys.stdout, sys.stderr
    handler.setStream(cast("TextIO", below))
    if sys.stdout.isatty():
        sys.stdout = cast("TextIO", below)
    sys.stderr = cast("TextIO", below)
    try:
        with below.refreshed(), _children_above(below, out=streams[0].isatty()):
            yield
    finally:
        sys.stdout, sys.stderr = streams
        handler.setStream(sys.stderr)


@contextmanager
def _children_above(below: Below, *, out: bool) -> Generator[None, None, None]:
    """While the block runs, what child processes print goes above the live lines. A terminal, not a pipe: Python would
    keep back what is printed into a pipe."""
    from perdure.worker.executors.processes import prints_to

    ours, theirs = os.openpty()
    reader = threading.Thread(target=_pass_on, args=(ours, below), name="perdure-prints", daemon=True)
    reader.start()
    prints_to.out, prints_to.err = theirs if out else None, theirs
    try:
        yield
    finally:
        prints_to.out = prints_to.err = None
        os.close(theirs)
        reader.join(_LONG_S)  # a process that a handler has started, and that goes on, may keep it open


def _pass_on(terminal: int, below: Below) -> None:
    """Whole lines, without what a progress bar has written over."""
    with open(terminal, encoding="utf-8", errors="replace", newline="\n") as lines, suppress(OSError):
        for line in lines:  # until nobody has the other end open, of which Linux makes an error
            below.write(line.rstrip("\r\n").rpartition("\r")[2] + "\n")


def lines_of(running: Iterable[JobContext], now_ns: int) -> list[str]:
    """One for each job, those at work for longest first: its name, for how long, and its progress."""
    from perdure.ops.progress import progress_text, said_in

    rows: list[tuple[int, str]] = []
    for ctx in running:
        took_ns = 0 if ctx.started_ns is None else now_ns - ctx.started_ns
        metrics = ctx.metrics
        progress = None if metrics is None else said_in(json.loads(metrics))
        if progress is not None or took_ns >= _LONG_S * 1_000_000_000:
            attempt = f" #{ctx.attempt}" if ctx.attempt > 1 else ""
            said = "" if progress is None else f"  {progress_text(progress)}"
            rows.append((-took_ns, f"  {ctx.name}{attempt}  {length(took_ns // 1_000)}{said}"))
    lines = [visible(text) for _, text in sorted(rows)]
    return lines if len(lines) <= _MOST else [*lines[: _MOST - 1], f"  and {len(lines) - _MOST + 1} more"]


class Below(io.TextIOBase):
    """A terminal whose last lines are drawn anew; all that is written goes above them."""

    def __init__(self, out: TextIO, lines: Callable[[], list[str]]) -> None:
        self._out = out
        self._lines = lines
        self._dim, self._plain = ("\x1b[2m", "\x1b[0m") if is_colourful(out) else ("", "")
        self._shown = 0
        self._unfinished = ""
        self._lock = threading.RLock()
        self._over = threading.Event()

    @contextmanager
    def refreshed(self) -> Generator[None, None, None]:
        refresher = threading.Thread(target=self._refresh, name="perdure-live", daemon=True)
        refresher.start()
        try:
            yield
        finally:
            self._over.set()
            refresher.join()
            with self._lock:
                self._erase()
                self._out.write(self._unfinished)
                self._unfinished = ""
                self._out.flush()

    def _refresh(self) -> None:
        while not self._over.wait(EVERY_S):
            with self._lock:
                self._draw("")

    # -- as a stream -------------------------------------------------------------------------------------------------

    def write(self, text: str, /) -> int:
        """Whole lines at once, in any thread; a handler is not interrupted while it holds the lock."""
        with uninterrupted, self._lock:
            whole, newline, self._unfinished = (self._unfinished + text).rpartition("\n")
            if newline:
                self._draw(f"{whole}\n")
        return len(text)

    def flush(self) -> None:
        self._out.flush()

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._out.fileno()

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._out.encoding

    # -- drawing -----------------------------------------------------------------------------------------------------

    def _draw(self, above: str) -> None:
        from rich.cells import set_cell_size

        lines = [] if self._over.is_set() else self._lines()
        if not above and not lines and not self._shown:
            return
        width = shutil.get_terminal_size().columns - 1  # a full line would be followed by an empty one on some
        self._erase()
        cut = (set_cell_size(line, width).rstrip() for line in lines)
        self._out.write(above + "".join(f"{self._dim}{line}{self._plain}\n" for line in cut))
        self._out.flush()
        self._shown = len(lines)

    def _erase(self) -> None:
        if self._shown:
            self._out.write(f"\x1b[{self._shown}A\x1b[J")
            self._shown = 0
