"""The store thread: gives the node its turns until the worker is to stop, then lets its runs end. Started by `worker`.

All decisions are in `node`; here is only when it gets its turns, and how long to wait.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from queue import SimpleQueue
from types import FrameType

from perdure.clock import Clock
from perdure.store.protocols import Bell
from perdure.upkeep.chore import Chores
from perdure.worker.heartbeat import Exclusive
from perdure.worker.node import Node
from perdure.worker.signals import Stop

STOP, HURRY = 1, 2

SETTLE_S = 2.0
"""How long interrupted handlers have to end before the worker leaves without them."""
NAP_S = 0.25

logger = logging.getLogger("perdure.worker")


class StopRequest:
    """How far a worker is asked to stop: not at all, STOP, or HURRY. The level only ever rises.

    A number, no event: a signal handler must not wait for a lock.
    """

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self.level = 0
        self.given_up = False
        """Not asked for: the store thread has hung or failed."""

    def ask(self, level: int) -> None:
        """Any thread and any signal handler may call it."""
        self.level = max(self.level, level)
        self._ring()

    def give_up(self) -> None:
        """Without a ring: the thread that would hear it does not move."""
        self.given_up = True
        self.level = HURRY

    @contextmanager
    def from_signals(self) -> Generator[None, None, None]:
        """On the main thread SIGTERM and SIGINT raise the level while the block runs; after HURRY they kill."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self.level >= HURRY and not self.given_up:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.ask(self.level + 1)


SPLIT_FROM = 100
"""From so many jobs at a time on, a node on a server ends and claims half of them in a turn: while the server works on
one half, the handlers of the other run, and their ends are written beside it."""


class TurnThreads:
    """Two threads that carry turns to the database: while one waits for an answer, the other goes on."""

    count = 2

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._turns: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        for number in range(self.count):
            name = f"perdure-turns-{number + 1}"
            threading.Thread(target=self._serve, name=name, daemon=True).start()

    def carry(self, turn: Callable[[], None]) -> None:
        self._turns.put(turn)

    def close(self) -> None:
        """Returns at once: they end when nothing is left to carry."""
        for _ in range(self.count):
            self._turns.put(None)

    def _serve(self) -> None:
        while (turn := self._turns.get()) is not None:
            turn()
            self._ring()


class WorkLoop:
    """Gives a node its turns, from start to stop. `moves` counts its steps, successful or not, for the watchdog."""

    def __init__(
        self, node: Node, chores: Chores, bell: Bell, clock: Clock, stopping: StopRequest, grace_s: float
    ) -> None:
        self._node = node
        self._chores = chores
        self._bell = bell
        self._clock = clock
        self._stopping = stopping
        self._grace_s = grace_s
        self.exclusive: Exclusive | None = None
        """Where set, the node claims only while it is held."""
        self.moves = 0

    def run(self, *, until_idle: bool = False) -> bool:
        """Work, then wind down. False: some runs did not end, or their ends could not be written."""
        self._work(until_idle=until_idle)
        return self._wind_down()

    def _work(self, *, until_idle: bool) -> None:
        node = self._node
        while not self._stopping.level:
            self._move()
            if self.exclusive is not None:
                node.accepting = self.exclusive.held
            node.is_woken = self._bell.tells_when
            pause = node.turn()
            if node.in_trouble:
                self._wait_for_the_database(pause)
                continue
            if until_idle and node.is_idle:
                return
            pause = min(pause, self._chores.run_due())
            if pause > 0 and self._bell.wait(pause, rung_only=node.is_full):
                node.look_again()

    def _move(self) -> None:
        """A turn that never ends must look to the watchdog as if this thread hung in it."""
        self.moves += not self._node.waits_for_an_answer

    def _wait_for_the_database(self, pause_s: float) -> None:
        """Wait for the database to come back, whatever rings, but not after a request to stop."""
        deadline = self._clock.boottime() + pause_s
        while not self._stopping.level and self._clock.boottime() < deadline:
            self.moves += 1
            time.sleep(min(NAP_S, pause_s))

    def _wind_down(self) -> bool:
        """Let running jobs finish for the grace, then interrupt them. False: some did not end, or are not written."""
        node, clock = self._node, self._clock
        node.request_stop()
        if node.held:
            logger.info("stopping; %s %g s to finish", _have(len(node.held)), self._grace_s)
        self._drain(clock.boottime() + self._grace_s, or_hurry=True)
        if not node.is_empty:
            logger.info("interrupting what still runs (%d)", len(node.held))
            node.interrupt_all(Stop.SHUTDOWN)
            self._drain(clock.boottime() + SETTLE_S)
        if node.held:
            logger.error("handlers that did not end: %d; their jobs are left to the next worker", len(node.held))
        elif not node.is_empty:
            logger.error("the last outcomes could not be written; their jobs are left to the next worker")
        return node.is_empty

    def _drain(self, deadline: float, *, or_hurry: bool = False) -> None:
        node = self._node
        while not node.is_empty and (left := deadline - self._clock.boottime()) > 0:
            if or_hurry and self._stopping.level >= HURRY:
                return
            self._move()
            pause = node.turn()
            if not node.is_empty:
                self._bell.wait(min(max(pause, 0.01), left, NAP_S))


def _have(jobs: int) -> str:
    return "one job has" if jobs == 1 else f"{jobs} jobs have"
