"""`Worker`: the threads around a node, how they start and how they end. Made by `app.worker`.

The store thread runs the `WorkLoop`, another thread the heartbeat. The caller that starts the worker also takes it down
(`join`), in reverse order. `worker.running()` is a worker beside other code, for `with` and `async with`.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from perdure.errors import PerdureError, StoreError
from perdure.ids import to_uuid
from perdure.kind import Registry
from perdure.names import public
from perdure.store.protocols import Bell
from perdure.upkeep.chore import Chores
from perdure.upkeep.openings import OpeningWatch
from perdure.upkeep.rescue import Rescuer
from perdure.upkeep.reservations import ReservationWatch
from perdure.worker.capture import capturing
from perdure.worker.executors.loop import LoopExecutor
from perdure.worker.executors.threads import ThreadExecutor
from perdure.worker.executors.wire import check_not_importing
from perdure.worker.health import Health, Status, problem_of
from perdure.worker.heartbeat import ClockWatch, Exclusive, Heartbeat, LoopProbe
from perdure.worker.lifecycle import say
from perdure.worker.lifespan import Lifespan
from perdure.worker.loop import HURRY, SETTLE_S, SPLIT_FROM, STOP, StopRequest, TurnThreads, WorkLoop
from perdure.worker.node import Node
from perdure.worker.options import Parts, WorkerOptions
from perdure.worker.run import AnyKind, Executor, Inbox
from perdure.worker.signals import Stop

if TYPE_CHECKING:
    from perdure.schedule.scheduler import Scheduler
    from perdure.worker.context import JobContext

T = TypeVar("T")

SIGNAL_WITHIN_S = 0.5
"""How late a signal may be noticed at worst."""

EXIT_CLEAN = 0
EXIT_LEFT_BEHIND = 3
"""Some handlers did not end, or their outcomes could not be written: the next worker rescues the jobs."""
EXIT_HUNG = 75
"""The store thread hung or failed: the process ends so that another one can take over."""

logger = logging.getLogger("perdure.worker")


class Pools:
    """The executors of one worker, each made when a job first needs it.

    Coroutines go to the event loop, functions to threads, and kinds with `isolation="process"` to processes.
    """

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._lock = threading.Lock()
        self._made: dict[str, Executor] = {}

    def of(self, kind: AnyKind) -> Executor:
        return self._get(kind.isolation or ("loop" if kind.is_async else "thread"))

    def loop(self) -> asyncio.AbstractEventLoop:
        return self._loop_executor().loop

    def _loop_executor(self) -> LoopExecutor:
        """Also called in the threads of runs."""
        made = self._get("loop")
        assert isinstance(made, LoopExecutor)
        return made

    @property
    def has_loop(self) -> bool:
        return "loop" in self._made

    def close(self, patience_s: float) -> bool:
        """No more runs will come. False: some handlers have not ended in time and are left behind."""
        with self._lock:
            made = list(self._made.values())
        ended = [executor.close(patience_s) for executor in made]  # all of them, even if one returns False
        return all(ended)

    def _get(self, sort: str) -> Executor:
        with self._lock:
            made = self._made.get(sort)
            if made is None:
                made = self._made[sort] = self._make(sort)
            return made

    def _make(self, sort: str) -> Executor:
        if sort == "loop":
            return LoopExecutor(self._inbox)
        if sort == "process":
            from perdure.worker.executors.processes import ProcessExecutor

            return ProcessExecutor(self._inbox)
        return ThreadExecutor(self._inbox, self._loop_executor)


INNER = frozenset(("contexts", "is_at_work", "is_forked", "is_hurried", "join", "note_fork", "serves", "start"))
"""What a worker has for the package's own parts; users are not shown it."""


class Worker:
    """Runs jobs until it is asked to stop. One use: make another to start again."""

    def __init__(self, parts: Parts, options: WorkerOptions, check: Callable[[], object] = bool) -> None:
        """`check` raises where the worker may not be started now."""
        self._parts = parts
        self._options = options
        self._check = check
        self._bell: Bell | None = None
        self._stopping = StopRequest(self._ring)
        self._node: Node | None = None
        self._heartbeat: Heartbeat | None = None
        self._pools: Pools | None = None
        self._exclusive: Exclusive | None = None
        self._loop_probe: LoopProbe | None = None
        self._thread: threading.Thread | None = None
        self._around = ExitStack()
        """What `join` takes down, newest first."""
        self._over = threading.Event()
        """There will be no more turns."""
        self._is_used = self._has_signed_off = False
        self._until_idle = False
        self._process = os.getpid()
        self.exit_code = EXIT_CLEAN
        """What `run` returns: 0 while nothing is wrong; docs/worker.md lists the others."""
        _workers.add(self)

    # -- for users ---------------------------------------------------------------------------------------------------

    def run(self, *, until_idle: bool = False, started: Callable[[], object] | None = None) -> int:
        """Run jobs until a signal says stop, or with `until_idle` until nothing is queued, running or due.

        Returns the exit code for the process (see docs/worker.md). On the main thread SIGTERM and SIGINT end it: the
        first lets running jobs finish for the grace, the second releases them at once, a third ends the process.
        `started` is called when the node is registered, before its first claim.
        """
        self._until_idle = until_idle
        with self._stopping.from_signals():
            self.start(started)
            try:
                with _settled_in():
                    self._wait_until_over()
            except BaseException:
                self.hurry()
                raise
            finally:
                self.join()
        return self.exit_code

    def running(self) -> Running:
        """`with app.worker().running(): …` or `async with …`: jobs run beside the block, in this process.

        Signals are left to the rest of the process. The end of the block lets running jobs finish for the grace.
        """
        return Running(self)

    def stop(self) -> None:
        """Claim nothing more, let running jobs finish for the grace, then release them. Returns at once."""
        self._check_process()
        self._stopping.ask(STOP)

    def hurry(self) -> None:
        """Claim nothing more, interrupt what still runs, and release it. Returns at once."""
        self._check_process()
        self._stopping.ask(HURRY)

    def health(self) -> Health:
        """The state of the worker, for probes. Any thread may call it; it never waits."""
        status, node = self._status, self._node
        if node is None or self.is_forked:
            return Health(status, problem_of(status, 0, None, None, 0))
        at, lease_s = self._parts.clock.boottime(), self._options.lease_s
        beat = None if self._heartbeat is None else self._heartbeat.last_beat
        turn_age_s = None if node.last_success is None else at - node.last_success
        beat_age_s = None if beat is None else at - beat
        blocked_s = 0.0 if self._loop_probe is None else self._loop_probe.blocked_s
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
    def contexts(self) -> list[JobContext]:
        """Of the jobs that run here. Any thread may ask."""
        return [] if self._node is None else [task.ctx for task in list(self._node.held.values())]

    @property
    def is_hurried(self) -> bool:
        """It was asked to end without the grace, as the second signal does."""
        return self._stopping.level >= HURRY

    @property
    def is_forked(self) -> bool:
        """This is a child of the process that the worker was made in: it does not run here."""
        return os.getpid() != self._process

    @property
    def is_at_work(self) -> bool:
        """It was started in this process, and its store thread has not ended."""
        has_ended = self._over.is_set() and (self._thread is None or not self._thread.is_alive())
        return self._is_used and not has_ended and not self.is_forked

    def __dir__(self) -> list[str]:
        return public(super().__dir__(), INNER)

    def serves(self, kinds: Registry) -> bool:
        return self._parts.kinds is kinds

    @property
    def _status(self) -> Status:
        if self.is_forked:
            return "forked"
        if self._stopping.given_up:
            return "hung"
        if self._over.is_set():
            return "stopped"
        if self._thread is None:
            return "starting"
        return "stopping" if self._stopping.level else "running"

    # -- start and end -----------------------------------------------------------------------------------------------

    def start(self, started: Callable[[], object] | None = None) -> None:
        """Schema check, hooks, lifespan, recovery, then the threads. After an error nothing is left running."""
        self._check_process()
        if self._is_used:
            raise PerdureError("this worker was started before; make another with app.worker()", code="worker_used")
        self._check()
        self._is_used = True
        try:
            self._start(started)
        except BaseException:
            self._over.set()
            self._around.close()
            raise

    def _start(self, started: Callable[[], object] | None) -> None:
        # the first use of the store: checks the schema, or makes it
        bell = self._bell = self._parts.store.bell(self._options.queues)
        self._around.callback(self._close_bell)
        for hook in reversed(self._options.after_stop):
            self._around.callback(hook)
        for hook in self._options.before_start:
            hook()
        self._prepare_kinds()
        inbox = Inbox(bell.ring)
        self._pools = pools = Pools(inbox)
        self._around.enter_context(capturing())
        self._around.callback(self._close_pools)
        state = self._enter_lifespan(pools)
        hands = None
        if self._options.concurrency >= SPLIT_FROM and not self._parts.store.single_writer:
            hands = TurnThreads(bell.ring)
            self._around.callback(hands.close)
        self._node = node = Node(self._parts, self._options, pools, inbox, state, hands=hands)
        if self._options.exclusive is not None:
            self._exclusive = Exclusive(self._options.exclusive, self._parts, node, self._options.lease_s)
        chores = self._chores(node)
        work_loop = WorkLoop(node, chores, bell, self._parts.clock, self._stopping, self._options.grace_s)
        work_loop.exclusive = self._exclusive
        node.register()
        self._around.callback(self._sign_off, "start_failed")
        chores.start()
        self._heartbeat = self._new_heartbeat(node, pools, work_loop)
        self._heartbeat.start()
        if started is not None:
            started()
        self._thread = threading.Thread(target=self._serve, args=(node, work_loop), name="perdure-store", daemon=True)
        names = sorted(kind.name for kind in self._parts.kinds)
        facts = {"event": "started", "node_id": str(to_uuid(node.id)), "kinds": names}
        say(logger, logging.INFO, f"worker started as node {to_uuid(node.id)}", facts)
        self._thread.start()

    def _chores(self, node: Node) -> Chores:
        parts = self._parts
        chores = [
            Rescuer(parts, self._options).chore(lambda: node.id),
            ReservationWatch(parts.store, parts.clock, parts.liveness).chore(),
            OpeningWatch(parts.store, parts.clock, parts.ids).chore(),
        ]
        if self._options.schedules:
            chores.append(self._scheduler().chore(lambda: node.id))
        return Chores(chores, parts.clock, node.look_again)

    def _scheduler(self) -> Scheduler:
        from perdure.schedule.scheduler import Scheduler  # loads cronsim and the time zones
        from perdure.upkeep.retention import built_in

        parts = self._parts
        upkeep = built_in(parts.store, parts.clock, parts.retention, parts.kinds)
        return Scheduler(parts.store, parts.clock, parts.ids, parts.owner, parts.declared, upkeep)

    def _prepare_kinds(self) -> None:
        """Read their signatures now: it takes time that the first job of each would pay for."""
        for kind in self._parts.kinds:
            try:
                kind.codec  # noqa: B018 - made on first use
            except PerdureError as error:
                logger.error("jobs of kind %s cannot run: %s", kind.name, error)  # noqa: TRY400 - the message is enough

    def join(self) -> None:
        """Wait until the worker has ended, and take down what is left of it. An error of a hook is raised here."""
        self._check_process()
        if not self._is_used:
            return
        self._wait_until_over()
        self._wait_for_the_thread()
        self._around.close()

    def _wait_until_over(self) -> None:
        # In short waits: the kernel may give a signal to another thread, and that does not end a wait of this one.
        while not self._over.wait(SIGNAL_WITHIN_S):
            pass

    def _wait_for_the_thread(self) -> None:
        """It signs the node off. No watchdog runs any more that would notice if that call hung."""
        thread = self._thread
        if thread is None or thread.ident is None:
            return
        deadline = time.monotonic() + self._options.patience_s
        while thread.is_alive() and not self._stopping.given_up:
            if time.monotonic() > deadline:
                logger.critical("the store thread does not end; this worker ends without it")
                self._give_up()
            thread.join(SIGNAL_WITHIN_S)

    def _enter_lifespan(self, pools: Pools) -> Mapping[str, Any]:
        if self._options.lifespan is None:
            return {}
        lifespan = Lifespan(self._options.lifespan, pools.loop)
        self._around.callback(
            lambda: lifespan.leave(SETTLE_S if self._stopping.level >= HURRY else self._options.grace_s)
        )
        return lifespan.enter()

    def _new_heartbeat(self, node: Node, pools: Pools, work_loop: WorkLoop) -> Heartbeat:
        self._loop_probe = LoopProbe(lambda: pools.loop() if pools.has_loop else None, self._parts.clock)
        watch = ClockWatch(self._parts.clock)
        watch.look()
        acts: list[Callable[[], object]] = [self._loop_probe.ping, watch.look]
        if self._exclusive is not None:
            self._keep_exclusive()
            acts.append(self._keep_exclusive)
        return Heartbeat(node, self._parts, self._options, self._give_up, lambda: work_loop.moves, acts)

    def _close_pools(self) -> None:
        assert self._pools is not None
        patience_s = SETTLE_S if self.exit_code == EXIT_CLEAN else 0.0  # the others have had their time
        if not self._pools.close(patience_s):
            self.exit_code = self.exit_code or EXIT_LEFT_BEHIND

    def _close_bell(self) -> None:
        """If the store thread hung, only that thread closes it: it may come back and use the descriptors."""
        if self._stopping.given_up and threading.current_thread() is not self._thread:
            return
        bell, self._bell = self._bell, None
        if bell is not None:
            bell.close()

    # -- the store thread --------------------------------------------------------------------------------------------

    def _serve(self, node: Node, work_loop: WorkLoop) -> None:
        try:
            if not work_loop.run(until_idle=self._until_idle):
                self.exit_code = self.exit_code or EXIT_LEFT_BEHIND
        except BaseException:
            logger.critical("the store thread failed; this worker has ended", exc_info=True)
            self._give_up()
        finally:
            self._over.set()
            self._sign_off("clean_shutdown" if node.is_empty else "unclean_shutdown")
            logger.info("worker ended")
            if self._stopping.given_up:
                self._close_bell()

    def _sign_off(self, reason: str) -> None:
        """Sign the node off, once. Not while handlers still run: others must see its process end first."""
        if self._has_signed_off or self._stopping.given_up:
            return
        self._has_signed_off = True
        assert self._node is not None
        if self._heartbeat is not None:
            self._heartbeat.stop()
        if self._node.held or self._stopping.given_up:
            return
        try:
            if self._exclusive is not None:
                self._exclusive.release()
            self._node.sign_off(reason)
        except StoreError as error:
            logger.warning("the node could not sign off; others will see that it is gone: %s", error)

    # -- the heartbeat's thread ---------------------------------------------------------------------------------------

    def _keep_exclusive(self) -> None:
        if self._exclusive is not None and self._node is not None and self._exclusive.keep():
            self._node.look_again()
            self._ring()

    def _give_up(self) -> None:
        """The store thread does not move, or has failed. Stop the jobs and the heartbeat; never end the process.

        If the thread comes back, it finds a request to stop.
        """
        self.exit_code = EXIT_HUNG
        self._stopping.give_up()
        if self._heartbeat is not None:
            self._heartbeat.stop_beating()
        try:
            if self._node is not None:
                self._node.accepting = False
                self._node.interrupt_all(Stop.LOST)
        finally:
            self._over.set()

    # -- rings and forks ---------------------------------------------------------------------------------------------

    def _ring(self) -> None:
        bell = self._bell
        if bell is not None:
            bell.ring()

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
            logger.warning("this process was forked while a worker ran; the worker runs in the parent only")


_workers: weakref.WeakSet[Worker] = weakref.WeakSet()


def is_at_work(kinds: Registry) -> bool:
    """Whether a worker for the app with these kinds runs in this process."""
    return any(worker.serves(kinds) and worker.is_at_work for worker in list(_workers))


def _after_in_child() -> None:
    for worker in list(_workers):
        worker.note_fork()


os.register_at_fork(after_in_child=_after_in_child)


class Running:
    """Jobs run while the block does. At its end they have the worker's grace to finish.

    A forked child that leaves the block leaves the parent's worker alone.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def __enter__(self) -> Worker:
        self._worker.start()
        return self._worker

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._worker.is_forked:
            self._worker.stop()
            self._worker.join()

    async def __aenter__(self) -> Worker:
        try:
            await finish_in_thread(self._worker.start)
        except asyncio.CancelledError:
            await self.__aexit__(None, None, None)
            raise
        return self._worker

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._worker.is_forked:
            self._worker.stop()
            await finish_in_thread(self._worker.join)


async def finish_in_thread(act: Callable[[], T]) -> T:
    """Call it in a new thread while the event loop runs. A cancel of this task takes effect afterwards."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[BaseException | None] = loop.create_future()
    results: list[T] = []

    def serve() -> None:
        raised: BaseException | None = None
        try:
            results.append(act())
        except BaseException as error:  # noqa: BLE001 - raised in the task that waits
            raised = error
        loop.call_soon_threadsafe(done.set_result, raised)

    threading.Thread(target=serve, name="perdure-embedded", daemon=True).start()
    cancelled: asyncio.CancelledError | None = None
    while not done.done():
        try:
            await asyncio.shield(done)
        except asyncio.CancelledError as error:
            cancelled = error
    raised = done.result()
    if raised is not None:
        raise raised
    if cancelled is not None:
        raise cancelled
    return results[0]


@contextmanager
def _settled_in() -> Generator[None, None, None]:
    """What is there when a worker has started, modules above all, stays until it ends: the garbage collector need not
    look through it again and again. Not where the program has seen to that itself."""
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
