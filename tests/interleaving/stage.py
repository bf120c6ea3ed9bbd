"""Two acts on two connections, driven statement by statement in an order that the test chooses.

Each act runs in a thread of its own and stops before every statement and every commit until it is given its cue. A
statement that waits for a lock of the other is recognised by asking the database, and the other goes on. All else is as
in production: transactions, retries and their pauses are the runner's own.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from perdure.errors import JobNotFound, KeyConflict, ReservationExpired, StoreError, TransitionRefused
from perdure.store.engine import Make, Op
from perdure.store.store import Runner, SqlStore
from perdure.testing.contract.faults import PassingRunner

T = TypeVar("T")

REFUSALS = (TransitionRefused, KeyConflict, JobNotFound, ReservationExpired)
"""What an act may be told because the other came first."""
TO_THE_END = 10**9
TWICE = 2
"""How many orders with two switches are in a sample."""
LOOK_S = 0.001
PATIENCE_S = 60.0
"""Generous: only a hang is a failure."""


class Side:
    """One act, and how far it is. The director gives the cues."""

    def __init__(self, name: str, runner: Runner, act: Act, trace: list[str]) -> None:
        self.name = name
        self.store = SqlStore(_Stopping(runner, self))
        self.done = False
        self.taken = 0
        self.waited = False
        self.answer: object = None
        self.error: BaseException | None = None
        self._trace = trace
        self._waits = False
        self._cue = threading.Semaphore(0)
        self._at_rest = threading.Event()
        self._thread = threading.Thread(target=self._play, args=(act,), name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._at_rest.wait(PATIENCE_S)

    def wait(self) -> None:
        """For an act that was told to come again: until the other has moved on."""
        self._waits = True
        self.stop("comes again")

    def stop(self, before: str) -> None:
        """Called on the act's own thread before each of its steps."""
        self._at_rest.set()
        assert self._cue.acquire(timeout=PATIENCE_S), f"{self.name} was never told to go on"
        self.taken += 1
        self._trace.append(f"{self.name}: {before}")

    def go(self) -> None:
        self._waits = False
        self._at_rest.clear()
        self._cue.release()

    def is_ready(self, other: Side) -> bool:
        """Whether it can take a step: it has not ended, and waits neither for a lock nor for the other."""
        return self._at_rest.is_set() and not self.done and (not self._waits or other.done)

    def is_under_way(self) -> bool:
        return not self._at_rest.is_set()

    def rests_soon(self) -> bool:
        return self._at_rest.wait(LOOK_S)

    def _play(self, act: Act) -> None:
        try:
            self.stop("begins")
            self.answer = act(self)
        except REFUSALS as refused:
            self.answer = refused
        except BaseException as error:  # noqa: BLE001 - told by the test's own thread
            self.error = error
        self.done = True
        self._at_rest.set()


Act = Callable[[Side], object]


class _Stopping(PassingRunner):
    """Stops before each statement of a write, and before its commit."""

    def __init__(self, inner: Runner, side: Side) -> None:
        super().__init__(inner)
        self._side = side

    def write(self, make: Make[T], *, brief: bool = False) -> T:
        return self.inner.write(lambda: self._stopping(make()), brief=brief)

    def _stopping(self, op: Op[T]) -> Op[T]:
        try:
            call = next(op)
            while True:
                self._side.stop(str(call[0]))
                try:
                    result = yield call
                except StoreError as error:
                    call = op.throw(error)
                else:
                    call = op.send(result)
        except StopIteration as stop:
            self._side.stop("COMMIT")
            answer: T = stop.value
            return answer


class Order(NamedTuple):
    """An order with at most two switches: the one who is first takes so many steps, then the other, then each goes to
    its end. A switch that is forced, because one has ended or waits for a lock, comes on top."""

    first: int
    steps: int
    others: int


def orders(steps: Sequence[int]) -> Iterator[Order]:
    """All of them, for acts that take so many steps alone."""
    for first in (0, 1):
        for taken in range(1, steps[first]):
            for others in range(1, steps[1 - first] + 1):
                yield Order(first, taken, others if others < steps[1 - first] else TO_THE_END)


def sample(steps: Sequence[int], seed: str) -> list[Order]:
    """Those with one switch, and some of those with two."""
    known = list(orders(steps))
    once = [order for order in known if order.others == TO_THE_END]
    twice = [order for order in known if order.others != TO_THE_END]
    return once + random.Random(seed).sample(twice, min(TWICE, len(twice)))


def last_moments(steps: Sequence[int], _seed: str) -> list[Order]:
    """Two that tell most: one has done everything, and has all its locks, but is not committed when the other comes."""
    return [Order(first, steps[first] - 1, TO_THE_END) for first in (0, 1)]


class Stage:
    """Where the two meet: a runner for each, and a look at who waits for a lock."""

    def __init__(self, runners: tuple[Runner, Runner], waiting: Callable[[], int]) -> None:
        self._runners = runners
        self._waiting = waiting

    def play(self, acts: tuple[Act, Act], order: Order) -> tuple[list[Side], list[str]]:
        """Both to their ends, in this order; and what happened, step by step."""
        trace: list[str] = []
        names = ("first", "second")
        sides = [Side(name, runner, act, trace) for name, runner, act in zip(names, self._runners, acts, strict=True)]
        for side in sides:
            side.start()
        one, two = sides[order.first], sides[1 - order.first]
        for side, other, steps in ((one, two, order.steps), (two, one, order.others), (one, two, TO_THE_END)):
            self._lead(side, other, steps)
        self._lead_both(one, two, trace)
        for side in sides:
            assert side.error is None, _told(side, trace)
        return sides, trace

    def _lead(self, side: Side, other: Side, steps: int) -> None:
        while steps and side.is_ready(other):
            side.go()
            self._settle(side, other)
            steps -= 1

    def _lead_both(self, one: Side, two: Side, trace: list[str]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not (one.done and two.done):
            assert time.monotonic() < deadline, f"neither goes on: {trace}"
            self._lead(one, two, TO_THE_END)
            self._lead(two, one, TO_THE_END)
            self._settle(one, two)

    def _settle(self, *sides: Side) -> None:
        """Until everyone under way stops again, has ended, or waits for a lock."""
        while under_way := [side for side in sides if side.is_under_way()]:
            if not under_way[0].rests_soon() and self._waiting() == len(under_way):
                for side in under_way:
                    side.waited = True
                return


def _told(side: Side, trace: list[str]) -> str:
    return f"the {side.name} act failed with {side.error!r} after {trace}"
