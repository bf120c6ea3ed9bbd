"""Runs the command line: in a process of its own, as users do, or inside the test's, which is ten times as quick."""

from __future__ import annotations

import io
import json
import logging
import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from select import select
from typing import Any, NamedTuple, Protocol

import pytest

from perdure.cli.main import main

SOURCE = Path(__file__).parents[2] / "src"


class Ran(NamedTuple):
    """What a command printed and how it ended."""

    status: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


class Perdure(Protocol):
    """`perdure …` in the folder `cwd`, with `typed` on its standard input and only these PERDURE_ variables."""

    def __call__(self, *arguments: str, cwd: Path, typed: str = "", **environment: str) -> Ran: ...


PROGRAM = (sys.executable, "-P", "-m", "perdure")
"""-P: like the console script, which adds no folder."""


def surroundings(environment: dict[str, str]) -> dict[str, str]:
    """The environment of a process: no PERDURE_ variables but these, and a terminal of 200 columns."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
    return clean | {"PYTHONPATH": str(SOURCE), "COLUMNS": "200"} | environment


def process(*arguments: str, cwd: Path, typed: str = "", **environment: str) -> Ran:
    done = subprocess.run(
        [*PROGRAM, *arguments],
        cwd=cwd,
        input=typed,
        capture_output=True,
        text=True,
        check=False,
        env=surroundings(environment),
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def at_a_keyboard(*arguments: str, cwd: Path, typed: str, **environment: str) -> Ran:
    """The same in a process whose standard input is a terminal, where the answers lie ready."""
    keyboard, stdin = pty.openpty()
    try:
        os.write(keyboard, typed.encode())
        done = subprocess.run(
            [*PROGRAM, *arguments],
            cwd=cwd,
            stdin=stdin,
            capture_output=True,
            text=True,
            check=False,
            env=surroundings(environment),
        )
    finally:
        os.close(keyboard)
        os.close(stdin)
    return Ran(done.returncode, done.stdout, done.stderr)


def in_a_terminal(*arguments: str, cwd: Path, prompt: str, typed: str | Callable[[], str], **environment: str) -> Ran:
    """The same with a terminal for everything, where these keys are pressed once the program asks.

    Given as a function, they are thought of while it waits for them.
    """
    terminal, other_end = pty.openpty()
    # Only what a session leader opens by itself becomes its terminal, whose Ctrl-C is a signal.
    in_it = ("sh", "-c", 'exec "$@" <"$0" >"$0" 2>&1', os.ttyname(other_end))
    going_on = subprocess.Popen(
        [*in_it, *PROGRAM, *arguments], cwd=cwd, env=surroundings(environment), start_new_session=True
    )
    try:
        shown = _until(terminal, prompt)
        keys = typed if isinstance(typed, str) else typed()
        os.close(other_end)
        shown += _pressed(terminal, keys)
        return Ran(going_on.wait(), shown, "")
    finally:
        going_on.kill()
        going_on.wait()
        os.close(terminal)


class Session:
    """A program in a terminal of its own, and someone who looks and types."""

    def __init__(self, terminal: int, program: subprocess.Popen[bytes]) -> None:
        self._terminal = terminal
        self.program = program
        self.shown = ""
        """All that has appeared so far, with the colours left out."""

    def see(self, wanted: str) -> str:
        """Wait until this appears after what was seen before; returns what came up to it."""
        start, end = len(self.shown), time.monotonic() + PATIENCE_S
        while wanted not in self.shown[start:]:
            ready = select([self._terminal], [], [], max(0, end - time.monotonic()))[0]
            assert ready, f"waited in vain for {wanted!r} after {self.shown[-2000:]!r}"
            try:
                some = os.read(self._terminal, 65536)
            except OSError:  # Linux says so that nobody has the other end open any more
                some = b""
            assert some, f"it ended without {wanted!r} after {self.shown[-2000:]!r}"
            self.shown += _COLOURS.sub("", some.decode(errors="replace"))
        return self.shown[start:]

    def press(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def end(self) -> int:
        """Its exit status, once it has ended."""
        with suppress(AssertionError):
            self.see("\0 what never appears")
        return self.program.wait()


PATIENCE_S = 60
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@contextmanager
def session(*arguments: str, cwd: Path, **environment: str) -> Generator[Session, None, None]:
    """`perdure …` in a terminal of 80 columns and 24 lines."""
    terminal, other_end = pty.openpty()
    in_it = ("sh", "-c", 'exec "$@" <"$0" >"$0" 2>&1', os.ttyname(other_end))
    size = {"TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    program = subprocess.Popen(
        [*in_it, *PROGRAM, *arguments], cwd=cwd, env=surroundings(size | environment), start_new_session=True
    )
    try:
        there = Session(terminal, program)
        ready = select([terminal], [], [], PATIENCE_S)[0]  # it has opened its end
        assert ready
        os.close(other_end)
        other_end = -1
        yield there
    finally:
        program.kill()
        program.wait()
        os.close(terminal)
        if other_end >= 0:
            os.close(other_end)


def _until(terminal: int, prompt: str) -> str:
    """What appears, up to the prompt."""
    shown = b""
    while prompt.encode() not in shown:
        shown += os.read(terminal, 4096)
    return shown.decode()


def _pressed(terminal: int, keys: str) -> str:
    """What appears until the program has ended. Pressed again, as people do: Python can miss a signal that comes in the
    moment before it begins to read."""
    shown = b""
    while True:
        os.write(terminal, keys.encode())
        while select([terminal], [], [], 3.0)[0]:
            try:
                some = os.read(terminal, 4096)
            except OSError:  # Linux says so that nobody has the other end open any more
                some = b""
            if not some:
                return shown.decode()
            shown += some


@contextmanager
def started(*arguments: str, cwd: Path, **environment: str) -> Generator[subprocess.Popen[str], None, None]:
    """A command that goes on, to be ended by a signal inside the block; left by an error, it is killed."""
    going_on = subprocess.Popen(
        [*PROGRAM, *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=surroundings(environment),
    )
    with going_on:
        try:
            yield going_on
        except BaseException:
            going_on.kill()
            raise


class InProcess:
    """The same inside the test's process; every call starts with nothing imported from the working directory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *arguments: str, cwd: Path, typed: str = "", **environment: str) -> Ran:
        before, loggers = set(sys.modules), list(logging.getLogger("perdure.doctor").handlers)
        with self._monkeypatch.context() as patch:
            for name in [name for name in os.environ if name.startswith("PERDURE_")]:
                patch.delenv(name)
            for name, value in {"COLUMNS": "200", **environment}.items():
                patch.setenv(name, value)
            patch.chdir(cwd)
            patch.setattr(sys, "path", list(sys.path))
            patch.setattr(sys, "stdin", io.StringIO(typed))
            with pytest.raises(SystemExit) as ended:
                main(arguments)
        for name in set(sys.modules) - before:
            if getattr(sys.modules[name], "__file__", None) == str(cwd / f"{name}.py"):
                del sys.modules[name]
        assert logging.getLogger("perdure.doctor").handlers == loggers
        assert isinstance(ended.value.code, int)
        return Ran(ended.value.code, *self._capsys.readouterr())


def refusal(ran: Ran) -> str:
    """The one line of a command that could not do what was asked."""
    assert ran.status == 2, ran
    assert ran.out == ""
    [line] = ran.err.splitlines()
    assert line.startswith("perdure: ")
    return line
