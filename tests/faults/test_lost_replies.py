"""A commit whose reply is lost: the caller is told of an error, the database has it all the same."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import TypeVar

import pytest

from perdure import DatabaseUnavailable, JobContext, Perdure, Retry
from perdure.store.engine import Make
from perdure.store.store import Runner, SqlStore
from perdure.testing.contract.faults import PassingRunner
from tests.faults.scene import Listener, Scene, count, until
from tests.history import ended, started

T = TypeVar("T")


AT_START = 3
"""Writes of a worker before its first turn: its limits, its registration, and the flows that wait for a look."""


class LosingRunner(PassingRunner):
    """After some of the writes the reply is lost."""

    def __init__(self, inner: Runner, is_lost: Callable[[int], bool]) -> None:
        super().__init__(inner)
        self._is_lost = is_lost
        self._lock = threading.Lock()
        self.writes = 0
        self.lost = 0

    def write(self, make: Make[T], *, brief: bool = False) -> T:
        answer = self.inner.write(make, brief=brief)
        with self._lock:
            self.writes += 1
            if not self._is_lost(self.writes):
                return answer
            self.lost += 1
        raise DatabaseUnavailable("the connection broke; whether it was written is not known")


class Flow:
    """An app whose worker loses replies, and one on the same file that does not."""

    def __init__(self, scene: Scene, is_lost: Callable[[int], bool]) -> None:
        self.scene = scene
        self.app = scene.app()
        self.hurt = scene.app()
        inner = self.hurt.store
        assert isinstance(inner, SqlStore)
        self.runner = LosingRunner(inner.runner, is_lost)
        self.hurt.__dict__["store"] = SqlStore(self.runner)
        self.declare(self.hurt)
        self.declare(self.app)

    def declare(self, app: Perdure) -> None:
        scene = self.scene

        @app.job
        async def once(ctx: JobContext) -> int:
            started(scene.notes, ctx)
            ended(scene.notes, ctx)
            return ctx.attempt

        @app.job(retry=Retry(max_attempts=4, base=0))
        def twice(ctx: JobContext) -> int:
            started(scene.notes, ctx)
            if ctx.attempt < 2:
                raise ValueError("not yet")
            ctx.enqueue(once)
            ended(scene.notes, ctx)
            return ctx.attempt


@pytest.mark.parametrize("seed", range(3))
def test_every_job_ends_once_although_replies_are_lost(scene: Scene, listener: Listener, seed: int) -> None:
    """About a fifth of all replies, except those to what a worker says at its start."""
    luck = random.Random(seed)
    flow = Flow(
        scene, lambda number: number in (AT_START + 2, AT_START + 4) or (number > AT_START and luck.random() < 1 / 5)
    )
    jobs = [scene.sent(flow.app.enqueue(kind))[0] for kind in ("once", "twice") * 10]

    flow.hurt.worker(concurrency=4).run(until_idle=True)

    assert flow.runner.lost >= 2
    assert [flow.app.existing(job).state for job in jobs] == ["completed"] * 20
    assert [flow.app.existing(job).attempts for job in jobs] == [1, 2] * 10, "what was given back cost no attempt"
    assert sum(1 for _ in flow.app.jobs(kind="once")) == 20, "each child is there once"
    assert listener.heard("had been taken from this node") == 0, "a report written twice is recognised"


def test_the_loss_of_any_single_reply_is_survived(scene: Scene, listener: Listener, full_size: bool) -> None:
    """Enumerated: each write of a worker's life after its start. Small: the first of them."""
    last = 100 if full_size else 8
    for nth in range(AT_START + 1, last + 1):
        flow = Flow(scene, lambda number, nth=nth: number == nth)  # type: ignore[misc]
        jobs = [scene.sent(flow.app.enqueue(kind))[0] for kind in ("once", "twice", "once")]
        flow.hurt.worker(concurrency=1).run(until_idle=True)
        assert [flow.app.existing(job).attempts for job in jobs] == [1, 2, 1]
        assert count(flow.app, "running") == count(flow.app, "queued") == 0
        if flow.runner.lost == 0:
            break  # it has not so many
    assert nth == last or (full_size and nth > 8)


def test_claims_made_unknowingly_are_given_back_unrun(scene: Scene, listener: Listener) -> None:
    """The reply to the turn that claimed is lost: nobody runs these jobs, although the database says so."""
    lost = threading.Event()

    def first_claim(number: int) -> bool:
        is_it = not lost.is_set() and count(flow.app, "running") > 0
        if is_it:
            lost.set()
        return is_it

    flow = Flow(scene, first_claim)
    jobs = [scene.sent(flow.app.enqueue("once"))[0] for _ in range(5)]
    with flow.hurt.worker(concurrency=5).running():
        until(lambda: count(flow.app, "completed") == 5)
    assert lost.is_set()
    assert listener.heard("without its knowledge") == 1
    assert [run.state for job in jobs for run in flow.app.runs(job)] == ["completed", "released"] * 5
    assert {flow.app.existing(job).attempts for job in jobs} == {1}


def test_an_enqueue_whose_reply_was_lost_can_be_repeated_under_its_key(scene: Scene) -> None:
    flow = Flow(scene, lambda number: number == 1)
    with pytest.raises(DatabaseUnavailable):
        flow.hurt.enqueue("once", idempotency_key="order 7", conflict="return")
    again = flow.hurt.enqueue("once", idempotency_key="order 7", conflict="return")
    scene.sent(again)
    assert again.deduplicated
    assert flow.app.worker().run(until_idle=True) == 0
    assert [job.id for job in flow.app.jobs()] == [again.id]
