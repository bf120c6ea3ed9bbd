"""`JobContext`: what a handler is given besides its arguments, and what is kept of its run. Made by `node`.

A handler writes into it from its own thread, loop or process; the store thread writes that to the database with its
next turn (`take_notes`).
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextvars import ContextVar
from copy import copy
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast, overload
from uuid import UUID

from perdure.checks import check_number
from perdure.clock import Micros, to_datetime
from perdure.errors import InvalidInput, InvalidOption, KindError, PerdureError, shown
from perdure.ids import to_uuid
from perdure.job.model import Claim, NewJob, RunStats
from perdure.job.views import Job, Run
from perdure.kind import Bound, Draft, Kind, P
from perdure.names import public
from perdure.payload.signature import field_names
from perdure.store.rows import LogLine, SlotRow
from perdure.text import short_id
from perdure.words_of_others import OF_A_CONTEXT, refuse
from perdure.worker.signals import Interrupted, Stop
from perdure.worker.texts import Redactor, shortened, storable

if TYPE_CHECKING:
    from perdure.flow.planned import FlowHandle, Outcome
    from perdure.store.protocols import FlowOperations
    from perdure.worker.growth import OwnFlow
    from perdure.worker.services import JobTransactionBlock

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]

LOG_LINES = 1_000
"""Captured lines kept of one run; of more, the newest."""
LINE_LIMIT = 8_192
METRICS_LIMIT = 16 * 1024
INNER = frozenset((
    "add_child", "begun", "captured", "check_open", "children", "claim", "closed", "complete", "exc_info", "facts",
    "fit", "fit_record", "keep", "metrics", "name", "next_number", "started_ns", "stats", "stop", "take_notes",
))  # fmt: skip
"""What a context has for its worker; users are not shown it."""

_current: ContextVar[JobContext | None] = ContextVar("perdure_job_context", default=None)
job_logger = logging.getLogger("perdure.job")


class Services(Protocol):
    """What a context needs of its worker."""

    def get_job(self, ctx: JobContext) -> Job: ...

    def get_run(self, ctx: JobContext) -> Run: ...

    def get_slot(self, ctx: JobContext) -> SlotRow | None: ...

    def new_job(self, draft: Draft, ctx: JobContext) -> NewJob: ...

    def transaction(self, ctx: JobContext, session: Any = None) -> JobTransactionBlock: ...

    def complete(self, ctx: JobContext, result: str | None, write: Callable[[Any], object]) -> None: ...

    def flows(self, ctx: JobContext) -> FlowOperations: ...

    def now(self) -> Micros: ...


class RunNotes(NamedTuple):
    """What a run has said since its notes were last taken. `first_kept`: captured lines before this one are dropped."""

    lines: list[LogLine]
    artifacts: tuple[str, ...]
    metrics: str | None
    first_kept: int


class JobContext:
    """The run that a handler is part of."""

    __slots__ = (
        "_artifacts",
        "_children",
        "_facts",
        "_grown",
        "_lines",
        "_lock",
        "_log",
        "_logged",
        "_metrics",
        "_redactor",
        "_said",
        "_services",
        "begun",
        "claim",
        "closed",
        "exc_info",
        "kind",
        "started_ns",
        "state",
        "stop",
    )

    def __init__(
        self, claim: Claim, kind: Kind[..., Any, ..., Any], services: Services, state: Mapping[str, Any] | None = None
    ) -> None:
        self.claim = claim
        self.kind = kind
        """The kind of the job."""
        self.state: Mapping[str, Any] = {} if state is None else state
        """What the worker's `lifespan=` yielded."""
        self.stop: Stop | None = None
        self.closed = False
        """The job has been ended from inside the handler (`transaction`)."""
        self.begun = False
        """The handler itself has been called."""
        self.started_ns: int | None = None
        """When the run began, by `time.perf_counter_ns`."""
        self.exc_info: ExcInfo | None = None
        """What the handler raised, for the log line about it. Not of a job with secrets: its frames hold them."""
        self._facts: dict[str, Any] | None = None
        self._children: list[NewJob] | None = None
        self._grown: dict[bytes, int] | None = None
        self._services = services
        self._said = False
        self._lines: deque[LogLine] | None = None
        self._logged = 0
        self._artifacts: list[str] | None = None
        self._metrics: dict[str, Any] | None = None
        self._log: RunLog | None = None
        self._redactor: Redactor | None = None
        self._lock = threading.RLock()  # reentrant: a __del__ that logs may come at any allocation

    # -- looking -----------------------------------------------------------------------------------------------------

    @property
    def job_id(self) -> UUID:
        """The id of the job, the same in all of its attempts."""
        return to_uuid(self.claim.live.job_id)

    @property
    def run_id(self) -> UUID:
        """The id of this run: each attempt has its own."""
        return to_uuid(self.claim.run_id)

    @property
    def job(self) -> Job:
        """The job as it is now, read from the database."""
        return self._services.get_job(self)

    @property
    def run(self) -> Run:
        """This attempt as it is recorded, read from the database."""
        return self._services.get_run(self)

    @property
    def scheduled_for(self) -> datetime | None:
        """The planned instant that the job was made for, read from the database. None: no schedule made it."""
        slot = self._services.get_slot(self)
        return None if slot is None else to_datetime(slot.scheduled_for)

    @property
    def data_interval(self) -> tuple[datetime | None, datetime | None]:
        """From the planned instant before this job's to its own: the time that its work is about. Both None: no
        schedule made it; the first one None: there was none before."""
        slot = self._services.get_slot(self)
        if slot is None:
            return None, None
        before = slot.previous_at
        return None if before is None else to_datetime(before), to_datetime(slot.scheduled_for)

    @property
    def next_scheduled_for(self) -> datetime | None:
        """The planned instant after this job's, as it was planned when the job was made."""
        slot = self._services.get_slot(self)
        return None if slot is None or slot.following_at is None else to_datetime(slot.following_at)

    @property
    def attempt(self) -> int:
        """1 for the first attempt."""
        return self.claim.live.attempts

    @property
    def params(self) -> dict[str, Any]:
        """The key-values given with `options(params=…)`."""
        return json.loads(self.claim.params) if self.claim.params else {}

    @property
    def principal(self) -> str | None:
        """On whose behalf the job was enqueued."""
        return self.claim.principal

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose lines are kept with the run, from INFO on, whatever the levels of `logging` say.

        They also go where `logging` sends those of the logger `perdure.job`. The lines of all other loggers are kept
        too, while the handler runs, if their levels let them through.
        """
        if self._log is None:
            self._log = RunLog(_RunLogger(self), {"job_id": str(self.job_id), "attempt": self.attempt})
        return self._log

    @property
    def should_stop(self) -> bool:
        """True: the worker shuts down, or the job was cancelled, timed out or lost. Leave at the next good place."""
        return self.stop is not None

    def checkpoint(self) -> None:
        """Leave here if the run is to stop. The attempt is given back if the worker shuts down."""
        if self.stop is not None:
            raise Interrupted(self.stop, at_checkpoint=True)

    # -- saying ----------------------------------------------------------------------------------------------------

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """Say how far the work is. Cheap: only the last value is written, about once a second."""
        told: dict[str, Any] = {"done": _number(done, "done")}
        if total is not None:
            told["total"] = _number(total, "total")
        if note is not None:
            told["note"] = self.fit(note)[:LINE_LIMIT]
        self._measured({"progress": told})

    def metric(self, **numbers: float) -> None:
        """Keep numbers with the run; of each name the newest."""
        self._measured({self.fit(name): _number(value, name) for name, value in numbers.items()})

    def artifact(self, path: str | os.PathLike[str]) -> None:
        """Keep the path or address of something that this run made."""
        told = self.fit(os.fsdecode(path))
        with self._lock:
            self._artifacts = self._artifacts or []
            self._artifacts.append(told)
            self._said = True

    @overload
    def enqueue(self, draft: Draft, /) -> Job: ...
    @overload
    def enqueue(self, kind: Bound[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> Job: ...

    def enqueue(self, what: Any, /, *args: Any, **kwargs: Any) -> Job:
        """Enqueue another job in the transaction that completes this one, and only if it completes.

        `ctx.enqueue(send, to="a")`, `ctx.enqueue(send.options(delay=5), to="a")` or `ctx.enqueue(draft)`. Its id is
        fixed now; if one of its keys is taken, the job that holds the key counts instead.
        """
        self.check_open("enqueue")
        if isinstance(what, Draft):
            if args or kwargs:
                raise InvalidInput("ctx.enqueue takes a draft, or a kind and its arguments; not both")
            draft = cast("Draft", what)  # type: ignore[redundant-cast]  # for pyright
        elif isinstance(what, Bound):
            draft = cast("Bound[..., Any]", what).new(*args, **kwargs)
        else:
            raise InvalidInput(
                f"ctx.enqueue takes a kind and its arguments, as in ctx.enqueue(send, to=…), not {shown(what)}",
                code="draft_invalid",
            )
        if draft.options.tx is not None:
            raise InvalidOption(
                "ctx.enqueue takes no tx=: the job is written in the transaction that completes this one. Use"
                " kind.options(tx=…).enqueue(…) for a job in another"
            )
        new = self._services.new_job(draft, self)
        self.add_child(new)
        return Job.fresh(new, 0)

    @property
    def flow(self) -> OwnFlow:
        """The flow that the job belongs to: `ctx.flow.add(…)` adds jobs to it, `ctx.flow["more"]` is one inside it.

        PerdureError (`no_flow`): it belongs to none.
        """
        from perdure.worker.growth import own_flow

        self.check_open("flow")
        return own_flow(self, self._services)

    def outcomes(self, flow: FlowHandle | UUID | str | None = None) -> Iterator[Outcome]:
        """How the members of a flow ended, by their number, read in pages: for a job that waits for the flow.

        `flow`: a flow, its id, or the name of one inside the job's own flow. None: the job's own.
        """
        from perdure.worker.growth import outcomes

        return outcomes(self, self._services, flow)

    def results(self, flow: FlowHandle | UUID | str | None = None) -> Iterator[Any]:
        """The results of the members that completed, as JSON data; the rest is as in `outcomes`."""
        return (outcome.result for outcome in self.outcomes(flow) if outcome.state == "completed")

    def transaction(self, *, session: Any = None) -> JobTransactionBlock:
        """A transaction whose commit is the job's end: `with ctx.transaction() as tx: tx.execute(…); tx.result(7)`. On
        a server also `async with ctx.transaction() as tx: await tx.execute(…)`.

        `session`: SQLAlchemy's sessionmaker or Engine, or Django's connection: the transaction is then one of its own,
        `tx.session`. In a coroutine an async_sessionmaker or AsyncEngine, with `async with`.
        """
        self.check_open("transaction")
        return self._services.transaction(self, session)

    def complete(self, result: str | None, write: Callable[[Any], object]) -> None:
        """End the job together with what `write` writes. Called for a handler that returned `Done`."""
        self._services.complete(self, result, write)

    # -- for the worker ----------------------------------------------------------------------------------------------

    def add_child(self, new: NewJob) -> None:
        """A job to be written when this one completes."""
        with self._lock:
            self._children = self._children or []
            self._children.append(new)

    def next_number(self, of: bytes) -> int:
        """0 for the first member that this run adds to a flow, then 1, and so on."""
        with self._lock:
            self._grown = self._grown or {}
            number = self._grown[of] = self._grown.get(of, -1) + 1
        return number

    @property
    def children(self) -> tuple[NewJob, ...]:
        """What the handler asked for with `enqueue`, to be written when the job completes."""
        return tuple(self._children) if self._children else ()

    @children.setter
    def children(self, wanted: tuple[NewJob, ...]) -> None:
        self._children = list(wanted)

    @property
    def name(self) -> str:
        """The job as log lines name it."""
        return f"{self.kind.name} {short_id(self.claim.live.job_id)}"

    @property
    def facts(self) -> dict[str, Any]:
        """Which run this is, for log lines: the same dict for all of them."""
        if self._facts is None:
            live = self.claim.live
            self._facts = {
                "job_id": str(self.job_id),
                "kind": live.kind,
                "queue": live.queue,
                "attempt": live.attempts,
                "run_id": str(self.run_id),
            }
        return self._facts

    def fit(self, text: str) -> str:
        """A text that may be stored: without this job's secrets, and without what some databases refuse."""
        secrets = self.claim.secrets
        if secrets is None:
            return storable(text)
        if self._redactor is None:
            self._redactor = Redactor(secrets, self._declared_names())
        return storable(self._redactor(text))  # in this order: a secret may hold what `storable` replaces

    def _declared_names(self) -> frozenset[str]:
        """The names of fields inside secret arguments, which are code and no secrets."""
        try:
            codec = self.kind.codec
        except KindError:  # the function cannot be a job: that is the error to report
            return frozenset()
        return field_names(*(codec.signature.annotations[name] for name in codec.secret_names))

    def fit_record(self, record: logging.LogRecord) -> logging.LogRecord:
        """A copy of the record without this job's secrets; the record itself is not changed."""
        if self.claim.secrets is None:
            return record
        redacted = copy(record)
        redacted.msg, redacted.args = self.fit(_text_of(record)), ()
        redacted.exc_info = redacted.exc_text = redacted.stack_info = None
        return redacted

    def stats(self) -> RunStats:
        """What is recorded of the run besides its outcome."""
        began = self.started_ns
        took = None if began is None else (time.perf_counter_ns() - began) // 1_000_000
        return RunStats(took) if self._metrics is None else RunStats(took, metrics=self.metrics)

    def keep(self, record: logging.LogRecord) -> None:
        """Keep a record of `logging` with the run, once. Never fails: a broken log call must not break the job."""
        if getattr(record, "perdure_kept", False):
            return
        record.perdure_kept = True
        try:
            text = shortened(self.fit(_text_of(record)), LINE_LIMIT)
            self.captured(record.levelname, text, self._services.now())
        except Exception:  # noqa: BLE001 - a repr or str of the user's may do anything
            self.captured("ERROR", f"a line of {record.name} could not be kept", self._services.now())

    def captured(self, level: str, message: str, at: Micros, fields: str | None = None) -> None:
        """Keep a line of log with the run. Called by the log handler."""
        with self._lock:
            if self._lines is None:
                self._lines = deque(maxlen=LOG_LINES)
            live = self.claim.live
            self._lines.append(
                LogLine(self.claim.run_id, self._logged, live.job_id, at, level, message[:LINE_LIMIT], fields)
            )
            self._logged += 1
            self._said = True

    def take_notes(self) -> RunNotes | None:
        """What was said since the last time. None: nothing."""
        if not self._said:
            return None
        with self._lock:
            lines = [] if self._lines is None else list(self._lines)
            artifacts = tuple(self._artifacts or ())
            metrics = self.metrics
            self._lines = None
            self._artifacts = None
            self._said = False
        return RunNotes(lines, artifacts, metrics, max(0, self._logged - LOG_LINES))

    @property
    def metrics(self) -> str | None:
        """All that was measured so far, as JSON text."""
        return None if self._metrics is None else json.dumps(self._metrics, separators=(",", ":"))

    def _measured(self, numbers: dict[str, Any]) -> None:
        with self._lock:
            merged = {**(self._metrics or {}), **numbers}
            if len(json.dumps(merged)) > METRICS_LIMIT:
                raise InvalidInput(f"the metrics of a run have at most {METRICS_LIMIT} bytes; keep fewer of them")
            self._metrics = merged
            self._said = True

    def check_open(self, what: str) -> None:
        if self.closed:
            raise PerdureError(
                f"ctx.{what} after ctx.transaction(): its commit has ended the job; do this before or inside the block",
                code="job_ended",
            )

    if not TYPE_CHECKING:  # else type checkers would accept any name

        def __getattr__(self, name: str) -> Any:
            """Only asked for what is not there."""
            refuse(self, name, OF_A_CONTEXT, "the context of a job")

    def __dir__(self) -> list[str]:
        return public(super().__dir__(), INNER)

    def __repr__(self) -> str:
        return f"<JobContext {self.kind.name} {self.job_id} attempt {self.attempt}>"


class RunLog(logging.LoggerAdapter[logging.Logger]):
    """`ctx.log`."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


class _RunLogger(logging.Logger):
    """Keeps its records with one run, also from another thread, and passes on to `perdure.job` what that allows."""

    def __init__(self, ctx: JobContext) -> None:
        super().__init__(job_logger.name)
        self._ctx = ctx

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - logging's own name
        return level >= logging.INFO or job_logger.isEnabledFor(level)

    def handle(self, record: logging.LogRecord) -> None:
        self._ctx.keep(record)
        if job_logger.isEnabledFor(record.levelno):
            ctx = self._ctx
            record.perdure = ctx.facts
            job_logger.handle(ctx.fit_record(record))  # its handlers get what is kept


def _text_of(record: logging.LogRecord) -> str:
    """As a formatter would write it. Without one: it would leave the traceback in the record for all other handlers."""
    return "\n".join(filter(None, (message_of(record), trace_of(record), record.stack_info)))


def message_of(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception as error:  # noqa: BLE001 - arguments that do not fit, or whose __str__ fails
        return f"{record.msg} (this line could not be formatted: {type(error).__name__})"


def trace_of(record: logging.LogRecord) -> str | None:
    if record.exc_info and record.exc_info[0] is not None:
        return "".join(traceback.format_exception(*record.exc_info)).rstrip()
    return record.exc_text


def current() -> JobContext | None:
    """The context of the run that this code is part of. None: no job is running here."""
    return _current.get()


def entered(ctx: JobContext | None) -> None:
    """From here on, in this thread's or task's own context, `current()` returns this run."""
    _current.set(ctx)


def _number(value: object, name: str) -> float:
    most = sys.float_info.max
    return check_number(value, name, -most, most, must_be="a finite number", code="metric_invalid", error=InvalidInput)
