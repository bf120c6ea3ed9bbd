"""What must be true at the end: nothing accepted is missing, nothing ran again without a recorded reason. Only reads.

Called by `stage`. Asks the record, the doctor, and the file in which the handlers themselves noted every start.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from perdure.app import Perdure
from perdure.cli.demo.figures import Figures
from perdure.job.states import RunState, State
from perdure.job.views import Job, Run

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
    checks: int = 0
    violations: int = 0
    remarks: list[str] = field(default_factory=list[str])
    """What the doctor found that breaks no promise."""
    problems: list[str] = field(default_factory=list[str])


def prove(app: Perdure, figures: Figures, starts: Path) -> Proof:
    """Compare what was accepted with what is recorded, and the record with what the handlers noted."""
    jobs = {job.id: job for job in app.jobs()}
    runs = _by_job(app)
    noted = Counter(map(UUID, starts.read_text().split())) if starts.exists() else Counter[UUID]()
    states = Counter(job.state for job in jobs.values())
    proof = Proof(
        jobs=len(jobs),
        completed=states[State.COMPLETED],
        failed=states[State.FAILED],
        children=len(jobs.keys() - figures.accepted),
        runs=sum(map(len, runs.values())),
        starts=noted.total(),
        lost=sum(run.state is RunState.LOST for every in runs.values() for run in every),
    )
    proof.failures = sum(run.state is RunState.FAILED for every in runs.values() for run in every[:-1])
    proof.problems += figures.surprises
    proof.problems += _about_jobs(jobs, figures)
    proof.problems += _about_runs(runs, noted)
    proof.problems += _doctor(app, proof)
    return proof


def _by_job(app: Perdure) -> dict[UUID, list[Run]]:
    runs: defaultdict[UUID, list[Run]] = defaultdict(list)
    for run in app.runs():
        runs[run.job_id].append(run)
    for every in runs.values():
        every.sort(key=lambda run: (run.life, run.attempt))
    return runs


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
    if (children := len(jobs.keys() - figures.accepted)) != figures.parents:
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


def _doctor(app: Perdure, proof: Proof) -> Iterator[str]:
    from perdure.ops.doctor import CHECKS, Severity, examine

    proof.checks = len(CHECKS)
    for finding in examine(app.store):
        if finding.severity is Severity.VIOLATION:
            proof.violations += 1
            yield f"doctor: {finding.name}, {finding.count} times: {finding.explanation}"
        else:
            proof.remarks.append(f"{finding.name} ({finding.severity}), {finding.count} times")
