"""`app.queues`: list, pause, resume and limit whole queues. Calls the store."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from perdure.checks import check_name, check_whole
from perdure.clock import to_datetime
from perdure.errors import InvalidOption
from perdure.limit.rule import AT_MOST
from perdure.store.rows import EVERY_QUEUE, QueueRow
from perdure.worker.lifecycle import log_queue

if TYPE_CHECKING:
    from perdure.app import Perdure


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue as it was when it was read. `live` counts every job that has not ended.

    Counting stops at 10,000, with many queues earlier: `more_queued` and `more_live` say that there are more than
    `queued` and `live`.
    """

    name: str
    paused_at: datetime | None
    queued: int
    running: int
    live: int
    more_queued: bool = False
    more_live: bool = False
    reserved_until: datetime | None = None
    """When the reservation of the queue ends, unless it is renewed; `app.reservations()` tells whose it is."""
    concurrency: int | None = None
    """How many of its jobs may run at once, over all workers. None: no limit."""

    @property
    def paused(self) -> bool:
        return self.paused_at is not None

    @property
    def reserved(self) -> bool:
        return self.reserved_until is not None


class Queues:
    """List, pause, resume and limit queues. The name `*` means all queues."""

    def __init__(self, app: Perdure) -> None:
        self._app = app

    def list(self) -> list[Queue]:
        """Every queue ever used, by name."""
        return [_queue(row) for row in self._app.store.queues()]

    def pause(self, name: str) -> None:
        """From now on nothing is claimed from this queue; running jobs continue. A repeat changes nothing."""
        if self._app.store.pause_queue(check_name(name, "queue"), self._app.clock.now()):
            log_queue("pause", name, in_transaction=self._app.store.in_transaction)

    def resume(self, name: str) -> None:
        """Let a paused queue continue. A repeat changes nothing."""
        if self._app.store.pause_queue(check_name(name, "queue"), None):
            log_queue("resume", name, in_transaction=self._app.store.in_transaction)

    def limit(self, name: str, concurrency: int | None, *, new: bool = False) -> None:
        """How many jobs of this queue may run at once, over all workers; None lifts the limit. `*` counts all jobs.

        Running jobs are not stopped. A repeat changes nothing. InvalidOption: no kind here uses that queue, and no job
        ever has. `new`: also then.
        """
        if concurrency is not None:
            check_whole(concurrency, "concurrency", 1, AT_MOST, code="concurrency_invalid")
        if not new:
            self._check_used(check_name(name, "queue"))
        if self._app.store.limit_queue(check_name(name, "queue"), concurrency):
            log_queue("limit", name, in_transaction=self._app.store.in_transaction)

    def _check_used(self, name: str) -> None:
        """A mistyped name would limit a queue that nobody uses, and look as if it had worked."""
        if name == EVERY_QUEUE or any(kind.defaults.queue == name for kind in self._app.kinds):
            return
        known = {queue.name for queue in self._app.store.queues()} - {EVERY_QUEUE}
        if name not in known:
            from difflib import get_close_matches

            known |= {kind.defaults.queue for kind in self._app.kinds}
            near = get_close_matches(name, sorted(known), n=1)
            meant = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(map(repr, sorted(known)))}"
            raise InvalidOption(
                f"no job has ever been in queue {name!r} ({meant}); with new=True it is limited all the same",
                code="queue_unknown",
            )


def _queue(row: QueueRow) -> Queue:
    paused_at = None if row.paused_at is None else to_datetime(row.paused_at)
    reserved_until = None if row.reserved_until is None else to_datetime(row.reserved_until)
    more = (row.more_queued, row.more_live)
    return Queue(row.name, paused_at, row.queued, row.running, row.live, *more, reserved_until, row.concurrency)
