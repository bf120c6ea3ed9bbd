"""Says that the node lives, and notices when it does not. A thread of its own; made by `worker`.

It beats for the node as long as the store thread goes on. If that thread hangs, beating stops: others take the jobs,
and this process had better end.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from perdure.clock import Clock
from perdure.errors import PerdureError
from perdure.store.protocols import Store
from perdure.worker.node import Node

BEATS_PER_LEASE = 6

logger = logging.getLogger("perdure.worker")


class Heart:
    """One node's heartbeat and watchdog. `beat` is one step of it; `start` puts it into a thread."""

    def __init__(self, node: Node, store: Store, clock: Clock, *, lease_s: float, hung: Callable[[], None]) -> None:
        self._node = node
        self._store = store
        self._clock = clock
        self._lease_s = lease_s
        self._hung = hung
        self._turns = -1
        self._moved_at = clock.boottime()
        self.last_beat: float | None = None
        """When the last beat was written, by `boottime`."""
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def beat(self) -> bool:
        """Beat once. False: the store thread has not moved for a whole lease, and there will be no more beats."""
        at = self._clock.boottime()
        if self._node.turns != self._turns:
            self._turns, self._moved_at = self._node.turns, at
        elif at - self._moved_at >= self._lease_s:
            return False
        try:
            if self._store.beat(self._node.id, self._clock.now()):
                self.last_beat = at
            else:
                self._node.declared_dead = True
                self._node.stir()
        except PerdureError as error:
            logger.warning("the heartbeat could not be written: %s", error)
        return True

    def start(self) -> None:
        self._thread = threading.Thread(target=self._serve, name="perdure-heart", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _serve(self) -> None:
        while not self._stopped.wait(self._lease_s / BEATS_PER_LEASE):
            if not self.beat():
                logger.critical("the store thread has not moved for %g s; this node gives up", self._lease_s)
                self._hung()
                return
