"""What the doctor once found after plain use, each as a test of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure import Perdure, State
from perdure.ids import NodeId, RunId
from perdure.job.views import Job
from perdure.ops.doctor import examine, is_healthy
from perdure.store.rows import Claimer, Lane, NewNode


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Perdure]:
    app = Perdure(tmp_path / "jobs.db")
    yield app
    assert is_healthy(examine(app.store))
    app.close()


@pytest.fixture
def work(app: Perdure) -> Any:
    return app.job(name="work")(lambda: None)


def claim(app: Perdure, knows: dict[str, int] | None = None) -> None:
    node = NodeId(app.ids.new())
    app.store.register(NewNode(node, app.clock.now()))
    claimer = Claimer(node, knows, [RunId(app.ids.new())], 60_000_000)
    app.store.claim([Lane("default", 1)], claimer, app.clock.now())


def order(app: Perdure) -> list[Job]:
    return list(app.jobs(state="queued", queue="default"))


def test_jobs_moved_behind_the_last_one_are_not_overtaken_by_a_new_one(app: Perdure, work: Any) -> None:
    first, second, last = (work.enqueue() for _ in range(3))
    app.move(first, after=last)
    app.move(second, after=first)

    newest = work.enqueue()

    assert [job.id for job in order(app)] == [last.id, first.id, second.id, newest.id]


def test_jobs_that_make_room_are_not_overtaken_by_a_new_one(app: Perdure, work: Any) -> None:
    jobs = [work.enqueue() for _ in range(12)]
    for job in jobs[:-2]:
        app.move(job, after=jobs[-2])

    newest = work.enqueue()

    assert order(app)[-1].id == newest.id


def test_a_replacement_that_was_cancelled_and_retried_still_waits(app: Perdure, work: Any) -> None:
    old = work.enqueue()
    claim(app)
    replacement = app.supersede(old, work.new()).superseded_by
    assert replacement is not None
    app.cancel(replacement)

    assert app.retry(replacement).state == State.BLOCKED


def test_a_deleted_job_waits_for_nothing(app: Perdure, work: Any) -> None:
    old = work.enqueue()
    claim(app)
    replacement = app.supersede(old, work.new()).superseded_by
    assert replacement is not None
    app.cancel(replacement)

    app.delete(replacement)

    assert is_healthy(examine(app.store))


def test_a_parked_job_that_is_edited_is_parked_no_more(app: Perdure, work: Any) -> None:
    parked = work.enqueue()
    claim(app, knows={})

    edited = app.edit(parked, tags=["x"])

    assert (edited.state, edited.park_reason) == (State.QUEUED, None)
