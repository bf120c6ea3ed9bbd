"""A node: what one worker process claims, holds and reports, one `turn()` after the other. Run by `loop`.

Everything here happens in the store thread, but for what `Hands` carry to the database beside it; nothing starts a
thread, and the simulator calls `turn` as it likes. Ended runs come in through the inbox; claimed jobs go out to the
executors.
"""

from __future__ import annotations

import json
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, cast

from perdure.clock import Micros
from perdure.errors import PerdureError, StoreError
from perdure.ids import Drawn, FlowId, JobId, NodeId, RunId, to_uuid
from perdure.job.flow import Trait
from perdure.job.model import Claim, Failure, LiveJob, RunStats
from perdure.job.references import DAMAGE, Unknown, sources_of
from perdure.job.references import filled as with_results
from perdure.job.reports import Failed, Finish, Report, Unreadable
from perdure.job.states import Suspicion
from perdure.job.transitions import suspicion
from perdure.store.protocols import OUTAGES, Locked, TurnOperations
from perdure.store.rows import Claimer, FinishStatus, Glance, Lane, LimitRule, LogLine, NewNode, Notes, Turn, Turned
from perdure.worker.context import JobContext, RunNotes, Services
from perdure.worker.lifecycle import WRITTEN, is_logged, log_claims, log_end, log_ends, log_parked, say
from perdure.worker.options import Parts, WorkerOptions
from perdure.worker.run import AnyKind, Assignment, Ended, Executor, Inbox
from perdure.worker.services import StoreServices
from perdure.worker.signals import Stop
from perdure.worker.unwritten import FallbackWriter

PROMOTED_AT_ONCE = 1_000
LOOK_WHEN_BUSY_S = 0.25
RARELY = 5
"""How many times `poll_s` pass between two looks of a node whose bell tells when to look."""
FIRST_BACKOFF_S = 0.1
LONGEST_BACKOFF_S = 4.0
"""A database that has come back is used again within five seconds, however long it was away: a try costs little."""
FIRST_AGAIN_S = 0.25
LONGEST_AGAIN_S = 4.0
"""The pause between two tries to write ends that wait for a lock."""
NOTES_EVERY_S = 1.0
"""How often the notes of runs that have not ended are written."""
IDLE = Glance((), None, ())

logger = logging.getLogger("perdure.worker")


class Executors(Protocol):
    """Where a kind's runs are executed."""

    def of(self, kind: AnyKind) -> Executor: ...


class Hands(Protocol):
    """What carries turns to the database."""

    @property
    def count(self) -> int:
        """How many turns can be under way at once; each ends and claims such a part of the jobs that can run here."""
        ...

    def carry(self, turn: Callable[[], None]) -> None:
        """Call this, which raises nothing, here or in another thread; whoever carries it elsewhere rings afterwards."""
        ...


class OwnHand:
    """The store thread does it itself: one turn after the other."""

    count = 1

    def carry(self, turn: Callable[[], None]) -> None:
        turn()


class TurnUnderWay:
    """A turn, the ended runs and notes that it is about, and what became of it once it `is_over`."""

    def __init__(self, wanted: Turn, ended: list[Ended], again: list[Ended], notes: Said) -> None:
        self.wanted = wanted
        self.ended = ended
        self.again = again
        self.notes = notes
        claimer = wanted.claimer
        self.room = 0 if claimer is None else min(len(claimer.run_ids), sum(lane.room for lane in wanted.lanes))
        """How many jobs it may claim."""
        self.may_claim_crashed = claimer is not None and claimer.company is not Suspicion.SUSPECT
        self.is_over = False
        self._turned: Turned | None = None
        self._error: BaseException | None = None

    def run(self, store: TurnOperations, now: Micros) -> None:
        """Raises nothing: see `turned`."""
        try:
            self._turned = store.turn(self.wanted, now)
        except BaseException as error:  # noqa: BLE001 - raised in the store thread
            self._error = error
        self.is_over = True

    def turned(self) -> Turned:
        """What the turn has done, or its error."""
        if self._error is not None:
            raise self._error
        assert self._turned is not None
        return self._turned


class Node:
    """One node. Its id is new at every start, and after it was declared dead."""

    def __init__(
        self,
        parts: Parts,
        options: WorkerOptions,
        executors: Executors,
        inbox: Inbox,
        state: Mapping[str, Any] | None = None,
        services: Services | None = None,
        *,
        hands: Hands | None = None,
    ) -> None:
        """`state` is what the worker's `lifespan=` yielded; `services`: what contexts ask, if it is not the store;
        `hands`: None if every turn is carried by the caller."""
        self._parts = parts
        self._store = parts.store
        self._options = options
        self._now, self._at = parts.clock.now, parts.clock.boottime
        self._lease_us = round(options.lease_s * 1_000_000)
        self._hands = hands or OwnHand()
        self._most_at_once = options.concurrency // self._hands.count
        self._under_way: list[TurnUnderWay] = []
        self._executors = executors
        self._executor_of: dict[AnyKind, Executor] = {}
        """Of every kind that had a run here."""
        self._inbox, self._state = inbox, state
        self._services = services or StoreServices(parts)
        self.id = NodeId(parts.ids.new())
        self.accepting = True
        """False: nothing more is claimed."""
        self.declared_dead = False
        """Set by the heartbeat when a beat was refused."""
        self.turns = 0
        """How many turns were begun, successful or not: the watchdog counts them."""
        self.is_woken = False
        """Its bell tells when to look: then it polls rarely."""
        self.last_success: float | None = None
        """When the last turn that reached the database ended, by `boottime`."""
        self.held: dict[RunId, Assignment] = {}
        self._unwritten: list[Ended] = []
        self._waiting: list[Ended] = []
        """Ended, but another transaction has locked the job, or what its end needs. They delay no others."""
        self._again_s = self._next_again = 0.0
        self._notes = NoteBuffer(parts)
        self._fallback = FallbackWriter(parts)
        self._expected: set[str] = set()
        """Queues in which the ends to be written may let jobs go on: the same turn claims there, without a look."""
        self._flows: Sequence[FlowId] = ()
        """Turns have counted in these flows: the next one looks whether they are complete."""
        self._glance = IDLE
        self._must_look, self._dry, self._uncertain = True, False, False
        self._next_look = self._next_reconcile = 0.0
        self._troubles = self._claims_made = 0

    # -- the life of a node ------------------------------------------------------------------------------------------

    def register(self) -> None:
        """Make the node known, and the limits of its kinds; before that it can claim nothing."""
        kinds = self._parts.kinds
        itself = f"app {self._parts.owner}"
        rules = [
            LimitRule(name, rule.sort, rule.most, rule.per_us, rule.burst, tuple(users) or (itself,))
            for name, rule, users in kinds.rules()
        ]
        self._store.declare_limits(rules, [*(kind.name for kind in kinds), itself], self._now())
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
        if not self._under_way:
            self.last_success = self._at()
        return pause

    def look_again(self) -> None:
        """Someone may have written: look again before the next pause."""
        self._must_look = True

    @property
    def is_idle(self) -> bool:
        """Nothing runs here, and at the last look nothing was queued or due. Meaningful after a turn."""
        is_something_left = self._must_look or self._troubles or self._is_something_due() or self._wanted_queues()
        return self.is_empty and not is_something_left and not self._has_flows_to_see_to()

    def _has_flows_to_see_to(self) -> bool:
        return bool(self._flows) or self._glance.todo

    @property
    def is_full(self) -> bool:
        """There is no room for another job, whatever is enqueued; or a turn is under way, which comes first."""
        return bool(self._under_way) or self._room() <= 0

    @property
    def waits_for_an_answer(self) -> bool:
        """Turns are under way, and the database has answered none of them."""
        return bool(self._under_way) and not any(turn.is_over for turn in self._under_way)

    @property
    def in_trouble(self) -> bool:
        """The last turn did not reach the database."""
        return self._troubles > 0

    @property
    def is_empty(self) -> bool:
        """Nothing runs here, and everything that ran is in the database."""
        nothing_waits = not self._unwritten and not self._waiting and not self._inbox
        return not self.held and not self._under_way and nothing_waits

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
        pause = self._take_answers()
        if pause is not None:
            return pause
        if self._under_way and not self._goes_beside():
            return self._options.poll_s  # its end rings
        if self.declared_dead:
            self._register_again()
        self._collect()
        self._look()
        if self._wants_to_reconcile():
            self._reconcile()
        turn = self._next()
        if turn is None:
            if self._unwritten:
                log_ends(self._unwritten, ())
                self._unwritten = []
            return self._pause()
        self._under_way.append(turn)
        self._hands.carry(partial(turn.run, self._store, self._now()))
        pause = self._take_answers()
        return self._pause() if pause is None else pause

    def _goes_beside(self) -> bool:
        """Whether to begin a turn while another is under way: if so much has ended that this saves time, and nothing
        has to be found out or mended first. What runs say that have not ended is written by a turn of its own: another
        beside it could close them, and each wait for the other."""
        is_free = len(self._under_way) < self._hands.count and 2 * len(self._inbox) >= self._most_at_once
        in_order = not (self.declared_dead or self._troubles or self._wants_to_reconcile())
        said = (ctx for turn in self._under_way for ctx, _ in turn.notes)
        notes_wait = self._at() >= self._notes.next or any(ctx.claim.run_id in self.held for ctx in said)
        return is_free and in_order and not notes_wait

    def _wants_to_reconcile(self) -> bool:
        return self._uncertain or self._at() >= self._next_reconcile

    def _next(self) -> TurnUnderWay | None:
        """What there is to write now, taken from what waits. None: there is nothing."""
        ended = self._unwritten
        again = self._waiting if self._waiting and self._at() >= self._next_again else []
        finishes, lanes = self._finishes(ended), self._lanes()
        due = self.accepting and self._is_something_due()
        running = () if self._under_way else (task.ctx for task in self.held.values())
        notes = self._notes.take([end.ctx for end in ended], running)
        settle = self.accepting and self._glance.todo and not any(turn.wanted.settle for turn in self._under_way)
        flows = self._flows
        if not finishes and not again and not notes and not lanes and not due and not flows and not settle:
            return None
        self._unwritten, self._flows = [], ()
        self._expected.clear()
        if again:
            self._waiting = []
        promote, claimer = PROMOTED_AT_ONCE if due else 0, self._claimer() if lanes else None
        wanted = Turn(finishes, _notes_of(notes), promote, lanes, claimer, self._finishes(again), flows, settle)
        return TurnUnderWay(wanted, ended, again, notes)

    def _take_answers(self) -> float | None:
        """Record the turns that are over. A number: how long to pause after one that was not written."""
        for turn in [turn for turn in self._under_way if turn.is_over]:
            self._under_way.remove(turn)
            try:
                turned = self._answer(turn)
            except Locked:
                return FIRST_AGAIN_S  # another transaction has locked this node's own row, which is no outage
            except OUTAGES:
                raise  # an outage: a later turn does the same
            except PerdureError as error:
                if not turn.wanted.finishes and not turn.again and not turn.notes:
                    raise
                self._write_one_by_one(error)
                return 0.0
            self.last_success = self._at()
            self._record(turn, turned)
        return None

    def _answer(self, turn: TurnUnderWay) -> Turned:
        """After an error all that it was about waits again."""
        try:
            return turn.turned()
        except BaseException:
            self._unwritten = turn.ended + self._unwritten
            self._expect(turn.ended)
            self._waiting = turn.again + self._waiting
            self._flows = (*turn.wanted.flows, *self._flows)
            self._notes.put_back(turn.notes)
            raise

    def _record(self, turn: TurnUnderWay, turned: Turned) -> None:
        all_completed = turned.finished.count(WRITTEN) == len(turned.finished)
        if not all_completed or turn.again or is_logged(logging.INFO):
            log_ends(turn.ended, turned.finished)
            self._keep_waiting(turn, turned)
        if not self._store.single_writer:  # else no two of them overlap, and one look sees all ends
            self._flows = tuple(dict.fromkeys((*self._flows, *turned.flows)))
        if turn.wanted.claimer is not None:
            self._claims_made += 1
            self._dry = len(turned.claims) < turn.room
            if turned.parked:
                log_parked(turned.parked)
            if is_logged(logging.DEBUG):
                log_claims(turned.claims)
            self.begin(turned.claims)
        if turn.wanted.settle:
            self._glance = self._glance._replace(todo=False)
            self._must_look |= turned.settled  # else someone has locked what there is to do: it can wait
        # what has ended may have queued more: a retry, a child, the next of a line
        if turned.promoted or turned.finished or turned.again:
            self._must_look = True

    def _keep_waiting(self, turn: TurnUnderWay, turned: Turned) -> None:
        """Ends that another transaction's lock delays are written later, with growing pauses between the tries."""
        if turn.again:
            self._again_s = min(LONGEST_AGAIN_S, 2 * self._again_s)
            for ended, finished in zip(turn.again, turned.again, strict=True):
                if finished.status is FinishStatus.WAITS:
                    self._waiting.append(ended)
                else:
                    log_end(ended, ended.report, finished)
        if any(finished.status is FinishStatus.WAITS for finished in turned.finished):
            reports = (ended for ended in turn.ended if not ended.written)
            self._wait_for(
                [
                    ended
                    for ended, finished in zip(reports, turned.finished, strict=True)
                    if finished.status is FinishStatus.WAITS
                ]
            )
        elif turn.again:
            self._next_again = self._at() + self._again_s

    def _wait_for(self, waiting: Sequence[Ended]) -> None:
        self._waiting += waiting
        self._again_s = FIRST_AGAIN_S
        self._next_again = self._at() + self._again_s

    def _write_one_by_one(self, error: PerdureError) -> None:
        """The database refused the turn: one bad end must not delay the others."""
        logger.error("the database refused a batch of %d finishes: %s", len(self._unwritten), error)
        self._uncertain = True
        ended = [end.ctx for end in self._unwritten]
        self._unwritten += self._waiting
        self._waiting = []
        waiting: list[Ended] = []
        try:
            self._fallback.write_each(self._unwritten, waiting)
        finally:
            if waiting:
                self._wait_for(waiting)
        self._notes.write_alone(ended)

    def _collect(self) -> None:
        taken = self._inbox.take(self._most_at_once)
        for ended in taken:
            self.held.pop(ended.ctx.claim.run_id, None)
        self._unwritten += taken
        self._expect(taken)

    def _expect(self, ends: Iterable[Ended]) -> None:
        lives = [ended.ctx.claim.live for ended in ends]
        self._expected.update(
            live.queue for live in lives if live.traits & Trait.HAS_DEPENDENTS or live.limit_key is not None
        )

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
        asking = [claim for claim in claims if claim.refs is not None]
        filled, unfit = self._filled(asking) if asking else ({}, {})
        for given in claims:
            claim = filled.get(given.run_id, given) if filled else given
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
            if claim.run_id in unfit:
                self._inbox.put(Ended(ctx, unfit[claim.run_id], RunStats()))
                continue
            tasks[executor].append(task)
        for executor, own in tasks.items():
            executor.start(own)

    def _filled(self, claims: Sequence[Claim]) -> tuple[dict[RunId, Claim], dict[RunId, Report]]:
        """These claims with the results of others among their arguments, all read at once; and how those end that lack
        one, or whose references cannot be read."""
        taking = [(claim, claim.refs) for claim in claims if claim.refs is not None]
        wanted = {source for _, refs in taking for source in sources_of(refs)}
        found = self._store.sources(sorted(wanted)) if wanted else {}
        filled: dict[RunId, Claim] = {}
        unfit: dict[RunId, Report] = {}
        for claim, refs in taking:
            try:
                filled[claim.run_id] = claim._replace(payload=with_results(claim.payload, refs, found))
            except Unknown as unknown:
                missing = Failure("InvalidPayload", f"an argument is missing: {unknown}", permanent=True)
                unfit[claim.run_id] = Failed(missing)
            except DAMAGE:
                unfit[claim.run_id] = Unreadable("the references of this job cannot be read")
        return filled, unfit

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
        knows_of_work = bool(self._expected) or (not self._dry and bool(self._wanted_queues()))
        return at >= self._next_look or (self._must_look and not knows_of_work)

    def _wanted_queues(self) -> list[str]:
        known = self._glance.queues
        if self._expected:
            known = tuple(dict.fromkeys([*known, *sorted(self._expected)]))
        if self._options.queues is None:
            return list(known)
        return [queue for queue in self._options.queues if queue in known]

    def _lanes(self) -> list[Lane]:
        """The queues to claim from, in order, each with the room it has. Empty: claim nothing now."""
        room = min(self._room(), self._most_at_once)
        if not self.accepting or room <= 0 or (self._dry and not self._expected):
            return []
        queues = self._wanted_queues()
        if queues and (self._options.order == "round_robin" or self._options.queues is None):
            first = self._claims_made % len(queues)
            queues = queues[first:] + queues[:first]
        if not self._options.per_queue:
            return [Lane(queue, room) for queue in queues]
        running = Counter(task.claim.live.queue for task in self.held.values())
        for lane in (lane for turn in self._under_way for lane in turn.wanted.lanes):
            running[lane.queue] += lane.room
        limits = {queue: self._options.per_queue.get(queue, room) - running[queue] for queue in queues}
        return [Lane(queue, min(room, limits[queue])) for queue in queues if limits[queue] > 0]

    def _room(self) -> int:
        """Ends that wait for a lock take no room, but a node never holds more than twice as many jobs as can run."""
        room = self._options.concurrency - len(self.held) - sum(turn.room for turn in self._under_way)
        return room - max(0, len(self._waiting) - self._options.concurrency)

    def _claimer(self) -> Claimer:
        most = self._options.max_crashes
        crashed = [task.claim.live for task in self.held.values() if task.claim.live.crashes]
        company = max((_suspicion(live, most) for live in crashed), default=Suspicion.NONE)
        if any(turn.may_claim_crashed for turn in self._under_way):  # nobody knows yet whether it does
            company = Suspicion.SUSPECT
        run_ids = cast("Sequence[RunId]", Drawn(self._parts.ids, min(self._room(), self._most_at_once)))
        return Claimer(self.id, self._parts.kinds.versions(), run_ids, self._lease_us, company, most)

    def _pause(self) -> float:
        """Seconds until something is due by the clock."""
        at = self._at()
        is_work_known = bool(self._glance.queues and self._lanes()) or self._has_flows_to_see_to()
        if self._inbox or self._wants_a_look(at) or is_work_known:
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


Said = list[tuple[JobContext, RunNotes]]
"""What runs have said and nobody has written yet."""


class NoteBuffer:
    """Gathers notes for the next turn, and keeps them if that turn fails."""

    def __init__(self, parts: Parts) -> None:
        self._store = parts.store
        self._clock = parts.clock
        self._unwritten: Said = []
        self.next = 0.0
        """When notes of runs that have not ended are written next, by `boottime`."""

    def take(self, ended: Iterable[JobContext], unended: Iterable[JobContext]) -> Said:
        """What ended runs have said, now; what the others have said, about once a second."""
        contexts = list(ended)
        at = self._clock.boottime()
        if at >= self.next and not self._unwritten:  # during an outage runs keep their newest lines themselves
            self.next = at + NOTES_EVERY_S
            contexts += unended
        said = [(ctx, notes) for ctx in contexts if (notes := ctx.take_notes()) is not None]
        taken, self._unwritten = self._unwritten + said, []
        return taken

    def put_back(self, said: Said) -> None:
        """These are not written."""
        self._unwritten = said + self._unwritten

    def write_alone(self, ended: Iterable[JobContext]) -> None:
        """Write the notes alone, after a refusal. What the database refuses is dropped: it must not stop the node."""
        said = self.take(ended, ())
        try:
            if said:
                self._store.turn(Turn(notes=_notes_of(said)), self._clock.now())
        except OUTAGES:
            self.put_back(said)
            raise
        except PerdureError as error:
            logger.warning("the notes of %d runs were refused and are dropped: %s", len(said), error)


def _notes_of(said: Said) -> Notes | None:
    if not said:
        return None
    return Notes(
        lines=[line for _, notes in said for line in notes.lines],
        artifacts=[(ctx.claim.run_id, notes.artifacts) for ctx, notes in said if notes.artifacts],
        metrics=[(ctx.claim.run_id, notes.metrics) for ctx, notes in said if notes.metrics is not None],
        kept_from=list({line.run_id: line for line in _dropped(said)}.values()),  # of one run the last counts
    )


def _dropped(said: Said) -> list[LogLine]:
    """For each run that logged too much, one line in place of those dropped."""
    return [
        notes.lines[0]._replace(
            line=notes.first_kept - 1,
            level="…",
            message=f"{notes.first_kept} earlier lines were dropped",
            fields=None,
        )
        for _, notes in said
        if notes.first_kept and notes.lines
    ]
