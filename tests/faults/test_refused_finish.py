"""The database takes every finish but one. That one is written in a simpler form; others and claims continue."""

from __future__ import annotations

from typing import TypeVar
from uuid import UUID

import pytest

from perdure import DatabaseBusy, Job, JobContext, Perdure, Retry, StoreError
from perdure.store.engine import Make
from perdure.store.store import Runner, SqlStore
from perdure.testing.contract.faults import PassingRunner
from tests.faults.scene import Listener, Scene, count, until
from tests.history import ended, started

T = TypeVar("T")


@pytest.fixture
def app(scene: Scene) -> Perdure:
    app = scene.app()

    @app.job(retry=Retry(max_attempts=2, base=0))
    def work(ctx: JobContext, n: int) -> str:
        started(scene.notes, ctx)
        ended(scene.notes, ctx)
        return "x" * n

    return app


def refuse(app: Perdure, job: UUID, table: str, when: str = "1") -> None:
    """From now on the database takes nothing into this table for this job (where `when` is true of the row)."""
    event = "INSERT" if table == "outcome" else "UPDATE"
    with app.transaction() as tx:
        tx.execute(
            f"CREATE TRIGGER no_{table} BEFORE {event} ON perdure_{table}"
            f" WHEN NEW.job_id = X'{job.hex}' AND {when} BEGIN SELECT RAISE(ABORT, 'no'); END"
        )


def relent(app: Perdure, *tables: str) -> None:
    with app.transaction() as tx:
        for table in tables:
            tx.execute(f"DROP TRIGGER no_{table}")


def enqueued(scene: Scene, app: Perdure, n: int) -> list[Job]:
    return scene.sent(*app.enqueue_many([app.kinds.get("work").new(n=1) for _ in range(n)]))


def test_a_result_that_the_database_refuses_fails_its_job_with_the_reason(scene: Scene, app: Perdure) -> None:
    bad, *good = enqueued(scene, app, 20)
    refuse(app, bad.id, "outcome", "NEW.state = 'completed'")
    app.worker(concurrency=10).run(until_idle=True)
    assert app.existing(bad).state == "failed"
    assert app.existing(bad).error_type == "FinishRefused"
    assert "no" in str(app.existing(bad).error)
    assert {app.existing(job).state for job in good} == {"completed"}


def test_a_job_whose_every_end_is_refused_stops_nobody_else(scene: Scene, app: Perdure, listener: Listener) -> None:
    """It is left as it is, tried again in a while, and ends once the database lets it."""
    bad, *good = enqueued(scene, app, 20)
    refuse(app, bad.id, "outcome")
    with app.worker(concurrency=10).running():
        until(lambda: count(app, "completed") == 19)
        later = enqueued(scene, app, 20)
        until(lambda: count(app, "completed") == 39)
        assert not app.existing(bad).is_final
        assert sum(1 for _ in app.runs(bad)) <= 2, "its handler is not run over and over"
        relent(app, "outcome")
    app.worker().run(until_idle=True)
    assert app.existing(bad).state in ("failed", "completed")
    assert {app.existing(job).state for job in (*good, *later)} == {"completed"}


def test_a_job_that_cannot_be_written_at_all_stops_nobody_else(scene: Scene, app: Perdure, listener: Listener) -> None:
    """Not even its release is taken: reconciling must not stop the node."""
    bad, *good = enqueued(scene, app, 20)
    refuse(app, bad.id, "ready", "OLD.state = 'running'")
    refuse(app, bad.id, "outcome")
    with app.worker(concurrency=10).running():
        until(lambda: count(app, "completed") == 19)
        later = enqueued(scene, app, 20)
        until(lambda: count(app, "completed") == 39)
        assert app.existing(bad).state == "running"
    relent(app, "outcome", "ready")
    app.worker().run(until_idle=True)
    assert app.existing(bad).is_final
    assert {app.existing(job).state for job in (*good, *later)} == {"completed"}


def test_a_claim_that_is_refused_is_tried_again_and_stops_no_finish(scene: Scene, app: Perdure) -> None:
    jobs = enqueued(scene, app, 3)
    refuse(app, jobs[1].id, "ready", "NEW.state = 'running'")
    with app.worker(concurrency=1).running():
        until(lambda: app.existing(jobs[0]).is_final)
        relent(app, "ready")
        until(lambda: count(app, "completed") == 3)


class AwayOnce(PassingRunner):
    """The third write after one that was refused is turned away, and no other."""

    def __init__(self, inner: Runner) -> None:
        super().__init__(inner)
        self._since_refusal: int | None = None
        self.turned_away = 0

    def write(self, make: Make[T], *, brief: bool = False) -> T:
        if self._since_refusal is not None:
            self._since_refusal += 1
            if self._since_refusal == 3:
                self.turned_away += 1
                raise DatabaseBusy("somebody else writes")
        try:
            return self.inner.write(make, brief=brief)
        except StoreError:
            self._since_refusal = self._since_refusal or 0
            raise


def test_an_outage_between_two_of_a_refused_batch_loses_none_of_them(scene: Scene) -> None:
    """The first of five is tried in two forms; at the second job the database is away."""
    app = scene.app()
    assert isinstance(app.store, SqlStore)
    runner = AwayOnce(app.store.runner)
    app.__dict__["store"] = SqlStore(runner)

    @app.job
    async def together(ctx: JobContext) -> None:  # on the loop all of them end in one round
        started(scene.notes, ctx)
        ended(scene.notes, ctx)

    jobs = scene.sent(*together.enqueue_many([{}] * 5))
    refuse(app, jobs[0].id, "outcome", "NEW.state = 'completed'")
    app.worker(concurrency=5).run(until_idle=True)

    assert runner.turned_away == 1
    assert [app.existing(job).state for job in jobs] == ["failed"] + ["completed"] * 4
    assert [sum(1 for _ in app.runs(job)) for job in jobs] == [1] * 5, "nothing ran again"
