"""The values a store takes and returns besides jobs: filters, lanes, turns, one row type per statistic.

Part of the SPI, with `protocols`. Times are instants; `example` is one of the counted jobs, to look at next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

from perdure.clock import Micros
from perdure.errors import JobNotFound
from perdure.ids import FlowId, JobId, NodeId, ReservationId, RunId, to_uuid
from perdure.job.model import Claim, JobRow, LiveJob, NewJob, without_secrets
from perdure.job.reports import Finish
from perdure.job.states import State, Suspicion

T = TypeVar("T")

FIRST_ID = b"\x00" * 16
LAST_ID = b"\xff" * 16

USUAL_LEASE_US = 60 * 1_000_000
"""The lease of a node that did not say its own."""

Kinds = Mapping[str, int]
"""What a node can run: kind name → newest version it has."""


class Lane(NamedTuple):
    """How much a node wants of one queue."""

    queue: str
    room: int


class Claimer(NamedTuple):
    """Who claims: the node, the kinds it knows (None: any), the run ids to use, and its lease.

    `company` is the highest suspicion among the jobs it runs; after `max_crashes` crashes a job fails.
    """

    node_id: NodeId
    kinds: Kinds | None
    run_ids: Sequence[RunId]
    lease_us: int
    company: Suspicion = Suspicion.NONE
    max_crashes: int = 3


class FinishStatus(StrEnum):
    """The result of a finish."""

    APPLIED = "applied"
    """Written now."""
    ALREADY = "already"
    """This run was closed the same way before: a repeat after a lost reply."""
    LOST = "lost"
    """Someone else decided; nothing was written."""
    WAITS = "waits"
    """Someone's open transaction has locked the job, or a key or dependent of it; nothing was written, try again."""


class Finished(NamedTuple):
    """`state` is the job's state after the finish; after a repeat, the one it is in now. None: the run had lost it."""

    status: FinishStatus
    state: State | None = None
    has_successor: bool = False
    """The job has ended, and a new job continues its work."""


class Edit(NamedTuple):
    """The new rows of a job that was never claimed. `live` may change run_at, timeout and budget."""

    row: JobRow
    live: LiveJob
    tags: tuple[str, ...]


class Place(NamedTuple):
    """Where a job should go: next to another one, or to an end of its priority."""

    before: JobId | None = None
    after: JobId | None = None
    front: bool = False


class JobFilter(NamedTuple):
    """Which jobs; None means any. `from_id` and `below` bound the ids, and so the time of creation."""

    state: str | None = None
    queue: str | None = None
    kind: str | None = None
    owner: str | None = None
    tag: str | None = None
    business_key: str | None = None
    idempotency_key: str | None = None
    from_id: bytes = FIRST_ID
    below: bytes = LAST_ID


class RunFilter(NamedTuple):
    """Which runs; None means any."""

    job_id: JobId | None = None
    state: str | None = None
    kind: str | None = None
    owner: str | None = None
    from_id: bytes = FIRST_ID
    below: bytes = LAST_ID


class Spot(NamedTuple):
    """How far a listing has come. Rank and position are used only in queue order."""

    id: bytes
    rank: int = 0
    position: int = 0


class Page(NamedTuple, Generic[T]):
    """A part of a listing, and where the next one begins. None: there is nothing more.

    It may hold fewer items than requested, or none, and still not be the last: a call reads a few thousand rows and
    then returns how far it has come.
    """

    items: list[T]
    next: Spot | None = None


class QueueRow(NamedTuple):
    """A queue and what is in it. `live` counts every job that has not ended.

    Counting stops before it takes long: `more_queued` and `more_live` say that there are more than counted.
    """

    name: str
    paused_at: Micros | None
    concurrency: int | None
    reserved_until: Micros | None
    queued: int
    running: int
    live: int
    more_queued: bool = False
    more_live: bool = False


class NewTemplate(NamedTuple):
    """A template, or a new version of one, to be written. `payload` is a part of the kind's arguments as JSON text,
    `plan` the text of `plan_json`. `id` counts only if there is no template of this name yet."""

    id: bytes
    name: str
    kind: str
    kind_version: int
    payload: str
    secrets: str | None
    plan: str
    description: str | None = None

    def __repr__(self) -> str:
        return without_secrets(self)


class TemplateRow(NamedTuple):
    """A template at one of its versions; `latest` is its newest one. From `version` on, the fields never change."""

    id: bytes
    name: str
    latest: int
    created_at: Micros
    updated_at: Micros
    archived_at: Micros | None
    version: int
    kind: str
    kind_version: int
    payload: str
    secrets: str | None
    plan: str
    description: str | None
    written_at: Micros

    def __repr__(self) -> str:
        return without_secrets(self)


class LogLine(NamedTuple):
    """One captured line; `fields` is JSON text."""

    run_id: RunId
    line: int
    job_id: JobId
    at: Micros
    level: str
    message: str
    fields: str | None = None


class Ended(NamedTuple):
    """How a life of a job ended, to decide whether it is old enough to go. `live`: its state, if it lives again.
    `flow_id`: the flow it belongs to, with which it goes, or not at all."""

    job_id: JobId
    life: int
    state: str
    finished_at: Micros
    successor: JobId | None
    kind: str
    live: str | None = None
    flow_id: FlowId | None = None


class OldFlow(NamedTuple):
    """A flow that has ended, with all its jobs, to decide whether it is old enough to go. `state`: failed too if one
    of the jobs that waited for its end failed."""

    id: FlowId
    state: str
    finished_at: Micros


class Archived(NamedTuple):
    """A job in the archive; `document` is JSON text with everything that was known about it, but its secrets."""

    job_id: JobId
    kind: str
    owner: str
    queue: str
    state: str
    created_at: Micros
    finished_at: Micros
    archived_at: Micros
    document: str


class NodeRow(NamedTuple):
    """A worker process lifetime. `stopped_at` set: it can claim nothing any more.

    `kinds` is a JSON object of names and versions, `queues` a JSON list of names; None means all. After `lease_us`
    without a beat others take its jobs; None: registered by an older Perdure, which did not record it.
    """

    id: NodeId
    kinds: str | None
    beat: int
    started_at: Micros
    beat_at: Micros
    stopped_at: Micros | None
    stop_reason: str | None
    host: str | None
    pid: int | None
    process_start: str | None
    boot_id: str | None
    pid_namespace: str | None
    queues: str | None = None
    lease_us: int | None = None

    def is_silent(self, now: Micros) -> bool:
        """Whether it has not beaten for its whole lease, by the wall clocks: for display only, never to decide."""
        return now - self.beat_at > (USUAL_LEASE_US if self.lease_us is None else self.lease_us)


class Process(NamedTuple):
    """Identifies one process lifetime."""

    host: str | None = None
    pid: int | None = None
    process_start: str | None = None
    boot_id: str | None = None
    pid_namespace: str | None = None


class NewNode(NamedTuple):
    """A node to register. `kinds`, `queues` and `lease_us` are kept as given: see `NodeRow`."""

    id: NodeId
    started_at: Micros
    process: Process = Process()
    kinds: str | None = None
    queues: str | None = None
    lease_us: int | None = None


class ReservationRow(NamedTuple):
    """Who holds, or held, a queue (`*`: every queue) for direct work. `status`: active, released or expired.

    `entered_at` None: it still waits for running jobs to end. `expires_at` is by the holder's wall clock, for display;
    what counts is `expires_boot`, in microseconds of the boot clock of its machine, and elsewhere `lasts_us`, the time
    for which it was taken or last renewed.
    """

    id: ReservationId
    queue: str
    reserved_by: str
    status: str
    reserved_at: Micros
    entered_at: Micros | None
    expires_at: Micros
    expires_boot: int
    lasts_us: int
    closed_at: Micros | None = None
    host: str | None = None
    pid: int | None = None
    process_start: str | None = None
    boot_id: str | None = None
    pid_namespace: str | None = None


class Until(NamedTuple):
    """How long a reservation lasts, as its row has it."""

    expires_at: Micros
    expires_boot: int
    lasts_us: int


class Turn(NamedTuple):
    """What a node wants done in one transaction, in this order."""

    finishes: Sequence[Finish] = ()
    notes: Notes | None = None
    promote: int = 0
    lanes: Sequence[Lane] = ()
    claimer: Claimer | None = None
    again: Sequence[Finish] = ()
    """Finishes that had to wait for someone's lock: each is written separately, after the others."""
    flows: Sequence[FlowId] = ()
    """Flows to look at once more: the turn before has counted in them."""
    settle: bool = False
    """Go on with the work list, and look at the lines of limits that somebody has left word of."""


class Notes(NamedTuple):
    """What runs report while they run. `metrics` is JSON text that replaces all earlier metrics of its run."""

    lines: Sequence[LogLine] = ()
    artifacts: Sequence[tuple[RunId, tuple[str, ...]]] = ()
    metrics: Sequence[tuple[RunId, str]] = ()
    kept_from: Sequence[LogLine] = ()
    """Lines that replace all earlier lines of their run, which are dropped."""


class Claimed(NamedTuple):
    """The result of a claim: runs that were opened, and jobs that were parked, as they are now."""

    claims: list[Claim]
    parked: tuple[LiveJob, ...]


class Rescued(NamedTuple):
    """A job that was taken from a dead node, as it was before, and what became of it."""

    live: LiveJob
    finished: Finished


class Turned(NamedTuple):
    """The result of a turn."""

    finished: list[Finished]
    promoted: int
    claims: list[Claim]
    parked: tuple[LiveJob, ...] = ()
    again: Sequence[Finished] = ()
    flows: Sequence[FlowId] = ()
    """Flows that this turn has counted in, and that have not ended: the next turn looks at them once more."""
    settled: bool = False
    """Something of the work list was done."""


class LimitRule(NamedTuple):
    """What code declares of a limit: how many at once, or of a rate how many in `per_us`."""

    name: str
    sort: str
    most: int
    per_us: int | None = None
    burst: int | None = None
    kinds: tuple[str, ...] = ()
    """Whose it is; none: of all that declare."""


class LimitState(NamedTuple):
    """A limit as it stands: as declared, and as set or paused by hand. `most` None: nobody declares it."""

    name: str
    sort: str
    most: int | None
    per_us: int | None
    burst: int | None
    set_most: int | None
    paused_at: Micros | None
    declared_by: str


LINE_COUNTED = 1_000
"""Counting the jobs of a line stops here."""
HOLD_LEASE_US = 30 * 1_000_000
"""For so long a block of code holds a place of a limit, unless it renews it."""


class KeyState(NamedTuple):
    """One key of a limit: what is in use of it, and what waits for it. Counting the line stops at 1,000. `opens_at`: of
    a rate. `holders`: running jobs; `blocks` of code hold places beside them."""

    key: str
    most: int | None
    set_most: int | None
    paused_at: Micros | None
    opens_at: Micros | None
    in_use: int
    in_line: int
    holders: tuple[JobId, ...] = ()
    blocks: int = 0


class Glance(NamedTuple):
    """What a node can see without writing: queues to claim from, when the next job is due, which runs to stop, and
    whether there is something on the work list."""

    queues: tuple[str, ...]
    next_due: Micros | None
    cancelled: tuple[RunId, ...]
    todo: bool = False
    """Also lines of limits that somebody has left word of."""


class ScheduleRow(NamedTuple):
    """When jobs are to be made, and which. `plan` and `policy` are JSON text; one of cron, every_us and at is set.

    `next_trigger_at` None: nothing more is planned, or nobody knows when (`problem` says why).
    """

    id: bytes
    name: str
    owner: str
    source: str
    template_id: bytes | None
    kind: str
    kind_version: int
    payload: str
    secrets: str | None
    plan: str
    cron: str | None
    every_us: int | None
    at: Micros | None
    tz: str
    starts_at: Micros | None
    ends_at: Micros | None
    policy: str
    description: str | None
    digests: str | None
    declared_at: Micros | None
    enabled: int
    disabled_reason: str | None
    disabled_at: Micros | None
    problem: str | None
    last_trigger_at: Micros | None
    next_trigger_at: Micros | None
    created_at: Micros
    updated_at: Micros
    version: int


class NewSlot(NamedTuple):
    """A planned instant to take. `job` None: a worker's own upkeep takes it.

    `overlap` says what to do while an earlier job of the schedule is live: "skip" takes nothing, "queue" lets the job
    wait for that one, "allow" does not care.
    """

    scheduled_for: Micros
    previous_at: Micros | None
    following_at: Micros | None
    job: NewJob | None
    overlap: str = "allow"


class Missed(NamedTuple):
    """A stretch of planned instants that nobody took. `instants` None: too many to count."""

    first_at: Micros
    last_at: Micros
    instants: int | None
    reason: str
    recorded_at: Micros


class Firing(NamedTuple):
    """What to do with the instants of a schedule that are due. Written only if the schedule is as it was read."""

    schedule: ScheduleRow
    slots: Sequence[NewSlot]
    missed: Sequence[Missed]
    next_at: Micros | None
    problem: str | None = None


class Fired(NamedTuple):
    """What became of a firing. `applied` False: the schedule had changed meanwhile, and nothing was written."""

    applied: bool
    jobs: tuple[JobId, ...] = ()
    slots: tuple[Micros, ...] = ()
    """The instants that were taken, with or without a job."""
    overlapped: tuple[Micros, ...] = ()


class SlotRow(NamedTuple):
    """A planned instant that was taken. `status`: of the upkeep, or the state of its job.

    `successor`: the job has ended, and this one continues its work.
    """

    schedule_id: bytes
    scheduled_for: Micros
    previous_at: Micros | None
    following_at: Micros | None
    job_id: JobId | None
    node_id: NodeId | None
    note: str | None
    created_at: Micros
    status: str | None = None
    successor: JobId | None = None


def not_found(job_id: JobId) -> JobNotFound:
    return JobNotFound(
        f"there is no job {to_uuid(job_id)}; check the id and the database, and whether it was deleted or archived"
    )


EVERY_QUEUE = "*"
"""The name that means all queues when one is paused or reserved."""


class QueueHold(NamedTuple):
    """What may stop the jobs of a queue from being claimed. While `reserved_until` is set, also in the past, it is
    reserved. `running` is counted where the queue has a limit (`concurrency`)."""

    name: str
    paused_at: Micros | None
    reserved_until: Micros | None
    reserved_by: str | None = None
    reserved_at: Micros | None = None
    concurrency: int | None = None
    running: int = 0


class Outstanding(NamedTuple):
    """Live jobs of one kind, queue and state. `since`: when the oldest of them was enqueued."""

    kind: str
    queue: str
    state: str
    jobs: int
    since: Micros


class Failures(NamedTuple):
    """Jobs of one kind that failed for good with the same type of error. The other fields describe the newest."""

    kind: str
    error_type: str | None
    jobs: int
    last: Micros
    example: JobId
    error: str | None


class StoredKind(NamedTuple):
    """The live jobs of one version of one kind."""

    name: str
    version: int
    live: int


class StuckReason(StrEnum):
    """Why a job makes no progress."""

    LOST = "lost"
    """It runs on a node that has stopped: no worker has rescued it yet."""
    SILENT = "silent"
    """It runs on a node without a beat for long, and for its whole lease: it may be dead, or only slow."""
    OVERTIME = "overtime"
    """It runs longer than its time-out allows."""
    SLOW = "slow"
    """It has no time-out, and runs far longer than earlier jobs of its kind."""
    LONG = "long"
    """It has no time-out and runs for long, and no job of its kind has completed to compare with."""
    PARKED = "parked"
    """No worker that found it could run it."""
    DUE = "due"
    """Its time came long ago, and no worker has queued it."""
    PAUSED = "paused"
    """It is the first of a queue that is paused."""
    WAITING = "waiting"
    """It is the first of a queue in which nothing runs and nothing has started for long."""


class Stuck(NamedTuple):
    """Jobs of one kind and queue that make no progress; `since`: from when on the first of them, `example`."""

    reason: StuckReason
    kind: str
    queue: str
    jobs: int
    since: Micros
    example: JobId


class Hindrance(NamedTuple):
    """What keeps a server from removing dead rows, so that its tables grow and every claim walks past them.

    `sort`: a `transaction` that has been open for `open_s`, of the server process `who`; a `prepared` one of that
    name; a replication `slot` that nobody reads; a `standby` with a transaction of its own; or `dead_rows` in the table
    `who`. `detail` says more.
    """

    sort: str
    who: str
    open_s: int
    detail: str


class Durations(NamedTuple):
    """How long completed runs of one kind took, and how long their jobs were ready before they started."""

    kind: str
    runs: int
    p50_ms: int
    p95_ms: int
    p99_ms: int
    wait_p50_ms: int
    wait_p95_ms: int
    wait_p99_ms: int


class DuplicateReason(StrEnum):
    """Why jobs may have done work twice."""

    BUSINESS_KEY = "business_key"
    """Several jobs of one kind had this business key, one after the other, whether or not they ran. Retries and
    superseded jobs do not count."""
    IDEMPOTENCY_KEY = "idempotency_key"
    """The same with this idempotency key; the store prevents that."""
    BEGUN_AGAIN = "begun_again"
    """Jobs whose node died while they ran, and that started again."""


class Duplicates(NamedTuple):
    """Jobs of one kind that may have done work twice, by reason. `key` is None if they share none."""

    sort: DuplicateReason
    kind: str
    key: str | None
    jobs: int
    example: JobId


class Ran(NamedTuple):
    """Runs of one kind, by state: `runs` is the sum of the rest.

    `failed` ended their job for good; `retried` failed or timed out and the job continued; `lost`: the node died and
    the job continued; `other` were cancelled, skipped or given back.
    """

    kind: str
    runs: int
    running: int
    completed: int
    failed: int
    retried: int
    lost: int
    other: int


class Verdict(StrEnum):
    """Whether a fact is good or bad."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Fact(NamedTuple):
    """One thing that is known about the database; `note` says what to do, if anything."""

    name: str
    value: str
    verdict: Verdict = Verdict.OK
    note: str = ""
