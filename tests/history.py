"""The history check: what processes saw happen, compared with what the database says. For crash tests and simulator.

Whoever enqueues notes "enqueued" once the enqueue has returned; handlers note "start" with their first line and "end"
with their last; whoever deletes a job notes "deleted". Every note is one line of JSON, appended by one write, so that
notes of many processes do not mix and survive their writers. `problems` then says what cannot be explained.

Nothing here compares clocks. What is used instead: within one life of a job attempts never go down from claim to claim,
and stay the same only where the earlier run gave its attempt back (`released`).
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast
from uuid import UUID

from perdure import Perdure
from perdure.ids import parse_id, to_uuid
from perdure.job.states import FINAL, RunState, State
from perdure.store.open import dialect_of

OVER = frozenset({RunState.COMPLETED, RunState.SKIPPED, RunState.CANCELLED})
"""Runs that closed like this are the last of their life."""
AGAIN = frozenset({RunState.FAILED, RunState.TIMED_OUT, RunState.LOST, RunState.RELEASED})
"""After these the job may run again."""
MAY_OVERLAP = frozenset({RunState.LOST, RunState.TIMED_OUT})
"""Taken from a node that may not know yet, so that its handler may go on beside the next run."""


class Context(Protocol):
    """What is noted of a handler's context."""

    @property
    def job_id(self) -> UUID: ...
    @property
    def run_id(self) -> UUID: ...
    @property
    def attempt(self) -> int: ...


# -- writing ---------------------------------------------------------------------------------------------------------


def note(path: str | os.PathLike[str], event: str, **facts: object) -> None:
    """Append one event; ids may be given in any form. Safe from many processes.

    SIGKILL can cut a write at the end of a page. With a line's end on both sides the piece stays by itself.
    """
    line = "\n" + json.dumps({"event": event, **facts}, default=str, separators=(",", ":")) + "\n"
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(target, line.encode())
    finally:
        os.close(target)


def started(path: str | os.PathLike[str], ctx: Context, **facts: object) -> None:
    """The first line of a handler."""
    claim = getattr(ctx, "claim", None)
    node = {} if claim is None else {"node": to_uuid(claim.live.node_id)}
    note(path, "start", job=ctx.job_id, run=ctx.run_id, attempt=ctx.attempt, pid=os.getpid(), **node | facts)


def ended(path: str | os.PathLike[str], ctx: Context, **facts: object) -> None:
    """The last line of a handler that returns."""
    note(path, "end", job=ctx.job_id, run=ctx.run_id, **facts)


def events(path: str | os.PathLike[str], event: str | None = None) -> list[dict[str, Any]]:
    """What was noted, in the order it happened; of one sort, if asked for. A note cut off by a kill was not made."""
    text = Path(path).read_text() if Path(path).exists() else ""
    found: list[dict[str, Any]] = [json.loads(line) for line in text.split("\n") if line.endswith("}")]
    return [one for one in found if event in (None, one["event"])]


# -- reading ---------------------------------------------------------------------------------------------------------


class Run(NamedTuple):
    """A run as recorded."""

    id: UUID
    job: UUID
    node: UUID
    state: RunState
    attempt: int
    life: int
    finished_at: int | None


class Life(NamedTuple):
    """One life of a job, ended or not."""

    job: UUID
    number: int
    state: State
    finished_at: int | None
    max_attempts: int


class Recorded(NamedTuple):
    """What the database says."""

    jobs: dict[UUID, State]
    lives: dict[tuple[UUID, int], Life]
    runs: dict[UUID, Run]


def problems(
    path: str | os.PathLike[str], app: Perdure, *, drained: bool = True, handlers_note: bool = True
) -> list[str]:
    """What the notes and the database tell that must not happen. Empty: all is as promised.

    `drained`: nothing is left to do, so every job must have ended. `handlers_note`: every handler notes its start and,
    if it returns, its end; without it completed runs without notes are no problem.
    """
    noted, recorded = events(path), _recorded(app)
    return [
        *_lost(noted, recorded, drained=drained),
        *_unexpected(noted, recorded),
        *_ends(recorded),
        *_repeats(recorded),
        *_overlaps(noted, recorded),
        *(_made_up(noted, recorded) if handlers_note else ()),
        *(_left_open(recorded) if drained else ()),
    ]


def _recorded(app: Perdure) -> Recorded:
    jobs = {job.id: job.state for job in app.jobs()}
    runs = {
        run.id: Run(run.id, run.job_id, run.node_id, run.state, run.attempt, run.life, run.row.finished_at)
        for run in app.runs()
    }
    found = [
        *_rows(app, "outcome", "job_id, life, state, finished_at, max_attempts"),
        *_rows(app, "ready", "job_id, life, state, NULL, max_attempts"),
    ]
    lives = [Life(_uuid(job), number, State(state), at, most) for job, number, state, at, most in found]
    return Recorded(jobs, {(life.job, life.number): life for life in reversed(lives)}, runs)


def _rows(app: Perdure, table: str, columns: str) -> list[tuple[Any, ...]]:
    with app.transaction() as tx:
        rows = tx.execute(f"SELECT {columns} FROM {table_at(app.url, table)}").fetchall()
        return [tuple(row) for row in rows]


def table_at(url: str, name: str) -> str:
    """How a table of ours is called in that database."""
    return f"perdure{'.' if dialect_of(url) == 'postgres' else '_'}{name}"


def _uuid(value: object) -> UUID:
    return value if isinstance(value, UUID) else to_uuid(parse_id(cast("bytes | str", value)))


# -- the rules -------------------------------------------------------------------------------------------------------

Notes = Sequence[dict[str, Any]]


def _lost(noted: Notes, recorded: Recorded, *, drained: bool) -> Iterator[str]:
    """Nothing that was acknowledged is lost; in the end everything has ended."""
    deleted = {_uuid(one["job"]) for one in noted if one["event"] == "deleted"}
    for one in noted:
        job = _uuid(one["job"]) if one["event"] == "enqueued" else None
        if job is not None and job not in recorded.jobs and job not in deleted:
            yield f"job {job} was acknowledged and is gone"
    for job, state in recorded.jobs.items():
        if drained and state not in FINAL:
            yield f"job {job} is {state} although everything should have ended"


def _unexpected(noted: Notes, recorded: Recorded) -> Iterator[str]:
    """Nothing ran but recorded runs of known jobs, each once."""
    deleted = {_uuid(one["job"]) for one in noted if one["event"] == "deleted"}
    starts: Counter[UUID] = Counter()
    for one in noted:
        if one["event"] in ("start", "end"):
            starts[_uuid(one["run"])] += one["event"] == "start"
            if _uuid(one["job"]) not in deleted:
                yield from _unknown(one, recorded)
    for run_id, times in starts.items():
        if times != 1:
            yield f"run {run_id} started {times} times"


def _unknown(one: dict[str, Any], recorded: Recorded) -> Iterator[str]:
    job, run = _uuid(one["job"]), recorded.runs.get(_uuid(one["run"]))
    if job not in recorded.jobs:
        yield f"a handler ran for job {job}, which nobody knows"
    elif run is None or run.job != job:
        yield f"a handler of job {job} ran as {one['run']}, which is no recorded run of it"
    elif one.get("attempt", run.attempt) != run.attempt:
        yield f"run {run.id} ran as attempt {one['attempt']} and is recorded as attempt {run.attempt}"
    elif "node" in one and _uuid(one["node"]) != run.node:
        yield f"run {run.id} ran on node {one['node']} and is recorded for node {run.node}"


def _ends(recorded: Recorded) -> Iterator[str]:
    """A life has at most one accepted end, and it is the newest run's."""
    by_life = _by_life(recorded.runs.values())
    for (job, number), runs in by_life.items():
        life = recorded.lives.get((job, number))
        if life is None:
            yield f"job {job} has runs of a life {number} that it never had"
        elif life.finished_at is None:
            for run in runs:
                if run.state in OVER:
                    yield f"run {run.id} is {run.state}, but life {number} of job {job} goes on ({life.state})"
        else:
            yield from _end(life, runs)
    for life in recorded.lives.values():
        if life.state == State.COMPLETED and (life.job, life.number) not in by_life:
            yield f"life {life.number} of job {life.job} is completed and was never run"


def _end(life: Life, runs: Sequence[Run]) -> Iterator[str]:
    name = f"life {life.number} of job {life.job}"
    newest = max(run.attempt for run in runs)
    over = [run for run in runs if run.state in OVER]
    if len(over) > 1:
        yield f"{name} was ended by {len(over)} runs: {_listed(over)}"
    completed = sum(run.state == RunState.COMPLETED for run in runs)
    if completed != (life.state == State.COMPLETED):
        yield f"{name} ended as {life.state} with {completed} completed runs"
    closers = over or [run for run in runs if run.finished_at == life.finished_at]
    last = max((run.attempt for run in closers), default=0)
    if last < newest and (closers or life.state == State.FAILED):
        yield f"{name} was ended by attempt {last}, and its newest was attempt {newest}"


def _repeats(recorded: Recorded) -> Iterator[str]:
    """Whatever ran again has a recorded reason, and no more often than allowed."""
    for (job, number), runs in _by_life(recorded.runs.values()).items():
        life = recorded.lives.get((job, number))
        for attempt in {run.attempt for run in runs}:
            kept = [run for run in runs if run.attempt == attempt and run.state != RunState.RELEASED]
            if len(kept) > 1:
                yield f"attempt {attempt} of job {job} was made {len(kept)} times: {_listed(kept)}"
        newest = max(run.attempt for run in runs)
        for run in runs:
            if run.attempt < newest and run.state not in AGAIN:
                yield f"job {job} ran again after run {run.id} (attempt {run.attempt}), which is {run.state}"
        if life is not None and newest > life.max_attempts:
            yield f"life {number} of job {job} had attempt {newest} of {life.max_attempts}"


def _overlaps(noted: Notes, recorded: Recorded) -> Iterator[str]:
    """Two handlers of the same job at once only where the first one's run was taken from its node."""
    going: dict[UUID, set[UUID]] = defaultdict(set)
    beside: dict[UUID, set[UUID]] = defaultdict(set)
    for one in noted:
        if one["event"] == "start":
            job, run_id = _uuid(one["job"]), _uuid(one["run"])
            for other in going[job]:
                beside[other].add(run_id)
            going[job].add(run_id)
        elif one["event"] == "end":
            job, run_id = _uuid(one["job"]), _uuid(one["run"])
            going[job].discard(run_id)
            for other in beside[run_id]:
                if not (_was_taken(run_id, recorded) or _was_taken(other, recorded)):
                    yield f"job {job} ran twice at once: run {other} started before run {run_id} had ended"


def _was_taken(run_id: UUID, recorded: Recorded) -> bool:
    """Also true where nobody can tell any more, because the job was deleted."""
    run = recorded.runs.get(run_id)
    return run is None or run.state in MAY_OVERLAP


def _made_up(noted: Notes, recorded: Recorded) -> Iterator[str]:
    """What is recorded as completed was really run to its end."""
    enqueued = {_uuid(one["job"]) for one in noted if one["event"] == "enqueued"}
    began = {_uuid(one["run"]) for one in noted if one["event"] == "start"}
    done = {_uuid(one["run"]) for one in noted if one["event"] == "end"}
    for run in recorded.runs.values():
        if run.state == RunState.COMPLETED and run.id not in done and (run.job in enqueued or run.id in began):
            yield f"run {run.id} of job {run.job} is completed, but its handler never came to its end"


def _left_open(recorded: Recorded) -> Iterator[str]:
    for run in recorded.runs.values():
        if run.state == RunState.RUNNING:
            yield f"run {run.id} of job {run.job} is still open"


def _by_life(runs: Iterable[Run]) -> dict[tuple[UUID, int], list[Run]]:
    found: dict[tuple[UUID, int], list[Run]] = defaultdict(list)
    for run in runs:
        found[run.job, run.life].append(run)
    return found


def _listed(runs: Iterable[Run]) -> str:
    return ", ".join(f"{run.id} ({run.state})" for run in runs)
