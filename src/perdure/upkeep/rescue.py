"""Takes back the jobs of nodes that died, and closes runs that nobody will. A look every second, by every worker.

Two rescuers may look at once, and one may decide on what is no longer true: every write re-checks what it was decided
on, so the later one changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from perdure.clock import Clock, Micros
from perdure.errors import PerdureError
from perdure.ids import IdFactory, JobId, NodeId, RunId, to_uuid
from perdure.job.model import Failure, LiveJob
from perdure.job.reports import Finish, TimedOut
from perdure.store.answers import Answer, NodeRow, Rescued
from perdure.store.away import AWAY, Locked
from perdure.store.protocols import Store
from perdure.worker.lease import Overtime, Watch
from perdure.worker.lifecycle import tell_of_failure, tell_of_rescue
from perdure.worker.liveness import Liveness

BATCH = 100
"""Jobs taken back in one transaction."""
WATCHED = 500
"""Runs with a time-out that are kept in sight: those with the earliest deadlines."""
_EVER = Micros(2**62)

logger = logging.getLogger("perdure.worker")


class Rescuer:
    """One worker's part in the rescue of others."""

    def __init__(
        self, store: Store, clock: Clock, ids: IdFactory, liveness: Liveness, *, lease_s: float, max_crashes: int
    ) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self._liveness = liveness
        self._max_crashes = max_crashes
        self._watch = Watch(lease_s)
        self._overtime = Overtime(lease_s)
        self._refused: set[RunId | None] = set()
        """Runs that the database would not close."""

    def look(self, own: NodeId) -> int:
        """Declare dead whoever is, and take back what was left behind; answers how many jobs that were."""
        if self._watch.doubts:
            self._store.beat(own, self._clock.now())
        nodes = {node.id: node for node in self._store.live_nodes()}
        for node in nodes.values():
            if node.id != own and self._liveness.is_gone(node):
                self._declare(node, "crash", "its process has ended")
        for node in self._watch.look(nodes.values(), own, self._clock.boottime()):
            self._declare(node, "unknown", "it has been silent for a whole lease")
        saved = sum(self._take_back(node_id) for node_id in self._store.nodes_left_behind())
        return saved + self._close_overdue(nodes)

    def _declare(self, node: NodeRow, reason: str, why: str) -> None:
        if self._store.stop(node.id, reason, self._clock.now(), node.beat):
            logger.warning("node %s is dead: %s; its jobs go on elsewhere", to_uuid(node.id), why)

    def _take_back(self, node_id: NodeId) -> int:
        """By the batch; where the database refuses one, each by itself, so that no job keeps the others."""
        taken: list[Rescued] = []
        try:
            while len(batch := self._rescue(node_id, BATCH)) == BATCH:
                taken += batch
            taken += batch
        except PerdureError as error:
            if _is_away(error):
                raise
            for live in self._store.held_by(node_id):
                taken += self._rescue_one(live)
        tell_of_rescue(node_id, taken)
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
            if _is_away(error):
                raise
            self._could_not("be taken back from the dead node that ran it", live, error)
            return []

    def _could_not(self, be_done: str, live: LiveJob, error: PerdureError) -> None:
        """It is tried again at every look; said once is enough."""
        if live.run_id not in self._refused:
            logger.error("job %s (%s) could not %s: %s", to_uuid(live.job_id), live.kind, be_done, error)
            self._refused.add(live.run_id)

    def _close_overdue(self, nodes: Mapping[NodeId, NodeRow]) -> int:
        """The deadline in the row is by somebody's wall clock: it says whom to watch, not when to act."""
        watched = self._store.overdue(_EVER, WATCHED)
        closed = 0
        at, is_attentive = self._clock.boottime(), self._watch.is_attentive
        for live in self._overtime.look(watched, nodes, at, is_attentive=is_attentive):
            failure = Failure("JobTimeout", "the run went past its deadline and its node did not close it")
            finish = Finish(live, TimedOut(failure), JobId(self._ids.new()))
            try:
                (finished,) = self._store.finish([finish], self._clock.now())
            except AWAY:
                raise
            except PerdureError as error:
                self._could_not("be closed, though it is overdue", live, error)
                continue
            if finished.answer is Answer.APPLIED:
                closed += 1
                tell_of_failure(live, failure, finished)
        return closed


def _is_away(error: PerdureError) -> bool:
    """Somebody's lock on one job, or on what its end needs, is no outage: the others can be had."""
    return isinstance(error, AWAY) and not isinstance(error, Locked)
