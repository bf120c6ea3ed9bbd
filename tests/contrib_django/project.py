"""The project in examples/django as real processes: its commands, its web server, its workers."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlencode

from tests.customers import post

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "django"
PATIENCE_S = 90


class Project:
    """A copy of it, on a database of its own: an SQLite file, or the PostgreSQL at a URL."""

    def __init__(self, folder: Path, url: str | None = None, python: str = sys.executable) -> None:
        self.file = folder / "shop.db"
        self._folder = folder
        self.place = Path(shutil.copytree(EXAMPLE, folder / "project"))
        self._python = python
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("PERDURE_", "DJANGO_"))},
            "PYTHONPATH": str(ROOT / "src"),
            "PYTHONUNBUFFERED": "1",
            "SHOP_FILE": str(self.file),
            "DATABASE_URL": url or "",
        }
        self._processes: list[subprocess.Popen[bytes]] = []

    def manage(self, *arguments: str, status: int = 0, **environment: str) -> str:
        """Run a command to its end; what it printed."""
        done = subprocess.run(
            [self._python, "manage.py", *arguments],
            cwd=self.place,
            env=self.environment | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        assert done.returncode == status, done.stdout
        return done.stdout

    def start(self, *arguments: str, log: str) -> subprocess.Popen[bytes]:
        """Start a command; it prints into a file of the test's folder."""
        with (self._folder / log).open("ab") as file:
            process = subprocess.Popen(
                [self._python, "manage.py", *arguments],
                cwd=self.place,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )
        self._processes.append(process)
        return process

    def edit(self, file: str, before: str, after: str) -> None:
        """Change the code."""
        text = (self.place / file).read_text()
        assert before in text
        (self.place / file).write_text(text.replace(before, after))

    def said(self, log: str) -> str:
        return (self._folder / log).read_text("utf-8", "replace")

    def wait_until_said(self, log: str, pattern: str, times: int = 1) -> list[str]:
        """All that fits the pattern, once there are so many."""
        deadline = time.monotonic() + PATIENCE_S
        while len(found := re.findall(pattern, self.said(log))) < times:
            assert time.monotonic() < deadline, self.said(log)
            time.sleep(0.02)
        return found

    def stop(self) -> None:
        for process in self._processes:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
            process.wait()


class Web:
    """The web server of a project, on a port that stays the same however often it is killed."""

    def __init__(self, project: Project, port: int) -> None:
        self._project = project
        self._port = port
        self.process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        return self._project.start("runserver", "--noreload", "--skip-checks", f"127.0.0.1:{self._port}", log="web.log")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process = self._started()

    def order(self, number: str, article: str) -> int | None:
        """The status of the reply. None: there was none."""
        return post(self._port, "/orders/", urlencode({"number": number, "article": article}))
