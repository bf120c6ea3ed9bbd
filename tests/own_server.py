"""A database server of the tests' own: the process that owns it, and its files. Used by `postgres_server` and
`mariadb_server`, which say how one is made and started.

It belongs to a process of its own that stops it and deletes its files when the pipe from the tests closes: at the end
of the session, and just as well when the tests crash or are killed.

`make test` names a folder in PERDURE_TEST_BLANKS: what a new server has on the disk is made once and copied from there.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

STOP_S = 300
"""How long the end of a server may take with all its files: far more than it does on a busy machine."""
BLANKS = "PERDURE_TEST_BLANKS"
ROOT = Path(__file__).resolve().parents[1]


@contextmanager
def kept(module: str, folder: Path | None) -> Iterator[str]:
    """The URL of a server that a process of its own keeps, which runs this module."""
    # a session of its own: Ctrl-C is for the tests, which then close the pipe
    keeper = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", module, *([str(folder.resolve())] if folder else [])],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    try:
        url = keeper.stdout.readline().strip()
        assert "://" in url, f"the server of {module} did not start; its messages are above"
        yield url
    finally:
        keeper.stdin.close()
        keeper.wait(STOP_S)
        keeper.stdout.close()


def until_closed(url: str) -> None:
    """In the process that owns it: tell its URL and wait for the end of our input."""
    print(url, flush=True)  # noqa: T201 - how the tests learn it
    sys.stdin.read()


def wait_for(server: subprocess.Popen[bytes], answers: Callable[[], bool], log: Path) -> None:
    """Until it answers."""
    while not answers():
        if server.poll() is not None:
            sys.exit(f"the server ended: {log.read_text('utf-8', 'replace')[-2_000:]}")
        with suppress(subprocess.TimeoutExpired):
            server.wait(0.05)


def put_blank(name: str, data: Path, make: Callable[[Path], None]) -> None:
    """Put the files of a new server into `data`, with `make` or as a copy of what it made before under this name."""
    blanks = os.environ.get(BLANKS)
    if blanks is None:
        make(data)
        return
    blank, unfinished = Path(blanks, name), Path(blanks, f"{name}.unfinished")
    with Path(blanks, f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the suites that come meanwhile wait for it
        if not blank.exists():
            make(data)
            shutil.rmtree(unfinished, ignore_errors=True)
            _copy(data, unfinished)
            unfinished.rename(blank)
            return
    _copy(blank, data)


def _copy(source: Path, target: Path) -> None:
    """Owners and modes too: PostgreSQL starts on nothing else."""
    subprocess.run(["cp", "-a", "--reflink=auto", source, target], check=True)
