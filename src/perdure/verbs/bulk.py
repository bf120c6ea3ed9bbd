"""Verbs over many jobs. Called by `app` and the command line; each job is one guarded transition of its own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from perdure.errors import InvalidOption, JobNotFound, TransitionRefused
from perdure.job.job import Job
from perdure.job.states import TRANSITIONS, State, Verb
from perdure.store.answers import Spot
from perdure.verbs.filters import job_filter
from perdure.verbs.paging import checked_limit
from perdure.worker.lifecycle import told_at_the_end

if TYPE_CHECKING:
    from perdure.app import Perdure
    from perdure.ids import JobId

TOGETHER = 500
"""How many jobs one transaction takes."""


def _sources(verb: Verb, *but: State) -> tuple[State, ...]:
    return tuple(state for state in State if state in TRANSITIONS[verb].sources and state not in but)


POSSIBLE: Mapping[Verb, tuple[State, ...]] = {
    verb: _sources(verb) for verb in (Verb.CANCEL, Verb.PAUSE, Verb.RESUME, Verb.RETRY)
}
"""The verbs that can be used on many jobs, and the states in which a job allows them."""

TAKEN: Mapping[Verb, tuple[State, ...]] = {
    **POSSIBLE,
    Verb.PAUSE: _sources(Verb.PAUSE, State.PAUSED),
    Verb.RETRY: _sources(Verb.RETRY, State.CANCELLED),
}
"""The states from which a verb takes jobs if none is asked for: who cancelled a job did it on purpose."""


def change_all(app: Perdure, verb: Verb, filters: Mapping[str, Any], limit: int | None) -> int:
    """Apply a verb to the jobs that fit; one that has moved on meanwhile is left out. Without filters: to all jobs.

    A filter that is there and None is refused: in a listing it means any, here it is mostly a forgotten variable.
    """
    left = checked_limit(limit)
    wanted = job_filter(filters)
    _refuse_nothing(verb, filters)
    done = 0
    states = TAKEN[verb] if wanted.state is None else (State(wanted.state),)
    for state, one in product(states, app.under_all_names(wanted)):
        spot: Spot | None = None
        while left is None or done < left:
            size = TOGETHER if left is None else min(TOGETHER, left - done)
            page = app.store.jobs(one._replace(state=state.value), spot, size)
            done += _apply(app, verb, (state,), [job.row.id for job in page.items])
            if page.next is None:
                break
            spot = page.next
    return done


def _refuse_nothing(verb: Verb, filters: Mapping[str, Any]) -> None:
    empty = [f"{name}=" for name, value in filters.items() if value is None]
    if empty:
        raise InvalidOption(
            f"{verb}_all was given {' and '.join(f'{name}None' for name in empty)}, which would filter nothing;"
            f" give a value, or leave {' and '.join(empty)} out if every job is meant",
            code="filter_none",
        )


def change_these(app: Perdure, verb: Verb, states: Collection[State], ids: Sequence[JobId]) -> int:
    """Apply a verb to these jobs and no others; answers how many it changed.

    One that is gone, is in none of these states any more, or has nothing to be changed is left as it is.
    """
    return sum(_apply(app, verb, states, ids[first : first + TOGETHER]) for first in range(0, len(ids), TOGETHER))


def _apply(app: Perdure, verb: Verb, states: Collection[State], ids: Sequence[JobId]) -> int:
    if not ids:
        return 0
    change: Callable[[Job], Job] = getattr(app, verb.value)
    done = 0
    with told_at_the_end(lambda: app.store.in_transaction), app.store.transaction(join=True):
        for job_id in ids:
            job = app.store.get(job_id)
            if job is None or job.state not in states:
                continue
            try:
                done += change(job).version != job.version
            except (TransitionRefused, JobNotFound):
                continue
    return done
