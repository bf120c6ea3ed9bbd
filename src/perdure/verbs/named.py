"""`app.queues`: whole queues. Calls the store.

`app.lock`: a named lease that one process at a time holds. Calls the store."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Self

from perdure.clock import to_datetime
from perdure.errors import InvalidOption, LockNotHeld, shown
from perdure.options import check_name
from perdure.store.rows import QueueRow
from perdure.worker.lifecycle import tell_of_queue

if TYPE_CHECKING:
    from perdure.app import Perdure


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue as it was when it was read. `live` counts every job that has not ended.

    Counting ends where it would take long, at 10,000 or, with many queues, before: `more_queued` and `more_live` say
    that there are more than `queued` and `live`.
    """

    name: str
    paused_at: datetime | None
    queued: int
    running: int
    live: int
    more_queued: bool = False
    more_live: bool = False

    @property
    def paused(self) -> bool:
        return self.paused_at is not None


class Queues:
    """List, pause and resume queues. The queue `*` stands for all of them."""

    def __init__(self, app: Perdure) -> None:
        self._app = app

    def list(self) -> list[Queue]:
        """Every queue ever used, by name."""
        return [_queue(row) for row in self._app.store.queues()]

    def pause(self, name: str) -> None:
        """From now on nothing is claimed from this queue; jobs that run go on. A repeat changes nothing."""
        if self._app.store.pause_queue(check_name(name, "queue"), self._app.clock.now()):
            tell_of_queue("pause", name, in_transaction=self._app.store.in_transaction)

    def resume(self, name: str) -> None:
        """Let a paused queue go on. A repeat changes nothing."""
        if self._app.store.pause_queue(check_name(name, "queue"), None):
            tell_of_queue("resume", name, in_transaction=self._app.store.in_transaction)


def _queue(row: QueueRow) -> Queue:
    paused_at = None if row.paused_at is None else to_datetime(row.paused_at)
    return Queue(row.name, paused_at, row.queued, row.running, row.live, row.more_queued, row.more_live)


class Lock:
    """A lease by name: held until released, or until `ttl` seconds have passed without `renew`.

    Whoever works longer than the lease must renew it, and stop when that fails: another may hold it by then.
    """

    def __init__(self, app: Perdure, name: str, ttl: float) -> None:
        if type(ttl) not in (int, float) or not 0 < ttl < 10**10:
            raise InvalidOption(f"ttl must be seconds, more than 0; not {shown(ttl)}", code="ttl_invalid")
        self.name = name
        self.owner = secrets.token_hex(16)
        self._app = app  # not its store: a lock kept at module level must follow the app to another database
        self._ttl_us = max(1, round(ttl * 1_000_000))

    def acquire(self) -> bool:
        """Try once. False: someone else holds it."""
        return self._app.store.take_lock(self.name, self.owner, self._app.clock.now(), self._ttl_us)

    def renew(self) -> bool:
        """Hold it for another `ttl`. False: it has run out, and may be someone else's."""
        return self._app.store.renew_lock(self.name, self.owner, self._app.clock.now(), self._ttl_us)

    def release(self) -> bool:
        """Give it back. False: it was not ours any more."""
        return self._app.store.release_lock(self.name, self.owner)

    @property
    def held(self) -> bool:
        return self._app.store.lock_holder(self.name, self._app.clock.now()) == self.owner

    def __enter__(self) -> Self:
        if not self.acquire():
            raise LockNotHeld(
                f"lock {self.name!r} is held by someone else; try again later, or use acquire() and its answer",
                code="lock_taken",
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
