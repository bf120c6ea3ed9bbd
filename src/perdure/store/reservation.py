"""Queues held for direct work: reserve, enter, renew, close, and the holder's own job. Called through `store`.

The lock that claims respect is `reserved_until` in the queue's row: while it is set, no claim takes a job of it. The
row in `reservation` says whose it is. Both are written together, here only.
"""

from __future__ import annotations

from perdure.clock import Micros
from perdure.errors import PerdureError, ReservationExpired
from perdure.ids import ReservationId, to_uuid
from perdure.job import transitions
from perdure.job.model import Claim, NewJob, readable
from perdure.job.views import Job
from perdure.store import read
from perdure.store.engine import Call, Op
from perdure.store.enqueue import enqueue
from perdure.store.rows import EVERY_QUEUE, Claimer, ReservationRow, Until
from perdure.store.write import open_runs, ring

ACTIVE, RELEASED, EXPIRED = "active", "released", "expired"


def reserve(new: ReservationRow) -> Op[ReservationRow | None]:
    """Close the queue to claims. None: done; otherwise the active reservation that is in the way."""
    yield Call("lock_reservations")
    rows = (yield Call("reservation_in_the_way", {"queue": new.queue})).rows
    if rows:
        found = readable(ReservationRow, rows[0])[0]
        return None if found.id == new.id else found
    yield Call("ensure_queue", {"queue": new.queue})
    yield Call("lock_out_claims")
    yield Call("set_queue_reservation", {"queue": new.queue, "reserved_until": new.expires_at})
    yield Call("insert_reservation", new._asdict())
    return None


def enter(reservation_id: ReservationId, until: Until, now: Micros) -> Op[bool | PerdureError]:
    """The holder's work begins. False: a job of the queue still runs."""
    row = yield from _active(reservation_id)
    if row is None:
        return over(reservation_id)
    if (yield Call("any_running", {"queue": row.queue})).rows:
        return False
    yield Call("enter_reservation", {"id": reservation_id, "entered_at": now})
    yield from _extend(row, until)
    return True


def renew(reservation_id: ReservationId, until: Until) -> Op[bool]:
    """False: it is closed."""
    row = yield from _active(reservation_id)
    if row is None:
        return False
    yield from _extend(row, until)
    return True


def close(reservation_id: ReservationId, status: str, now: Micros, seen_expires_at: Micros | None = None) -> Op[bool]:
    """Open its queue again. False: it is closed already, or was renewed since `seen_expires_at` was read."""
    row = yield from _active(reservation_id)
    if row is None or (seen_expires_at is not None and row.expires_at != seen_expires_at):
        return False
    yield Call("close_reservation", {"id": reservation_id, "status": status, "closed_at": now})
    yield Call("set_queue_reservation", {"queue": row.queue, "reserved_until": None})
    yield from ring([row.queue])
    return True


def active() -> Op[list[ReservationRow]]:
    """Those that close a queue now."""
    return [readable(ReservationRow, row)[0] for row in (yield Call("active_reservations")).rows]


def newest(limit: int) -> Op[list[ReservationRow]]:
    """The newest first, closed ones too."""
    return [readable(ReservationRow, row)[0] for row in (yield Call("list_reservations", {"page": limit})).rows]


def start_job(
    new: NewJob, reservation_id: ReservationId, claimer: Claimer, now: Micros
) -> Op[tuple[Job, Claim | None] | PerdureError]:
    """Enqueue a job and claim it at once, for the holder of its queue.

    It goes to the back of the queue like any other, and from there past the others: their order is as it was.
    """
    row = yield from _active(reservation_id)
    if row is None or row.queue not in (new.plan.queue, EVERY_QUEUE):
        return over(reservation_id)
    jobs = yield from enqueue([new])
    if isinstance(jobs, PerdureError):
        return jobs
    if jobs[0].deduplicated:
        return jobs[0], None
    live = yield from read.live(new.id)
    assert live is not None  # it was inserted in this transaction
    running = transitions.claim(live, claimer.run_ids[0], claimer.node_id, now, claimer.lease_us)
    plan = new.plan
    shown = (plan.params, plan.options, plan.principal, plan.owner)
    claim = Claim(running, new.payload, new.secrets, *shown, new.created_at)
    yield from open_runs([claim], claimer.node_id, now)
    return jobs[0], claim


def over(reservation_id: ReservationId) -> ReservationExpired:
    return ReservationExpired(
        f"reservation {to_uuid(reservation_id)} is closed: its time was over, and jobs of the queue may run again;"
        " renew it in time, or reserve for longer (expires=)"
    )


def _active(reservation_id: ReservationId) -> Op[ReservationRow | None]:
    """Locked, where rows are. None: it is closed, or never was."""
    rows = (yield Call("read_reservation", {"id": reservation_id})).rows
    row = readable(ReservationRow, rows[0])[0] if rows else None
    return row if row is not None and row.status == ACTIVE else None


def _extend(row: ReservationRow, until: Until) -> Op[None]:
    yield Call("extend_reservation", {"id": row.id, **until._asdict()})
    yield Call("set_queue_reservation", {"queue": row.queue, "reserved_until": until.expires_at})
