"""Runs pytest once per suite folder and sums up. `make test` calls it; extra arguments go to pytest.

A process per suite keeps what one leaves behind (threads, signals, loaded modules) out of the next. One suite more than
there are cores runs at a time, since a suite waits for a third of its time; the longest begin, so that all lanes end
together. What a suite prints is shown when it has ended. Exit status 0 means that every suite ran and every test in it
passed or was skipped with a reason; no test at all is a failure.

The tests' folders are in memory where there is room for them, since waiting for a disk shows nothing but its speed;
those of suites about crashes and files are on the disk. After a failure they are kept, on the disk.

MariaDB is no wheel: where it is missing it is installed, if this is root on Debian. Tests whose server or program is
missing are skipped, and the last lines say so: see tests/needs.py. With PERDURE_TEST_ALL_SERVERS they fail.

A suite that has not ended after PERDURE_SUITE_LIMIT_S seconds has hung somewhere that no test's own time-out sees: it
prints where each of its threads stands, is killed with all that it started, and counts as failed; the others go on.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from xml.etree import ElementTree as ET

import pytest

TESTS = Path(__file__).resolve().parent
FIRST = (
    *("contract", "cli", "databases", "interleaving", "postgres", "interrupts", "worker", "docs", "unit", "outages"),
    *("crash", "flow", "differential", "simulation", "faults"),
)
"""The longest first, so that both cores are busy to the end; folders not named here follow by name."""
SIDE_BY_SIDE = int(os.environ.get("PERDURE_SUITES_AT_ONCE") or (os.cpu_count() or 1) + 1)
MEMORY = Path("/dev/shm")
ROOM = 2 << 30
"""Bytes that must be free in memory. The folders of a suite take up to 215 MB."""
ON_DISK = ("crash", "faults", "sqlite")
FULL = os.environ.get("PERDURE_TEST_SIZE") == "full"
LIMIT_S = float(os.environ.get("PERDURE_SUITE_LIMIT_S") or (6 * 3_600 if FULL else 1_200))
"""Far more than the longest suite takes on a slow machine: only a hang is a failure."""
LOOK_S = 0.1
STACKS_S = 5.0
"""How long the threads of a suite that has hung have to say where they are."""

# The signal is handled in C: it prints whatever holds the interpreter. Before pytest, which would take the output.
PYTEST = """
import faulthandler, os, signal, sys
faulthandler.register(signal.SIGUSR2, file=os.dup(2), all_threads=True)
cpu = sys.argv.pop(1)
import pytest
status = int(pytest.main())
with open(cpu, "w") as file:
    file.write(str(sum(os.times()[:4])))
sys.exit(status)
"""


@dataclass(frozen=True)
class SuiteRun:
    name: str
    seconds: float
    cpu_s: float
    passed: int
    failed: int
    skipped: int


def suites() -> list[str]:
    """The folders that hold tests."""
    found = {path.name for path in TESTS.iterdir() if path.is_dir() and any(path.rglob("test_*.py"))}
    return [name for name in FIRST if name in found] + sorted(found.difference(FIRST))


def run_suite(name: str, pytest_args: list[str], blanks: str) -> SuiteRun:
    with tempfile.TemporaryDirectory(dir=_place(name), ignore_cleanup_errors=True) as scratch:
        report, output, cpu, folders = (Path(scratch, what) for what in ("report.xml", "output", "cpu", "t"))
        started = time.monotonic()
        options = ["--quiet", f"--junit-xml={report}", f"--basetemp={folders}", str(TESTS / name), *pytest_args]
        with output.open("wb") as file:  # no pipe: whatever a suite leaves running would keep it open
            suite = subprocess.Popen(
                [sys.executable, "-c", PYTEST, cpu, *options],
                cwd=TESTS.parent,
                env=_surroundings(blanks),
                stdout=file,
                stderr=file,
                process_group=0,
            )
            with _killed_in_the_end(suite):
                has_hung = _has_hung(suite, name, started)
                if has_hung:
                    _print_stacks(suite, output)
        seconds = time.monotonic() - started
        print(f"\n── {name} ──\n{output.read_text('utf-8', 'replace')}", end="", flush=True)
        if has_hung:
            print(f"{name} has not ended after {seconds:.0f} s: it hangs where its threads stand above. It was killed.")
        cpu_s = float(cpu.read_text()) if cpu.exists() else 0.0
        run = summed_up(name, seconds, cpu_s, suite.returncode, report)
        if run.failed and folders.exists() and (has_hung or suite.returncode >= 0):  # not where the run is ended
            print(f"What its tests have left is in {_kept(folders, name)}")
        return run


def _place(name: str) -> Path | None:
    """Where a suite has its folders: in memory. None: on the disk, where Python puts temporary files."""
    if name in ON_DISK or not os.access(MEMORY, os.W_OK) or shutil.disk_usage(MEMORY).free < ROOM:
        return None
    return MEMORY


def _surroundings(blanks: str) -> dict[str, str]:
    """Ours, and the folder where the first suite leaves the files of a new database server for the others.

    Python keeps what it has compiled: else each of some thousand processes compiles the package anew.
    """
    ours = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**ours, "PERDURE_TEST_BLANKS": blanks}


def _kept(folders: Path, name: str) -> Path:
    kept = Path(tempfile.mkdtemp(prefix=f"perdure-{name}-"))
    with suppress(shutil.Error):  # a socket cannot be copied, and all else has been
        shutil.copytree(folders, kept, symlinks=True, dirs_exist_ok=True)
    return kept


def _has_hung(suite: subprocess.Popen[bytes], name: str, started: float) -> bool:
    """Wait for the end of a suite. True: it does not come."""
    while suite.poll() is None:
        if is_too_long(name, time.monotonic() - started):
            return True
        with suppress(subprocess.TimeoutExpired):
            suite.wait(LOOK_S)
    return False


def is_too_long(_name: str, seconds: float) -> bool:
    """Whether a suite that has taken so long can be given up."""
    return seconds > LIMIT_S


def _print_stacks(suite: subprocess.Popen[bytes], output: Path) -> None:
    """Let the suite print where its threads stand, after what it has printed so far."""
    before, deadline = output.stat().st_size, time.monotonic() + STACKS_S
    suite.send_signal(signal.SIGUSR2)
    size = -1
    while time.monotonic() < deadline and not before < size == output.stat().st_size:
        size = output.stat().st_size
        with suppress(subprocess.TimeoutExpired):
            suite.wait(LOOK_S)


@contextmanager
def _killed_in_the_end(suite: subprocess.Popen[bytes]) -> Generator[None, None, None]:
    """Whatever happens to us: a suite that has not ended by then is killed, and what it started with it."""
    _running.add(suite)
    try:
        yield
    finally:
        if suite.poll() is None:
            _kill(suite)
        _running.discard(suite)
        suite.wait()


def _kill(suite: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(suite.pid, signal.SIGKILL)


_running: set[subprocess.Popen[bytes]] = set()


def summed_up(name: str, seconds: float, cpu_s: float, status: int, report: Path) -> SuiteRun:
    """Pytest's own counts; a suite that broke off without a failed test to show for it counts as one failure."""
    total = failed = skipped = 0
    if report.exists():
        for suite in ET.parse(report).getroot().iter("testsuite"):
            total += int(suite.get("tests", 0))
            failed += int(suite.get("failures", 0)) + int(suite.get("errors", 0))
            skipped += int(suite.get("skipped", 0))
    passed = max(total - failed - skipped, 0)
    if status not in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
        failed = max(failed, 1)
    return SuiteRun(name, seconds, cpu_s, passed, failed, skipped)


def print_table(runs: Iterable[SuiteRun]) -> None:
    print(f"\n{'suite':<12}{'wall time':>10}{'CPU time':>10}{'passed':>9}{'failed':>9}{'skipped':>9}")
    for run in runs:
        times = f"{run.seconds:>8.1f} s{run.cpu_s:>8.1f} s"
        print(f"{run.name:<12}{times}{run.passed:>9}{run.failed:>9}{run.skipped:>9}")


def run_all(pytest_args: list[str]) -> list[SuiteRun]:
    """Run every suite. Interrupted or told to end, it takes those that run along: they have groups of their own."""
    folder = tempfile.TemporaryDirectory(prefix="perdure-blanks-", dir=_place("blanks"), ignore_cleanup_errors=True)
    with folder as blanks, ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        try:
            return list(pool.map(lambda name: run_suite(name, pytest_args, blanks), suites()))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for suite in list(_running):
                _kill(suite)
            raise


def _told_to_end(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _install_mariadb() -> None:
    """Where it is missing, and that can be done, and no server is named."""
    apt = shutil.which("apt-get")
    if os.environ.get("PERDURE_TEST_MYSQL_URL") or all(map(_installed, ("mariadbd", "mariadb-dump"))):
        return
    if apt is None or os.geteuid() != 0:
        return
    print("Installing MariaDB for the tests ...", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    # only the programs: the package mariadb-server would also start a server of its own
    wanted = ["install", "--yes", "--no-install-recommends", "mariadb-server-core", "mariadb-client"]
    for arguments in (["update"], wanted):
        subprocess.run([apt, *arguments], env=environment, check=False, capture_output=True)


def _said_by(module: str, *arguments: str) -> list[str]:
    """The lines that a module of the tests prints, which this program, being no part of them, cannot import."""
    root = Path(__file__).resolve().parents[1]
    asked = [sys.executable, "-m", module, *arguments]
    return subprocess.run(asked, cwd=root, capture_output=True, text=True, check=False).stdout.splitlines()


def _installed(program: str) -> bool:
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin") is not None


def main(pytest_args: list[str]) -> int:
    started = time.monotonic()
    _install_mariadb()
    runs = run_all(pytest_args)
    cpu_s, passed, failed, skipped = (
        sum(getattr(run, what) for run in runs) for what in ("cpu_s", "passed", "failed", "skipped")
    )
    print_table([*runs, SuiteRun("all", time.monotonic() - started, cpu_s, passed, failed, skipped)])
    if passed + failed == 0:
        print("No test ran.")
    print(f"\n{passed} passed, {failed} failed, {skipped} skipped")
    print("PostgreSQL:", *_said_by("tests.postgres_server", "--which"))
    for what in _said_by("tests.needs"):
        print(f"NOT TESTED: {what}")
    return 1 if failed or passed == 0 else 0


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _told_to_end)
    sys.exit(main(sys.argv[1:]))
