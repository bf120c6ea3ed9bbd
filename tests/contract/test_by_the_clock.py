"""What waits for its time costs nothing until then: counted in steps of SQLite's virtual machine, and in memory."""

from __future__ import annotations

import sqlite3
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from perdure import Perdure
from perdure.clock import Micros
from perdure.store import claim, schedule, turn
from perdure.store.engine import Op, drive
from perdure.store.rows import Lane
from perdure.store.sqlite.driver import SqliteDriver
from perdure.store.sqlite.statements import STATEMENTS
from perdure.testing.contract.rig import Rig
from perdure.testing.contract.schedules import MINUTE, new_schedule
from tests.contract.steps import Steps

QUEUED = 20
"""Jobs that can be claimed, however many others wait for their time."""
DUE = 5
YEAR_S = 365 * 86_400
PAGE = 1_000

Question = Callable[[Rig], Op[Any]]


def path_of(rig: Rig) -> Path:
    return Path(rig.url.removeprefix("sqlite:///"))


def steps_of(rig: Rig, question: Question) -> int:
    """What one question takes; what it writes is rolled back."""
    op, steps = question(rig), Steps(path_of(rig))
    try:
        return steps.worst(op)
    finally:
        steps.close()


# -- jobs ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rigs(tmp_path_factory: pytest.TempPathFactory, full_size: bool) -> Iterator[list[Rig]]:
    """A few jobs of today, behind 2,000 whose time comes in a year; and the same with many more of those."""
    rigs = [Rig(f"sqlite:///{tmp_path_factory.mktemp('future')}/jobs.db") for _ in range(2)]
    for rig, number in zip(rigs, (2_000, 1_000_000 if full_size else 20_000), strict=True):
        for _ in range(0, number, PAGE):
            rig.enqueue_many(PAGE, delay_s=YEAR_S)
        rig.enqueue_many(QUEUED)
        assert rig.node
    yield rigs
    for rig in rigs:
        rig.close()


OF_A_WORKER: dict[str, Question] = {
    "claim": lambda rig: claim.claim([Lane(rig.queue, QUEUED)], rig.claimer(QUEUED), rig.now),
    "a claim that finds nothing": lambda rig: claim.claim([Lane("empty", 1)], rig.claimer(1), rig.now),
    "promote": lambda rig: turn.promote(rig.now, 100),
    "glance": lambda rig: turn.glance(rig.node, None),
}


@pytest.mark.parametrize("question", OF_A_WORKER.values(), ids=OF_A_WORKER)
def test_future_jobs_cost_a_worker_no_step(rigs: list[Rig], question: Question) -> None:
    few, many = (steps_of(rig, question) for rig in rigs)

    assert 0 < many <= few + 1  # counted in tens


def test_future_jobs_cost_a_worker_no_memory(rigs: list[Rig], tmp_path: Path) -> None:
    warm_up = Rig(f"sqlite:///{tmp_path}/jobs.db")
    warm_up.close()
    _, few, many = (peak_of_a_worker(rig.url) for rig in (warm_up, *rigs))

    assert many < few + 200_000  # 18,000 ids alone would take 900,000


def peak_of_a_worker(url: str) -> int:
    """The most bytes that Python held at any time of a worker's life."""
    app = Perdure(url, durability="normal")

    @app.job(queue="today")
    def touch() -> None: ...

    jobs = touch.enqueue_many([{}] * QUEUED)
    tracemalloc.start()
    try:
        app.worker(queues=["today"]).run(until_idle=True)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        assert all(app.existing(job).is_final for job in jobs)
        app.close()


# -- schedules -------------------------------------------------------------------------------------------------------


def with_schedules(path: Path, number: int) -> Rig:
    """So many enabled schedules, of which a few are due; in one transaction, as a commit for each takes long."""
    rig = Rig(f"sqlite:///{path}")
    rig.store.upgrade()
    with closing(sqlite3.connect(path)) as connection:
        driver = SqliteDriver(connection, STATEMENTS)
        for n in range(number):
            at = Micros(rig.now + (n - DUE + 1) * MINUTE)
            drive(schedule.save_schedule(new_schedule(rig, f"s{n}", next_trigger_at=at), None), driver)
        connection.commit()
    return rig


OF_A_SCHEDULER: tuple[Question, ...] = (
    lambda _rig: schedule.next_trigger(),
    lambda rig: schedule.due_schedules(rig.now, 100),
    lambda rig: schedule.due_schedules(Micros(rig.now - DUE * MINUTE), 100),
)


def test_a_look_takes_as_many_steps_with_10_schedules_or_10_000(tmp_path: Path) -> None:
    few, many = (with_schedules(tmp_path / f"{number}.db", number) for number in (10, 10_000))

    for question in OF_A_SCHEDULER:
        assert 0 < steps_of(many, question) <= steps_of(few, question) + 1
    for rig in (few, many):
        assert len(rig.store.due_schedules(rig.now, 100)) == DUE
        rig.close()
