"""A bell for stores that cannot ring from outside: the worker looks for itself. Used by `dialects/postgres`."""

from __future__ import annotations

import threading

LOOK_S = 0.2


class PollingBell:
    """Rung from inside the process; otherwise every wait ends with "perhaps" after a fifth of a second."""

    def __init__(self) -> None:
        self._rung = False
        self._changed = threading.Condition()  # reentrant: a signal handler may ring while its thread does

    def ring(self) -> None:
        with self._changed:
            self._rung = True
            self._changed.notify()

    def wait(self, timeout_s: float, *, rung_only: bool = False) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._rung, timeout_s if rung_only else min(timeout_s, LOOK_S))
            rung, self._rung = self._rung, False
        return rung or (timeout_s > LOOK_S and not rung_only)

    def close(self) -> None:
        """Nothing is held."""
