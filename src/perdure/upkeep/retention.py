"""Built-in work by the clock: remove or archive what is old, and look for broken promises. Started by the scheduler.

Every piece of work is a series of short steps, taken between the turns of a worker. Nothing of it is kept in the
database: what is interrupted starts over, and two workers may do it at once.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import ClassVar

from perdure.clock import Clock, Micros
from perdure.config import Retention
from perdure.errors import PerdureError
from perdure.ids import FlowId, JobId, NodeId, id_floor
from perdure.kind import Registry
from perdure.ops.doctor import QUICK, examine
from perdure.store.protocols import Locked, Store
from perdure.store.rows import Ended
from perdure.upkeep.archive import Exit, exit_to

READ_AT_ONCE = 1_000
"""Ends read in one step: 3 ms on SQLite."""
RECORDS_AT_ONCE = 200
NODES_AT_ONCE = 20
SHARE = 0.1
"""The part of a worker's time that built-in work takes at most."""

Counts = dict[str, int]

logger = logging.getLogger("perdure.worker")


class Work:
    """Something that is done when its time has come: `begin`, then `step` until it returns counts.

    A step is one short transaction, and None: there is more to do. After a step it rests for `rest_s`, so that it takes
    a tenth of a worker's time. An error ends it; beginning again does no harm.
    """

    name: ClassVar[str]
    """Of its schedule."""
    every: ClassVar[str]
    """When it runs, as cron writes it, unless someone changes the schedule."""
    _least_rest_s: ClassVar[float] = 0.0

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._steps: Iterator[None] = iter(())
        self._counts: Counter[str] = Counter()
        self.rest_s = 0.0

    def begin(self, now: Micros) -> None:
        """Start over. What is old is judged by this time."""
        self._counts = Counter()
        self._steps = self._work(now)

    def step(self) -> Counts | None:
        """Do a little. Not None: it is done, and this is how much of what it found."""
        started = self._clock.boottime()
        more = next(self._steps, _DONE) is not _DONE
        self.rest_s = max(self._least_rest_s, (self._clock.boottime() - started) * (1 / SHARE - 1))
        return None if more else {name: count for name, count in self._counts.items() if count}

    def _work(self, now: Micros) -> Iterator[None]:
        raise NotImplementedError


_DONE = object()


def cutoff(now: Micros, age: timedelta) -> Micros:
    """What ended before this is older than `age`."""
    return Micros(now - age // timedelta(microseconds=1))


def too_old(page: Iterable[Ended], retention: Retention, now: Micros) -> list[Ended]:
    """The jobs of a page that have ended long enough ago, in their newest life. Those of a flow go with it."""
    newest = {end.job_id: end for end in page}.values()
    alone = [end for end in newest if end.live is None and end.flow_id is None]
    return [end for end in alone if _is_over(end, retention.age_of(end), now)]


def _is_over(end: Ended, age: timedelta | None, now: Micros) -> bool:
    return age is not None and end.finished_at < cutoff(now, age)


class _Sweep(Work):
    """What pruning and archiving have in common: they go through the ended jobs, the oldest first."""

    def __init__(self, store: Store, clock: Clock, retention: Retention) -> None:
        super().__init__(store, clock)
        self._retention = retention

    def _jobs(self, now: Micros, way: Exit) -> Iterator[None]:
        """Pages by id, and so by time of creation: a job cannot have ended before it was created."""
        if self._retention.shortest is None:
            return
        below = id_floor(cutoff(now, self._retention.shortest))
        last: Ended | None = None
        while True:
            page = self._store.ended(last, below, READ_AT_ONCE)
            yield
            yield from self._put(too_old(page, self._retention, now), way)
            if len(page) < READ_AT_ONCE:
                break
            last = page[-1]
        with suppress(NotImplementedError):  # a store that has no flows
            yield from self._flows(now, cutoff(now, self._retention.shortest), way)

    def _flows(self, now: Micros, before: Micros, way: Exit) -> Iterator[None]:
        """Each whole, its jobs a few at a time; one that cannot go whole is begun again the next time."""
        last: FlowId | None = None
        while True:
            page = self._store.old_flows(last, before, READ_AT_ONCE)
            yield
            for flow in page:
                end = Ended(JobId(flow.id), 1, flow.state, flow.finished_at, None, "")
                if _is_over(end, self._retention.age_of(end), now):
                    yield from self._flow(flow.id, way)
            if len(page) < READ_AT_ONCE:
                return
            last = page[-1].id

    def _flow(self, flow_id: FlowId, way: Exit) -> Iterator[None]:
        for inner in self._store.inner_flows(flow_id):
            yield from self._flow(inner.id, way)
        while some := self._store.flow_ends(flow_id, way.at_once):
            before = self._counts["jobs"]
            yield from self._put(some, way)
            if self._counts["jobs"] == before:
                return  # someone's open transaction
        self._counts["flows"] += self._store.remove_flow(flow_id)
        yield

    def _space(self) -> Iterator[None]:
        while self._store.give_back():
            yield

    def _put(self, old: Sequence[Ended], way: Exit) -> Iterator[None]:
        for first in range(0, len(old), way.at_once):
            some = old[first : first + way.at_once]
            try:
                gone = len(way.put(some))
            except Locked:
                gone = 0  # someone's open transaction; the next time finds them again
            self._counts["jobs"] += gone
            if gone < len(some):
                self._counts["jobs passed over"] += len(some) - gone
            yield


class Prune(_Sweep):
    """Removes log lines, records, and, unless they are archived, jobs that are old enough."""

    name = "perdure.prune"
    every = "17 * * * *"

    def _work(self, now: Micros) -> Iterator[None]:
        if self._retention.archive is None:
            yield from self._jobs(now, exit_to(self._store, self._clock, None))
        if self._retention.logs is not None:
            yield from self._logs(cutoff(now, self._retention.logs))
        if self._retention.records is not None:
            before = cutoff(now, self._retention.records)
            yield from self._records(before)
            yield from self._nodes(before)
        yield from self._space()

    def _logs(self, before: Micros) -> Iterator[None]:
        while gone := self._store.remove_logs(before, READ_AT_ONCE):
            self._counts["log lines"] += gone
            yield

    def _records(self, before: Micros) -> Iterator[None]:
        while any((gone := self._store.remove_records(before, RECORDS_AT_ONCE)).values()):
            self._counts.update(gone)
            yield

    def _nodes(self, before: Micros) -> Iterator[None]:
        last: NodeId | None = None
        while True:
            page = self._store.remove_nodes(last, before, NODES_AT_ONCE)
            self._counts["nodes"] += len(page.items)
            if page.next is None:
                return
            last = NodeId(page.next.id)
            yield


class Archive(_Sweep):
    """Moves jobs that are old enough to where the setting says."""

    name = "perdure.archive"
    every = "47 * * * *"

    def _work(self, now: Micros) -> Iterator[None]:
        if self._retention.archive is not None:
            yield from self._jobs(now, exit_to(self._store, self._clock, self._retention.archive))
            yield from self._space()


class QuickCheck(Work):
    """The doctor's quick checks; what they find is logged.

    They only read, and in a thread of their own: one of them may take a second where a million jobs wait.
    """

    name = "perdure.check"
    every = "37 3 * * *"
    _least_rest_s = 0.05

    def _work(self, now: Micros) -> Iterator[None]:
        failed: list[PerdureError] = []
        looking = threading.Thread(target=self._look, args=(now, failed), name="perdure-check", daemon=True)
        looking.start()
        while looking.is_alive():
            yield
        if failed:
            raise failed[0]

    def _look(self, now: Micros, failed: list[PerdureError]) -> None:
        try:
            for found in examine(self._store, now, QUICK):
                self._counts[found.name] = found.count
                logger.warning("the doctor found %d × %s: %s", found.count, found.name, found.explanation)
        except PerdureError as error:
            failed.append(error)


def built_in(store: Store, clock: Clock, retention: Retention, kinds: Registry) -> tuple[Work, ...]:
    """All built-in work of a worker. A setting for a kind also counts for jobs stored under its earlier names."""
    ages = {name: age for kind, age in retention.kinds.items() for name in kinds.meant_by(kind) if name is not None}
    known = replace(retention, kinds=ages)
    return Prune(store, clock, known), Archive(store, clock, known), QuickCheck(store, clock)
