"""Built-in work by the clock: taken like any slot, by one worker, in steps, and noted with what it did."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from perdure import Perdure, Retention
from perdure.clock import ManualClock, Micros
from perdure.upkeep.retention import Work, built_in
from tests.schedule.conftest import Firer


class Counting(Work):
    """Three steps."""

    name = "perdure.count"
    every = "0 * * * *"

    def _work(self, now: Micros) -> Iterator[None]:
        for _ in range(3):
            self._counts["steps"] += 1
            yield


class Breaking(Counting):
    """Fails in its second step."""

    def _work(self, now: Micros) -> Iterator[None]:
        yield
        raise ValueError("no")


class Two(Counting):
    """Another at the same time."""

    name = "perdure.two"


def with_upkeep(app: Perdure, *works: type[Work]) -> Firer:
    return Firer(app, [work(app.store, app.clock) for work in works])


def statuses(app: Perdure, name: str = "perdure.count") -> list[tuple[str, Any]]:
    return [(slot.status, dict(slot.note)) for slot in app.schedules.slots(name)]


def test_one_worker_does_it_in_steps_and_notes_what_it_did(app: Perdure, clock: ManualClock) -> None:
    worker, other = with_upkeep(app, Counting), with_upkeep(app, Counting)
    worker.look()
    other.look()
    clock.advance(hours=1)
    worker.scheduler.look(worker.node)
    assert statuses(app) == [("running", {})]
    for _ in range(5):
        other.scheduler.look(other.node)
    assert statuses(app) == [("running", {})]
    for _ in range(3):
        worker.scheduler.look(worker.node)

    assert statuses(app) == [("done", {"steps": 3})]
    assert list(app.jobs()) == []


def test_what_fails_is_noted_and_begins_again_at_its_next_time(
    app: Perdure, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    worker = with_upkeep(app, Breaking)
    for _ in range(2):
        worker.look()
        clock.advance(hours=1)
        for _ in range(4):
            worker.look()

    assert statuses(app) == [("failed", {"error": "no"})] * 2
    assert "perdure.count failed" in caplog.text


def test_one_at_a_time(app: Perdure, clock: ManualClock) -> None:
    worker = with_upkeep(app, Counting, Two)
    worker.look()
    clock.advance(hours=1)
    for _ in range(6):
        worker.look()

    assert {statuses(app)[0][0], statuses(app, "perdure.two")[0][0]} == {"done", "skipped"}


def test_a_person_can_switch_it_off_and_give_it_another_time(app: Perdure, clock: ManualClock) -> None:
    worker = with_upkeep(app, Counting)
    worker.look()
    assert app.schedules.list() == []
    assert [schedule.name for schedule in app.schedules.list(all=True)] == ["perdure.count"]
    app.schedules.disable("perdure.count")
    clock.advance(hours=2)
    worker.look()
    assert statuses(app) == []


def test_a_worker_prunes_what_is_old(app: Perdure, clock: ManualClock) -> None:
    @app.job
    def work() -> None: ...

    work.enqueue()
    app.worker().run(until_idle=True)
    [job] = app.jobs()
    upkeep = built_in(app.store, clock, Retention(completed=timedelta(days=1)), app.kinds)
    worker = Firer(app, upkeep)
    worker.look()
    clock.advance(days=2)
    for _ in range(20):
        worker.look()

    assert app.get(job.id) is None
    [slot] = app.schedules.slots("perdure.prune")
    assert (slot.status, slot.note["jobs"]) == ("done", 1)


def test_every_worker_brings_the_built_in_work(app: Perdure) -> None:
    app.worker().run(until_idle=True)

    assert [schedule.name for schedule in app.schedules.list(all=True)] == [
        "perdure.archive",
        "perdure.check",
        "perdure.prune",
    ]
