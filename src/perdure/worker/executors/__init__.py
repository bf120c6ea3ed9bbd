"""What the node knows of an executor, and how an executor hands runs back."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from perdure.worker.context import JobContext
from perdure.worker.run import Assignment, Ended
from perdure.worker.signals import Stop

WARN_AT = 0.8
"""The part of its time-out after which a run is warned about."""

logger = logging.getLogger("perdure.worker")


class Executor(Protocol):
    """Runs handlers somewhere. Every assignment given to `start` comes back once, through the inbox."""

    def start(self, tasks: Sequence[Assignment]) -> None:
        """Begin these runs, each as soon as there is room. Does not wait for any of them."""
        ...

    def stop(self, ctx: JobContext, why: Stop) -> None:
        """Make a run end soon: its handler is interrupted. Nothing to do for one that has ended."""
        ...

    def close(self, patience_s: float) -> bool:
        """No more runs will come. False: some handlers have not ended in time and are left behind."""
        ...


class Inbox:
    """Ended runs on their way to the store thread. Any thread may put them in."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ended: deque[Ended] = deque()
        self.ring = ring

    def put(self, ended: Ended) -> None:
        self._ended.append(ended)
        self.ring()

    def put_quietly(self, ended: Ended) -> None:
        """The caller rings when it has put in all that it has."""
        self._ended.append(ended)

    def take(self) -> list[Ended]:
        """All that are in it."""
        taken: list[Ended] = []
        while self._ended:
            taken.append(self._ended.popleft())
        return taken

    def __bool__(self) -> bool:
        return bool(self._ended)


def warn_of_timeout(task: Assignment) -> None:
    logger.warning(
        "%s %s has used %d %% of its time-out of %g s",
        task.kind.name,
        task.ctx.job_id,
        round(WARN_AT * 100),
        task.timeout_s or 0,
    )
