"""Reads jobs, runs and statistics, one query per question. Called through `store`, and by the operations.

Pages go by key, so every page costs the same. A statement reads at most `SCANNED` entries of an index (a statistic
`cap`), so the cost does not depend on how many rows there are or how few fit; the next page continues there. Of the
indexes that can serve a filter, the one that gets furthest within that limit is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from perdure.clock import Micros
from perdure.ids import JobId
from perdure.job.flow import EdgeRow
from perdure.job.model import JobRow, LiveJob, readable
from perdure.job.states import FINAL, LIVE, RunState, State
from perdure.job.views import Job, Run
from perdure.store.engine import Call, Op
from perdure.store.rows import (
    FIRST_ID,
    LAST_ID,
    USUAL_LEASE_US,
    DuplicateReason,
    Duplicates,
    Durations,
    Failures,
    Hindrance,
    JobFilter,
    Outstanding,
    Page,
    QueueHold,
    Ran,
    RunFilter,
    Spot,
    StoredKind,
    Stuck,
    StuckReason,
)

SCANNED = 2_500
"""How many entries of an index a statement may read: some milliseconds."""
GROUPS = 100
"""How many queues of a kind, or kinds of a queue, are read side by side; with more, all jobs are read."""


def get(job_id: JobId, *, deduplicated: bool = False) -> Op[Job | None]:
    """The job as it is now. None: there is no such job."""
    rows = (yield Call("read_job", {"job_id": job_id})).rows
    return Job.read(rows[0], deduplicated=deduplicated) if rows else None


def row(job_id: JobId) -> Op[JobRow | None]:
    """The cold row, secrets included. None: there is no such job."""
    rows = (yield Call("read_job_row", {"job_id": job_id})).rows
    return JobRow._make(rows[0]) if rows else None


def count_waits(job_id: JobId) -> Op[int]:
    """How many jobs this one waits for. None of them can unblock it before the transaction ends."""
    return len((yield Call("read_waits", {"job_id": job_id})).rows)


def live(job_id: JobId) -> Op[LiveJob | None]:
    """The live row, locked until the transaction ends if the database locks rows. None: the job is not live."""
    rows = (yield Call("read_live", {"job_id": job_id})).rows
    return LiveJob._make(rows[0]) if rows else None


def live_unlocked(job_id: JobId) -> Op[LiveJob | None]:
    """The live row as it was last committed, not locked. None: the job is not live."""
    rows = (yield Call("look_at_live", {"job_id": job_id})).rows
    return LiveJob._make(rows[0]) if rows else None


class Way(NamedTuple):
    """An index that a listing can use, by the statements `list_x` and `reach_x` for the name x."""

    name: str
    settles: frozenset[str] = frozenset()
    """The filters that all of its entries fit: if there are no other filters, every entry fits."""
    groups: str | None = None
    """The statement that lists its parts, if it is in the order of ids only within each part."""
    few: tuple[str, ...] = ()
    """Statements that return a row if it has too many entries. For an index that is not in the order of ids."""


_ALL = Way("all")
_KEYS = ("business_key", "idempotency_key", "tag")
_FEW = (State.QUEUED, State.SCHEDULED, State.RUNNING)
_WAYS_BY_STATE: dict[str, list[Way]] = {
    **{state: [Way(state.value, few=(f"reach_{state.value}",)), Way("live")] for state in _FEW},
    **{state: [Way("aside", frozenset({"state"}))] for state in LIVE - {*_FEW}},
    **{state: [Way("ended")] for state in FINAL},
    State.COMPLETED: [Way("completed")],
}


def jobs(wanted: JobFilter, after: Spot | None, size: int) -> Op[Page[Job]]:
    """The jobs that fit: newest first, but the queued jobs of one queue in queue order."""
    if wanted.state == State.QUEUED and wanted.queue is not None:
        return (yield from _page_of_queue(wanted, after, size))
    bounds = wanted if after is None else wanted._replace(below=after.id)
    rows, end = yield from _listed(_ways(wanted), _ALL, bounds._asdict(), size)
    jobs = [Job.read(row) for row in rows]
    return Page(jobs, Spot(jobs[-1].row.id) if len(jobs) == size else end)


def _ways(wanted: JobFilter) -> list[Way]:
    """All indexes that serve one of the filters; their order does not change the result."""
    ways = [Way(f"by_{name}", frozenset({name})) for name in _KEYS if getattr(wanted, name) is not None]
    match wanted.kind, wanted.queue:
        case str(), str():
            ways.append(Way("by_kind_and_queue", frozenset({"kind", "queue"})))
        case str(), None:
            ways.append(Way("by_kind", groups="queues_of_kind"))
        case None, str():
            ways.append(Way("by_queue", groups="kinds_of_queue"))
        case _:
            pass
    return ways + _WAYS_BY_STATE.get(wanted.state or "", [])


def _page_of_queue(wanted: JobFilter, after: Spot | None, size: int) -> Op[Page[Job]]:
    begin = after or Spot(FIRST_ID, -(2**63), -(2**63))
    params: dict[str, object] = {**wanted._asdict(), "page": size, "scan": SCANNED}
    params |= {"rank": begin.rank, "position": begin.position, "after": begin.id}
    reached = (yield Call("reach_queue", params)).rows
    end = Spot(reached[0][2], *reached[0][:2]) if reached else None
    last = end or Spot(LAST_ID, 2**63 - 1, 2**63 - 1)
    params |= {"to_rank": last.rank, "to_position": last.position, "to_id": last.id}
    jobs = [Job.read(row) for row in (yield Call("list_queue", params)).rows]
    if len(jobs) == size:
        newest = jobs[-1].row
        end = Spot(newest.id, newest.rank, newest.position)
    return Page(jobs, end)


# -- bounded reading -------------------------------------------------------------------------------------------------

_Rows = list[tuple[Any, ...]]


def _listed(ways: list[Way], all_rows: Way, wanted: Mapping[str, object], size: int) -> Op[tuple[_Rows, Spot | None]]:
    """A page of rows by the index that gets furthest, and how far that is. None: to the end."""
    params = {**wanted, "page": size, "scan": SCANNED, "groups": GROUPS}
    given = {name for name, value in wanted.items() if value is not None} - {"from_id", "below"}
    for way in ways or [all_rows]:
        if given <= way.settles:
            return (yield Call(f"list_{way.name}", params)).rows, None
    way, reached = yield from _furthest(ways, all_rows, params)
    if reached == FIRST_ID:
        return (yield Call(f"list_{way.name}", params)).rows, None
    return (yield Call(f"list_{way.name}", params | {"from_id": reached})).rows, Spot(reached)


def _furthest(ways: list[Way], all_rows: Way, params: Mapping[str, object]) -> Op[tuple[Way, bytes]]:
    """Ids rise with time, so it can be compared how far each index gets. FIRST_ID: to the end."""
    best: Way | None = None
    furthest = LAST_ID
    for way in ways:
        reached = yield from _reach(way, params)
        if reached is not None and (best is None or reached < furthest):
            best, furthest = way, reached
        if furthest == FIRST_ID:
            break
    if best is not None and (best.groups is None or furthest == FIRST_ID):
        return best, furthest
    reached = cast("bytes", (yield from _reach(all_rows, params)))
    return (all_rows, reached) if best is None or reached < furthest else (best, furthest)


def _reach(way: Way, params: Mapping[str, object]) -> Op[bytes | None]:
    """The id up to which `SCANNED` entries reach. None: this index cannot be used."""
    for statement in way.few:
        if (yield Call(statement, params)).rows:
            return None
    if way.few:
        return FIRST_ID
    scan = SCANNED
    if way.groups is not None:
        parts = len((yield Call(way.groups, params)).rows)
        if parts >= GROUPS:
            return None
        scan //= max(1, parts)
    rows = (yield Call(f"reach_{way.name}", {**params, "scan": scan})).rows
    return cast("bytes", rows[0][0]) if rows else FIRST_ID


# -- the place of a job ----------------------------------------------------------------------------------------------


def count_ahead(job: Job, cap: int) -> Op[int]:
    """How many queued jobs start before this one, at most `cap`."""
    row = job.row
    place = {"queue": row.queue, "rank": row.rank, "position": row.position, "job_id": row.id, "cap": cap}
    return cast("int", (yield Call("count_ahead", place)).rows[0][0])


def waited_for(job_id: JobId, limit: int) -> Op[list[EdgeRow]]:
    """What this job waits for, or waited for; what it still waits for comes first."""
    rows = (yield Call("list_waited_for", {"job_id": job_id, "page": limit})).rows
    return list(map(EdgeRow._make, rows))


# -- runs ------------------------------------------------------------------------------------------------------------

_ALL_RUNS = Way("runs")
_COMMON_RUNS = (RunState.RUNNING, RunState.COMPLETED)


def runs(wanted: RunFilter, after: Spot | None, size: int) -> Op[Page[Run]]:
    """The runs that fit, newest first."""
    bounds = wanted if after is None else wanted._replace(below=after.id)
    rows, end = yield from _listed(_ways_to_runs(wanted), _ALL_RUNS, bounds._asdict(), size)
    runs = [Run.read(row) for row in rows]
    return Page(runs, Spot(runs[-1].row.id) if len(runs) == size else end)


def _ways_to_runs(wanted: RunFilter) -> list[Way]:
    ways: list[Way] = []
    if wanted.job_id is not None:
        ways.append(Way("runs_of_job", frozenset({"job_id"})))
    if wanted.state == RunState.RUNNING:
        ways.append(Way("runs_running", few=("reach_running",)))
    if wanted.state is not None and wanted.state not in _COMMON_RUNS:
        ways.append(Way("runs_by_state", frozenset({"state"})))
    if wanted.kind is not None:
        ways.append(Way("runs_of_kind", few=("reach_jobs_of_kind", "reach_runs_of_kind")))
    return ways


def outstanding(cap: int) -> Op[list[Outstanding]]:
    """The live jobs by kind, queue and state."""
    rows = (yield Call("ask_outstanding", {"cap": cap, "last_id": LAST_ID})).rows
    return [readable(Outstanding, row)[0] for row in rows]


def failures(since: Micros, cap: int) -> Op[list[Failures]]:
    """The jobs that failed by kind and type of error, the most frequent first."""
    return [readable(Failures, row)[0] for row in (yield Call("ask_failures", {"since": since, "cap": cap})).rows]


def count_failed(since: Micros, cap: int) -> Op[int]:
    """How many lives failed since then, at most `cap`."""
    [(number,)] = (yield Call("count_failed", {"since": since, "cap": cap})).rows
    return int(number)


def stuck(now: Micros, stale: Micros, from_id: bytes, cap: int) -> Op[list[Stuck]]:
    """The jobs that make no progress, by reason, kind and queue."""
    params = {"now": now, "stale": stale, "usual_lease": USUAL_LEASE_US, "from_id": from_id, "cap": cap}
    rows = (yield Call("ask_stuck", params)).rows
    return [readable(Stuck, (StuckReason(reason), *rest))[0] for reason, *rest in rows]


def hindrances(long_s: int, most_dead: int) -> Op[list[Hindrance]]:
    """What keeps the server from removing dead rows; the longest first."""
    rows = (yield Call("read_hindrances", {"long_s": long_s, "most_dead": most_dead})).rows
    return [Hindrance(*row) for row in rows]


def durations(from_id: bytes, cap: int) -> Op[list[Durations]]:
    """Percentiles of duration and wait by kind."""
    return [readable(Durations, row)[0] for row in (yield Call("ask_durations", {"from_id": from_id, "cap": cap})).rows]


def duplicates(from_id: bytes, cap: int, limit: int) -> Op[list[Duplicates]]:
    """Jobs that share a key, and jobs that started again after their node died; the most frequent first."""
    rows = (yield Call("ask_duplicates", {"from_id": from_id, "cap": cap, "page": limit})).rows
    return [readable(Duplicates, (DuplicateReason(sort), *rest))[0] for sort, *rest in rows]


def ran(from_id: bytes, cap: int) -> Op[list[Ran]]:
    """The runs by kind and state."""
    return [readable(Ran, row)[0] for row in (yield Call("ask_ran", {"from_id": from_id, "cap": cap})).rows]


def queue_holds(queue: str) -> Op[list[QueueHold]]:
    """The row of the queue and the row for all queues, as far as they exist."""
    return [readable(QueueHold, row)[0] for row in (yield Call("read_queue_holds", {"queue": queue})).rows]


def live_kinds() -> Op[list[StoredKind]]:
    """The kinds of all live jobs, by name and version."""
    return [readable(StoredKind, row)[0] for row in (yield Call("live_kinds")).rows]
