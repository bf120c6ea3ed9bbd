"""How a worker is, as data for probes. Made by `worker.health()`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from perdure.clock import Clock
from perdure.ids import to_uuid
from perdure.worker.heart import Heart
from perdure.worker.node import Node


@dataclass(frozen=True, slots=True)
class Health:
    """How a worker is. Ages are seconds; None: it has not happened yet."""

    status: Literal["starting", "running", "forked"]
    node_id: UUID | None = None
    running: int = 0
    """Jobs that run here."""
    turn_age_s: float | None = None
    """Since the last turn that reached the database."""
    beat_age_s: float | None = None
    """Since the last heartbeat that was written."""

    @classmethod
    def of(cls, node: Node | None, heart: Heart | None, clock: Clock, *, forked: bool) -> Health:
        if node is None or forked:
            return cls("forked" if forked else "starting")
        at = clock.boottime()
        beat = None if heart is None else heart.last_beat
        return cls(
            "running",
            to_uuid(node.id),
            len(node.held),
            None if node.last_success is None else at - node.last_success,
            None if beat is None else at - beat,
        )
