"""Waiting for a job's end: the typed result, or why there is none."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from perdure import InvalidPayload, JobFailed, JobNotFound, KindError, Perdure, Retry, State, WaitTimeout
from perdure.clock import ManualClock
from perdure.job.model import Failure
from tests.app import by_hand


class FinishStatus(NamedTuple):
    when: date
    many: tuple[int, ...]


def test_the_result_comes_back_as_the_function_declares_it(app: Perdure) -> None:
    @app.job
    def ask() -> FinishStatus:
        raise NotImplementedError

    job = ask.enqueue()
    by_hand.complete(app, ask.codec.encode_result(FinishStatus(date(2030, 1, 2), (1, 2))))
    assert ask.wait(job, 1) == FinishStatus(date(2030, 1, 2), (1, 2))
    assert app.wait(job, 1).result == ["2030-01-02", [1, 2]]


def test_a_kind_reads_the_result_of_a_job_in_hand(app: Perdure) -> None:
    @app.job
    def ask() -> FinishStatus:
        raise NotImplementedError

    job = ask.enqueue()
    by_hand.complete(app, ask.codec.encode_result(FinishStatus(date(2030, 1, 2), (1, 2))))
    assert [ask.result(ended) for ended in app.jobs(kind="ask")] == [FinishStatus(date(2030, 1, 2), (1, 2))]
    with pytest.raises(WaitTimeout, match=r"was queued when it was read.*ask\.wait\(job\)"):
        ask.result(job)


def test_a_job_that_failed_has_no_result_in_hand_either(app: Perdure, send: Any) -> None:
    job = app.cancel(send.enqueue("a"))
    with pytest.raises(JobFailed) as raised:
        send.result(job)
    assert raised.value.code == "job_cancelled"


def test_the_result_of_a_job_of_another_kind_is_refused(app: Perdure, send: Any) -> None:
    @app.job
    def other() -> str:
        return "a"

    job = other.enqueue()
    by_hand.complete(app, '"a"')
    for ask, about in ((send.wait, job.id), (send.result, app.get(job))):
        with pytest.raises(KindError, match="is of kind 'other', not 'send'") as raised:
            ask(about)
        assert raised.value.code == "kind_other"


def test_a_kind_knows_its_jobs_under_its_older_names(app: Perdure) -> None:
    @app.job(name="post")
    def old() -> str:
        return "a"

    job = old.enqueue()
    by_hand.complete(app, '"a"')
    renamed = Perdure(app.url)

    @renamed.job(name="mail", aliases=["post"])
    def new() -> str:
        return "b"

    assert new.wait(job.id) == "a"
    renamed.close()


def test_a_time_to_wait_may_be_a_timedelta(app: Perdure, send: Any) -> None:
    job = send.enqueue("a")
    for wait in (app.wait, send.wait):
        with pytest.raises(WaitTimeout, match="was queued after 0 s"):
            wait(job, timedelta(0))


def test_no_result_is_none(app: Perdure, send: Any) -> None:
    job = send.enqueue("a")
    by_hand.complete(app)
    assert (send.wait(job), app.wait(job).result) == (None, None)


@pytest.mark.parametrize(
    "shape", [lambda job: job, lambda job: job.id, lambda job: str(job.id), lambda job: job.id.hex]
)
def test_a_job_may_be_named_in_any_form(shape: Callable[[Any], Any], app: Perdure, send: Any) -> None:
    job = send.enqueue("a")
    by_hand.complete(app, '"done"')
    assert (send.wait(shape(job), 0), app.existing(shape(job)).id) == ("done", job.id)


def test_waiting_ends_when_the_job_does(app: Perdure, send: Any) -> None:
    job = send.enqueue("a")
    answers: list[Any] = []
    waiter = threading.Thread(target=lambda: answers.append(send.wait(job, 30)))
    waiter.start()
    by_hand.complete(app, '"done"')
    waiter.join()
    assert answers == ["done"]


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        (lambda app: by_hand.fail(app, "out of stamps"), "job_failed", "out of stamps"),
        (lambda app: app.cancel_all(), "job_cancelled", "cancelled"),
        (lambda app: by_hand.finish(app, by_hand.claim(app), by_hand.Skipped("no need")), "job_skipped", "no need"),
    ],
)
def test_an_end_without_a_result_is_an_error(end: Any, code: str, said: str, app: Perdure, send: Any) -> None:
    job = send.options(retry=1).enqueue("a")
    end(app)
    with pytest.raises(JobFailed) as raised:
        send.wait(job, 1)
    assert raised.value.code == code
    assert said in raised.value.message
    assert app.wait(job, 1).is_final


def test_patience_ends_but_the_job_goes_on(path: Path) -> None:
    clock = ManualClock(datetime(2030, 1, 1, tzinfo=UTC))
    app = Perdure(path, clock=clock)

    @app.job
    def work() -> None: ...

    job = work.enqueue()
    errors: list[BaseException] = []

    def impatient() -> None:
        try:
            work.wait(job, 5)
        except WaitTimeout as error:
            errors.append(error)

    waiter = threading.Thread(target=impatient)
    waiter.start()
    while waiter.is_alive():
        clock.advance(seconds=1)
        waiter.join(0.01)
    assert "5 s" in str(errors[0])
    assert app.existing(job).state == State.QUEUED
    app.close()


def test_a_time_out_is_a_time_out_to_python_too(app: Perdure, send: Any) -> None:
    with pytest.raises(TimeoutError):
        app.wait(send.enqueue("a"), 0)


def test_nobody_is_waited_for_in_vain(app: Perdure) -> None:
    with pytest.raises(JobNotFound):
        app.wait("00000000-0000-7000-8000-000000000000")


def test_waiting_follows_a_chain_of_retries(app: Perdure) -> None:
    @app.job(retry=Retry(max_attempts=3, backoff="none", as_new_job=True))
    def work() -> str:
        raise NotImplementedError

    root = work.enqueue()
    by_hand.finish(app, by_hand.claim(app), by_hand.Failed(Failure("OSError", "once")))
    by_hand.complete(app, '"second time"')
    ended = app.wait(root, 1)
    assert (ended.id != root.id, ended.result, work.wait(root, 1)) == (True, "second time", "second time")


def test_a_result_that_does_not_fit_is_an_error(app: Perdure) -> None:
    @app.job
    def count() -> int:
        raise NotImplementedError

    job = count.enqueue()
    by_hand.complete(app, '"many"')
    with pytest.raises(InvalidPayload) as raised:
        count.wait(job, 1)
    assert raised.value.code == "result_invalid"
