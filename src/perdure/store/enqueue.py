"""Enqueueing: new jobs with their keys (idempotency keys for ever, business keys while the job is live) and places.

Called through `store`; the rows are written by `write`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import cast

from perdure.errors import KeyConflict, PerdureError, Remedy
from perdure.ids import JobId, to_uuid
from perdure.job.model import GAP, NewJob
from perdure.job.states import FINAL, State
from perdure.job.views import Job
from perdure.store import edges, read
from perdure.store.engine import RELEASE, ROLLBACK_TO, SAVEPOINT, Call, Make, Op, Serialization
from perdure.store.write import insert, insert_one

ROUNDS = 10
"""How often a key may be found free and then be taken by someone else before we reserve it."""


def enqueue(new: Sequence[NewJob]) -> Op[list[Job] | PerdureError]:
    """Insert all of these jobs, in order, each at the back of its queue, or none of them.

    If a key is taken, the job that holds it is returned in its place, or a KeyConflict for the whole call.
    """
    if any(map(_is_bound, new)):
        return enqueue_bound(new)
    if len(new) == 1 and not is_keyed(new[0]):
        return insert_one(new[0])
    return _insert_keyed(new) if any(map(is_keyed, new)) else _insert(new)


def _is_bound(new: NewJob) -> bool:
    """Whether it waits for others, or for a condition."""
    return bool(new.after) or new.refs is not None


def enqueue_bound(
    new: Sequence[NewJob], made_with: Collection[bytes] = (), fillers: Collection[bytes] = ()
) -> Op[list[Job] | PerdureError]:
    """The same for jobs that wait for others: for jobs of the same call, flows that are `made_with` them, and any that
    exist. What has ended already is decided at once. `fillers`: those of them whose ends seal a flow."""
    parents = yield from edges.look_up(new, made_with)
    if isinstance(parents, PerdureError):
        return parents
    refusal = yield from edges.refuse_cycles(new, parents)
    if refusal is not None:
        return refusal
    waiting = yield from edges.bound(new, parents, fillers)
    ready = [one.new for one in waiting]
    jobs = yield from (_insert_keyed(ready) if any(map(is_keyed, ready)) else _insert(ready))
    if isinstance(jobs, PerdureError):
        return jobs
    return (yield from edges.write(waiting, parents, jobs, new[0].created_at))


def insert_members(new: Sequence[NewJob]) -> Op[PerdureError | None]:
    """The same for jobs that a flow counts: a key that is taken by another job is refused."""
    if any(map(_is_bound, new)) or any(map(is_keyed, new)):
        enqueued = yield from enqueue_bound(new)
        return enqueued if isinstance(enqueued, PerdureError) else None
    yield from insert(new, (yield from _positions(new)))
    return None


class OneJob:
    """Starts the operation that inserts one job without keys. It waits for nobody else's key, so callers who come at
    the same time may share a transaction: see `insert_together`."""

    __slots__ = ("new",)

    def __init__(self, new: NewJob) -> None:
        self.new = new

    def __call__(self) -> Op[list[Job]]:
        return insert_one(self.new)


def starting(new: Sequence[NewJob]) -> Make[list[Job] | PerdureError]:
    """What starts `enqueue`."""
    alone = len(new) == 1 and not is_keyed(new[0]) and not _is_bound(new[0])
    return OneJob(new[0]) if alone else partial(enqueue, new)


def insert_together(several: Sequence[OneJob]) -> Op[list[Job]]:
    """Insert the jobs of several callers."""
    return _insert([one.new for one in several])


def _insert_keyed(new: Sequence[NewJob]) -> Op[list[Job] | KeyConflict]:
    yield SAVEPOINT
    jobs: list[Job] | KeyConflict
    if (yield from reserve(new)):
        jobs = yield from _insert(new)
    else:
        yield ROLLBACK_TO
        jobs = yield from _insert_one_by_one(new)
    yield RELEASE
    return jobs


def _insert_one_by_one(new: Sequence[NewJob]) -> Op[list[Job] | KeyConflict]:
    jobs: list[Job] = []
    for wanted in new:
        job = yield from _insert_or_find(wanted)
        if isinstance(job, KeyConflict):
            yield ROLLBACK_TO
            return job
        jobs.append(job)
    return jobs


def _insert_or_find(new: NewJob) -> Op[Job | KeyConflict]:
    """A free key may be taken by another before it is reserved (on a server): the next round finds that job."""
    for _ in range(ROUNDS):
        found = yield from find(new)
        if found is not None:
            return found
        yield SAVEPOINT
        if (yield from reserve([new])):
            inserted = yield from insert_one(new)
            yield RELEASE
            return inserted[0]
        yield ROLLBACK_TO
        yield RELEASE
    raise Serialization(f"{ROUNDS} times a key was free and then taken before it was reserved; nothing was written")


def _insert(new: Sequence[NewJob]) -> Op[list[Job]]:
    positions = yield from _positions(new)
    yield from insert(new, positions)
    return list(map(Job.fresh, new, positions))


def _positions(new: Sequence[NewJob]) -> Op[list[int]]:
    """A place for each, at the back of its queue, in the order given."""
    counts = Counter([job.plan.queue for job in new])
    places: dict[str, Iterator[int]] = {}
    for queue, count in sorted(counts.items()):
        places[queue] = iter((yield from take_places(queue, count)))
    return [next(places[job.plan.queue]) for job in new]


def take_places(queue: str, count: int) -> Op[Sequence[int]]:
    """Rising places at the back of a queue. A counter gives a whole range; a sequence gives each one separately."""
    room = count * GAP
    taken = yield Call("take_places", {"queue": queue, "room": room})
    if not taken.changed:
        taken = yield Call("make_queue_with_room", {"queue": queue, "room": room})
    rows = taken.rows or (yield Call("read_next_position", {"queue": queue})).rows
    ends = [cast("int", row[0]) for row in rows]
    if len(ends) == count:
        return [end - GAP for end in ends]
    return range(ends[0] - count * GAP, ends[0], GAP)


def take_place(queue: str) -> Op[int]:
    """One place at the back of a queue."""
    return (yield from take_places(queue, 1))[0]


def is_keyed(new: NewJob) -> bool:
    return new.idempotency_key is not None or new.business_key is not None


def reserve(new: Sequence[NewJob]) -> Op[bool]:
    """Take every key of these jobs. False: some were taken already, and the caller must roll back.

    An idempotency key is taken under every name of its kind: another release of the program that knows only one of them
    finds it taken. Keys are taken in their own order, not in that of the jobs: else two callers with the same keys
    could wait for each other (servers).
    """
    ledger = [
        (name, job.idempotency_key, job.id, job.plan.kind_version, job.fingerprint, job.created_at)
        for job in new
        if job.idempotency_key is not None
        for name in job.plan.names
    ]
    if ledger and (yield Call("reserve_idempotency_key", sorted(ledger))).changed != len(ledger):
        return False
    live = [(job.business_key, job.id) for job in new if job.business_key is not None]
    return not live or (yield Call("reserve_business_key", sorted(live))).changed == len(live)


def find(new: NewJob) -> Op[Job | KeyConflict | None]:
    """The job that holds one of this job's keys, or the KeyConflict if the caller wants that. None: all are free."""
    if new.idempotency_key is not None:
        original = yield from _find_original(new, new.idempotency_key)
        if original is not None:
            return original
    if new.business_key is not None:
        return (yield from _find_holder(new, new.business_key))
    return None


def _find_original(new: NewJob, key: str) -> Op[Job | KeyConflict | None]:
    for kind in new.plan.names:
        rows = (yield Call("read_idempotency_key", {"kind": kind, "key": key})).rows
        if rows:
            job_id, version, fingerprint, final_state = cast("tuple[JobId, int, str, str | None]", rows[0])
            if version == new.plan.kind_version and fingerprint != new.fingerprint:
                return KeyConflict(
                    f"idempotency key {key!r} of kind {new.plan.kind!r} was used for job {to_uuid(job_id)} with other"
                    " arguments; use a new key for new work, or pass the same arguments to get that job back",
                    code="idempotency_mismatch",
                )
            job = yield from read.get(job_id, deduplicated=True)
            return job or Job.pruned(job_id, new, State(final_state or State.COMPLETED))
    return None


def _find_holder(new: NewJob, key: str) -> Op[Job | KeyConflict | None]:
    holder = yield from holder_of(key)
    if holder is None or new.plan.conflict == "return":
        return holder
    return business_key_taken(key, holder.row.id)


def holder_of(key: str) -> Op[Job | None]:
    """The live job that holds a business key. None: it can be reserved. A key whose job is not live is freed here."""
    rows = (yield Call("read_business_key", {"key": key})).rows
    if not rows:
        return None
    job_id = cast("JobId", rows[0][0])
    holder = yield from read.get(job_id, deduplicated=True)
    if holder is None or holder.row.state in FINAL:
        yield Call("free_orphaned_business_key", {"key": key, "job_id": job_id})
        return None
    return holder


def business_key_taken(key: str, holder: JobId) -> KeyConflict:
    job_id = to_uuid(holder)
    return KeyConflict(
        f"business key {key!r} is held by live job {job_id}",
        code="business_key_taken",
        remedy=Remedy(
            'wait for it, supersede it, or enqueue with conflict="return" to get that job',
            f"wait until it has ended, or cancel it with perdure cancel {job_id}{{database}}",
        ),
    )
