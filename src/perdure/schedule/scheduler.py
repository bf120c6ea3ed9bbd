"""A worker's part in all schedules: keeps those that its code declares, and takes the instants that are due.

Run as a chore between turns, by every worker; none leads. Two may look at once: the database lets one of them have each
instant. Nothing here knows a kind: a job of a kind that nobody knows is parked by its claim, and can be seen.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from perdure.clock import Clock, Micros, iso
from perdure.errors import PerdureError
from perdure.ids import IdFactory, NodeId, to_uuid
from perdure.schedule.definition import (
    GONE,
    Definition,
    as_declared,
    firing_of,
    is_gone,
    new_row,
    switched,
)
from perdure.schedule.policy import Policy
from perdure.schedule.trigger import Trigger
from perdure.store.protocols import OUTAGES, Store
from perdure.store.rows import Fired, Firing, ScheduleRow
from perdure.upkeep.chore import Chore
from perdure.upkeep.retention import Work

AT_ONCE = 100
"""Schedules that one transaction fires: about 20 ms on SQLite, for which other writers wait."""
"""How long a change made by another process may stay unseen."""
DECLARE_EVERY_S = 60.0
STEP_EVERY_S = 0.005
"""The shortest rest between two steps of the upkeep: enough for the turns that wait."""

logger = logging.getLogger("perdure.schedule")


class Scheduler:
    """One worker's part in all schedules."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        ids: IdFactory,
        owner: str,
        declared: Callable[[], Iterable[Definition]],
        upkeep: Sequence[Work] = (),
    ) -> None:
        """`declared` gives what the code declares; `upkeep` is the built-in work."""
        self._store = store
        self._clock = clock
        self._ids = ids
        self._owner = owner
        self._declared = declared
        self._upkeep = {work.name: work for work in upkeep}
        self._started_at = clock.now()
        self._next_declare = float("-inf")
        self._next_at: Micros | None = None
        self._has_more = False
        self._has_schedules = True
        self._begun: tuple[ScheduleRow, Micros, Work] | None = None

    def chore(self, own: Callable[[], NodeId]) -> Chore:
        """`own`: the id that the worker's node has at the time."""
        return Chore("schedules", self.rest_s, lambda: self.look(own()))

    def rest_s(self) -> float:
        """For how long there is nothing to do here."""
        if self._has_more:
            return 0.0
        if self._begun is not None:
            return max(STEP_EVERY_S, self._begun[2].rest_s)
        if self._next_at is None:
            return self._store.look_every_s
        return min(self._store.look_every_s, max(0.0, (self._next_at - self._clock.now()) / 1_000_000))

    def look(self, own: NodeId) -> int:
        """Take what is due. Returns how many jobs were made. A store that has no schedules is asked once."""
        if not self._has_schedules:
            return 0
        try:
            return self._look(own)
        except NotImplementedError:
            self._has_schedules = False
            return 0

    def _look(self, own: NodeId) -> int:
        if self._clock.boottime() >= self._next_declare:
            self.declare(own)
            self._next_declare = self._clock.boottime() + DECLARE_EVERY_S
        made = 0
        self._has_more = False
        self._next_at = self._store.next_trigger()
        if self._next_at is not None and self._next_at <= self._clock.now():
            made = self.fire(own)
            self._next_at = self._store.next_trigger()
        self._do_a_step()
        return made

    # -- firing ------------------------------------------------------------------------------------------------------

    def fire(self, own: NodeId | None) -> int:
        """Take the instants that are due, of up to `AT_ONCE` schedules. Returns how many jobs were made."""
        now = self._clock.now()
        due = self._store.due_schedules(now, AT_ONCE)
        self._has_more = len(due) == AT_ONCE
        if not due:
            return 0
        firings = [self._firing(row, now) for row in due]
        made = 0
        for firing, fired in zip(firings, self._fired(firings, own, now), strict=True):
            made += len(fired.jobs)
            if fired.applied:
                _log_fired(firing, fired)
                self._begin_upkeep(firing.schedule, fired)
        return made

    def _firing(self, row: ScheduleRow, now: Micros) -> Firing:
        """What to do with one schedule. One that cannot be understood is reported, and rests until it is changed."""
        try:
            return firing_of(row, self._store, self._ids, now)
        except OUTAGES:
            raise
        except (PerdureError, ValueError, TypeError, KeyError) as error:
            return Firing(row, (), (), None, f"it cannot be fired: {error}")

    def _fired(self, firings: Sequence[Firing], own: NodeId | None, now: Micros) -> list[Fired]:
        """All in one transaction; if the database refuses that, each by itself, so that none delays the others."""
        try:
            return self._store.fire(firings, own, now)
        except OUTAGES:
            raise
        except PerdureError:
            return [self._fired_alone(firing, own, now) for firing in firings]

    def _fired_alone(self, firing: Firing, own: NodeId | None, now: Micros) -> Fired:
        try:
            return self._store.fire([firing], own, now)[0]
        except OUTAGES:
            raise
        except PerdureError as error:
            problem = firing._replace(slots=(), missed=(), next_at=None, problem=f"the database refused it: {error}")
            fired = self._store.fire([problem], own, now)[0]
            _log_fired(problem, fired)
            return Fired(applied=False)

    # -- built-in upkeep ---------------------------------------------------------------------------------------------

    def _begin_upkeep(self, row: ScheduleRow, fired: Fired) -> None:
        """One at a time: what comes while another is at work is noted as skipped."""
        if row.source != "builtin" or not fired.slots:
            return
        work = self._upkeep.get(row.name)
        if work is None or self._begun is not None:
            self._store.note_slot(row.id, fired.slots[-1], "skipped", None)
            return
        self._begun = (row, fired.slots[-1], work)
        work.begin(self._clock.now())

    def _do_a_step(self) -> None:
        if self._begun is None:
            return
        row, at, work = self._begun
        try:
            counts = work.step()
        except OUTAGES:
            raise
        except Exception as error:
            self._begun = None
            self._store.note_slot(row.id, at, "failed", json.dumps({"error": str(error)}))
            logger.exception("%s failed; it begins again at its next time", row.name)
            return
        if counts is not None:
            self._begun = None
            self._store.note_slot(row.id, at, "done", json.dumps(counts))
            did = ", ".join(f"{name} {count}" for name, count in counts.items())
            logger.info("%s: %s", row.name, did or "nothing to do", extra={"perdure": {"event": row.name, **counts}})

    # -- what the code declares --------------------------------------------------------------------------------------

    def declare(self, own: NodeId) -> None:
        """Make the schedules what the code says, and switch off those that it has dropped."""
        declared = {definition.name: definition for definition in self._declared()}
        digests = {name: definition.digest for name, definition in declared.items()}
        now = self._clock.now()
        others = self._store.declare(own, digests, now)
        for definition in declared.values():
            self._keep(definition, others.get(definition.name, set()), now)
        for work in self._upkeep.values():
            if self._store.schedule(work.name) is None:
                self._store.save_schedule(new_row(_timed(work), self._ids.new(), "builtin", now), None)
        for row in self._store.declared_schedules(self._owner):
            if is_gone(row, digests.keys(), others, self._started_at):
                self._drop(row, now)

    def _keep(self, definition: Definition, others: set[str], now: Micros) -> None:
        """If another worker is at it just now, it has the same to say, or the next look settles it."""
        row = self._store.schedule(definition.name)
        if row is not None and row.owner != definition.owner:
            logger.error("the schedule %r belongs to the app %r; give yours another name", definition.name, row.owner)
            return
        wanted = as_declared(row, definition, others, self._ids.new(), now)
        if wanted is None:
            return
        if self._store.save_schedule(wanted, None if row is None else row.version):
            logger.info("schedule %s is declared: next at %s", wanted.name, _shown(wanted.next_trigger_at))

    def _drop(self, row: ScheduleRow, now: Micros) -> None:
        if self._store.save_schedule(switched(row, GONE, now), row.version):
            logger.warning("schedule %s is not in the code any more: it is switched off", row.name)


def _timed(work: Work) -> Definition:
    """When it is done, until somebody changes it."""
    trigger = Trigger.of(work.every)
    return Definition(work.name, "perdure", work.name, 1, "{}", None, "{}", trigger, Policy(), work.__doc__)


def _log_fired(firing: Firing, fired: Fired) -> None:
    row = firing.schedule
    facts: dict[str, Any] = {"event": "fired", "schedule": row.name}
    if firing.problem is not None:
        logger.error("schedule %s rests: %s", row.name, firing.problem, extra={"perdure": facts})
        return
    for at, job_id in zip(fired.slots, fired.jobs, strict=False):
        logger.info(
            "schedule %s: job %s for %s",
            row.name,
            to_uuid(job_id),
            iso(at),
            extra={"perdure": {**facts, "job_id": str(to_uuid(job_id)), "scheduled_for": iso(at)}},
        )
    for at in fired.overlapped:
        logger.warning("schedule %s: nothing for %s, because its last job has not ended", row.name, iso(at))
    for missed in firing.missed:
        count = "many" if missed.instants is None else str(missed.instants)
        logger.warning(
            "schedule %s: missed %s from %s to %s (%s)",
            row.name,
            count,
            iso(missed.first_at),
            iso(missed.last_at),
            missed.reason,
            extra={"perdure": {**facts, "missed": missed.instants, "reason": missed.reason}},
        )


def _shown(at: Micros | None) -> str:
    return "never" if at is None else iso(at)
