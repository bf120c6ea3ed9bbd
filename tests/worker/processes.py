"""Workers in processes of their own, as users start them: `perdure worker`, with its lines to wait for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
DEADLINE_S = 60


class Process:
    """A child whose standard output and error are one stream of lines."""

    def __init__(self, arguments: list[str], cwd: Path) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
        self.lines: list[str] = []
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-X", "faulthandler", *arguments],
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=clean | {"PYTHONPATH": str(SOURCE)},
        )

    def until(self, text: str) -> str:
        """The next line that holds this text. The end of the process before that is a failure."""
        assert self._child.stdout is not None
        for line in self._child.stdout:
            self.lines.append(line)
            if text in line:
                return line
        raise AssertionError(f"{text!r} was never said:\n{''.join(self.lines)}")

    def send(self, number: signal.Signals) -> None:
        self._child.send_signal(number)

    def has_ended_of(self, number: signal.Signals) -> bool:
        """False: it had not, and was sent the signal again."""
        if self._child.poll() is None:
            self.send(number)
            return False
        return True

    def type(self, text: str) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(text)
        self._child.stdin.flush()

    def ended(self) -> int:
        """The status it ends with, once it does."""
        try:
            out, _ = self._child.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.send(signal.SIGABRT)  # the fault handler shows where every thread is
            out, _ = self._child.communicate()
            raise AssertionError(f"it does not end:\n{self.said()}{out}") from None
        self.lines += out.splitlines(keepends=True)
        return self._child.returncode

    def said(self) -> str:
        return "".join(self.lines)

    def kill(self) -> None:
        if self._child.poll() is None:
            self._child.kill()
        self._child.communicate()


@contextmanager
def process(*arguments: str, cwd: Path) -> Iterator[Process]:
    child = Process(list(arguments), cwd)
    try:
        yield child
    finally:
        child.kill()


@contextmanager
def worker(*arguments: str, cwd: Path) -> Iterator[Process]:
    """`perdure worker …`, from the moment it runs."""
    with process("-m", "perdure", "worker", *arguments, cwd=cwd) as child:
        child.until("kinds ")
        yield child
