"""How much code a job passes: files and lines of `perdure` that run from `enqueue` to its end, traced.

`python -m bench.path [SRC …]` traces the sources it is run with, or each of these folders (the `src` of other
checkouts), so that two states of the code are counted in the same way. It uses nothing but the public API.

`the way itself` is the second job of its kind: the call of `enqueue`, every turn of the node, and the threads that
handlers run in. `with start and stop` is all that runs from `Perdure(…)` to the end of the worker.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import perdure

HOME = str(Path(perdure.__file__).parent) + os.sep
NODE = str(Path("worker", "node.py"))
NOT_OF_ONE_JOB = ("perdure-store", "perdure-heart", "perdure-guard", "MainThread")
"""Threads that do more than run handlers: of these only what is asked for counts."""


class Trace:
    """The functions of the package that were called, in every thread that began after `switch_on`."""

    def __init__(self) -> None:
        self.all: set[CodeType] = set()
        self.of_the_job: set[CodeType] = set()
        self._is_watching = self._is_enqueueing = False

    @contextmanager
    def switched_on(self) -> Generator[None, None, None]:
        threading.setprofile(self._called)
        sys.setprofile(self._called)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    @contextmanager
    def one_job(self) -> Generator[None, None, None]:
        self._is_watching = True
        try:
            yield
        finally:
            self._is_watching = False

    def enqueued(self, enqueue: Callable[[], Any]) -> Any:
        self._is_enqueueing = True
        try:
            return enqueue()
        finally:
            self._is_enqueueing = False

    def _called(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(HOME) or not code.co_flags & inspect.CO_OPTIMIZED:
            return  # without that flag it is the body of a module or of a class
        if code in self.of_the_job or _is_importing(frame):
            return
        self.all.add(code)
        if self._is_watching and self._belongs_to_the_job(frame):
            self.of_the_job.add(code)

    def _belongs_to_the_job(self, frame: FrameType) -> bool:
        thread = threading.current_thread().name
        if thread == "MainThread":
            return self._is_enqueueing
        return thread not in NOT_OF_ONE_JOB or _is_in_a_turn(frame)


def _is_in_a_turn(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name == "turn" and frame.f_code.co_filename.endswith(NODE):
            return True
        frame = frame.f_back
    return False


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(HOME):
            return True
        frame = frame.f_back
    return False


def traced(folder: Path) -> Trace:
    trace = Trace()
    with trace.switched_on():
        app = perdure.Perdure(folder / "jobs.db")

        @app.job
        async def asynchronous(number: int) -> int:
            return number

        @app.job
        def plain(number: int) -> int:
            return number

        with app.worker().running():
            for kind in (asynchronous, plain):
                app.wait(kind.enqueue(1), timeout=30)
            for kind in (asynchronous, plain):
                with trace.one_job():
                    job = trace.enqueued(lambda kind=kind: kind.enqueue(2))  # type: ignore[misc]
                    app.wait(job, timeout=30)
        app.close()
    return trace


def lines_of(codes: set[CodeType]) -> tuple[int, int, int]:
    """How many files these functions are in, how long those are, and how many lines are the functions' own."""
    own: defaultdict[str, set[int]] = defaultdict(set)
    for code in codes:
        last = max((line for _, _, line in code.co_lines() if line is not None), default=code.co_firstlineno)
        own[code.co_filename] |= set(range(code.co_firstlineno, last + 1))
    whole = sum(len(Path(file).read_text().splitlines()) for file in own)
    return len(own), whole, sum(map(len, own.values()))


def main() -> None:
    folders = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    if folders:
        for folder in folders:
            print(f"{folder}:", flush=True)
            subprocess.run(
                [sys.executable, __file__, *sys.argv[len(folders) + 1 :]],
                env={**os.environ, "PYTHONPATH": folder},
                check=True,
            )
        return
    with tempfile.TemporaryDirectory() as folder:
        trace = traced(Path(folder))
    print(f"{'':22}{'files':>8}{'their lines':>14}{'lines of the functions':>25}")
    for name, codes in (("the way itself", trace.of_the_job), ("with start and stop", trace.all)):
        files, whole, own = lines_of(codes)
        print(f"{name:22}{files:>8}{whole:>14,}{own:>25,}")
    if "--files" in sys.argv:
        for name, codes in (("the way itself", trace.of_the_job), ("besides", trace.all - trace.of_the_job)):
            print(f"\n{name}:")
            for file in sorted({code.co_filename for code in codes}):
                functions = [code for code in codes if code.co_filename == file]
                names = ", ".join(code.co_qualname for code in sorted(functions, key=lambda code: code.co_firstlineno))
                print(f"  {file.removeprefix(HOME)}: {names}")


if __name__ == "__main__":
    main()
