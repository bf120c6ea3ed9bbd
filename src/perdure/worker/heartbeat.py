"""Says that the node lives, and notices when it does not. In threads of its own; made by `worker`.

It beats for the node as long as the store thread goes on. If that thread hangs, beating stops: others take the jobs,
and this process had better end. A beat goes to the database too and may hang like any other call, so a second thread,
which touches nothing that can, watches the first.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from perdure.clock import Clock
from perdure.errors import PerdureError
from perdure.store.protocols import Store
from perdure.worker.node import Node

BEATS_PER_LEASE = 6
TICK_S = 1.0

logger = logging.getLogger("perdure.worker")


class Watchdog:
    """Notices when something that should count on and on stands still."""

    def __init__(self, count: Callable[[], int], clock: Clock, patience_s: float) -> None:
        self._count = count
        self._clock = clock
        self._patience_s = patience_s
        self._seen = -1
        self._moved_at = self._looked_at = clock.boottime()

    def is_alarmed(self) -> bool:
        at, count = self._clock.boottime(), self._count()
        # After a suspend or a SIGSTOP all threads are late: what is watched gets its time as from now.
        was_asleep, self._looked_at = at - self._looked_at > self._patience_s / 2, at
        if was_asleep or count != self._seen:
            self._seen, self._moved_at = count, at
        return at - self._moved_at >= self._patience_s


class Heart:
    """One node's heartbeat. `beat` is one step of it; `start` puts it into a thread, and a guard into another.

    `moves` counts what the store thread does, successful or not; without it, the node's turns. `also` is done about
    once a second, between beats.
    """

    def __init__(
        self,
        node: Node,
        store: Store,
        clock: Clock,
        *,
        lease_s: float,
        hung: Callable[[], None],
        patience_s: float | None = None,
        moves: Callable[[], int] | None = None,
        also: Sequence[Callable[[], object]] = (),
    ) -> None:
        self._node = node
        self._store = store
        self._clock = clock
        self._beat_every_s = lease_s / BEATS_PER_LEASE
        self._patience_s = lease_s if patience_s is None else patience_s
        self._hung = hung
        self._watchdog = Watchdog(moves or (lambda: node.turns), clock, self._patience_s)
        self._also = also
        self._ticks = 0
        self.last_beat: float | None = None
        """When the last beat was written, by `boottime`."""
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def beat(self) -> bool:
        """Beat once. False: the store thread has not moved for too long, and there will be no more beats."""
        if self._watchdog.is_alarmed():
            return False
        at = self._clock.boottime()
        node_id = self._node.id
        try:
            if self._store.beat(node_id, self._clock.now()):
                self.last_beat = at
            elif self._node.id == node_id:  # else it has come back meanwhile, and this was about who it was before
                self._node.declared_dead = True
                self._node.stir()
        except PerdureError as error:
            logger.warning("the heartbeat could not be written: %s", error)
        return True

    def start(self) -> None:
        thread = threading.Thread(target=self._serve, name="perdure-heart", daemon=True)
        thread.start()
        self._thread = thread
        threading.Thread(target=self._guard, name="perdure-guard", daemon=True).start()

    def beat_no_more(self) -> None:
        """Any thread may say so, the heart's own too."""
        self._stopped.set()

    def stop(self) -> None:
        """Beat no more, and wait for a beat that is under way; not for ever."""
        self._stopped.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(self._patience_s)
            if self._thread.is_alive():
                logger.critical("the last heartbeat does not come back; this node gives up")
                self._hung()

    def _serve(self) -> None:
        next_beat = self._clock.boottime() + self._beat_every_s
        while not self._stopped.wait(min(TICK_S, self._beat_every_s)):
            self._ticks += 1
            self._do_the_rest()
            at = self._clock.boottime()
            if at < next_beat:
                continue
            next_beat = at + self._beat_every_s
            if not self._still_beats():
                logger.critical("the store thread has not moved for %g s; this node gives up", self._patience_s)
                self._hung()
                return

    def _guard(self) -> None:
        watchdog = Watchdog(lambda: self._ticks, self._clock, self._patience_s)
        while not self._stopped.wait(self._patience_s / 4):
            if watchdog.is_alarmed():
                logger.critical("the heartbeat has not moved for %g s; this node gives up", self._patience_s)
                self._hung()
                return

    def _still_beats(self) -> bool:
        """Whatever a beat meets, the heart goes on: without it the node would be dead to others and not notice."""
        try:
            return self.beat()
        except Exception:
            logger.exception("the heartbeat failed")
            return True

    def _do_the_rest(self) -> None:
        for act in self._also:
            try:
                act()
            except PerdureError as error:
                logger.warning("the heart's other work failed: %s", error)
            except Exception:
                logger.exception("the heart's other work failed")
