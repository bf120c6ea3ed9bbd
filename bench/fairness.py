"""The row about waiting: how long one enqueue takes while two other processes write back to back.

Run as a module it is one of those processes: `python -m bench.fairness write PATH JOBS` or `… ask PATH SECONDS COUNT`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from bench.measure import ROOT, middle_half, percentile, scratch_folder
from bench.report import Figure, Target, at_most
from bench.sample import Desk, arguments
from perdure.errors import DatabaseBusy

WRITERS = 2
PER_ROUND = 50
PARTS = 8  # the enqueues dealt out like cards, for the spread of p99
PAUSE_S = 0.002  # between two enqueues: someone who comes now and then, not a third busy writer
LIMIT_S = 30.0
COMPARISON_S = 8.0


class Scene(NamedTuple):
    """What the busy writers do, and whether the gate stands in front of the file."""

    name: str
    what: str
    jobs: int
    gated: bool = True
    target: Target | None = None


SCENES = (
    Scene("fairness", f"single enqueue beside {WRITERS} busy processes, p99", 1, target=at_most(50, "ms")),
    Scene("fairness-100", f"… beside {WRITERS} processes that write 100 jobs at a time, p99", 100),
    Scene("fairness-ungated", "… as the first, without the gate, p99", 1, gated=False),
)


def beside_busy_writers(rounds: int) -> list[Figure]:
    """Every scene on a file of its own, one after the other."""
    return [_play(scene, rounds) for scene in SCENES]


def _play(scene: Scene, rounds: int) -> Figure:
    with scratch_folder() as folder:
        path = folder / "jobs.db"
        Desk(path).close()
        if not scene.gated:
            _wall_up(path)
        with _busy(path, scene.jobs):
            waits = _ask(path, LIMIT_S if scene.gated else COMPARISON_S, rounds * PER_ROUND)
    p99s = [percentile(waits[part::PARTS], 99) for part in range(PARTS)]
    return Figure(
        scene.name,
        scene.what,
        percentile(waits, 99),
        "ms",
        middle_half(p99s),
        f"p50 {percentile(waits, 50):,.2f} ms, max {max(waits):,.1f} ms",
        f"{len(waits):,} enqueues",
        scene.target,
        rounds={"waits_ms": waits},
    )


def _wall_up(path: Path) -> None:
    """A folder where the gate's file would be: it cannot be opened, and every writer goes on without the gate."""
    gate = path.with_name(f"{path.name}-gate")
    gate.unlink(missing_ok=True)
    gate.mkdir()


@contextmanager
def _busy(path: Path, jobs: int) -> Generator[None, None, None]:
    """The writers, at work from the first line of the block to its last."""
    writers = [_process("write", str(path), str(jobs)) for _ in range(WRITERS)]
    try:
        for writer in writers:
            assert writer.stdout is not None
            if writer.stdout.readline() != "writing\n":
                raise SystemExit("A busy writer did not start; what it said is above.")
        yield
    finally:
        for writer in writers:
            writer.communicate()  # closes its stdin, which tells it to stop


def _ask(path: Path, seconds: float, count: int) -> list[float]:
    answer, _ = _process("ask", str(path), str(seconds), str(count)).communicate()
    waits: list[float] = json.loads(answer)
    return waits


def _process(*given: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "bench.fairness", *given]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT, env=environment)


# -- in the other processes ------------------------------------------------------------------------------------------


def write(path: Path, jobs: int) -> None:
    """Write transactions of so many jobs, back to back, until stdin is closed. A line on stdout says: at work."""
    desk, batch = Desk(path), [arguments()] * jobs
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    print("writing", flush=True)
    while not stop.is_set():
        with suppress(DatabaseBusy):
            desk.kind.enqueue_many(batch)


def ask(path: Path, seconds: float, count: int) -> None:
    """Enqueue one job now and then; print how long each took, in milliseconds. One that was refused took that long."""
    desk, given = Desk(path), arguments()
    waits: list[float] = []
    end = time.monotonic() + seconds
    while len(waits) < count and (time.monotonic() < end or len(waits) < PARTS):
        begun = time.perf_counter()
        with suppress(DatabaseBusy):
            desk.kind.enqueue(given["to"], given["body"])
        waits.append((time.perf_counter() - begun) * 1000)
        time.sleep(PAUSE_S)
    print(json.dumps(waits))


if __name__ == "__main__":
    role, path, *numbers = sys.argv[1:]
    if role == "write":
        write(Path(path), int(numbers[0]))
    else:
        ask(Path(path), float(numbers[0]), int(numbers[1]))
