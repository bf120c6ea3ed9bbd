"""What a simulated process runs on: its machine's clocks, what can be known of other processes, and an executor."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from perdure.clock import Micros
from perdure.ids import RunId
from perdure.store.rows import NodeRow, Process, ReservationRow
from perdure.worker.context import JobContext
from perdure.worker.run import AnyKind, Assignment, Inbox, run_plain
from perdure.worker.signals import Cancel, Done, Fail, Interrupted, RetryAfter, Skip, Snooze, Stop
from tests import history

START_S = 1_800_000_000


class Time:
    """The true time, in seconds. Nobody in the simulation can see it."""

    def __init__(self) -> None:
        self.at = 0.0


class Machine:
    """A clock: the wall clock may be set, boot time has a zero of its own. And the processes that live here."""

    def __init__(self, time: Time, name: str, randomness: random.Random) -> None:
        self.name = name
        self.living: set[str] = set()
        self._time = time
        self._boot = randomness.uniform(0, 1_000_000)
        self._wall = randomness.uniform(-2, 2)

    def now(self) -> Micros:
        return Micros(round((START_S + self._time.at + self._wall) * 1_000_000))

    def boottime(self) -> float:
        return self._time.at + self._boot

    def wait(self, seconds: float) -> None:
        raise AssertionError(f"nothing may wait in the simulation ({seconds} s)")

    def set_wall(self, by_s: float) -> None:
        self._wall += by_s


class SimLiveness:
    """As `ProcLiveness`: certain of the processes of its own machine, and of no others. Pids come again."""

    def __init__(self, machine: Machine, pid: int, start: str) -> None:
        self._machine = machine
        self._own = Process(machine.name, pid, start, f"boot of {machine.name}", "pid:[1]")

    def own(self) -> Process:
        return self._own

    def is_gone(self, node: NodeRow | ReservationRow) -> bool:
        return node.host == self._machine.name and node.process_start not in self._machine.living


@dataclass
class Going:
    """One run on its way. `deaf`: it does not let itself be interrupted."""

    task: Assignment
    act: str
    began_at: float
    ends_at: float
    is_interrupted: bool = False


Pick = Callable[[], tuple[str, float]]
"""Chooses what a handler will do, and how long it will take."""


@dataclass(eq=False)
class SimExecutor:
    """Runs take simulated time; their handlers are called, in one go, when that is over."""

    machine: Machine
    inbox: Inbox
    notes: Path
    pick: Pick
    begins: Callable[[Assignment], None]
    child: Any
    going: dict[RunId, Going] = field(default_factory=dict)

    def of(self, kind: AnyKind) -> SimExecutor:
        del kind
        return self

    def start(self, tasks: Sequence[Assignment]) -> None:
        at = self.machine.boottime()
        for task in tasks:
            history.started(self.notes, task.ctx)
            self.begins(task)
            act, takes_s = self.pick()
            self.going[task.claim.run_id] = Going(task, act, at, at + takes_s)

    def stop(self, ctx: JobContext, why: Stop) -> None:
        one = self.going.get(ctx.claim.run_id)
        if one is not None:
            ctx.stop = ctx.stop or why
            one.is_interrupted = True

    def close(self, patience_s: float) -> bool:
        del patience_s
        return not self.going

    def progress(self) -> None:
        """Let come back whatever is over by now."""
        at = self.machine.boottime()
        for run_id, one in list(self.going.items()):
            limit = one.task.timeout_s
            if limit is not None and at >= one.began_at + limit:
                self.stop(one.task.ctx, Stop.TIMEOUT)
            if at >= one.ends_at or (one.is_interrupted and one.act != "deaf"):
                ended = copy_context().run(run_plain, one.task)  # `current()` ends with the run
                if run_id not in self.going:  # the process died on the way
                    return
                del self.going[run_id]
                self.inbox.put(ended)

    def act(self, ctx: JobContext) -> object:
        """The handler's code."""
        act, is_interrupted = self.going[ctx.claim.run_id].act, self.going[ctx.claim.run_id].is_interrupted
        if is_interrupted and act != "heedless":
            raise Interrupted(ctx.stop, at_checkpoint=act == "polite")
        if act in ("child", "orphan"):
            history.note(self.notes, "child", job=self._child(ctx), run=ctx.run_id)
        if act in RAISES:
            error = RAISES[act]()
            raise error
        if act == "talk":
            ctx.metric(n=1)
            ctx.artifact("made.txt")
            ctx.captured("INFO", "said", self.machine.now())
        history.ended(self.notes, ctx)
        if act != "effect":
            return "done"
        history.note(self.notes, "effect", run=ctx.run_id)
        return Done("done", write=lambda tx: tx.execute("INSERT INTO effect (run) VALUES (?)", (str(ctx.run_id),)))

    def _child(self, ctx: JobContext) -> UUID:
        """A member of a flow adds one to it."""
        if ctx.claim.live.flow_id is None:
            return ctx.enqueue(self.child, n=0).id
        return ctx.flow.add(self.child.new(n=0)).id


RAISES: dict[str, Callable[[], BaseException]] = {
    "fail": lambda: ValueError("no"),
    "orphan": lambda: ValueError("no, and no child either"),
    "fatal": lambda: Fail("never"),
    "later": lambda: RetryAfter(1.5),
    "snooze": lambda: Snooze(2.0),
    "skip": lambda: Skip("nothing to do"),
    "cancel": Cancel,
}
