"""What a worker does between turns, as a list of chores. Run by `worker/loop` and by the simulator."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from perdure.clock import Clock
from perdure.errors import PerdureError, SchemaError
from perdure.store.protocols import OUTAGES

logger = logging.getLogger("perdure.worker")


class Chore(NamedTuple):
    """Something that every worker does, about every `every_s` seconds, in its store thread.

    `run` returns how much work it found for this node, as a number or as True. Whatever it does, another worker may do
    at the same time. `name` is what the log calls it. `every_s` is a function where the rest after a run varies.
    """

    name: str
    every_s: float | Callable[[], float]
    run: Callable[[], int]
    is_needed: bool = False
    """Without its first run the worker does not start."""

    def rest_s(self) -> float:
        """For how long it has nothing to do after a run."""
        return self.every_s() if callable(self.every_s) else self.every_s


class Chores:
    """Runs each chore when it is due. One that fails is logged, and does not delay the others.

    `found_work` is called when a chore has found some.
    """

    def __init__(self, chores: Sequence[Chore], clock: Clock, found_work: Callable[[], object]) -> None:
        self._chores = chores
        self._clock = clock
        self._found_work = found_work
        self._due_at = [0.0] * len(chores)
        self._next = 0.0

    def start(self) -> None:
        """Before the first turn: run each once. A wrong schema is raised; so is an outage, if the chore is needed."""
        for chore in self._chores:
            try:
                chore.run()
            except SchemaError:
                raise
            except PerdureError as error:
                if chore.is_needed and isinstance(error, OUTAGES):
                    raise
                _log_failure(chore, error)

    def run_due(self) -> float:
        """Run those that are due; returns for how many seconds there will be none."""
        at = self._clock.boottime()
        if at >= self._next:
            for number, chore in enumerate(self._chores):
                if at >= self._due_at[number]:
                    self._run(chore)
                    self._due_at[number] = at + chore.rest_s()
            self._next = min(self._due_at)
        return self._next - at

    def _run(self, chore: Chore) -> None:
        try:
            if chore.run():
                self._found_work()
        except PerdureError as error:
            _log_failure(chore, error)
        except Exception:
            logger.exception("the chore %s failed; it runs again in %g s", chore.name, chore.rest_s())


def _log_failure(chore: Chore, error: PerdureError) -> None:
    logger.warning("the chore %s failed; it runs again in %g s: %s", chore.name, chore.rest_s(), error)
