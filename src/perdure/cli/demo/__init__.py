"""`perdure demo`: what Perdure promises, shown and checked on a throw-away file. Listed in `cli/commands`.

Light to import: `steps` and what it needs are loaded when the command runs.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn, Self

import typer

Jobs = Annotated[int, typer.Option("--jobs", metavar="N", min=100, max=100_000, help="How many jobs the shop gets.")]
Keep = Annotated[
    Path | None, typer.Option("--keep", metavar="PATH", help="Keep the database as this new file and say how to look.")
]
Plain = Annotated[bool, typer.Option("--plain", help="Line by line, without the live display.")]

COULD_NOT_RUN = 2
_LOOK_S = 0.05


def demo(jobs: Jobs = 3000, keep: Keep = None, plain: Plain = False) -> None:
    """Show what Perdure does, in under half a minute: jobs, failures, a killed worker and its jobs rescued.

    A schedule goes on meanwhile, a workflow survives the kill of its worker, and a queue is reserved while jobs wait
    in it.

    Works in a temporary folder that is gone afterwards, also after Ctrl-C; kill -9 leaves the folder, but no process.
    Exits with 0 if everything that was claimed was found true, 1 if not, 2 if it could not be run, 129, 130 or 143
    after a signal.
    """
    if keep is not None:
        _check_new(keep)
    with Interrupts() as interrupts:  # from here on, so that the imports cannot be interrupted half-way either
        from perdure.cli.demo.steps import run

        try:
            status = run(jobs, keep, interrupts, plain=plain)
        except DemoStopped as stopped:
            print(f"perdure demo: {stopped}", file=sys.stderr)
            status = stopped.status
    raise typer.Exit(status)


def _check_new(path: Path) -> None:
    """Checked before the work, not after it."""
    if path.exists() or path.is_symlink():
        raise typer.BadParameter(f"{path} is there already; name a file that is not", param_hint="--keep")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise typer.BadParameter(f"{path.parent} is no folder that can be written to", param_hint="--keep")


class DemoStopped(Exception):
    """A signal asked the demo to end, or a worker was not there when it was needed."""

    def __init__(self, why: str, status: int) -> None:
        super().__init__(why)
        self.status = status


class Interrupts:
    """Inside of `with`, SIGINT, SIGTERM and SIGHUP are only noted; `check` and `sleep` raise `DemoStopped`.

    No exception is raised from a signal handler: it could fall between the start of a worker and the note that it was
    started, and leave it behind.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._restore = ExitStack()

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # nohup
            self._restore.callback(signal.signal, number, signal.signal(number, self._note))
        return self

    def __exit__(self, *_: object) -> None:
        self._restore.close()

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.number = self.number or number

    def check(self) -> None:
        if self.number is not None:
            name = signal.Signals(self.number).name
            raise DemoStopped(f"ended by {name}; nothing is left behind", 128 + self.number)

    def sleep(self, seconds: float) -> None:
        """Ends early, by the exception, when a signal comes."""
        until = time.monotonic() + seconds
        self.check()
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _LOOK_S))
            self.check()


def main() -> NoReturn:
    """`perdure`, for a worker of the demo: it ends when the demo does.

    The demo kills its workers itself, unless it was killed and cannot. Then the kernel closes its end of the pipe that
    is our standard input, and into which nobody ever writes.
    """
    # Before anything else is imported: the demo may have ended already, and reading says so at once.
    threading.Thread(target=_end_with_the_demo, args=(sys.stdin.fileno(),), name="demo-pipe", daemon=True).start()
    from perdure.cli.main import main as perdure

    perdure()


def _end_with_the_demo(pipe: int) -> None:
    """At once: nobody is left to read what is finished. Processes of handlers end with their worker."""
    os.read(pipe, 1)
    os.kill(os.getpid(), signal.SIGKILL)
