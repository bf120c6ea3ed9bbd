"""The state of a worker, as data for probes. Made by `worker.health()`, which never waits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from uuid import UUID

BLOCKED_AFTER_S = 5.0
"""How long the event loop may be busy with one handler before that counts as blocked."""

Status = Literal["starting", "running", "stopping", "stopped", "hung", "forked"]


@dataclass(frozen=True, slots=True)
class Health:
    """The state of a worker. Ages are seconds; None: it has not happened yet."""

    status: Status
    """`hung`: its store thread does not move, and it has given up. `forked`: it runs in the parent process only."""
    problem: str | None = None
    """What is wrong, as a sentence. None: nothing is."""
    node_id: UUID | None = None
    running: int = 0
    """Jobs that run here."""
    turn_age_s: float | None = None
    """Since the last turn that reached the database."""
    beat_age_s: float | None = None
    """Since the last heartbeat that was written."""
    loop_blocked_s: float = 0.0
    """For how long the event loop has been blocked."""
    exclusive: str | None = None
    """The name given with `exclusive=`."""
    standby: bool = False
    """Another worker is the active one of that name."""

    @property
    def healthy(self) -> bool:
        """Whether it works as it should, or stands by. False: see `problem`; a restart may help."""
        return self.problem is None and self.status in ("running", "stopping")


def problem_of(
    status: Status, lease_s: float, turn_age_s: float | None, beat_age_s: float | None, loop_blocked_s: float
) -> str | None:
    """What is wrong, the worst first. None: nothing is."""
    if status == "hung":
        return "the thread that talks to the database does not move; this worker has given up"
    if status == "forked":
        return "this process was forked from the one that the worker runs in; start a worker here"
    if status not in ("running", "stopping"):
        return None
    if beat_age_s is not None and beat_age_s > lease_s:
        return f"no heartbeat could be written for {beat_age_s:.0f} s; others may take this node for dead"
    if turn_age_s is not None and turn_age_s > lease_s:
        return f"the database has not been reached for {turn_age_s:.0f} s"
    if loop_blocked_s > BLOCKED_AFTER_S:
        return f"a handler has blocked the event loop for {loop_blocked_s:.0f} s; plain functions run in threads"
    return None
