"""Whatever is done to jobs through the front door and by nodes, the doctor finds no promise broken."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from perdure import JobNotFound, KeyConflict, Perdure, Retry, TransitionRefused
from perdure.clock import ManualClock
from perdure.ids import JobId, NodeId, RunId
from perdure.job.model import Claim, Failure
from perdure.job.reports import (
    Cancelled,
    Completed,
    Failed,
    Finish,
    Released,
    Report,
    Skipped,
    Snoozed,
    TimedOut,
    Unreadable,
)
from perdure.job.views import Job
from perdure.ops.doctor import examine, is_healthy
from perdure.store.rows import Claimer, Lane, NewNode

QUEUES = ("first", "second")


class Life:
    """Does one random thing after another in a database, as users and nodes might."""

    def __init__(self, path: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
        self.app = Perdure(path, clock=self.clock, durability="normal")
        self.kinds: list[Any] = [
            self.app.job(name="plain", retry=Retry(max_attempts=3))(_work),
            self.app.job(name="chain", retry=Retry(max_attempts=3, as_new_job=True))(_work),
        ]
        self.held: list[Claim] = []
        self.node = self._new_node()
        self.verbs: list[Callable[[], object]] = [
            *[self.enqueue] * 4,
            *[self.claim] * 3,
            *[self.finish] * 4,
            lambda: self.app.cancel(self._any_job()),
            lambda: self.app.pause(self._any_job()),
            lambda: self.app.resume(self._any_job()),
            lambda: self.app.retry(self._any_job()),
            lambda: self.app.retry(self._any_job(), as_new=True),
            lambda: self.app.set_priority(self._any_job(), self.random.randrange(2)),
            lambda: self.app.supersede(self._any_job(), self._draft()),
            lambda: self.app.delete(self._any_job()),
            *[self.move] * 3,
            self.edit,
            self.promote,
            self.crash,
        ]

    def step(self) -> None:
        """One thing; what the rules forbid is refused, and that is all."""
        with suppress(TransitionRefused, KeyConflict, JobNotFound):
            self.random.choice(self.verbs)()

    def enqueue(self) -> None:
        self.app.enqueue_many([self._draft()])

    def claim(self) -> None:
        knows = self.random.choice([None, {"plain": 1}])
        runs = [RunId(run) for run in self.app.ids.new_many(4)]
        lanes = [Lane(queue, 2) for queue in QUEUES]
        self.held += self.app.store.claim(lanes, Claimer(self.node, knows, runs, 60_000_000), self.clock.now())

    def finish(self) -> None:
        """Also for runs whose job was rescued meanwhile: they come too late."""
        if self.held:
            taken = self.held.pop(self.random.randrange(len(self.held)))
            self.app.store.finish([Finish(taken.live, self._report(), self._new_job_id())], self.clock.now())

    def move(self) -> None:
        where: dict[str, Any] = self.random.choice(
            [{"to": "front"}, {"to": "back"}, {"before": self._any_job()}, {"after": self._any_job()}]
        )
        self.app.move(self._any_job(), **where)

    def edit(self) -> None:
        changes: dict[str, Any] = self.random.choice(
            [{"queue": self.random.choice(QUEUES)}, {"delay": 3}, {"payload": {"n": 1}}, {"tags": ["z"]}]
        )
        self.app.edit(self._any_job(), **changes)

    def promote(self) -> None:
        self.clock.advance(seconds=5)
        self.app.store.promote(self.clock.now(), 10)

    def crash(self) -> None:
        lost, next_ids = Failure("Lost", "gone"), [self._new_job_id() for _ in range(50)]
        self.app.store.stop(self.node, "crash", self.clock.now())
        self.app.store.rescue(self.node, lost, 3, next_ids, self.clock.now())
        self.node = self._new_node()

    def _any_job(self) -> Job:
        jobs = list(self.app.jobs())
        if not jobs:
            raise JobNotFound("there are none yet")
        return self.random.choice(jobs)

    def _draft(self) -> Any:
        one_in_three: dict[str, Any] = {
            "business_key": f"order-{self.random.randrange(5)}",
            "idempotency_key": f"once-{self.random.randrange(20)}",
            "delay": self.random.choice([1, 100]),
            "tags": ["x", "y"],
            "timeout": 5,
        }
        options = {name: value for name, value in one_in_three.items() if self.random.random() < 1 / 3}
        conflict = self.random.choice(["raise", "return"])
        kind = self.random.choice(self.kinds)
        return kind.options(**options, conflict=conflict, queue=self.random.choice(QUEUES)).new(1)

    def _report(self) -> Report:
        failure = Failure("RuntimeError", "no", permanent=self.random.random() < 0.2)
        reports: list[Report] = [
            Completed("1"),
            Failed(failure, self.random.choice([0, 5_000_000])),
            TimedOut(failure),
            Snoozed(3_000_000),
            Released(counts=self.random.random() < 0.5),
            Skipped("nothing to do"),
            Cancelled(),
            Unreadable("what is this"),
        ]
        return self.random.choice(reports)

    def _new_node(self) -> NodeId:
        node = NodeId(self.app.ids.new())
        self.app.store.register(NewNode(node, self.clock.now()))
        return node

    def _new_job_id(self) -> JobId:
        return JobId(self.app.ids.new())


def _work(n: int) -> int:
    return n


@pytest.mark.parametrize("seed", range(4))
def test_a_random_life_breaks_no_promise(seed: int, tmp_path: Path, full_size: bool) -> None:
    life = Life(tmp_path / "jobs.db", seed)
    for _ in range(3_000 if full_size else 250):
        life.step()
        findings = examine(life.app.store, life.clock.now())
        assert is_healthy(findings), findings
    life.app.close()
