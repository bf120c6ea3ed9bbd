"""`t.context()`: a context to call a handler directly, and to see what it reported. Made by `kit`. It belongs to no job
in the database, and writes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

from perdure.clock import Micros
from perdure.errors import PerdureError
from perdure.ids import JobId, NodeId, RunId
from perdure.job.model import Claim, LiveJob, NewJob, Plan, RunRow, row_of_new
from perdure.job.states import RunState, State
from perdure.job.transitions import claim
from perdure.job.views import Job, Run
from perdure.kind import Declaration, Draft, Kind
from perdure.options import Options
from perdure.store.protocols import FlowOperations
from perdure.store.rows import SlotRow
from perdure.worker.context import JobContext, Services, current, entered
from perdure.worker.run import AnyKind
from perdure.worker.services import JobTransactionBlock, StoreServices
from perdure.worker.signals import Stop

if TYPE_CHECKING:
    from perdure.app import Perdure


class KitContext(JobContext):
    """A `JobContext` for a test: what the handler reported is in `messages`, `progressed`, `measured`, `artifacts` and
    `enqueued`. Inside a `with` block of it, `current()` returns it."""

    def __init__(
        self, claim: Claim, kind: AnyKind, services: Services, state: Mapping[str, Any], stop_after: int | None
    ) -> None:
        super().__init__(claim, kind, services, state)
        self._looks_left = stop_after
        self._before: JobContext | None = None
        self.progressed: list[tuple[float, float | None, str | None]] = []
        """Every `ctx.progress(…)`: done, total, note."""

    @property
    def messages(self) -> list[str]:
        """What was logged with `ctx.log`, from INFO on."""
        return [line.message for line in self._lines or ()]

    @property
    def measured(self) -> dict[str, float]:
        """The values given to `ctx.metric(…)`, the newest of each name."""
        return {name: value for name, value in (self._metrics or {}).items() if name != "progress"}

    @property
    def artifacts(self) -> list[str]:
        """The artifacts given to `ctx.artifact(…)`."""
        return list(self._artifacts or ())

    @property
    def enqueued(self) -> list[Job]:
        """The jobs of `ctx.enqueue(…)`. They are not in the database: only a completed job enqueues them."""
        return [Job.fresh(new, 0) for new in self.children]

    # -- what differs from a worker's --------------------------------------------------------------------------------

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """As in a worker; and `progressed` has it."""
        super().progress(done, total, note)
        self.progressed.append((done, total, note))

    @property
    def should_stop(self) -> bool:
        """False until the handler has looked as often as `stop_after` says."""
        self._look()
        return super().should_stop

    def checkpoint(self) -> None:
        """Ends the handler once `should_stop` is True."""
        self._look()
        super().checkpoint()

    def _look(self) -> None:
        if self._looks_left is None:
            return
        if self._looks_left == 0:
            self.stop = self.stop or Stop.SHUTDOWN
        else:
            self._looks_left -= 1

    def __enter__(self) -> Self:
        self._before = current()
        entered(self)
        return self

    def __exit__(self, *how: object) -> None:
        entered(self._before)


class DetachedServices:
    """The services of a context without a job: `worker/services` without a database."""

    def __init__(self, app: Perdure, job: Job, run: Run) -> None:
        self._app = app
        self._job = job
        self._run = run

    def get_job(self, ctx: JobContext) -> Job:
        del ctx
        return self._job

    def get_run(self, ctx: JobContext) -> Run:
        del ctx
        return self._run

    def get_slot(self, ctx: JobContext) -> SlotRow | None:
        del ctx
        return None

    def new_job(self, draft: Draft, ctx: JobContext) -> NewJob:
        return StoreServices(self._app.parts()).new_job(draft, ctx)

    def flows(self, ctx: JobContext) -> FlowOperations:
        raise self._detached(ctx, "ctx.flow and ctx.results() read the flow of a job")

    def transaction(self, ctx: JobContext, session: Any = None) -> JobTransactionBlock:
        del session
        raise self._detached(ctx)

    def complete(self, ctx: JobContext, result: str | None, write: Callable[[Any], object]) -> None:
        del result, write
        raise self._detached(ctx)

    def now(self) -> Micros:
        return self._app.clock.now()

    def _detached(self, ctx: JobContext, what: str = "ctx.transaction() ends a job") -> PerdureError:
        return PerdureError(
            f"{what} in the database, and t.context() has none; enqueue {ctx.kind.name} and run it with t.drain()",
            code="context_detached",
        )


def new_context(
    app: Perdure, kind: AnyKind, plan: Plan, attempt: int, state: Mapping[str, Any], stop_after: int | None
) -> KitContext:
    """A context like the one after a claim of such a job."""
    now = app.clock.now()
    new = NewJob(JobId(app.ids.new()), plan, "{}", None, now, now, State.QUEUED.value)
    waiting = row_of_new(LiveJob, new, position=0, attempts=attempt - 1, version=attempt)
    run_id, node_id = RunId(app.ids.new()), NodeId(app.ids.new())
    live = claim(waiting, run_id, node_id, now, 0)
    view = Job.fresh(new, 0).row._replace(
        state=live.state, attempts=attempt, started_at=now, node_id=node_id, run_id=run_id
    )
    opened = {"id": run_id, "state": RunState.RUNNING.value, "node_id": node_id, "attempt": attempt}
    run = row_of_new(RunRow, new, **opened, started_at=now, wait_ms=0)
    taken = Claim(live, "{}", None, plan.params, plan.options, plan.principal, plan.owner, now)
    return KitContext(taken, kind, DetachedServices(app, Job(view), Run(run)), state, stop_after)


def nameless(app: Perdure) -> AnyKind:
    """Replaces the handler's kind if the test does not name it."""

    def handler() -> None: ...

    return Kind(app, handler, Declaration("handler"), Options(queue=app.config.queue), JobContext)
