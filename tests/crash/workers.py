"""Starts worker processes for the crash tests, kills them, and sees to what is left of them.

Processes are forked by a server that has imported everything and opened nothing: as real as any other, and there in
some milliseconds, so that hundreds of them can be killed in a test.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any
from uuid import UUID

from perdure import Job, Perdure
from perdure.ops.doctor import examine, is_healthy
from tests import history
from tests.conftest import SIZE
from tests.crash import handlers
from tests.crash.databases import Databases
from tests.crash.handlers import Place

DEADLINE_S = 90

forked = multiprocessing.get_context("forkserver")
forked.set_forkserver_preload(["tests.crash.warmed"])


class Scene:
    """One database, its history, and the processes at work on it."""

    def __init__(self, place: Place, databases: Databases) -> None:
        self.place = place
        self.path = place.path
        self.history = place.history
        self.log = place.log
        self.app: Perdure = handlers.app_on(place.url)
        self.reached = self.path.with_suffix(".reached")
        self._databases = databases
        self.processes: list[ForkServerProcess] = []
        self.copies: list[Scene] = []

    def copy(self, name: str) -> Scene:
        """The same database and history once more, to be harmed in another way. Closed with this one."""
        path = self.path.with_name(f"{name}.db")
        place = Place(self._databases.copied(self.place.url, path), path)
        if self.history.exists():
            shutil.copy(self.history, place.history)
        self.copies.append(Scene(place, self._databases))
        return self.copies[-1]

    @property
    def thrift(self) -> int:
        """By how much everyday tests do less here."""
        return 1 if SIZE == "full" else self._databases.thrift

    def execute(self, sql: str) -> None:
        """As a user, and commit."""
        self._databases.execute(self.place.url, sql)

    # -- jobs --------------------------------------------------------------------------------------------------------

    def enqueue(self, kind: str, *, times: int = 1, queue: str = "default", **arguments: Any) -> list[Job]:
        """Acknowledged ones, and noted as that."""
        drafts = [self.app.draft(kind, arguments, {"queue": queue}) for _ in range(times)]
        jobs = self.app.enqueue_many(drafts)
        for job in jobs:
            history.note(self.history, "enqueued", job=job.id)
        return jobs

    def now(self, job: Job) -> Job:
        found = self.app.get(job)
        assert found is not None
        return found

    def noted(self, event: str, job: Job | None = None) -> list[dict[str, Any]]:
        found = history.events(self.history, event)
        return [one for one in found if job is None or UUID(one["job"]) == job.id]

    def is_done(self) -> bool:
        return not any(True for state in ("queued", "running") for _ in self.app.jobs(state=state, limit=1))

    # -- processes ---------------------------------------------------------------------------------------------------

    def worker(self, **options: Any) -> ForkServerProcess:
        return self.process(handlers.serve, self.place, options)

    def process(self, target: Callable[..., object], *args: object) -> ForkServerProcess:
        process = forked.Process(target=target, args=args)
        process.start()
        self.processes.append(process)
        return process

    def drain(self, **options: Any) -> None:
        """A worker that nobody harms does what is left."""
        drainer = self.worker(until_idle=True, **options)
        ended(drainer)
        assert drainer.exitcode == 0, self.log.read_text()

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for what another process does."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            log = self.log.read_text()[-6000:] if self.log.exists() else ""
            assert time.monotonic() < deadline, f"waited in vain until {what}\n{log}"
            time.sleep(0.01)

    def freeze(self, process: ForkServerProcess) -> None:
        """SIGSTOP, but not inside a write transaction: frozen there it would hold the file, which is a stated limit."""
        while True:
            send(process, signal.SIGSTOP)
            self.until(lambda: is_frozen(process), "the process stands still")
            if self._may_write():
                return
            send(process, signal.SIGCONT)
            time.sleep(0.01)

    def _may_write(self) -> bool:
        with closing(sqlite3.connect(self.path, isolation_level=None, timeout=0.5)) as connection:
            connection.execute("PRAGMA wal_autocheckpoint=0")
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return False
            connection.execute("ROLLBACK")
            return True

    def close(self) -> None:
        """Whatever still runs is killed."""
        while self.copies:
            copy = self.copies.pop()
            copy.close()
            self._databases.remove(copy.place.url)
        for process in self.processes:
            if process.is_alive():
                kill(process)
            process.close()
        self.processes.clear()
        self.app.close()

    # -- the end -----------------------------------------------------------------------------------------------------

    def check(self, *, drained: bool = True) -> None:
        """The doctor finds no violation, and the history can be explained."""
        findings = examine(self.app.store)
        assert is_healthy(findings), findings
        problems = history.problems(self.history, self.app, drained=drained)
        assert problems == [], f"{problems}\n{self.log.read_text() if self.log.exists() else ''}"


def kill(process: ForkServerProcess) -> None:
    """SIGKILL, and wait until it is gone."""
    send(process, signal.SIGKILL)
    ended(process)


def ended(process: ForkServerProcess) -> None:
    process.join(DEADLINE_S)
    assert process.exitcode is not None, "a process did not end"


def send(process: ForkServerProcess, number: signal.Signals) -> None:
    assert process.pid is not None
    os.kill(process.pid, number)


def is_frozen(process: ForkServerProcess) -> bool:
    """Whether every thread of it is stopped."""
    states = [(task / "stat").read_text().rpartition(")")[2].split()[0] for task in _tasks(process)]
    return bool(states) and set(states) == {"T"}


def _tasks(process: ForkServerProcess) -> list[Path]:
    return list(Path(f"/proc/{process.pid}/task").iterdir())
