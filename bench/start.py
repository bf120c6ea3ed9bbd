"""The row about the command line: how long `perdure` takes from being typed to having answered, beside bare Python."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.floor import make_file
from bench.measure import in_turns, middle_half, scratch_folder
from bench.report import Figure, at_most

ROUNDS = 15


def commands(rounds: int) -> list[Figure]:
    """The program as it is installed, with byte code. `health` looks into a database and finds no worker."""
    program = str(Path(sys.executable).with_name("perdure"))
    with scratch_folder() as folder:
        make_file(folder / "jobs.db")
        asked = {"--help": [program, "--help"], "health": [program, "health", "--url", str(folder / "jobs.db")]}
        return [_figure(name, command, min(rounds, ROUNDS)) for name, command in asked.items()]


def _figure(name: str, command: Sequence[str], rounds: int) -> Figure:
    measured = in_turns(lambda: _milliseconds(command), lambda: _milliseconds([sys.executable, "-c", "pass"]), rounds)
    ours, bare = map(statistics.median, measured)
    return Figure(
        "start",
        f"perdure {name}",
        ours,
        "ms",
        middle_half(measured.ours),
        f"{ours:.0f} ms",
        f"python -c pass {bare:.0f} ms",
        at_most(250, "ms"),
        rounds=measured._asdict(),
    )


def _milliseconds(command: Sequence[str]) -> float:
    with_byte_code = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    began = time.perf_counter()
    subprocess.run(command, env=with_byte_code, stdout=subprocess.DEVNULL, check=False)
    return (time.perf_counter() - began) * 1_000
