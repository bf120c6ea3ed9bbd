"""Closes reservations whose time is over or whose holder is gone. A chore of every worker, about once a second; whoever
waits for a reserved queue does it too.

`why_over` decides, and touches no database. No wall clock takes part: one that is set forward must not end what someone
still holds, and one that is set back must not keep a queue closed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from perdure.clock import Clock, Micros
from perdure.ids import ReservationId
from perdure.store.protocols import Store
from perdure.store.reservation import EXPIRED
from perdure.store.rows import Process, ReservationRow
from perdure.upkeep.chore import Chore
from perdure.worker.lifecycle import log_reservation_expired
from perdure.worker.liveness import Liveness

LOOK_EVERY_S = 1.0
"""While there is one."""


def boot_us(clock: Clock) -> int:
    """The boot clock as reservations store it."""
    return round(clock.boottime() * 1_000_000)


def why_over(
    row: ReservationRow, here: Process, at_us: int, seen_us: int, *, is_gone: bool, is_local: bool
) -> str | None:
    """Why a reservation has ended, for the log. None: it is still held.

    `at_us`: the boot clock of this machine, the observer's. `seen_us`: for how long the observer has seen it without a
    renewal. `is_local`: the database is a file, which two machines of one name do not share.
    """
    if is_gone:
        return "its process has ended"
    if row.boot_id is not None and row.boot_id == here.boot_id:
        return "its time is over" if at_us >= row.expires_boot else None
    if is_local and None not in (row.boot_id, here.boot_id) and row.host == here.host:
        return "its machine was started again"
    return "its time is over" if seen_us >= row.lasts_us else None


class ReservationWatch:
    """What one observer has seen of the active reservations.

    Two may look at once, and one may decide on what is no longer true: a reservation is closed only if it is as it was
    read, so a renewal meanwhile wins, and the later of two closes changes nothing.
    """

    def __init__(self, store: Store, clock: Clock, liveness: Liveness) -> None:
        self._store = store
        self._clock = clock
        self._liveness = liveness
        self._seen_since: dict[tuple[ReservationId, Micros], int] = {}
        """Since when it has been seen with this expiry, by this machine's boot clock."""
        self._every_s = store.look_every_s

    def chore(self) -> Chore:
        return Chore("reservations", lambda: self._every_s, self.look)

    def look(self) -> int:
        """Close those that are over. Returns how many."""
        try:
            active = self._store.active_reservations()
        except NotImplementedError:  # a store without reservations has nothing to close
            self._every_s = math.inf
            return 0
        self._every_s = min(LOOK_EVERY_S, self._store.look_every_s) if active else self._store.look_every_s
        return self.close_over(active) if active or self._seen_since else 0

    def close_over(self, active: Iterable[ReservationRow]) -> int:
        """Of these, which are all that this observer watches, close those that are over."""
        here, at_us = self._liveness.own(), boot_us(self._clock)
        before, self._seen_since = self._seen_since, {}
        closed = 0
        for row in active:
            first = self._seen_since[row.id, row.expires_at] = before.get((row.id, row.expires_at), at_us)
            is_gone, is_local = self._liveness.is_gone(row), self._store.single_writer
            why = why_over(row, here, at_us, at_us - first, is_gone=is_gone, is_local=is_local)
            if why and self._store.close_reservation(row.id, EXPIRED, self._clock.now(), row.expires_at):
                log_reservation_expired(row, why)
                closed += 1
        return closed
