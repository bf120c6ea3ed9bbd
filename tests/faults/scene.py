"""What the tests of a hostile environment share: a database, the notes of what happened, and other processes."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from perdure import Job, Perdure
from perdure.job.states import StateName
from perdure.ops.doctor import examine, is_healthy
from tests.history import note, problems

ROOT = Path(__file__).parents[2]
PATIENCE_S = 90.0


class Scene:
    """A database file and the notes beside it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "jobs.db"
        self.notes = folder / "notes"
        self.drained = True
        """False: some jobs are meant to be left at the end."""
        self._apps: list[Perdure] = []

    def app(self, **knobs: Any) -> Perdure:
        """Another app on the file. Not as durable as by default: no test here cuts the power."""
        app = Perdure(self.path, **_relaxed(knobs))
        self._apps.append(app)
        return app

    def sent(self, *jobs: Job) -> list[Job]:
        """Note that these were acknowledged."""
        for job in jobs:
            note(self.notes, "enqueued", job=job.id)
        return list(jobs)

    def close(self) -> None:
        """The end of every test: nothing is broken, and nothing happened that cannot be explained."""
        app = self.app()
        try:
            assert is_healthy(examine(app.store)), examine(app.store)
            assert problems(self.notes, app, drained=self.drained) == []
        finally:
            for one in self._apps:
                one.close()


def _relaxed(knobs: dict[str, Any]) -> dict[str, Any]:
    return {"durability": "normal", **knobs}


def count(app: Perdure, state: StateName) -> int:
    """How many jobs are in this state."""
    return sum(1 for _ in app.jobs(state=state))


def until(happened: Callable[[], object], what: str = "what the test waits for") -> None:
    """Wait for another process or thread that tells nobody when it is done."""
    deadline = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < deadline, f"it did not happen: {what}"
        time.sleep(0.01)


@contextmanager
def program(name: str, *args: object, prefix: Sequence[str] = ()) -> Generator[subprocess.Popen[str], None, None]:
    """A function of `tests.faults.programs` in a process of its own. Killed at the end, if it has not left."""
    command = [*prefix, sys.executable, "-m", "tests.faults.programs", name, *map(str, args)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def said(process: subprocess.Popen[str]) -> str:
    """The next line that a program prints. Empty: it has ended."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str], word: str = "go") -> None:
    assert process.stdin is not None
    process.stdin.write(word + "\n")
    process.stdin.flush()


class Listener(logging.Handler):
    """Counts what the worker says."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def heard(self, part: str) -> int:
        return sum(part in line for line in self.lines)
