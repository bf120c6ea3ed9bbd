"""What listings and bulk verbs may be asked for. Used by `app`.

Listings as lazy pages. Used by `app` and `bulk`.

Verbs over many jobs. Called by `app` and the command line; each job is one guarded transition of its own.

Waiting for a job's end. Called by `app.wait` and `kind.wait`; polls, because any process may end the job."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from heapq import merge
from itertools import islice, product
from typing import TYPE_CHECKING, Any, TypeVar

from perdure.clock import to_micros
from perdure.errors import InvalidOption, JobNotFound, TransitionRefused, WaitTimeout, not_among, shown
from perdure.ids import JobId, id_floor
from perdure.job.states import TRANSITIONS, RunState, State, Verb
from perdure.job.views import Job, Run
from perdure.options import unknown_option
from perdure.store.rows import FIRST_ID, LAST_ID, JobFilter, RunFilter, Spot
from perdure.worker.lifecycle import told_at_the_end

if TYPE_CHECKING:
    from perdure.app import Perdure
    from perdure.ids import JobId


_JOB_FILTERS = ("state", "queue", "kind", "owner", "tag", "business_key", "idempotency_key", "since", "until")
_RUN_FILTERS = ("state", "kind", "owner", "since", "until")


def job_filter(filters: Mapping[str, Any]) -> JobFilter:
    """A checked filter; unknown names and impossible values are refused."""
    plain, from_id, below = _checked(filters, _JOB_FILTERS, State)
    return JobFilter(**plain, from_id=from_id, below=below)


def run_filter(job_id: JobId | None, filters: Mapping[str, Any]) -> RunFilter:
    """The same for runs."""
    plain, from_id, below = _checked(filters, _RUN_FILTERS, RunState)
    return RunFilter(job_id, **plain, from_id=from_id, below=below)


def _checked(
    filters: Mapping[str, Any], known: tuple[str, ...], states: type[StrEnum]
) -> tuple[dict[str, str], bytes, bytes]:
    plain: dict[str, str] = {}
    for name, value in filters.items():
        if name not in known:
            raise unknown_option(name, known)
        if value is None or name in ("since", "until"):
            continue
        if not isinstance(value, str):
            raise InvalidOption(f"{name}= takes text, not {shown(value)}", code="filter_invalid")
        plain[name] = value
    if "state" in plain:
        plain["state"] = _state(plain["state"], states)
    since, until = filters.get("since"), filters.get("until")
    return plain, FIRST_ID if since is None else _floor(since), LAST_ID if until is None else _floor(until)


def _state(value: str, states: type[StrEnum]) -> str:
    try:
        return states(value).value
    except ValueError:
        raise InvalidOption(not_among("state", value, list(states)), code="filter_invalid") from None


def _floor(moment: object) -> bytes:
    """Ids carry their time of creation, to the millisecond."""
    if not isinstance(moment, datetime):
        raise InvalidOption(f"since= and until= take an aware datetime, not {shown(moment)}", code="filter_invalid")
    return id_floor(to_micros(moment))


S = TypeVar("S")
M = TypeVar("M")

PAGE = 200
"""Listings read this many at a time, so that no snapshot is held for long."""


def pages(read: Callable[[M | None, int], tuple[list[S], M | None]], limit: int | None) -> Iterator[S]:
    """Page after page, each read when it is wanted, until one says that there is no next one.

    Pages that hold little or nothing do not show: the iterator goes on.
    """
    mark: M | None = None
    left = limit
    while left is None or left > 0:
        items, mark = read(mark, PAGE if left is None else min(PAGE, left))
        yield from items
        if mark is None:
            return
        left = None if left is None else left - len(items)


def jobs_of_all(listings: Sequence[Iterator[Job]], wanted: JobFilter, limit: int | None) -> Iterator[Job]:
    """Listings of jobs as one, in the order that each of them has."""
    if len(listings) == 1:
        return listings[0]
    has_key = wanted.business_key is not None or wanted.idempotency_key is not None
    if wanted.state == State.QUEUED and wanted.queue is not None and not has_key:
        return islice(merge(*listings, key=lambda job: (job.row.rank, job.row.position, job.row.id)), limit)
    return islice(merge(*listings, key=lambda job: job.row.id, reverse=True), limit)


def runs_of_all(listings: Sequence[Iterator[Run]], limit: int | None) -> Iterator[Run]:
    """The same for runs."""
    if len(listings) == 1:
        return listings[0]
    return islice(merge(*listings, key=lambda run: run.row.id, reverse=True), limit)


def checked_limit(limit: int | None) -> int | None:
    if limit is not None and (type(limit) is not int or limit < 0):
        raise InvalidOption(
            f"limit must be a whole number, not negative, or None; not {shown(limit)}", code="limit_invalid"
        )
    return limit


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


FIRST_PAUSE_S = 0.002
LONGEST_PAUSE_S = 0.1


def pauses(timeout: float | None, monotonic: Callable[[], float]) -> Iterator[float]:
    """How long to pause before each further look; ends when the time is up. The pauses grow to a tenth of a second."""
    _check(timeout)
    deadline = None if timeout is None else monotonic() + timeout
    pause = FIRST_PAUSE_S
    while True:
        left = LONGEST_PAUSE_S if deadline is None else deadline - monotonic()
        if left <= 0:
            return
        yield min(pause, left)
        pause = min(pause * 1.5, LONGEST_PAUSE_S)


def _check(timeout: object) -> None:
    if timeout is not None and not (isinstance(timeout, (int, float)) and timeout >= 0):
        raise InvalidOption(
            f"timeout must be seconds, not negative, or None to wait for ever; not {shown(timeout)}",
            code="timeout_invalid",
        )


def gave_up(job: Job, timeout: float | None) -> WaitTimeout:
    return WaitTimeout(
        f"job {job.id} ({job.kind}) was {job.state} after {timeout:g} s; it goes on, wait again or look with app.get"
    )
