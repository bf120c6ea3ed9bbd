"""What a store promises, in small protocols; `Store` is all of them. `app`, worker and ops see nothing else of a store.

Every method is one transaction; on the store that `within(tx)` gives, a part of the caller's own. Errors are those of
`perdure.errors`; after an error nothing of the call remains. All methods may be called by any number of threads and
processes at the same time. The contract suite (`perdure.testing.contract`) has one file per protocol.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

from perdure.clock import Micros
from perdure.errors import DatabaseBusy, DatabaseUnavailable, StoreError
from perdure.ids import IdFactory, JobId, NodeId, RunId
from perdure.job.model import Claim, Failure, JobRow, LiveJob, NewJob, Transition
from perdure.job.reports import Finish
from perdure.job.states import Verb
from perdure.job.views import Job, Run
from perdure.store.rows import (
    Claimer,
    Duplicates,
    Durations,
    Edit,
    Fact,
    Failures,
    Finished,
    Glance,
    JobFilter,
    Kinds,
    Lane,
    LogLine,
    NewNode,
    NodeRow,
    Outstanding,
    Page,
    Place,
    QueueHold,
    QueueRow,
    Ran,
    Rescued,
    RunFilter,
    Spot,
    StoredKind,
    Stuck,
    Turn,
    Turned,
)

Decide = Callable[[LiveJob, Micros], Transition | None]


class Bell(Protocol):
    """Wakes a worker that has nothing to do. A hint: it may ring for nothing, and polling always remains."""

    def ring(self) -> None:
        """Wake the sleeper from inside its own process. Any thread may."""
        ...

    def wait(self, timeout_s: float, *, rung_only: bool = False) -> bool:
        """Sleep until rung, until someone may have written, or for so long. False: nothing happened.

        `rung_only`: whatever others write, only this process may end the sleep.
        """
        ...

    def close(self) -> None: ...


class JobOperations(Protocol):
    """Jobs come into being, and ended ones go."""

    def enqueue(self, new: Sequence[NewJob]) -> list[Job]:
        """Insert all of these jobs, each at the back of its queue in the order given, or none of them.

        A job whose idempotency key is taken, or whose business key is and that asked for it, is not inserted: the job
        that holds the key is returned for it, marked `deduplicated`. In a race exactly one caller inserts. KeyConflict:
        nothing at all was written.
        """
        ...

    def aenqueue(self, new: Sequence[NewJob]) -> Awaitable[list[Job]]:
        """The same for coroutines of the running event loop."""
        ...

    def edit(self, edited: Edit, expect_version: int) -> Job:
        """Change a waiting job that was never claimed. TransitionRefused: it is not like that any more."""
        ...

    def delete(self, job_id: JobId) -> Job:
        """Remove an ended job and all that hangs on it, and return it as it was. Its idempotency key stays taken."""
        ...


class ControlOperations(Protocol):
    """What people decide about single jobs. A repeat changes nothing.

    TransitionRefused: the job is in no state for it.
    """

    def change(self, job_id: JobId, verb: Verb, decide: Decide, now: Micros, expect_version: int | None = None) -> Job:
        """Apply what the pure function `decide` says of the job as it is now; it is asked inside the transaction."""
        ...

    def retry(self, job_id: JobId, now: Micros) -> Job:
        """Open a new life for a failed or cancelled job; its runs stay."""
        ...

    def retry_as_new(self, job_id: JobId, new_id: JobId, now: Micros) -> Job:
        """A new job with the shape of an ended one, linked to it."""
        ...

    def supersede(self, job_id: JobId, replacement: NewJob, now: Micros) -> Job:
        """Put another job in this one's place. The superseded job is returned."""
        ...


class OrderOperations(Protocol):
    """Places inside a queue."""

    def move(self, job_id: JobId, to: Place, now: Micros, expect_version: int | None = None) -> Job:
        """Another place within the job's queue and priority; the order of all other jobs stays."""
        ...

    def set_priority(self, job_id: JobId, rank: int, now: Micros, expect_version: int | None = None) -> Job:
        """Another priority; the job goes to the back of it."""
        ...


class ClaimOperations(Protocol):
    """Jobs become runs."""

    def claim(self, lanes: Sequence[Lane], claimer: Claimer, now: Micros) -> list[Claim]:
        """Take up to `lane.room` jobs per lane, in queue order, and open a run for each.

        Atomic: a job is never returned without its run, nor to two callers. Jobs of kinds or versions the claimer lacks
        are parked in the same transaction, not more than a thousand or so. Of the jobs that a node died of, at most one
        is given, and none beside one that the claimer holds. Empty: nothing was claimable, not that the queue is empty.
        """
        ...


class FinishOperations(Protocol):
    """Runs come back."""

    def finish(self, batch: Sequence[Finish], now: Micros) -> list[Finished]:
        """Write what these runs report, in order; each is applied, was applied before, or lost its job to someone else;
        or it waits, where somebody's open transaction has locked what it needs.

        The fence is the run: whoever does not hold the job by that run any more changes nothing. The children of a
        report come into being if and only if it is applied and completes its job. KeyConflict, from one of them:
        nothing at all was written. Locks are not waited for longer than a moment.
        """
        ...


class TurnOperations(Protocol):
    """What a worker does again and again."""

    def turn(self, wanted: Turn, now: Micros) -> Turned:
        """Finish, note, promote and claim in one transaction; each part as the method of that name has it."""
        ...

    def glance(self, node_id: NodeId, kinds: Kinds | None, now: Micros) -> Glance:
        """What a turn of this node would find to do. Writes nothing and waits for nobody."""
        ...

    def held_by(self, node_id: NodeId) -> list[LiveJob]:
        """The running jobs that name this node."""
        ...

    def overdue(self, now: Micros, limit: int) -> list[LiveJob]:
        """Running jobs past the time at which any node may close their run."""
        ...


class RescueOperations(Protocol):
    """Jobs that would otherwise wait for ever."""

    def promote(self, now: Micros, limit: int) -> int:
        """Queue up to `limit` jobs that are due. Fewer: there are no more for now."""
        ...

    def rescue(
        self,
        node_id: NodeId,
        failure: Failure,
        max_crashes: int,
        next_ids: Sequence[JobId],
        now: Micros,
        only: JobId | None = None,
    ) -> list[Rescued]:
        """Take back up to len(next_ids) jobs from a dead node; the attempt counts. Fewer: it holds no more.

        `only` this one, if the node holds it.
        """
        ...


class RunOperations(Protocol):
    """The record of attempts."""

    def runs(self, wanted: RunFilter, after: Spot | None, size: int) -> Page[Run]:
        """Up to `size` runs, newest first, from the beginning or from where another page ended."""
        ...

    def append_artifacts(self, run_id: RunId, artifacts: Sequence[str]) -> bool:
        """Add those that are not there to a run's artifacts, also when it is closed. False: no such run."""
        ...


class LogOperations(Protocol):
    """Captured log lines."""

    def append_log(self, lines: Sequence[LogLine]) -> None:
        """Keep these lines; a repeat changes nothing."""
        ...

    def log(self, job_id: JobId, after: LogLine | None, size: int) -> list[LogLine]:
        """One page in the order written. Shorter than `size`: the last page."""
        ...


class ReadOperations(Protocol):
    """Looking. Each call sees one consistent snapshot."""

    def get(self, job_id: JobId) -> Job | None:
        """The job as it is now. None: there is no such job."""
        ...

    def row(self, job_id: JobId) -> JobRow | None:
        """What the job was made from, secrets included. None: there is no such job."""
        ...

    def live(self, job_id: JobId) -> LiveJob | None:
        """The hot row. None: the job is not live."""
        ...

    def jobs(self, wanted: JobFilter, after: Spot | None, size: int) -> Page[Job]:
        """Up to `size` jobs: newest first, or in queue order for the queued jobs of one queue.

        Page after page, a job that fits all the while is met once; one that comes to fit, or ceases to, may be met.
        In queue order that holds for jobs that are not moved.
        """
        ...

    def count_ahead(self, job: Job, cap: int) -> int:
        """How many queued jobs of its queue start before this one, if less than `cap`."""
        ...

    def waited_for(self, job_id: JobId, limit: int) -> list[JobId]:
        """Up to `limit` of the jobs that have to end before this one may start."""
        ...


class QueueOperations(Protocol):
    """Whole lanes."""

    def queues(self) -> list[QueueRow]:
        """Every queue ever used. Its jobs are counted no further than some thousands."""
        ...

    def pause_queue(self, queue: str, paused_at: Micros | None) -> bool:
        """From the commit on nothing is claimed from it (`*`: from any); None resumes it. False: no change."""
        ...


class NodeOperations(Protocol):
    """Worker process lifetimes."""

    def register(self, node: NewNode) -> None:
        """Make the node known; before that it claims nothing. By its lease others judge whether it lives."""
        ...

    def beat(self, node_id: NodeId, now: Micros) -> bool:
        """Say that the node lives. False: it was declared stopped and stays so."""
        ...

    def stop(self, node_id: NodeId, reason: str, now: Micros, seen_beat: int | None = None) -> bool:
        """Declare a node stopped, if it has not beaten since `seen_beat`. False: it has, or it was stopped before."""
        ...

    def live_nodes(self) -> list[NodeRow]:
        """Every node that has not been declared stopped."""
        ...

    def nodes_left_behind(self) -> list[NodeId]:
        """Nodes that are stopped, or unknown, and still hold running jobs: theirs are to be rescued."""
        ...

    def nodes(self, limit: int) -> list[NodeRow]:
        """The newest nodes first."""
        ...


class LockOperations(Protocol):
    """Named leases."""

    def take_lock(self, name: str, owner: str, now: Micros, ttl_us: int) -> bool:
        """True: `owner` holds it until now + ttl, and nobody else does."""
        ...

    def renew_lock(self, name: str, owner: str, now: Micros, ttl_us: int) -> bool:
        """False: it ran out or is someone else's."""
        ...

    def release_lock(self, name: str, owner: str) -> bool:
        """False: it was not held by `owner`."""
        ...

    def lock_holder(self, name: str, now: Micros) -> str | None:
        """Who holds it. None: nobody."""
        ...


class StatusQueries(Protocol):
    """What is going on.

    Each is one query that looks at `cap` rows at most and what belongs to them, however much there is; with fewer than
    that the result is exact. Ids carry the time at which they were made: `from_id` is an `id_floor`.
    """

    def outstanding(self, cap: int) -> list[Outstanding]:
        """The oldest `cap` live jobs by kind, queue and state. Counts that add up to less: there are no more."""
        ...

    def failures(self, since: Micros, cap: int) -> list[Failures]:
        """Jobs that failed for good since then and were not retried, the most frequent first.

        Looked for among the last `cap` lives that failed.
        """
        ...

    def count_failed(self, since: Micros, cap: int) -> int:
        """How many lives failed since then, retried or not. As many as `cap`: there may be more."""
        ...

    def stuck(self, now: Micros, stale: Micros, from_id: bytes, cap: int) -> list[Stuck]:
        """Jobs that do not get on, for the reasons of `StuckReason`. Long means: since before `stale`.

        A queue waits if nothing of it runs on a node that beats, and no run since `from_id` was of a job of it. With
        `cap` runs or more since then that is not known, and no queue is said to wait.
        """
        ...

    def durations(self, from_id: bytes, cap: int) -> list[Durations]:
        """Percentiles by kind over those of the newest `cap` runs since `from_id` that completed."""
        ...

    def duplicates(self, from_id: bytes, cap: int, limit: int) -> list[Duplicates]:
        """Up to `limit` groups among the newest `cap` jobs and lost runs since `from_id`, the most frequent first."""
        ...

    def ran(self, from_id: bytes, cap: int) -> list[Ran]:
        """The newest `cap` runs that began since `from_id`, by kind."""
        ...

    def queue_holds(self, queue: str) -> list[QueueHold]:
        """What may keep jobs of this queue from being claimed: its own row and that of all queues, if there are."""
        ...

    def live_kinds(self) -> list[StoredKind]:
        """The kinds of all jobs that have not ended, by name and version."""
        ...


class HealthOperations(Protocol):
    """What `perdure doctor` and `perdure db` ask. A store may raise NotImplementedError for what it does not have."""

    def check(self, name: str, now: Micros, limit: int) -> list[tuple[object, ...]]:
        """Up to `limit` cases of what the check of this name (docs/doctor.md) looks for. Empty: all is well.

        Each is an example (an id, or the name of a queue), how many there are in all, and what the check needs besides.
        """
        ...

    def repair(self, name: str, now: Micros, ids: IdFactory, limit: int) -> int:
        """Carry out the repair of this name (docs/doctor.md) on up to `limit` jobs. How much was changed."""
        ...

    def facts(self) -> list[Fact]:
        """What is known about the database. Changes nothing: what is missing is an error, what is old stays old."""
        ...

    def require_current(self) -> None:
        """Refuse a database that using it would create or upgrade."""
        ...

    def back_up(self, target: Path) -> None:
        """Copy the database to a new file, readable by its owner only. Workers may run meanwhile."""
        ...


class StoreLifecycle(Protocol):
    """The store as a whole."""

    @property
    def single_writer(self) -> bool:
        """True: an open transaction keeps all other writers out, so it must be short."""
        ...

    def within(self, tx: object) -> Self:
        """The same store inside the caller's own transaction: a driver's connection, or an SQLAlchemy or Django one.

        What is called on it is seen by that transaction alone, and becomes durable when the caller commits it.
        """
        ...

    @property
    def in_transaction(self) -> bool:
        """Whether a call made here and now joins a `transaction()` that is open, and ends with that."""
        ...

    def transaction(self, *, join: bool = False) -> AbstractContextManager[Any]:
        """A transaction of the caller's that calls on the same thread or task join. Commits unless left by an error.

        Inside another one it is refused (`tx_nested`), or with `join` a part of that.
        """
        ...

    def bell(self) -> Bell:
        """Something for one worker to sleep on until there may be work. It has to be closed."""
        ...

    def upgrade(self) -> str:
        """Bring the schema to the newest revision and say what was done. A repeat does nothing."""
        ...

    def close(self) -> None:
        """Give back connections. The store opens them again when it is used again."""
        ...


class Store(
    JobOperations,
    ControlOperations,
    OrderOperations,
    ClaimOperations,
    FinishOperations,
    TurnOperations,
    RescueOperations,
    RunOperations,
    LogOperations,
    ReadOperations,
    QueueOperations,
    NodeOperations,
    LockOperations,
    StatusQueries,
    HealthOperations,
    StoreLifecycle,
    Protocol,
):
    """All of it."""


class ConnectionLost(StoreError):
    """The connection ended; whether the last statement took effect is unknown."""

    default_code = "connection_lost"


class Locked(DatabaseBusy):
    """Someone's open transaction held what was needed for longer than we wait. No outage: whatever else there is to do
    can be done, and this again later."""


OUTAGES = (DatabaseBusy, DatabaseUnavailable, ConnectionLost)
"""The database was not there, or its reply was lost: no refusal, so the caller repeats the call, however often."""


class StoreSettings(NamedTuple):
    """What a store needs to know besides where it is."""

    durability: str = "full"
    busy_timeout_s: float = 5.0
    auto_migrate: bool | None = None
    allow_network_filesystem: bool = False


StoreFactory = Callable[[str, StoreSettings], Store]
"""Opens the store of a URL: given to `Perdure(url, store=…)`, or named in the entry point group `perdure.stores`."""
