"""What the demo measures, shows while it runs, proves and prints at the end. Called by `steps`.

Only basic styles, which every terminal shows on light and on dark, and none with NO_COLOR.
"""

from __future__ import annotations

import shlex
import shutil
import sys
import textwrap
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import ceil
from pathlib import Path
from typing import NamedTuple, Self
from uuid import UUID

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from perdure.app import Perdure
from perdure.cli.render import visible
from perdure.clock import to_datetime
from perdure.flow.views import Graph
from perdure.job.flow import FlowState
from perdure.job.states import RunState, State
from perdure.job.views import Job, Run
from perdure.schedules import Schedule
from perdure.text import span


@dataclass
class Figures:
    """Rates are per second; times in seconds."""

    accepted: set[UUID] = field(default_factory=set[UUID])
    """The jobs whose enqueue returned."""
    doomed: set[UUID] = field(default_factory=set[UUID])
    """Those of them that are meant to fail."""
    parents: int = 0
    """Those that each enqueue another one."""
    single_rate: float = 0.0
    batch_rate: float = 0.0
    mixed_rate: float = 0.0
    mixed: int = 0
    empty_rate: float = 0.0
    empty: int = 0
    latencies_s: list[float] = field(default_factory=list[float])
    in_hand: set[UUID] = field(default_factory=set[UUID])
    """The jobs that the killed worker held."""
    rescue_s: float = 0.0
    surprises: list[str] = field(default_factory=list[str])
    """What did not go as the steps say."""


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that `percent` % of them do not exceed (nearest rank). There must be one."""
    ranked = sorted(values)
    return ranked[max(ceil(len(ranked) * percent / 100), 1) - 1]


LABEL = 9
WIDEST = 100
EVERY_S = 1.0


class Progress(NamedTuple):
    """How far the work is."""

    ended: int
    total: int
    running: int
    waiting: int
    rate: float
    workers: Sequence[tuple[int, int]] = ()
    """Process id, and how many jobs it has in hand."""

    def __str__(self) -> str:
        return f"{self.ended:,} of {self.total:,} ended, {self.running} running, {self.rate:,.0f} jobs/s"


class Screen:
    """Where the demo says what it does. Leaving `with` restores the terminal.

    Without a terminal, and with --plain, a line a second replaces what moves.
    """

    def __init__(self, *, plain: bool) -> None:
        self.console = Console(highlight=False, markup=False, emoji=False)
        is_live = sys.stdout.isatty() and self.console.is_interactive and not plain  # FORCE_COLOR makes no terminal
        self._live = Live(console=self.console, auto_refresh=False, transient=True) if is_live else None
        self._last = 0.0

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.calm()
        if self._live is not None:
            self._live.stop()

    @property
    def width(self) -> int:
        return min(self.console.width, WIDEST)

    def say(self, label: str, sentence: str, style: str = "") -> None:
        """A sentence that stays, under a word that says which part it belongs to."""
        self._last = time.monotonic()
        margin = " " * (LABEL + 2)
        lines = textwrap.wrap(visible(sentence), max(self.width - len(margin), 30), break_on_hyphens=False)
        self.console.print(Text.assemble((f"{label:<{LABEL}}  ", "bold"), (lines[0], style)), soft_wrap=True)
        for line in lines[1:]:
            self.console.print(Text.assemble(margin, (line, style)), soft_wrap=True)

    def command(self, line: str) -> None:
        """Something to copy: on a line of its own, never broken."""
        self.console.print(Text(f"{' ' * (LABEL + 2)}{visible(line)}", "bold"), soft_wrap=True)

    def picture(self, lines: Iterable[str]) -> None:
        """Lines that stay, between blank ones, each as it is."""
        for line in ("", *lines, ""):
            self.console.print(Text(f"{' ' * (LABEL + 2)}{visible(line)}".rstrip()), soft_wrap=True)

    def show(self, progress: Progress) -> None:
        """What moves, as it is now."""
        if self._live is not None:
            self.draw(*_moving(progress, self.width))
        elif time.monotonic() - self._last >= EVERY_S and progress.ended < progress.total:
            self.say("", f"... {progress}")

    def draw(self, *parts: RenderableType) -> None:
        """Below a blank line, until something else is drawn; for those who watch."""
        if self._live is not None:
            self._live.update(Group("", *parts), refresh=True)

    def calm(self) -> None:
        """Nothing moves for now."""
        self._last = time.monotonic()
        if self._live is not None:
            self._live.update("", refresh=True)


def _moving(progress: Progress, width: int) -> tuple[RenderableType, RenderableType]:
    bar = ProgressBar(
        max(progress.total, 1),
        progress.ended,
        max(10, width - 40),
        style="dim",
        complete_style="cyan",
        finished_style="green",
    )
    line = Table.grid(padding=(0, 1))
    line.add_row(bar, Text(f"{progress.ended:,} of {progress.total:,}", "bold"), f"{progress.rate:,.0f} jobs/s")
    below = [f"waiting {progress.waiting:,}", f"running {progress.running}"]
    below += [f"worker {pid}: {held} in hand" for pid, held in progress.workers]
    return line, Text("   ".join(below), overflow="ellipsis", no_wrap=True)


_REASONS = (RunState.FAILED, RunState.LOST)
"""Ends of a run after which another one is in order."""


@dataclass
class Proof:
    """What was found. `problems` has a sentence for each thing that is not as claimed; empty: all is."""

    jobs: int = 0
    completed: int = 0
    failed: int = 0
    children: int = 0
    runs: int = 0
    starts: int = 0
    failures: int = 0
    """Runs that failed, and after which the job ran again."""
    lost: int = 0
    planned: int = 0
    """Instants of schedules."""
    taken: int = 0
    """Those of them that made a job."""
    missed: Counter[str] = field(default_factory=Counter[str])
    """Those that did not, by the recorded reason."""
    awaiting: int = 0
    """Joins and callbacks: jobs that wait for a flow."""
    checks: int = 0
    violations: int = 0
    remarks: list[str] = field(default_factory=list[str])
    """What the doctor found that breaks no promise."""
    problems: list[str] = field(default_factory=list[str])


def prove(app: Perdure, figures: Figures, starts: Path) -> Proof:
    """Compare what was accepted with what is recorded, and the record with what the handlers noted. Only reads."""
    jobs = {job.id: job for job in app.jobs()}
    runs = _by_job(app)
    noted = Counter(map(UUID, starts.read_text().split())) if starts.exists() else Counter[UUID]()
    states = Counter(job.state for job in jobs.values())
    proof = Proof(
        jobs=len(jobs),
        completed=states[State.COMPLETED],
        failed=states[State.FAILED],
        children=len(_children(jobs, figures)),
        runs=sum(map(len, runs.values())),
        starts=noted.total(),
        lost=sum(run.state is RunState.LOST for every in runs.values() for run in every),
    )
    proof.failures = sum(run.state is RunState.FAILED for every in runs.values() for run in every[:-1])
    proof.problems += figures.surprises
    proof.problems += _about_jobs(jobs, figures)
    proof.problems += _about_runs(runs, noted)
    proof.problems += _about_instants(app, jobs, proof)
    proof.problems += _about_flows(app, runs, proof)
    proof.problems += _doctor(app, proof)
    return proof


def _by_job(app: Perdure) -> dict[UUID, list[Run]]:
    runs: defaultdict[UUID, list[Run]] = defaultdict(list)
    for run in app.runs():
        runs[run.job_id].append(run)
    for every in runs.values():
        every.sort(key=lambda run: (run.life, run.attempt))
    return runs


def _children(jobs: Mapping[UUID, Job], figures: Figures) -> set[UUID]:
    """Neither enqueued by us nor by the clock."""
    return {job.id for job in jobs.values() if job.schedule_id is None} - figures.accepted


def _about_jobs(jobs: Mapping[UUID, Job], figures: Figures) -> Iterator[str]:
    if missing := figures.accepted - jobs.keys():
        yield f"{len(missing)} accepted jobs are missing, such as {min(missing)}"
    if open_ := [job.id for job in jobs.values() if not job.is_final]:
        yield f"{len(open_)} jobs have not ended, such as {min(open_)}"
    failed = {job.id for job in jobs.values() if job.is_final and job.state is not State.COMPLETED}
    if unmeant := failed - figures.doomed:
        yield f"{len(unmeant)} jobs failed that should not have, such as {min(unmeant)}"
    if unfailed := figures.doomed - failed:
        yield f"{len(unfailed)} jobs did not fail that should have, such as {min(unfailed)}"
    if (children := len(_children(jobs, figures))) != figures.parents:
        yield f"{figures.parents} jobs were to enqueue one child each, but there are {children} children"


def _about_runs(runs: Mapping[UUID, Sequence[Run]], noted: Counter[UUID]) -> Iterator[str]:
    unexplained = [job for job, every in runs.items() if any(run.state not in _REASONS for run in every[:-1])]
    if unexplained:
        yield f"{len(unexplained)} jobs ran again without a recorded reason, such as {min(unexplained)}"
    known = {run.id: run for every in runs.values() for run in every}
    if twice := [run for run, times in noted.items() if times > 1]:
        yield f"{len(twice)} runs were started twice, such as {min(twice)}"
    if unknown := noted.keys() - known.keys():
        yield f"{len(unknown)} starts of handlers are not recorded, such as run {min(unknown)}"
    # A run that was lost may have died before its handler began; every other one must have begun.
    silent = [run.id for run in known.values() if run.state is not RunState.LOST and run.id not in noted]
    if silent:
        yield f"{len(silent)} runs are recorded whose handler never began, such as {min(silent)}"


def _about_instants(app: Perdure, jobs: Mapping[UUID, Job], proof: Proof) -> Iterator[str]:
    """Each planned instant has made one job, or is in a stretch that is recorded as missed."""
    for schedule in app.schedules.list():
        made = Counter(job.scheduled_for for job in jobs.values() if job.schedule_id == schedule.id)
        stretches = app.schedules.missed(schedule.name, limit=10_000)
        planned = list(_planned(app, schedule))
        missed = {at: [one.reason for one in stretches if one.first <= at <= one.last] for at in planned}
        proof.planned += len(planned)
        proof.taken += sum(made[at] > 0 for at in planned)
        proof.missed.update(reason for reasons in missed.values() for reason in reasons)
        if lost := [at for at in planned if not made[at] and not missed[at]]:
            yield f"{len(lost)} planned instants made no job, and no reason is recorded, such as {lost[0]}"
        if twice := [at for at in planned if made[at] + len(missed[at]) > 1]:
            yield f"{len(twice)} planned instants were taken more than once, such as {twice[0]}"
        if unplanned := made.keys() - planned:
            yield f"{len(unplanned)} jobs are for instants that were not planned, such as {min(map(str, unplanned))}"


def _planned(app: Perdure, schedule: Schedule) -> Iterator[datetime]:
    """What its trigger says, from the time when it was made to the first instant that nobody has settled yet."""
    row = app.store.schedule(schedule.name)
    if row is not None and row.next_trigger_at is not None and schedule.trigger is not None:
        for at in schedule.trigger.instants(row.created_at):
            if at >= row.next_trigger_at:
                return
            yield to_datetime(at)


def _about_flows(app: Perdure, runs: Mapping[UUID, Sequence[Run]], proof: Proof) -> Iterator[str]:
    """Each flow has completed, and who waits for one, a join or a callback, has lived once and completed once."""
    for flow in app.flows.list():
        if flow.state is not FlowState.COMPLETED:
            yield f"the {flow.sort} {flow.name} is {flow.state}, not completed"
        graphs = list(with_inner(app.flows.graph(flow)))
        flows = {graph.flow.id for graph in graphs}
        awaiting = {edge.job for graph in graphs for edge in graph.edges if edge.depends_on in flows}
        proof.awaiting += len(awaiting)
        for job in awaiting:
            lives = {run.life for run in runs.get(job, ())}
            completed = sum(run.state is RunState.COMPLETED for run in runs.get(job, ()))
            if (len(lives), completed) != (1, 1):
                yield f"job {job} waits for a {flow.sort}: it lived {len(lives)} times and completed {completed} times"


def with_inner(graph: Graph) -> Iterator[Graph]:
    yield graph
    for inner in graph.inner:
        yield from with_inner(inner)


def _doctor(app: Perdure, proof: Proof) -> Iterator[str]:
    from perdure.ops.doctor import CHECKS, Severity, examine

    proof.checks = len(CHECKS)
    for finding in examine(app.store):
        if finding.severity is Severity.VIOLATION:
            proof.violations += 1
            yield f"doctor: {finding.name}, {finding.count} times: {finding.explanation}"
        else:
            proof.remarks.append(f"{finding.name} ({finding.severity}), {finding.count} times")


Row = tuple[str, str, str]


def print_table(screen: Screen, figures: Figures, proof: Proof, seconds: float) -> None:
    """Everything in it was measured or counted in this run."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("measured", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("what it means", overflow="fold")
    for name, value, meaning in (*_counts(figures, proof), *_speeds(figures), *_checks(proof)):
        table.add_row(Text(name, "bold"), Text(value), Text(meaning))
    screen.console.print(table, width=screen.width)
    for problem in proof.problems:
        screen.say("PROBLEM", problem, "bold red")
    if not proof.problems:
        claim = (
            "no accepted job was lost, none ran twice without a recorded reason, every planned instant is accounted"
            " for, and the join and the callback of the workflow had one life each"
        )
        screen.say("proven", f"In {seconds:.0f} s, {claim}.", "bold green")


def print_next_steps(screen: Screen, kept: Path | None) -> None:
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
    missed = ", ".join(f"{count} {reason}" for reason, count in proof.missed.items()) or "none"
    yield "planned", f"{proof.planned:,}", f"instants: {proof.taken} made one job each, {missed} missed"
    yield "jobs ended", f"{proof.completed + proof.failed:,}", f"{proof.failed} of them failed, as it was meant to"
    yield "attempts", f"{proof.runs:,}", "each recorded, with its end"
    again = f"{proof.failures} after an error, {proof.lost} lost with killed workers"
    yield "retried", f"{proof.failures + proof.lost:,}", again
    yield "join, callback", f"{proof.awaiting:,}", "jobs that waited for a flow: one life each"
    silent = proof.runs - proof.starts
    beside = f"; {silent} of the lost had not begun" if silent else ", outside the database"
    yield "handler starts", f"{proof.starts:,}", f"noted by the handlers{beside}"


def _speeds(figures: Figures) -> Iterator[Row]:
    yield "enqueue", f"{figures.single_rate:,.0f}/s", "one by one, each in its own commit"
    yield "enqueue many", f"{figures.batch_rate:,.0f}/s", "up to 500 in a commit"
    yield "mixed jobs", f"{figures.mixed_rate:,.0f}/s", f"{figures.mixed:,} jobs; two workers, then one"
    yield "empty jobs", f"{figures.empty_rate:,.0f}/s", f"{figures.empty:,} jobs; one worker"
    if figures.latencies_s:
        p50, p95, p99 = (percentile(figures.latencies_s, percent) * 1000 for percent in (50, 95, 99))
        yield "latency p50", f"{p50:.1f} ms", "from the call of enqueue to the handler,"
        yield "latency p95", f"{p95:.1f} ms", "in another process that was waiting"
        yield "latency p99", f"{p99:.1f} ms", f"for {len(figures.latencies_s)} jobs, one by one"
    yield "rescue", span(figures.rescue_s), f"from the kill until its {len(figures.in_hand)} jobs were queued again"


def _checks(proof: Proof) -> Iterator[Row]:
    yield "doctor", f"{proof.violations}", f"violations, in {proof.checks} checks of the database"
    for remark in proof.remarks:
        yield "", "", f"remark: {remark}"
