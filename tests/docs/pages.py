"""Runs a page of docs/ as a reader would: writes its files, types its commands, compares what comes out.

What a fenced block means is said by its language and its first line:

    python, first line `# jobs.py`             written to that file; `# jobs.py (added)`: appended to it
    python, first line `# Celery` or the like   theirs, for comparison: not run
    python, anything else                       run as a program in the page's folder; a `text` block right after it is
                                                what it prints
    console                                     `$ ` begins a command, the lines up to the next are what it prints
    console, first line `# another terminal`    its command goes on running; the page continues when it has printed
                                                what is shown, and it is ended with the page
    every other language                        not run

A comment `<!-- not run: why -->` right above a block leaves it out; such blocks are counted, and the tests say how many
a page may have. In expected output `…` stands for anything, a line with nothing else for any number of lines, and ids,
times and durations for any others; but an id that comes twice has to be the same one, and may be used in later
commands. A command has to succeed, unless the page shows how it fails (a line that begins with `perdure: `, or
`Killed`).
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tests.docs.comparing import Reader

DOCS = Path(__file__).parents[2] / "docs"
THEIRS = ("# Celery", "# APScheduler")
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LEFT_OUT = re.compile(r"<!-- not run: \S[^>]* -->\s*\Z")
_FILE = re.compile(r"# ([\w/]+\.\w+)( \(added\))?$")
_TERMINAL = "# another terminal"
_FAILURE = re.compile(r"^(?:perdure: |Killed$)", re.MULTILINE)
PATIENCE_S = 60


class Block(NamedTuple):
    """A fenced block. `follows`: only white space is between it and the one before; `left_out`: not to be run."""

    language: str
    text: str
    line: int
    follows: bool
    left_out: bool


class Ran(NamedTuple):
    """What a page came to: how many programs and commands ran, what was not as it says, and how many were left out."""

    commands: int
    problems: list[str]
    left_out: int


def blocks(page: str) -> list[Block]:
    found: list[Block] = []
    end = 0
    for match in _BLOCK.finditer(page):
        between = page[end : match.start()]
        line = page.count("\n", 0, match.start()) + 1
        follows, left_out = bool(found) and not between.strip(), _LEFT_OUT.search(between) is not None
        found.append(Block(match[1], match[2], line, follows, left_out))
        end = match.end()
    return found


def run(name: str, folder: Path) -> Ran:
    """Go through the page in this folder, to its end."""
    return run_text((DOCS / name).read_text("utf-8"), folder)


def run_text(page: str, folder: Path) -> Ran:
    return _Visit(folder).through(blocks(page))


class _Visit:
    """One reader in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._reader = Reader()
        self._variables: dict[str, str] = {}
        self._problems: list[str] = []
        self._commands = self._left_out = 0
        self._terminals: list[subprocess.Popen[bytes]] = []

    def through(self, page: list[Block]) -> Ran:
        try:
            return self._through(page)
        finally:
            for process in self._terminals:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _through(self, page: list[Block]) -> Ran:
        for block, following in zip(page, [*page[1:], None], strict=True):
            if block.left_out:
                self._left_out += 1
            elif block.language == "python":
                self._python(block, following)
            elif block.language == "console" and block.text.startswith(_TERMINAL):
                ((command, expected, line),) = _typed(block)
                self._another_terminal(command, expected, line)
            elif block.language == "console":
                for command, expected, line in _typed(block):
                    self._command(command, expected, line)
        return Ran(self._commands, self._problems, self._left_out)

    def _python(self, block: Block, following: Block | None) -> None:
        first = block.text.partition("\n")[0]
        if first.startswith(THEIRS):
            return
        if named := _FILE.match(first):
            path = self._folder / named[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            before = f"{path.read_text('utf-8')}\n\n" if named[2] else ""
            path.write_text(before + block.text, "utf-8")
            return
        (self._folder / "example.py").write_text(block.text, "utf-8")
        shown = following is not None and following.follows and following.language == "text"
        self._command("python example.py", following.text if shown and following else "", block.line)

    def _command(self, command: str, expected: str, line: int) -> None:
        self._commands += 1
        real = self._reader.in_a_command(command)
        if real.startswith("export "):
            name, _, value = real.removeprefix("export ").partition("=")
            self._variables[name] = value
            return
        status, printed = self._ran(real)
        problem = self._reader.compared(expected, printed)
        if status and not _FAILURE.search(expected):
            problem = f"it ended with status {status}"
        if problem:
            self._problems.append(f"line {line}: $ {command}\n{problem}\nit printed:\n{printed}")

    def _another_terminal(self, command: str, expected: str, line: int) -> None:
        """Start it, and wait until it has printed what the page shows."""
        self._commands += 1
        log = self._folder / f".terminal-{len(self._terminals)}"
        with log.open("wb") as file:
            process = subprocess.Popen(
                ["/bin/bash", "-c", f"exec {command}"],
                cwd=self._folder,
                env=self._environment() | {"PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                process_group=0,
            )
        self._terminals.append(process)
        deadline = time.monotonic() + PATIENCE_S
        while (problem := self._reader.compared(f"{expected}\n…", log.read_text("utf-8", "replace"))) is not None:
            if process.poll() is not None or time.monotonic() > deadline:
                printed = log.read_text("utf-8", "replace")
                self._problems.append(f"line {line}: $ {command}\n{problem}\nit printed:\n{printed}")
                return
            time.sleep(0.02)

    def _ran(self, command: str) -> tuple[int, str]:
        done = subprocess.run(
            ["/bin/bash", "-c", command],
            cwd=self._folder,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        killed = "Killed\n" if done.returncode in (-9, 137) else ""  # what a shell at a terminal says
        return done.returncode, done.stdout + killed

    def _environment(self) -> dict[str, str]:
        """A reader's, whatever this machine has set: `python` and `perdure` are the ones under test, no colours."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("PERDURE_", "PYTEST_"))}
        path = f"{Path(sys.executable).parent}{os.pathsep}{clean.get('PATH', '')}"
        return clean | {"PATH": path, "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"} | self._variables


def _typed(block: Block) -> Iterator[tuple[str, str, int]]:
    """The commands of a console block, with what each is to print. A backslash at the end goes on in the next line."""
    lines = block.text.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("$ ")]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        last = start
        while lines[last].endswith("\\"):
            last += 1
        command = "\n".join(lines[start : last + 1]).removeprefix("$ ")
        expected = "".join(f"{line}\n" for line in lines[last + 1 : end])
        yield command, expected, block.line + 1 + start
