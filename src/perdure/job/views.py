"""`Job`: a job as users see it. Made by the store from a row, or from what was just enqueued.

`Run`: one attempt as users see it. Made by the store from a row."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, cast
from uuid import UUID

from perdure.clock import Micros, to_datetime
from perdure.errors import InvalidPayload, JobFailed
from perdure.ids import JobId, to_uuid
from perdure.job.model import Damage, JobView, NewJob, RunRow, json_of, readable
from perdure.job.ordering import priority_of
from perdure.job.states import FINAL, RunState, State

TAG_SEPARATOR = "\x1f"


class Job:
    """A job as it was when it was read. Frozen: ask again to see what became of it.

    Two are equal when they are the same version of the same job. Secret arguments are not in it.
    """

    # A view over one row, decoded on demand: enqueue_many makes thousands of which most are not looked at.
    __slots__ = ("_damage", "_new", "_position", "_row", "deduplicated")

    _damage: Damage
    _new: NewJob | None
    _position: int
    _row: JobView | None
    deduplicated: bool
    """True where enqueue found this job under the key instead of making a new one."""

    def __init__(self, row: JobView, *, deduplicated: bool = False, damage: Damage | None = None) -> None:
        _set(self, "_damage", damage or {})
        _set(self, "_row", row)
        _set(self, "_new", None)
        _set(self, "deduplicated", deduplicated)

    @classmethod
    def read(cls, columns: Sequence[object], *, deduplicated: bool = False) -> Job:
        """The job of a row in the database, whatever somebody has written into that."""
        row, damage = readable(JobView, columns, keep="id")
        if row.state not in _STATES:
            damage["state"] = f"{row.state!r} is no state"
            row = row._replace(state=State.PARKED.value if row.finished_at is None else State.FAILED.value)
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
        """What is left of a job that was deleted while its idempotency key lives on: no payload, no times."""
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
        """What is wrong with the stored row, by column: a value that somebody else has written there. Empty: nothing.

        A number, time or id that cannot be one is shown as 0 or None here, a state that does not exist as parked or
        failed; payload, params and result that are not JSON raise InvalidPayload. `perdure doctor` finds such rows.
        """
        found = dict(self._damage)
        for name in ("payload", "params", "result"):
            try:
                getattr(self, name)
            except InvalidPayload as error:
                found[name] = error.message
        return found

    def _json(self, name: str) -> Any:
        try:
            return json_of(getattr(self.row, name))
        except ValueError as error:
            raise InvalidPayload(
                f"the {name} of job {self.id} cannot be read ({error}); it was not written by Perdure, or changed"
                " since: look at the row, cancel the job and enqueue it again",
                code="payload_unreadable",
            ) from error

    def _object(self, name: str) -> dict[str, Any] | None:
        value = self._json(name)
        if value is None or isinstance(value, dict):
            return cast("dict[str, Any] | None", value)
        raise InvalidPayload(
            f"the {name} of job {self.id} are no JSON object; they were not written by Perdure, or changed since",
            code="payload_unreadable",
        )

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

    @property
    def kind(self) -> str:
        return self.row.kind

    @property
    def version(self) -> int:
        """Rises with every change of the job; for `expect_version=`."""
        return self.row.version

    @property
    def kind_version(self) -> int:
        return self.row.kind_version

    @property
    def owner(self) -> str:
        return self.row.owner

    @property
    def queue(self) -> str:
        return self.row.queue

    @property
    def state(self) -> State:
        return State(self.row.state)

    @property
    def is_final(self) -> bool:
        return self.state in FINAL

    @property
    def priority(self) -> int:
        return priority_of(self.row.rank)

    @property
    def position(self) -> int:
        """Opaque: only its order among jobs of one queue and priority means anything."""
        return self.row.position

    @property
    def payload(self) -> dict[str, Any] | None:
        """The arguments as passed, without secret ones. None: the job was deleted and only its key is left.

        InvalidPayload: what is stored cannot be read.
        """
        return self._object("payload")

    @property
    def params(self) -> dict[str, Any]:
        return self._object("params") or {}

    @property
    def tags(self) -> tuple[str, ...]:
        joined = self.row.tags
        return tuple(sorted(joined.split(TAG_SEPARATOR))) if joined else ()

    @property
    def principal(self) -> str | None:
        return self.row.principal

    @property
    def idempotency_key(self) -> str | None:
        return self.row.idempotency_key

    @property
    def business_key(self) -> str | None:
        return self.row.business_key

    @property
    def attempts(self) -> int:
        return self.row.attempts

    @property
    def max_attempts(self) -> int:
        return self.row.max_attempts

    @property
    def crashes(self) -> int:
        return self.row.crashes

    @property
    def life(self) -> int:
        """1 at first; each retry by hand opens another."""
        return self.row.life

    @property
    def result(self) -> Any:
        return self._json("result")

    @property
    def error(self) -> str | None:
        """While live, the last attempt's; after the end, why it ended that way."""
        return self.row.error

    @property
    def error_type(self) -> str | None:
        return self.row.error_type

    @property
    def park_reason(self) -> str | None:
        return self.row.park_reason

    @property
    def cancel_requested(self) -> bool:
        return bool(self.row.cancel_requested)

    @property
    def waits_for(self) -> int:
        """How many jobs have to end before this one may start."""
        return self.row.waits_for

    @property
    def created_at(self) -> datetime:
        return to_datetime(self.row.created_at)

    @property
    def queued_at(self) -> datetime:
        return to_datetime(self.row.queued_at)

    @property
    def run_at(self) -> datetime:
        return to_datetime(self.row.run_at)

    @property
    def started_at(self) -> datetime | None:
        return _time(self.row.started_at)

    @property
    def finished_at(self) -> datetime | None:
        return _time(self.row.finished_at)

    @property
    def scheduled_for(self) -> datetime | None:
        return _time(self.row.scheduled_for)

    @property
    def retry_of(self) -> UUID | None:
        return _uuid(self.row.retry_of)

    @property
    def root_id(self) -> UUID | None:
        """The first of a chain of retries; None for a job that is no retry."""
        return _uuid(self.row.root_id)

    @property
    def parent_id(self) -> UUID | None:
        return _uuid(self.row.parent_id)

    @property
    def superseded_by(self) -> UUID | None:
        return _uuid(self.row.superseded_by)

    @property
    def successor(self) -> UUID | None:
        """The job that went on with this one's work (`Retry(as_new_job=True)`)."""
        return _uuid(self.row.successor)

    @property
    def node_id(self) -> UUID | None:
        return _uuid(self.row.node_id)

    @property
    def run_id(self) -> UUID | None:
        """The open run, while the job is running."""
        return _uuid(self.row.run_id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and self.row == other.row

    def __hash__(self) -> int:
        return hash(self.row.id)

    def __repr__(self) -> str:
        return f"<Job {self.id} {self.kind} {self.state}>"


_set = object.__setattr__
_STATES = frozenset(state.value for state in State)
_NO_ID = bytes(16)
_WHOLE: Damage = {}


def _time(micros: Micros | None) -> datetime | None:
    return None if micros is None else to_datetime(micros)


def _uuid(value: bytes | None) -> UUID | None:
    return None if value is None else to_uuid(value)


def _view_of_new(new: NewJob, position: int) -> JobView:
    """The view of a job that nothing has happened to yet."""
    plan = new.plan
    return JobView(
        id=new.id,
        kind=plan.kind,
        kind_version=plan.kind_version,
        owner=plan.owner,
        queue=plan.queue,
        payload=new.payload,
        params=plan.params,
        options=plan.options,
        principal=plan.principal,
        idempotency_key=new.idempotency_key,
        business_key=new.business_key,
        scheduled_for=None,
        parent_id=new.parent_id,
        root_id=None,
        retry_of=None,
        chain_attempt=1,
        created_at=new.created_at,
        state=new.state,
        rank=plan.rank,
        position=position,
        run_at=new.run_at,
        queued_at=new.created_at,
        started_at=None,
        finished_at=None,
        attempts=0,
        crashes=0,
        life=1,
        max_attempts=plan.max_attempts,
        node_id=None,
        run_id=None,
        waits_for=new.waits_for,
        cancel_requested=0,
        park_reason=None,
        error=None,
        error_type=None,
        result=None,
        superseded_by=None,
        successor=None,
        version=1,
        tags=TAG_SEPARATOR.join(sorted(plan.tags)) or None,
    )


class Run:
    """One attempt at a job, as recorded. Once closed it never changes."""

    __slots__ = ("_damage", "row")

    _damage: Damage
    row: RunRow
    """Every stored field, undecoded."""

    def __init__(self, row: RunRow, damage: Damage | None = None) -> None:
        object.__setattr__(self, "row", row)
        object.__setattr__(self, "_damage", damage or {})

    @classmethod
    def read(cls, columns: Sequence[object]) -> Run:
        """The run of a row in the database, whatever somebody has written into that."""
        row, damage = readable(RunRow, columns, keep="id")
        if row.state not in _RUN_STATES:
            damage["state"] = f"{row.state!r} is no state"
            row = row._replace(state=RunState.RUNNING.value if row.finished_at is None else RunState.LOST.value)
        return cls(row, damage)

    @property
    def unreadable(self) -> dict[str, str]:
        """What is wrong with the stored row, by column: a value that somebody else has written there. Empty: nothing.

        A number, time or id that cannot be one is shown as 0 or None here, artifacts and metrics as none.
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
        return to_uuid(bytes(16) if "id" in self._damage else self.row.id)

    @property
    def job_id(self) -> UUID:
        return to_uuid(self.row.job_id)

    @property
    def kind(self) -> str:
        return self.row.kind

    @property
    def state(self) -> RunState:
        return RunState(self.row.state)

    @property
    def node_id(self) -> UUID:
        return to_uuid(self.row.node_id)

    @property
    def attempt(self) -> int:
        return self.row.attempt

    @property
    def life(self) -> int:
        return self.row.life

    @property
    def started_at(self) -> datetime:
        return to_datetime(self.row.started_at)

    @property
    def finished_at(self) -> datetime | None:
        return None if self.row.finished_at is None else to_datetime(self.row.finished_at)

    @property
    def wait_ms(self) -> int:
        """How long the job could have started before it did."""
        return self.row.wait_ms

    @property
    def duration_ms(self) -> int | None:
        """By the monotonic clock of the node that ran it."""
        return self.row.duration_ms

    @property
    def exit_code(self) -> int | None:
        return self.row.exit_code

    @property
    def error_type(self) -> str | None:
        return self.row.error_type

    @property
    def error_message(self) -> str | None:
        return self.row.error_message

    @property
    def traceback(self) -> str | None:
        return self.row.traceback

    @property
    def artifacts(self) -> list[str]:
        return self._json("artifacts", list)[0] or []

    @property
    def log_path(self) -> str | None:
        return self.row.log_path

    @property
    def metrics(self) -> dict[str, Any]:
        return self._json("metrics", dict)[0] or {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and self.row == other.row

    def __hash__(self) -> int:
        return hash(self.row.id)

    def __repr__(self) -> str:
        return f"<Run {self.id} of {self.kind} attempt {self.attempt} {self.state}>"


_RUN_STATES = frozenset(state.value for state in RunState)
