"""Writes the heartbeat of a node, watches that its threads move, and keeps its `exclusive=` lease. Made by `worker`."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from perdure.clock import Clock, ServerClock
from perdure.errors import PerdureError
from perdure.worker.health import BLOCKED_AFTER_S
from perdure.worker.node import Node
from perdure.worker.options import Parts, WorkerOptions

BEATS_PER_LEASE = 6
TICK_S = 1.0
RENEWALS_PER_LEASE = 6

logger = logging.getLogger("perdure.worker")


class Watchdog:
    """Notices when a count that should keep growing does not."""

    def __init__(self, count: Callable[[], int], clock: Clock, patience_s: float) -> None:
        self._count = count
        self._clock = clock
        self._patience_s = patience_s
        self._seen = -1
        self._moved_at = self._looked_at = clock.boottime()

    def is_stuck(self) -> bool:
        at, count = self._clock.boottime(), self._count()
        # After a suspend or a SIGSTOP all threads are late: what is watched gets its full time from now on.
        was_asleep, self._looked_at = at - self._looked_at > self._patience_s / 2, at
        if was_asleep or count != self._seen:
            self._seen, self._moved_at = count, at
        return at - self._moved_at >= self._patience_s


class Heartbeat:
    """One node's heartbeat. `beat` is one step of it; `start` runs it in a thread, and a guard in another.

    It beats as long as the store thread makes progress. If that thread hangs, it stops: others take the jobs, and this
    process should end. A beat is a database call and may hang too, so the guard, which makes none, watches it.

    `moves` counts what the store thread does, successful or not; without it, the node's turns. `also` is called about
    once a second, between beats. `hung` is called when the store thread or the heartbeat hangs.
    """

    def __init__(
        self,
        node: Node,
        parts: Parts,
        options: WorkerOptions,
        hung: Callable[[], None],
        moves: Callable[[], int] | None = None,
        also: Sequence[Callable[[], object]] = (),
    ) -> None:
        self._node = node
        self._store = parts.store
        self._clock = parts.clock
        self._beat_every_s = options.lease_s / BEATS_PER_LEASE
        self._patience_s = options.patience_s
        self._hung = hung
        self._watchdog = Watchdog(moves or (lambda: node.turns), parts.clock, self._patience_s)
        self._also = also
        self._ticks = 0
        self.last_beat: float | None = None
        """When the last beat was written, by `boottime`."""
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def beat(self) -> bool:
        """Beat once. False: the store thread has not moved for too long, and there will be no more beats."""
        if self._watchdog.is_stuck():
            return False
        at = self._clock.boottime()
        node_id = self._node.id
        try:
            if self._store.beat(node_id, self._clock.now()):
                self.last_beat = at
            elif self._node.id == node_id:  # else it has a new id meanwhile, and the old one was refused
                self._node.declared_dead = True
                self._node.look_again()
        except PerdureError as error:
            logger.warning("the heartbeat could not be written: %s", error)
        return True

    def start(self) -> None:
        thread = threading.Thread(target=self._serve, name="perdure-heart", daemon=True)
        thread.start()
        self._thread = thread
        threading.Thread(target=self._guard, name="perdure-guard", daemon=True).start()

    def stop_beating(self) -> None:
        """Any thread may call it, also its own."""
        self._stopped.set()

    def stop(self) -> None:
        """Beat no more, and wait for a beat that is under way; not for ever."""
        self._stopped.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(self._patience_s)
            if self._thread.is_alive():
                logger.critical("the last heartbeat does not return; this node gives up")
                self._hung()

    def _serve(self) -> None:
        next_beat = self._clock.boottime() + self._beat_every_s
        while not self._stopped.wait(min(TICK_S, self._beat_every_s)):
            self._ticks += 1
            self._run_extras()
            at = self._clock.boottime()
            if at < next_beat:
                continue
            next_beat = at + self._beat_every_s
            if not self._beat_safely():
                logger.critical("the store thread has not moved for %g s; this node gives up", self._patience_s)
                self._hung()
                return

    def _guard(self) -> None:
        watchdog = Watchdog(lambda: self._ticks, self._clock, self._patience_s)
        while not self._stopped.wait(self._patience_s / 4):
            if watchdog.is_stuck():
                logger.critical("the heartbeat has not moved for %g s; this node gives up", self._patience_s)
                self._hung()
                return

    def _beat_safely(self) -> bool:
        """No error ends the beats: without them others would declare the node dead, and it would not notice."""
        try:
            return self.beat()
        except Exception:
            logger.exception("the heartbeat failed")
            return True

    def _run_extras(self) -> None:
        for act in self._also:
            try:
                act()
            except PerdureError as error:
                logger.warning("the heartbeat's other work failed: %s", error)
            except Exception:
                logger.exception("the heartbeat's other work failed")


class LoopProbe:
    """Whether the event loop runs: `ping` sends it a call, and `blocked_s` says for how long that has waited."""

    def __init__(self, loop: Callable[[], asyncio.AbstractEventLoop | None], clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._sent: float | None = None
        self._warned = False

    @property
    def blocked_s(self) -> float:
        sent = self._sent
        return 0.0 if sent is None else self._clock.boottime() - sent

    def ping(self) -> None:
        """Called every second or so."""
        if self._sent is not None:
            self._warn()
            return
        loop = self._loop()
        if loop is not None:
            self._sent = self._clock.boottime()
            with suppress(RuntimeError):  # closed: nothing runs on it
                loop.call_soon_threadsafe(self._on_loop)

    def _on_loop(self) -> None:
        self._sent = None
        self._warned = False

    def _warn(self) -> None:
        if self.blocked_s > BLOCKED_AFTER_S and not self._warned:
            self._warned = True
            logger.warning(
                "a handler has blocked the event loop for %.0f s; move blocking work into a plain function",
                self.blocked_s,
            )


class ClockWatch:
    """Says when this machine's wall clock is not the server's, once; and again if it was right in between."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock if isinstance(clock, ServerClock) else None
        self._warned = False

    def look(self) -> None:
        wrong = None if self._clock is None else self._clock.complaint
        if wrong is not None and not self._warned:
            logger.warning("clocks differ: %s; jobs go by the server's, your own code may not", wrong)
        self._warned = wrong is not None


class Exclusive:
    """`exclusive=`: of all workers that name it, one claims and the others stand by. A lease that the node holds.

    The holder stops claiming when the lease has run out by its own clock (`held`), which is before any other can take
    it; so a process that was frozen claims nothing when it wakes up. Jobs that it claimed before keep running.
    """

    def __init__(self, name: str, parts: Parts, node: Node, lease_s: float) -> None:
        self.name = name
        self._lock = f"worker:{name}"
        self._store = parts.store
        self._clock = parts.clock
        self._node = node
        """Its id changes when it was declared dead."""
        self._lease_s = lease_s
        self._lease_us = round(lease_s * 1_000_000)
        self._owner: str | None = None
        self._until = 0.0
        self._next_at = 0.0

    @property
    def held(self) -> bool:
        """Whether this worker is the active one."""
        return self._owner is not None and self._clock.boottime() < self._until

    def keep(self) -> bool:
        """Renew the lease when it is time, or take it if it is free. True: this worker has become the active one."""
        at = self._clock.boottime()
        if at < self._next_at and not self._has_new_id:
            return False
        self._next_at = at + self._lease_s / RENEWALS_PER_LEASE  # also where the database cannot be reached
        if self._has_new_id:
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
        holder = self._store.lock_holder(self._lock, self._clock.now())
        if holder is not None and holder not in {node.id.hex() for node in self._store.live_nodes()}:
            self._store.release_lock(self._lock, holder)  # of a node that was declared dead: it can claim nothing
            holder = None
        if holder is not None or not self._store.take_lock(self._lock, owner, self._clock.now(), self._lease_us):
            self._next_at = at  # it may be free at the next look
            return False
        self._hold(owner, at)
        logger.info("this worker is the active one of %r", self.name)
        return True

    def _renew(self, at: float) -> None:
        assert self._owner is not None
        if self._store.renew_lock(self._lock, self._owner, self._clock.now(), self._lease_us):
            self._hold(self._owner, at)
        else:
            self._owner = None
            logger.warning("this worker is not the active one of %r any more; it stands by", self.name)

    def _hold(self, owner: str, at: float) -> None:
        """`at` was read before the lease was asked for, so the lease ends here first."""
        self._until = at + self._lease_s
        self._owner = owner

    @property
    def _has_new_id(self) -> bool:
        """The node was declared dead and came back with a new id: the lease belongs to the old one."""
        return self._owner is not None and self._owner != self._node.id.hex()
