"""What people write who come from Celery, RQ, Huey or Dramatiq: the error says what it is called here."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest

from perdure import InvalidOption, InvalidPayload, JobContext, Perdure
from perdure.job.views import Job
from perdure.kind import Kind
from perdure.options import OPTION_NAMES
from perdure.words_of_others import OF_A_CONTEXT, OF_A_JOB, OF_A_KIND, OF_AN_APP, OPTIONS
from perdure.worker.context import JobContext as Context


@pytest.mark.parametrize(
    ("write", "says"),
    [
        (lambda app, send: send.delay("ann"), "a kind has no delay; write send.enqueue(…)"),
        (lambda app, send: send.apply_async(("ann",)), "write send.options(delay=…, queue=…).enqueue(…)"),
        (lambda app, send: send.schedule(("ann",), delay=3), "write send.options(delay=…).enqueue(…)"),
        (lambda app, send: send.send("ann"), "write send.enqueue(…)"),
        (lambda app, send: send.s("ann"), "write send.new(…), for app.enqueue_many([…])"),
        (lambda app, send: send.map([]), "write send.enqueue_many([{…}, {…}])"),
        (lambda app, send: app.task, "a Perdure app has no task; write @app.job"),
        (lambda app, send: app.send_task("send"), 'write app.enqueue("kind", {…})'),
        (lambda app, send: app.periodic_task(3), '@app.schedule("0 7 * * *", name="daily")'),
        (lambda app, send: send.enqueue("ann").get(timeout=3), "a job has no get; write kind.wait(job)"),
        (lambda app, send: send.enqueue("ann").ready(), "write app.get(job).is_final"),
    ],
)
def test_an_attribute_of_another_library(app: Perdure, write: Callable[[Any, Any], Any], says: str) -> None:
    @app.job
    def send(to: str) -> None: ...

    with pytest.raises(AttributeError, match=re.escape(says)):
        write(app, send)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("countdown", "there is no option 'countdown'; write delay=, in seconds"),
        ("eta", "write run_at=, a datetime with a time zone"),
        ("max_retries", "write retry=Retry(…), or the number of attempts"),
        ("job_timeout", "write timeout=, in seconds"),
        ("task_id", "write idempotency_key="),
        ("bind", "write ctx: JobContext as the first parameter of the function"),
        ("delai", "did you mean 'delay'?"),
    ],
)
def test_an_option_of_another_library(app: Perdure, name: str, says: str) -> None:
    @app.job
    def send(to: str) -> None: ...

    given: Any = {name: 3}
    for give in (
        lambda: send.options(**given),
        lambda: app.job(**given)(lambda: None),
        lambda: app.enqueue("send", {"to": "ann"}, **given),
    ):
        with pytest.raises(InvalidOption, match=re.escape(says)):
            give()


def test_an_option_among_the_arguments(app: Perdure) -> None:
    @app.job
    def send(to: str) -> None: ...

    with pytest.raises(InvalidPayload, match=r"Instead of countdown= write delay=, in seconds: send\.options"):
        send.enqueue("ann", countdown=3)  # type: ignore[call-arg]
    with pytest.raises(InvalidPayload, match=r"Options come before: send\.options\(queue=…\)\.enqueue\(…\)"):
        send.enqueue("ann", queue="mail")  # type: ignore[call-arg]
    assert list(app.jobs()) == []


def test_inside_a_handler(app: Perdure) -> None:
    said: list[str] = []

    @app.job(retry=1)
    def send(ctx: JobContext) -> None:
        try:
            ctx.retry(countdown=3)  # type: ignore[attr-defined]
        except AttributeError as error:
            said.append(str(error))

    send.enqueue()
    app.worker().run(until_idle=True)
    assert said == ["the context of a job has no retry; write raise RetryAfter(seconds), or let the error out"]


def test_none_of_the_words_is_one_of_ours(app: Perdure) -> None:
    """Else the hint would never be seen, or hide what there is."""
    assert not OPTIONS.keys() & set(OPTION_NAMES)
    for words, ours in ((OF_A_KIND, Kind), (OF_AN_APP, Perdure), (OF_A_JOB, Job), (OF_A_CONTEXT, Context)):
        assert [word for word in words if hasattr(ours, word)] == []


def test_what_asks_for_attributes_that_may_be_missing_still_works(app: Perdure) -> None:
    @app.job
    def send(to: str) -> None: ...

    assert not hasattr(send, "delay")
    assert getattr(app, "task", None) is None
    assert copy.copy(send).name == "send"
    with pytest.raises(AttributeError, match="'Kind' object has no attribute 'anything'"):
        send.anything  # type: ignore[attr-defined] # noqa: B018


def test_a_property_that_fails_says_why(app: Perdure) -> None:

    class Broken(Perdure):
        @property
        def broken(self) -> int:
            return [].length  # type: ignore[attr-defined, no-any-return]

    with pytest.raises(AttributeError, match="'list' object has no attribute 'length'"):
        Broken("jobs.db").broken  # noqa: B018
