"""What becomes of a job, by the way its handler left."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from perdure import Cancel, Fail, InvalidOption, JobContext, Perdure, Retry, RetryAfter, Skip, Snooze
from perdure.worker.run import MESSAGE_LIMIT, TRACEBACK_LIMIT
from tests.worker.bodies import SORTS, declared, last_run, ran, written_over


class Odd(Exception):
    """An exception that is none of Python's own."""


class Mute(Exception):
    def __str__(self) -> str:
        raise OSError("no text")


class Deadly(Exception):
    def __str__(self) -> str:
        raise SystemExit(9)


class Shapeless(Snooze):
    def __init__(self) -> None:
        pass


def raising(error: BaseException) -> Callable[[JobContext], Any]:
    def body(_: JobContext) -> Any:
        raise error

    return body


# -- results ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.parametrize("value", [None, 0, "", "text", [1, {"a": None}], 1.5, False])
def test_what_is_returned_is_the_result(app: Perdure, sort: str, value: Any) -> None:
    job = ran(app, sort, lambda _: value)
    assert (job.state, job.result, job.attempts) == ("completed", value, 1)


@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.parametrize(
    ("value", "code"),
    [
        (object(), "result_not_json"),
        (float("nan"), "result_not_json"),
        (b"\xff", "result_not_json"),
        ("\ud800", "result_not_json"),
        (2_000_000 * "x", "result_too_large"),
    ],
)
def test_a_result_that_cannot_be_kept_fails_the_job_for_good(app: Perdure, sort: str, value: Any, code: str) -> None:
    job = ran(app, sort, lambda _: value)
    assert (job.state, job.attempts) == ("failed", 1)
    run = last_run(app, job)
    assert run.error_type == "InvalidPayload"
    assert code in str(run.error_message)


@pytest.mark.parametrize("sort", SORTS)
def test_a_result_of_another_type_than_declared_fails_the_job_for_good(app: Perdure, sort: str) -> None:
    @app.job
    def plain() -> int:
        return "seven"  # type: ignore[return-value]

    @app.job
    async def coroutine() -> int:
        return "seven"  # type: ignore[return-value]

    job = plain.enqueue() if sort == "plain" else coroutine.enqueue()
    app.worker().run(until_idle=True)
    assert (app.existing(job).state, app.existing(job).attempts) == ("failed", 1)
    assert "result_invalid" in str(last_run(app, job).error_message)


# -- exceptions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sort", SORTS)
def test_an_exception_is_tried_again_and_recorded(app: Perdure, sort: str) -> None:
    def body(ctx: JobContext) -> str:
        if ctx.attempt < 3:
            raise Odd(f"attempt {ctx.attempt}")
        return "at last"

    job = ran(app, sort, body, retry=Retry(3, backoff="none"))
    assert (job.state, job.result, job.attempts) == ("completed", "at last", 3)
    third, second, first = app.runs(job)
    assert (third.state, third.error_type) == ("completed", None)
    assert (second.error_type, second.error_message) == (f"{__name__}.Odd", "attempt 2")
    assert (first.state, first.error_message) == ("failed", "attempt 1")


@pytest.mark.parametrize("sort", SORTS)
def test_the_traceback_begins_with_the_users_own_code(app: Perdure, sort: str) -> None:
    def deeper() -> None:
        raise OSError("down here")

    text = str(last_run(app, ran(app, sort, lambda _: deeper(), retry=1)).traceback)
    lines = text.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "bodies.py" in lines[1]
    assert "in deeper" in text
    assert lines[-1] == "OSError: down here"
    assert "perdure/worker" not in text


@pytest.mark.parametrize("sort", SORTS)
def test_a_spent_budget_ends_the_job(app: Perdure, sort: str) -> None:
    job = ran(app, sort, raising(OSError("no")), retry=Retry(2, backoff="none"))
    assert (job.state, job.attempts) == ("failed", 2)
    assert job.error is not None
    assert "no" in job.error


@pytest.mark.parametrize("sort", SORTS)
def test_a_failed_attempt_waits_for_its_backoff(app: Perdure, sort: str) -> None:
    job = ran(app, sort, raising(OSError()), retry=Retry(2, backoff="exponential", base=600, jitter=0))
    run = last_run(app, job)
    assert (job.state, job.attempts) == ("scheduled", 1)
    assert run.finished_at is not None
    assert job.run_at - run.finished_at == timedelta(seconds=600)


@pytest.mark.parametrize(
    ("policy", "error", "attempts"),
    [
        (Retry(2, backoff="none", on=(OSError,)), ConnectionError(), 2),
        (Retry(2, backoff="none", on=(OSError,)), ValueError(), 1),
        (Retry(2, backoff="none", never=(ValueError,)), UnicodeError(), 1),
        (Retry(2, backoff="none", on=(OSError,), never=(ConnectionError,)), ConnectionError(), 1),
    ],
)
def test_the_policy_says_which_exceptions_are_worth_another_attempt(
    app: Perdure, policy: Retry, error: Exception, attempts: int
) -> None:
    job = ran(app, "plain", raising(error), retry=policy)
    assert (job.state, job.attempts) == ("failed", attempts)


@pytest.mark.parametrize(("error", "attempts"), [(OSError(), 4), (ValueError(), 1)])
def test_a_jobs_own_policy_counts_the_exceptions_of_its_kind(app: Perdure, error: Exception, attempts: int) -> None:
    handler = declared(app, "plain", raising(error), retry=Retry(2, on=(OSError,)))
    job = handler.options(retry=Retry(4, backoff="none")).enqueue()
    app.worker().run(until_idle=True)
    assert (app.existing(job).state, app.existing(job).attempts) == ("failed", attempts)


@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), BaseException("bare")])
def test_what_would_end_a_process_ends_the_run_only(app: Perdure, sort: str, error: BaseException) -> None:
    handler = declared(app, sort, raising(error))
    bad = handler.enqueue()

    @app.job
    async def coroutine() -> str:
        return "fine"

    @app.job
    def plain() -> str:
        return "fine"

    good = [plain.enqueue(), coroutine.enqueue()]
    assert app.worker(concurrency=1).run(until_idle=True) == 0
    assert (app.existing(bad).state, app.existing(bad).attempts) == ("failed", 1)
    assert last_run(app, bad).error_type == type(error).__name__
    assert [app.existing(job).result for job in good] == ["fine", "fine"]


def test_a_task_that_wants_to_end_the_process_does_not_stop_the_loop(app: Perdure) -> None:
    @app.job(retry=1)
    async def handler() -> None:
        async def leave() -> None:
            sys.exit(3)

        await asyncio.create_task(leave())

    @app.job
    async def other() -> str:
        await asyncio.sleep(0)
        return "fine"

    bad, good = handler.enqueue(), [other.enqueue() for _ in range(5)]
    app.worker(concurrency=2).run(until_idle=True)
    assert app.existing(bad).state == "failed"
    assert [app.existing(job).result for job in good] == ["fine"] * 5


def test_a_cancelled_error_of_nobodys_asking_is_an_error_like_any_other(app: Perdure) -> None:
    job = ran(app, "async", raising(asyncio.CancelledError("mine")), retry=Retry(2, backoff="none"))
    assert (job.state, job.attempts) == ("failed", 2)
    assert str(last_run(app, job).error_type).endswith("CancelledError")


# -- texts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.parametrize("error", [Mute(), Deadly(), Shapeless()])
def test_an_exception_that_cannot_be_described_is_a_failure_all_the_same(
    app: Perdure, sort: str, error: Exception
) -> None:
    job = ran(app, sort, raising(error), retry=Retry(2, backoff="none"))
    assert (job.state, job.attempts) == ("failed", 2)
    run = last_run(app, job)
    assert type(error).__name__ in str(run.error_type)
    assert type(error).__name__ in str(run.error_message)


def test_what_no_database_holds_is_replaced(app: Perdure) -> None:
    run = last_run(app, ran(app, "plain", raising(OSError("a\0b\ud800c")), retry=1))
    assert run.error_message == "a�b?c"
    assert str(run.traceback).endswith("OSError: a�b?c\n")


def test_long_messages_are_shortened_and_the_traceback_keeps_both_ends(app: Perdure) -> None:
    run = last_run(app, ran(app, "plain", raising(OSError("start" + 10**6 * "x" + "end")), retry=1))
    message, trace = str(run.error_message), str(run.traceback)
    assert len(message) <= MESSAGE_LIMIT
    assert message.startswith("startxxx")
    assert message.endswith("xxxend")
    assert len(trace) <= TRACEBACK_LIMIT
    assert trace.startswith("Traceback (most recent call last):")
    assert trace.endswith("xxxend\n")


@pytest.mark.parametrize("sort", SORTS)
def test_secrets_of_the_job_are_in_no_error(app: Perdure, sort: str) -> None:
    def fail(password: SecretStr) -> None:
        value = password.get_secret_value()
        raise OSError(f"refused: {value} / {[value]!r}")

    @app.job(retry=1)
    def plain(password: SecretStr) -> None:
        fail(password)

    @app.job(retry=1)
    async def coroutine(password: SecretStr) -> None:
        fail(password)

    login: Any = plain if sort == "plain" else coroutine
    job = login.enqueue(password=SecretStr("hunter'2"))
    app.worker().run(until_idle=True)
    run = last_run(app, job)
    assert run.error_message == 'refused: ••• / ["•••"]'
    assert "hunter" not in str(run.traceback)
    assert "hunter" not in str(app.existing(job).error)


# -- signals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sort", SORTS)
def test_fail_ends_the_job_whatever_attempts_are_left(app: Perdure, sort: str) -> None:
    job = ran(app, sort, raising(Fail("no such order")), retry=5)
    assert (job.state, job.attempts) == ("failed", 1)
    assert (last_run(app, job).error_type, last_run(app, job).error_message) == ("Fail", "no such order")


@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.parametrize("delay", [3600, timedelta(hours=1)])
def test_retry_after_names_the_time_of_the_next_attempt(app: Perdure, sort: str, delay: Any) -> None:
    job = ran(app, sort, raising(RetryAfter(delay, "rate limit")), retry=2)
    run = last_run(app, job)
    assert (job.state, job.attempts, run.state, run.error_message) == ("scheduled", 1, "failed", "rate limit")
    assert run.finished_at is not None
    assert job.run_at - run.finished_at == timedelta(hours=1)


def test_retry_after_does_not_lengthen_the_budget(app: Perdure) -> None:
    job = ran(app, "plain", raising(RetryAfter(0)), retry=Retry(2))
    assert (job.state, job.attempts) == ("failed", 2)


@pytest.mark.parametrize("sort", SORTS)
def test_snooze_gives_the_attempt_back(app: Perdure, sort: str) -> None:
    naps: list[int] = []

    def body(ctx: JobContext) -> str:
        naps.append(ctx.attempt)
        if len(naps) < 4:
            raise Snooze(0)
        return "awake"

    job = ran(app, sort, body, retry=1)
    assert (job.state, job.result, job.attempts) == ("completed", "awake", 1)
    assert naps == [1, 1, 1, 1]
    assert [run.state for run in app.runs(job)] == ["completed", "released", "released", "released"]


def test_a_snoozed_job_waits(app: Perdure) -> None:
    job = ran(app, "plain", raising(Snooze(timedelta(hours=1))))
    run = last_run(app, job)
    assert (job.state, job.attempts, job.error) == ("scheduled", 0, None)
    assert run.finished_at is not None
    assert job.run_at - run.finished_at == timedelta(hours=1)


@pytest.mark.parametrize("sort", SORTS)
def test_cancel_ends_the_job_as_cancelled(app: Perdure, sort: str) -> None:
    job = ran(app, sort, raising(Cancel()))
    assert (job.state, last_run(app, job).state, job.error) == ("cancelled", "cancelled", None)


@pytest.mark.parametrize("signal", [Cancel, Skip])
@pytest.mark.parametrize("sort", SORTS)
def test_why_a_handler_cancels_or_skips_is_told_everywhere(
    app: Perdure, sort: str, signal: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "perdure.lifecycle")
    job = ran(app, sort, raising(signal("the order was\nwithdrawn")))
    run = last_run(app, job)
    assert (job.error, run.error_message) == ("the order was\nwithdrawn",) * 2
    assert job.error_type == run.error_type == {Cancel: "Cancelled", Skip: "Skipped"}[signal]
    assert "the order was" in app.explain(job).why
    (told,) = [record for record in caplog.records if getattr(record, "perdure", {}).get("event") == job.state]
    assert told.getMessage().endswith(": the order was withdrawn")
    assert vars(told)["perdure"]["reason"] == "the order was\nwithdrawn"


@pytest.mark.parametrize("sort", SORTS)
def test_skip_ends_the_job_and_says_why(app: Perdure, sort: str) -> None:
    job = ran(app, sort, raising(Skip("nothing new")))
    assert (job.state, last_run(app, job).state) == ("skipped", "skipped")
    assert last_run(app, job).error_message == "nothing new"


def test_a_signal_raised_from_nested_code_passes_through_except_clauses_of_errors_only(app: Perdure) -> None:
    def body(_: JobContext) -> str:
        try:
            raise Snooze(3600)
        except OSError:
            return "caught"

    assert ran(app, "plain", body).state == "scheduled"


@pytest.mark.parametrize("delay", [-1, float("nan"), float("inf"), "1", True, None])
@pytest.mark.parametrize("signal", [Snooze, RetryAfter])
def test_an_impossible_delay_is_refused(signal: Any, delay: Any) -> None:
    with pytest.raises(InvalidOption) as caught:
        signal(delay)
    assert caught.value.code == "delay_invalid"


# -- payloads --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sort", SORTS)
def test_an_unreadable_payload_is_parked_and_costs_nothing(app: Perdure, path: Path, sort: str) -> None:
    handler = declared(app, sort, lambda _: "ran")
    job = handler.enqueue()
    written_over(path, job, "{not json")
    app.worker().run(until_idle=True)
    parked = app.existing(job)
    assert (parked.state, parked.attempts) == ("parked", 0)
    assert last_run(app, job).state == "released"
    written_over(path, job, "{}")
    app.resume(job)
    app.worker().run(until_idle=True)
    assert app.existing(job).result == "ran"


@pytest.mark.damaged
@pytest.mark.parametrize("payload", ['{"stranger": 1}', "[]", "7"])
def test_a_payload_that_does_not_fit_fails_at_once(app: Perdure, path: Path, payload: str) -> None:
    job = declared(app, "plain", lambda _: "ran").enqueue()
    written_over(path, job, payload)
    app.worker().run(until_idle=True)
    failed = app.existing(job)
    assert (failed.state, failed.attempts, last_run(app, job).error_type) == ("failed", 1, "InvalidPayload")


@pytest.mark.parametrize("error", [SystemExit("no"), ValueError("no")], ids=repr)
def test_old_payloads_are_upgraded_step_by_step(app: Perdure, path: Path, error: BaseException) -> None:
    @app.job(name="greet")
    def first(name: str) -> None:
        del name

    jobs = [first.enqueue("Ada"), first.enqueue("Grace")]
    app.close()
    newer = Perdure(path, durability="normal")

    def fail_for_grace(arguments: dict[str, Any]) -> dict[str, Any]:
        if arguments["who"] == "Grace":
            raise error
        return {**arguments, "polite": True}

    @newer.job(name="greet", version=3, upgrades={1: lambda old: {"who": old["name"]}, 2: fail_for_grace})
    def greet(who: str, polite: bool) -> str:
        return f"{who} {polite}"

    newer.worker().run(until_idle=True)
    ada, grace = (newer.existing(job) for job in jobs)
    assert ada.result == "Ada True"
    assert (grace.state, grace.attempts) == ("failed", 1)
    assert last_run(newer, grace).error_type == type(error).__name__
    newer.close()
