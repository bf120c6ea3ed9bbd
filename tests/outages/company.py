"""A database server in trouble, and the processes that work with it: what these tests share."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perdure import Perdure
from perdure.job.states import StateName
from perdure.ops.doctor import examine, is_healthy
from tests import history
from tests.faults.scene import ROOT, until
from tests.outages.programs import declare

BACK_S = 5.0
"""So soon after the server accepts connections again, every worker has to run jobs. A promise, not a guess."""


class Company:
    """Workers and enqueuers in processes of their own, and the notes of what they did."""

    def __init__(self, url: str, notes: Path) -> None:
        self.url = url
        self.notes = notes
        self.app = Perdure(url)
        declare(self.app, notes)
        self._processes: list[subprocess.Popen[str]] = []
        self.workers: list[subprocess.Popen[str]] = []

    def start(self, name: str, *arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.outages.programs", name, self.url, str(self.notes)]
        process = subprocess.Popen(
            [*command, *map(str, arguments)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._processes.append(process)
        return process

    def hire(self, workers: int, *, lease_s: float = 10.0, concurrency: int = 4) -> None:
        hired = [self.start("work", lease_s, concurrency) for _ in range(workers)]
        for one in hired:
            assert heard(one) == "ready"
        self.workers += hired

    def starts(self) -> list[dict[str, Any]]:
        return history.events(self.notes, "start")

    def all_work(self, since: int, within_s: float = BACK_S) -> None:
        """Every worker, in the process that it was, starts a job after the first `since` starts."""
        began = time.monotonic()
        hired = {worker.pid for worker in self.workers}
        until(lambda: hired <= {one["pid"] for one in self.starts()[since:]}, "every worker runs jobs again")
        took = time.monotonic() - began
        assert took <= within_s, f"not before {took:.1f} s"

    def rest(self) -> None:
        """The workers do what is left, and stop."""
        until(
            lambda: not any(True for state in LIVE for _ in self.app.jobs(state=state, limit=1)), "all jobs have ended"
        )
        for worker in self.workers:
            assert stopped(worker) == ["stopped"]

    def check(self, *, handlers_note: bool = True) -> None:
        """Nothing is lost, nothing happened that cannot be explained, and the doctor finds nothing.

        `handlers_note`: see `history.problems`.
        """
        findings = examine(self.app.store)
        assert is_healthy(findings), findings
        assert history.problems(self.notes, self.app, handlers_note=handlers_note) == [], self._logs()

    def _logs(self) -> str:
        return "\n".join(log.read_text()[-2000:] for log in self.notes.parent.glob(f"{self.notes.name}.*.log"))

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.communicate()
        self.app.close()


LIVE: tuple[StateName, ...] = ("queued", "running", "scheduled")


def heard(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def stopped(process: subprocess.Popen[str]) -> Sequence[str]:
    """Tell it to stop; the words that it says last."""
    said, _ = process.communicate(timeout=90)
    assert process.returncode == 0
    return said.split()
