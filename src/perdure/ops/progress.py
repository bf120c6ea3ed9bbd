"""How far running jobs are, as they say with `ctx.progress`. Asked by `status`, `explain` and the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from perdure.job.states import State
from perdure.store.rows import JobFilter, RunFilter

if TYPE_CHECKING:
    from perdure.clock import Micros
    from perdure.job.views import Job, Run
    from perdure.store.protocols import Store


class Working(NamedTuple):
    """A job that runs, since when this attempt does, and what it has last said of its progress: `done`, perhaps `total`
    and `note`."""

    job: Job
    since: Micros
    progress: Mapping[str, Any] | None


def working(store: Store, most: int) -> list[Working]:
    """Jobs that run, the newest first, at most so many: each takes one more query."""
    page = store.jobs(JobFilter(state=State.RUNNING.value), None, most)
    runs = [(job, _newest_run(store, job)) for job in page.items]
    return [Working(job, run.row.started_at, said_in(run.metrics)) for job, run in runs if run is not None]


def progress_of(store: Store, job: Job) -> Mapping[str, Any] | None:
    """Of its newest run. None: it has said nothing, or does not run."""
    newest = _newest_run(store, job) if job.state is State.RUNNING else None
    return None if newest is None else said_in(newest.metrics)


def _newest_run(store: Store, job: Job) -> Run | None:
    return next(iter(store.runs(RunFilter(job_id=job.row.id), None, 1).items), None)


def said_in(metrics: object) -> Mapping[str, Any] | None:
    """What the metrics of a run have of its progress, where they are as `ctx.progress` writes them."""
    told = cast("dict[str, Any]", metrics).get("progress") if isinstance(metrics, dict) else None
    if not isinstance(told, dict):
        return None
    progress = cast("dict[str, Any]", told)
    return progress if _is_number(progress.get("done")) else None


def progress_text(progress: Mapping[str, Any]) -> str:
    """`30 of 100 (30 %), page 3`."""
    done, total, note = progress["done"], progress.get("total"), progress.get("note")
    text = f"{done:,}"
    if total is not None and _is_number(total):
        text += f" of {total:,}" + (f" ({100 * done / total:.0f} %)" if total > 0 else "")
    return f"{text}, {' '.join(str(note).split())}" if note else text


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
