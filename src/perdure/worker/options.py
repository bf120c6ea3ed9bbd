"""What a worker is given. Made by `verbs/working`, read by `worker` and `shift`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from perdure.clock import Clock
from perdure.ids import IdFactory
from perdure.kind import Registry
from perdure.store.protocols import Store
from perdure.worker.liveness import Liveness, ProcLiveness
from perdure.worker.node import Duty
from perdure.worker.run import Middleware
from perdure.worker.services import LayOut


class WorkerOptions(NamedTuple):
    """What `app.worker(…)` was given, checked."""

    duty: Duty
    grace_s: float = 25.0
    before_start: Sequence[Callable[[], object]] = ()
    after_stop: Sequence[Callable[[], object]] = ()
    lifespan: Callable[[], object] | None = None
    exclusive: str | None = None
    middleware: Sequence[Middleware] = ()
    busy_timeout_s: float = 5.0
    """The longest that a call to the database may take; the watchdog is more patient than that."""

    @property
    def patience_s(self) -> float:
        """For how long the store thread may not move before it counts as hung."""
        return max(self.duty.lease_s, 3 * self.busy_timeout_s)


class WorkerParts(NamedTuple):
    """What a worker is made of."""

    store: Store
    kinds: Registry
    clock: Clock
    ids: IdFactory
    lay_out: LayOut
    liveness: Liveness = ProcLiveness()
    check: Callable[[], object] = bool
    """Raises where the worker may not be started now."""
