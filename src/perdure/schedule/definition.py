"""What a schedule says, apart from how far it has come; and its row, made and changed. Pure.

`schedules` makes definitions from what users write, `scheduler` keeps those of the code and fires the rows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Literal, NamedTuple

from perdure.clock import Micros
from perdure.ids import IdFactory, JobId
from perdure.job.model import NewJob, Origin, json_of, plan_of
from perdure.job.states import State
from perdure.schedule.policy import Decision, Planned, Policy, Reason, decide, stretch
from perdure.schedule.trigger import Trigger
from perdure.store.protocols import Store
from perdure.store.rows import Firing, Missed, NewSlot, ScheduleRow, TemplateRow

Source = Literal["code", "api", "builtin"]

GONE = "gone_from_code"
BY_HAND = "by_hand"
REMOVED = "removed"

KNOWN_DIGESTS = 20
"""How many earlier declarations a schedule remembers, to tell an older release from a newer one."""


class Definition(NamedTuple):
    """When, what and how. `payload` and `secrets` are what the kind's codec wrote, `plan` is by `plan_json`."""

    name: str
    owner: str
    kind: str
    kind_version: int
    payload: str
    secrets: str | None
    plan: str
    trigger: Trigger
    policy: Policy
    description: str | None = None
    template_id: bytes | None = None
    enabled: bool = True

    @property
    def digest(self) -> str:
        """The same for the same declaration, in whatever process."""
        said: list[Any] = [
            *(self.owner, self.kind, self.kind_version, self.payload, self.secrets, self.plan),
            *(self.trigger.stored(), self.policy.stored(), self.description, self.enabled),
            None if self.template_id is None else self.template_id.hex(),
        ]
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:32]


# -- rows ------------------------------------------------------------------------------------------------------------


def new_row(definition: Definition, schedule_id: bytes, source: Source, now: Micros) -> ScheduleRow:
    trigger = definition.trigger
    return ScheduleRow(
        id=schedule_id,
        name=definition.name,
        owner=definition.owner,
        source=source,
        **_target(definition),
        **_timing(trigger),
        policy=definition.policy.stored(),
        description=definition.description,
        digests=None,
        declared_at=None,
        enabled=int(definition.enabled),
        disabled_reason=None if definition.enabled else BY_HAND,
        disabled_at=None if definition.enabled else now,
        problem=None,
        last_trigger_at=None,
        next_trigger_at=trigger.after(now) if trigger.at is None else trigger.at,
        created_at=now,
        updated_at=now,
        version=1,
    )


def revised(row: ScheduleRow, definition: Definition, now: Micros) -> ScheduleRow:
    """The same schedule with another definition. Where the timing is as it was, the next instant stays."""
    changed = row._replace(
        owner=definition.owner,
        policy=definition.policy.stored(),
        description=definition.description,
        problem=None,
        updated_at=now,
        version=row.version + 1,
        **_target(definition),
        **_timing(definition.trigger),
    )
    is_retimed = changed[_TIMING] != row[_TIMING]
    if is_retimed or (row.next_trigger_at is None and row.problem is not None):
        changed = changed._replace(next_trigger_at=definition.trigger.after(now))
    return changed


def is_retimed(row: ScheduleRow, trigger: Trigger) -> bool:
    return any(getattr(row, name) != value for name, value in _timing(trigger).items())


def switched(row: ScheduleRow, reason: str | None, now: Micros) -> ScheduleRow:
    """Switched off for a reason, or on (None)."""
    return row._replace(
        enabled=int(reason is None),
        disabled_reason=reason,
        disabled_at=None if reason is None else now,
        updated_at=now,
        version=row.version + 1,
    )


def enabled_again(row: ScheduleRow, now: Micros) -> tuple[ScheduleRow, tuple[Missed, ...]]:
    """Switched on by hand: what was planned meanwhile is recorded, and the next instant is in the future."""
    trigger = trigger_of(row)
    missed: tuple[Missed, ...] = ()
    last = trigger.before(now)
    if row.next_trigger_at is not None and last is not None and last >= row.next_trigger_at:
        missed = (stretch(trigger, row.next_trigger_at, last, Reason.DISABLED, now),)
    return switched(row, None, now)._replace(next_trigger_at=trigger.after(now)), missed


def _target(definition: Definition) -> dict[str, Any]:
    names = ("template_id", "kind", "kind_version", "payload", "secrets", "plan")
    return {name: getattr(definition, name) for name in names}


def _timing(trigger: Trigger) -> dict[str, Any]:
    return {
        "cron": trigger.cron,
        "every_us": trigger.every_us,
        "at": trigger.at,
        "tz": trigger.tz,
        "starts_at": trigger.start,
        "ends_at": trigger.end,
    }


_TIMING = slice(ScheduleRow._fields.index("cron"), ScheduleRow._fields.index("ends_at") + 1)


def trigger_of(row: ScheduleRow) -> Trigger:
    """When it is due. InvalidOption: the row says something that no trigger can be."""
    return Trigger(row.cron, row.every_us, row.at, row.tz, row.starts_at, row.ends_at)


def policy_of(row: ScheduleRow) -> Policy:
    """ValueError: it cannot be read."""
    return Policy.read(row.policy)


# -- slots -----------------------------------------------------------------------------------------------------------


def decision_for(row: ScheduleRow, now: Micros) -> Decision:
    """What becomes of the instants that are due. ValueError, InvalidOption: the row cannot be understood."""
    assert row.next_trigger_at is not None
    return decide(trigger_of(row), policy_of(row), row.next_trigger_at, now)


def not_taken(row: ScheduleRow, decision: Decision, now: Micros) -> tuple[Missed, ...]:
    """What is recorded where none of the instants can be taken, because the template of the schedule is archived."""
    if not decision.take:
        return decision.missed
    first, last = decision.take[0].at, decision.take[-1].at
    return (*decision.missed, stretch(trigger_of(row), first, last, Reason.DISABLED, now))


def new_slot(
    row: ScheduleRow, planned: Planned, job_id: JobId, now: Micros, template: TemplateRow | None = None
) -> NewSlot:
    """The slot and the job for one instant. `template`: the one that the schedule names, as it is now."""
    around = (planned.at, planned.previous, planned.following)
    if row.source == "builtin":
        return NewSlot(*around, None)
    policy = policy_of(row)
    origin = Origin(schedule_id=row.id, scheduled_for=planned.at)
    if row.template_id is not None:
        if template is None:
            raise ValueError("its template does not exist any more")
        row = filled(row, template)
        origin = origin._replace(template_id=template.id, template_version=template.version)
    run_at = max(now, Micros(planned.at + policy.delay_us(row.id, planned.at)))
    plan = policy.applied_to(plan_of(row.plan))
    at_once = State.QUEUED if plan.limit_key is None else State.HELD
    job = NewJob(
        job_id,
        plan,
        row.payload,
        row.secrets,
        now,
        run_at,
        (State.SCHEDULED if run_at > now else at_once).value,
        origin=origin,
    )
    return NewSlot(*around, job, planned.overlap)


def filled(row: ScheduleRow, template: TemplateRow) -> ScheduleRow:
    """The schedule with what it takes from its template: arguments and options that it does not give itself."""
    secrets: dict[str, Any] = {**(json_of(template.secrets) or {}), **(json_of(row.secrets) or {})}
    return row._replace(
        kind=template.kind,
        kind_version=template.kind_version,
        payload=_json({**json_of(template.payload), **json_of(row.payload)}),
        secrets=_json(secrets) if secrets else None,
        plan=_json({**json_of(template.plan), **json_of(row.plan)}),
    )


def own_options(plan: str, template: TemplateRow) -> str:
    """Of a plan, what differs from that of the template: the rest follows the template when that is changed."""
    usual: dict[str, Any] = json_of(template.plan)
    return _json({name: value for name, value in json_of(plan).items() if value != usual.get(name)})


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def firing_of(row: ScheduleRow, store: Store, ids: IdFactory, now: Micros) -> Firing:
    """What to do with the instants that are due. ValueError and others: the row cannot be understood."""
    decision = decision_for(row, now)
    template = None if row.template_id is None else store.template_by_id(row.template_id)
    if template is not None and template.archived_at is not None:
        return Firing(row, (), not_taken(row, decision, now), decision.next_at)
    slots = [new_slot(row, planned, JobId(ids.new()), now, template) for planned in decision.take]
    return Firing(row, slots, decision.missed, decision.next_at)


# -- what the code declares ------------------------------------------------------------------------------------------


def as_declared(
    row: ScheduleRow | None, definition: Definition, others: AbstractSet[str], new_id: bytes, now: Micros
) -> ScheduleRow | None:
    """The row after a worker with this declaration has started. None: it stays as it is.

    `others` are the digests under which other live workers declare the schedule. A declaration that was in force
    before another one belongs to an older release: it changes nothing while a worker of the newer one is live.
    """
    digest = definition.digest
    if row is None:
        return _declared(new_row(definition, new_id, "code", now), (), digest, now)
    known = _digests_of(row)
    if known and known[-1] == digest:
        return switched(row, None, now) if row.disabled_reason == GONE else None
    if digest in known and known[-1] in others:
        return None
    changed = revised(row, definition, now)
    if row.disabled_reason in (GONE, REMOVED):
        changed = changed._replace(enabled=int(definition.enabled), disabled_reason=None, disabled_at=None)
    return _declared(changed, known, digest, now)


def _digests_of(row: ScheduleRow) -> tuple[str, ...]:
    """The declarations that were in force, the newest last. None where a person has made the schedule."""
    stored: list[str] = json_of(row.digests) or []
    return tuple(stored) if row.source == "code" else ()


def _declared(row: ScheduleRow, known: tuple[str, ...], digest: str, now: Micros) -> ScheduleRow:
    digests = [*(one for one in known if one != digest), digest][-KNOWN_DIGESTS:]
    return row._replace(source="code", digests=json.dumps(digests), declared_at=now)


def is_gone(
    row: ScheduleRow, own: AbstractSet[str], others: Mapping[str, AbstractSet[str]], started_at: Micros
) -> bool:
    """Whether the code of its app has dropped this declared schedule: no live worker declares it, and this one, which
    does not, has started since it was declared."""
    is_newer = row.declared_at is not None and started_at > row.declared_at
    return is_newer and row.name not in own and row.name not in others
