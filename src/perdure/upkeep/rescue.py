"""Takes back the jobs of nodes that died, and closes runs that are overdue. A chore of every worker, once a second.

`Watch` and `Overtime` decide when a silent node counts as dead, and a run as overdue; they touch no database.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from perdure.clock import Micros
from perdure.errors import PerdureError
from perdure.ids import JobId, NodeId, RunId, to_uuid
from perdure.job.model import Failure, LiveJob
from perdure.job.reports import Finish, TimedOut
from perdure.job.retry import MAX_RUNTIME, max_runtime_ms
from perdure.store.protocols import OUTAGES, Locked
from perdure.store.rows import USUAL_LEASE_US, FinishStatus, NodeRow, Rescued
from perdure.upkeep.chore import Chore
from perdure.worker.lifecycle import log_failure, log_rescue
from perdure.worker.options import Parts, WorkerOptions

LOOKS = 3
"""How often a node must have been seen silent, at least. A third of a lease may be missed in between, not more: a node
beats six times in it."""
LOOK_EVERY_S = 1.0

BATCH = 100
"""Jobs taken back in one transaction."""
WATCHED = 500
"""Runs with a time-out that are kept in sight: those with the earliest deadlines."""
_EVER = Micros(2**62)

logger = logging.getLogger("perdure.worker")


def look_every_s(lease_s: float) -> float:
    """How often an observer with this lease looks: a short one often enough that others with it are seen in time."""
    return min(LOOK_EVERY_S, lease_s / (2 * LOOKS))


def lease_s_of(node: NodeRow | None, own_lease_s: float) -> float:
    """The lease by which a node is judged: its own.

    A node of an older Perdure does not name it. Most likely it is the observer's, or the usual one: the longer of the
    two counts, since waiting costs time, and a wrong death the work of a healthy node.
    """
    if node is None or node.lease_us is None:
        return max(own_lease_s, USUAL_LEASE_US / 1_000_000)
    return node.lease_us / 1_000_000


class Seen(NamedTuple):
    """A beat, when it was first seen, since when nothing of it was missed, and how many looks there were since then."""

    beat: int
    first: float
    since: float
    looks: int


class Watch:
    """What one observer has seen of the other nodes.

    Clocks of different machines are never compared, and no wall clock decides. What counts is what one observer has
    itself seen for long enough by its own clock: for the lease of the node that it watches, looking often enough in
    between, and able to write all the time. It was not looking while it was asleep; and while its own beats are not
    written, the database may be refusing those of all nodes.
    """

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._pace_s = 2 * look_every_s(lease_s)
        self._seen: dict[NodeId, Seen] = {}
        self._last_look: float | None = None
        self._own: tuple[NodeId, int] | None = None
        self._own_moved_at = -math.inf
        self._missed_s = 0.0
        self.doubts = False
        """Some node has been silent for a third of its lease, which no healthy node is. The observer should prove with
        a beat of its own, before each look, that the database still takes beats."""

    @property
    def is_attentive(self) -> bool:
        """Whether it could look, and write its own beats, all the time up to the last look."""
        return self._missed_s <= max(self._lease_s / LOOKS, self._pace_s)

    def look(self, nodes: Iterable[NodeRow], own: NodeId, at: float) -> list[NodeRow]:
        """Note the live nodes, `own` among them, as they are at `at` (boottime).

        Returns those that have been silent for their whole lease. Where the observer missed too much of it, which
        is a third of their lease, the observation starts over.
        """
        nodes = list(nodes)
        self._missed_s = self._missed(nodes, own, at)
        before, self._seen, self.doubts = self._seen, {}, False
        silent: list[NodeRow] = []
        for node in nodes:
            if node.id == own:
                continue
            lease_s = lease_s_of(node, self._lease_s)
            known = before.get(node.id)
            if known is None or known.beat != node.beat:
                known = Seen(node.beat, at, at, 0)
            elif self._missed_s > max(lease_s / LOOKS, self._pace_s):
                known = known._replace(since=at, looks=0)
            seen = self._seen[node.id] = known._replace(looks=known.looks + 1)
            self.doubts |= at - seen.first >= lease_s / LOOKS
            if at - seen.since >= lease_s and seen.looks > LOOKS:
                silent.append(node)
        return silent

    def _missed(self, nodes: Iterable[NodeRow], own: NodeId, at: float) -> float:
        """For how long the observer may have missed something: since its last look, or since its own beat was seen to
        move, whichever is longer ago."""
        last, self._last_look = self._last_look, at
        beat = next(((node.id, node.beat) for node in nodes if node.id == own), None)
        moved_at = self._own_moved_at
        if beat != self._own:
            self._own, self._own_moved_at = beat, at
        if beat is None:
            return math.inf  # it has been declared dead itself: what it has seen is worth nothing
        return 0.0 if last is None else at - min(last, moved_at)


class Overtime:
    """For how long one observer has seen each run open. The owner stops its runs itself, by its own clock: any other
    node waits until the owner has surely had the time to."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._watched_s = 0.0
        self._first_seen: dict[RunId, float] = {}
        self._last_look: float | None = None

    def look(
        self, running: Iterable[LiveJob], nodes: Mapping[NodeId, NodeRow], at: float, *, is_attentive: bool
    ) -> list[LiveJob]:
        """Note the runs that are open at `at` (boottime), on these nodes.

        Returns those seen open for their time-out and a lease of their node more. A run that is not among them is
        forgotten. Not attentive: the time since the last look does not count.
        """
        if self._last_look is not None and is_attentive:
            self._watched_s += at - self._last_look
        self._last_look = at
        before, self._first_seen = self._first_seen, {}
        overdue: list[LiveJob] = []
        for live in running:
            if live.run_id is None or live.timeout_ms is None:
                continue
            holder = None if live.node_id is None else nodes.get(live.node_id)
            since = self._first_seen[live.run_id] = before.get(live.run_id, self._watched_s)
            if self._watched_s - since >= live.timeout_ms / 1000 + lease_s_of(holder, self._lease_s):
                overdue.append(live)
        return overdue


class Rescuer:
    """One worker's part in the rescue of others.

    Two rescuers may look at once, and one may decide on what is no longer true: every write checks again what it was
    decided on, so the later one changes nothing.
    """

    def __init__(self, parts: Parts, options: WorkerOptions) -> None:
        self._store = parts.store
        self._clock = parts.clock
        self._ids = parts.ids
        self._liveness = parts.liveness
        self._max_crashes = options.max_crashes
        self._every_s = look_every_s(options.lease_s)
        self._rest_s = min(parts.store.look_every_s, options.lease_s / (2 * LOOKS)) - self._every_s / 2
        self._lease_s = options.lease_s
        self._next_look = -math.inf
        self._next_flows = -math.inf
        self._known: tuple[NodeRow, ...] = ()
        self._watch = Watch(options.lease_s)
        self._overtime = Overtime(options.lease_s)
        self._refused: set[RunId | None] = set()
        """Runs that the database would not close."""

    def chore(self, own: Callable[[], NodeId]) -> Chore:
        """`own`: the id that the worker's node has at the time."""
        return Chore("rescue", self._every_s, lambda: self.glance(own()), is_needed=True)

    def glance(self, own: NodeId) -> int:
        """Look into the database when it is time for that, or when a process that was seen there has ended."""
        at = self._clock.boottime()
        if at < self._next_look and not any(node.id != own and self._liveness.is_gone(node) for node in self._known):
            return 0
        self._next_look = at + self._rest_s
        return self.look(own)

    def look(self, own: NodeId) -> int:
        """Declare dead nodes dead, and take back what they left behind. Returns how many jobs that were."""
        if self._watch.doubts:
            self._store.beat(own, self._clock.now())
        nodes = {node.id: node for node in self._store.live_nodes()}
        self._known = tuple(nodes.values())
        for node in nodes.values():
            if node.id != own and self._liveness.is_gone(node):
                self._declare(node, "crash", "its process has ended")
        for node in self._watch.look(nodes.values(), own, self._clock.boottime()):
            self._declare(node, "unknown", "it has been silent for a whole lease")
        saved = sum(self._take_back(node_id) for node_id in self._store.nodes_left_behind())
        self._rescue_flows()
        return saved + self._close_overdue(nodes)

    def _rescue_flows(self) -> None:
        """Once in a lease: a node that is declared dead can write the end of a job all the same, and then die."""
        at = self._clock.boottime()
        if at >= self._next_flows:
            self._next_flows = at + self._lease_s
            self._store.rescue_flows(self._clock.now())

    def _declare(self, node: NodeRow, reason: str, why: str) -> None:
        if self._store.stop(node.id, reason, self._clock.now(), node.beat):
            logger.warning("node %s is dead: %s; its jobs continue on other workers", to_uuid(node.id), why)

    def _take_back(self, node_id: NodeId) -> int:
        """In batches; if the database refuses one, each job by itself, so that no job blocks the others."""
        taken: list[Rescued] = []
        try:
            while len(batch := self._rescue(node_id, BATCH)) == BATCH:
                taken += batch
            taken += batch
        except PerdureError as error:
            if _is_outage(error):
                raise
            for live in self._store.held_by(node_id):
                taken += self._rescue_one(live)
        log_rescue(node_id, taken)
        return len(taken)

    def _rescue(self, node_id: NodeId, room: int, only: JobId | None = None) -> list[Rescued]:
        failure = Failure("NodeLost", f"node {to_uuid(node_id)} died while it ran this job")
        spare = [JobId(job_id) for job_id in self._ids.new_many(room)]
        return self._store.rescue(node_id, failure, self._max_crashes, spare, self._clock.now(), only)

    def _rescue_one(self, live: LiveJob) -> list[Rescued]:
        assert live.node_id is not None
        try:
            return self._rescue(live.node_id, 1, live.job_id)
        except PerdureError as error:
            if _is_outage(error):
                raise
            self._could_not("be taken back from the dead node that ran it", live, error)
            return []

    def _could_not(self, be_done: str, live: LiveJob, error: PerdureError) -> None:
        """Every look tries once more; one line in the log is enough."""
        if live.run_id not in self._refused:
            logger.error("job %s (%s) could not %s: %s", to_uuid(live.job_id), live.kind, be_done, error)
            self._refused.add(live.run_id)

    def _failure_of(self, live: LiveJob) -> Failure:
        """A job that has used up the time of its slot is not retried."""
        row = self._store.row(live.job_id)
        limit_ms = None if row is None else max_runtime_ms(row.options)
        message = "the run went past its deadline and its node did not close it"
        if limit_ms is None or (live.timeout_ms or 0) < limit_ms:
            return Failure("JobTimeout", message)
        return Failure(MAX_RUNTIME, message, permanent=True)

    def _close_overdue(self, nodes: Mapping[NodeId, NodeRow]) -> int:
        """The deadline in the row is by another wall clock: it says which runs to watch, not when to act."""
        watched = self._store.overdue(_EVER, WATCHED)
        closed = 0
        at, is_attentive = self._clock.boottime(), self._watch.is_attentive
        for live in self._overtime.look(watched, nodes, at, is_attentive=is_attentive):
            failure = self._failure_of(live)
            finish = Finish(live, TimedOut(failure), JobId(self._ids.new()))
            try:
                (finished,) = self._store.finish([finish], self._clock.now())
            except OUTAGES:
                raise
            except PerdureError as error:
                self._could_not("be closed, though it is overdue", live, error)
                continue
            if finished.status is FinishStatus.APPLIED:
                closed += 1
                log_failure(live, failure, finished)
        return closed


def _is_outage(error: PerdureError) -> bool:
    """A lock on one job, or on what its end needs, is no outage: the other jobs can be rescued."""
    return isinstance(error, OUTAGES) and not isinstance(error, Locked)
