"""Plants one bug after the other in a copy of the sources and says which test notices it. `make mutants` calls it.

The tests that a bug names are run first, then whole suites, the quick ones on SQLite first, until one fails or the time
that a bug may take is over. Exit status 0: every part of the package has at least 95 % of its bugs noticed, and none is
stale. Arguments choose bugs by folder (`job`), by words of their name, or by the file they are in (`sqlite.mutants`).
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple, TypeVar

from tests.mutants.planting import HERE, ROOT, Mutant, Stale, folder_of, parsed, planted, sources

A = TypeVar("A")
B = TypeVar("B")

ENOUGH = 0.95
LIMIT_S = 420.0
"""How long the tests may look at one bug."""
NAMED_S = 300.0
"""How long the tests that a bug names may take; more means that they hang, which is a way to notice."""
WITNESSES_S = 900.0
HUNG = ", which hung"
STUCK_S = 60
"""A test that takes longer than this hangs, which is a way to notice."""
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", f"--timeout={STUCK_S}")
CONTRACT = """
import sys
from perdure.testing.contract.rig import Rig
from perdure.testing.contract.suite import Verdict, cases, judged

for result in judged(cases(sys.argv[2:]), lambda: Rig(sys.argv[1])):
    if result.verdict == Verdict.FAILED:
        sys.exit(f"FAILED {result.case}")
"""
"""Groups of the contract suite up to the first case that fails; pytest takes three seconds to find all cases."""
WIDER = (
    "tests/contract/test_sqlite.py",
    "tests/unit",
    "tests/app tests/testing",
    "tests/sqlite tests/simulation",
    "tests/worker",
    "tests/cli",
    "tests/faults",
    "tests/crash",
    "tests/postgres tests/contract/test_postgres.py",
)
NOT_COPIED = shutil.ignore_patterns(".git", ".venv", ".bench", "__pycache__", ".*_cache", ".hypothesis", "dist")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/.+?|\w+: .+?)(?: - (.*))?$", re.MULTILINE)


class Verdict(NamedTuple):
    """What came of a bug. `noticed`: None if that does not count."""

    mutant: Mutant
    folder: str
    noticed: bool | None
    told: str
    seconds: float = 0.0
    by: str = ""
    """The test that noticed it."""


class Field:
    """A copy of the whole repository in which one bug at a time is planted."""

    def __init__(self, root: Path) -> None:
        self.root = root
        shutil.copytree(ROOT, root, ignore=NOT_COPIED)
        self._sources = sources(root)
        self._moment = time.time()

    @contextmanager
    def with_bug(self, changed: dict[Path, str]) -> Generator[None, None, None]:
        try:
            for path, text in changed.items():
                self._write(path, text)
            yield
        finally:
            for path in changed:
                self._write(path, self._sources[path])

    def _write(self, path: Path, text: str) -> None:
        """With a time of its own each: Python tells compiled files by the second in which their source was changed."""
        self._moment += 10
        (self.root / path).write_text(text, "utf-8")
        os.utime(self.root / path, (self._moment, self._moment))

    def notices(self, tests: str, limit_s: float, *, at_limit: str | None = None) -> str | None:
        """The test that fails, or `at_limit` if they have not ended in this time. None: none does."""
        first, *rest = shlex.split(tests)
        if first == "contract":
            with tempfile.TemporaryDirectory() as folder:
                url = f"sqlite:///{folder}/jobs.db"
                status, said = self._run(["-c", CONTRACT, url, *rest], limit_s)
        else:
            status, said = self._run([*PYTEST, "-x", first, *rest], limit_s)
        if status is None:
            return at_limit
        return _who(said, status) if status else None

    def failing(self, ids: Sequence[str]) -> set[str]:
        """Which of these tests fail with the sources as they are."""
        _, said = self._run([*PYTEST, *ids], WITNESSES_S)
        return {found[1] for found in _FAILED.finditer(said)}

    def _run(self, arguments: Sequence[str], limit_s: float) -> tuple[int | None, str]:
        """The exit status of Python, and what it said. None: it was not done in this time."""
        environment = {**os.environ, "PYTHONPATH": f"{self.root / 'src'}{os.pathsep}{self.root}"}
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=self.root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            status: int | None = None
            try:
                with suppress(subprocess.TimeoutExpired):
                    status = process.wait(limit_s)
            finally:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            output.seek(0)
            return status, output.read()


def _who(said: str, status: int) -> str:
    """Which test it was; a suite that could not even begin has noticed too."""
    found = _FAILED.search(said)
    if found is not None:
        return f"{found[1]}{HUNG}" if "Timeout" in (found[2] or "") else found[1]
    if "+ Timeout +" in said or "Timeout (>" in said:
        return "a test that hangs"
    return f"pytest, which ended with {status}: {said.strip().splitlines()[-1] if said.strip() else 'nothing said'}"


def tried(mutant: Mutant, field: Field, texts: dict[Path, str], wider: Sequence[str]) -> Verdict:
    started = time.monotonic()
    try:
        changed = planted(mutant, texts)
    except Stale as error:
        return Verdict(mutant, "", False, f"STALE: {error}")
    folder = folder_of(next(iter(changed)))
    if mutant.equivalent is not None:
        return Verdict(mutant, folder, None, f"equivalent: {mutant.equivalent}")
    by: str | None = None
    with field.with_bug(changed):
        for tests in mutant.tests.split(" | "):
            by = by or field.notices(tests, NAMED_S, at_limit=f"{tests}, which does not end")
        for tests in wider:
            left = LIMIT_S - (time.monotonic() - started)
            by = by or (field.notices(tests, left) if left > 0 else None)
    seconds = time.monotonic() - started
    if by is None:
        return Verdict(mutant, folder, False, "SURVIVED", seconds)
    return Verdict(mutant, folder, True, f"noticed by {by}", seconds, by)


def chosen(words: Sequence[str], texts: dict[Path, str]) -> list[Mutant]:
    """The bugs that were asked for; all, where nothing was."""
    found: list[Mutant] = []
    for file in sorted(HERE.glob("*.mutants")):
        for mutant in parsed(file.read_text("utf-8")):
            folders = {folder_of(path) for path, text in texts.items() if mutant.old and mutant.old in text}
            if not words or any(word in {file.name, *folders} or word in mutant.name for word in words):
                found.append(mutant)
    return found


class Farm:
    """A few fields, and somebody at work in each."""

    def __init__(self, scratch: Path, jobs: int) -> None:
        self._pool = ThreadPoolExecutor(jobs)
        self._free: SimpleQueue[Field] = SimpleQueue()
        for number in range(jobs):
            self._free.put(Field(scratch / str(number)))

    def each(self, what: Iterable[A], do: Callable[[A, Field], B]) -> list[B]:
        def one(item: A) -> B:
            field = self._free.get()
            try:
                return do(item, field)
            finally:
                self._free.put(field)

        return list(self._pool.map(one, what))


def without_false_witnesses(verdicts: Sequence[Verdict], farm: Farm) -> list[Verdict]:
    """Tests that also fail without any bug have noticed nothing."""
    witnesses = sorted({verdict.by.removesuffix(HUNG) for verdict in verdicts if "::" in verdict.by})
    (false,) = farm.each([witnesses], lambda ids, field: field.failing(ids)) if witnesses else (set[str](),)
    return [
        verdict._replace(noticed=False, told=f"{verdict.by} fails without it too")
        if verdict.by.removesuffix(HUNG) in false
        else verdict
        for verdict in verdicts
    ]


def run(mutants: Sequence[Mutant], farm: Farm, texts: dict[Path, str], wider: Sequence[str]) -> list[Verdict]:
    """Each tried, as many at a time as there are fields; printed as they are done."""

    def one(mutant: Mutant, field: Field) -> Verdict:
        verdict = tried(mutant, field, texts, wider)
        print(f"{verdict.seconds:6.1f} s  {verdict.folder:7} {mutant.name}  {verdict.told}", flush=True)
        return verdict

    return farm.each(mutants, one)


def sum_up(verdicts: Sequence[Verdict]) -> bool:
    """True: enough of every part were noticed."""
    stale = [verdict for verdict in verdicts if not verdict.folder]
    counted = [verdict for verdict in verdicts if verdict.folder and verdict.noticed is not None]
    all_of = Counter(verdict.folder for verdict in counted)
    noticed = Counter(verdict.folder for verdict in counted if verdict.noticed)
    equivalent = Counter(verdict.folder for verdict in verdicts if verdict.noticed is None)
    print(f"\n{'part':<9}{'noticed':>9}{'of':>6}{'equivalent':>12}")
    for folder in sorted({*all_of, *equivalent}):
        share = f"{noticed[folder] / all_of[folder]:8.1%}" if all_of[folder] else ""
        print(f"{folder:<9}{noticed[folder]:>9}{all_of[folder]:>6}{equivalent[folder]:>12}{share}")
    for verdict in verdicts:
        if verdict.noticed is False:
            print(f"\n{verdict.mutant.name}\n  {verdict.told}", end="")
    print(f"\n{sum(noticed.values())} of {len(counted)} planted bugs noticed, {len(stale)} stale")
    return not stale and all(noticed[folder] >= ENOUGH * all_of[folder] for folder in all_of)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("what", nargs="*", help="folders, words of names, or *.mutants files; nothing means all")
    parser.add_argument("--jobs", type=int, default=max(1, os.cpu_count() or 1), help="how many at a time")
    parser.add_argument("--named", action="store_true", help="only the tests that each bug names, no whole suites")
    asked = parser.parse_args(arguments)
    texts = sources(ROOT)
    mutants, wider = chosen(asked.what, texts), () if asked.named else WIDER
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        Path(scratch).chmod(0o755)  # some tests become nobody, who has to read the sources too
        farm = Farm(Path(scratch), asked.jobs)
        verdicts = without_false_witnesses(run(mutants, farm, texts, wider), farm)
        return 0 if sum_up(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
