"""What is going on: six questions, which schedules need a look, and which kinds the stored jobs are of. Called by
`perdure status`, `schedules`, `kinds` and `check`; asks the store one query each and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.clock import Micros, to_micros
from perdure.ids import id_floor
from perdure.job.flow import FlowRow, FlowState
from perdure.ops.progress import Working, working
from perdure.store.protocols import Store
from perdure.store.rows import (
    LAST_ID,
    Duplicates,
    Durations,
    Failures,
    Hindrance,
    LimitState,
    Outstanding,
    Ran,
    ReservationRow,
    StoredKind,
    Stuck,
)

if TYPE_CHECKING:
    from perdure.schedules import Schedule

HOUR_US = 3_600 * 1_000_000
DAY_US = 24 * HOUR_US
STUCK_AFTER_US = 300 * 1_000_000
"""How long a job may wait or run before it may count as stuck, by default."""

LIVE_COUNTED = 100_000
FAILED_LOOKED_AT = 5_000
RUNS_COUNTED = 50_000
"""No query reads more rows than these, so that each stays quick with millions of jobs. With more than that, counts are
of the oldest jobs, the newest runs, or the last failures; `is_complete` says so."""
SAMPLED = 10_000
"""How many of the newest runs, or jobs, percentiles and duplicates are taken from."""
DUPLICATES_SHOWN = 20

LATE_AFTER_US = 60 * 1_000_000
"""How long an instant may wait for a worker, which looks every second, before its schedule counts as overdue."""
SCHEDULES_SHOWN = 20
RUNNING_SHOWN = 20
LONG_OPEN_S = 300
DEAD_ROWS = 100_000
"""From when on what keeps a server from removing dead rows is told."""

Asked = Callable[[], Sequence[Any]]


class Troubled(NamedTuple):
    """A schedule that someone should look at: one that rests because of a `problem`, or whose instant `since` then
    nobody has taken."""

    name: str
    problem: str | None
    since: Micros | None


class Status(NamedTuple):
    """What the six questions found, as of `at`. Failures, durations and duplicates are of the last 24 hours, `ran` of
    the last hour: of jobs that failed, jobs that were enqueued and runs that began in that time."""

    at: Micros
    outstanding: Sequence[Outstanding]
    failed: Sequence[Failures]
    stuck: Sequence[Stuck]
    durations: Sequence[Durations]
    duplicates: Sequence[Duplicates]
    ran: Sequence[Ran]
    failed_lives: int
    """How many lives failed in the last 24 hours, retried or not; never more than are looked at."""
    reservations: Sequence[ReservationRow] = ()
    """Queues that are held for direct work."""

    schedules: Sequence[Troubled] = ()
    running: Sequence[Working] = ()
    """Jobs that run now, the newest first, with their progress; no more than `RUNNING_SHOWN`."""
    flows: Sequence[FlowRow] = ()
    """Flows that have not ended, the newest first, without those inside others; no more than `RUNNING_SHOWN`."""
    limits: Sequence[LimitState] = ()
    """Limits that are paused."""
    hindrances: Sequence[Hindrance] = ()
    """What keeps the server from removing dead rows."""

    @property
    def is_complete(self) -> bool:
        """False: there may be more live, stuck or failed jobs, or more runs in the last hour, than are counted."""
        live, runs = sum(row.jobs for row in self.outstanding), sum(row.runs for row in self.ran)
        stuck = sum(row.jobs for row in self.stuck)
        are_counted = live < LIVE_COUNTED and runs < RUNS_COUNTED and stuck < RUNS_COUNTED
        return are_counted and self.failed_lives < FAILED_LOOKED_AT


def status(store: Store, now: Micros, stuck_after_us: int = STUCK_AFTER_US) -> Status:
    """All six questions, and what runs now. Each result is consistent in itself; jobs may change between two."""
    found = {name: ask() for name, ask in asked(store, now, stuck_after_us).items()}
    failed_lives = store.count_failed(Micros(now - DAY_US), FAILED_LOOKED_AT)
    held, in_trouble = _reservations(store), troubled(store, now)
    hindrances = _hindrances(store)
    return Status(
        now,
        **found,
        failed_lives=failed_lives,
        reservations=held,
        schedules=in_trouble,
        running=working(store, RUNNING_SHOWN),
        flows=_flows(store),
        limits=_paused_limits(store),
        hindrances=hindrances,
    )


def _flows(store: Store) -> Sequence[FlowRow]:
    try:
        return store.flows(FlowState.RUNNING.value, None, LAST_ID, RUNNING_SHOWN)
    except NotImplementedError:
        return ()


def _paused_limits(store: Store) -> Sequence[LimitState]:
    try:
        return [limit for limit in store.limits() if limit.paused_at is not None]
    except NotImplementedError:
        return ()


def _hindrances(store: Store) -> Sequence[Hindrance]:
    try:
        return store.hindrances(LONG_OPEN_S, DEAD_ROWS)
    except NotImplementedError:
        return ()


def remedy(found: Hindrance) -> str:
    """What it is, and what to do about it."""
    match found.sort:
        case "transaction":
            what = f"server process {found.who} ({found.detail}) has a transaction open for {found.open_s} s"
            return f"{what}; end it there, or by SELECT pg_terminate_backend({found.who})"
        case "prepared":
            what = f"prepared transaction {found.who!r} of {found.detail} has waited for {found.open_s} s"
            return f"{what}; COMMIT PREPARED or ROLLBACK PREPARED it"
        case "slot":
            what = f"nobody reads the {found.detail} replication slot {found.who!r}"
            return f"{what}; start its reader, or SELECT pg_drop_replication_slot({found.who!r})"
        case "standby":
            where = f" ({found.detail})" if found.detail else ""
            what = f"standby {found.who!r}{where} has had a query or transaction open for {found.open_s} s or more"
            return f"{what} and hot_standby_feedback on; end it there, or set hot_standby_feedback = off there"
        case _:
            what = f"table {found.who} has {int(found.detail):,} dead rows"
            return f"{what}; see what else is named here, and that autovacuum is on, or VACUUM it"


def _reservations(store: Store) -> Sequence[ReservationRow]:
    try:
        return store.active_reservations()
    except NotImplementedError:
        return ()


class ScheduleState(StrEnum):
    """Whether a schedule makes jobs."""

    ON = "on"
    OFF = "off"
    PROBLEM = "problem"
    """It rests until someone changes it."""
    OVERDUE = "overdue"
    """No worker takes its instants."""
    OVER = "over"
    """No instant is left."""


def schedule_state(schedule: Schedule, now: Micros) -> ScheduleState:
    if not schedule.enabled:
        return ScheduleState.OFF
    if schedule.problem is not None:
        return ScheduleState.PROBLEM
    if schedule.next_trigger_at is None:
        return ScheduleState.OVER
    is_late = to_micros(schedule.next_trigger_at) <= now - LATE_AFTER_US
    return ScheduleState.OVERDUE if is_late else ScheduleState.ON


def troubled(store: Store, now: Micros) -> list[Troubled]:
    """The first `SCHEDULES_SHOWN` schedules that are overdue or have a problem. None of a store without schedules."""
    try:
        rows = store.schedules_in_trouble(Micros(now - LATE_AFTER_US), SCHEDULES_SHOWN)
    except NotImplementedError:
        return []
    return [Troubled(row.name, row.problem, row.next_trigger_at) for row in rows]


def asked(store: Store, now: Micros, stuck_after_us: int = STUCK_AFTER_US) -> dict[str, Asked]:
    """The six questions, by the name of the field they fill."""
    day, hour, stale = id_floor(now - DAY_US), id_floor(now - HOUR_US), Micros(now - stuck_after_us)
    lately = id_floor(max(stale, now - HOUR_US))  # no further back than `ran`, whose count says if this was too much
    return {
        "outstanding": lambda: store.outstanding(LIVE_COUNTED),
        "failed": lambda: store.failures(Micros(now - DAY_US), FAILED_LOOKED_AT),
        "stuck": lambda: store.stuck(now, stale, lately, RUNS_COUNTED),
        "durations": lambda: store.durations(day, SAMPLED),
        "duplicates": lambda: store.duplicates(day, SAMPLED, DUPLICATES_SHOWN),
        "ran": lambda: store.ran(hour, RUNS_COUNTED),
    }


# -- which kinds the stored jobs are of ------------------------------------------------------------------------------


class Unrunnable(NamedTuple):
    """One thing that would go wrong. `live`: how many stored jobs it keeps from running; 0 for the code itself."""

    kind: str
    live: int
    problem: str


def orphans(stored: Sequence[StoredKind], known: Mapping[str, int]) -> Iterator[Unrunnable]:
    """Live jobs whose kind is gone, or that were written by newer code than this; `known`: name → newest version."""
    for name, version, live in stored:
        if name not in known:
            yield Unrunnable(name, live, "no kind of that name is declared")
        elif version > known[name]:
            yield Unrunnable(name, live, f"written as version {version}, the code has {known[name]}")
