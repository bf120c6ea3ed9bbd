"""`exclusive=`: of all workers that name it, one claims; the others stand by. Kept up by `heart`, asked by `worker`."""

from __future__ import annotations

import logging

from perdure.clock import Micros
from perdure.worker.node import Node
from perdure.worker.options import Parts

RENEWALS_PER_LEASE = 6

logger = logging.getLogger("perdure.worker")


class Exclusive:
    """One worker's hold on a name, as a lease in the database that its node owns.

    Whoever holds it stops claiming when its lease has run out by its own clock (`held`), which is before anybody else
    can take it; so a process that was frozen claims nothing when it goes on. Jobs it had claimed before go on.
    """

    def __init__(self, name: str, parts: Parts, node: Node, lease_s: float) -> None:
        self.name = name
        self._lock = f"worker:{name}"
        self._store = parts.store
        self._clock = parts.clock
        self._node = node
        """Its id is another one after it was declared dead."""
        self._lease_s = lease_s
        self._owner: str | None = None
        self._until = 0.0
        self._next_at = 0.0

    @property
    def held(self) -> bool:
        """Whether this worker is the one."""
        return self._owner is not None and self._clock.boottime() < self._until

    def keep(self) -> bool:
        """Renew the hold when it is time, or take it if it is free. True: this worker has just become the one."""
        at = self._clock.boottime()
        if at < self._next_at and not self._is_another:
            return False
        self._next_at = at + self._lease_s / RENEWALS_PER_LEASE  # also where the database cannot be reached
        if self._is_another:
            self.release()
        if self._owner is None:
            return self._take(at)
        self._renew(at)
        return False

    def release(self) -> None:
        """Let the next one take over at once."""
        owner, self._owner = self._owner, None
        if owner is not None:
            self._store.release_lock(self._lock, owner)

    def _take(self, at: float) -> bool:
        owner = self._node.id.hex()
        holder = self._store.lock_holder(self._lock, self._now())
        if holder is not None and holder not in {node.id.hex() for node in self._store.live_nodes()}:
            self._store.release_lock(self._lock, holder)  # of a node that was declared dead: it can claim nothing
            holder = None
        if holder is not None or not self._store.take_lock(self._lock, owner, self._now(), self._lease_us):
            self._next_at = at  # it may be free at the next look
            return False
        self._hold(owner, at)
        logger.info("this worker is the active one of %r", self.name)
        return True

    def _renew(self, at: float) -> None:
        assert self._owner is not None
        if self._store.renew_lock(self._lock, self._owner, self._now(), self._lease_us):
            self._hold(self._owner, at)
        else:
            self._owner = None
            logger.warning("this worker is not the active one of %r any more; it stands by", self.name)

    def _hold(self, owner: str, at: float) -> None:
        """`at` is from before the lease was asked for: by our own clock it ends first here."""
        self._until = at + self._lease_s
        self._owner = owner

    @property
    def _is_another(self) -> bool:
        """The node was declared dead and came back under a new id: what it held was the old one's."""
        return self._owner is not None and self._owner != self._node.id.hex()

    @property
    def _lease_us(self) -> int:
        return round(self._lease_s * 1_000_000)

    def _now(self) -> Micros:
        return self._clock.now()
