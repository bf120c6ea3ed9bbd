"""`app.schedules`, `app.trigger` and `@app.schedule`: when jobs are made by the clock. Calls the store.

Only workers take instants that are due; everything here works in any process.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack, cast
from uuid import UUID
from zoneinfo import ZoneInfo

from perdure.checks import Span, check_known, check_name, check_time, check_type, check_whole
from perdure.clock import Micros, to_datetime
from perdure.enqueue import limited
from perdure.errors import (
    DatabaseBusy,
    InvalidOption,
    KindError,
    PerdureError,
    Remedy,
    ScheduleError,
    TransitionRefused,
    shown,
)
from perdure.ids import JobId, to_uuid
from perdure.job import transitions
from perdure.job.model import json_of, plan_json, plan_of
from perdure.job.retry import Retry
from perdure.job.states import Verb
from perdure.job.views import Job
from perdure.kind import Kind, place_of
from perdure.listing import pages
from perdure.options import OptionFields
from perdure.schedule.definition import (
    BY_HAND,
    REMOVED,
    Definition,
    enabled_again,
    firing_of,
    is_retimed,
    new_row,
    new_slot,
    own_options,
    policy_of,
    revised,
    switched,
    trigger_of,
)
from perdure.schedule.policy import CatchUp, Overlap, Policy, planned
from perdure.schedule.trigger import Trigger
from perdure.store.rows import Missed, ScheduleRow, SlotRow
from perdure.store.template import archived
from perdure.templates import job_from_template
from perdure.worker.lifecycle import is_logged, log_schedule, log_verb

if TYPE_CHECKING:
    from perdure.app import Perdure

ROUNDS = 10
"""How often a change is made again because someone else was faster."""
DESCRIPTION_LIMIT = 1_000
LAST = Micros(253_402_300_799_999_999)
"""The end of the year 9999."""
CANCELLED_AT_ONCE = 100

K = TypeVar("K", bound=Kind[..., Any, ..., Any])


class ScheduleFields(TypedDict, total=False):
    """What a schedule may say besides its name, its cron expression and its arguments, for type checkers."""

    every: Span | None
    at: datetime | None
    tz: str | None
    start: datetime | None
    end: datetime | None
    catch_up: CatchUp
    overlap: Overlap
    misfire_grace: Span
    catch_up_limit: int
    catch_up_window: Span
    jitter: Span
    max_runtime: Span | None
    at_most_once: bool
    description: str | None
    enabled: bool
    priority: int
    queue: str
    tags: Sequence[str]
    principal: str | None
    params: Mapping[str, Any] | None
    retry: Retry | int
    timeout: Span | None


_TIMING = ("every", "at", "tz", "start", "end")
_POLICY = (
    *("catch_up", "overlap", "misfire_grace", "catch_up_limit", "catch_up_window"),
    *("jitter", "max_runtime", "at_most_once"),
)
_JOB = ("priority", "queue", "tags", "principal", "params", "retry", "timeout")


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule as it was when it was read."""

    id: UUID
    name: str
    kind: str
    payload: Mapping[str, Any]
    trigger: Trigger | None
    """None: it cannot be understood; `problem` says why."""
    policy: Policy
    enabled: bool
    disabled_reason: str | None
    problem: str | None
    """Why it rests though it is enabled."""
    description: str | None
    source: str
    """Where it comes from: "code", "api", or "builtin" for upkeep."""
    owner: str
    last_trigger_at: datetime | None
    next_trigger_at: datetime | None
    created_at: datetime
    version: int

    @property
    def words(self) -> str:
        """When it runs, for people."""
        return "cannot be understood" if self.trigger is None else self.trigger.describe()


@dataclass(frozen=True, slots=True)
class Slot:
    """A planned instant that was taken. `status` is the state of its job, or of the upkeep that took it."""

    scheduled_for: datetime
    previous: datetime | None
    """The planned instant before it: the work of this slot is about the time since then."""
    following: datetime | None
    status: str
    job_id: UUID | None
    node_id: UUID | None
    """The worker that took it; None: someone by hand."""
    note: Mapping[str, Any]
    taken_at: datetime


@dataclass(frozen=True, slots=True)
class MissedSlots:
    """Planned instants, from the first to the last, that nobody took. `count` None: more than were counted."""

    first: datetime
    last: datetime
    count: int | None
    reason: str
    recorded_at: datetime


class Schedules:
    """Make, change, look at and switch schedules. The name is how people call one; it can be changed, the id cannot."""

    def __init__(self, app: Perdure) -> None:
        self._app = app

    # -- change ------------------------------------------------------------------------------------------------------

    def put(
        self,
        name: str,
        cron: str | None = None,
        *,
        kind: str | Kind[..., Any, ..., Any] | None = None,
        template: str | None = None,
        payload: Mapping[str, Any] | None = None,
        expect_version: int | None = None,
        **fields: Unpack[ScheduleFields],
    ) -> Schedule:
        """Make a schedule, or make the one of this name what is said here. A repeat changes nothing.

        Its jobs are of a `kind`, or made from a `template` as that is at the time; `payload` are arguments, with a
        template those that differ. What was due before a change is taken first, as it was planned then.
        `expect_version`: only if it still has this version.
        """
        if (kind is None) == (template is None):
            raise ScheduleError("say what to run: kind= or template=, one of them", code="schedule_invalid")
        if template is not None:
            definition = definition_from_template(self._app, name, cron, template, payload or {}, fields)
        else:
            assert kind is not None
            definition = definition_of(self._app, name, cron, kind, payload, fields)

        def change(row: ScheduleRow | None, now: Micros) -> ScheduleRow:
            if row is None:
                return new_row(definition, self._app.ids.new(), "api", now)
            _expect(row, expect_version)
            changed = revised(row, definition, now)
            if row.disabled_reason == REMOVED or "enabled" in fields:
                changed = switched(changed, None if definition.enabled else BY_HAND, now)
            return changed

        return self._changed("put", name, change, definition.trigger)

    def enable(self, name: str) -> Schedule:
        """Switch it on. What was planned meanwhile is recorded as missed (`disabled`)."""
        for _ in range(ROUNDS):
            row = self._existing(name)
            if row.enabled:
                return _schedule(row)
            changed, missed = enabled_again(row, self._app.clock.now())
            if self._app.store.save_schedule(changed, row.version, missed):
                self._log("enable", name)
                return _schedule(changed)
        raise _outrun(name)

    def disable(self, name: str, *, cancel_pending: bool = False) -> Schedule:
        """Switch it off: no instant is taken any more. `cancel_pending`: its jobs that wait are cancelled, too."""
        return self._switch_off("disable", name, BY_HAND, cancel_pending=cancel_pending)

    def remove(self, name: str, *, cancel_pending: bool = False) -> Schedule:
        """Switch it off for good: it is not listed any more. Its slots and jobs stay as a record."""
        return self._switch_off("remove", name, REMOVED, cancel_pending=cancel_pending)

    def _switch_off(self, verb: str, name: str, reason: str, *, cancel_pending: bool) -> Schedule:
        self._existing(name)

        def change(row: ScheduleRow | None, now: Micros) -> ScheduleRow:
            assert row is not None  # schedules are never deleted
            return row if row.disabled_reason == reason else switched(row, reason, now)

        switched_off = self._changed(verb, name, change)
        if cancel_pending:
            self._cancel_pending(switched_off.id.bytes)
        return switched_off

    def _cancel_pending(self, schedule_id: bytes) -> None:
        store, now = self._app.store, self._app.clock.now()
        while pending := store.pending_of(schedule_id, CANCELLED_AT_ONCE):
            for job_id in pending:
                job = store.change(job_id, Verb.CANCEL, transitions.cancel, now)
                if is_logged(logging.INFO):
                    log_verb(Verb.CANCEL, job, in_transaction=store.in_transaction)

    def rename(self, name: str, to: str) -> Schedule:
        """Call it something else. Its id, its slots and its next instant stay."""
        wanted = check_name(to, "the schedule's name")
        self._existing(name)
        if self._app.store.schedule(wanted) is not None:
            raise ScheduleError(f"there is a schedule {wanted!r} already; choose another name", code="schedule_taken")

        def change(row: ScheduleRow | None, now: Micros) -> ScheduleRow:
            assert row is not None
            return row._replace(name=wanted, updated_at=now, version=row.version + 1)

        return self._changed("rename", name, change, to=wanted)

    def _changed(self, verb: str, name: str, change: Any, trigger: Trigger | None = None, **facts: str) -> Schedule:
        """Write what `change` makes of the row as it is now, and log it with these facts if it has really changed.

        `trigger`: what will be planned afterwards.
        """
        store = self._app.store
        for _ in range(ROUNDS):
            row, now = store.schedule(name), self._app.clock.now()
            if row is not None and trigger is not None and is_retimed(row, trigger) and self._take_due(row, now):
                continue
            changed: ScheduleRow = change(row, now)
            if row is not None and _is_same(row, changed):
                return _schedule(row)
            if store.save_schedule(changed, None if row is None else row.version):
                self._log(verb, name, **facts)
                return _schedule(changed)
        raise _outrun(name)

    def _log(self, verb: str, name: str, **facts: str) -> None:
        """Only what is done here: what workers declare when they start goes to the store by another way."""
        log_schedule(verb, name, in_transaction=self._app.store.in_transaction, **facts)

    def _take_due(self, row: ScheduleRow, now: Micros) -> bool:
        """Before the timing changes: what is due by the old one must not be lost. False: nothing was."""
        if not row.enabled or row.next_trigger_at is None or row.next_trigger_at > now:
            return False
        self._app.store.fire([firing_of(row, self._app.store, self._app.ids, now)], None, now)
        return True

    # -- look --------------------------------------------------------------------------------------------------------

    def get(self, name: str) -> Schedule | None:
        """The schedule of this name, also if it is switched off. None: there is none."""
        row = self._app.store.schedule(check_name(name, "the schedule's name"))
        return None if row is None else _schedule(row)

    def slots(self, name: str, *, limit: int = 100) -> list[Slot]:
        """The last slots of a schedule that were taken, newest first."""
        row = self._existing(name)
        found = self._app.store.slots(row.id, LAST, check_whole(limit, "limit", 1, 10_000))
        return [self._slot(slot) for slot in found]

    def missed(self, name: str, *, limit: int = 100) -> list[MissedSlots]:
        """The last stretches of planned instants that nobody took, newest first, each with the reason."""
        row = self._existing(name)
        return [_missed(one) for one in self._app.store.missed(row.id, LAST, check_whole(limit, "limit", 1, 10_000))]

    def preview(self, what: str, n: int = 5, *, tz: str | None = None, after: datetime | None = None) -> list[datetime]:
        """The next `n` instants of a schedule, or of a cron expression; in its time zone."""
        trigger = self._meant(what, tz)
        check_whole(n, "n", 1, 1_000)
        at = self._app.clock.now() if after is None else check_time(after, "after")
        zone = ZoneInfo(trigger.tz)
        return [to_datetime(instant).astimezone(zone) for instant in islice(trigger.instants(at), n)]

    def describe(self, what: str, *, tz: str | None = None) -> str:
        """When a schedule, or a cron expression, runs, in words."""
        return self._meant(what, tz).describe()

    def _meant(self, what: str, tz: str | None) -> Trigger:
        check_type(what, "the schedule", str, "a schedule's name or a cron expression", code="schedule_invalid")
        if " " not in what.strip() and not what.startswith("@"):
            return trigger_of(self._existing(what))
        try:
            return Trigger.of(what, tz=tz)
        except InvalidOption:
            row = self._app.store.schedule(what)  # a name may have blanks, too
            if row is None:
                raise
            return trigger_of(row)

    def _slot(self, row: SlotRow) -> Slot:
        """The slot; where its job was continued under another id, with the state of the newest one."""
        status = row.status or "deleted"
        if row.successor is not None:
            last = self._app.store.get(row.successor)
            status = status if last is None else self._app.newest(last).state.value
        return Slot(
            scheduled_for=to_datetime(row.scheduled_for),
            previous=_moment(row.previous_at),
            following=_moment(row.following_at),
            status=status,
            job_id=None if row.job_id is None else to_uuid(row.job_id),
            node_id=None if row.node_id is None else to_uuid(row.node_id),
            note=json_of(row.note) or {},
            taken_at=to_datetime(row.created_at),
        )

    def _existing(self, name: str) -> ScheduleRow:
        row = self._app.store.schedule(check_name(name, "the schedule's name"))
        if row is None:
            known = [one.name for one in self._app.store.schedules("", 1_000)]
            message, remedy = f"there is no schedule {shown(name)}", _near(name, known)
            raise ScheduleError(message, code="schedule_unknown", remedy=remedy)
        return row

    # -- by hand -----------------------------------------------------------------------------------------------------

    def trigger(self, name: str, scheduled_for: datetime | None = None) -> Job:
        """Take a slot now, like any worker would: see `app.trigger`."""
        row = self._existing(name)
        _refuse_upkeep(row)
        now = self._app.clock.now()
        at = Micros(now - now % 1_000_000) if scheduled_for is None else check_time(scheduled_for, "scheduled_for")
        return self._take(row, at)

    def backfill(self, name: str, start: datetime, end: datetime) -> Iterator[Job]:
        """Take every planned instant from `start` to before `end`, oldest first, lazily: one job after the other.

        A slot that is taken already gives its job, marked `deduplicated`. Unless the overlap policy is "allow", each
        job waits for the one before it.
        """
        row = self._existing(name)
        _refuse_upkeep(row)
        first, last = check_time(start, "start"), check_time(end, "end")
        for at in trigger_of(row).instants(Micros(first - 1)):
            if at >= last:
                return
            yield self._take(row, at, in_line=True)

    def _take(self, row: ScheduleRow, at: Micros, *, in_line: bool = False) -> Job:
        """`in_line`: where jobs may not overlap, this one waits for the one before it."""
        now = self._app.clock.now()
        template = None if row.template_id is None else self._app.store.template_by_id(row.template_id)
        if template is not None and template.archived_at is not None:
            raise archived(template.name)
        try:
            overlap = policy_of(row).overlap
            one = planned(trigger_of(row), at, "queue" if in_line and overlap == "skip" else overlap)
            slot = new_slot(row, one, JobId(self._app.ids.new()), now, template)
        except (ValueError, TypeError, KeyError) as error:
            raise ScheduleError(
                f"schedule {row.name!r} cannot be understood ({error}); put it again", code="schedule_invalid"
            ) from error
        job = self._app.store.take_slot(row.id, slot, now)
        if not job.deduplicated:
            self._log("trigger", row.name, job_id=str(job.id))
        return job

    # Last, because inside the class the name hides the type.
    def list(self, *, all: bool = False) -> list[Schedule]:
        """Every schedule by name. `all`: also those that were removed, and the built-in upkeep."""

        def read(last: str | None, size: int) -> tuple[list[ScheduleRow], str | None]:
            rows = self._app.store.schedules(last or "", size)
            return rows, rows[-1].name if len(rows) == size else None

        rows = pages(read, None)
        return [_schedule(row) for row in rows if all or (row.disabled_reason != REMOVED and row.source != "builtin")]


# -- what users write ------------------------------------------------------------------------------------------------


def definition_of(
    app: Perdure,
    name: str,
    cron: str | None,
    kind: str | Kind[..., Any, ..., Any],
    payload: Mapping[str, Any] | None,
    fields: ScheduleFields,
) -> Definition:
    """The checked definition. Wrong timing, options or arguments are refused here, before anything is written."""
    target = app.kinds.get(kind) if isinstance(kind, str) else kind
    definition = _timed(app, name, cron, target, fields)
    draft = target.options(**_of_the_job(fields)).draft(payload or {})
    encoded, secrets = target.codec.encode(draft.arguments)
    plan = limited(draft.plan, draft.options, encoded)
    definition = definition._replace(payload=encoded, secrets=secrets, plan=plan_json(plan))
    return _with_usual_limit(definition, draft.plan.timeout_ms)


def definition_from_template(
    app: Perdure, name: str, cron: str | None, template: str, payload: Mapping[str, Any], fields: ScheduleFields
) -> Definition:
    """The same for a schedule that takes the rest from a template. The whole is checked as it would be enqueued now."""
    new = job_from_template(app, template, payload, _of_the_job(fields), app.store)
    assert new.origin is not None
    assert new.origin.template_id is not None
    row = app.store.template_by_id(new.origin.template_id)
    assert row is not None
    target = app.kinds.get(row.kind)
    definition = _timed(app, name, cron, target, fields)
    encoded, secrets = target.codec.part.encode(payload)
    plan = own_options(plan_json(new.plan), row)
    definition = definition._replace(payload=encoded, secrets=secrets, plan=plan, template_id=row.id)
    return _with_usual_limit(definition, new.plan.timeout_ms)


def _timed(
    app: Perdure, name: str, cron: str | None, kind: Kind[..., Any, ..., Any], fields: ScheduleFields
) -> Definition:
    """When and how; still without arguments and options of the job."""
    check_known(fields, (*_TIMING, *_POLICY, *_JOB, "description", "enabled"))
    check_name(name, "the schedule's name")
    said: dict[str, Any] = dict(fields)
    description = said.get("description")
    if description is not None:
        check_name(description, "description", DESCRIPTION_LIMIT)
    enabled = said.get("enabled", True)
    check_type(enabled, "enabled", bool, "True or False", code="schedule_invalid")
    return Definition(
        name=name,
        owner=app.owner,
        kind=kind.name,
        kind_version=kind.version,
        payload="{}",
        secrets=None,
        plan="{}",
        trigger=Trigger.of(cron, **{field: said[field] for field in _TIMING if field in said}),
        policy=Policy.of(**{field: said[field] for field in _POLICY if field in said}),
        description=description,
        enabled=enabled,
    )


def _of_the_job(fields: ScheduleFields) -> OptionFields:
    said: dict[str, Any] = {field: value for field, value in fields.items() if field in _JOB}
    return cast("OptionFields", said)


def _with_usual_limit(definition: Definition, timeout_ms: int | None) -> Definition:
    """Twice the time-out of the job, if it has one and the schedule says nothing else."""
    if definition.policy.max_runtime_us is not None or timeout_ms is None:
        return definition
    return definition._replace(policy=replace(definition.policy, max_runtime_us=2_000 * timeout_ms))


class Declarations:
    """The schedules that the code of one app declares, by name."""

    def __init__(self, app: Perdure) -> None:
        self._app = app
        self._declared: dict[str, tuple[Kind[..., Any, ..., Any], str | None, Mapping[str, Any], ScheduleFields]] = {}

    def add(
        self, kind: object, name: str | None, cron: str | None, payload: Mapping[str, Any], fields: ScheduleFields
    ) -> None:
        if not isinstance(kind, Kind):
            raise ScheduleError(
                f"@app.schedule was given {_place(kind)}, which is no kind yet; put it above @app.job, not below",
                code="schedule_invalid",
            )
        kind = cast("Kind[..., Any, ..., Any]", kind)
        called = kind.name if name is None else name
        known = self._declared.get(called)
        if known is not None and known[0].place != kind.place:
            raise ScheduleError(
                f"two schedules are called {called!r}; give one of them another name with name=",
                code="schedule_duplicate",
            )
        if known is not None and (known[1], known[2], known[3]) != (cron, payload, fields) and known[0] is kind:
            raise ScheduleError(
                f"two schedules of kind {kind.name!r} are called {called!r}; give each a name= of its own",
                code="schedule_duplicate",
            )
        self._check(kind, called, cron, payload, fields)
        self._declared[called] = (kind, cron, payload, fields)

    def _check(
        self, kind: Kind[..., Any, ..., Any], name: str, cron: str | None, payload: Any, fields: ScheduleFields
    ) -> None:
        try:
            definition_of(self._app, name, cron, kind, payload, fields)
        except KindError as error:
            if error.code != "kind_signature":
                raise
            # Its annotations may name what the module defines further down: checked when a worker starts.

    def all(self) -> list[Definition]:
        """Every definition, checked again."""
        return [
            definition_of(self._app, name, cron, kind, payload, fields)
            for name, (kind, cron, payload, fields) in self._declared.items()
        ]


# -- rows to views ---------------------------------------------------------------------------------------------------


def _schedule(row: ScheduleRow) -> Schedule:
    trigger, policy, payload, problem = None, Policy(), dict[str, Any](), row.problem
    try:
        trigger = trigger_of(row)
        payload, policy = _payload_of(row), policy_of(row)
        if row.source != "builtin" and row.template_id is None:
            plan_of(row.plan)
    except (PerdureError, ValueError) as error:
        problem = problem or f"it cannot be understood: {error}"
    return Schedule(
        id=to_uuid(row.id),
        name=row.name,
        kind=row.kind,
        payload=payload,
        trigger=trigger,
        policy=policy,
        enabled=bool(row.enabled),
        disabled_reason=row.disabled_reason,
        problem=problem,
        description=row.description,
        source=row.source,
        owner=row.owner,
        last_trigger_at=_moment(row.last_trigger_at),
        next_trigger_at=_moment(row.next_trigger_at) if row.enabled else None,
        created_at=to_datetime(row.created_at),
        version=row.version,
    )


def _payload_of(row: ScheduleRow) -> dict[str, Any]:
    payload = json_of(row.payload)
    if not isinstance(payload, dict):
        raise ValueError("its arguments are not a JSON object")  # noqa: TRY004 - of a row, not of a caller
    return cast("dict[str, Any]", payload)


def _place(given: object) -> str:
    return place_of(given) if callable(given) else shown(given)


def _missed(row: Missed) -> MissedSlots:
    first, last = to_datetime(row.first_at), to_datetime(row.last_at)
    return MissedSlots(first, last, row.instants, row.reason, to_datetime(row.recorded_at))


def _moment(at: Micros | None) -> datetime | None:
    return None if at is None else to_datetime(at)


def _is_same(row: ScheduleRow, changed: ScheduleRow) -> bool:
    return row._replace(updated_at=changed.updated_at, version=changed.version) == changed


def _expect(row: ScheduleRow, version: int | None) -> None:
    if version is not None and row.version != version:
        raise TransitionRefused(
            f"schedule {row.name!r} is at version {row.version}, not {version}: someone changed it; read it again and"
            " decide again",
            code="version_changed",
        )


def _refuse_upkeep(row: ScheduleRow) -> None:
    if row.source == "builtin":
        raise ScheduleError(
            f"{row.name!r} is upkeep that workers do by themselves; use perdure purge or perdure archive",
            code="schedule_builtin",
        )


def _near(name: str, known: list[str]) -> Remedy:
    from difflib import get_close_matches

    near = get_close_matches(name, known, n=1)
    meant = f"did you mean {near[0]!r}?" if near else None
    return Remedy(meant or "make it with app.schedules.put", meant or "perdure schedules{database} lists them")


def _outrun(name: str) -> PerdureError:
    return DatabaseBusy(f"schedule {name!r} was changed by others {ROUNDS} times at the same moment; try again")
