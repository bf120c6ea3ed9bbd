"""How a job is to be enqueued: everything but its arguments. Used by `kind` and `app`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Any, Literal, TypedDict, cast, get_args

from perdure.clock import Micros, to_micros
from perdure.errors import InvalidInput, InvalidOption, not_among, shown
from perdure.job.model import Plan
from perdure.job.ordering import PRIORITY_LIMIT, rank_of
from perdure.job.retry import Retry
from perdure.lazy import lazy
from perdure.store.rows import EVERY_QUEUE

NAME_LIMIT = 128
KEY_LIMIT = 255
PARAMS_LIMIT = 64 * 1024
DEFAULT_RETRY = Retry()

Conflict = Literal["raise", "return"]
Until = Literal["final", "ever"]
_CONFLICT, _UNTIL = get_args(Conflict), get_args(Until)


class OptionFields(TypedDict, total=False):
    """The options of a job, for type checkers."""

    delay: float | timedelta | None
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
    timeout: float | timedelta | None
    unique: Unique | None
    tx: Any


@dataclass(frozen=True, slots=True)
class Unique:
    """Derives a key from the arguments, so that equal work is enqueued once.

    `by`: "payload" for all arguments, or the names of those that count. `until`: "final" for as long as such a job is
    live, "ever" for good. The job that is there already is returned, marked `deduplicated`, or raised as a conflict.
    """

    by: str | Sequence[str] = "payload"
    until: Until = "final"
    conflict: Conflict = "return"

    def __post_init__(self) -> None:
        if self.until not in _UNTIL:
            raise InvalidOption(not_among("Unique(until=)", self.until, _UNTIL), code="unique_invalid")
        _check_conflict(self.conflict)
        if not _are_texts(self.by):
            raise InvalidOption(
                f'Unique(by=) must be "payload" or the names of arguments, not {shown(self.by)}',
                code="unique_invalid",
            )

    @property
    def names(self) -> tuple[str, ...] | None:
        """The arguments that count; None: all."""
        if self.by == "payload":
            return None
        return (self.by,) if isinstance(self.by, str) else tuple(self.by)


@dataclass(frozen=True)
class Options:
    """Checked options. What the database needs of them is worked out once for all jobs enqueued with them."""

    delay: float | timedelta | None = None
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
    timeout: float | timedelta | None = None
    unique: Unique | None = None
    tx: Any = None

    def __post_init__(self) -> None:
        check_queue(self.queue)
        _check_integer(self.priority)
        _check_conflict(self.conflict)
        for what in ("idempotency_key", "business_key"):
            value = getattr(self, what)
            if value is not None:
                check_name(value, what, KEY_LIMIT)
        if self.principal is not None:
            check_name(self.principal, "principal", KEY_LIMIT)
        if self.delay is not None and self.run_at is not None:
            raise InvalidOption("give delay= or run_at=, not both: each says when the job may start")
        _check_unique(self.unique)
        object.__setattr__(self, "tags", _checked_tags(self.tags))
        object.__setattr__(self, "retry", Retry.of(self.retry))
        self.start_at(Micros(0))
        _ = self.params_json, self.timeout_ms

    def changed(self, changes: Mapping[str, Any]) -> Options:
        """These options with others in their place. An unknown name is refused."""
        for name in changes:
            if name not in OPTION_NAMES:
                raise unknown_option(name, OPTION_NAMES)
        return replace(self, **changes) if changes else self

    def start_at(self, now: Micros) -> Micros:
        """The earliest time the job may start."""
        if self.run_at is not None:
            return to_micros(_moment(self.run_at))
        if self.delay is None:
            return now
        return Micros(now + round(_seconds(self.delay, "delay") * 1_000_000))

    @lazy
    def policy(self) -> Retry:
        return Retry.of(self.retry)

    @lazy
    def timeout_ms(self) -> int | None:
        return None if self.timeout is None else max(1, round(_seconds(self.timeout, "timeout") * 1000))

    @lazy
    def params_json(self) -> str | None:
        if self.params is None:
            return None
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
        """What a retry by hand needs to know again, as JSON; None where all is as by default."""
        kept: dict[str, Any] = {}
        if self.policy != DEFAULT_RETRY:
            kept["retry"] = self.policy.to_json()
        if self.policy.as_new_job:
            kept["as_new_job"] = True
        if self.timeout_ms is not None:
            kept["timeout_ms"] = self.timeout_ms
        return json.dumps(kept, separators=(",", ":")) if kept else None

    def plan(self, names: tuple[str, ...], version: int, owner: str) -> Plan:
        """What every job of this kind enqueued with these options shares. `names[0]` is the kind's current name."""
        policy = self.policy
        plain = (self.params_json, self.stored, self.principal, self.timeout_ms) == (None,) * 4
        unbound = (self.idempotency_key, self.business_key, self.unique, self.delay, self.run_at) == (None,) * 5
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
            limit_key=None,
            tags=tuple(self.tags),
            conflict=self.conflict,
            names=names,
            plain=plain,
            direct=plain and unbound,
        )


OPTION_NAMES = tuple(field.name for field in fields(Options))


def unknown_option(name: str, known: Iterable[str]) -> InvalidOption:
    near = get_close_matches(name, list(known), n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
    return InvalidOption(f"there is no option {name!r}; {hint}", code="option_unknown")


def check_name(value: object, what: str, limit: int = NAME_LIMIT) -> str:
    """Refuse what cannot be a name: not text, empty, too long, or with characters no database keeps."""
    if not isinstance(value, str):
        raise InvalidOption(f"{what} must be text, not {type(value).__name__}", code="name_invalid", option=what)
    if not value.strip():
        raise InvalidOption(f"{what} is empty; give it a name", code="name_empty", option=what)
    if len(value) > limit:
        raise InvalidOption(
            f"{what} has {len(value)} characters, the limit is {limit}: {value[:40]!r}…",
            code="name_too_long",
            option=what,
        )
    if "\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value):
        raise InvalidOption(
            f"{what} contains a NUL or half a surrogate pair, which not every database keeps: {value[:40]!r}",
            code="name_invalid",
            option=what,
        )
    return value


def check_queue(value: object) -> str:
    """Refuse what cannot be the name of one queue."""
    name = check_name(value, "queue")
    if name == EVERY_QUEUE:
        raise InvalidOption(
            f"queue {name!r} would be all of them, so none can be called that; a worker that is given no queues serves"
            " all",
            code="name_invalid",
            option="queue",
        )
    if name.startswith("-"):
        raise InvalidOption(
            f"queue {name!r} would be taken for an option where commands are typed; choose another name",
            code="name_invalid",
            option="queue",
        )
    return name


def listed(items: object, wanted: str) -> list[Any]:
    """The items of what has to be a list, or anything else that can be gone through."""
    if not isinstance(items, Iterable):
        raise InvalidInput(f"expected {wanted}, not {shown(items)}")
    return list(cast("Iterable[Any]", items))  # type: ignore[redundant-cast]  # for pyright


def _are_texts(by: object) -> bool:
    if isinstance(by, str):
        return True
    return isinstance(by, Iterable) and all(isinstance(name, str) for name in cast("Iterable[object]", by))


def _check_unique(unique: object) -> None:
    if unique is not None and not isinstance(unique, Unique):
        raise InvalidOption(
            f'unique must be Unique(by="payload") or the like, not {shown(unique)}', code="unique_invalid"
        )


def _checked_tags(tags: object) -> tuple[str, ...]:
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        given = shown(tags)
        raise InvalidOption(f"tags must be a list of texts, not {given}; write tags=[{given}]", code="tags_invalid")
    checked = [check_name(tag, "tag") for tag in cast("Iterable[object]", tags)]
    if any("\x1f" in tag for tag in checked):
        raise InvalidOption("a tag contains the unit separator U+001F; leave it out", code="tags_invalid")
    return tuple(dict.fromkeys(checked))


def _check_integer(priority: object) -> None:
    if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) > PRIORITY_LIMIT:
        raise InvalidOption(
            f"priority must be a whole number between ±{PRIORITY_LIMIT}, not {shown(priority)}",
            code="priority_invalid",
            option="priority",
        )


def _check_conflict(conflict: object) -> None:
    if conflict not in _CONFLICT:
        raise InvalidOption(not_among("conflict", conflict, _CONFLICT), code="conflict_invalid")


def _moment(value: object) -> datetime:
    if not isinstance(value, datetime):
        raise InvalidOption(
            f"run_at must be a datetime with a time zone, not {shown(value)}; for seconds from now use delay=",
            code="run_at_invalid",
            option="run_at",
        )
    return value


def for_a_job(options: OptionFields) -> OptionFields:
    """Refuse what a stored job cannot carry: exception classes are code and stay with the kind."""
    retry = options.get("retry")
    if isinstance(retry, Retry) and (retry.on is not None or retry.never):
        raise InvalidOption(
            "retry= for a single job cannot have on= or never=: they name code; give them to the kind (@app.job)",
            code="retry_invalid",
        )
    return options


def _seconds(value: object, what: str) -> float:
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 10**10:
        raise InvalidOption(
            f"{what} must be seconds (a number, not negative) or a timedelta, not {shown(value)}",
            code=f"{what}_invalid",
            option=what,
        )
    return float(value)
