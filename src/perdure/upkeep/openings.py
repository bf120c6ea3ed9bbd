"""Looks anew at limits that open later than they can: after the clock was set back, their lines would wait for the old
time. A chore of every worker, which only reads while there is none."""

from __future__ import annotations

import math

from perdure.clock import Clock
from perdure.ids import IdFactory
from perdure.store.protocols import Store
from perdure.upkeep.chore import Chore

LOOK_EVERY_S = 10.0
OF_A_SERVER_S = 60.0
"""A look is a few statements, and the clock of a server is rarely set back."""
AT_ONCE = 500


class OpeningWatch:
    """Finds keys that open further away than a whole window, and lets those of their lines go that fit."""

    def __init__(self, store: Store, clock: Clock, ids: IdFactory) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self._every_s = LOOK_EVERY_S if store.single_writer else OF_A_SERVER_S

    def chore(self) -> Chore:
        return Chore("openings", lambda: self._every_s, self.look)

    def look(self) -> int:
        """Returns how many keys were opened."""
        now = self._clock.now()
        try:
            if not self._store.check("key_opens_never", now, 1):
                return 0
        except NotImplementedError:  # a store that has no limits
            self._every_s = math.inf
            return 0
        return self._store.repair("reopen_keys", now, self._ids, AT_ONCE)
