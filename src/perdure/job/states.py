"""The states of jobs and runs, and TRANSITIONS: the only list of legal moves.

`transitions` checks this table; tests compare the SQL statements, the contract suite and the documentation with it.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Literal, NamedTuple


class State(StrEnum):
    """Where a job is in its life."""

    PAUSED = "paused"
    """Set aside by hand until it is resumed."""
    BLOCKED = "blocked"
    """Waits for other jobs to end."""
    SCHEDULED = "scheduled"
    """Its time has not come."""
    HELD = "held"
    """Waits for a permit."""
    QUEUED = "queued"
    """May start now."""
    RUNNING = "running"
    """Claimed; one run of it is open."""
    PARKED = "parked"
    """The node that found it could not run it; the reason is kept."""
    COMPLETED = "completed"
    """Ended with success."""
    FAILED = "failed"
    """Ended without success; it does not run again unless someone retries it."""
    CANCELLED = "cancelled"
    """Ended because someone asked for it."""
    SKIPPED = "skipped"
    """Ended because there was nothing to do."""


class RunState(StrEnum):
    """The state of one attempt."""

    RUNNING = "running"
    """Open: its node holds the job."""
    COMPLETED = "completed"
    """The handler returned."""
    FAILED = "failed"
    """The handler raised."""
    CANCELLED = "cancelled"
    """Stopped because the job was cancelled."""
    SKIPPED = "skipped"
    """The handler asked for the job to be skipped."""
    TIMED_OUT = "timed_out"
    """Ran longer than its time-out."""
    LOST = "lost"
    """Its node died."""
    RELEASED = "released"
    """Given back before it ended."""


EndName = Literal["completed", "failed", "cancelled", "skipped"]
StateName = Literal["paused", "blocked", "scheduled", "held", "queued", "running", "parked", EndName]
RunStateName = Literal["running", "timed_out", "lost", "released", EndName]
"""The states as texts, for type checkers; a test compares them with the enums."""


class Verb(StrEnum):
    """What can happen to a job. The same word names the method, the statement, the event and the log line."""

    ENQUEUE = "enqueue"
    PROMOTE = "promote"
    UNBLOCK = "unblock"
    ADMIT = "admit"
    CLAIM = "claim"
    COMPLETE = "complete"
    FAIL = "fail"
    TIME_OUT = "time_out"
    SNOOZE = "snooze"
    RELEASE = "release"
    CANCEL = "cancel"
    REQUEST_CANCEL = "request_cancel"
    SKIP = "skip"
    PAUSE = "pause"
    RESUME = "resume"
    PARK = "park"
    RESCUE = "rescue"
    SUPERSEDE = "supersede"
    RETRY = "retry"
    MOVE = "move"
    SET_PRIORITY = "set_priority"
    EDIT = "edit"

    @property
    def words(self) -> str:
        """As in "cannot set the priority of job …"."""
        return "set the priority of" if self is Verb.SET_PRIORITY else self.replace("_", " ")


class Park(StrEnum):
    """Why a job is parked."""

    UNKNOWN_KIND = "unknown_kind"
    """The node knew no kind of that name; a node that knows it takes the job."""
    NEWER_VERSION = "newer_version"
    """The payload was written by newer code; a node with that code takes the job."""
    UNREADABLE = "unreadable"
    """The payload could not be decoded; only resume or cancel ends this state."""


class Suspicion(IntEnum):
    """Whether a job may have killed its node."""

    NONE = 0
    """No node has died while it ran."""
    CRASHED = 1
    """A node died once while it ran: the cause may be any other job, or none. It runs like every job."""
    SUSPECT = 2
    """That happened again, or one more crash would fail the job. It never runs beside another job that has crashed."""


FINAL = frozenset({State.COMPLETED, State.FAILED, State.CANCELLED, State.SKIPPED})
LIVE = frozenset(State) - FINAL
WAITING = LIVE - {State.RUNNING}
CLOSED = frozenset(RunState) - {RunState.RUNNING}

LANDING = frozenset({State.PAUSED, State.BLOCKED, State.SCHEDULED, State.HELD, State.QUEUED})
"""Where `waiting_state` can put a job."""


class Move(NamedTuple):
    """The states a verb leads from and to. Empty `sources`: the job did not exist before."""

    sources: frozenset[State]
    targets: frozenset[State]


def _states(*states: State) -> frozenset[State]:
    return frozenset(states)


_RUNNING = _states(State.RUNNING)

TRANSITIONS: dict[Verb, Move] = {
    Verb.ENQUEUE: Move(_states(), LANDING - {State.PAUSED}),
    Verb.PROMOTE: Move(_states(State.SCHEDULED), LANDING),
    Verb.UNBLOCK: Move(_states(State.BLOCKED), LANDING),
    Verb.ADMIT: Move(_states(State.HELD, State.PARKED), LANDING),
    Verb.CLAIM: Move(_states(State.QUEUED, State.HELD, State.PARKED), _RUNNING),
    Verb.COMPLETE: Move(_RUNNING, _states(State.COMPLETED)),
    Verb.FAIL: Move(_RUNNING, LANDING | {State.FAILED, State.CANCELLED}),
    Verb.TIME_OUT: Move(_RUNNING, LANDING | {State.FAILED, State.CANCELLED}),
    Verb.SNOOZE: Move(_RUNNING, LANDING | {State.SKIPPED, State.CANCELLED}),
    Verb.RELEASE: Move(_RUNNING, LANDING | {State.FAILED, State.SKIPPED, State.CANCELLED}),
    Verb.CANCEL: Move(LIVE, _states(State.CANCELLED)),
    Verb.REQUEST_CANCEL: Move(_RUNNING, _RUNNING),
    Verb.SKIP: Move(LIVE, _states(State.SKIPPED, State.CANCELLED)),
    Verb.PAUSE: Move(WAITING, _states(State.PAUSED)),
    Verb.RESUME: Move(_states(State.PAUSED, State.PARKED), LANDING - {State.PAUSED}),
    Verb.PARK: Move(
        _states(State.QUEUED, State.HELD, State.SCHEDULED, State.RUNNING), _states(State.PARKED, State.CANCELLED)
    ),
    Verb.RESCUE: Move(_RUNNING, LANDING | {State.FAILED, State.CANCELLED}),
    Verb.SUPERSEDE: Move(LIVE, _states(State.CANCELLED, State.RUNNING)),
    Verb.RETRY: Move(_states(State.FAILED, State.CANCELLED), LANDING - {State.PAUSED}),
    Verb.MOVE: Move(WAITING, WAITING),
    Verb.SET_PRIORITY: Move(WAITING, WAITING),
    Verb.EDIT: Move(WAITING, WAITING),
}
