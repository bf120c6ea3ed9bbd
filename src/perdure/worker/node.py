"""A node: what one worker process claims, holds and reports, one `turn()` after the other. Run by `loop`.

Everything here happens in the store thread, and nothing starts a thread; the simulator calls `turn` as it likes. Ended
runs come in through the inbox; claimed jobs go out to the executors.
"""

from __future__ import annotations

import json
import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from perdure.errors import PerdureError, StoreError
from perdure.ids import JobId, NodeId, RunId, to_uuid
from perdure.job.model import Claim, LiveJob
from perdure.job.reports import Finish
from perdure.job.states import Suspicion
from perdure.job.transitions import suspicion
from perdure.store.protocols import OUTAGES, Locked
from perdure.store.rows import Claimer, FinishStatus, Glance, Lane, LogLine, NewNode, Notes, Turn, Turned
from perdure.worker.context import JobContext, RunNotes
from perdure.worker.lifecycle import WRITTEN, is_logged, log_claims, log_end, log_ends, log_parked, say
from perdure.worker.options import Parts, WorkerOptions
from perdure.worker.run import AnyKind, Assignment, Ended, Executor, Inbox
from perdure.worker.services import StoreServices
from perdure.worker.signals import Stop
from perdure.worker.unwritten import FallbackWriter

PROMOTED_AT_ONCE = 1_000
LOOK_WHEN_BUSY_S = 0.25
RARELY = 5
"""How many times `poll_s` pass between two looks of a node that is rung for when there is work."""
FIRST_BACKOFF_S = 0.1
LONGEST_BACKOFF_S = 4.0
"""A database that has come back is used again within five seconds, however long it was away: a try costs little."""
FIRST_AGAIN_S = 0.25
LONGEST_AGAIN_S = 4.0
"""The pause between two tries to write ends that wait for a lock."""
SPLIT_FROM = 100
"""From so many jobs at a time on, a node on a server ends and claims half of them in a turn: while the server works on
one half, the handlers of the other run."""
NOTES_EVERY_S = 1.0
"""How often the notes of runs that have not ended are written."""
IDLE = Glance((), None, ())

logger = logging.getLogger("perdure.worker")


class Executors(Protocol):
    """Where a kind's runs are executed."""

    def of(self, kind: AnyKind) -> Executor: ...


class Node:
    """One node. Its id is new at every start, and after it was declared dead."""

    def __init__(
        self,
        parts: Parts,
        options: WorkerOptions,
        executors: Executors,
        inbox: Inbox,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        """`state` is what the worker's `lifespan=` yielded."""
        self._parts = parts
        self._store = parts.store
        self._options = options
        self._now, self._at = parts.clock.now, parts.clock.boottime
        self._lease_us = round(options.lease_s * 1_000_000)
        splits = options.concurrency >= SPLIT_FROM and not parts.store.single_writer
        self._most_at_once = options.concurrency // 2 if splits else options.concurrency
        self._executors = executors
        self._executor_of: dict[AnyKind, Executor] = {}
        """Of every kind that had a run here."""
        self._inbox = inbox
        self._state = state
        self._services = StoreServices(parts)
        self.id = NodeId(parts.ids.new())
        self.accepting = True
        """False: nothing more is claimed."""
        self.declared_dead = False
        """Set by the heartbeat when a beat was refused."""
        self.turns = 0
        """How many turns were begun, successful or not: the watchdog counts them."""
        self.is_woken = False
        """Whoever queues work rings: then it polls rarely."""
        self.last_success: float | None = None
        """When the last turn that reached the database ended, by `boottime`."""
        self.held: dict[RunId, Assignment] = {}
        self._unwritten: list[Ended] = []
        self._waiting: list[Ended] = []
        """Ended, but another transaction has locked the job, or what its end needs. They delay no others."""
        self._again_s = self._next_again = 0.0
        self._notes = NoteBuffer(parts)
        self._fallback = FallbackWriter(parts)
        self._glance = IDLE
        self._must_look = True
        self._dry = False
        self._next_look = self._next_reconcile = 0.0
        self._uncertain = False
        self._troubles = 0
        self._claims_made = 0

    # -- the life of a node ------------------------------------------------------------------------------------------

    def register(self) -> None:
        """Make the node known; before that it can claim nothing."""
        self._register_as(self.id)

    def _register_as(self, node_id: NodeId) -> None:
        kinds = json.dumps(self._parts.kinds.versions(), sort_keys=True)
        queues = None if self._options.queues is None else json.dumps(self._options.queues)
        self._store.register(NewNode(node_id, self._now(), self._parts.liveness.own(), kinds, queues, self._lease_us))
        self.id = node_id
        self._next_reconcile = self._at() + self._options.lease_s

    def turn(self) -> float:
        """Do what there is to do. Returns how many seconds to pause, unless the bell rings."""
        self.turns += 1
        try:
            pause = self._turn()
        except StoreError as error:
            if error.code == "descriptors_closed":
                raise  # nothing that this process does will ever help
            return self._trouble(error)
        self._troubles = 0
        self.last_success = self._at()
        return pause

    def look_again(self) -> None:
        """Someone may have written: look again before the next pause."""
        self._must_look = True

    @property
    def is_idle(self) -> bool:
        """Nothing runs here, and at the last look nothing was queued or due. Meaningful after a turn."""
        is_something_left = self._must_look or self._troubles or self._is_something_due() or self._wanted_queues()
        return self.is_empty and not is_something_left

    @property
    def is_full(self) -> bool:
        """There is no room for another job, whatever is enqueued."""
        return self._room() <= 0

    @property
    def in_trouble(self) -> bool:
        """The last turn did not reach the database."""
        return self._troubles > 0

    @property
    def is_empty(self) -> bool:
        """Nothing runs here, and everything that ran is in the database."""
        return not self.held and not self._unwritten and not self._waiting and not self._inbox

    def request_stop(self) -> None:
        """Nothing more is claimed; handlers that ask see that they should stop."""
        self.accepting = False
        for task in self.held.values():
            task.ctx.stop = task.ctx.stop or Stop.SHUTDOWN

    def interrupt_all(self, why: Stop) -> None:
        for task in list(self.held.values()):
            self._executor_of[task.kind].stop(task.ctx, why)

    def sign_off(self, reason: str = "clean_shutdown") -> None:
        """The node counts as stopped from now on; others rescue what it still holds."""
        self._store.stop(self.id, reason, self._now())

    # -- a turn ------------------------------------------------------------------------------------------------------

    def _turn(self) -> float:
        if self.declared_dead:
            self._register_again()
        self._collect()
        self._look()
        if self._uncertain or self._at() >= self._next_reconcile:
            self._reconcile()
        wanted = self._wanted()
        if wanted is None:
            if self._unwritten:
                log_ends(self._unwritten, ())
                self._unwritten = []
            return self._pause()
        try:
            turned = self._store.turn(wanted, self._now())
        except Locked:
            return FIRST_AGAIN_S  # another transaction has locked this node's own row, which is no outage
        except OUTAGES:
            raise  # an outage: a later turn does the same
        except PerdureError as error:
            if not wanted.finishes and not wanted.again and wanted.notes is None:
                raise
            self._write_one_by_one(error)
            return 0.0
        self._record(wanted, turned)
        return self._pause()

    def _wanted(self) -> Turn | None:
        """None: there is nothing to write."""
        finishes, lanes = self._finishes(self._unwritten), self._lanes()
        again = self._finishes(self._waiting) if self._waiting and self._at() >= self._next_again else []
        due = self.accepting and self._is_something_due()
        notes = self._notes.gather(self._ended_contexts(), (task.ctx for task in self.held.values()))
        if not finishes and not again and notes is None and not lanes and not due:
            return None
        promote = PROMOTED_AT_ONCE if due else 0
        return Turn(finishes, notes, promote, lanes, self._claimer() if lanes else None, again)

    def _record(self, wanted: Turn, turned: Turned) -> None:
        all_completed = turned.finished.count(WRITTEN) == len(turned.finished)
        if not all_completed or wanted.again or is_logged(logging.INFO):
            log_ends(self._unwritten, turned.finished)
            self._keep_waiting(wanted, turned)
        self._unwritten = []
        self._notes.clear()
        if wanted.claimer is not None:
            self._claims_made += 1
            room = min(len(wanted.claimer.run_ids), sum(lane.room for lane in wanted.lanes))
            self._dry = len(turned.claims) < room
            if turned.parked:
                log_parked(turned.parked)
            if is_logged(logging.DEBUG):
                log_claims(turned.claims)
            self.begin(turned.claims)
        if turned.promoted or turned.finished or turned.again:  # what has ended may have queued more: a retry, a child
            self._must_look = True

    def _keep_waiting(self, wanted: Turn, turned: Turned) -> None:
        """Ends that another transaction's lock delays are written later, with growing pauses between the tries."""
        if wanted.again:
            tried, self._waiting = self._waiting, []
            self._again_s = min(LONGEST_AGAIN_S, 2 * self._again_s)
            for ended, finished in zip(tried, turned.again, strict=True):
                if finished.status is FinishStatus.WAITS:
                    self._waiting.append(ended)
                else:
                    log_end(ended, ended.report, finished)
        if any(finished.status is FinishStatus.WAITS for finished in turned.finished):
            reports = (ended for ended in self._unwritten if not ended.written)
            self._wait_for(
                [
                    ended
                    for ended, finished in zip(reports, turned.finished, strict=True)
                    if finished.status is FinishStatus.WAITS
                ]
            )
        elif wanted.again:
            self._next_again = self._at() + self._again_s

    def _wait_for(self, waiting: Sequence[Ended]) -> None:
        self._waiting += waiting
        self._again_s = FIRST_AGAIN_S
        self._next_again = self._at() + self._again_s

    def _write_one_by_one(self, error: PerdureError) -> None:
        """The database refused the turn: one bad end must not delay the others."""
        logger.error("the database refused a batch of %d finishes: %s", len(self._unwritten), error)
        self._uncertain = True
        ended = self._ended_contexts()
        self._unwritten += self._waiting
        self._waiting = []
        waiting: list[Ended] = []
        try:
            self._fallback.write_each(self._unwritten, waiting)
        finally:
            if waiting:
                self._wait_for(waiting)
        self._notes.write_alone(ended)

    def _ended_contexts(self) -> list[JobContext]:
        return [ended.ctx for ended in self._unwritten]

    def _collect(self) -> None:
        for ended in self._inbox.take(self._most_at_once):
            self.held.pop(ended.ctx.claim.run_id, None)
            self._unwritten.append(ended)

    def _finishes(self, of: Sequence[Ended]) -> list[Finish]:
        reports = [ended for ended in of if not ended.written]
        if not reports:
            return []
        ids = self._parts.ids.new_many(len(reports))
        return [
            Finish(ended.ctx.claim.live, ended.report, JobId(next_id), ended.stats, ended.ctx.children)
            for ended, next_id in zip(reports, ids, strict=True)
        ]

    def begin(self, claims: Sequence[Claim]) -> None:
        """Hand claimed jobs to their executors."""
        tasks: defaultdict[Executor, list[Assignment]] = defaultdict(list)
        parts = self._parts
        for claim in claims:
            kind = parts.kinds.find(claim.live.kind)
            assert kind is not None  # the claim parks what we do not know
            executor = self._executor_of.get(kind)
            if executor is None:
                executor = self._executor_of[kind] = self._executors.of(kind)
            ctx = JobContext(claim, kind, self._services, self._state)
            if claim.live.cancel_requested:
                ctx.stop = Stop.CANCEL
            task = Assignment(claim, kind, ctx, parts.middleware, parts.jitter())
            self.held[claim.run_id] = task
            tasks[executor].append(task)
        for executor, own in tasks.items():
            executor.start(own)

    # -- looking -----------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Read only: is there anything to claim, and which runs are to stop?"""
        at = self._at()
        if not self._wants_a_look(at):
            return
        self._glance = self._store.glance(self.id, self._parts.kinds.versions())
        self._must_look = self._dry = False
        self._next_look = at + (LOOK_WHEN_BUSY_S if self.held else self._poll_s)
        for run_id in self._glance.cancelled:
            task = self.held.get(run_id)
            if task is not None and task.ctx.stop is None:
                task.ctx.stop = Stop.CANCEL
                self._executor_of[task.kind].stop(task.ctx, Stop.CANCEL)

    @property
    def _poll_s(self) -> float:
        return self._options.poll_s * (RARELY if self.is_woken else 1)

    def _wants_a_look(self, at: float) -> bool:
        """While claims come back full there is no need to ask whether there is more."""
        knows_of_work = not self._dry and bool(self._wanted_queues())
        return at >= self._next_look or (self._must_look and not knows_of_work)

    def _wanted_queues(self) -> list[str]:
        if self._options.queues is None:
            return list(self._glance.queues)
        return [queue for queue in self._options.queues if queue in self._glance.queues]

    def _lanes(self) -> list[Lane]:
        """The queues to claim from, in order, each with the room it has. Empty: claim nothing now."""
        room = min(self._room(), self._most_at_once)
        if not self.accepting or self._dry or room <= 0:
            return []
        queues = self._wanted_queues()
        if queues and (self._options.order == "round_robin" or self._options.queues is None):
            first = self._claims_made % len(queues)
            queues = queues[first:] + queues[:first]
        if not self._options.per_queue:
            return [Lane(queue, room) for queue in queues]
        running = Counter(task.claim.live.queue for task in self.held.values())
        limits = {queue: self._options.per_queue.get(queue, room) - running[queue] for queue in queues}
        return [Lane(queue, min(room, limits[queue])) for queue in queues if limits[queue] > 0]

    def _room(self) -> int:
        """Ends that wait for a lock take no room, but a node never holds more than twice as many jobs as can run."""
        return self._options.concurrency - len(self.held) - max(0, len(self._waiting) - self._options.concurrency)

    def _claimer(self) -> Claimer:
        most = self._options.max_crashes
        crashed = [task.claim.live for task in self.held.values() if task.claim.live.crashes]
        company = max((_suspicion(live, most) for live in crashed), default=Suspicion.NONE)
        run_ids = [RunId(run_id) for run_id in self._parts.ids.new_many(min(self._room(), self._most_at_once))]
        return Claimer(self.id, self._parts.kinds.versions(), run_ids, self._lease_us, company, most)

    def _pause(self) -> float:
        """Seconds until something is due by the clock."""
        at = self._at()
        if self._inbox or self._wants_a_look(at) or (self._glance.queues and self._lanes()):
            return 0.0
        waits = [self._next_look - at, self._next_reconcile - at]
        if self._glance.next_due is not None and self.accepting:
            waits.append((self._glance.next_due - self._now()) / 1_000_000)
        if self.held:
            waits.append(self._notes.next - at)
        if self._waiting:
            waits.append(self._next_again - at)
        return max(0.0, min(waits))

    def _is_something_due(self) -> bool:
        return self._glance.next_due is not None and self._glance.next_due <= self._now()

    # -- trouble -----------------------------------------------------------------------------------------------------

    def _trouble(self, error: StoreError) -> float:
        """Perhaps nothing was written: ended runs are kept in memory, and claims are reconciled later."""
        self._uncertain = True
        self._must_look = True
        pause = min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** min(self._troubles, 20))
        self._troubles += 1
        what = "could not be reached" if isinstance(error, OUTAGES) else "refused a turn"
        logger.warning("the database %s (%s); next try in %.1f s", what, error, pause)
        return pause

    def _reconcile(self) -> None:
        """Compare what the database says we run with what we run: either may have missed something."""
        self._next_reconcile = self._at() + self._options.lease_s
        rows = {live.run_id: live for live in self._store.held_by(self.id)}
        self._fallback.forget_all_but(rows)
        mine = {*self.held, *(ended.ctx.claim.run_id for ended in (*self._unwritten, *self._waiting))}
        unknown = [live for run_id, live in rows.items() if run_id not in mine]
        if unknown:
            logger.warning("giving back %d jobs that were claimed for this node without its knowledge", len(unknown))
            self._fallback.give_back(unknown)
            self._must_look = True
        for run_id, task in list(self.held.items()):
            if run_id not in rows and task.ctx.stop is None and not task.ctx.closed:
                taken = f"{task.ctx.name} was taken from this node; stopping it"
                say(logger, logging.WARNING, taken, task.ctx.facts)
                task.ctx.stop = Stop.LOST
                self._executor_of[task.kind].stop(task.ctx, Stop.LOST)
        self._uncertain = False

    def _register_again(self) -> None:
        """Others declared this node dead and take its jobs. Stop its runs, and continue as a new node."""
        logger.error("node %s was declared dead by another one; its jobs are stopped", to_uuid(self.id))
        for task in list(self.held.values()):
            task.ctx.stop = task.ctx.stop or Stop.LOST
            self._executor_of[task.kind].stop(task.ctx, Stop.LOST)
        self._register_as(NodeId(self._parts.ids.new()))
        self.declared_dead = False
        logger.warning("continuing as node %s", to_uuid(self.id))


def _suspicion(live: LiveJob, max_crashes: int) -> Suspicion:
    return suspicion(live.crashes, live.attempts, live.max_attempts, max_crashes)


class NoteBuffer:
    """Gathers notes for the next turn, and keeps them if that turn fails."""

    def __init__(self, parts: Parts) -> None:
        self._store = parts.store
        self._clock = parts.clock
        self._unwritten: list[tuple[JobContext, RunNotes]] = []
        self.next = 0.0
        """When notes of runs that have not ended are written next, by `boottime`."""

    def gather(self, ended: Iterable[JobContext], unended: Iterable[JobContext]) -> Notes | None:
        """What ended runs have said, now; what the others have said, about once a second."""
        contexts = list(ended)
        at = self._clock.boottime()
        if at >= self.next and not self._unwritten:  # during an outage runs keep their newest lines themselves
            self.next = at + NOTES_EVERY_S
            contexts += unended
        self._unwritten += [(ctx, notes) for ctx in contexts if (notes := ctx.take_notes()) is not None]
        pending = self._unwritten
        if not pending:
            return None
        return Notes(
            lines=[line for _, notes in pending for line in notes.lines],
            artifacts=[(ctx.claim.run_id, notes.artifacts) for ctx, notes in pending if notes.artifacts],
            metrics=[(ctx.claim.run_id, notes.metrics) for ctx, notes in pending if notes.metrics is not None],
            kept_from=list({line.run_id: line for line in _dropped(pending)}.values()),  # of one run the last counts
        )

    def clear(self) -> None:
        """All notes are written."""
        self._unwritten = []

    def write_alone(self, ended: Iterable[JobContext]) -> None:
        """Write the notes alone, after a refusal. What the database refuses is dropped: it must not stop the node."""
        notes = self.gather(ended, ())
        try:
            if notes is not None:
                self._store.turn(Turn(notes=notes), self._clock.now())
        except OUTAGES:
            raise
        except PerdureError as error:
            logger.warning("the notes of %d runs were refused and are dropped: %s", len(self._unwritten), error)
        self.clear()


def _dropped(pending: Sequence[tuple[JobContext, RunNotes]]) -> list[LogLine]:
    """For each run that logged too much, one line in place of those dropped."""
    return [
        notes.lines[0]._replace(
            line=notes.first_kept - 1,
            level="…",
            message=f"{notes.first_kept} earlier lines were dropped",
            fields=None,
        )
        for _, notes in pending
        if notes.first_kept and notes.lines
    ]
