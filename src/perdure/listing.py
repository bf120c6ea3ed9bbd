"""Lists of jobs and runs: filters, lazy pages, and bulk verbs. Called by `app` and the command line."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from heapq import merge
from itertools import islice, product
from typing import TYPE_CHECKING, Any, Generic, Never, Required, TypedDict, TypeVar, cast

from perdure.checks import check_choice, check_known, check_time, check_whole, refused
from perdure.clock import Micros
from perdure.errors import InvalidOption, JobNotFound, TransitionRefused
from perdure.ids import JobId, id_floor
from perdure.job.states import FINAL, TRANSITIONS, EndName, RunState, RunStateName, State, StateName, Verb
from perdure.job.views import Job, Run
from perdure.kind import Kind
from perdure.store.rows import FIRST_ID, LAST_ID, Ended, JobFilter, RunFilter, Spot
from perdure.upkeep.archive import Exit
from perdure.worker.lifecycle import log_removed, logged_at_the_end

if TYPE_CHECKING:
    from perdure.app import Perdure


N = TypeVar("N")
"""What a filter may be besides a value: None in a listing, where it means any; nothing in the verbs on many jobs."""


class _Filters(TypedDict, Generic[N], total=False):
    queue: str | N
    kind: str | N
    owner: str | N
    tag: str | N
    business_key: str | N
    idempotency_key: str | N
    since: datetime | N
    until: datetime | N


class JobFilters(_Filters[N], Generic[N], total=False):
    """The filters of `app.jobs` (`JobFilters[None]`) and of the verbs on many jobs, for type checkers."""

    state: StateName | State | Iterable[StateName | State] | N


class EndedFilters(_Filters[Never], total=False):
    """Those of `app.purge` and `app.archive`."""

    state: Required[EndName | State | Iterable[EndName | State]]


class RunFilters(TypedDict, total=False):
    """Those of `app.runs`."""

    state: RunStateName | RunState | Iterable[RunStateName | RunState] | None
    kind: str | None
    owner: str | None
    since: datetime | None
    until: datetime | None


_JOB_FILTERS, _RUN_FILTERS = tuple(JobFilters.__annotations__), tuple(RunFilters.__annotations__)


def job_filters(filters: Mapping[str, Any]) -> list[JobFilter]:
    """Checked filters, one for each state that is named; unknown names and impossible values are refused."""
    plain, from_id, below = _checked(filters, _JOB_FILTERS)
    states = states_in(filters, State)
    return [JobFilter(**plain, state=state, from_id=from_id, below=below) for state in states]


def fits(job: Job, wanted: JobFilter) -> bool:
    """Whether a job is one that this filter means: for a listing that no index of the filter serves."""
    row = job.row
    asked = [(getattr(wanted, name), getattr(row, name)) for name in _OF_A_ROW]
    has_tag = wanted.tag is None or wanted.tag in job.tags
    return has_tag and wanted.from_id <= row.id < wanted.below and all(one in (None, has) for one, has in asked)


_OF_A_ROW = ("state", "queue", "kind", "owner", "business_key", "idempotency_key")


def run_filters(job_id: JobId | None, filters: Mapping[str, Any]) -> list[RunFilter]:
    """The same for runs."""
    plain, from_id, below = _checked(filters, _RUN_FILTERS)
    states = states_in(filters, RunState)
    return [RunFilter(job_id, **plain, state=state, from_id=from_id, below=below) for state in states]


def states_in(filters: Mapping[str, Any], known: type[StrEnum]) -> list[str | None]:
    """The states of the filter `state`, a text or a list of them, each once. None: any."""
    given = filters.get("state")
    if given is None:
        return [None]
    wanted: list[Any] = [given]
    if isinstance(given, Iterable) and not isinstance(given, str):
        wanted = list(dict.fromkeys(cast("Iterable[Any]", given)))  # type: ignore[redundant-cast]  # for pyright
    if not wanted:
        raise InvalidOption("state= is an empty list; name a state, or leave it out", code="filter_invalid")
    return [check_choice(one, "state", list(known), code="filter_invalid") for one in wanted]


_OF_FLOWS: Mapping[str, str] = dict.fromkeys(
    ("flow", "flow_id"), "app.jobs(flow=…) for the jobs of a flow, or a verb for all of it, as in app.cancel(flow)"
)


def _checked(filters: Mapping[str, Any], known: tuple[str, ...]) -> tuple[dict[str, str], bytes, bytes]:
    """All but the states."""
    plain: dict[str, str] = {}
    check_known(filters, known, words_of_others=_OF_FLOWS)
    for name, value in filters.items():
        if value is None or name in ("state", "since", "until"):
            continue
        if not isinstance(value, str):
            given: Any = value
            hint = f"; write {name}={given.name!r}" if isinstance(value, Kind) else ""
            raise refused(f"{name}=", "text", given, code="filter_invalid", hint=hint)
        plain[name] = value
    return plain, _floor(filters, "since", FIRST_ID), _floor(filters, "until", LAST_ID)


def _floor(filters: Mapping[str, Any], name: str, otherwise: bytes) -> bytes:
    """Ids carry their time of creation, to the millisecond."""
    moment = filters.get(name)
    return otherwise if moment is None else id_floor(check_time(moment, f"{name}=", code="filter_invalid"))


S = TypeVar("S")
M = TypeVar("M")
V = TypeVar("V", bound=Job | Run)
W = TypeVar("W", JobFilter, RunFilter)

PAGE = 200
"""Listings read this many at a time, so that no snapshot is held for long."""


def pages(read: Callable[[M | None, int], tuple[list[S], M | None]], limit: int | None) -> Iterator[S]:
    """The items of all pages, each page read only when needed. An empty page is not the end: only a missing mark is."""
    mark: M | None = None
    left = limit
    while left is None or left > 0:
        items, mark = read(mark, PAGE if left is None else min(PAGE, left))
        yield from items
        if mark is None:
            return
        left = None if left is None else left - len(items)


def list_jobs(app: Perdure, filters: Mapping[str, Any], limit: int | None) -> Iterator[Job]:
    """The jobs that fit, lazily: newest first, or those of one queue in its order. The filters are checked at once."""
    wanted, left = job_filters(filters), checked_limit(limit)
    first = wanted[0]
    has_key = first.business_key is not None or first.idempotency_key is not None
    in_queue_order = [one.state for one in wanted] == [State.QUEUED] and first.queue is not None and not has_key

    def under(one: JobFilter) -> Iterator[Job]:
        return pages(lambda spot, size: app.store.jobs(one, spot, size), left)

    return _merged([*map(under, under_all_names(app, wanted))], left, _place_of if in_queue_order else None)


def list_runs(app: Perdure, job_id: JobId | None, filters: Mapping[str, Any], limit: int | None) -> Iterator[Run]:
    """The runs that fit, newest first, of one job or of all."""
    wanted, left = run_filters(job_id, filters), checked_limit(limit)

    def under(one: RunFilter) -> Iterator[Run]:
        return pages(lambda spot, size: app.store.runs(one, spot, size), left)

    return _merged([*map(under, under_all_names(app, wanted))], left, None)


def _merged(listings: Sequence[Iterator[V]], left: int | None, order: Callable[[V], Any] | None) -> Iterator[V]:
    """Merge the listings for all names of a kind and all states. Each is in this order, or newest first."""
    if len(listings) == 1:
        return listings[0]
    return islice(merge(*listings, key=order or _id_of, reverse=order is None), left)


def _id_of(item: Job | Run) -> bytes:
    return item.row.id


def _place_of(job: Job) -> tuple[int, int, bytes]:
    return job.row.rank, job.row.position, job.row.id


def under_all_names(app: Perdure, wanted: Sequence[W]) -> list[W]:
    """Of each of these filters one for each name that its kind has had."""
    return [one._replace(kind=name) for one in wanted for name in app.kinds.meant_by(one.kind)]


def checked_limit(limit: int | None) -> int | None:
    must_be = "a whole number, not negative, or None"
    return None if limit is None else check_whole(limit, "limit", 0, must_be=must_be, code="limit_invalid")


TOGETHER = 500
"""How many jobs one transaction changes."""


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
"""The states from which a verb takes jobs if the filter names none: a job was cancelled on purpose."""


def change_all(app: Perdure, verb: Verb, filters: Mapping[str, Any], limit: int | None) -> int:
    """Apply a verb to the jobs that fit; a job that has changed meanwhile is skipped. Without filters: to all jobs.

    A filter that is None is refused: in a listing it means any, here it is mostly a forgotten variable.
    """
    left = checked_limit(limit)
    wanted = job_filters({**filters, "state": None})
    states = [State(state) for state in states_in(filters, State) if state is not None] or TAKEN[verb]
    refuse_none(f"{verb}_all", filters)
    done = 0
    for state, one in product(states, under_all_names(app, wanted)):
        spot: Spot | None = None
        while left is None or done < left:
            size = TOGETHER if left is None else min(TOGETHER, left - done)
            page = app.store.jobs(one._replace(state=state.value), spot, size)
            done += _apply(app, verb, (state,), [job.row.id for job in page.items])
            if page.next is None:
                break
            spot = page.next
    return done


def refuse_none(verb: str, filters: Mapping[str, Any]) -> None:
    empty = [f"{name}=" for name, value in filters.items() if value is None]
    if empty:
        raise InvalidOption(
            f"{verb} was given {' and '.join(f'{name}None' for name in empty)}, which would filter nothing;"
            f" give a value, or leave {' and '.join(empty)} out if every job is meant",
            code="filter_none",
        )


def change_these(app: Perdure, verb: Verb, states: Collection[State], ids: Sequence[JobId]) -> int:
    """Apply a verb to these jobs only, and return how many it changed. A job that is gone, or no longer in one of these
    states, is skipped."""
    return sum(_apply(app, verb, states, ids[first : first + TOGETHER]) for first in range(0, len(ids), TOGETHER))


def _apply(app: Perdure, verb: Verb, states: Collection[State], ids: Sequence[JobId]) -> int:
    if not ids:
        return 0
    change: Callable[[Job], Job] = getattr(app, verb.value)
    done = 0
    with logged_at_the_end(lambda: app.store.in_transaction), app.store.transaction(join=True):
        for job_id in ids:
            job = app.store.get(job_id)
            if job is None or job.state not in states:
                continue
            try:
                done += change(job).version != job.version
            except (TransitionRefused, JobNotFound):
                continue
    return done


# -- removing --------------------------------------------------------------------------------------------------------


def old_jobs(app: Perdure, filters: Mapping[str, Any], older_than: timedelta, limit: int | None) -> Iterator[Job]:
    """The ended jobs that fit and ended that long ago, the newest first. `state` must be among the filters."""
    for state in states_in(filters, State):
        check_choice(state, "state", sorted(FINAL), code="filter_invalid")
    before = Micros(app.clock.now() - _span(older_than) // timedelta(microseconds=1))
    # Created before it ended: ids that are younger need not be looked at.
    wanted = [one._replace(below=min(one.below, id_floor(before + 1_000))) for one in job_filters(filters)]
    left = checked_limit(limit)

    def under(one: JobFilter) -> Iterator[Job]:
        return pages(lambda spot, size: app.store.jobs(one, spot, size), None)

    found = _merged([*map(under, under_all_names(app, wanted))], None, None)
    return islice((job for job in found if (job.row.finished_at or before) <= before), left)


def _span(older_than: object) -> timedelta:
    if not isinstance(older_than, timedelta) or older_than < timedelta():
        must_be = "a timedelta, not negative"
        raise refused("older_than", must_be, older_than, code="older_than_invalid")
    return older_than


def put_away(app: Perdure, verb: str, way: Exit, jobs: Iterable[Job]) -> int:
    """Take these ended jobs out of the queue's tables, some in each transaction; returns how many are gone.

    A job that has changed meanwhile, or that someone else's transaction holds, stays.
    """
    done = 0
    todo = iter(jobs)
    while some := [_end(job) for job in islice(todo, way.at_once)]:
        done += len(way.put(some))
    if done:
        log_removed(verb, done, in_transaction=app.store.in_transaction)
    return done


def _end(job: Job) -> Ended:
    row = job.row
    return Ended(row.id, row.life, row.state, row.finished_at or Micros(0), row.successor, row.kind)
