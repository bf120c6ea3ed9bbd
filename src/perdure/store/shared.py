"""Single enqueues that share a commit on a server: those that come at the same time, from many threads or tasks, are
one transaction. Used by `server`; who leads and who waits is decided by `group`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from perdure.errors import DatabaseBusy, DatabaseUnavailable
from perdure.job.model import NewJob
from perdure.job.views import Job
from perdure.store import read
from perdure.store.engine import Make, Op, UniqueViolation
from perdure.store.enqueue import OneJob, insert_together
from perdure.store.group import GroupCommit, Member

ALONE = 4
"""So many callers at once have a transaction each; who comes then shares one. A few transactions side by side are
committed sooner than one after the other; many are not."""

Write = Callable[[Make[Any]], Any]
"""Runs an operation in its own transaction, again where that is safe, and returns when it is durable."""


class _Asked:
    """What a caller wants, and how it is written."""

    def __init__(self, one: OneJob, write: Write) -> None:
        self.one = one
        self.write = write

    def __call__(self) -> Op[list[Job]]:
        return self.one()


class SharedEnqueues:
    """The callers of one process. Only those of one queue share: a new queue may have to wait for whoever is making it.

    It does not keep its runner, whose connections are closed as soon as nobody uses it: each caller brings `write`.
    """

    def __init__(self) -> None:
        self._alone: set[OneJob] = set()
        self._lanes: defaultdict[str, _Lane] = defaultdict(_Lane)

    def submit(self, one: OneJob, write: Write) -> list[Job]:
        lane = self._lanes[one.new.plan.queue]
        if self._is_crowded(lane):
            return lane.submit(_Asked(one, write))
        try:
            self._alone.add(one)
            return cast("list[Job]", write(one))
        finally:
            self._alone.discard(one)

    async def asubmit(self, one: OneJob, write: Write) -> list[Job]:
        """The same for a coroutine: no thread waits for it, unless it leads or is alone."""
        from asyncio import to_thread

        lane = self._lanes[one.new.plan.queue]
        if self._is_crowded(lane):
            return await lane.asubmit(_Asked(one, write))
        try:
            self._alone.add(one)
            return cast("list[Job]", await to_thread(write, one))
        finally:
            self._alone.discard(one)

    def _is_crowded(self, lane: _Lane) -> bool:
        return len(self._alone) >= ALONE or lane.is_busy


class _Lane(GroupCommit):
    """One transaction at a time, of all who came meanwhile."""

    def __init__(self) -> None:
        super().__init__(self._run_group)

    def _run_group(self, group: list[Member[Any]]) -> None:
        self.fill(group)
        fresh = [member for member in group if not member.begun]
        for member in group:
            if member.begun:
                _write_alone(member, again=True)
            member.begun = True
        if len(fresh) > 1:
            _write_together(fresh)
        for member in fresh:
            if not member.answered:
                _write_alone(member)


def _write_together(members: list[Member[Any]]) -> None:
    """In one transaction. If one of them cannot be written nobody is answered: each has to be written by itself."""
    asked = [cast("_Asked", member.make) for member in members]
    try:
        jobs = asked[0].write(partial(insert_together, [each.one for each in asked]))
    except (DatabaseBusy, DatabaseUnavailable) as error:  # nobody's own fault
        for member in members:
            member.fail(error)
    except Exception:  # noqa: BLE001 - whose it is will show
        return
    else:
        for member, job in zip(members, jobs, strict=True):
            _answer(member, [job])


def _write_alone(member: Member[Any], *, again: bool = False) -> None:
    """`again`: its leader was interrupted, perhaps after the commit; then the job is there."""
    asked = cast("_Asked", member.make)
    try:
        try:
            jobs = asked.write(asked.one)
        except UniqueViolation:
            if not again:
                raise
            jobs = asked.write(partial(_as_it_is, asked.one.new))
    except Exception as error:  # noqa: BLE001 - any error goes to the member's caller
        member.fail(error)
    else:
        _answer(member, jobs)


def _answer(member: Member[Any], jobs: list[Job]) -> None:
    member.answer, member.answered = jobs, True


def _as_it_is(new: NewJob) -> Op[list[Job]]:
    return [(yield from read.get(new.id)) or Job.fresh(new, 0)]
