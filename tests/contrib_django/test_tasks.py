"""Django's tasks as jobs: their transactions, options, results and signals, in one process, on every database."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.backends.signals import connection_created
from django.test import override_settings
from django.utils import timezone

from perdure import Job, Perdure, Retry
from perdure.contrib.django.backend import PerdureBackend, PerdureTask, base, exceptions, task_signals, tasks
from perdure.errors import InvalidOption, KeyConflict
from tests.contrib_django import jobs

ON_EVERY_DATABASE = True

NOW = Retry(3, backoff="none")


class Undone(Exception):
    pass


def states(app: Perdure) -> list[str]:
    return [job.state.value for job in app.jobs()][::-1]


def timeout_of(app: Perdure, job: Job) -> int | None:
    live = app.store.live(job.row.id)
    return None if live is None else live.timeout_ms


def run_all(app: Perdure) -> None:
    app.worker().run(until_idle=True)


@contextmanager
def heard() -> Iterator[list[tuple[str, str]]]:
    """The signals that were sent, and the status they showed."""
    told: list[tuple[str, str]] = []
    names = ("task_enqueued", "task_started", "task_finished")

    def listen(name: str) -> Any:
        def hear(*, task_result: Any, **_: Any) -> None:
            told.append((name, task_result.status.value))

        return hear

    listeners = {name: listen(name) for name in names}
    for name, hear in listeners.items():
        getattr(task_signals, name).connect(hear)
    yield told
    for name, hear in listeners.items():
        getattr(task_signals, name).disconnect(hear)


# -- transactions ------------------------------------------------------------------------------------------------------


def test_jobs_are_in_djangos_own_database(app: Perdure, database: str) -> None:
    vendor = {"sqlite": "sqlite", "postgres": "postgresql", "mariadb": "mysql"}[database]
    assert connection.vendor == vendor
    assert app.url.startswith("/" if database == "sqlite" else f"{vendor}://")
    assert str(connection.settings_dict["NAME"]) in app.url


def test_a_task_of_a_transaction_that_commits_is_there(app: Perdure) -> None:
    with transaction.atomic():
        result = jobs.double.enqueue(4)
        assert states(app) == []  # nobody else sees it
        assert jobs.double.get_result(result.id).status == "READY"  # who enqueued it does
    run_all(app)
    assert jobs.double.get_result(result.id).return_value == 8


def test_a_task_of_a_transaction_that_rolls_back_is_not(app: Perdure) -> None:
    with pytest.raises(Undone), transaction.atomic():
        result = jobs.double.enqueue(4)
        raise Undone
    with pytest.raises(exceptions.TaskResultDoesNotExist):
        jobs.double.get_result(result.id)
    assert states(app) == []


def test_a_savepoint_takes_its_tasks_back(app: Perdure) -> None:
    with transaction.atomic():
        kept = jobs.double.enqueue(1)
        with pytest.raises(Undone), transaction.atomic():
            jobs.double.enqueue(2)
            raise Undone
    assert [str(job.id) for job in app.jobs()] == [kept.id]


def test_with_autocommit_off_a_task_belongs_to_the_transaction(app: Perdure) -> None:
    transaction.set_autocommit(False)
    try:
        jobs.double.enqueue(1)
        transaction.rollback()
        jobs.double.enqueue(2)
        transaction.commit()
    finally:
        transaction.set_autocommit(True)
    assert [job.payload for job in app.jobs()] == [{"args": [2], "kwargs": {}}]


def test_without_a_transaction_a_task_is_there_at_once(app: Perdure) -> None:
    jobs.double.enqueue(1)
    assert states(app) == ["queued"]


def test_jobs_elsewhere_are_enqueued_when_the_transaction_commits(app: Perdure, tmp_path: Any) -> None:
    elsewhere = {"BACKEND": "perdure.contrib.django.PerdureBackend", "OPTIONS": {"URL": str(tmp_path / "jobs.db")}}
    with override_settings(TASKS={"default": elsewhere}):
        _check_jobs_elsewhere(jobs.double.get_backend())


def _check_jobs_elsewhere(backend: PerdureBackend) -> None:
    with heard() as told:
        with transaction.atomic():
            result = backend.enqueue(jobs.double, [3], {})
            assert (states(backend.app), told) == ([], [])
        assert (states(backend.app), told) == (["queued"], [("task_enqueued", "READY")])
    assert backend.get_result(result.id) == result
    with pytest.raises(Undone), transaction.atomic():
        backend.enqueue(jobs.double, [3], {})
        raise Undone
    assert states(backend.app) == ["queued"]
    backend.app.close()


# -- options -----------------------------------------------------------------------------------------------------------


def test_options_of_a_single_task(app: Perdure) -> None:
    later = timezone.now() + timedelta(hours=1)
    asked = jobs.double.using(
        priority=7, run_after=later, retry=5, timeout=30, business_key="b", idempotency_key="i", tags=["x"]
    )
    result = asked.enqueue(1)
    job = app.get(result.id)
    assert job is not None
    assert (job.priority, job.run_at, job.max_attempts, job.tags) == (7, later, 5, ("x",))
    assert (job.business_key, job.idempotency_key, timeout_of(app, job)) == ("b", "i", 30_000)
    assert asked.get_result(result.id).task == jobs.double.using(
        priority=7, run_after=later, business_key="b", idempotency_key="i", tags=("x",)
    )


@pytest.mark.parametrize(
    ("enqueue", "says"),
    [
        (jobs.double.enqueue, "jobs.double cannot be called with these arguments: missing.* 'n'"),
        (lambda: jobs.double.enqueue(1, 2), "too many positional arguments"),
        (lambda: jobs.double.enqueue(1, factor=2), "unexpected keyword argument 'factor'"),
        (lambda: jobs.flaky.enqueue("a context of his own"), "too many positional arguments"),
    ],
)
def test_arguments_that_the_function_does_not_take_are_refused(app: Perdure, enqueue: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        enqueue()
    assert states(app) == []


def test_a_decorator_may_give_the_function_arguments_of_its_own(app: Perdure) -> None:
    result = jobs.with_a_rate.enqueue(10)
    run_all(app)
    assert jobs.with_a_rate.get_result(result.id).return_value == 20


@pytest.mark.parametrize(
    ("write", "error", "says"),
    [
        (lambda: jobs.double.delay(1), AttributeError, "a task has no delay; write double.enqueue(…)"),
        (lambda: jobs.double.apply_async((1,)), AttributeError, "write double.using(run_after=…, queue_name=…)"),
        (lambda: jobs.double.enqeue(1), AttributeError, "'PerdureTask' object has no attribute 'enqeue'"),
        (
            lambda: jobs.double.using(countdown=3),
            InvalidOption,
            "there is no option 'countdown'; write run_after=, a",
        ),
        (lambda: jobs.double.using(queue="mail"), InvalidOption, "there is no option 'queue'; write queue_name="),
        (lambda: jobs.double.using(retries=3), InvalidOption, "write retry=Retry(…), or the number of attempts"),
        (lambda: jobs.double.using(colour="red"), InvalidOption, "'colour'; known are priority, queue_name, run_after"),
        (lambda: jobs.double.using(timout=3), InvalidOption, "there is no option 'timout'; did you mean 'timeout'?"),
    ],
)
def test_words_of_other_libraries(app: Perdure, write: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=re.escape(says)):
        write()


def test_the_same_key_gives_the_same_task(app: Perdure) -> None:
    first = jobs.double.using(idempotency_key="once").enqueue(1)
    run_all(app)
    again = jobs.double.using(idempotency_key="once").enqueue(1)
    assert (again.id, again.return_value, again.attempts) == (first.id, 2, 1)
    jobs.double.using(business_key="one at a time").enqueue(1)
    with pytest.raises(KeyConflict):
        jobs.double.using(business_key="one at a time").enqueue(1)


def test_what_the_decorator_says_holds_for_all_its_jobs(app: Perdure) -> None:
    plain: dict[str, Any] = {"priority": 0, "backend": "default", "queue_name": "default", "run_after": None}
    once = PerdureTask(func=jobs.picky, retry=Retry(9, on=(LookupError,)), timeout=5, tags=["careful"], **plain)
    result = once.enqueue(0)
    job = app.get(result.id)
    assert job is not None
    assert (job.max_attempts, timeout_of(app, job), job.tags) == (9, 5_000, ("careful",))
    run_all(app)
    assert once.get_result(result.id).status == "FAILED"  # a ValueError is not among its reasons to retry
    with pytest.raises(InvalidOption):
        once.using(retry=Retry(2, on=(OSError,))).enqueue(0)


# -- results -----------------------------------------------------------------------------------------------------------


def test_a_retried_task_shows_its_attempts(app: Perdure) -> None:
    jobs.seen.clear()
    with heard() as told:
        result = jobs.flaky.using(retry=NOW).enqueue()
        run_all(app)
    result.refresh()
    assert (result.status, result.return_value, result.attempts) == ("SUCCESSFUL", 2, 2)
    assert [error.exception_class for error in result.errors] == [LookupError]
    assert jobs.seen == [(1, []), (2, ["builtins.LookupError"])]
    assert told == [
        ("task_enqueued", "READY"),
        ("task_started", "RUNNING"),
        ("task_started", "RUNNING"),
        ("task_finished", "SUCCESSFUL"),
    ]


def test_the_last_failure_is_the_end(app: Perdure) -> None:
    with heard() as told:
        result = jobs.unlucky.using(retry=Retry(2, backoff="none")).enqueue()
        run_all(app)
    assert told[1:] == [("task_started", "RUNNING"), ("task_started", "RUNNING"), ("task_finished", "FAILED")]
    assert jobs.unlucky.get_result(result.id).errors[1].traceback.endswith("ValueError: never\n")


@pytest.mark.parametrize(
    ("how", "status", "finished"),
    [("skip", "FAILED", True), ("snooze", "READY", False), ("unstorable", "FAILED", True), ("ok", "SUCCESSFUL", True)],
)
def test_the_ways_a_run_can_end(app: Perdure, how: str, status: str, finished: bool) -> None:
    with heard() as told:
        result = jobs.many_ends.enqueue(how)
        run_all(app)
    assert jobs.many_ends.get_result(result.id).status == status
    assert [shown for name, shown in told if name == "task_finished"] == ([status] if finished else [])


def test_a_result_that_is_not_json_is_named_in_the_error(app: Perdure) -> None:
    result = jobs.many_ends.enqueue("unstorable")
    run_all(app)
    job = app.get(result.id)
    assert job is not None
    assert "its result cannot be stored as JSON (Unsupported type: <class 'object'>); return text" in str(job.error)


def test_a_task_has_the_context_of_its_job(app: Perdure) -> None:
    result = jobs.many_ends.enqueue("context")
    run_all(app)
    result.refresh()
    assert result.return_value == result.id


def test_a_receiver_that_fails_changes_nothing(app: Perdure) -> None:
    def fail(**_: Any) -> None:
        raise RuntimeError("a receiver")

    task_signals.task_started.connect(fail)
    task_signals.task_finished.connect(fail)
    try:
        result = jobs.double.enqueue(1)
        run_all(app)
    finally:
        task_signals.task_started.disconnect(fail)
        task_signals.task_finished.disconnect(fail)
    assert jobs.double.get_result(result.id).return_value == 2


def test_a_coroutine_uses_the_orm(app: Perdure) -> None:
    result = jobs.count_orders.enqueue()
    run_all(app)
    result.refresh()
    assert result.return_value == 0


def test_a_job_of_no_task_is_no_result(app: Perdure) -> None:
    @app.job(name="by_hand")
    def by_hand() -> None: ...

    job = by_hand.enqueue()
    with pytest.raises(exceptions.TaskResultDoesNotExist):
        tasks.default_task_backend.get_result(str(job.id))
    app.cancel(job)


def test_a_job_moved_by_hand_beyond_django_s_limits_can_still_be_read(app: Perdure) -> None:
    result = jobs.double.enqueue(1)
    app.set_priority(result.id, 1_000)
    assert isinstance(tasks.default_task_backend.get_result(result.id).task, base.Task)


# -- connections -------------------------------------------------------------------------------------------------------


def test_connections_of_a_task_are_closed_when_it_ends(app: Perdure) -> None:
    opened: list[Any] = []

    def note(*, connection: Any, **_: Any) -> None:
        opened.append(connection)

    connection_created.connect(note)
    try:
        jobs.count_orders_now.enqueue()
        jobs.count_orders.enqueue()
        run_all(app)
    finally:
        connection_created.disconnect(note)
    assert len(opened) == 2
    assert all(one.connection is None for one in opened)
