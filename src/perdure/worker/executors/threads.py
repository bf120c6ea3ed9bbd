"""Plain functions, in threads. Started by `worker`, fed by `node`.

A thread cannot be killed. To stop a run an exception is raised inside its thread, which takes effect when the handler
next executes Python code; until then the run stays open and its slot taken.
"""

from __future__ import annotations

import contextvars
import ctypes
import heapq
import threading
import time
from collections.abc import Sequence
from itertools import count
from queue import SimpleQueue

from perdure.ids import RunId
from perdure.job.model import Telling
from perdure.worker.context import JobContext
from perdure.worker.executors.port import WARN_AT, Inbox, warn_of_timeout
from perdure.worker.run import Assignment, Ended, run_plain, trouble
from perdure.worker.signals import Interrupted, Stop


class ThreadExecutor:
    """As many threads as runs have ever been open at once; the node sees to how many that may be."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._todo: SimpleQueue[Assignment | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._slots: list[_Slot] = []
        self._open = 0
        self._by_run: dict[RunId, _Slot] = {}
        self._timekeeper: _Timekeeper | None = None

    def start(self, tasks: Sequence[Assignment]) -> None:
        with self._lock:
            self._open += len(tasks)
            missing = self._open - len(self._slots)
        for _ in range(missing):
            slot = _Slot(self)
            self._slots.append(slot)
            slot.thread.start()
        for task in tasks:
            self._todo.put(task)

    def stop(self, ctx: JobContext, why: Stop) -> None:
        with self._lock:
            slot = self._by_run.get(ctx.claim.run_id)
            if slot is None:
                return
            ctx.stop = ctx.stop or why
            slot.interrupt()

    def close(self, patience_s: float) -> bool:
        for _ in self._slots:
            self._todo.put(None)
        if self._timekeeper is not None:
            self._timekeeper.close()
        deadline = time.monotonic() + patience_s
        for slot in self._slots:
            slot.thread.join(max(0.0, deadline - time.monotonic()))
        return not any(slot.thread.is_alive() for slot in self._slots)

    # -- in the threads ----------------------------------------------------------------------------------------------

    def serve(self, slot: _Slot) -> None:
        while (task := self._todo.get()) is not None:
            ended = self._run(slot, task)
            with self._lock:
                self._open -= 1
            self._inbox.put(ended)

    def _run(self, slot: _Slot, task: Assignment) -> Ended:
        """Whatever moment an interrupt hits: the run is handed back once, and nothing of it reaches the next one."""
        ended: Ended | None = None
        try:
            self._enter(slot, task)
            ended = contextvars.Context().run(run_plain, task)
        except Interrupted as late:
            ended = ended or Ended(task.ctx, trouble(task, late), Telling())
        while True:
            try:
                self._leave(slot, task)
            except Interrupted:
                continue
            return ended

    def _enter(self, slot: _Slot, task: Assignment) -> None:
        with self._lock:
            self._by_run[task.claim.run_id] = slot
        if task.claim.live.timeout_ms is not None:
            self._timed().watch(task)

    def _leave(self, slot: _Slot, task: Assignment) -> None:
        with self._lock:
            self._by_run.pop(task.claim.run_id, None)
            slot.forget_interrupt()

    def _timed(self) -> _Timekeeper:
        with self._lock:
            if self._timekeeper is None:
                self._timekeeper = _Timekeeper(self)
            return self._timekeeper

    @property
    def running(self) -> int:
        return len(self._by_run)

    def is_running(self, task: Assignment) -> bool:
        return task.claim.run_id in self._by_run


class _Slot:
    """One thread of the pool."""

    def __init__(self, pool: ThreadExecutor) -> None:
        self.thread = threading.Thread(target=pool.serve, args=(self,), name="perdure-run", daemon=True)

    def interrupt(self) -> None:
        """Under the pool's lock, while the run is registered: the exception cannot hit another run."""
        _raise_in(self.thread.ident, Interrupted)

    def forget_interrupt(self) -> None:
        _raise_in(self.thread.ident, None)


def _raise_in(ident: int | None, error: type[BaseException] | None) -> None:
    raised = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident or 0), raised)


class _Timekeeper:
    """Warns of runs that near their time-out, and stops those past it. A thread, made when a run first has one."""

    def __init__(self, pool: ThreadExecutor) -> None:
        self._pool = pool
        self._due: list[tuple[float, int, bool, Assignment]] = []
        self._number = count()
        self._changed = threading.Condition()
        self._closed = False
        threading.Thread(target=self._serve, name="perdure-timeouts", daemon=True).start()

    def watch(self, task: Assignment) -> None:
        now, limit = time.monotonic(), task.timeout_s or 0
        with self._changed:
            if len(self._due) > 4 * self._pool.running + 64:  # most of them are of runs that have ended
                self._due = [entry for entry in self._due if self._pool.is_running(entry[3])]
                heapq.heapify(self._due)
            heapq.heappush(self._due, (now + limit * WARN_AT, next(self._number), False, task))
            heapq.heappush(self._due, (now + limit, next(self._number), True, task))
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _serve(self) -> None:
        while (due := self._next()) is not None:
            is_over, task = due
            if not self._pool.is_running(task):
                continue
            if is_over:
                self._pool.stop(task.ctx, Stop.TIMEOUT)
            else:
                warn_of_timeout(task)

    def _next(self) -> tuple[bool, Assignment] | None:
        """The next moment that has come; waits for it. None: no more."""
        with self._changed:
            while not self._closed:
                now = time.monotonic()
                if self._due and self._due[0][0] <= now:
                    _, _, is_over, task = heapq.heappop(self._due)
                    return is_over, task
                self._changed.wait(self._due[0][0] - now if self._due else None)
        return None
