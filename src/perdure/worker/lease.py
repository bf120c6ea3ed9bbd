"""When a silent node counts as dead, and a run as overdue. Pure: `upkeep/rescue` tells what was seen and asks.

Clocks of different machines are never compared, and no wall clock decides. What counts is what one observer has itself
seen for long enough by its own clock, looking often enough in between: it was not looking while it was itself asleep.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from perdure.ids import NodeId, RunId
from perdure.job.model import LiveJob
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
        """Note the nodes as they are at `at` (boottime); answers those that have been silent for a whole lease."""
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


class Overtime:
    """For how long one observer has seen each run open. The owner stops its runs itself, by its own clock: whoever else
    does waits until it has surely had the time to."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._watched_s = 0.0
        self._first_seen: dict[RunId, float] = {}
        self._last_look: float | None = None

    def look(self, running: Iterable[LiveJob], at: float) -> list[LiveJob]:
        """Note the runs that are open at `at` (boottime); answers those seen open for their time-out and a lease more.

        A run that is not among them is forgotten. The time between two looks that are far apart does not count.
        """
        if self._last_look is not None and at - self._last_look <= self._lease_s / LOOKS:
            self._watched_s += at - self._last_look
        self._last_look = at
        before, self._first_seen = self._first_seen, {}
        overdue: list[LiveJob] = []
        for live in running:
            if live.run_id is None or live.timeout_ms is None:
                continue
            since = self._first_seen[live.run_id] = before.get(live.run_id, self._watched_s)
            if self._watched_s - since >= live.timeout_ms / 1000 + self._lease_s:
                overdue.append(live)
        return overdue
