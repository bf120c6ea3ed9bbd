"""The worker processes of the demo: `perdure worker`, tied to us by `tied`. Called by `acts`, `express` and `stage`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import Self

from perdure.app import Perdure
from perdure.cli.demo.interrupts import Interrupts
from perdure.cli.demo.jobs import LEDGER
from perdure.ids import NodeId

APP = "perdure.cli.demo.jobs:app"
START_S = 30.0
STOP_S = 10.0
LAST_LINES = 15


class WorkerMissing(Exception):
    """A worker ended, or did not come, when it was needed. The message has the end of its log."""


class Member:
    """One worker process. What it prints is in `log`."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log
        self.node_id: NodeId | None = None

    @property
    def pid(self) -> int:
        return self.process.pid

    def end(self) -> None:
        """SIGKILL: it cannot tidy up. Returns when it is gone."""
        self.process.kill()
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def check(self) -> None:
        if (status := self.process.poll()) is not None:
            raise WorkerMissing(f"worker {self.pid} ended with status {status}; {self._last_lines()}")

    def late(self) -> WorkerMissing:
        return WorkerMissing(f"worker {self.pid} was not there after {START_S:.0f} s; {self._last_lines()}")

    def _last_lines(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-LAST_LINES:]
        return "\n  ".join(["the end of its log:", *lines]) if lines else "it printed nothing"


class Crew:
    """All workers. Leaving `with` kills those that are still there: none is left behind.

    Nor is one if this process is itself killed: its end of a pipe is closed then, and the worker ends.
    """

    def __init__(self, app: Perdure, folder: Path, interrupts: Interrupts) -> None:
        self._app = app
        self._folder = folder
        self._interrupts = interrupts
        self.members: list[Member] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            member.end()

    def start(self, *queues: str, concurrency: int) -> Member:
        """`perdure worker`, not waited for. In a session of its own: Ctrl-C at the terminal is for the demo alone."""
        options = [part for queue in queues for part in ("--queue", queue)]
        log = self._folder / f"worker-{len(self.members) + 1}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603 - our own interpreter
                [*_PERDURE, "worker", APP, "--url", self._app.url, "--concurrency", str(concurrency), *options],
                cwd=self._folder,
                env=_environment(self._folder / "starts"),
                stdin=subprocess.PIPE,  # nothing is written into it; it ends when we do
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.members.append(Member(process, log))
        return self.members[-1]

    def await_start(self, *members: Member) -> None:
        """Until the database knows their nodes. WorkerMissing: one of them did not make it."""
        deadline = time.monotonic() + START_S
        while True:
            nodes = {node.pid: node.id for node in self._app.store.live_nodes()}
            for member in members:
                member.node_id = nodes.get(member.pid)
            missing = [member for member in members if member.node_id is None]
            if not missing:
                return
            for member in missing:
                member.check()
            if time.monotonic() > deadline:
                raise missing[0].late()
            self._interrupts.sleep(0.02)

    def kill(self, member: Member) -> None:
        member.end()
        self.members.remove(member)

    def stop(self) -> None:
        """Let all of them end as a deploy does: SIGTERM, and they sign off."""
        for member in self.members:
            member.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_S
        for member in self.members:
            while member.process.poll() is None and time.monotonic() < deadline:
                self._interrupts.sleep(0.02)


_PERDURE = (sys.executable, "-P", "-m", "perdure.cli.demo.tied")


def _environment(ledger: Path) -> dict[str, str]:
    """Ours, without settings meant for other apps, and with the package found from another working directory."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
    places = [os.path.abspath(place) for place in kept.get("PYTHONPATH", "").split(os.pathsep) if place]  # noqa: PTH100
    home = str(Path(__file__).resolve().parents[3])
    if home not in (sysconfig.get_path("purelib"), *places):
        places.append(home)
    return kept | {LEDGER: str(ledger), "PYTHONPATH": os.pathsep.join(places)}
