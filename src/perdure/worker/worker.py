"""`Worker`: threads and signals around a node. Made by `app.worker`; everything that decides is in `node`.

The store thread turns the node; the heart beats for it, in a thread of its own. Whoever starts the worker also takes it
down again (`join`), in the reverse order.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import signal
import threading
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any, NamedTuple

from perdure.clock import Clock
from perdure.errors import PerdureError, StoreError
from perdure.ids import IdFactory, to_uuid
from perdure.kind import Registry
from perdure.store.protocols import Bell, Store
from perdure.upkeep.rescue import Rescuer
from perdure.worker.capture import capturing
from perdure.worker.embedding import Running
from perdure.worker.exclusive import Exclusive
from perdure.worker.executors.loop import LoopExecutor
from perdure.worker.executors.port import Executor, Inbox
from perdure.worker.executors.threads import ThreadExecutor
from perdure.worker.executors.whereabouts import check_not_importing
from perdure.worker.health import Health, Pulse, Status, problem_of
from perdure.worker.heart import Heart
from perdure.worker.lease import LOOKS
from perdure.worker.lifespan import Lifespan
from perdure.worker.liveness import Liveness, ProcLiveness
from perdure.worker.node import Duty, Node, Parts
from perdure.worker.run import AnyKind, Middleware
from perdure.worker.signals import Stop
from perdure.worker.stage import LayOut, Stage

RESCUE_EVERY_S = 1.0
SETTLE_S = 2.0
"""How long interrupted handlers have to end before the worker leaves without them."""
NAP_S = 0.25
SIGNAL_WITHIN_S = 0.5
"""How late a signal may be noticed at worst."""

EXIT_CLEAN = 0
EXIT_LEFT_BEHIND = 3
"""Some handlers did not end, or their outcomes could not be written: the jobs are rescued by the next worker."""
EXIT_HUNG = 75
"""The store thread hung or failed: the process ends so that another one can go on."""

STOP, HURRY = 1, 2

logger = logging.getLogger("perdure.worker")


class WorkerOptions(NamedTuple):
    """What `app.worker(…)` was given, checked."""

    duty: Duty
    grace_s: float = 25.0
    max_crashes: int = 3
    before_start: Sequence[Callable[[], object]] = ()
    after_stop: Sequence[Callable[[], object]] = ()
    lifespan: Callable[[], object] | None = None
    exclusive: str | None = None
    middleware: Sequence[Middleware] = ()
    busy_timeout_s: float = 5.0
    """The longest that a call to the database may take; the watchdog is more patient than that."""


class WorkerParts(NamedTuple):
    """What a worker is made of."""

    store: Store
    kinds: Registry
    clock: Clock
    ids: IdFactory
    lay_out: LayOut
    liveness: Liveness = ProcLiveness()


class Pools:
    """The executors of one worker, each made when a job first needs it."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._made: dict[str, Executor] = {}
        self._by_kind: dict[AnyKind, Executor] = {}

    def of(self, kind: AnyKind) -> Executor:
        found = self._by_kind.get(kind)
        if found is None:
            sort = kind.isolation or ("loop" if inspect.iscoroutinefunction(kind.function) else "thread")
            found = self._made.get(sort) or self._made.setdefault(sort, self._make(sort))
            self._by_kind[kind] = found
        return found

    def _make(self, sort: str) -> Executor:
        if sort == "loop":
            return LoopExecutor(self._inbox)
        if sort == "process":
            from perdure.worker.executors.processes import ProcessExecutor

            return ProcessExecutor(self._inbox)
        return ThreadExecutor(self._inbox)

    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that coroutine handlers run on."""
        made = self._made.setdefault("loop", self._made.get("loop") or self._make("loop"))
        assert isinstance(made, LoopExecutor)
        return made.loop

    @property
    def has_loop(self) -> bool:
        return "loop" in self._made

    def close(self, patience_s: float) -> bool:
        ended = [
            executor.close(patience_s) for executor in self._made.values()
        ]  # each of them, whatever the first says
        return all(ended)


class Worker:
    """Runs jobs until it is told to stop. One use: make another to start again."""

    def __init__(self, parts: WorkerParts, options: WorkerOptions) -> None:
        self._parts = parts
        self._options = options
        self._bell: Bell | None = None
        self._ringing = threading.RLock()  # reentrant: a signal may come while the main thread rings
        self._node: Node | None = None
        self._heart: Heart | None = None
        self._pools: Pools | None = None
        self._rescuer: Rescuer | None = None
        self._exclusive: Exclusive | None = None
        self._pulse: Pulse | None = None
        self._thread: threading.Thread | None = None
        self._around = ExitStack()
        """What `join` takes down, newest first."""
        self._over = threading.Event()
        self._asked = 0  # a number, not events: a signal handler must not wait for a lock
        self._is_used = self._is_hung = self._has_signed_off = False
        self._moves = 0
        self._until_idle = False
        self._next_rescue = 0.0
        self._process = os.getpid()
        self.exit_code = EXIT_CLEAN
        _workers.add(self)

    # -- for users ---------------------------------------------------------------------------------------------------

    def run(self, *, until_idle: bool = False, started: Callable[[], object] | None = None) -> int:
        """Run jobs until a signal says stop, or with `until_idle` until nothing is queued, running or due.

        Answers the exit code for the process (see docs/worker.md). On the main thread SIGTERM and SIGINT end it: the
        first lets running jobs finish for the grace, the second releases them at once, a third ends the process.
        `started` is called once the worker runs.
        """
        self._until_idle = until_idle
        with self._signals():
            self.start()
            try:
                if started is not None:
                    started()
                # Two signals in a row: the kernel may give the second to another thread, and it does not end this wait.
                while not self._over.wait(SIGNAL_WITHIN_S):
                    pass
            except BaseException:
                self.hurry()
                raise
            finally:
                self.join()
        return self.exit_code

    def running(self) -> Running[Worker]:
        """`with app.worker().running(): …` or `async with …`: jobs run beside the block, in this process.

        Signals are left to the rest of the process. The end of the block lets running jobs finish for the grace.
        """
        return Running(self)

    def stop(self) -> None:
        """Claim nothing more, let running jobs finish for the grace, then release them. Returns at once."""
        self._check_process()
        self._ask(STOP)

    def hurry(self) -> None:
        """The same without the grace: what still runs is interrupted and released."""
        self._check_process()
        self._ask(HURRY)

    def health(self) -> Health:
        """How the worker is, for probes. Any thread may ask; asks nobody and waits for nothing."""
        status, node = self._status, self._node
        if node is None or self.is_forked:
            return Health(status, problem_of(status, 0, None, None, 0))
        at, lease_s = self._parts.clock.boottime(), self._options.duty.lease_s
        beat = None if self._heart is None else self._heart.last_beat
        turn_age_s = None if node.last_success is None else at - node.last_success
        beat_age_s = None if beat is None else at - beat
        blocked_s = 0.0 if self._pulse is None else self._pulse.blocked_s
        return Health(
            status=status,
            problem=problem_of(status, lease_s, turn_age_s, beat_age_s, blocked_s),
            node_id=to_uuid(node.id),
            running=len(node.held),
            turn_age_s=turn_age_s,
            beat_age_s=beat_age_s,
            loop_blocked_s=blocked_s,
            exclusive=self._options.exclusive,
            standby=self._exclusive is not None and not self._exclusive.held,
        )

    @property
    def is_forked(self) -> bool:
        """This is a child of the process that the worker was made in: it does not run here."""
        return os.getpid() != self._process

    @property
    def _status(self) -> Status:
        if self.is_forked:
            return "forked"
        if self._is_hung:
            return "hung"
        if self._over.is_set():
            return "stopped"
        if self._thread is None:
            return "starting"
        return "stopping" if self._asked else "running"

    # -- start and end -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Schema check, hooks, lifespan, recovery, and then the threads. After an error nothing of it remains."""
        self._check_process()
        if self._is_used:
            raise PerdureError("this worker was started before; make another with app.worker()", code="worker_used")
        self._is_used = True
        try:
            self._start()
        except BaseException:
            self._over.set()
            self._around.close()
            raise

    def _start(self) -> None:
        self._bell = self._parts.store.bell()  # the first use of the store: checks the schema, or makes it
        self._around.callback(self._close_bell)
        for hook in reversed(self._options.after_stop):
            self._around.callback(hook)
        for hook in self._options.before_start:
            hook()
        inbox = Inbox(self._ring)
        self._pools = pools = Pools(inbox)
        self._around.enter_context(capturing())
        self._around.callback(self._close_pools)
        state = self._enter_lifespan(pools)
        self._node = node = self._new_node(pools, inbox, state)
        self._rescuer = self._new_rescuer()
        self._around.callback(self._sign_off, "start_failed")
        node.register()
        self._rescuer.look(node.id)
        self._heart = self._new_heart(node, pools)
        self._heart.start()
        self._thread = threading.Thread(target=self._serve, name="perdure-store", daemon=True)
        self._thread.start()
        logger.info("worker started as node %s", to_uuid(node.id))

    def join(self) -> None:
        """Wait until the worker has ended, and take down what is left of it. An error of a hook is raised here."""
        self._check_process()
        if not self._is_used:
            return
        while not self._over.wait(SIGNAL_WITHIN_S):
            pass
        if self._thread is not None and self._thread.ident is not None and not self._is_hung:
            self._thread.join()
        self._around.close()

    def _enter_lifespan(self, pools: Pools) -> Mapping[str, Any]:
        if self._options.lifespan is None:
            return {}
        lifespan = Lifespan(self._options.lifespan, pools.loop)
        self._around.callback(lambda: lifespan.leave(SETTLE_S if self._asked >= HURRY else self._options.grace_s))
        return lifespan.enter()

    def _new_node(self, pools: Pools, inbox: Inbox, state: Mapping[str, Any]) -> Node:
        parts = self._parts
        return Node(
            Parts(
                parts.store,
                parts.kinds,
                parts.clock,
                parts.ids,
                parts.liveness,
                pools,
                inbox,
                Stage(parts.store, parts.clock, parts.ids, parts.lay_out),
                self._options.middleware,
                lambda: state,
            ),
            self._options.duty,
        )

    def _new_rescuer(self) -> Rescuer:
        parts, options = self._parts, self._options
        return Rescuer(
            parts.store,
            parts.clock,
            parts.ids,
            parts.liveness,
            lease_s=options.duty.lease_s,
            max_crashes=options.max_crashes,
        )

    def _new_heart(self, node: Node, pools: Pools) -> Heart:
        store, clock, options = self._parts.store, self._parts.clock, self._options
        lease_s = options.duty.lease_s
        self._pulse = Pulse(lambda: pools.loop() if pools.has_loop else None, clock)
        acts: list[Callable[[], object]] = [self._pulse.ping]
        if options.exclusive is not None:
            self._exclusive = Exclusive(options.exclusive, store, clock, node, lease_s)
            self._keep_exclusive()
            acts.append(self._keep_exclusive)
        return Heart(
            node,
            store,
            clock,
            lease_s=lease_s,
            hung=self._give_up,
            patience_s=max(lease_s, 3 * options.busy_timeout_s),
            moves=lambda: self._moves,
            also=acts,
        )

    def _close_pools(self) -> None:
        assert self._pools is not None
        patience_s = SETTLE_S if self.exit_code == EXIT_CLEAN else 0.0  # those left behind have had their chance
        if not self._pools.close(patience_s):
            self.exit_code = self.exit_code or EXIT_LEFT_BEHIND

    def _close_bell(self) -> None:
        """By the store thread itself where that hung: while it may come back, its descriptors must stay its own."""
        if self._is_hung and threading.current_thread() is not self._thread:
            return
        with self._ringing:
            bell, self._bell = self._bell, None
        if bell is not None:
            bell.close()

    # -- the store thread --------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        assert self._node is not None
        assert self._bell is not None
        node, bell = self._node, self._bell
        try:
            self._work(node, bell)
            self._wind_down(node, bell)
        except BaseException:
            logger.critical("the store thread failed; this worker has ended", exc_info=True)
            self._give_up()
        finally:
            self._sign_off("clean_shutdown" if node.is_empty else "unclean_shutdown")
            self._over.set()
            logger.info("worker ended")
            if self._is_hung:
                self._close_bell()

    def _work(self, node: Node, bell: Bell) -> None:
        while not self._asked:
            self._moves += 1
            if self._exclusive is not None:
                node.accepting = self._exclusive.held
            pause = node.turn()
            if node.in_trouble:
                self._sit_out(pause)
                continue
            if self._until_idle and node.is_idle:
                return
            pause = min(pause, self._keep_up(node))
            if pause > 0 and bell.wait(pause):
                node.stir()

    def _sit_out(self, pause_s: float) -> None:
        """Wait for the database to come back, whoever rings; but not longer than this worker is wanted."""
        deadline = self._parts.clock.boottime() + pause_s
        while not self._asked and self._parts.clock.boottime() < deadline:
            self._moves += 1
            self._over.wait(min(NAP_S, pause_s))

    def _keep_up(self, node: Node) -> float:
        """Look after the jobs of others, once a second. Answers for how long that can wait."""
        at = self._parts.clock.boottime()
        if at >= self._next_rescue:
            # Often enough that a short lease sees three looks: see `lease.Watch`.
            self._next_rescue = at + min(RESCUE_EVERY_S, self._options.duty.lease_s / (2 * LOOKS))
            assert self._rescuer is not None
            try:
                if self._rescuer.look(node.id):
                    node.stir()
            except StoreError as error:
                logger.warning("looking for dead nodes failed: %s", error)
        return self._next_rescue - at

    def _wind_down(self, node: Node, bell: Bell) -> None:
        """Let running jobs finish for the grace, then make them."""
        clock = self._parts.clock
        node.tell_to_stop()
        if node.held:
            logger.info("stopping; %d jobs have %g s to finish", len(node.held), self._options.grace_s)
        self._drain(node, bell, clock.boottime() + self._options.grace_s, or_hurry=True)
        if not node.is_empty:
            node.interrupt_all(Stop.SHUTDOWN)
            self._drain(node, bell, clock.boottime() + SETTLE_S)
        if not node.is_empty:
            self.exit_code = EXIT_LEFT_BEHIND
            if node.held:
                logger.error("%d handlers did not end; their jobs are left to the next worker", len(node.held))
            else:
                logger.error("the last outcomes could not be written; their jobs are left to the next worker")

    def _drain(self, node: Node, bell: Bell, deadline: float, *, or_hurry: bool = False) -> None:
        clock = self._parts.clock
        while not node.is_empty and (left := deadline - clock.boottime()) > 0:
            if or_hurry and self._asked >= HURRY:
                return
            self._moves += 1
            pause = node.turn()
            if not node.is_empty:
                bell.wait(min(max(pause, 0.01), left, NAP_S))

    def _sign_off(self, reason: str) -> None:
        """The node says goodbye, once. Not while handlers still run: others must see its process end first."""
        if self._has_signed_off or self._is_hung:
            return
        self._has_signed_off = True
        assert self._node is not None
        if self._heart is not None:
            self._heart.stop()
        if self._node.held:
            return
        try:
            if self._exclusive is not None:
                self._exclusive.release()
            self._node.sign_off(reason)
        except StoreError as error:
            logger.warning("the node could not sign off; others will see that it is gone: %s", error)

    # -- the heart's thread ------------------------------------------------------------------------------------------

    def _keep_exclusive(self) -> None:
        if self._exclusive is not None and self._node is not None and self._exclusive.keep():
            self._node.stir()
            self._ring()

    def _give_up(self) -> None:
        """The store thread does not move, or has failed. Stop the jobs, beat no more, and say so; never end the host.

        If the thread comes back, it finds itself asked to stop.
        """
        self.exit_code = EXIT_HUNG
        self._is_hung = True
        self._asked = HURRY
        if self._heart is not None:
            self._heart.beat_no_more()
        try:
            if self._node is not None:
                self._node.accepting = False
                self._node.interrupt_all(Stop.LOST)
        finally:
            self._over.set()

    # -- signals and forks -------------------------------------------------------------------------------------------

    @contextmanager
    def _signals(self) -> Generator[None, None, None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._told) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _told(self, number: int, _frame: FrameType | None) -> None:
        if self._asked >= HURRY and not self._is_hung:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self._ask(self._asked + 1)

    def _ask(self, what: int) -> None:
        self._asked = max(self._asked, what)
        self._ring()

    def _ring(self) -> None:
        with self._ringing:
            if self._bell is not None:
                self._bell.ring()

    def _check_process(self) -> None:
        check_not_importing()
        if self.is_forked:
            raise PerdureError(
                "this worker was made before a fork; make and start workers in the process that is to run them",
                code="worker_forked",
            )

    def note_fork(self) -> None:
        """Called in a forked child."""
        if self._thread is not None and not self._over.is_set():
            logger.warning("this process was forked beside a running worker, which runs in the parent only")


_workers: weakref.WeakSet[Worker] = weakref.WeakSet()


def _after_in_child() -> None:
    for worker in list(_workers):
        worker.note_fork()


os.register_at_fork(after_in_child=_after_in_child)
