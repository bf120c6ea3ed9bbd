"""`Worker`: threads and signals around a node. Made by `app.worker`; everything that decides is in `node`."""

from __future__ import annotations

import inspect
import logging
import os
import signal
import threading
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any, NamedTuple, Self

from perdure.clock import Clock
from perdure.errors import PerdureError, StoreError
from perdure.ids import IdFactory, to_uuid
from perdure.kind import Registry
from perdure.store.protocols import Bell, Store
from perdure.upkeep.rescue import Rescuer
from perdure.worker.executors.loop import LoopExecutor
from perdure.worker.executors.port import Executor, Inbox
from perdure.worker.executors.threads import ThreadExecutor
from perdure.worker.health import Health
from perdure.worker.heart import Heart
from perdure.worker.liveness import Liveness, ProcLiveness
from perdure.worker.node import Duty, Node, Parts
from perdure.worker.run import AnyKind, Middleware
from perdure.worker.signals import Stop
from perdure.worker.stage import LayOut, Stage

RESCUE_EVERY_S = 1.0
SETTLE_S = 2.0
"""How long interrupted handlers have to end before the worker leaves without them."""

EXIT_CLEAN = 0
EXIT_LEFT_BEHIND = 3
"""Some handlers did not end: their jobs are rescued by the next worker."""
EXIT_HUNG = 75
"""The store thread hung: the process ends so that another one can go on."""

logger = logging.getLogger("perdure.worker")


class WorkerOptions(NamedTuple):
    """What `app.worker(…)` was given, checked."""

    duty: Duty
    grace_s: float = 25.0
    max_crashes: int = 3
    before_start: Sequence[Callable[[], object]] = ()
    after_stop: Sequence[Callable[[], object]] = ()
    lifespan: Callable[[], Any] | None = None
    exclusive: str | None = None
    middleware: Sequence[Middleware] = ()


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

    def of(self, kind: AnyKind) -> Executor:
        sort = kind.isolation or ("loop" if inspect.iscoroutinefunction(kind.function) else "thread")
        if sort not in self._made:
            self._made[sort] = self._make(sort)
        return self._made[sort]

    def _make(self, sort: str) -> Executor:
        if sort == "loop":
            return LoopExecutor(self._inbox)
        return ThreadExecutor(self._inbox)

    def close(self, patience_s: float) -> bool:
        return all([executor.close(patience_s) for executor in self._made.values()])


class Worker:
    """Runs jobs until it is told to stop. One use: make another to start again."""

    def __init__(self, parts: WorkerParts, options: WorkerOptions) -> None:
        self._parts = parts
        self._options = options
        self._bell: Bell | None = None
        self._node: Node | None = None
        self._heart: Heart | None = None
        self._pools: Pools | None = None
        self._rescuer: Rescuer | None = None
        self._thread: threading.Thread | None = None
        self._around = ExitStack()
        self._over = threading.Event()
        self._stopping = threading.Event()
        self._hurry = threading.Event()
        self._until_idle = False
        self._next_rescue = 0.0
        self._process = os.getpid()
        self.exit_code = EXIT_CLEAN
        _workers.add(self)

    # -- for users ---------------------------------------------------------------------------------------------------

    def run(self, *, until_idle: bool = False) -> int:
        """Run jobs until a signal says stop, or with `until_idle` until nothing is queued, running or due.

        Answers the exit code for the process. On the main thread SIGTERM and SIGINT end it: the first lets running
        jobs finish for the grace, the second releases them at once.
        """
        self._until_idle = until_idle
        with self._signals():
            self.start()
            while not self._over.wait(3600):
                pass
        self.join()
        return self.exit_code

    @contextmanager
    def running(self) -> Generator[Worker, None, None]:
        """`with app.worker().running():` jobs run in the background of this process while the block does."""
        self.start()
        try:
            yield self
        finally:
            self.stop()
            self.join()

    def stop(self) -> None:
        """Claim nothing more, let running jobs finish for the grace, then release them. Returns at once."""
        self._stopping.set()
        self._ring()

    def hurry(self) -> None:
        """Release what still runs without waiting for the grace to end."""
        self._hurry.set()
        self.stop()

    def health(self) -> Health:
        """How the worker is, for probes."""
        return Health.of(self._node, self._heart, self._parts.clock, forked=os.getpid() != self._process)

    # -- start and end -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Schema, hooks, recovery, and then the threads."""
        self._check_process()
        if self._node is not None:
            raise PerdureError("this worker was started before; make another with app.worker()", code="worker_used")
        store, clock = self._parts.store, self._parts.clock
        self._bell = store.bell()
        for hook in self._options.before_start:
            hook()
        inbox = Inbox(self._bell.ring)
        self._pools = Pools(inbox)
        state = self._entered_lifespan()
        stage = Stage(store, clock, self._parts.ids, self._parts.lay_out)
        self._node = Node(
            Parts(
                store,
                self._parts.kinds,
                clock,
                self._parts.ids,
                self._parts.liveness,
                self._pools,
                inbox,
                stage,
                self._options.middleware,
                lambda: state,
            ),
            self._options.duty,
        )
        lease_s = self._options.duty.lease_s
        self._rescuer = Rescuer(
            store,
            clock,
            self._parts.ids,
            self._parts.liveness,
            lease_s=lease_s,
            max_crashes=self._options.max_crashes,
        )
        self._node.register()
        self._rescuer.look(self._node.id)
        self._heart = Heart(self._node, store, clock, lease_s=lease_s, hung=self._hung)
        self._heart.start()
        self._thread = threading.Thread(target=self._serve, name="perdure-store", daemon=True)
        self._thread.start()
        logger.info("worker started as node %s", to_uuid(self._node.id))

    def join(self) -> None:
        """Wait until everything has ended, and give back what is held."""
        if self._thread is not None:
            self._thread.join()
        for hook in self._options.after_stop:
            hook()

    def _entered_lifespan(self) -> Mapping[str, Any]:
        return {}

    # -- the store thread --------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        assert self._node is not None
        assert self._bell is not None
        node, bell = self._node, self._bell
        try:
            while not self._stopping.is_set():
                pause = node.turn()
                if node.in_trouble:
                    self._stopping.wait(pause)
                    continue
                if self._until_idle and node.is_idle:
                    break
                pause = min(pause, self._keep_up(node))
                if pause > 0 and bell.wait(pause):
                    node.stir()
            self._wind_down(node, bell)
        except BaseException:
            logger.critical("the store thread failed; this worker has ended", exc_info=True)
            self.exit_code = EXIT_HUNG
            raise
        finally:
            self._end()

    def _keep_up(self, node: Node) -> float:
        """Look after the jobs of others, once a second. Answers for how long that can wait."""
        at = self._parts.clock.boottime()
        if at >= self._next_rescue:
            self._next_rescue = at + RESCUE_EVERY_S
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
        self._drain(node, bell, clock.boottime() + self._options.grace_s, self._hurry)
        if not node.is_empty:
            node.interrupt_all(Stop.SHUTDOWN)
            self._drain(node, bell, clock.boottime() + SETTLE_S, None)
        if node.held:
            logger.error("%d handlers did not end; their jobs are left to the next worker", len(node.held))
            self.exit_code = EXIT_LEFT_BEHIND

    def _drain(self, node: Node, bell: Bell, deadline: float, unless: threading.Event | None) -> None:
        clock = self._parts.clock
        while not node.is_empty and (left := deadline - clock.boottime()) > 0:
            if unless is not None and unless.is_set():
                return
            pause = node.turn()
            if not node.is_empty:
                bell.wait(min(max(pause, 0.01), left, 0.25))

    def _end(self) -> None:
        assert self._node is not None
        assert self._bell is not None
        assert self._heart is not None
        assert self._pools is not None
        with suppress(StoreError):
            self._node.sign_off()
        self._heart.stop()
        self._pools.close(SETTLE_S)
        self._bell.close()
        self._over.set()
        logger.info("worker ended")

    def _hung(self) -> None:
        """Called by the heart. Only `run`, which owns the process, ends it."""
        self.exit_code = EXIT_HUNG
        self._over.set()

    # -- signals -----------------------------------------------------------------------------------------------------

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
                signal.signal(number, handler)

    def _told(self, _number: int, _frame: FrameType | None) -> None:
        if self._stopping.is_set():
            self.hurry()
        else:
            self.stop()

    def _ring(self) -> None:
        if self._bell is not None:
            self._bell.ring()

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise PerdureError(
                "this worker was made before a fork; make and start workers in the process that is to run them",
                code="worker_forked",
            )

    async def __aenter__(self) -> Self:
        raise NotImplementedError

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        raise NotImplementedError


_workers: weakref.WeakSet[Worker] = weakref.WeakSet()
