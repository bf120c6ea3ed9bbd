"""`Job` and `Run`: a job and one attempt at it, as users see them. Made by the store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, Never, Self, TypeVar, cast, overload
from uuid import UUID

from perdure.clock import Micros, to_datetime
from perdure.errors import InvalidPayload, JobFailed
from perdure.ids import JobId, to_uuid
from perdure.job.model import Damage, JobView, NewJob, RunRow, json_of, priority_of, readable, row_of_new
from perdure.job.states import FINAL, RunState, State
from perdure.names import public
from perdure.words_of_others import OF_A_JOB, refuse

TAG_SEPARATOR = "\x1f"
INNER = frozenset(("ended_well", "error_message", "fresh", "pruned", "read", "row"))
"""What jobs and runs have for the package's own parts; users are not shown it."""

T = TypeVar("T")
R = TypeVar("R", JobView, RunRow)

_set = object.__setattr__
_NO_ID = bytes(16)
_STATES = frozenset(state.value for state in State)
_RUN_STATES = frozenset(state.value for state in RunState)


class Column(Generic[T]):
    """The column of the same name in the view's row, as it is, or converted by `read`."""

    def __init__(self, read: Callable[[Any], T] | None = None) -> None:
        self._read = read

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, view: None, owner: type) -> Self: ...
    @overload
    def __get__(self, view: object, owner: type) -> T: ...
    def __get__(self, view: Any, owner: type) -> Self | T:
        if view is None:
            return self
        value = getattr(view.row, self._name)
        return cast("T", value) if self._read is None else self._read(value)

    def __set__(self, view: object, value: Never) -> None:
        """For type checkers: without it a view would not look frozen. `__setattr__` comes first."""


def time_of(micros: Micros | None) -> datetime | None:
    return None if micros is None else to_datetime(micros)


def uuid_of(value: bytes | None) -> UUID | None:
    return None if value is None else to_uuid(value)


class Job:
    """A job as it was when it was read. Frozen: read it again to see what became of it.

    Two are equal if they are the same version of the same job. It does not hold secret arguments.
    """

    # A view of one row, decoded on demand: enqueue_many makes thousands, and most are never looked at.
    __slots__ = ("_damage", "_new", "_position", "_row", "deduplicated")

    _damage: Damage
    _new: NewJob | None
    _position: int
    _row: JobView | None
    deduplicated: bool
    """True: enqueue found this job under the key and made no new one."""

    def __init__(self, row: JobView, *, deduplicated: bool = False, damage: Damage | None = None) -> None:
        _set(self, "_damage", damage or {})
        _set(self, "_row", row)
        _set(self, "_new", None)
        _set(self, "deduplicated", deduplicated)

    @classmethod
    def read(cls, columns: Sequence[object], *, deduplicated: bool = False) -> Job:
        """The job of a row in the database, also of one that another program has damaged."""
        row, damage = _readable(JobView, columns, _STATES, State.PARKED, State.FAILED)
        return cls(row, deduplicated=deduplicated, damage=damage)

    @classmethod
    def fresh(cls, new: NewJob, position: int) -> Job:
        """The job just inserted, without reading it back."""
        job = cls.__new__(cls)
        _set(job, "_damage", _WHOLE)
        _set(job, "_row", None)
        _set(job, "_new", new)
        _set(job, "_position", position)
        _set(job, "deduplicated", False)
        return job

    @classmethod
    def pruned(cls, job_id: JobId, like: NewJob, state: State) -> Job:
        """What is left of a deleted job whose idempotency key is still taken: no payload, no times."""
        view = _view_of_new(like, 0)._replace(id=job_id, payload=None, params=None, principal=None, state=state.value)
        return cls(view, deduplicated=True)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Job is frozen; change the job itself through the app (tried to set {name!r})")

    __delattr__ = __setattr__  # type: ignore[assignment]

    @property
    def row(self) -> JobView:
        """Every stored field, undecoded."""
        if self._row is None:
            assert self._new is not None
            _set(self, "_row", _view_of_new(self._new, self._position))
        assert self._row is not None
        return self._row

    @property
    def unreadable(self) -> dict[str, str]:
        """What is wrong with the stored row, by column: a value that another program has written. Empty: nothing.

        An impossible number, time or id is shown as 0 or None, an unknown state as parked or failed; payload, params
        and result that are not JSON raise InvalidPayload. `perdure doctor` finds such rows.
        """
        found = dict(self._damage)
        for name in ("payload", "params", "result"):
            try:
                getattr(self, name)
            except InvalidPayload as error:
                found[name] = error.message
        return found

    def _json(self, name: str, wanted: type = object) -> Any:
        try:
            value = json_of(getattr(self.row, name))
            if value is None or isinstance(value, wanted):
                return value
            why, error = "is not a JSON object", None
        except ValueError as unreadable:
            why, error = f"cannot be read ({unreadable})", unreadable
        raise InvalidPayload(
            f"the {name} of job {self.id} {why}: another program wrote or changed it; look at the row, cancel the job"
            " and enqueue it again",
            code="payload_unreadable",
        ) from error

    def ended_well(self) -> Job:
        """This job, if it ended with a result. JobFailed: it did not."""
        if self.state == State.COMPLETED:
            return self
        raise JobFailed(
            f"job {self.id} ({self.kind}) ended {self.state} after {self.attempts} attempts"
            + (f": {self.error_type}: {self.error}" if self.error else ""),
            code=f"job_{self.state}",
        )

    @property
    def id(self) -> UUID:
        return to_uuid(self._new.id if self._new is not None else _NO_ID if "id" in self._damage else self.row.id)

    kind = Column[str]()
    kind_version = Column[int]()
    owner = Column[str]()
    queue = Column[str]()
    state = Column(State)
    version = Column[int]()
    """Rises with every change of the job; for `expect_version=`."""
    position = Column[int]()
    """Opaque: only the order among jobs of one queue and priority has a meaning."""
    principal = Column[str | None]()
    idempotency_key = Column[str | None]()
    business_key = Column[str | None]()

    attempts = Column[int]()
    max_attempts = Column[int]()
    crashes = Column[int]()
    life = Column[int]()
    """1 at first; each retry by hand adds 1."""
    error = Column[str | None]()
    """While live, the error of the last attempt; after the end, why the job ended that way."""
    error_type = Column[str | None]()
    park_reason = Column[str | None]()
    cancel_requested = Column(bool)
    waits_for = Column[int]()
    """How many jobs have to end before this one may start."""

    created_at = Column(to_datetime)
    queued_at = Column(to_datetime)
    run_at = Column(to_datetime)
    started_at = Column(time_of)
    finished_at = Column(time_of)
    scheduled_for = Column(time_of)

    template_id = Column(uuid_of)
    """The template it was made from, at `template_version`; `app.templates.of(job)` shows it."""
    template_version = Column[int | None]()
    retry_of = Column(uuid_of)
    root_id = Column(uuid_of)
    """The first job of a chain of retries; None for a job that is no retry."""
    parent_id = Column(uuid_of)
    flow_id = Column(uuid_of)
    """The chain, group, batch or workflow that it belongs to."""
    schedule_id = Column(uuid_of)
    """The schedule that has made it, for the instant `scheduled_for`."""
    superseded_by = Column(uuid_of)
    successor = Column(uuid_of)
    """The job that continues this one's work (`Retry(as_new_job=True)`)."""
    node_id = Column(uuid_of)
    run_id = Column(uuid_of)
    """The open run, while the job is running."""

    @property
    def is_final(self) -> bool:
        return self.state in FINAL

    @property
    def priority(self) -> int:
        return priority_of(self.row.rank)

    @property
    def payload(self) -> dict[str, Any] | None:
        """The arguments as passed, without secret ones. None: the job was deleted and only its key is left.

        InvalidPayload: the stored text cannot be read.
        """
        return cast("dict[str, Any] | None", self._json("payload", dict))

    @property
    def params(self) -> dict[str, Any]:
        return self._json("params", dict) or {}

    @property
    def result(self) -> Any:
        return self._json("result")

    @property
    def tags(self) -> tuple[str, ...]:
        joined = self.row.tags
        return tuple(sorted(joined.split(TAG_SEPARATOR))) if joined else ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and self.row == other.row

    def __hash__(self) -> int:
        return hash(self.row.id)

    if not TYPE_CHECKING:  # else type checkers would accept any name

        def __getattr__(self, name: str) -> Any:
            """Only asked for what is not there."""
            refuse(self, name, OF_A_JOB, "a job")

    def __dir__(self) -> list[str]:
        return public(super().__dir__(), INNER)

    def __repr__(self) -> str:
        return f"<Job {self.id} {self.kind} {self.state}>"


_WHOLE: Damage = {}


def _view_of_new(new: NewJob, position: int) -> JobView:
    tags = TAG_SEPARATOR.join(sorted(new.plan.tags)) or None
    return row_of_new(JobView, new, position=position, tags=tags)


def _readable(
    sort: type[R], columns: Sequence[object], states: frozenset[str], live: StrEnum, ended: StrEnum
) -> tuple[R, Damage]:
    """The row, and what is wrong with it. An unknown state is shown as `live` or `ended`."""
    row, damage = readable(sort, columns, keep="id")
    if row.state not in states:
        damage["state"] = f"{row.state!r} is no state"
        row = row._replace(state=(live if row.finished_at is None else ended).value)
    return row, damage


class Run:
    """One attempt at a job, as recorded. Once closed it never changes."""

    __slots__ = ("_damage", "row")

    _damage: Damage
    row: RunRow
    """Every stored field, undecoded."""

    def __init__(self, row: RunRow, damage: Damage | None = None) -> None:
        _set(self, "row", row)
        _set(self, "_damage", damage or {})

    @classmethod
    def read(cls, columns: Sequence[object]) -> Run:
        """The run of a row in the database, also of one that another program has damaged."""
        return cls(*_readable(RunRow, columns, _RUN_STATES, RunState.RUNNING, RunState.LOST))

    @property
    def unreadable(self) -> dict[str, str]:
        """What is wrong with the stored row, by column: a value that another program has written. Empty: nothing.

        An impossible number, time or id is shown as 0 or None, artifacts and metrics as empty.
        """
        return self._damage | self._json("artifacts", list)[1] | self._json("metrics", dict)[1]

    def _json(self, name: str, wanted: type) -> tuple[Any, Damage]:
        try:
            value = json_of(getattr(self.row, name))
            if value is None or isinstance(value, wanted):
                return value, {}
            why = f"it is no {wanted.__name__}"
        except ValueError as error:
            why = str(error)
        return None, {name: f"it cannot be read: {why}"}

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Run is frozen (tried to set {name!r})")

    @property
    def id(self) -> UUID:
        return to_uuid(_NO_ID if "id" in self._damage else self.row.id)

    job_id = Column(to_uuid)
    kind = Column[str]()
    state = Column(RunState)
    node_id = Column(to_uuid)
    attempt = Column[int]()
    life = Column[int]()
    started_at = Column(to_datetime)
    finished_at = Column(time_of)
    wait_ms = Column[int]()
    """How long the job was ready to start before it started."""
    duration_ms = Column[int | None]()
    """By the monotonic clock of the node that ran it."""
    exit_code = Column[int | None]()
    error_type = Column[str | None]()
    error_message = Column[str | None]()
    """The column; users know it as `error`, like that of a job."""
    traceback = Column[str | None]()
    log_path = Column[str | None]()

    @property
    def error(self) -> str | None:
        """What went wrong in this attempt, or why it was stopped."""
        return self.row.error_message

    @property
    def artifacts(self) -> list[str]:
        return self._json("artifacts", list)[0] or []

    @property
    def metrics(self) -> dict[str, Any]:
        return self._json("metrics", dict)[0] or {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and self.row == other.row

    def __hash__(self) -> int:
        return hash(self.row.id)

    def __dir__(self) -> list[str]:
        return public(super().__dir__(), INNER)

    def __repr__(self) -> str:
        return f"<Run {self.id} of {self.kind} attempt {self.attempt} {self.state}>"
