"""Plain functions, in threads. Started by `worker`, fed by `node`."""

from __future__ import annotations

import contextvars
import heapq
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any

from perdure.job.model import RunStats
from perdure.uninterrupted import Mark, uninterrupted
from perdure.worker.context import JobContext
from perdure.worker.executors.loop import LoopCall, LoopExecutor
from perdure.worker.run import WARN_AT, Assignment, Ended, Inbox, logger, report_of_error, run_plain, warn_of_timeout
from perdure.worker.signals import Interrupted, Stop

TRIES = 200
TRY_AGAIN_S = 0.001


class ThreadExecutor:
    """As many threads as runs have ever been open at once; the node limits how many.

    A thread cannot be killed. To stop a run an exception is raised inside its thread, which takes effect when the
    handler next executes Python code; until then the run stays open and its slot taken. It is raised in the handler
    only, never in our own code, nor in calls on the store that the handler makes: see `uninterrupted`. But it may hit
    any line of the standard library: a lock that is taken by Python code (`threading.Condition`, `queue.Queue`,
    `logging` before Python 3.13) and not by a `with` on the lock itself can stay taken. So the threads here wait only
    for locks and queues that are written in C.

    One thread is woken at a time, and wakes the next when it has taken a run: that one runs as soon as the first waits
    for anything, or after the interpreter's switch interval. So short handlers run one after the other in few threads,
    and those that wait run at the same time, as if all had been woken at once.
    """

    def __init__(self, inbox: Inbox, loop: Callable[[], LoopExecutor]) -> None:
        """`loop` returns the executor that runs the awaitables which plain functions return."""
        self._inbox = inbox
        self._loop = loop
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._todo: deque[Assignment] = deque()
        self._slots: list[_ThreadSlot] = []
        self._idle: list[_ThreadSlot] = []
        """Threads that sleep; the last to fall asleep is woken first."""
        self._woken: _ThreadSlot | None = None
        """The thread that was woken and has taken nothing yet."""
        self._has_unrung = False
        """Runs have ended without a ring: the thread that takes the last of `todo` rings."""
        self._is_closing = False
        self._open: dict[JobContext, _ThreadSlot | None] = {}
        """Runs that have not ended. None: it waits for a thread."""
        self._called_off: set[JobContext] = set()
        """Runs that were stopped while they waited for a thread."""
        self._timekeeper: _Timekeeper | None = None

    def start(self, tasks: Sequence[Assignment]) -> None:
        with self._lock:
            self._open.update((task.ctx, None) for task in tasks)
            missing = len(self._open) - len(self._slots)
        self._grow(missing)
        if self._timekeeper is None and any(task.timeout_s is not None for task in tasks):
            self._timekeeper = _Timekeeper(self)
        with self._lock:
            self._todo.extend(tasks)
            woken = self._next_to_wake()
        if woken is not None:
            woken.wake()

    def stop(self, ctx: JobContext, why: Stop) -> None:
        for _ in range(TRIES):
            if self._stopped(ctx, why):
                return
            time.sleep(TRY_AGAIN_S)
        self._stopped(ctx, why, surely=True)

    def _stopped(self, ctx: JobContext, why: Stop, *, surely: bool = False) -> bool:
        """False: the exception might hit another thread just now."""
        with self._lock:
            if ctx not in self._open:
                return True
            ctx.stop = ctx.stop or why
            slot = self._open[ctx]
            if slot is None:
                self._called_off.add(ctx)
                return True
            return slot.interrupt(surely=surely)

    def close(self, patience_s: float) -> bool:
        with self._lock:
            self._is_closing = True
            sleeping, self._idle = self._idle, []
        for slot in sleeping:
            slot.wake()
        if self._timekeeper is not None:
            self._timekeeper.close()
        deadline = time.monotonic() + patience_s
        for slot in self._slots:
            slot.thread.join(max(0.0, deadline - time.monotonic()))
        return not any(slot.thread.is_alive() for slot in self._slots)

    def _grow(self, missing: int) -> None:
        """If the system gives no more threads, runs share those there are. RuntimeError: there are none."""
        for _ in range(missing):
            slot = _ThreadSlot(self)
            try:
                slot.thread.start()
            except RuntimeError as error:
                if not self._slots:
                    raise
                logger.error("%s; jobs share the %d threads there are", error, len(self._slots))
                return
            self._slots.append(slot)

    # -- in the threads ----------------------------------------------------------------------------------------------

    def serve(self, slot: _ThreadSlot) -> None:
        slot.mark = Mark()
        while self._serve_one(slot):
            pass

    def _serve_one(self, slot: _ThreadSlot) -> bool:
        """False: there will be no more."""
        task = self._take(slot)
        if task is None:
            return False
        self._hand_back(self._run(slot, task))
        return True

    def _take(self, slot: _ThreadSlot) -> Assignment | None:
        """The next run, as soon as there is one. None: there will be no more."""
        while (taken := self._taken(slot)) is None:
            if self._is_closing:
                return None
            slot.sleep()
        task, woken, rings = taken
        if rings:
            self._inbox.ring()
        if woken is not None:
            woken.wake()
        return task

    def _taken(self, slot: _ThreadSlot) -> tuple[Assignment, _ThreadSlot | None, bool] | None:
        """A run, which thread to wake, and whether to ring. None: nothing is left, and the thread counts as asleep."""
        with self._lock:
            if self._woken is slot:
                self._woken = None
            if not self._todo:
                if not self._is_closing:
                    self._idle.append(slot)
                return None
            task = self._todo.popleft()
            rings = self._has_unrung and not self._todo
            self._has_unrung = self._has_unrung and not rings
            return task, self._next_to_wake(), rings

    def _next_to_wake(self) -> _ThreadSlot | None:
        """Called under the lock. None: no thread needs to be woken."""
        if self._todo and self._woken is None and self._idle:
            self._woken = self._idle.pop()
            return self._woken
        return None

    def _hand_back(self, ended: Ended) -> None:
        """Rings once for all that end while others wait for a thread, unless threads are scarce: that may take long."""
        self._inbox.put_quietly(ended)
        with self._lock:
            self._has_unrung = rings_later = bool(self._todo) and len(self._slots) >= len(self._open)
        if not rings_later:
            self._inbox.ring()

    def _run(self, slot: _ThreadSlot, task: Assignment) -> Ended:
        """Whenever an interrupt hits: the run is handed back once, and nothing of it reaches the next one."""
        ended: Ended | None = None
        cut_short: BaseException | None = None
        try:
            if self._enter(slot, task):
                ended = contextvars.Context().run(run_plain, task, slot.run_to_end, slot.mark)
        except BaseException as error:  # noqa: BLE001 - an interrupt while the handler was being left, or worse
            slot.mark.depth = 1
            cut_short = error
        self._leave(task)
        slot.forget_interrupts()
        if ended is None:
            report = report_of_error(task, cut_short or Interrupted(task.ctx.stop))
            ended = Ended(task.ctx, report, RunStats(), task.ctx.closed)
            cut_short = None  # its traceback holds this frame, and all that the handler had
        return ended

    def _enter(self, slot: _ThreadSlot, task: Assignment) -> bool:
        """False: it was called off before it began."""
        with self._lock:
            self._open[task.ctx] = slot
            if task.ctx in self._called_off:
                return False
        if self._timekeeper is not None and task.timeout_s is not None:
            self._timekeeper.watch(task)
        return True

    def _leave(self, task: Assignment) -> None:
        if os.getpid() != self._process:
            os._exit(0)  # the handler has forked, and this is the copy: it must run no other jobs
        with self._lock:
            self._open.pop(task.ctx, None)
            self._called_off.discard(task.ctx)

    def call(self, slot: _ThreadSlot, awaitable: Awaitable[Any]) -> Any:
        """In the thread of a run whose function returned it: run it on the event loop of the coroutines, and wait."""
        if os.getpid() != self._process:
            os._exit(0)  # as in `_leave`; the event loop is not in the copy
        with uninterrupted:
            loop_call = self._loop().call(awaitable)
            with self._lock:
                slot.loop_call = loop_call
                if slot.mark.due is not None:  # the interrupt came first
                    loop_call.cancel()
            try:
                return loop_call.result()
            finally:
                with self._lock:
                    slot.loop_call = None

    @property
    def running(self) -> int:
        return len(self._open)

    def is_running(self, task: Assignment) -> bool:
        return task.ctx in self._open


class _ThreadSlot:
    """One thread of the pool."""

    def __init__(self, pool: ThreadExecutor) -> None:
        self.thread = threading.Thread(target=pool.serve, args=(self,), name="perdure-run", daemon=True)
        self.mark: Mark
        """Made by the thread itself, before it takes its first run."""
        self._was_interrupted = False
        self.loop_call: LoopCall | None = None
        """What its run waits for on the event loop: an interrupt cancels that instead."""
        self.run_to_end = partial(pool.call, self)
        self._asleep = threading.Lock()
        self._asleep.acquire()

    def sleep(self) -> None:
        """In the thread itself."""
        self._asleep.acquire()

    def wake(self) -> None:
        """Once for each sleep, also if it comes first."""
        self._asleep.release()

    def interrupt(self, *, surely: bool) -> bool:
        """Under the pool's lock, while the run is registered: the exception cannot hit another run."""
        if self.loop_call is not None and not self.loop_call.has_ended:
            self.loop_call.cancel()
            return True
        self._was_interrupted = True
        return self.mark.raise_in_thread(Interrupted, surely=surely)

    def forget_interrupts(self) -> None:
        """In the thread itself, when none can come any more."""
        if self._was_interrupted:
            self._was_interrupted = False
            self.mark.clear()
            _let_go_of_logging()


def _let_go_of_logging() -> None:
    """An interrupt right after a log handler took its lock leaves the lock taken: the next thread to log would wait for
    ever. This thread is not logging now, so each of these locks that it holds was left in that way."""
    kept: list[Any] = getattr(logging, "_handlerList", [])
    handlers = [handler for reference in list(kept) if (handler := reference()) is not None]
    for lock in (getattr(logging, "_lock", None), *(handler.lock for handler in handlers)):
        is_ours = getattr(lock, "_is_owned", None)
        while lock is not None and is_ours is not None and is_ours():
            lock.release()


class _Timekeeper:
    """Warns of runs that near their time-out, and stops those past it. A thread, made for the first run with one."""

    def __init__(self, pool: ThreadExecutor) -> None:
        self._pool = pool
        self._begun: SimpleQueue[tuple[float, Assignment] | None] = SimpleQueue()
        self._due: list[tuple[float, int, bool, Assignment]] = []
        self._number = count()
        threading.Thread(target=self._serve, name="perdure-timeouts", daemon=True).start()

    def watch(self, task: Assignment) -> None:
        """The run begins now. Called in its thread, where an interrupt may hit."""
        self._begun.put((time.monotonic(), task))

    def close(self) -> None:
        self._begun.put(None)

    # -- in its thread -----------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while True:
            try:
                begun = self._begun.get(timeout=self._act())
            except Empty:
                continue
            if begun is None:
                return
            self._note(*begun)

    def _note(self, at: float, task: Assignment) -> None:
        limit = task.timeout_s or 0
        if len(self._due) > 4 * self._pool.running + 64:  # most of them are of runs that have ended
            self._due = [entry for entry in self._due if self._pool.is_running(entry[3])]
            heapq.heapify(self._due)
        heapq.heappush(self._due, (at + limit * WARN_AT, next(self._number), False, task))
        heapq.heappush(self._due, (at + limit, next(self._number), True, task))

    def _act(self) -> float | None:
        """Do what is due. Returns the seconds until the next; None: until another run begins."""
        while self._due:
            left = self._due[0][0] - time.monotonic()
            if left > 0:
                return min(left, threading.TIMEOUT_MAX)
            _, _, is_over, task = heapq.heappop(self._due)
            if not self._pool.is_running(task):
                continue
            if is_over:
                self._pool.stop(task.ctx, Stop.TIMEOUT)
            else:
                warn_of_timeout(task)
        return None
