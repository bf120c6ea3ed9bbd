"""Many processes at once, and killed ones: never two holders, no job beside one, and the queue moves on."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from perdure import Perdure, State
from tests.reserve.jobs import QUEUE, hold, run_for_ever, spawn, started, take_turns, work_on
from tests.worker.patience import DEADLINE_S, eventually

LOOKS = 20

needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="a dead process is told by /proc")


@contextmanager
def other(target: Any, *args: object) -> Iterator[Any]:
    """Another process, killed in the end."""
    child = started(target, *args)
    try:
        yield child
    finally:
        child.kill()
        child.join()


def test_two_processes_that_race_for_a_reservation_never_hold_it_both(
    app: Perdure, url: str, tmp_path: Path, full_size: bool
) -> None:
    times = 500 if full_size else 50
    start, answers = spawn.Barrier(2), spawn.Queue()
    args = (url, start, times, str(tmp_path / "held"), answers)
    with other(take_turns, *args), other(take_turns, *args):
        assert [answers.get(timeout=10 * DEADLINE_S) for _ in range(2)] == [times, times]

    records = app.reservations(limit=10 * times)
    assert len(records) == 2 * times
    assert {row.status for row in records} == {"released"}


def test_no_job_runs_beside_the_holder_however_busy_the_workers_are(app: Perdure, url: str, full_size: bool) -> None:
    """Two workers claim without a pause while the queue is reserved again and again."""
    told = [spawn.Event(), spawn.Event()]
    with other(work_on, url, told[0]), other(work_on, url, told[1]):
        for event in told:
            assert event.wait(DEADLINE_S)
        for turn in range(200 if full_size else 20):
            app.enqueue_many([app.draft("work", {"n": n}, {}) for n in range(100)])
            ran = [run.id for run in app.runs(limit=1)]
            eventually(lambda ran=ran: [run.id for run in app.runs(limit=1)] > ran)  # type: ignore[misc]
            with app.reserve(QUEUE if turn % 2 else "*", wait=DEADLINE_S) as held:
                before = next(app.runs()).id
                for _ in range(LOOKS):
                    assert not list(app.jobs(state="running"))
                    assert next(app.runs()).id == before
                held.check()


@needs_proc
@pytest.mark.parametrize("queue", [QUEUE, "*"])
def test_the_queue_of_a_holder_that_was_killed_moves_again_in_its_order(app: Perdure, url: str, queue: str) -> None:
    app.enqueue_many([app.draft("work", {"n": n}, {"priority": n % 3}) for n in range(9)])
    before = [job.id for job in app.jobs(state="queued", queue=QUEUE)]
    told = spawn.Event()
    with other(hold, url, queue, told) as child:
        assert told.wait(DEADLINE_S)
        app.worker().run(until_idle=True)
        assert not list(app.runs())
        os.kill(child.pid, signal.SIGKILL)
        child.join()

    app.worker(concurrency=1).run(until_idle=True)  # a start closes what is over
    assert [run.job_id for run in app.runs()][::-1] == before
    assert [row.status for row in app.reservations()] == ["expired"]


@needs_proc
def test_a_running_worker_notices_that_the_holder_was_killed(app: Perdure, url: str) -> None:
    told = spawn.Event()
    with other(hold, url, QUEUE, told) as child:
        assert told.wait(DEADLINE_S)
        job = app.enqueue("work", {"n": 3})
        with app.worker(poll_s=0.05).running():
            os.kill(child.pid, signal.SIGKILL)
            child.join()
            assert app.wait(job, timeout=DEADLINE_S).result == 6


@needs_proc
def test_whoever_waits_takes_over_from_a_holder_that_was_killed(app: Perdure, url: str) -> None:
    told = spawn.Event()
    with other(hold, url, QUEUE, told) as child:
        assert told.wait(DEADLINE_S)
        entered = threading.Event()

        def take_over() -> None:
            with app.reserve(QUEUE, wait=DEADLINE_S):
                entered.set()

        waiting = threading.Thread(target=take_over)
        waiting.start()
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        waiting.join(DEADLINE_S)
        assert entered.is_set()
    assert [row.status for row in app.reservations()] == ["released", "expired"]


@needs_proc
def test_the_direct_job_of_a_process_that_was_killed_is_rescued(app: Perdure, url: str) -> None:
    told = spawn.Event()
    with other(run_for_ever, url, told) as child:
        assert told.wait(DEADLINE_S)
        os.kill(child.pid, signal.SIGKILL)
        child.join()

    @app.job(queue=QUEUE)
    def endless() -> str:
        return "this time it ends"

    app.worker().run(until_idle=True)
    [job] = app.jobs()
    assert (job.state, job.result, job.crashes) == (State.COMPLETED, "this time it ends", 1)
    assert [run.state for run in app.runs(job)] == ["completed", "lost"]
    assert [row.status for row in app.reservations()] == ["expired"]


def test_an_interrupt_gives_the_direct_job_back_to_the_queue(app: Perdure, url: str) -> None:
    told = spawn.Event()
    with other(run_for_ever, url, told) as child:
        assert told.wait(DEADLINE_S)
        os.kill(child.pid, signal.SIGINT)
        eventually(lambda: not child.is_alive())

    [job] = app.jobs()
    assert (job.state, job.crashes) == (State.QUEUED, 0)
    assert [run.state for run in app.runs(job)] == ["released"]
    assert [row.status for row in app.reservations()] == ["released"]
    assert app.store.live_nodes() == []
