"""The state of a worker, as data for probes. Made by `worker.health()`, which never waits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from perdure.clock import Clock

BLOCKED_AFTER_S = 5.0
"""How long the event loop may be busy with one handler before that counts as blocked."""

Status = Literal["starting", "running", "stopping", "stopped", "hung", "forked"]

logger = logging.getLogger("perdure.worker")


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


class LoopProbe:
    """Whether the event loop runs: `ping` sends it a call, and `blocked_s` says for how long that has waited."""

    def __init__(self, loop: Callable[[], asyncio.AbstractEventLoop | None], clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._sent: float | None = None
        self._warned = False

    @property
    def blocked_s(self) -> float:
        sent = self._sent
        return 0.0 if sent is None else self._clock.boottime() - sent

    def ping(self) -> None:
        """Called every second or so."""
        if self._sent is not None:
            self._warn()
            return
        loop = self._loop()
        if loop is not None:
            self._sent = self._clock.boottime()
            with suppress(RuntimeError):  # closed: nothing runs on it
                loop.call_soon_threadsafe(self._on_loop)

    def _on_loop(self) -> None:
        self._sent = None
        self._warned = False

    def _warn(self) -> None:
        if self.blocked_s > BLOCKED_AFTER_S and not self._warned:
            self._warned = True
            logger.warning(
                "a handler has blocked the event loop for %.0f s; move blocking work into a plain function",
                self.blocked_s,
            )
