"""`app.reserve`: a queue held for direct work; `app.run_direct`: one job run that way, here and now. Calls the store.

A job runs under a node of its own, made of a worker's parts, so that others rescue it if this process dies.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Self
from uuid import UUID

from perdure.checks import ABOVE_ZERO, KEY_LIMIT, Span, check_name, check_span
from perdure.clock import Micros, to_datetime
from perdure.errors import InvalidOption, PerdureError, ReservationBusy, ReservationExpired, TransactionError
from perdure.ids import ReservationId, RunId, to_uuid
from perdure.job.model import NewJob
from perdure.job.states import State
from perdure.job.views import Job
from perdure.kind import Draft
from perdure.names import public
from perdure.store.protocols import Locked
from perdure.store.reservation import ACTIVE, RELEASED, over
from perdure.store.rows import EVERY_QUEUE, Claimer, ReservationRow, Until
from perdure.text import moment
from perdure.upkeep.reservations import ReservationWatch, boot_us
from perdure.worker.capture import capturing
from perdure.worker.context import current
from perdure.worker.heartbeat import Heartbeat
from perdure.worker.lifecycle import log_released, log_reserved
from perdure.worker.liveness import ProcLiveness
from perdure.worker.loop import NAP_S, SETTLE_S
from perdure.worker.node import Node
from perdure.worker.options import Parts, WorkerOptions
from perdure.worker.run import Inbox
from perdure.worker.signals import Stop
from perdure.worker.worker import Pools

if TYPE_CHECKING:
    from perdure.app import Perdure

FIRST_PAUSE_S = 0.002
LONGEST_PAUSE_S = 0.1
"""Between two looks whether the queue is free, at first and at most."""
RENEWALS = 3
"""How often `keep` renews within the time for which it is reserved."""
LONGEST_S = 10**8
INNER = frozenset(("looks", "reservation_id"))
"""What a reservation has for the package's own parts; users are not shown it."""

logger = logging.getLogger("perdure.worker")


def queue_text(queue: str) -> str:
    """A queue as messages name it."""
    return "every queue" if queue == EVERY_QUEUE else f"queue {queue!r}"


class Reservation:
    """A queue held for direct work, from `with app.reserve("gpu") as r:` to the end of the block. One use.

    While it is held no job of the queue runs anywhere, and none starts. It is over when the block ends, when this
    process has died, or when `expires` seconds have passed without `renew`: then jobs of the queue may run again beside
    the code of the block, which is not stopped. `check` tells it.
    """

    def __init__(self, app: Perdure, queue: str, wait: Span | None, expires: Span, by: str | None) -> None:
        must_be = "seconds, not negative, a timedelta, or None to wait for ever"
        self._wait_s = math.inf if wait is None else check_span(wait, "wait", 0, LONGEST_S, must_be=must_be)
        must_be = "seconds, more than 0, or a timedelta"
        lasts_s = check_span(expires, "expires", ABOVE_ZERO, LONGEST_S, must_be=must_be)
        self.queue = check_name(queue, "queue")
        """Its name; `*` for every queue."""
        _check_not_own(self.queue)
        self._app = app
        self._lasts_us = max(1, round(lasts_s * 1_000_000))
        self._liveness = ProcLiveness()
        process = self._liveness.own()
        self._id = ReservationId(app.ids.new())
        now, until = app.clock.now(), self._until()
        self.by = check_name(by, "by", KEY_LIMIT) if by is not None else _holder(process.host, process.pid)
        """Who holds it, for people."""
        self._row = ReservationRow(self._id, self.queue, self.by, ACTIVE, now, None, *until, **process._asdict())
        self._held = until
        self._is_used = self._is_taken = False

    @property
    def id(self) -> UUID:
        """As `app.reservations()` and `perdure reservations` list it."""
        return to_uuid(self._id)

    @property
    def reservation_id(self) -> ReservationId:
        """The same as the store knows it."""
        return self._id

    @property
    def expires_at(self) -> datetime:
        """When it ends without another renewal."""
        return to_datetime(self._held.expires_at)

    # -- taking it ---------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        looks = self.looks()
        try:
            for pause in looks:
                self._app.clock.wait(pause)
        except BaseException:
            self.release()
            raise
        return self

    def looks(self) -> Iterator[float]:
        """Takes it: yields the pause before each further look, and ends when it is held. ReservationBusy: time is up.

        Whoever gives up in between has to release it. What makes it impossible is raised at once, by the call itself.
        """
        self._begin()
        return self._looks()

    def _looks(self) -> Iterator[float]:
        watch = ReservationWatch(self._app.store, self._app.clock, self._liveness)
        deadline, pause = self._app.clock.boottime() + self._wait_s, FIRST_PAUSE_S
        while (obstacle := self._obstacle(watch)) is not None:
            left = deadline - self._app.clock.boottime()
            if left <= 0:
                raise ReservationBusy(
                    f"{queue_text(self.queue)} could not be reserved within {self._wait_s:g} s: {obstacle}; try again"
                    " later, or wait for longer (wait=)"
                )
            yield min(pause, left)
            pause = min(pause * 1.5, LONGEST_PAUSE_S)

    def _begin(self) -> None:
        if self._is_used:
            raise PerdureError(
                "this reservation was used before; make another with app.reserve(…)", code="reservation_used"
            )
        if self._app.store.in_transaction:
            raise TransactionError(
                "a queue cannot be reserved inside app.transaction(): workers would not see it before the commit;"
                " reserve it around the transaction",
                code="reserve_in_transaction",
            )
        self._is_used = True

    def _obstacle(self, watch: ReservationWatch) -> str | None:
        """What is in the way. None: it is held, and nothing of the queue runs."""
        if not self._is_taken:
            obstacle = self._take(watch)
            if obstacle is not None:
                return obstacle
        until = self._until()
        if self._app.store.enter_reservation(self._id, until, self._app.clock.now()):
            self._held = until
            return None
        self.keep()
        return "a job still runs" if self.queue == EVERY_QUEUE else "a job of it still runs"

    def _take(self, watch: ReservationWatch) -> str | None:
        until = self._until()
        row = self._row._replace(reserved_at=self._app.clock.now(), **until._asdict())
        try:
            other = self._app.store.reserve(row)
            if other is not None and watch.close_over([other]):
                other = self._app.store.reserve(row)
        except Locked as error:
            return str(error)
        if other is not None:
            return f"{queue_text(other.queue)} is reserved by {other.reserved_by} until {moment(other.expires_at)}"
        self._is_taken, self._held = True, until
        log_reserved(row)
        return None

    def _until(self) -> Until:
        """From now on for as long as it was asked for."""
        clock = self._app.clock
        return Until(Micros(clock.now() + self._lasts_us), boot_us(clock) + self._lasts_us, self._lasts_us)

    # -- while it is held --------------------------------------------------------------------------------------------

    def check(self) -> None:
        """ReservationExpired: its time is over, and jobs of the queue may run beside this code, now or soon."""
        if boot_us(self._app.clock) >= self._held.expires_boot:
            raise over(self._id)
        if all(row.id != self._id for row in self._app.store.active_reservations()):
            raise over(self._id)

    def renew(self) -> None:
        """Hold it for another `expires` seconds from now. ReservationExpired: it is over already."""
        until = self._until()
        if not self._app.store.renew_reservation(self._id, until):
            raise over(self._id)
        self._held = until

    def keep(self) -> None:
        """Renew it, once a third of its time has passed. It may be called as often as you like."""
        if boot_us(self._app.clock) >= self._held.expires_boot - self._lasts_us * (RENEWALS - 1) // RENEWALS:
            self.renew()

    def release(self) -> None:
        """End it: the queue continues. Once it is over this changes nothing."""
        if self._is_used and self._app.store.close_reservation(self._id, RELEASED, self._app.clock.now()):
            log_released(self._row)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __dir__(self) -> list[str]:
        return public(super().__dir__(), INNER)


def _check_not_own(queue: str) -> None:
    ctx = current()
    if ctx is not None and queue in (ctx.claim.live.queue, EVERY_QUEUE):
        raise InvalidOption(
            f"a job of queue {ctx.claim.live.queue!r} reserves {queue_text(queue)}, and would wait for its own end;"
            " give it another queue, or reserve outside of jobs",
            code="reserve_own_queue",
            option="queue",
        )


def _holder(host: str | None, pid: int | None) -> str:
    """Who reserves, for people."""
    ctx = current()
    return f"process {pid} on {host}" if ctx is None else f"job {ctx.job_id} in process {pid} on {host}"


# -- what was reserved -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReservationRecord:
    """A reservation as it was when it was read. `queue`: `*` means every queue. `status`: active, released or expired.

    `entered_at` None: it waited for running jobs, and the work of its holder did not begin.
    """

    id: UUID
    queue: str
    by: str
    status: str
    reserved_at: datetime
    entered_at: datetime | None
    expires_at: datetime
    closed_at: datetime | None
    host: str | None
    pid: int | None


def list_reservations(app: Perdure, limit: int) -> list[ReservationRecord]:
    return [record_of(row) for row in app.store.reservations(limit)]


def record_of(row: ReservationRow) -> ReservationRecord:
    return ReservationRecord(
        id=to_uuid(row.id),
        queue=row.queue,
        by=row.reserved_by,
        status=row.status,
        reserved_at=to_datetime(row.reserved_at),
        entered_at=None if row.entered_at is None else to_datetime(row.entered_at),
        expires_at=to_datetime(row.expires_at),
        closed_at=None if row.closed_at is None else to_datetime(row.closed_at),
        host=row.host,
        pid=row.pid,
    )


# -- one job, here and now -------------------------------------------------------------------------------------------


def run_direct(app: Perdure, draft: Draft, wait: Span | None, expires: Span) -> Job:
    """See `app.run_direct`."""
    if draft.options.tx is not None:
        raise InvalidOption("run_direct takes no tx=: the job runs at once, and not after your commit", option="tx")
    new = app.new_jobs([draft])[0]
    if new.state == State.HELD:  # direct work is limited by its reservation alone
        new = new._replace(state=State.QUEUED.value, plan=new.plan._replace(limit_key=None))
    if new.state != State.QUEUED:
        raise InvalidOption(
            f"run_direct runs a job now, and this one would be {new.state}; leave out delay= and run_at=, or"
            " enqueue it",
            code="direct_later",
        )
    queue = new.plan.queue
    with Reservation(app, queue, wait, expires, None) as reservation:
        return _DirectRun(app, reservation).run(new)


class _DirectRun:
    """One job under a node that claims nothing else. The reservation is renewed as long as the job runs."""

    def __init__(self, app: Perdure, reservation: Reservation) -> None:
        self._app = app
        self._reservation = reservation
        self._parts: Parts = app.parts()
        self._rung = threading.Event()
        inbox = Inbox(self._rung.set)
        self._pools = Pools(inbox)
        config = app.config
        # No queues: nobody should count it among the workers that could run what waits.
        options = WorkerOptions(queues=(), concurrency=1, lease_s=config.lease_s, busy_timeout_s=config.busy_timeout_s)
        self._lease_us = round(options.lease_s * 1_000_000)
        self._node = Node(self._parts, options, self._pools, inbox)
        self._node.accepting = False
        self._is_over = False
        self._heartbeat = Heartbeat(self._node, self._parts, options, self._give_up, also=[self._keep])

    def run(self, new: NewJob) -> Job:
        with capturing():
            self._node.register()
            self._heartbeat.start()
            try:
                return self._run(new)
            finally:
                self._pools.close(SETTLE_S)
                self._heartbeat.stop()
                if not self._node.held:  # else others must see this process end first
                    self._node.sign_off()

    def _run(self, new: NewJob) -> Job:
        run_id = RunId(self._parts.ids.new())
        claimer = Claimer(self._node.id, None, [run_id], self._lease_us)
        job, claim = self._app.store.start_reserved(
            new, self._reservation.reservation_id, claimer, self._parts.clock.now()
        )
        if claim is None:
            return job
        try:
            self._node.begin([claim])
            self._drain(math.inf)
        except BaseException:
            self._node.interrupt_all(Stop.SHUTDOWN)
            self._drain(self._parts.clock.boottime() + SETTLE_S)
            raise
        return self._app.existing(job)

    def _drain(self, deadline: float) -> None:
        """Until the run has ended and its end is written."""
        while not self._node.is_empty and self._parts.clock.boottime() < deadline:
            self._rung.clear()
            pause = self._node.turn()
            if not self._node.is_empty:
                self._rung.wait(min(pause, NAP_S))

    def _keep(self) -> None:
        """Once it is lost, the job goes on: it is this node's, whoever else runs jobs of the queue."""
        if self._is_over:
            return
        try:
            self._reservation.keep()
        except ReservationExpired as error:
            self._is_over = True
            logger.warning("the job goes on without the reservation of its queue: %s", error)

    def _give_up(self) -> None:
        """The database does not answer, and others may take the job: stop it."""
        self._heartbeat.stop_beating()
        self._node.interrupt_all(Stop.LOST)
