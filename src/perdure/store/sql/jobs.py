"""Enqueueing: new jobs into the database. Called through `store`, built by `app`; the keys are in `keys`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from perdure.errors import KeyConflict
from perdure.job.job import Job
from perdure.job.model import LiveJob, NewJob
from perdure.job.ordering import GAP
from perdure.store.sql import keys
from perdure.store.sql.engine import RELEASE, ROLLBACK_TO, SAVEPOINT, Call, Op


def insert(new: Sequence[NewJob]) -> Op[list[Job] | KeyConflict]:
    """Insert all of these jobs, in order, each at the back of its queue, or none of them.

    A job whose key is taken is answered by the job that holds it, or the whole call by the conflict.
    """
    if not any(map(keys.is_keyed, new)):
        return (yield from _insert(new))
    yield SAVEPOINT
    answers: list[Job] | KeyConflict
    if not any(map(keys.is_renamed, new)) and (yield from keys.reserve(new)):
        answers = yield from _insert(new)
    else:
        yield ROLLBACK_TO
        answers = yield from _insert_one_by_one(new)
    yield RELEASE
    return answers


def _insert_one_by_one(new: Sequence[NewJob]) -> Op[list[Job] | KeyConflict]:
    answers: list[Job] = []
    for job in new:
        answer = yield from _insert_keyed(job)
        if isinstance(answer, KeyConflict):
            yield ROLLBACK_TO
            return answer
        answers.append(answer)
    return answers


def _insert_keyed(new: NewJob) -> Op[Job | KeyConflict]:
    """A key found free may be taken before it is reserved (on a server): then whoever took it is found next time."""
    while True:
        found = yield from keys.find(new)
        if found is not None:
            return found
        yield SAVEPOINT
        if (yield from keys.reserve([new])):
            inserted = yield from _insert([new])
            yield RELEASE
            return inserted[0]
        yield ROLLBACK_TO
        yield RELEASE


def _insert(new: Sequence[NewJob]) -> Op[list[Job]]:
    placed = yield from _placed(new)
    if len(new) == 1:
        yield Call("insert_job", new[0].row)
        yield Call("insert_ready", placed[0])
    else:
        yield Call("insert_job", [job.row for job in new])
        yield Call("insert_ready", placed)
    tags = [(job.row.id, tag) for job in new for tag in job.tags]
    if tags:
        yield Call("insert_tag", tags)
    return [Job.fresh(job, live[6]) for job, live in zip(new, placed, strict=True)]


def _placed(new: Sequence[NewJob]) -> Op[list[LiveJob]]:
    """The live rows with their positions: one counter step per queue, then in the order they were given."""
    rooms: dict[str, int] = {}
    for job in new:
        rooms[job.live.queue] = rooms.get(job.live.queue, 0) + GAP
    following: dict[str, int] = {}
    for queue, room in sorted(rooms.items()):
        following[queue] = (yield from allocate(queue, room)) - room
    placed: list[LiveJob] = []
    for job in new:
        live = job.live
        position = following[live.queue]
        following[live.queue] = position + GAP
        # slices: _replace costs four times as much, and this is the inner loop of enqueue_many
        placed.append(LiveJob._make((*live[:6], position, *live[7:])))
    return placed


def allocate(queue: str, room: int) -> Op[int]:
    """Take `room` worth of places at the back of a queue; answers the first position after them."""
    rows = (yield Call("allocate_positions", {"queue": queue, "room": room})).rows
    return cast("int", rows[0][0])
