"""Schedules and their slots: when jobs are made by the clock, each planned instant once. Called through `store`.

A schedule's row is the lock of its slots: an instant is taken only together with a change of that row, or while it is
held. What a schedule means is decided outside (`perdure.schedule`); here is only what must be one transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

from perdure.clock import Micros
from perdure.errors import PerdureError, ScheduleError, TransitionRefused
from perdure.ids import JobId, NodeId, to_uuid
from perdure.job.flow import Edge
from perdure.job.model import NewJob, readable
from perdure.job.views import Job
from perdure.store import read
from perdure.store.engine import RELEASE, ROLLBACK_TO, SAVEPOINT, Call, Op, UniqueViolation
from perdure.store.enqueue import enqueue
from perdure.store.rows import Fired, Firing, Missed, NewSlot, ScheduleRow, SlotRow

UPKEEP_RUNNING = "running"
"""The status of a slot while a worker's own upkeep is at it."""


def save_schedule(row: ScheduleRow, seen_version: int | None, missed: Sequence[Missed] = ()) -> Op[bool]:
    """Insert a schedule (no version seen), or replace the one with this id, and record what it has missed.

    False: someone else was faster, and nothing was written.
    """
    if seen_version is None:
        return (yield from _insert(row))
    if not (yield Call("update_schedule", (*row[1:], row.id, seen_version))).changed:
        return False
    yield from _record(row.id, missed)
    return True


def _insert(row: ScheduleRow) -> Op[bool]:
    yield SAVEPOINT
    try:
        yield Call("insert_schedule", row)
    except UniqueViolation:
        yield ROLLBACK_TO
        yield RELEASE
        return False
    yield RELEASE
    return True


def schedule(name: str) -> Op[ScheduleRow | None]:
    """The schedule of this name, disabled ones too. None: there is none."""
    rows = (yield Call("read_schedule", {"name": name})).rows
    return readable(ScheduleRow, rows[0])[0] if rows else None


def schedule_by_id(schedule_id: bytes) -> Op[ScheduleRow | None]:
    """The same by its id, which stays when it is renamed."""
    rows = (yield Call("read_schedule_by_id", {"id": schedule_id})).rows
    return readable(ScheduleRow, rows[0])[0] if rows else None


def schedules(after: str, size: int) -> Op[list[ScheduleRow]]:
    """Up to `size` schedules in the order of their names, from behind the name `after`."""
    rows = (yield Call("list_schedules", {"after_name": after, "page": size})).rows
    return [readable(ScheduleRow, row)[0] for row in rows]


def declared_schedules(owner: str) -> Op[list[ScheduleRow]]:
    """The enabled schedules that the code of this app has declared."""
    rows = (yield Call("list_declared_schedules", {"owner": owner})).rows
    return [readable(ScheduleRow, row)[0] for row in rows]


def due_schedules(now: Micros, limit: int) -> Op[list[ScheduleRow]]:
    """Enabled schedules whose next instant has come, the longest due first."""
    rows = (yield Call("due_schedules", {"now": now, "page": limit})).rows
    return [readable(ScheduleRow, row)[0] for row in rows]


def schedules_in_trouble(late: Micros, limit: int) -> Op[list[ScheduleRow]]:
    """Enabled schedules, by name, that have a problem, or whose next instant was due at `late` or before."""
    rows = (yield Call("schedules_in_trouble", {"late": late, "page": limit})).rows
    return [readable(ScheduleRow, row)[0] for row in rows]


def next_trigger() -> Op[Micros | None]:
    """When the next instant of any enabled schedule comes. None: nothing is planned."""
    return cast("Micros | None", (yield Call("next_trigger")).rows[0][0])


# -- firing ----------------------------------------------------------------------------------------------------------


class _Taken(NamedTuple):
    """A slot to be written, with the job that its own job waits for."""

    schedule_id: bytes
    slot: NewSlot
    before: JobId | None


def fire(firings: Sequence[Firing], node_id: NodeId | None, now: Micros) -> Op[list[Fired]]:
    """Take the due instants of these schedules: slots, jobs, and the next instant, for each of them all or nothing.

    What they make is written for all of them together, so that each costs 3 round trips of its own.
    """
    fired: list[Fired] = []
    taken: list[_Taken] = []
    for firing in firings:
        one = yield from _fire(firing, taken, now)
        fired.append(one)
    yield from _write(taken, node_id, now)
    return fired


def _fire(firing: Firing, taken: list[_Taken], now: Micros) -> Op[Fired]:
    """Move the schedule on, and add to `taken` what is to be written for it."""
    seen = firing.schedule
    advanced = {
        "next_at": firing.next_at,
        "last_at": max((slot.scheduled_for for slot in firing.slots), default=None),
        "problem": firing.problem,
        "id": seen.id,
        "expected": seen.version,
        "seen": seen.next_trigger_at,
    }
    if not (yield Call("advance_schedule", advanced)).changed:
        return Fired(applied=False)
    own: list[_Taken] = []
    overlapped: list[Micros] = []
    for slot in firing.slots:
        if (yield from _read_slot(seen.id, slot.scheduled_for)) is not None:
            continue  # taken by hand before its time
        before = yield from _live_before(seen.id, slot, own)
        if before is not None and slot.overlap == "skip":
            overlapped.append(slot.scheduled_for)
            continue
        own.append(_Taken(seen.id, slot, before))
    yield from _record(seen.id, firing.missed)
    for slot in firing.slots:
        if slot.scheduled_for in overlapped:
            yield from _record_overlap(seen.id, slot, now)
    taken += own
    jobs = tuple(one.slot.job.id for one in own if one.slot.job is not None)
    instants = tuple(one.slot.scheduled_for for one in own)
    return Fired(applied=True, jobs=jobs, slots=instants, overlapped=tuple(overlapped))


def _record(schedule_id: bytes, missed: Sequence[Missed]) -> Op[None]:
    if missed:
        yield Call("insert_missed", [(schedule_id, *stretch) for stretch in missed])


def _record_overlap(schedule_id: bytes, slot: NewSlot, now: Micros) -> Op[None]:
    """Together with the instant before it, if that was skipped for the same reason: a job that hangs for a day leaves
    one row, not one for each instant."""
    rows = (yield Call("newest_missed", {"schedule_id": schedule_id})).rows
    known = Missed._make(rows[0]) if rows else None
    if known is None or (known.reason, known.last_at) != ("overlap", slot.previous_at):
        yield from _record(schedule_id, [Missed(slot.scheduled_for, slot.scheduled_for, 1, "overlap", now)])
        return
    longer = {"last_at": slot.scheduled_for, "first_at": known.first_at, "recorded_at": known.recorded_at}
    yield Call("lengthen_missed", longer | {"schedule_id": schedule_id})


def _live_before(schedule_id: bytes, slot: NewSlot, unwritten: Sequence[_Taken] = ()) -> Op[JobId | None]:
    """The newest job of the schedule that has not ended, locked, if the slot asks for it."""
    if slot.job is None or slot.overlap == "allow":
        return None
    if unwritten and unwritten[-1].slot.job is not None:
        return unwritten[-1].slot.job.id
    rows = (yield Call("live_of_schedule", {"schedule_id": schedule_id})).rows
    if not rows or (yield from read.live(rows[0][0])) is None:
        return None
    return cast("JobId", rows[0][0])


def _write(taken: Sequence[_Taken], node_id: NodeId | None, now: Micros) -> Op[list[Job]]:
    """Insert these slots and their jobs, each of which waits for the job before it."""
    new = [_in_line(one.slot.job, one.before) for one in taken if one.slot.job is not None]
    jobs = (yield from enqueue(new)) if new else []
    assert not isinstance(jobs, PerdureError)  # they have no keys that could be taken
    if taken:
        yield Call("insert_slot", [_slot_row(one, node_id, now) for one in taken])
    return jobs


def _in_line(new: NewJob, before: JobId | None) -> NewJob:
    return new if before is None else new._replace(after=(Edge(before, "end"),))


def _slot_row(taken: _Taken, node_id: NodeId | None, now: Micros) -> tuple[object, ...]:
    slot = taken.slot
    job_id, status = (None, UPKEEP_RUNNING) if slot.job is None else (slot.job.id, None)
    return (
        *(taken.schedule_id, slot.scheduled_for, slot.previous_at, slot.following_at),
        *(job_id, node_id, status, now),
    )


def take_slot(schedule_id: bytes, slot: NewSlot, now: Micros) -> Op[Job | PerdureError]:
    """Take one instant by hand, like any worker. If it is taken already, its job is returned, marked `deduplicated`."""
    rows = (yield Call("lock_schedule", {"id": schedule_id})).rows
    if not rows:
        return ScheduleError("the schedule does not exist any more", code="schedule_unknown")
    known = yield from _read_slot(schedule_id, slot.scheduled_for)
    if known is not None and known.job_id is not None:
        job = yield from read.get(known.job_id, deduplicated=True)
        return job or TransitionRefused(
            f"this slot was taken by job {to_uuid(known.job_id)}, which has been deleted; choose another instant",
            code="slot_taken",
        )
    before = yield from _live_before(schedule_id, slot)
    if before is not None and slot.overlap == "skip":
        return TransitionRefused(
            f"job {to_uuid(before)} of this schedule has not ended, and its overlap policy is skip: wait for that job,"
            " or cancel it",
            code="schedule_overlap",
        )
    [job] = yield from _write([_Taken(schedule_id, slot, before)], None, now)
    yield Call("note_trigger", {"at": slot.scheduled_for, "id": schedule_id})
    return job


# -- slots -----------------------------------------------------------------------------------------------------------


def note_slot(schedule_id: bytes, scheduled_for: Micros, status: str, note: str | None) -> Op[bool]:
    """How the upkeep that took this slot ended. False: there is no such slot."""
    params = {"status": status, "note": note, "schedule_id": schedule_id, "scheduled_for": scheduled_for}
    return (yield Call("note_slot", params)).changed == 1


def _read_slot(schedule_id: bytes, scheduled_for: Micros) -> Op[SlotRow | None]:
    rows = (yield Call("read_slot", {"schedule_id": schedule_id, "scheduled_for": scheduled_for})).rows
    return readable(SlotRow, rows[0])[0] if rows else None


def slot_of(job_id: JobId) -> Op[SlotRow | None]:
    """The slot that this job, or the job whose work it continues, was made for. None: no slot."""
    row = yield from read.get(job_id)
    if row is None or row.row.schedule_id is None or row.row.scheduled_for is None:
        return None
    return (yield from _read_slot(row.row.schedule_id, row.row.scheduled_for))


def slots(schedule_id: bytes, below: Micros, size: int) -> Op[list[SlotRow]]:
    """Up to `size` slots that were taken, newest first, from before the instant `below`."""
    rows = (yield Call("list_slots", {"schedule_id": schedule_id, "before": below, "page": size})).rows
    return [readable(SlotRow, row)[0] for row in rows]


def missed(schedule_id: bytes, below: Micros, size: int) -> Op[list[Missed]]:
    """Up to `size` stretches that nobody took, newest first, from before the instant `below`."""
    rows = (yield Call("list_missed", {"schedule_id": schedule_id, "before": below, "page": size})).rows
    return [readable(Missed, row)[0] for row in rows]


def pending_of(schedule_id: bytes, limit: int) -> Op[list[JobId]]:
    """Up to `limit` jobs of this schedule that wait."""
    return [
        job_id for (job_id,) in (yield Call("pending_of_schedule", {"schedule_id": schedule_id, "page": limit})).rows
    ]


# -- declarations ----------------------------------------------------------------------------------------------------


def declare(node_id: NodeId, digests: Mapping[str, str], now: Micros) -> Op[dict[str, set[str]]]:
    """Record which schedules the code of this node declares. Returns what the code of other live nodes declares."""
    yield Call("forget_declarations", {"node_id": node_id})
    if digests:
        yield Call("insert_declaration", [(name, node_id, digest, now) for name, digest in sorted(digests.items())])
    others: dict[str, set[str]] = {}
    for name, digest in (yield Call("list_declarations", {"node_id": node_id})).rows:
        others.setdefault(name, set()).add(digest)
    return others
