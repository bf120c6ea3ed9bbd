"""The options of a job: everything but its arguments. Used by `kind` and `app`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any, Literal, TypedDict, cast, get_args
from uuid import UUID

from perdure.checks import (
    KEY_LIMIT,
    Span,
    check_choice,
    check_known,
    check_name,
    check_names,
    check_span,
    check_time,
    check_type,
    check_whole,
    refused,
)
from perdure.clock import Micros
from perdure.errors import InvalidOption, shown
from perdure.flow.planned import Awaited, Reference
from perdure.ids import parse_id
from perdure.job.flow import Edge, NeedsName
from perdure.job.model import PRIORITY_LIMIT, Plan, rank_of
from perdure.job.retry import Retry
from perdure.job.views import Job
from perdure.lazy import Lazy, lazy
from perdure.limit.rule import Limit, Rate, Rule, is_fixed, listed, needs
from perdure.store.rows import EVERY_QUEUE
from perdure.words_of_others import OPTIONS

PARAMS_LIMIT = 64 * 1024
DEFAULT_RETRY = Retry()

principal: ContextVar[str | None] = ContextVar("perdure.principal", default=None)
"""Who is at work in this thread or task: `principal.set("ann")`. Jobs enqueued then are for this principal, unless an
option says otherwise, and what is done to jobs by hand is logged with it."""

AwaitedLike = Job | Awaited | UUID | str
After = AwaitedLike | tuple[AwaitedLike, NeedsName] | Sequence[AwaitedLike | tuple[AwaitedLike, NeedsName]] | None
"""What a job waits for: jobs and flows, by themselves or by id, each perhaps with the end it must have."""
Conflict = Literal["raise", "return"]
Until = Literal["final", "ever"]
_CONFLICT, _UNTIL, _NEEDS = get_args(Conflict), get_args(Until), get_args(NeedsName)


class OptionFields(TypedDict, total=False):
    """The options of a job, for `@app.job(…)`, `kind.options(…)` and `app.enqueue(…)`; explained in docs/jobs.md."""

    delay: Span | None
    run_at: datetime | None
    priority: int
    queue: str
    idempotency_key: str | None
    business_key: str | None
    conflict: Conflict
    tags: Sequence[str]
    principal: str | None
    params: Mapping[str, Any] | None
    retry: Retry | int
    timeout: Span | None
    unique: Unique | None
    limit: Limit | Sequence[Limit] | None
    rate: Rate | Sequence[Rate] | None
    after: After
    on: NeedsName | None
    tx: Any


@dataclass(frozen=True, slots=True)
class Unique:
    """Derives a key from the arguments, so that equal work is enqueued once.

    `by`: "payload" for all arguments, or the names of those that count. `until`: "final" while such a job is live,
    "ever" for ever. The existing job is returned, marked `deduplicated`, or a KeyConflict is raised.
    """

    by: str | Sequence[str] = "payload"
    until: Until = "final"
    conflict: Conflict = "return"

    def __post_init__(self) -> None:
        check_choice(self.until, "Unique(until=)", _UNTIL, code="unique_invalid")
        check_choice(self.conflict, "conflict", _CONFLICT, code="conflict_invalid")
        if not _are_texts(self.by):
            raise refused("Unique(by=)", '"payload" or the names of arguments', self.by, code="unique_invalid")

    @property
    def names(self) -> tuple[str, ...] | None:
        """The arguments that count; None: all."""
        if self.by == "payload":
            return None
        return (self.by,) if isinstance(self.by, str) else tuple(self.by)


@dataclass(frozen=True)
class Options(Lazy):
    """Checked options. What the database needs of them is computed once for all jobs enqueued with them."""

    delay: Span | None = None
    run_at: datetime | None = None
    priority: int = 0
    queue: str = "default"
    idempotency_key: str | None = None
    business_key: str | None = None
    conflict: Conflict = "raise"
    tags: Sequence[str] = ()
    principal: str | None = None
    params: Mapping[str, Any] | None = None
    retry: Retry | int = DEFAULT_RETRY
    timeout: Span | None = None
    unique: Unique | None = None
    limit: Limit | Sequence[Limit] | None = None
    rate: Rate | Sequence[Rate] | None = None
    after: After = None
    on: NeedsName | None = None
    tx: Any = None

    def __post_init__(self) -> None:
        check_queue(self.queue)
        any_priority = f"a whole number between ±{PRIORITY_LIMIT}"
        code = "priority_invalid"
        check_whole(self.priority, "priority", -PRIORITY_LIMIT, PRIORITY_LIMIT, must_be=any_priority, code=code)
        check_choice(self.conflict, "conflict", _CONFLICT, code="conflict_invalid")
        for what in ("idempotency_key", "business_key", "principal"):
            value = getattr(self, what)
            if value is not None:
                check_name(value, what, KEY_LIMIT)
        if self.delay is not None and self.run_at is not None:
            raise InvalidOption("give delay= or run_at=, not both: each says when the job may start")
        check_type(self.unique, "unique", Unique | None, 'Unique(by="payload") or the like', code="unique_invalid")
        object.__setattr__(self, "tags", check_names(self.tags, "tags", _check_tag, of="texts", code="tags_invalid"))
        object.__setattr__(self, "retry", Retry.of(self.retry))
        self.start_at(Micros(0))
        _ = self.params_json, self.timeout_ms, self.rules, self.edges

    def changed(self, changes: Mapping[str, Any]) -> Options:
        """These options with some replaced. An unknown name is refused."""
        check_known(changes, OPTION_NAMES, words_of_others=OPTIONS)
        return replace(self, **changes) if changes else self

    def start_at(self, now: Micros) -> Micros:
        """The earliest time the job may start."""
        if self.run_at is not None:
            return check_time(self.run_at, "run_at", code="run_at_invalid", hint="; for seconds from now use delay=")
        if self.delay is None:
            return now
        return Micros(now + round(_seconds(self.delay, "delay") * 1_000_000))

    @lazy
    def edges(self) -> tuple[Edge, ...]:
        """What the job waits for."""
        return edges_of(self.after, self.on)

    @lazy
    def policy(self) -> Retry:
        return Retry.of(self.retry)

    @lazy
    def rules(self) -> tuple[Rule, ...]:
        """The limits and rates together."""
        return listed(self.limit, self.rate)

    @lazy
    def timeout_ms(self) -> int | None:
        return None if self.timeout is None else max(1, round(_seconds(self.timeout, "timeout") * 1000))

    @lazy
    def params_json(self) -> str | None:
        if self.params is None:
            return None
        if not isinstance(cast("Any", self.params), Mapping):
            raise refused("params", "a dict of JSON data", self.params, code="params_not_json")
        try:
            text = json.dumps(dict(self.params), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
            size = len(text.encode())
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidOption(
                f"params= must be JSON data with text keys ({error}); pass plain text, numbers, lists and dicts",
                code="params_not_json",
            ) from None
        if size > PARAMS_LIMIT:
            raise InvalidOption(
                f"params= has {size} bytes, the limit is {PARAMS_LIMIT}; put the data into the arguments or a file",
                code="params_too_large",
            )
        return text

    @lazy
    def stored(self) -> str | None:
        """The options that a retry by hand reads again, as JSON; None: all are defaults."""
        kept: dict[str, Any] = {}
        if self.policy != DEFAULT_RETRY:
            kept["retry"] = self.policy.to_json()
        if self.policy.as_new_job:
            kept["as_new_job"] = True
        if self.timeout_ms is not None:
            kept["timeout_ms"] = self.timeout_ms
        return json.dumps(kept, separators=(",", ":")) if kept else None

    def plan(self, names: tuple[str, ...], version: int, owner: str) -> Plan:
        """What all jobs of this kind with these options share. `names[0]` is the kind's current name."""
        policy = self.policy
        plain = (self.params_json, self.stored, self.principal, self.timeout_ms) == (None,) * 4 and not self.rules
        unbound = (self.idempotency_key, self.business_key, self.unique, self.delay, self.run_at) == (None,) * 5
        unbound = unbound and not self.edges
        return Plan(
            kind=names[0],
            kind_version=version,
            owner=owner,
            queue=self.queue,
            params=self.params_json,
            options=self.stored,
            principal=self.principal,
            rank=rank_of(self.priority),
            max_attempts=policy.max_attempts,
            as_new_job=int(policy.as_new_job),
            timeout_ms=self.timeout_ms,
            limit_key=needs(self.rules, names[0], "{}") if is_fixed(self.rules) else None,
            tags=tuple(self.tags),
            conflict=self.conflict,
            names=names,
            plain=plain,
            direct=plain and unbound,
        )


OPTION_NAMES = tuple(field.name for field in fields(Options))


def check_queue(value: object) -> str:
    """Refuse what cannot be the name of one queue."""
    name = check_name(value, "queue")
    if name == EVERY_QUEUE:
        raise InvalidOption(
            f"queue {name!r} means all queues, so no single queue can have this name; a worker without queues= serves"
            " all of them",
            code="name_invalid",
            option="queue",
        )
    if name.startswith("-"):
        raise InvalidOption(
            f"queue {name!r} looks like an option on the command line; choose another name",
            code="name_invalid",
            option="queue",
        )
    return name


def edges_of(after: Any, on: NeedsName | None) -> tuple[Edge, ...]:
    """What `after=` and `on=` say: each job or flow once. InvalidOption: they are no such thing."""
    if on is not None:
        check_choice(on, "on", _NEEDS, code="on_invalid")
    if after is None:
        if on is not None:
            raise InvalidOption(f"on={on!r} without after=: say what the job waits for", code="on_invalid")
        return ()
    listed: list[Any] = [after] if isinstance(after, str) or _is_pair(after) or not _is_listed(after) else [*after]
    edges: dict[bytes, Edge] = {}
    usual = on or "success"
    for one in listed:
        what: Any = one
        needs = usual
        if _is_pair(one):
            what, named = one
            needs = check_choice(named, "on", _NEEDS, code="on_invalid")
        depends_on = what.raw_id if isinstance(what, Awaited) else awaited_id(what)
        known = edges.get(depends_on)
        if known is None:
            edges[depends_on] = Edge(depends_on, needs)
        elif known.needs != needs:
            raise InvalidOption(
                f"after= names {shown(what)} twice, with different ends; name it once", code="after_invalid"
            )
    return tuple(edges.values())


def _is_listed(value: object) -> bool:
    return not _is_record(value) and not isinstance(value, Reference) and isinstance(value, Iterable)


def _is_record(value: object) -> bool:
    """Such as a draft."""
    return isinstance(value, tuple) and type(cast("object", value)) is not tuple


def _is_pair(value: object) -> bool:
    """(job, "end"). A tuple of two jobs is none."""
    if not isinstance(value, tuple) or len(cast("tuple[object, ...]", value)) != 2:
        return False
    what, needs = cast("tuple[object, object]", value)
    return isinstance(needs, str) and (needs in _NEEDS or not isinstance(what, str))


def awaited_id(what: object) -> bytes:
    """The id of a job or flow that a job waits for."""
    match what:
        case Job():
            return what.row.id
        case Awaited():
            return what.raw_id
        case UUID() | str():
            return parse_id(what)
        case _:
            must_be = 'jobs, flows or ids of them, or pairs as in (job, "end")'
            is_job = hasattr(what, "enqueue") or hasattr(what, "arguments")  # a kind, or a draft
            hint = "; enqueue it first, as in first = send.enqueue(…), and say after=first" if is_job else ""
            raise refused("after", must_be, what, code="after_invalid", hint=hint)


def _are_texts(values: object) -> bool:
    return isinstance(values, Iterable) and all(isinstance(name, str) for name in cast("Iterable[object]", values))


def _check_tag(tag: object) -> str:
    if "\x1f" in check_name(tag, "tag"):
        raise InvalidOption("a tag contains the unit separator U+001F; leave it out", code="tags_invalid")
    return cast("str", tag)


def for_a_job(options: OptionFields) -> OptionFields:
    """Refuse what cannot be stored with a job: exception classes are code and belong to the kind."""
    retry = options.get("retry")
    if isinstance(retry, Retry) and (retry.on is not None or retry.never):
        raise InvalidOption(
            "retry= for a single job cannot have on= or never=: they name code; give them to the kind (@app.job)",
            code="retry_invalid",
        )
    return options


def for_a_kind(options: OptionFields) -> OptionFields:
    """Refuse what only a single job can have."""
    for name in ("tx", "idempotency_key", "run_at", "after", "on"):
        if options.get(name) is not None:
            raise InvalidOption(
                f"{name}= belongs to a single job, not to a kind; pass it with .options({name}=…)",
                code="option_invalid",
            )
    return options


def _seconds(value: object, what: str) -> float:
    return check_span(value, what, 0, 10**10, code=f"{what}_invalid")
