"""The executors of one worker, each made when a job first needs it. Made by `worker`, asked by `node`."""

from __future__ import annotations

import asyncio
import threading

from perdure.worker.executors.loop import LoopExecutor
from perdure.worker.executors.threads import ThreadExecutor
from perdure.worker.run import AnyKind, Executor, Inbox


class Pools:
    """Coroutines go to the event loop, functions to threads, and kinds with `isolation="process"` to processes."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._lock = threading.Lock()
        self._made: dict[str, Executor] = {}
        self._by_kind: dict[AnyKind, Executor] = {}

    def of(self, kind: AnyKind) -> Executor:
        found = self._by_kind.get(kind)
        if found is None:
            sort = kind.isolation or ("loop" if kind.is_async else "thread")
            found = self._by_kind[kind] = self._get(sort)
        return found

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
