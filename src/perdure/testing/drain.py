"""Runs what is due, one job after the other, with a worker's own node on the real store. Driven by `kit`.

Everything but the running itself is `worker/node`: claims, finishes, promotion, notes. The node is given one place, and
this for an executor: it keeps the claimed job until the kit has run it, in its own thread or loop.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from perdure.errors import JobFailed, PerdureError, StoreError
from perdure.ids import JobId
from perdure.job.job import Job
from perdure.job.model import Telling
from perdure.job.reports import Failed, Released
from perdure.testing.frames import from_the_handler_on, is_the_tests_own
from perdure.worker.context import JobContext
from perdure.worker.executors.port import Inbox
from perdure.worker.liveness import ProcLiveness
from perdure.worker.node import Duty, Node, Parts
from perdure.worker.run import AnyKind, Assignment, Ended, Middleware
from perdure.worker.signals import Stop

if TYPE_CHECKING:
    from perdure.app import Perdure

TURNS = 10
"""Turns in a row that bring nothing. Promoting, looking and claiming take three."""


class Witness:
    """The outermost middleware: sees what a run raised, which its report only tells about."""

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def __call__(self, ctx: JobContext) -> Self:
        del ctx
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.error = error


class Drain:
    """One `t.drain()`. A node of its own, which signs off at the end."""

    def __init__(self, app: Perdure, state: Mapping[str, Any], limit: int) -> None:
        self._app = app
        self._limit = limit
        self._claimed: deque[Assignment] = deque()
        self._running: Assignment | None = None
        self._ran: list[JobId] = []
        self._kinds: Counter[str] = Counter()
        self._inbox = Inbox(_ring)
        self._witness = Witness()
        middleware: tuple[Middleware, ...] = (self._witness, *app.middlewares)
        # A jitter of one half is none: retries wait exactly as long as their backoff says.
        parts = Parts(
            app.store,
            app.kinds,
            app.clock,
            app.ids,
            ProcLiveness(),
            self,
            self._inbox,
            app.stage(),
            middleware,
            lambda: state,
            lambda: 0.5,
        )
        self._node = Node(parts, Duty(concurrency=1, lease_s=app.config.lease_s))

    # -- for the kit -------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._refuse_transaction()
        self._node.register()
        return self

    def __exit__(self, *how: object) -> None:
        """Whatever has happened: what ran is recorded, and what was only claimed is given back."""
        if self._running is not None:
            self.ended(Ended(self._running.ctx, Released(counts=True), Telling()))
        while self._claimed:  # an interrupt came between its claim and its run
            self.ended(Ended(self._claimed.popleft().ctx, Released(), Telling()))
        self._node.accepting = False
        for _ in range(TURNS):
            if self._node.is_empty:
                break
            self._node.turn()
        self._node.sign_off()

    def next(self) -> Assignment | None:
        """Record the run before, and claim the next job. None: nothing is due."""
        for _ in range(TURNS):
            self._node.stir()
            self._node.turn()
            if self._claimed:
                return self._begun(self._claimed.popleft())
            if self._node.is_idle:
                return None
        raise PerdureError(
            "t.drain() gets nowhere: jobs are due, but none of them can be claimed; the log of `perdure.worker` and"
            " app.explain(job) say more",
            code="drain_stuck",
        )

    def ended(self, ended: Ended) -> None:
        self._running = None
        self._inbox.put(ended)

    def raise_from(self, ended: Ended, *, errors: bool) -> None:
        """Raise what the run raised, if that was asked for, or if it concerns the test and not the job."""
        __tracebackhide__ = True
        error = self._witness.error
        if error is not None and is_the_tests_own(error):
            raise error.with_traceback(from_the_handler_on(error))
        if not errors or not isinstance(ended.report, Failed):
            return
        if error is not None:
            raise error.with_traceback(from_the_handler_on(error))
        failure = ended.report.failure  # its arguments did not fit, or its result: no exception of the handler's
        raise JobFailed(f"{ended.ctx.kind.name} failed: {failure.error_type}: {failure.message}")

    def jobs(self) -> list[Job]:
        """Those that ran, in the order they first did, as they stand now."""
        found = (self._app.store.get(job_id) for job_id in dict.fromkeys(self._ran))
        return [job for job in found if job is not None]

    # -- for the node: the executor ----------------------------------------------------------------------------------

    def of(self, kind: AnyKind) -> Self:
        del kind
        return self

    def start(self, tasks: Sequence[Assignment]) -> None:
        self._claimed.extend(tasks)

    def stop(self, ctx: JobContext, why: Stop) -> None:
        ctx.stop = ctx.stop or why

    def close(self, patience_s: float) -> bool:
        del patience_s
        return True

    # -- inside ------------------------------------------------------------------------------------------------------

    def _begun(self, task: Assignment) -> Assignment:
        if len(self._ran) >= self._limit:
            self.ended(Ended(task.ctx, Released(), Telling()))
            raise self._endless()
        self._ran.append(task.claim.job_id)
        self._kinds[task.kind.name] += 1
        self._witness.error = None
        self._running = task
        return task

    def _endless(self) -> PerdureError:
        told = ", ".join(f"{name} {times} times" for name, times in self._kinds.most_common(3))
        return PerdureError(
            f"t.drain() stopped after {self._limit:,} runs with more jobs due ({told}). If a job enqueues or retries"
            " itself without a delay, this would never end; if there are that many, say so with"
            f" t.drain(limit={self._limit * 10})",
            code="drain_limit",
        )

    def _refuse_transaction(self) -> None:
        """A transaction of the test's would become the jobs' own: they would run in it, and see what others cannot."""
        try:
            with self._app.store.transaction():
                pass
        except StoreError as error:
            if error.code != "tx_nested":
                raise
            raise PerdureError(
                "t.drain() inside app.transaction(): jobs run once it is committed; drain after the block",
                code="drain_in_transaction",
            ) from None


def _ring() -> None:
    """Nobody sleeps."""
