"""The settings of a worker, each with its limits and its check, and what it gets from its app. Made by `app.worker`."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict, cast, get_args

from perdure.checks import (
    check_choice,
    check_function,
    check_known,
    check_name,
    check_names,
    check_number,
    check_type,
    check_whole,
)
from perdure.clock import Clock
from perdure.config import Config, Retention
from perdure.errors import InvalidOption, shown
from perdure.ids import IdFactory
from perdure.job.model import NewJob
from perdure.kind import Draft, Registry
from perdure.options import check_queue
from perdure.store.protocols import Store
from perdure.worker.liveness import Liveness, ProcLiveness

if TYPE_CHECKING:
    from perdure.schedule.definition import Definition
    from perdure.worker.run import Middleware

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
    schedules: bool


OPTION_NAMES = ("queues", "concurrency", *WorkerFields.__annotations__)


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The checked arguments of `app.worker(…)`, and what of the app's configuration is about workers."""

    queues: tuple[str, ...] | None = None
    """None: every queue there is."""
    per_queue: Mapping[str, int] = field(default_factory=dict[str, int])
    """How many jobs of a queue may run at once; other queues have no limit."""
    concurrency: int = 10
    order: Order = "strict"
    """`round_robin`: each queue is first in its turn, instead of strictly in the order given."""
    poll_s: float = 1.0
    grace_s: float = 25.0
    max_crashes: int = 3
    """Deaths of its node after which a job is given up."""
    before_start: Sequence[Hook] = ()
    after_stop: Sequence[Hook] = ()
    lifespan: Callable[[], object] | None = None
    exclusive: str | None = None
    schedules: bool = True
    """Whether it takes the slots of schedules that are due."""
    lease_s: float = 60.0
    busy_timeout_s: float = 5.0
    """The longest that a call to the database may take; the watchdog is more patient than that."""

    @classmethod
    def of(cls, queues: object, concurrency: object, options: WorkerFields, config: Config) -> WorkerOptions:
        """From the arguments of `app.worker`. The error for an unknown name or a wrong value names it."""
        check_known(options, OPTION_NAMES)
        per_queue = _per_queue(queues)
        checked: dict[str, Any] = {name: _CHECKS[name](value, name) for name, value in options.items()}
        if concurrency is not None:
            checked["concurrency"] = check_whole(concurrency, "concurrency", 1, CONCURRENCY_LIMIT)
        elif per_queue:
            checked["concurrency"] = min(CONCURRENCY_LIMIT, sum(per_queue.values()))
        return cls(
            queues=None if queues is None else tuple(per_queue) or _queue_names(queues),
            per_queue=per_queue,
            lease_s=config.lease_s,
            busy_timeout_s=config.busy_timeout_s,
            **checked,
        )

    @property
    def patience_s(self) -> float:
        """How long the store thread may make no progress before it counts as hung."""
        return max(self.lease_s, 3 * self.busy_timeout_s)


class Parts(NamedTuple):
    """What a worker gets from its app. Tests and the simulator pass their own."""

    store: Store
    kinds: Registry
    clock: Clock
    ids: IdFactory
    new_job: Callable[[Draft], NewJob]
    """From a draft to the rows of a new job."""
    middleware: Sequence[Middleware] = ()
    liveness: Liveness = ProcLiveness()
    jitter: Callable[[], float] = random.random
    owner: str = "perdure"
    """The name of the app."""
    declared: Callable[[], Sequence[Definition]] = tuple
    """The schedules that its code declares."""
    retention: Retention = Retention()


# -- the checks ------------------------------------------------------------------------------------------------------


def _queue_names(queues: object) -> tuple[str, ...]:
    names = check_names(queues, "queues", check_queue)
    if not names:
        raise InvalidOption("queues is empty, so there would be nothing to do; leave it out to serve every queue")
    return names


def _per_queue(queues: object) -> dict[str, int]:
    if not isinstance(queues, Mapping):
        return {}
    limits = cast("Mapping[object, object]", queues)
    return {
        check_queue(name): check_whole(limit, f"the concurrency of queue {shown(name)}", 1, CONCURRENCY_LIMIT)
        for name, limit in limits.items()
    }


def _seconds(value: object, what: str, least: float = 0) -> float:
    return float(check_number(value, what, least, 10**6, must_be=f"seconds, at least {least:g}"))


def _hooks(hooks: object, what: str) -> tuple[Hook, ...]:
    listed: Iterable[Any] = [hooks] if callable(hooks) else cast("Iterable[Any]", hooks)
    if not isinstance(listed, (list, tuple)) or not all(map(callable, listed)):
        raise InvalidOption(f"{what} must be a function without arguments, or a list of them, not {shown(hooks)}")
    for hook in listed:
        if inspect.iscoroutinefunction(hook):
            raise InvalidOption(f"{what} must be a plain function; for coroutines use lifespan=, not {shown(hook)}")
    return tuple(listed)


def _flag(value: object, what: str) -> bool:
    check_type(value, what, bool, "True or False")
    return value is True


def _lifespan(lifespan: object, what: str) -> Callable[[], object] | None:
    hint = "; decorate it with contextlib.asynccontextmanager and pass the function itself"
    if lifespan is None:
        return None
    return check_function(lifespan, what, "a function that returns a context manager", hint=hint)


_CHECKS: dict[str, Callable[[object, str], object]] = {
    "order": lambda value, name: check_choice(value, name, get_args(Order)),
    "poll_s": lambda value, name: _seconds(value, name, least=0.001),
    "grace_s": _seconds,
    "max_crashes": lambda value, name: check_whole(value, name, 1, 10**6),
    "before_start": _hooks,
    "after_stop": _hooks,
    "lifespan": _lifespan,
    "exclusive": lambda value, name: None if value is None else check_name(value, name, EXCLUSIVE_LIMIT),
    "schedules": _flag,
}
