"""`app.run_direct`: one job here and now, recorded like any other, past the ones that wait."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import InvalidOption, InvalidPayload, KeyConflict, Perdure, ReservationBusy, State, current
from tests.reserve.jobs import QUEUE
from tests.worker.patience import eventually


@pytest.mark.parametrize(("kind", "result"), [("work", 14), ("gather", 21)])
def test_a_job_runs_at_once_and_the_waiting_ones_keep_their_places(app: Perdure, kind: str, result: int) -> None:
    for n in range(5):
        app.enqueue("work", {"n": n}, priority=n % 2)
    before = [job.id for job in app.jobs(state="queued", queue=QUEUE)]

    job = app.run_direct(kind, {"n": 7})

    assert (job.state, job.result, job.attempts) == (State.COMPLETED, result, 1)
    [run] = app.runs(job)
    assert run.state == "completed"
    assert [job.id for job in app.jobs(state="queued", queue=QUEUE)] == before
    [row] = app.reservations()
    assert (row.queue, row.status) == (QUEUE, "released")
    assert app.store.live_nodes() == []


def test_it_goes_to_the_queue_that_is_named(app: Perdure) -> None:
    job = app.run_direct("work", {"n": 1}, queue="other", tags=["now"])

    assert (job.queue, job.tags, job.result) == ("other", ("now",), 2)
    assert app.reservations()[0].queue == "other"


def test_what_it_logs_and_measures_is_kept(app: Perdure) -> None:
    @app.job(queue=QUEUE)
    def tell() -> None:
        ctx = current()
        assert ctx is not None
        ctx.log.info("here I am")
        ctx.metric(size=3)

    job = app.run_direct("tell")

    assert [line.message for line in app.logs(job)] == ["here I am"]
    assert next(app.runs(job)).metrics == {"size": 3}


def test_a_failed_attempt_is_retried_by_the_workers(app: Perdure) -> None:
    job = app.run_direct("broken")

    assert (job.state, job.attempts) == (State.QUEUED, 1)
    app.worker().run(until_idle=True)
    assert (app.existing(job).state, len(list(app.runs(job)))) == (State.FAILED, 2)


def test_nobody_else_gets_a_job_of_the_queue_while_it_runs(app: Perdure) -> None:
    waiting = app.enqueue("work", {"n": 1})

    @app.job(queue=QUEUE)
    def look() -> str:
        app.worker().run(until_idle=True)
        return app.existing(waiting).state

    assert app.run_direct("look").result == "queued"


def test_a_taken_key_runs_nothing(app: Perdure) -> None:
    first = app.enqueue("work", {"n": 1}, idempotency_key="k")
    again = app.run_direct("work", {"n": 1}, idempotency_key="k")
    assert (again.id, again.deduplicated, again.state) == (first.id, True, State.QUEUED)

    app.enqueue("work", {"n": 1}, business_key="b")
    with pytest.raises(KeyConflict):
        app.run_direct("work", {"n": 1}, business_key="b")
    assert not list(app.runs())
    assert [row.status for row in app.reservations()] == ["released", "released"]


@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [
        ({"n": "x"}, {}, InvalidPayload),
        ({"n": 1}, {"delay": 60}, InvalidOption),
        ({"n": 1}, {"wait": -1}, InvalidOption),
        ({"n": 1}, {"tx": object()}, InvalidOption),
    ],
)
def test_what_cannot_run_now_is_refused_before_anything_is_written(
    app: Perdure, arguments: dict[str, Any], options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        app.run_direct("work", arguments, **options)
    assert app.reservations() == []
    assert list(app.jobs()) == []


def test_a_reserved_queue_is_not_run_in(app: Perdure) -> None:
    with app.reserve(QUEUE), pytest.raises(ReservationBusy):
        app.run_direct("work", {"n": 1}, wait=0.05)
    assert list(app.jobs()) == []


def test_a_job_whose_reservation_is_lost_goes_on_and_is_warned_of_once(
    app: Perdure, caplog: pytest.LogCaptureFixture
) -> None:
    @app.job(queue=QUEUE)
    def lose() -> str:
        [held] = app.store.active_reservations()
        app.store.close_reservation(held.id, "expired", app.clock.now())
        eventually(lambda: "goes on without the reservation" in caplog.text)
        return "done"

    assert app.run_direct("lose", expires=0.05).result == "done"
    assert caplog.text.count("goes on without the reservation") == 1
    assert app.reservations()[0].status == "expired"


def test_the_reservation_is_renewed_while_the_job_runs(app: Perdure) -> None:
    @app.job(queue=QUEUE)
    def watch() -> None:
        [first] = app.store.active_reservations()
        eventually(lambda: app.store.active_reservations()[0].expires_at > first.expires_at)

    assert app.run_direct("watch", expires=3).state is State.COMPLETED
    assert app.reservations()[0].status == "released"


def test_a_direct_job_can_be_cancelled_from_elsewhere(app: Perdure) -> None:
    @app.job(queue=QUEUE)
    def endless() -> None:
        ctx = current()
        assert ctx is not None
        app.cancel(ctx.job_id)
        eventually(lambda: ctx.should_stop)
        ctx.checkpoint()

    assert app.run_direct("endless").state is State.CANCELLED


def test_a_direct_job_runs_in_a_test_too(app: Perdure) -> None:
    with app.testing() as kit:
        waiting = app.enqueue("work", {"n": 1})
        assert app.run_direct("work", {"n": 2}).result == 4
        assert [job.id for job in kit.drain()] == [waiting.id]
