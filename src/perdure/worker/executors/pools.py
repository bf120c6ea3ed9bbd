"""The executors of one worker, each made when a job first needs it. Made by `worker`, asked by `node`."""

from __future__ import annotations

import asyncio
import inspect

from perdure.worker.executors.loop import LoopExecutor
from perdure.worker.executors.port import Executor, Inbox
from perdure.worker.executors.threads import ThreadExecutor
from perdure.worker.run import AnyKind


class Pools:
    """Coroutines go to the event loop, plain functions to threads, and what asks for isolation to processes."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._made: dict[str, Executor] = {}
        self._by_kind: dict[AnyKind, Executor] = {}

    def of(self, kind: AnyKind) -> Executor:
        found = self._by_kind.get(kind)
        if found is None:
            sort = kind.isolation or ("loop" if inspect.iscoroutinefunction(kind.function) else "thread")
            found = self._by_kind[kind] = self._get(sort)
        return found

    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that coroutine handlers run on."""
        made = self._get("loop")
        assert isinstance(made, LoopExecutor)
        return made.loop

    @property
    def has_loop(self) -> bool:
        return "loop" in self._made

    def close(self, patience_s: float) -> bool:
        """No more runs will come. False: some handlers have not ended in time and are left behind."""
        ended = [executor.close(patience_s) for executor in self._made.values()]  # each, whatever the first says
        return all(ended)

    def _get(self, sort: str) -> Executor:
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
        return ThreadExecutor(self._inbox)
