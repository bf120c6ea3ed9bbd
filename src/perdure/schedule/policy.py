"""What becomes of planned instants that are due: which are taken, which are recorded as missed. Pure decisions.

Called by `scheduler` and `schedules`; calls `trigger`.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from datetime import timedelta
from enum import StrEnum
from typing import Any, Literal, NamedTuple, cast, get_args

from perdure.checks import Span, check_choice, check_span, check_type, check_whole
from perdure.clock import Micros
from perdure.job.model import Plan, json_of
from perdure.schedule.trigger import Trigger
from perdure.store.rows import Missed

CatchUp = Literal["none", "latest", "all"]
Overlap = Literal["skip", "queue", "allow"]

COUNTED = 10_000
"""Instants of a stretch are counted up to here; a longer one is recorded without their number."""
CATCH_UP_LIMIT = 10_000
_SECOND = 1_000_000
_LONGEST_S = 10 * 365 * 86_400


class Reason(StrEnum):
    """Why a planned instant was not taken."""

    MISFIRED = "misfired"
    """It came too late: no worker ran at the time, or a newer instant runs in its place."""
    OVERLAP = "overlap"
    """The job of an earlier instant had not ended."""
    DISABLED = "disabled"
    """The schedule was switched off."""
    OUTAGE = "outage"
    """More instants were missed than `catch_up="all"` makes up for."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How a schedule deals with lateness and overlap. Checked when made; times in microseconds."""

    catch_up: CatchUp = "latest"
    overlap: Overlap = "skip"
    misfire_grace_us: int = 300 * _SECOND
    catch_up_limit: int = 100
    catch_up_window_us: int = 7 * 86_400 * _SECOND
    jitter_us: int = 0
    max_runtime_us: int | None = None
    at_most_once: bool = False

    @classmethod
    def of(
        cls,
        *,
        catch_up: CatchUp = "latest",
        overlap: Overlap = "skip",
        misfire_grace: Span = 300,
        catch_up_limit: int = 100,
        catch_up_window: Span = timedelta(days=7),
        jitter: Span = 0,
        max_runtime: Span | None = None,
        at_most_once: bool = False,
    ) -> Policy:
        """The policy meant by these options; spans in seconds or as a timedelta."""
        check_type(at_most_once, "at_most_once", bool, "True or False", code="schedule_invalid")
        return cls(
            catch_up=check_choice(catch_up, "catch_up", get_args(CatchUp), code="schedule_invalid"),
            overlap=check_choice(overlap, "overlap", get_args(Overlap), code="schedule_invalid"),
            misfire_grace_us=_span(misfire_grace, "misfire_grace", 0),
            catch_up_limit=check_whole(catch_up_limit, "catch_up_limit", 1, CATCH_UP_LIMIT, code="schedule_invalid"),
            catch_up_window_us=_span(catch_up_window, "catch_up_window", 1),
            jitter_us=_span(jitter, "jitter", 0),
            max_runtime_us=None if max_runtime is None else _span(max_runtime, "max_runtime", 0.001),
            at_most_once=at_most_once,
        )

    def stored(self) -> str:
        """As JSON, without what is as usual."""
        usual = asdict(Policy())
        changed = {name: value for name, value in asdict(self).items() if value != usual[name]}
        return json.dumps(changed, sort_keys=True, separators=(",", ":"))

    @classmethod
    def read(cls, text: str) -> Policy:
        """The policy that `stored` wrote. What only a newer release knows is ignored. ValueError: it cannot be read."""
        values = json_of(text)
        stored: dict[str, Any] = cast("dict[str, Any]", values) if isinstance(values, dict) else {"catch_up": None}
        policy = cls(**{field.name: stored[field.name] for field in fields(cls) if field.name in stored})
        numbers = [getattr(policy, field.name) for field in fields(cls) if field.name not in ("catch_up", "overlap")]
        is_known = policy.catch_up in get_args(CatchUp) and policy.overlap in get_args(Overlap)
        if not is_known or any(not isinstance(number, int) for number in numbers if number is not None):
            raise ValueError(f"the stored policy {text[:80]!r} cannot be read, or is of a newer release")
        return policy

    def applied_to(self, plan: Plan) -> Plan:
        """The plan of a job for a slot: how often and for how long it may run."""
        if self.at_most_once:
            plan = plan._replace(max_attempts=1, as_new_job=0)
        if self.max_runtime_us is None:
            return plan
        limit_ms = max(1, self.max_runtime_us // 1000)
        kept: dict[str, Any] = json_of(plan.options) or {}
        timeout_ms = limit_ms if plan.timeout_ms is None else min(plan.timeout_ms, limit_ms)
        kept |= {"timeout_ms": timeout_ms, "max_runtime_ms": limit_ms}
        options = json.dumps(kept, separators=(",", ":"))
        return plan._replace(options=options, timeout_ms=timeout_ms, plain=False, direct=False)

    def delay_us(self, schedule_id: bytes, at: Micros) -> int:
        """How long after its instant the job may start: spread by `jitter`, the same in every process."""
        if not self.jitter_us:
            return 0
        digest = hashlib.sha256(schedule_id + str(at).encode()).digest()
        return int.from_bytes(digest[:8]) % self.jitter_us


class Planned(NamedTuple):
    """An instant to take, with those before and after it."""

    at: Micros
    previous: Micros | None
    following: Micros | None
    overlap: Overlap


class Decision(NamedTuple):
    """What to take now, oldest first, what to record as missed, and when to look again."""

    take: tuple[Planned, ...]
    missed: tuple[Missed, ...]
    next_at: Micros | None


def decide(trigger: Trigger, policy: Policy, next_at: Micros, now: Micros) -> Decision:
    """What becomes of the instants from `next_at` to `now`."""
    newest = trigger.before(now)
    following = trigger.after(now)
    if newest is None or newest < next_at:
        return Decision((), (), following)
    wanted = _wanted(trigger, policy, next_at, newest, now)
    first = wanted[0] if wanted else None
    missed: tuple[Missed, ...] = ()
    if first is None or first > next_at:
        last = newest if first is None else trigger.before(Micros(first - 1))
        if last is not None and last >= next_at:
            reason = Reason.OUTAGE if policy.catch_up == "all" else Reason.MISFIRED
            missed = (stretch(trigger, next_at, last, reason, now),)
    late = policy.catch_up == "all" and (len(wanted) > 1 or now - newest > policy.misfire_grace_us)
    overlap: Overlap = "queue" if late and policy.overlap == "skip" else policy.overlap
    return Decision(tuple(planned(trigger, at, overlap) for at in wanted), missed, following)


def _wanted(trigger: Trigger, policy: Policy, next_at: Micros, newest: Micros, now: Micros) -> list[Micros]:
    """The due instants that are taken, oldest first."""
    if policy.catch_up == "latest":
        return [newest]
    is_all = policy.catch_up == "all"
    oldest = max(next_at, now - (policy.catch_up_window_us if is_all else policy.misfire_grace_us))
    found: list[Micros] = []
    at: Micros | None = newest
    while at is not None and at >= oldest and len(found) < policy.catch_up_limit:
        found.append(at)
        at = trigger.before(Micros(at - 1))
    return found[::-1]


def planned(trigger: Trigger, at: Micros, overlap: Overlap) -> Planned:
    """An instant, planned or chosen by hand, with the planned ones around it."""
    return Planned(at, trigger.before(Micros(at - 1)), trigger.after(at), overlap)


def stretch(trigger: Trigger, first: Micros, last: Micros, reason: Reason, now: Micros) -> Missed:
    counted = trigger.count(Micros(first - 1), last, COUNTED + 1)
    return Missed(first, last, counted if counted <= COUNTED else None, reason.value, now)


def _span(value: object, what: str, least: float) -> int:
    must_be = f"seconds from {least:g} to {_LONGEST_S:,}, or such a timedelta"
    return round(check_span(value, what, least, _LONGEST_S, must_be=must_be, code="schedule_invalid") * _SECOND)
