"""`app.reserve`: the queue stands still around the block, and goes on as if nothing had been."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from perdure import InvalidOption, Perdure, PerdureError, ReservationBusy, ReservationExpired, TransactionError
from perdure.store.reservation import EXPIRED
from tests.reserve.jobs import QUEUE
from tests.worker.patience import eventually, eventually_here


def test_no_job_starts_while_the_queue_is_reserved_and_then_all_in_their_order(app: Perdure) -> None:
    jobs = [app.enqueue("work", {"n": n}, priority=n % 3) for n in range(12)]
    before = [job.id for job in app.jobs(state="queued", queue=QUEUE)]
    with app.reserve(QUEUE) as held:
        assert app.worker().run(until_idle=True) == 0
        assert not list(app.runs())
        held.check()
        assert [job.id for job in app.jobs(state="queued", queue=QUEUE)] == before

    app.worker(concurrency=1).run(until_idle=True)
    assert [run.job_id for run in app.runs()][::-1] == before
    assert sorted(before) == sorted(job.id for job in jobs)


def test_every_queue_is_reserved_without_a_name(app: Perdure) -> None:
    app.enqueue("work", {"n": 1})
    app.enqueue("work", {"n": 2}, queue="other")
    with app.reserve():
        app.worker().run(until_idle=True)
        assert not list(app.runs())
        assert [queue.reserved for queue in app.queues.list() if queue.name == "*"] == [True]

    app.worker().run(until_idle=True)
    assert len(list(app.runs(state="completed"))) == 2


def test_the_block_begins_when_the_running_job_has_ended(app: Perdure) -> None:
    begun, go_on = threading.Event(), threading.Event()

    @app.job(queue=QUEUE)
    def slow() -> None:
        begun.set()
        go_on.wait()

    job = app.enqueue("slow")
    with app.worker(concurrency=1, poll_s=0.05).running(), ThreadPoolExecutor(1) as pool:
        begun.wait()
        behind = app.enqueue("work", {"n": 1})

        def ended_inside() -> list[bool]:
            with app.reserve(QUEUE, wait=None):
                return [app.existing(one).is_final for one in (job, behind)]

        inside = pool.submit(ended_inside)
        eventually(lambda: [row for row in app.reservations() if row.status == "active"])
        assert app.reservations()[0].entered_at is None
        go_on.set()
        assert inside.result() == [True, False]
        app.wait(behind, timeout=60)
    assert app.reservations()[0].entered_at is not None


def test_when_the_wait_is_over_it_is_released_and_the_queue_goes_on(app: Perdure) -> None:
    with app.reserve(QUEUE) as held, pytest.raises(ReservationBusy, match=r"is reserved by process \d+ on "):
        app.reserve(QUEUE, wait=0.05).__enter__()
    assert [(row.id, row.status) for row in app.reservations()] == [(held.id, "released")]

    begun, go_on = threading.Event(), threading.Event()

    @app.job(queue=QUEUE)
    def slow() -> None:
        begun.set()
        go_on.wait()

    app.enqueue("slow")
    with app.worker(poll_s=0.05).running():
        begun.wait()
        with (
            pytest.raises(ReservationBusy, match="a job of it still runs"),
            app.reserve(QUEUE, wait=0.05),
        ):
            pass
        behind = app.enqueue("work", {"n": 1})
        assert app.wait(behind, timeout=60).result == 2
        go_on.set()
    newest = app.reservations()[0]
    assert (newest.status, newest.entered_at) == ("released", None)


def test_an_error_in_the_block_releases_it(app: Perdure) -> None:
    with pytest.raises(ZeroDivisionError), app.reserve(QUEUE, by="ann"):
        raise ZeroDivisionError
    [row] = app.reservations()
    assert (row.queue, row.by, row.status) == (QUEUE, "ann", "released")
    assert row.closed_at is not None


def test_after_its_end_check_and_renew_raise_and_the_release_changes_nothing(app: Perdure) -> None:
    with app.reserve(QUEUE) as held:
        held.check()
        app.store.close_reservation(held.reservation_id, EXPIRED, app.clock.now())
        for act in (held.check, held.renew):
            with pytest.raises(ReservationExpired) as raised:
                act()
            assert raised.value.code == "reservation_expired"
        with app.reserve(QUEUE) as next_one:
            held.release()
            next_one.check()
    assert [row.status for row in app.reservations()] == ["released", "expired"]


def test_without_a_word_it_lasts_for_ten_minutes(app: Perdure) -> None:
    with app.reserve(QUEUE):
        [row] = app.store.active_reservations()
    assert row.lasts_us == 600_000_000


def test_its_time_begins_with_the_block_and_a_renewal_moves_the_end(app: Perdure) -> None:
    with app.reserve(QUEUE, expires=1_000) as held:
        [row] = app.reservations()
        assert row.entered_at is not None
        assert row.expires_at == held.expires_at
        assert round((row.expires_at - row.entered_at).total_seconds()) == 1_000
        held.renew()
        assert held.expires_at > row.expires_at
        assert app.reservations()[0].expires_at == held.expires_at
        after = held.expires_at
        held.keep()  # there is time enough
        assert held.expires_at == after


def test_one_that_lasts_no_time_is_over_at_once_and_a_waiting_one_takes_over(app: Perdure) -> None:
    with app.reserve(QUEUE, expires=0.000_001) as held:
        with pytest.raises(ReservationExpired):
            held.check()
        with app.reserve(QUEUE, wait=0):
            assert [row.status for row in app.reservations()] == ["active", "expired"]


@pytest.mark.parametrize("queue", [QUEUE, "*"])
def test_a_job_cannot_reserve_the_queue_that_it_runs_in(app: Perdure, queue: str) -> None:
    job = app.enqueue("reserve", {"queue": queue}, retry=1)
    app.worker().run(until_idle=True)

    assert "[reserve_own_queue]" in (app.existing(job).error or "")
    assert app.reservations() == []


def test_a_job_can_reserve_another_queue(app: Perdure) -> None:
    job = app.enqueue("reserve", {"queue": "other"})
    app.worker().run(until_idle=True)

    assert app.existing(job).result == "held"
    assert app.reservations()[0].by.startswith(f"job {job.id} in process ")


def test_a_reservation_in_a_transaction_is_refused(app: Perdure) -> None:
    with app.transaction(), pytest.raises(TransactionError, match="reserve_in_transaction"), app.reserve(QUEUE):
        pass
    assert app.reservations() == []


def test_a_reservation_is_used_once(app: Perdure) -> None:
    once = app.reserve(QUEUE)
    with once:
        with pytest.raises(PerdureError, match="reservation_used"), once:
            pass
        once.check()  # and is not released by who cannot have it
    with pytest.raises(PerdureError, match="reservation_used"):
        once.__enter__()


@pytest.mark.parametrize(
    "wrong", [{"wait": -1}, {"wait": "long"}, {"expires": 0}, {"expires": None}, {"queue": ""}, {"by": ""}]
)
def test_what_makes_no_sense_is_refused(app: Perdure, wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidOption, match=next(iter(wrong))):
        app.reserve(**{"queue": QUEUE, **wrong})  # type: ignore[arg-type]


def test_a_worker_frees_the_queue_of_a_reservation_whose_time_is_over(app: Perdure) -> None:
    job = app.enqueue("work", {"n": 4})
    held = app.reserve(QUEUE, expires=0.05)
    held.__enter__()
    with app.worker(poll_s=0.05).running():
        assert app.wait(job, timeout=60).result == 8
    with pytest.raises(ReservationExpired):
        held.renew()
    assert app.reservations()[0].status == "expired"


# -- coroutines ------------------------------------------------------------------------------------------------------


def test_coroutines_reserve_too(app: Perdure) -> None:
    async def main() -> None:
        async with app.aio.reserve(QUEUE) as held:
            await held.check()
            await held.renew()
            assert (await app.aio.reservations())[0].expires_at == held.expires_at
            with pytest.raises(ReservationBusy):
                async with app.aio.reserve(wait=0.05):
                    pass
        assert (await app.aio.reservations())[0].id == held.id

    asyncio.run(main())
    assert [row.status for row in app.reservations()] == ["released"]


def test_a_coroutine_inside_a_transaction_reserves_nothing(app: Perdure) -> None:
    async def main() -> None:
        with app.transaction(), pytest.raises(TransactionError, match="reserve_in_transaction"):
            async with app.aio.reserve(QUEUE):
                pass

    asyncio.run(main())
    assert app.reservations() == []


def test_a_cancelled_wait_leaves_no_reservation(app: Perdure) -> None:
    async def main() -> None:
        async def wait() -> None:
            async with app.aio.reserve(QUEUE, wait=None):
                raise AssertionError("it was held")

        waiting = asyncio.create_task(wait())
        await eventually_here(app.reservations)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    begun, go_on = threading.Event(), threading.Event()

    @app.job(queue=QUEUE)
    def slow() -> None:
        begun.set()
        go_on.wait()

    app.enqueue("slow")
    with app.worker(poll_s=0.05).running():
        begun.wait()
        asyncio.run(main())
        go_on.set()
    assert [row.status for row in app.reservations()] == ["released"]
