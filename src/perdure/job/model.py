"""The values that app, transitions and store exchange. Ids are 16 bytes, times integer microseconds UTC.

Rows are named tuples with one field per column, in column order: drivers take and return tuples, and a frozen dataclass
of this width costs ten times as much to build.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Sequence
from enum import IntEnum
from functools import cache
from typing import Any, NamedTuple, NoReturn, TypeVar, cast

from perdure.clock import Micros, to_datetime
from perdure.errors import InvalidInput
from perdure.ids import FlowId, JobId, NodeId, RunId
from perdure.job.flow import Edge
from perdure.job.states import RunState, State, Verb

R = TypeVar("R")


class JobRow(NamedTuple):
    """The cold row: what a job is. Never changes after the first claim."""

    id: JobId
    kind: str
    kind_version: int
    owner: str
    queue: str
    payload: str
    secrets: str | None
    params: str | None
    options: str | None
    principal: str | None
    idempotency_key: str | None
    business_key: str | None
    template_id: bytes | None
    schedule_id: bytes | None
    scheduled_for: Micros | None
    sequence: int | None
    parent_id: JobId | None
    root_id: JobId | None
    retry_of: JobId | None
    auto_retry_of: JobId | None
    chain_attempt: int
    created_at: Micros
    template_version: int | None = None
    flow_id: FlowId | None = None
    refs: str | None = None
    limit_key: str | None = None

    def __repr__(self) -> str:
        return without_secrets(self)


class LiveJob(NamedTuple):
    """The hot row: the state of a live job. Deleted when the job ends.

    In this order because of claims, which run for every job: first what differs from one queued job to the next, then
    what is the same in all of them (`QUEUED`), of which a claim changes the columns from `state` on.
    """

    job_id: JobId
    kind: str
    kind_version: int
    rank: int
    position: int
    run_at: Micros
    queued_at: Micros
    crashes: int
    life: int
    max_attempts: int
    as_new_job: int
    timeout_ms: int | None
    limit_key: str | None
    business_key: str | None
    last_error: str | None
    flow_id: FlowId | None
    traits: int
    queue: str
    waits_for: int
    superseded_by: JobId | None
    paused: int
    cancel_requested: int
    state: str
    node_id: NodeId | None
    run_id: RunId | None
    claimed_at: Micros | None
    deadline_at: Micros | None
    park_reason: str | None
    held_by: str | None
    started_at: Micros | None
    attempts: int
    updated_at: Micros
    version: int


class Waiter(NamedTuple):
    """What decides whether a live job may go on when others end that it waits for: these columns of its row. Most ends
    in a graph let such jobs go on, and the other columns would cost as much as all else about that."""

    job_id: JobId
    queue: str
    state: str
    run_at: Micros
    queued_at: Micros
    limit_key: str | None
    paused: int
    waits_for: int
    traits: int
    version: int


QUEUED: dict[str, Any] = {
    "waits_for": 0,
    "superseded_by": None,
    "paused": 0,
    "cancel_requested": 0,
    "state": "queued",
    "node_id": None,
    "run_id": None,
    "claimed_at": None,
    "deadline_at": None,
    "park_reason": None,
    "held_by": None,
}
"""What every queued job holds in these columns, so that a claim need not read them: `sqlite3` gives up the
interpreter's lock for each column of each row, and one costs it as much as ten calls of a function."""


class Plan(NamedTuple):
    """What all jobs enqueued with the same kind and options share; computed once.

    `names` are all names of the kind, current first: a key used under an old name still counts.
    """

    kind: str
    kind_version: int
    owner: str
    queue: str
    params: str | None
    options: str | None
    principal: str | None
    rank: int
    max_attempts: int
    as_new_job: int
    timeout_ms: int | None
    limit_key: str | None
    tags: tuple[str, ...]
    conflict: str
    names: tuple[str, ...]
    plain: bool = False
    """No params, options, principal, timeout or limit: most of the columns stay empty."""
    direct: bool = False
    """Plain, without a key, and to start at once."""


def plan_json(plan: Plan) -> str:
    """The text in which templates and schedules keep a plan."""
    return json.dumps(plan._asdict(), ensure_ascii=False, separators=(",", ":"))


def plan_of(text: str) -> Plan:
    """The plan that `plan_json` wrote, in this or another release.

    Fields that only a newer release knows are ignored; those that an older one did not know get their default.
    ValueError: it cannot be read, or a field without a default is missing.
    """
    read = json_of(text)
    stored = cast("dict[str, Any]", read) if isinstance(read, dict) else {}
    known: dict[str, Any] = Plan._field_defaults | {name: stored[name] for name in Plan._fields if name in stored}
    missing = [name for name in Plan._fields if name not in known]
    if missing:
        raise ValueError(f"the stored plan {_cut(text)} has no {', '.join(missing)}")
    known |= {name: tuple(known[name]) for name in ("tags", "names")}
    return Plan(**known)


class Origin(NamedTuple):
    """What a job was made from: a template as it was, a slot of a schedule, or both."""

    template_id: bytes | None = None
    template_version: int | None = None
    schedule_id: bytes | None = None
    scheduled_for: Micros | None = None


class NewJob(NamedTuple):
    """A job that does not exist yet. The store gives it its place in the queue."""

    id: JobId
    plan: Plan
    payload: str
    secrets: str | None
    created_at: Micros
    run_at: Micros
    state: str
    idempotency_key: str | None = None
    business_key: str | None = None
    fingerprint: str | None = None
    waits_for: int = 0
    parent_id: JobId | None = None
    """The job whose handler asked for this one."""
    origin: Origin | None = None
    after: tuple[Edge, ...] = ()
    """What it waits for."""
    flow_id: FlowId | None = None
    """The flow it belongs to."""
    sequence: int | None = None
    """Its number among the members of its flow. None: the flow does not count it (a callback, which waits for it)."""
    refs: str | None = None
    """Arguments that are results of others, and the condition for it to run: JSON text of `references`."""
    traits: int = 0
    """Set by the store."""

    def as_member(self, flow_id: FlowId, sequence: int) -> NewJob:
        """The same job as a member of this flow. A _replace costs four times as much."""
        return NewJob._make((*self[:_FLOW], flow_id, sequence, *self[_FLOW + 2 :]))

    def with_parents(self, after: tuple[Edge, ...], refs: str | None) -> NewJob:
        """The same job, which waits for these, and takes these results."""
        return NewJob._make((*self[:_AFTER], after, *self[_AFTER + 1 : _REFS], refs, *self[_REFS + 1 :]))

    def __repr__(self) -> str:
        return without_secrets(self)


_AFTER, _FLOW, _REFS = map(NewJob._fields.index, ("after", "flow_id", "refs"))


class JobView(NamedTuple):
    """Everything about a job but its secrets; the columns of the `job_view` fragment, in order."""

    id: JobId
    kind: str
    kind_version: int
    owner: str
    queue: str
    payload: str | None
    params: str | None
    options: str | None
    principal: str | None
    idempotency_key: str | None
    business_key: str | None
    template_id: bytes | None
    template_version: int | None
    schedule_id: bytes | None
    scheduled_for: Micros | None
    flow_id: FlowId | None
    sequence: int | None
    parent_id: JobId | None
    root_id: JobId | None
    retry_of: JobId | None
    chain_attempt: int
    created_at: Micros
    state: str
    rank: int
    position: int
    run_at: Micros
    queued_at: Micros
    started_at: Micros | None
    finished_at: Micros | None
    attempts: int
    crashes: int
    life: int
    max_attempts: int
    node_id: NodeId | None
    run_id: RunId | None
    waits_for: int
    cancel_requested: int
    park_reason: str | None
    error: str | None
    error_type: str | None
    result: str | None
    superseded_by: JobId | None
    successor: JobId | None
    version: int
    tags: str | None


class RunRow(NamedTuple):
    """One attempt, as recorded."""

    id: RunId
    job_id: JobId
    state: str
    node_id: NodeId
    attempt: int
    life: int
    started_at: Micros
    finished_at: Micros | None
    wait_ms: int
    duration_ms: int | None
    exit_code: int | None
    error_type: str | None
    error_message: str | None
    traceback: str | None
    artifacts: str | None
    log_path: str | None
    metrics: str | None
    kind: str


class OutcomeRow(NamedTuple):
    """How a life of a job ended. Inserted once, never changed."""

    job_id: JobId
    life: int
    state: str
    finished_at: Micros
    rank: int
    position: int
    run_at: Micros
    queued_at: Micros
    started_at: Micros | None
    attempts: int
    crashes: int
    max_attempts: int
    result: str | None
    error_type: str | None
    error: str | None
    superseded_by: JobId | None
    successor: JobId | None
    version: int


class Claim(NamedTuple):
    """A claimed job: the live row after the claim, and what its handler needs."""

    live: LiveJob
    payload: str
    secrets: str | None
    params: str | None
    options: str | None
    principal: str | None
    owner: str
    created_at: Micros
    refs: str | None = None

    @property
    def job_id(self) -> JobId:
        return self.live.job_id

    @property
    def run_id(self) -> RunId:
        assert self.live.run_id is not None
        return self.live.run_id

    def __repr__(self) -> str:
        return without_secrets(self)


_NONE_YET = ("attempts", "crashes", "paused", "cancel_requested", "traits")
_NEW = {**dict.fromkeys(_NONE_YET, 0), "life": 1, "chain_attempt": 1, "version": 1}


def row_of_new(sort: type[R], new: NewJob, **known: object) -> R:
    """The row of this type for a new job. Unknown columns are None."""
    fields = {**_NEW, **new.plan._asdict(), **new._asdict(), "job_id": new.id, "queued_at": new.created_at}
    fields |= {"updated_at": new.created_at, **(new.origin._asdict() if new.origin else {}), **known}
    make: Any = sort
    row: R = make._make(map(fields.get, make._fields))
    return row


def without_secrets(row: Any) -> str:
    """The repr of a named tuple for logs and tracebacks: it hides the secret arguments."""
    fields: dict[str, object] = row._asdict() | {"secrets": None if row.secrets is None else "hidden"}
    return f"{type(row).__name__}({', '.join(f'{name}={value!r}' for name, value in fields.items())})"


class Failure(NamedTuple):
    """What went wrong in an attempt. `permanent`: another attempt would not help."""

    error_type: str
    message: str
    traceback: str | None = None
    permanent: bool = False


class RunStats(NamedTuple):
    """What an executor knows about a run besides how it ended."""

    duration_ms: int | None = None
    exit_code: int | None = None
    log_path: str | None = None
    metrics: str | None = None


NO_STATS = RunStats()


class RunClosing(NamedTuple):
    """How an open run closes; the parameters of `close_run`, in order."""

    state: str
    finished_at: Micros
    duration_ms: int | None
    exit_code: int | None
    error_type: str | None
    error_message: str | None
    traceback: str | None
    log_path: str | None
    metrics: str | None
    run_id: RunId


class Successor(NamedTuple):
    """The job that continues an ended one's work under a new id (`Retry(as_new_job=True)`)."""

    live: LiveJob
    auto_retry_of: JobId


class Transition(NamedTuple):
    """One decided change of one job: the only way a live job is ever written.

    Applied in one transaction or not at all, and only if the job still has the version that the decision was based on.
    """

    verb: Verb
    before: LiveJob
    after: LiveJob | None = None
    run: RunClosing | None = None
    outcome: OutcomeRow | None = None
    successor: Successor | None = None

    @property
    def target(self) -> State:
        if self.after is not None:
            return State(self.after.state)
        assert self.outcome is not None
        return State(self.outcome.state)

    @property
    def run_state(self) -> RunState | None:
        return None if self.run is None else RunState(self.run.state)


# -- the order inside a queue: rank, position, id ----------------------------------------------------------------------

GAP = 100
"""Positions rise by this much, so that a job can be moved between two others without touching them."""

RESPACE = 64
"""How many neighbours may be renumbered when a gap is used up."""

PRIORITY_LIMIT = 2**31 - 1


class Priority(IntEnum):
    """Names for the usual priorities. Any 32-bit integer is allowed; higher goes first."""

    LOWEST = -2
    LOW = -1
    NORMAL = 0
    HIGH = 1
    CRITICAL = 2


def rank_of(priority: int) -> int:
    """The stored form of a priority: smaller first, so that one ascending index serves the claim."""
    return -priority


def priority_of(rank: int) -> int:
    return -rank


def between(left: int | None, right: int | None) -> int | None:
    """A position strictly between two neighbours (None: there is no neighbour). Returns None if the gap is used up."""
    if left is None and right is None:
        return GAP
    if left is None:
        assert right is not None
        return right - GAP
    if right is None:
        return left + GAP
    middle = (left + right) // 2
    return middle if left < middle < right else None


# -- rows that other programs may have changed ------------------------------------------------------------------------


Damage = dict[str, str]
"""Column name → what is wrong with its value."""


def readable(sort: type[R], row: Sequence[object], keep: str = "") -> tuple[R, Damage]:
    """The row for display, and which of its values are impossible.

    An SQLite column accepts a value of any type, and any column a number that is no time or count. Such a value is
    replaced by None where that is allowed, else by 0, an empty id or the value as text, so that this row and the others
    can be shown. The column `keep` is not changed: the next page continues from there.
    """
    damage: Damage = {}
    values = list(row)
    for at, (name, optional, (fits, what, instead)) in enumerate(_columns(cast("Hashable", sort))):
        if (optional and values[at] is None) or fits(values[at]):
            continue
        damage[name] = f"{_cut(values[at])} is no {what}"
        if name != keep:
            values[at] = None if optional else instead(values[at])
    make: Any = sort
    row_of_sort: R = make._make(values)
    return row_of_sort, damage


def json_of(text: str | None) -> Any:
    """The value in a JSON column; None if it is empty. ValueError: it cannot be read."""
    try:
        return None if text is None else _JSON.decode(text)
    except RecursionError:
        raise ValueError("it is nested too deeply to be read") from None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_JSON = json.JSONDecoder(parse_constant=_refuse)


@cache
def _columns(sort: Any) -> Sequence[tuple[str, bool, _Sort]]:
    """Each column's name, whether it may be empty, and which values it takes."""
    written: dict[str, Any] = sort.__annotations__  # as text: a named tuple keeps them unresolved
    texts = {name: str(getattr(type_, "__forward_arg__", type_)) for name, type_ in written.items()}
    return [
        (name, text.endswith(" | None"), _SORTS.get(text.removesuffix(" | None"), _ANYTHING))
        for name, text in texts.items()
    ]


def _is_time(value: Any) -> bool:
    try:
        to_datetime(Micros(value))
    except (InvalidInput, TypeError):
        return False
    return isinstance(value, int)


def _cut(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


_Sort = tuple[Callable[[Any], bool], str, Callable[[Any], object]]
"""Which values a type of column takes, what they are called, and what is shown in place of another one."""
_ANYTHING: _Sort = (lambda _: True, "", _cut)
_ID: _Sort = (lambda value: isinstance(value, bytes) and len(value) == 16, "id", lambda _: bytes(16))
_SORTS: dict[str, _Sort] = {
    "str": (lambda value: isinstance(value, str), "text", _cut),
    "int": (lambda value: isinstance(value, int), "whole number", lambda _: 0),
    "Micros": (_is_time, "time in microseconds", lambda _: 0),
    **dict.fromkeys(("bytes", "JobId", "RunId", "NodeId", "FlowId"), _ID),
}
