"""The end of the demo: the table of what was measured, the verdict, and where to go next. Called by `stage`."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from perdure.cli.demo.figures import Figures, percentile, spoken
from perdure.cli.demo.proof import Proof
from perdure.cli.demo.screen import Screen

Row = tuple[str, str, str]


def close(screen: Screen, figures: Figures, proof: Proof, seconds: float) -> None:
    """Everything in it was measured or counted in this run."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("measured", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("what it means", overflow="fold")
    for name, value, meaning in (*_counts(figures, proof), *_speeds(figures), *_checks(proof)):
        table.add_row(Text(name, "bold"), Text(value), Text(meaning))
    screen.console.print(table, width=min(screen.width, screen.console.width))
    if proof.problems:
        for problem in proof.problems:
            screen.say("PROBLEM", problem, "bold red")
        return
    screen.say(
        "proven",
        f"In {seconds:.0f} s, no accepted job was lost, and none ran twice without a recorded reason.",
        "bold green",
    )


def point_on(screen: Screen, kept: Path | None) -> None:
    """Commands that work where the demo was started, and nothing that only a clone has."""
    perdure = _program()
    if kept is not None:
        screen.say("kept", f"The database is {kept}. Look at it with:")
        screen.command(f"{perdure} status --url {shlex.quote(str(kept))}")
    screen.say("next", "A small jobs.py of your own, which works and says what to type:")
    screen.command(f"{perdure} init")
    screen.say("", "All commands (the tutorial is in Perdure's documentation):")
    screen.command(f"{perdure} --help")


def _program() -> str:
    """What to type for `perdure`: after `make demo` its folder is not on the path."""
    if shutil.which("perdure") is not None:
        return "perdure"
    python = Path(sys.executable)
    here = python.relative_to(Path.cwd()) if python.is_relative_to(Path.cwd()) else python
    return f"{shlex.quote(str(here))} -m perdure"


def _counts(figures: Figures, proof: Proof) -> Iterator[Row]:
    asked = len(figures.accepted)
    yield "jobs accepted", f"{asked:,}", f"and {proof.children} more that jobs enqueued themselves"
    yield "jobs ended", f"{proof.completed + proof.failed:,}", f"{proof.failed} of them failed, as it was meant to"
    yield "attempts", f"{proof.runs:,}", "each recorded, with its end"
    yield (
        "tried again",
        f"{proof.failures + proof.lost:,}",
        (f"{proof.failures} after an error, {proof.lost} lost with the killed worker"),
    )
    yield "handler starts", f"{proof.starts:,}", _agreement(proof)


def _speeds(figures: Figures) -> Iterator[Row]:
    yield "enqueue", f"{figures.single_rate:,.0f}/s", "one by one, each in a commit of its own"
    yield "enqueue many", f"{figures.batch_rate:,.0f}/s", "up to 500 in a commit"
    yield "mixed jobs", f"{figures.mixed_rate:,.0f}/s", f"{figures.mixed:,} jobs; two workers, then one"
    yield "empty jobs", f"{figures.empty_rate:,.0f}/s", f"{figures.empty:,} jobs; one worker"
    if figures.latencies_s:
        p50, p95, p99 = (percentile(figures.latencies_s, percent) * 1000 for percent in (50, 95, 99))
        yield "latency p50", f"{p50:.1f} ms", "from the call of enqueue to the handler,"
        yield "latency p95", f"{p95:.1f} ms", "in another process that was waiting"
        yield "latency p99", f"{p99:.1f} ms", f"for {len(figures.latencies_s)} jobs, one by one"
    yield "rescue", spoken(figures.rescue_s), f"from the kill until its {len(figures.in_hand)} jobs were queued again"


def _checks(proof: Proof) -> Iterator[Row]:
    yield "doctor", f"{proof.violations}", f"violations, in {proof.checks} checks of the database"
    for remark in proof.remarks:
        yield "", "", f"remark: {remark}"


def _agreement(proof: Proof) -> str:
    missing = proof.runs - proof.starts
    return "noted by the handlers" + (f"; {missing} of the lost had not begun" if missing else ", outside the database")
