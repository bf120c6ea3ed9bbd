"""A bell for stores that cannot ring from outside: the worker looks for itself. Used by `dialects/postgres`."""

from __future__ import annotations

import threading

LOOK_S = 0.2


class PollingBell:
    """Rung from inside the process; otherwise every wait ends with "perhaps" after a fifth of a second."""

    def __init__(self) -> None:
        self._rung = threading.Event()

    def ring(self) -> None:
        self._rung.set()

    def wait(self, timeout_s: float) -> bool:
        rung = self._rung.wait(min(timeout_s, LOOK_S))
        self._rung.clear()
        return rung or timeout_s > LOOK_S

    def close(self) -> None:
        """Nothing is held."""
