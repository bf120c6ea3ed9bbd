"""Verbs over many jobs. Called by `app`; each job is one guarded transition of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perdure.errors import JobNotFound, TransitionRefused
from perdure.job.job import Job
from perdure.job.states import State
from perdure.verbs.filters import job_filter
from perdure.verbs.paging import checked_limit

if TYPE_CHECKING:
    from perdure.app import Perdure

TOGETHER = 500
"""How many jobs one transaction takes."""


def change_all(
    app: Perdure, verb: Callable[..., Job], states: Sequence[State], filters: Mapping[str, Any], limit: int | None
) -> int:
    """Apply a verb to the jobs that fit and are in one of these states; one that has moved on meanwhile is left out."""
    left = checked_limit(limit)
    wanted = job_filter(filters)
    done = 0
    for state in states if wanted.state is None else (State(wanted.state),):
        last: Job | None = None
        while left is None or done < left:
            size = TOGETHER if left is None else min(TOGETHER, left - done)
            page = app.store.jobs(wanted._replace(state=state.value), last, size)
            done += _apply(app, verb, page)
            if len(page) < size:
                break
            last = page[-1]
    return done


def _apply(app: Perdure, verb: Callable[..., Job], page: Sequence[Job]) -> int:
    if not page:
        return 0
    done = 0
    with app.store.transaction(join=True):
        for job in page:
            try:
                after = verb(job)
            except (TransitionRefused, JobNotFound):
                continue
            done += after.version != job.version or after.state != job.state
    return done
