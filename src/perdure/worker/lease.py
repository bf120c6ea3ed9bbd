"""When a silent node counts as dead. Pure: `upkeep/rescue` tells it what was seen and asks.

Clocks of different machines are never compared. A node is dead when one observer has seen the same beat for a whole
lease of its own clock, looking often enough in between: an observer that was itself asleep starts over.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from perdure.ids import NodeId
from perdure.store.answers import NodeRow

LOOKS = 3
"""How often a node must have been seen silent, at least."""


class Seen(NamedTuple):
    """A beat, since when it has been the same, and how many looks have found it so."""

    beat: int
    since: float
    looks: int


class Watch:
    """What one observer has seen of the other nodes."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._seen: dict[NodeId, Seen] = {}
        self._last_look: float | None = None

    def look(self, nodes: Iterable[NodeRow], at: float) -> list[NodeRow]:
        """Note the nodes as they are at `at` (boottime); answers those that have been silent for too long."""
        if self._last_look is not None and at - self._last_look > self._lease_s / LOOKS:
            self._seen.clear()  # nobody can tell what happened while this observer did not look
        self._last_look = at
        before, self._seen = self._seen, {}
        silent: list[NodeRow] = []
        for node in nodes:
            known = before.get(node.id)
            if known is None or known.beat != node.beat:
                known = Seen(node.beat, at, 0)
            seen = self._seen[node.id] = known._replace(looks=known.looks + 1)
            if at - seen.since >= self._lease_s and seen.looks > LOOKS:
                silent.append(node)
        return silent
