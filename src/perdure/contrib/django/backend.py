"""`PerdureBackend`: Django's Tasks as jobs. Named by `TASKS` in the settings; finds its database by `database`.

A task is a kind named by its module path. Django makes a backend for each thread; backends with the same OPTIONS share
one app. Enqueued in a transaction of Django's, a job is written on Django's own connection and is there if, and only
if, the transaction commits.
"""

from __future__ import annotations

import builtins
import traceback
from asyncio import CancelledError
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, Any, Never

import django
from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import close_old_connections, connections, transaction
from django.utils import timezone
from django.utils.module_loading import autodiscover_modules, import_string

from perdure import errors
from perdure.app import Perdure, job_id_of
from perdure.checks import check_known
from perdure.contrib.django.database import Home
from perdure.job.retry import Retry
from perdure.job.states import RunState, State
from perdure.job.views import Job, Run
from perdure.kind import Kind
from perdure.store.transaction import is_django
from perdure.words_of_others import OF_A_DJANGO_TASK, OPTIONS_IN_DJANGO, refuse
from perdure.worker import signals
from perdure.worker.context import JobContext
from perdure.worker.run import policy_of
from perdure.worker.signals import Cancel, Done, Fail, Interrupted, RetryAfter, Signal, Skip, Snooze, Stop

TASKS = "django.tasks" if django.VERSION >= (6, 0) else "django_tasks"
"""Django's own module, or the backport for Django 5.2."""

try:
    tasks: Any = import_module(TASKS)
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"Django {django.get_version()} has no tasks of its own ({error}); pip install django-tasks, or use Django 6",
        name=error.name,
    ) from error
base: Any = import_module(f"{TASKS}.base")
task_signals: Any = import_module(f"{TASKS}.signals")
exceptions: Any = import_module(f"{TASKS}.exceptions")
BaseTaskBackend: Any = import_module(f"{TASKS}.backends.base").BaseTaskBackend
normalize_json: Any = import_module("django.utils.json" if TASKS == "django.tasks" else f"{TASKS}.utils").normalize_json
Status: Any = tasks.TaskResultStatus

_STATUS = {State.RUNNING: Status.RUNNING, State.COMPLETED: Status.SUCCESSFUL} | dict.fromkeys(
    (State.FAILED, State.CANCELLED, State.SKIPPED), Status.FAILED
)
"""All other states are READY."""
_OPTIONS = ("DATABASE", "URL", "IMPORTS", "SETTINGS")
_OF_THE_TASK = ("retry", "timeout", "business_key", "tags", "idempotency_key")


@dataclass(frozen=True, slots=True, kw_only=True)
class PerdureTask(base.Task):
    """A task with the options of its jobs: in the decorator, `@task(retry=5)` (but not in Django 6.0), or later with
    `using(…)`. Without one, the defaults of docs/jobs.md apply."""

    retry: Retry | int | None = None
    timeout: float | timedelta | None = None
    business_key: str | None = None
    tags: Sequence[str] | None = None
    idempotency_key: str | None = None

    def using(
        self,
        *,
        priority: int | None = None,
        queue_name: str | None = None,
        run_after: datetime | None = None,
        backend: str | None = None,
        retry: Retry | int | None = None,
        timeout: float | timedelta | None = None,
        business_key: str | None = None,
        tags: Sequence[str] | None = None,
        idempotency_key: str | None = None,
        **unknown: Never,
    ) -> PerdureTask:
        """The task with other options; None leaves one as it is. `retry` here has no `on` or `never`, which belong to
        the decorator."""
        known = ("priority", "queue_name", "run_after", "backend", *_OF_THE_TASK)
        check_known(unknown, known, words_of_others=OPTIONS_IN_DJANGO)
        given: dict[str, Any] = {"priority": priority, "queue_name": queue_name, "run_after": run_after}
        given["backend"] = backend
        given |= {"retry": retry, "timeout": timeout, "business_key": business_key, "tags": tags}
        given["idempotency_key"] = idempotency_key
        return replace(self, **{name: value for name, value in given.items() if value is not None})

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Only asked for what is not there."""
            own = self.name if name in OF_A_DJANGO_TASK else "task"
            refuse(self, name, {word: text.format(name=own) for word, text in OF_A_DJANGO_TASK.items()}, "a task")


class PerdureBackend(BaseTaskBackend):
    """Keeps tasks as jobs. OPTIONS: DATABASE, one of Django's (default "default"), or URL, a database of its own;
    IMPORTS, modules with tasks besides each app's `tasks`; SETTINGS, those of `Perdure(…)`."""

    task_class = PerdureTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        for name in self.options:
            if name not in _OPTIONS:
                known = ", ".join(_OPTIONS)
                raise ImproperlyConfigured(f"TASKS[{alias!r}]['OPTIONS'] has {name!r}; known are {known}")
        self.home = Home(self.options.get("DATABASE", "default"), self.options.get("URL"))

    @property
    def app(self) -> Perdure:
        """The Perdure app behind it, for all that Django's interface does not have: schedules, locks, queues, and
        `testing(tx=connection)` in tests, where Django's database may be in memory."""
        found = _app_with(self.options)
        if found.kit is None:
            url = _NOT_YET if self.home.is_in_memory else self.home.url
            if found.url != url:
                found.url = url
        return found

    def app_in_use(self) -> Perdure:
        """ImproperlyConfigured: its database can hold no jobs, and no test has lent its transaction."""
        app = self.app
        if app.kit is None:
            _ = self.home.url
        return app

    # -- enqueue -----------------------------------------------------------------------------------------------------

    def validate_task(self, task: Any) -> None:
        super().validate_task(task)
        self._kind(task)

    def _kind(self, task: Any) -> Kind[..., Any, ..., Any]:
        """The first task of a function declares its kind; those made of it by `using` only have other options."""
        app = _app_with(self.options)
        known: Any = app.kinds.find(task.module_path)
        if known is not None and known.function.task.func is task.func:
            return known
        handler = (AsyncHandler if base.iscoroutinefunction(task.func) else Handler)(task)
        given = {name: getattr(task, name, None) for name in _OF_THE_TASK if name != "idempotency_key"}
        options: Any = {name: value for name, value in given.items() if value is not None}
        return app.job(name=task.module_path, **options)(handler)

    def enqueue(self, task: Any, args: Iterable[Any], kwargs: Mapping[str, Any]) -> Any:
        self.validate_task(task)
        args = list(args)
        _check_call(task, args, kwargs)
        app, tx = self.app_in_use(), self.home.open_transaction()
        options = _options(task, app.kinds.get(task.module_path))
        arguments = {"args": normalize_json(args), "kwargs": normalize_json(kwargs)}
        if tx is not None and not self.home.is_djangos:
            return self._enqueue_on_commit(task, app, options, arguments)
        job = app.enqueue(task.module_path, arguments, **options, tx=tx)
        result = self._result(task, job, _runs(app, job) if job.deduplicated else ())
        task_signals.task_enqueued.send(type(self), task_result=result)
        return result

    def _enqueue_on_commit(self, task: Any, app: Perdure, options: Any, arguments: Mapping[str, Any]) -> Any:
        """The jobs are in another database than the transaction. Refuses now what could not be enqueued then."""
        new = app.new_jobs([app.draft(task.module_path, arguments, options)])
        result = self._result(task, Job.fresh(new[0], 0), ())

        def committed() -> None:
            app.store.enqueue(new)
            task_signals.task_enqueued.send(type(self), task_result=result)

        transaction.on_commit(committed, using=self.home.alias)
        return result

    # -- results -----------------------------------------------------------------------------------------------------

    def get_result(self, result_id: str) -> Any:
        app, tx = self.app_in_use(), self.home.open_transaction()
        try:
            job = app.store_of(tx if self.home.is_djangos else None).get(job_id_of(result_id))
        except errors.InvalidInput:
            job = None  # no id at all
        task = None if job is None else self._task(job)
        if job is None or task is None:
            raise exceptions.TaskResultDoesNotExist(result_id)
        return self._result(task, job, _runs(app, job))

    def _task(self, job: Job) -> Any:
        """The task of a job, as it was enqueued. None: no task of that name can be imported, or it is none."""
        known: Any = _app_with(self.options).kinds.find(job.kind)
        try:
            task = import_string(job.kind) if known is None else getattr(known.function, "task", None)
        except ImportError:
            return None
        if not isinstance(task, base.Task):
            return None
        later = _time(job.run_at) if job.run_at > job.created_at else None
        asked: dict[str, Any] = {"priority": job.priority, "queue_name": job.queue, "run_after": later}
        if isinstance(task, PerdureTask):
            asked |= {"idempotency_key": job.idempotency_key, "business_key": job.business_key}
            asked["tags"] = job.tags or task.tags
        try:
            return replace(task, backend=self.alias, **asked)
        except exceptions.TaskException:  # moved by hand to a queue or priority that Django's settings do not know
            return task

    def result_of_run(self, ctx: JobContext) -> Any:
        """The task's result while it runs: what its context and the signals show."""
        job = ctx.job
        return self._result(self._task(job), job, _runs(self.app, job))

    def _result(self, task: Any, job: Job, runs: Sequence[Run]) -> Any:
        """`runs`: the oldest first."""
        counted = [run for run in runs if run.state is not RunState.RELEASED]
        result = tasks.TaskResult(
            task=task,
            id=str(job.id),
            status=_STATUS.get(job.state, Status.READY),
            enqueued_at=_time(job.created_at),
            started_at=_time(counted[0].started_at) if counted else None,
            finished_at=_time(job.finished_at),
            last_attempted_at=_time(counted[-1].started_at) if counted else None,
            backend=self.alias,
            errors=[_error(run) for run in counted if run.error_type is not None],
            worker_ids=[str(run.node_id) for run in counted],
            **(job.payload or {"args": [], "kwargs": {}}),
        )
        if job.state is State.COMPLETED:
            object.__setattr__(result, "_return_value", job.result)
        return result

    def check(self, **_: Any) -> list[Any]:
        from perdure.contrib.django.checks import check_settings

        return check_settings(self)


def _check_call(task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """TypeError now, and not in every attempt, if the function does not take these arguments."""
    context = (None,) if task.takes_context else ()
    try:
        signature(task.func, follow_wrapped=False).bind(*context, *args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{task.module_path} cannot be called with these arguments: {error}") from None


def _options(task: Any, kind: Any) -> Any:
    """What this task says besides its kind: a policy that names exceptions cannot be stored with a job."""
    options: dict[str, Any] = {"priority": int(task.priority), "queue": task.queue_name}
    if task.run_after is not None:
        at = task.run_after
        options["run_at"] = timezone.make_aware(at) if timezone.is_naive(at) else at
    for name in _OF_THE_TASK:
        value = getattr(task, name, None)
        if value is not None and value != getattr(kind.function.task, name, None):
            options[name] = value
    return options


def _runs(app: Perdure, job: Job) -> list[Run]:
    return list(app.runs(job))[::-1]


def _time(at: datetime | None) -> datetime | None:
    return at if at is None or settings.USE_TZ else timezone.make_naive(at)


def _error(run: Run) -> Any:
    name = run.error_type or ""
    for module in (builtins, errors, signals):
        if hasattr(module, name):
            name = f"{module.__name__}.{name}"
    path = name if "." in name else "perdure.errors.JobFailed"  # a time-out, a lost node: no exception was raised
    return base.TaskError(exception_class_path=path, traceback=run.traceback or f"{path}: {run.error}\n")


# -- the app -----------------------------------------------------------------------------------------------------------

_apps: dict[str, Perdure] = {}
_NOT_YET = "django://"
"""The URL of an app until it is used: while tasks are declared, Django's databases may not have their names yet."""


def _app_with(options: Mapping[str, Any]) -> Perdure:
    """The app of all backends with these OPTIONS in this process. Opens nothing."""
    key = repr(sorted(options.items(), key=lambda item: item[0]))
    if key not in _apps:
        _apps[key] = Perdure(_NOT_YET, imports=tuple(options.get("IMPORTS", ())), **options.get("SETTINGS", {}))
    return _apps[key]


def backends() -> list[PerdureBackend]:
    """Those of TASKS that are Perdure's."""
    return [backend for backend in tasks.task_backends.all() if isinstance(backend, PerdureBackend)]


def app_of(alias: str | None = None) -> Perdure:
    """The app of a backend, with the tasks of all installed apps; without an alias, of the first that is Perdure's."""
    found = next((backend for backend in backends() if alias in (None, backend.alias)), None)
    if found is None:
        raise ImproperlyConfigured(
            "no entry of TASKS has BACKEND perdure.contrib.django.PerdureBackend"
            + (f" under the name {alias!r}" if alias else "")
        )
    autodiscover_modules("tasks")
    app = found.app_in_use()
    app.import_kinds()
    return app


# -- running -----------------------------------------------------------------------------------------------------------


class Handler:
    """What a worker calls for a task. Django's connections of its thread are as fresh as in a request; a test keeps its
    own, in whose transaction it may be."""

    def __init__(self, task: Any) -> None:
        self.task = task
        self.__perdure_calls__ = task.func

    def __call__(self, ctx: JobContext, args: list[Any] = [], kwargs: dict[str, Any] = {}) -> Any:  # noqa: B006
        if not self.is_tested:
            close_old_connections()
        try:
            attempt = Attempt(self.task, ctx)
            try:
                return attempt.completed(self.task.func(*attempt.context, *args, **kwargs))
            except BaseException as error:
                attempt.failed(error)
                raise
        finally:
            if not self.is_tested:
                close_old_connections()

    @property
    def is_tested(self) -> bool:
        """Whether it runs inside `app.testing()`."""
        return self.task.get_backend().app.kit is not None


class AsyncHandler(Handler):
    """The same for a coroutine function: what may use the database is called in the thread that Django's asynchronous
    ORM calls use. In a test that thread is lent the test's connection."""

    async def __call__(
        self,
        ctx: JobContext,
        args: list[Any] = [],  # noqa: B006
        kwargs: dict[str, Any] = {},  # noqa: B006
    ) -> Any:
        lent = self._lent()
        await sync_to_async(close_old_connections if lent is None else partial(_borrow, lent))()
        try:
            attempt = await sync_to_async(Attempt)(self.task, ctx)
            try:
                value = await self.task.func(*attempt.context, *args, **kwargs)
                return await sync_to_async(attempt.completed)(value)
            except BaseException as error:
                await sync_to_async(attempt.failed)(error)
                raise
        finally:
            await sync_to_async(close_old_connections if lent is None else partial(_give_back, lent))()

    def _lent(self) -> Any:
        """The connection of `app.testing(tx=connection)`. None: it does not run inside such a block."""
        tx = getattr(getattr(self.task.get_backend().app.store, "runner", None), "tx", None)
        return tx if is_django(tx) else None


def _borrow(connection: Any) -> None:
    """Use another thread's connection in this one, while that thread waits."""
    connection.inc_thread_sharing()
    connections[connection.alias] = connection


def _give_back(connection: Any) -> None:
    del connections[connection.alias]
    connection.dec_thread_sharing()


class Attempt:
    """Sends Django's signals for a run. The one for the end comes before the end is written, and only if it is the end:
    not if the task will run again. What a receiver raises is logged by Django and changes nothing."""

    def __init__(self, task: Any, ctx: JobContext) -> None:
        self._ctx = ctx
        self._backend = task.get_backend()
        self._result = self._backend.result_of_run(ctx)
        self.context = (tasks.TaskContext(task_result=self._result),) if task.takes_context else ()
        self._send(task_signals.task_started)

    def completed(self, value: Any) -> Any:
        """The value as it is stored. NotStorable: it cannot be."""
        if isinstance(value, Signal):
            raise value
        done = value if isinstance(value, Done) else Done(value)
        try:
            kept = normalize_json(done.result)
        except (TypeError, ValueError) as error:
            raise NotStorable(
                f"the task ran, but its result cannot be stored as JSON ({error}); return text, numbers, lists, dicts,"
                " or nothing"
            ) from None
        object.__setattr__(self._result, "_return_value", kept)
        self._end(Status.SUCCESSFUL)
        return kept if done.write is None else Done(kept, done.write)

    def failed(self, error: BaseException) -> None:
        """Called while the error is handled: Django's log line shows where it came from."""
        if _is_end(self._ctx, error):
            path = f"{type(error).__module__}.{type(error).__qualname__}"
            text = "".join(traceback.format_exception(error))
            self._result.errors.append(base.TaskError(exception_class_path=path, traceback=text))
            self._end(Status.FAILED)

    def _end(self, status: Any) -> None:
        object.__setattr__(self._result, "status", status)
        object.__setattr__(self._result, "finished_at", timezone.now())
        self._send(task_signals.task_finished)

    def _send(self, signal: Any) -> None:
        signal.send_robust(type(self._backend), task_result=self._result)


class NotStorable(Fail, TypeError):
    """What a task returned is not JSON. Not retried, since its work is done; recorded as Django's backends do it."""


NotStorable.__module__, NotStorable.__qualname__ = "builtins", "TypeError"


def _is_end(ctx: JobContext, error: BaseException) -> bool:
    """Whether a run that ends with this error is the task's last."""
    is_last = ctx.claim.live.attempts >= ctx.claim.live.max_attempts
    match error:
        case Interrupted() | CancelledError() if ctx.stop is not None:
            return ctx.stop is Stop.CANCEL or (ctx.stop is Stop.TIMEOUT and is_last)
        case Snooze():
            return False
        case Fail() | Skip() | Cancel():
            return True
        case RetryAfter():
            return is_last
        case _:
            return is_last or not policy_of(ctx.claim, ctx.kind).retries(error)
