"""When a silent node counts as dead, and a run as overdue. Pure: `upkeep/rescue` tells what was seen and asks.

Clocks of different machines are never compared, and no wall clock decides. What counts is what one observer has itself
seen for long enough by its own clock: for the lease of the node that it watches, looking often enough in between, and
being able to write all the while. It was not looking while it was asleep; and while its own beats are not written, it
may be the database that lets nobody write.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from perdure.ids import NodeId, RunId
from perdure.job.model import LiveJob
from perdure.store.answers import USUAL_LEASE_US, NodeRow

LOOKS = 3
"""How often a node must have been seen silent, at least. A third of a lease may be missed in between, not more: a node
beats six times in it."""
LOOK_EVERY_S = 1.0


def look_every_s(lease_s: float) -> float:
    """How often an observer with this lease looks: a short one often enough that others with it are seen in time."""
    return min(LOOK_EVERY_S, lease_s / (2 * LOOKS))


def lease_s_of(node: NodeRow | None, own_lease_s: float) -> float:
    """By which lease a node is judged: its own.

    One that an older Perdure registered does not name it. Most likely it has that of the observer, or the usual one:
    the longer of the two, since waiting costs time, and a wrong death the work of a healthy node.
    """
    if node is None or node.lease_us is None:
        return max(own_lease_s, USUAL_LEASE_US / 1_000_000)
    return node.lease_us / 1_000_000


class Seen(NamedTuple):
    """A beat, when it was first seen, since when nothing of it was missed, and how many looks there were since then."""

    beat: int
    first: float
    since: float
    looks: int


class Watch:
    """What one observer has seen of the other nodes."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._pace_s = 2 * look_every_s(lease_s)
        self._seen: dict[NodeId, Seen] = {}
        self._last_look: float | None = None
        self._own: tuple[NodeId, int] | None = None
        self._own_moved_at = -math.inf
        self._missed_s = 0.0
        self.doubts = False
        """Someone has been silent for a third of its lease, which nobody is who is well. The observer should prove with
        a beat of its own, before each look, that it is not the database that takes none."""

    @property
    def is_attentive(self) -> bool:
        """Whether it could look, and write its own beats, all the time up to the last look."""
        return self._missed_s <= max(self._lease_s / LOOKS, self._pace_s)

    def look(self, nodes: Iterable[NodeRow], own: NodeId, at: float) -> list[NodeRow]:
        """Note the live nodes, `own` among them, as they are at `at` (boottime).

        Returns those that have been silent for a whole lease of theirs. Where the observer missed too much of it, which
        is a third of their lease, the observation starts over.
        """
        nodes = list(nodes)
        self._missed_s = self._missed(nodes, own, at)
        before, self._seen, self.doubts = self._seen, {}, False
        silent: list[NodeRow] = []
        for node in nodes:
            if node.id == own:
                continue
            lease_s = lease_s_of(node, self._lease_s)
            known = before.get(node.id)
            if known is None or known.beat != node.beat:
                known = Seen(node.beat, at, at, 0)
            elif self._missed_s > max(lease_s / LOOKS, self._pace_s):
                known = known._replace(since=at, looks=0)
            seen = self._seen[node.id] = known._replace(looks=known.looks + 1)
            self.doubts |= at - seen.first >= lease_s / LOOKS
            if at - seen.since >= lease_s and seen.looks > LOOKS:
                silent.append(node)
        return silent

    def _missed(self, nodes: Iterable[NodeRow], own: NodeId, at: float) -> float:
        """For how long the observer may have missed something: since its last look, or since its own beat was seen to
        move, whichever is longer ago."""
        last, self._last_look = self._last_look, at
        beat = next(((node.id, node.beat) for node in nodes if node.id == own), None)
        moved_at = self._own_moved_at
        if beat != self._own:
            self._own, self._own_moved_at = beat, at
        if beat is None:
            return math.inf  # it has been declared dead itself: what it has seen is worth nothing
        return 0.0 if last is None else at - min(last, moved_at)


class Overtime:
    """For how long one observer has seen each run open. The owner stops its runs itself, by its own clock: whoever else
    does waits until it has surely had the time to."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._watched_s = 0.0
        self._first_seen: dict[RunId, float] = {}
        self._last_look: float | None = None

    def look(
        self, running: Iterable[LiveJob], nodes: Mapping[NodeId, NodeRow], at: float, *, is_attentive: bool
    ) -> list[LiveJob]:
        """Note the runs that are open at `at` (boottime), on these nodes.

        Returns those seen open for their time-out and a lease of their node more. A run that is not among them is
        forgotten. Not attentive: the time since the last look does not count.
        """
        if self._last_look is not None and is_attentive:
            self._watched_s += at - self._last_look
        self._last_look = at
        before, self._first_seen = self._first_seen, {}
        overdue: list[LiveJob] = []
        for live in running:
            if live.run_id is None or live.timeout_ms is None:
                continue
            holder = None if live.node_id is None else nodes.get(live.node_id)
            since = self._first_seen[live.run_id] = before.get(live.run_id, self._watched_s)
            if self._watched_s - since >= live.timeout_ms / 1000 + lease_s_of(holder, self._lease_s):
                overdue.append(live)
        return overdue
