"""`SqlStore`: every protocol of `store/protocols`, by running the operations of this folder on a database's runner.

The runner knows the database; the operations know the statements; this file only brings them together.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Protocol, TypeVar

from perdure.clock import Micros
from perdure.errors import PerdureError, StoreError
from perdure.ids import JobId, NodeId, RunId
from perdure.job.model import Claim, Failure, JobRow, LiveJob, NewJob
from perdure.job.reports import Finish
from perdure.job.states import Verb
from perdure.job.views import Job, Run
from perdure.store import admin, claim, control, enqueue, finish, read, turn
from perdure.store.engine import Make, Serialization
from perdure.store.protocols import Bell, Decide, Tx
from perdure.store.rows import (
    Claimer,
    Duplicates,
    Durations,
    Edit,
    Failures,
    Finished,
    Gate,
    Glance,
    JobFilter,
    Kinds,
    Lane,
    LogLine,
    NodeRow,
    Outstanding,
    Page,
    Place,
    Process,
    QueueRow,
    Ran,
    Rescued,
    RunFilter,
    Spot,
    Stuck,
    Turn,
    Turned,
)
from perdure.store.write import read_live

T = TypeVar("T")
logger = logging.getLogger("perdure.store")


class Runner(Protocol):
    """Runs whole operations in transactions on one database."""

    def write(self, make: Make[T], *, brief: bool = False) -> T:
        """Run the operation in a transaction and return when it is durable. On an error nothing of it remains.

        `brief`: wait no longer than a moment for what others have locked, and throw `Locked` into the operation. Means
        nothing where there is one writer at a time, nor inside a transaction that is joined.
        """
        ...

    async def awrite(self, make: Make[T]) -> T:
        """The same for coroutines."""
        ...

    def write_within(self, tx: object, make: Make[T]) -> T:
        """Run the operation inside the caller's transaction, whose commit makes it durable."""
        ...

    def read(self, make: Make[T]) -> T:
        """Run a reading operation on one consistent snapshot. It cannot write."""
        ...

    def transaction(self, *, join: bool = False) -> AbstractContextManager[object]: ...

    def bell(self) -> Bell: ...

    def upgrade(self) -> str: ...

    def close(self) -> None: ...


class SqlStore:
    """A store in an SQL database."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner

    def _write(self, make: Make[T | PerdureError], tx: Tx = None) -> T:
        return _raised(self.runner.write(make) if tx is None else self.runner.write_within(tx, make))

    def _write_briefly(self, make: Make[T | PerdureError]) -> T:
        """For workers, who have other things to do than to wait for somebody's open transaction."""
        return _raised(self.runner.write(make, brief=True))

    def _read(self, make: Make[T], tx: Tx) -> T:
        return self.runner.read(make) if tx is None else self.runner.write_within(tx, make)

    # -- Jobs --------------------------------------------------------------------------------------------------------

    def enqueue(self, new: Sequence[NewJob], tx: Tx = None) -> list[Job]:
        make = partial(enqueue.insert, new)
        answer = self.runner.write(make) if tx is None else self.runner.write_within(tx, make)
        return answer if type(answer) is list else _raised(answer)

    async def aenqueue(self, new: Sequence[NewJob]) -> list[Job]:
        return _raised(await self.runner.awrite(lambda: enqueue.insert(new)))

    def edit(self, edited: Edit, expect_version: int, tx: Tx = None) -> Job:
        return self._write(lambda: control.edit(edited, expect_version), tx)

    def delete(self, job_id: JobId, tx: Tx = None) -> Job:
        return self._write(lambda: control.delete(job_id), tx)

    # -- Control -----------------------------------------------------------------------------------------------------

    def change(
        self, job_id: JobId, verb: Verb, decide: Decide, now: Micros, expect_version: int | None = None, tx: Tx = None
    ) -> Job:
        return self._write(lambda: control.change(job_id, verb, decide, now, expect_version), tx)

    def retry(self, job_id: JobId, now: Micros, tx: Tx = None) -> Job:
        return self._write(lambda: control.retry(job_id, now), tx)

    def retry_as_new(self, job_id: JobId, new_id: JobId, now: Micros, tx: Tx = None) -> Job:
        return self._write(lambda: control.retry_as_new(job_id, new_id, now), tx)

    def supersede(self, job_id: JobId, replacement: NewJob, now: Micros, tx: Tx = None) -> Job:
        return self._write(lambda: control.supersede(job_id, replacement, now), tx)

    # -- Order -------------------------------------------------------------------------------------------------------

    def move(self, job_id: JobId, to: Place, now: Micros, expect_version: int | None = None, tx: Tx = None) -> Job:
        return self._write(lambda: control.move(job_id, to, now, expect_version), tx)

    def set_priority(
        self, job_id: JobId, rank: int, now: Micros, expect_version: int | None = None, tx: Tx = None
    ) -> Job:
        return self._write(lambda: control.set_priority(job_id, rank, now, expect_version), tx)

    # -- Claims, Finishes, Rescue ------------------------------------------------------------------------------------

    def _insist(self, act: Callable[[], T], now: Micros) -> T:
        """What a row stops that somebody else has written into is done again once such rows are set aside.

        Nothing is looked at before: rows of our own need no look.
        """
        try:
            return act()
        except (TypeError, ValueError, ArithmeticError, StoreError) as error:
            parked = self._may_be_damage(error) and self.runner.write(lambda: finish.set_aside(now))
            if not parked:
                raise
            logger.warning("jobs parked for what somebody has written into their rows: %d; see perdure doctor", parked)
            return act()

    def _may_be_damage(self, error: Exception) -> bool:
        if isinstance(error, Serialization):
            return self.single_writer  # so nobody has changed the row: it is not what it was read as
        return not isinstance(error, StoreError) or error.code == "value_invalid"

    def claim(self, lanes: Sequence[Lane], claimer: Claimer, now: Micros) -> list[Claim]:
        return self._insist(lambda: self._write(lambda: claim.claim(lanes, claimer, now)), now).claims

    def finish(self, batch: Sequence[Finish], now: Micros) -> list[Finished]:
        return self._insist(lambda: self._write_briefly(lambda: finish.finish(batch, now)), now)

    def promote(self, now: Micros, limit: int) -> int:
        return self._insist(lambda: self._write(lambda: finish.promote(now, limit)), now)

    def rescue(
        self,
        node_id: NodeId,
        failure: Failure,
        max_crashes: int,
        next_ids: Sequence[JobId],
        now: Micros,
        only: JobId | None = None,
    ) -> list[Rescued]:
        rescue = partial(finish.rescue, node_id, failure, max_crashes, next_ids, now, only)
        return self._insist(lambda: self._write_briefly(rescue), now)

    def turn(self, wanted: Turn, now: Micros) -> Turned:
        return self._insist(lambda: self._write_briefly(lambda: turn.turn(wanted, now)), now)

    def glance(self, node_id: NodeId, kinds: Kinds | None, now: Micros) -> Glance:
        return self.runner.read(lambda: turn.glance(node_id, kinds, now))

    def held_by(self, node_id: NodeId) -> list[LiveJob]:
        return self.runner.read(lambda: turn.held_by(node_id))

    def overdue(self, now: Micros, limit: int) -> list[LiveJob]:
        return self.runner.read(lambda: turn.overdue(now, limit))

    # -- Runs, Logs --------------------------------------------------------------------------------------------------

    def runs(self, wanted: RunFilter, after: Spot | None, size: int) -> Page[Run]:
        return self.runner.read(lambda: read.page_of_runs(wanted, after, size))

    def append_artifacts(self, run_id: RunId, artifacts: Sequence[str]) -> bool:
        return self._write(lambda: turn.append_artifacts(run_id, artifacts))

    def append_log(self, lines: Sequence[LogLine]) -> None:
        return self._write(lambda: turn.append(lines))

    def log(self, job_id: JobId, after: LogLine | None, size: int) -> list[LogLine]:
        return self.runner.read(lambda: turn.page(job_id, after, size))

    # -- Reads, Queues -----------------------------------------------------------------------------------------------

    def get(self, job_id: JobId, tx: Tx = None) -> Job | None:
        return self._read(lambda: read.view_of(job_id), tx)

    def row(self, job_id: JobId, tx: Tx = None) -> JobRow | None:
        return self._read(lambda: read.row_of(job_id), tx)

    def live(self, job_id: JobId, tx: Tx = None) -> LiveJob | None:
        return self._read(lambda: read_live(job_id), tx)

    def jobs(self, wanted: JobFilter, after: Spot | None, size: int) -> Page[Job]:
        return self.runner.read(lambda: read.page_of_jobs(wanted, after, size))

    def count_ahead(self, job: Job, cap: int) -> int:
        return self.runner.read(lambda: read.count_ahead(job, cap))

    def waited_for(self, job_id: JobId, limit: int) -> list[JobId]:
        return self.runner.read(lambda: read.waited_for(job_id, limit))

    def queues(self) -> list[QueueRow]:
        return self.runner.read(admin.queues)

    def pause_queue(self, queue: str, paused_at: Micros | None) -> bool:
        return self._write(lambda: admin.pause_queue(queue, paused_at))

    # -- Nodes, Locks ------------------------------------------------------------------------------------------------

    def register(
        self,
        node_id: NodeId,
        kinds: str | None,
        process: Process,
        now: Micros,
        queues: str | None = None,
        lease_us: int | None = None,
    ) -> None:
        return self._write(lambda: admin.register(node_id, kinds, process, now, queues, lease_us))

    def beat(self, node_id: NodeId, now: Micros) -> bool:
        return self._write(lambda: admin.beat(node_id, now))

    def stop(self, node_id: NodeId, reason: str, now: Micros, seen_beat: int | None = None) -> bool:
        return self._write(lambda: admin.stop(node_id, reason, now, seen_beat))

    def live_nodes(self) -> list[NodeRow]:
        return self.runner.read(admin.live_nodes)

    def nodes_left_behind(self) -> list[NodeId]:
        return self.runner.read(admin.nodes_left_behind)

    def nodes(self, limit: int) -> list[NodeRow]:
        return self.runner.read(lambda: admin.nodes(limit))

    def take_lock(self, name: str, owner: str, now: Micros, ttl_us: int) -> bool:
        return self._write(lambda: admin.take_lock(name, owner, now, ttl_us))

    def renew_lock(self, name: str, owner: str, now: Micros, ttl_us: int) -> bool:
        return self._write(lambda: admin.renew_lock(name, owner, now, ttl_us))

    def release_lock(self, name: str, owner: str) -> bool:
        return self._write(lambda: admin.release_lock(name, owner))

    def lock_holder(self, name: str, now: Micros) -> str | None:
        return self.runner.read(lambda: admin.lock_holder(name, now))

    # -- Questions ---------------------------------------------------------------------------------------------------

    def outstanding(self, cap: int) -> list[Outstanding]:
        return self.runner.read(lambda: read.outstanding(cap))

    def failures(self, since: Micros, cap: int) -> list[Failures]:
        return self.runner.read(lambda: read.failures(since, cap))

    def count_failed(self, since: Micros, cap: int) -> int:
        return self.runner.read(lambda: read.count_failed(since, cap))

    def stuck(self, now: Micros, stale: Micros, from_id: bytes, cap: int) -> list[Stuck]:
        return self.runner.read(lambda: read.stuck(now, stale, from_id, cap))

    def durations(self, from_id: bytes, cap: int) -> list[Durations]:
        return self.runner.read(lambda: read.durations(from_id, cap))

    def duplicates(self, from_id: bytes, cap: int, limit: int) -> list[Duplicates]:
        return self.runner.read(lambda: read.duplicates(from_id, cap, limit))

    def ran(self, from_id: bytes, cap: int) -> list[Ran]:
        return self.runner.read(lambda: read.ran(from_id, cap))

    def gates(self, queue: str) -> list[Gate]:
        return self.runner.read(lambda: read.gates(queue))

    # -- Schema ------------------------------------------------------------------------------------------------------

    @property
    def single_writer(self) -> bool:
        return getattr(self.runner, "single_writer", False)  # most runners have nothing to say about it

    @property
    def in_transaction(self) -> bool:
        joined = getattr(self.runner, "joined", None)  # as above
        return joined is not None and joined() is not None

    def transaction(self, *, join: bool = False) -> AbstractContextManager[object]:
        return self.runner.transaction(join=join)

    def bell(self) -> Bell:
        return self.runner.bell()

    def upgrade(self) -> str:
        return self.runner.upgrade()

    def close(self) -> None:
        self.runner.close()


def _raised(answer: T | PerdureError) -> T:
    """An operation answers a refusal as a value; here, outside the transaction, it becomes the error."""
    if isinstance(answer, PerdureError):
        raise answer
    return answer
