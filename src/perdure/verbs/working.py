"""From `app.worker(…)` to a worker: checks options, and brings together what only the app knows. Called by `app`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast, get_args

from perdure.checks import check_function, check_known, check_name
from perdure.enqueue import new_job
from perdure.errors import ConfigError, InvalidOption, PerdureError, not_among, shown
from perdure.ids import JobId
from perdure.job.model import NewJob
from perdure.kind import Draft
from perdure.options import check_queue
from perdure.worker.node import Duty
from perdure.worker.options import WorkerOptions, WorkerParts
from perdure.worker.services import LayOut, Stage
from perdure.worker.worker import Worker

if TYPE_CHECKING:
    from perdure.app import Perdure

CONCURRENCY = 10
CONCURRENCY_LIMIT = 10_000
EXCLUSIVE_LIMIT = 200

Hook = Callable[[], object]
Order = Literal["strict", "round_robin"]


class WorkerFields(TypedDict, total=False):
    """The options of a worker besides its queues, for type checkers."""

    order: Order
    poll_s: float
    grace_s: float
    max_crashes: int
    before_start: Hook | Sequence[Hook]
    after_stop: Hook | Sequence[Hook]
    lifespan: Callable[[], object] | None
    exclusive: str | None


OPTION_NAMES = ("queues", "concurrency", *WorkerFields.__annotations__)


def worker_of(
    app: Perdure,
    queues: Sequence[str] | Mapping[str, int] | None,
    concurrency: int | None,
    options: WorkerFields,
) -> Worker:
    """A worker for the jobs of this app's database. Imports the modules named by `imports=`, opens nothing."""
    refuse_in_a_test(app)
    checked = checked_options(queues, concurrency, options, app.config.lease_s)
    import_kinds(app)

    parts = WorkerParts(app.store, app.kinds, app.clock, app.ids, _lay_out(app), check=lambda: refuse_in_a_test(app))
    return Worker(parts, checked._replace(middleware=app.middlewares, busy_timeout_s=app.config.busy_timeout_s))


def refuse_in_a_test(app: Perdure) -> None:
    """Also when a worker is started that was made before the block."""
    if app.kit is not None:
        raise PerdureError(
            "inside app.testing() there is no worker, since its clock stands still; run what is due with t.drain()",
            code="testing_worker",
        )


def stage_of(app: Perdure) -> Stage:
    """What stands behind a handler's context, for a run in a child process. Imports the kinds as a worker does."""
    import_kinds(app)
    return Stage(app.store, app.clock, app.ids, _lay_out(app))


def _lay_out(app: Perdure) -> LayOut:
    def lay_out(draft: Draft) -> NewJob:
        now = app.clock.now()  # before the id, whose time since= compares with created_at
        return new_job(*draft, JobId(app.ids.new()), now)

    return lay_out


def import_kinds(app: Perdure) -> None:
    """Import the modules that declare this app's kinds."""
    for name in app.config.imports:
        try:
            import_module(name)
        except Exception as error:
            raise ConfigError(
                f"the module {shown(name)} of imports= cannot be imported ({type(error).__name__}: {error})",
                code="imports_failed",
            ) from error


def checked_options(queues: object, concurrency: object, options: WorkerFields, lease_s: float) -> WorkerOptions:
    """Everything `app.worker` takes. An unknown name or an impossible value is refused by name."""
    check_known(options, OPTION_NAMES)
    per_queue = _per_queue(queues)
    exclusive = options.get("exclusive")
    duty = Duty(
        queues=None if queues is None else tuple(per_queue) or _queue_names(queues),
        in_turn=_order(options.get("order", "strict")) == "round_robin",
        concurrency=_concurrency(concurrency, per_queue),
        per_queue=per_queue,
        poll_s=_seconds(options.get("poll_s", 1.0), "poll_s", least=0.001),
        lease_s=lease_s,
        max_crashes=_whole(options.get("max_crashes", 3), "max_crashes"),
    )
    return WorkerOptions(
        duty,
        grace_s=_seconds(options.get("grace_s", 25.0), "grace_s", least=0),
        before_start=_hooks(options.get("before_start", ()), "before_start"),
        after_stop=_hooks(options.get("after_stop", ()), "after_stop"),
        lifespan=_lifespan(options.get("lifespan")),
        exclusive=None if exclusive is None else check_name(exclusive, "exclusive", EXCLUSIVE_LIMIT),
    )


def _queue_names(queues: object) -> tuple[str, ...]:
    if isinstance(queues, (str, bytes)) or not isinstance(queues, Iterable):
        raise InvalidOption(f"queues must be a list of names, not {shown(queues)}; write queues=[{shown(queues)}]")
    names = tuple(check_queue(name) for name in cast("Iterable[object]", queues))
    if not names:
        raise InvalidOption("queues is empty, so there would be nothing to do; leave it out to serve every queue")
    return tuple(dict.fromkeys(names))


def _per_queue(queues: object) -> dict[str, int]:
    if not isinstance(queues, Mapping):
        return {}
    limits = cast("Mapping[object, object]", queues)
    return {
        check_queue(name): _whole(limit, f"the concurrency of queue {shown(name)}", CONCURRENCY_LIMIT)
        for name, limit in limits.items()
    }


def _concurrency(concurrency: object, per_queue: Mapping[str, int]) -> int:
    if concurrency is None:
        return min(CONCURRENCY_LIMIT, sum(per_queue.values())) if per_queue else CONCURRENCY
    return _whole(concurrency, "concurrency", CONCURRENCY_LIMIT)


def _order(order: object) -> str:
    if order not in get_args(Order):
        raise InvalidOption(not_among("order", order, get_args(Order)))
    return str(order)


def _whole(value: object, what: str, most: int = 10**6) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise InvalidOption(f"{what} must be a whole number from 1 to {most}, not {shown(value)}")
    return value


def _seconds(value: object, what: str, least: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= 10**6:
        raise InvalidOption(f"{what} must be seconds, at least {least:g}, not {shown(value)}")
    return float(value)


def _hooks(hooks: object, what: str) -> tuple[Hook, ...]:
    listed: Iterable[Any] = [hooks] if callable(hooks) else cast("Iterable[Any]", hooks)
    if not isinstance(listed, (list, tuple)) or not all(map(callable, listed)):
        raise InvalidOption(f"{what} must be a function without arguments, or a list of them, not {shown(hooks)}")
    for hook in listed:
        if inspect.iscoroutinefunction(hook):
            raise InvalidOption(f"{what} must be a plain function; for coroutines use lifespan=, not {shown(hook)}")
    return tuple(listed)


def _lifespan(lifespan: object) -> Callable[[], object] | None:
    hint = "; decorate it with contextlib.asynccontextmanager and pass the function itself"
    must_be = "a function that gives a context manager"
    return None if lifespan is None else check_function(lifespan, "lifespan", must_be, hint=hint)
