"""Runs pytest once per suite folder and sums up. `make test` calls it; extra arguments go to pytest.

A process per suite keeps what one leaves behind (threads, signals, loaded modules) out of the next. Two suites run side
by side, since most tests wait more than they compute; what a suite prints is shown when it has ended. Exit status 0
means that every suite ran and every test in it passed or was skipped with a reason; no test at all is a failure.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

TESTS = Path(__file__).resolve().parent
FIRST = ("contract", "worker", "crash", "unit")  # the longest first; folders not named here follow by name
SIDE_BY_SIDE = int(os.environ.get("PERDURE_SUITES_AT_ONCE", "2"))


@dataclass(frozen=True)
class SuiteRun:
    name: str
    seconds: float
    passed: int
    failed: int
    skipped: int


def suites() -> list[str]:
    """The folders that hold tests."""
    found = {path.name for path in TESTS.iterdir() if path.is_dir() and any(path.rglob("test_*.py"))}
    return [name for name in FIRST if name in found] + sorted(found.difference(FIRST))


def run_suite(name: str, pytest_args: list[str]) -> SuiteRun:
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch, "report.xml")
        started = time.monotonic()
        command = [sys.executable, "-m", "pytest", "--quiet", f"--junit-xml={report}", str(TESTS / name), *pytest_args]
        done = subprocess.run(
            command, cwd=TESTS.parent, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        seconds = time.monotonic() - started
        print(f"\n── {name} ──\n{done.stdout}", end="", flush=True)
        return summed_up(name, seconds, done.returncode, report)


def summed_up(name: str, seconds: float, status: int, report: Path) -> SuiteRun:
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
    return SuiteRun(name, seconds, passed, failed, skipped)


def print_table(runs: Iterable[SuiteRun]) -> None:
    print(f"\n{'suite':<12}{'wall time':>10}{'passed':>9}{'failed':>9}{'skipped':>9}")
    for run in runs:
        print(f"{run.name:<12}{run.seconds:>8.1f} s{run.passed:>9}{run.failed:>9}{run.skipped:>9}")


def main(pytest_args: list[str]) -> int:
    started = time.monotonic()
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        runs = list(pool.map(lambda name: run_suite(name, pytest_args), suites()))
    passed, failed, skipped = (sum(getattr(run, what) for run in runs) for what in ("passed", "failed", "skipped"))
    print_table([*runs, SuiteRun("all", time.monotonic() - started, passed, failed, skipped)])
    if passed + failed == 0:
        print("No test ran.")
    print(f"\n{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
