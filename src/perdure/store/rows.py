"""The values a store takes and gives besides the job's own: filters, lanes, turns, one row type per question.

Part of the SPI, with `protocols`. Times are instants; `example` is one of the jobs counted, to look at next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

from perdure.clock import Micros
from perdure.errors import JobNotFound
from perdure.ids import JobId, NodeId, RunId, to_uuid
from perdure.job.model import Claim, JobRow, LiveJob
from perdure.job.reports import Finish
from perdure.job.states import State, Suspicion

T = TypeVar("T")

FIRST_ID = b"\x00" * 16
LAST_ID = b"\xff" * 16

USUAL_LEASE_US = 60 * 1_000_000
"""The lease of a node that does not name its own."""

Kinds = Mapping[str, int]
"""What a node can run: kind name → newest version it has."""


class Lane(NamedTuple):
    """How much a node wants of one queue."""

    queue: str
    room: int


class Claimer(NamedTuple):
    """Who claims: the node, the kinds it knows (None: any), the run ids to use, and its lease.

    `company` is the worst that is thought of the jobs it runs; `max_crashes`, after how many a job is given up.
    """

    node_id: NodeId
    kinds: Kinds | None
    run_ids: Sequence[RunId]
    lease_us: int
    company: Suspicion = Suspicion.NONE
    max_crashes: int = 3


class FinishStatus(StrEnum):
    """What came of a finish."""

    APPLIED = "applied"
    """Written now."""
    ALREADY = "already"
    """This run was closed the same way before: a repeat after a lost reply."""
    LOST = "lost"
    """Someone else decided; nothing was written."""
    WAITS = "waits"
    """Somebody's open transaction has locked the job, or a key or dependent of it; nothing was written, try again."""


class Finished(NamedTuple):
    """`state` is the job's state after the finish; after a repeat, the one it is in now. None: the run had lost it."""

    status: FinishStatus
    state: State | None = None
    has_successor: bool = False
    """The job has ended, and a new job continues its work."""


class Edit(NamedTuple):
    """What of a job that was never claimed becomes something else. `live` may change run_at, timeout and budget."""

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
    """How far a listing has come. Rank and position only count where jobs are listed in queue order."""

    id: bytes
    rank: int = 0
    position: int = 0


class Page(NamedTuple, Generic[T]):
    """A part of a listing, and where the next one begins. None: there is nothing more.

    It may hold fewer than were asked for, or none, and yet not be the last: a call looks at a few thousand rows and
    then says how far it has come.
    """

    items: list[T]
    next: Spot | None = None


class QueueRow(NamedTuple):
    """A queue and what is in it. `live` counts every job that has not ended.

    Counting ends where it would take long: then there are more than `queued` says, or than `live` says.
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


class LogLine(NamedTuple):
    """One captured line; `fields` is JSON text."""

    run_id: RunId
    line: int
    job_id: JobId
    at: Micros
    level: str
    message: str
    fields: str | None = None


class NodeRow(NamedTuple):
    """A worker process lifetime. `stopped_at` set: it can claim nothing any more.

    `kinds` is a JSON object of names and versions, `queues` a JSON list of names; None means all. `lease_us` is for how
    long it may be silent before others take its jobs; None: an older Perdure registered it, which did not say.
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
        """Whether nothing was heard of it for its whole lease, by the clocks on the walls: to be told, not acted on."""
        return now - self.beat_at > (USUAL_LEASE_US if self.lease_us is None else self.lease_us)


class Process(NamedTuple):
    """What tells one process lifetime from every other."""

    host: str | None = None
    pid: int | None = None
    process_start: str | None = None
    boot_id: str | None = None
    pid_namespace: str | None = None


class NewNode(NamedTuple):
    """A node that makes itself known. `kinds`, `queues` and `lease_us` are kept as given: see `NodeRow`."""

    id: NodeId
    started_at: Micros
    process: Process = Process()
    kinds: str | None = None
    queues: str | None = None
    lease_us: int | None = None


class Turn(NamedTuple):
    """What a node wants done in one transaction, in this order."""

    finishes: Sequence[Finish] = ()
    notes: Notes | None = None
    promote: int = 0
    lanes: Sequence[Lane] = ()
    claimer: Claimer | None = None
    again: Sequence[Finish] = ()
    """Ends that had to wait for somebody's lock before: each is tried by itself, after the other finishes."""


class Notes(NamedTuple):
    """What runs have to say on the way. `metrics` is the JSON text that stands for all that a run has measured."""

    lines: Sequence[LogLine] = ()
    artifacts: Sequence[tuple[RunId, tuple[str, ...]]] = ()
    metrics: Sequence[tuple[RunId, str]] = ()
    kept_from: Sequence[LogLine] = ()
    """Lines that stand for all lines of their run before them, which are dropped."""


class Claimed(NamedTuple):
    """What came of a claim: runs that were opened, and jobs set aside on the way, as they are now."""

    claims: list[Claim]
    parked: tuple[LiveJob, ...]


class Rescued(NamedTuple):
    """A job that was taken back from a dead node, as it was, and what became of it."""

    live: LiveJob
    finished: Finished


class Turned(NamedTuple):
    """What came of a turn."""

    finished: list[Finished]
    promoted: int
    claims: list[Claim]
    parked: tuple[LiveJob, ...] = ()
    again: Sequence[Finished] = ()


class Glance(NamedTuple):
    """What a node can see without writing: where it could claim, when the next job is due, whom it should stop."""

    queues: tuple[str, ...]
    next_due: Micros | None
    cancelled: tuple[RunId, ...]


def not_found(job_id: JobId) -> JobNotFound:
    return JobNotFound(f"there is no job {to_uuid(job_id)}; it may have been deleted, or belong to another database")


EVERY_QUEUE = "*"
"""The queue that stands for all of them where one is paused or reserved."""


class QueueHold(NamedTuple):
    """What may keep the jobs of a queue from being claimed."""

    name: str
    paused_at: Micros | None
    reserved_until: Micros | None


class Outstanding(NamedTuple):
    """Live jobs of one kind, queue and state. `since`: when the oldest of them was enqueued."""

    kind: str
    queue: str
    state: str
    jobs: int
    since: Micros


class Failures(NamedTuple):
    """Jobs of one kind that failed for good with the same type of error. The rest is about the newest of them."""

    kind: str
    error_type: str | None
    jobs: int
    last: Micros
    example: JobId
    message: str | None


class StoredKind(NamedTuple):
    """The live jobs of one version of one kind."""

    name: str
    version: int
    live: int


class StuckReason(StrEnum):
    """Why a job does not get on."""

    LOST = "lost"
    """It runs on a node that has stopped: no worker has taken it back yet."""
    SILENT = "silent"
    """It runs on a node of which nothing was heard for long, and for its whole lease: it may be dead, or only slow."""
    OVERTIME = "overtime"
    """It runs longer than its time-out allows."""
    SLOW = "slow"
    """It has no time-out, and runs far longer than those of its kind before it."""
    LONG = "long"
    """It has no time-out and runs for long, and none of its kind before it completed: there is nothing to compare."""
    PARKED = "parked"
    """No worker that reached it could run it."""
    DUE = "due"
    """Its time came long ago, and no worker has queued it."""
    PAUSED = "paused"
    """It is the first of a queue that is paused."""
    WAITING = "waiting"
    """It is the first of a queue of which nothing runs and nothing was begun for long."""


class Stuck(NamedTuple):
    """Jobs of one kind and queue that do not get on. `since`: for how long the first of them, `example`, has not."""

    reason: StuckReason
    kind: str
    queue: str
    jobs: int
    since: Micros
    example: JobId


class Durations(NamedTuple):
    """How long completed runs of one kind took, and how long their jobs could have started before they did."""

    kind: str
    runs: int
    p50_ms: int
    p95_ms: int
    p99_ms: int
    wait_p50_ms: int
    wait_p95_ms: int
    wait_p99_ms: int


class DuplicateReason(StrEnum):
    """What jobs have in common that may have done work twice."""

    BUSINESS_KEY = "business_key"
    """Several jobs of one kind had this business key, one after the other, whether or not they ran. Retries are left
    out, and jobs that another one took the place of."""
    IDEMPOTENCY_KEY = "idempotency_key"
    """The same with this idempotency key; the store prevents that."""
    BEGUN_AGAIN = "begun_again"
    """Jobs whose node died in the middle, and that were begun again."""


class Duplicates(NamedTuple):
    """Jobs of one kind that may have done work twice, by what they share. `key`: None if that is no key."""

    sort: DuplicateReason
    kind: str
    key: str | None
    jobs: int
    example: JobId


class Ran(NamedTuple):
    """Runs of one kind, by how they stand: `runs` is the sum of the rest.

    `failed` ended their job for good; `retried` failed or timed out and the job went on; `lost`: the node died and the
    job went on; `other` were cancelled, skipped or given back.
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
    """What to think of a fact."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Fact(NamedTuple):
    """One thing that is known about the database; `note` says what to do, where there is something."""

    name: str
    value: str
    verdict: Verdict = Verdict.OK
    note: str = ""
