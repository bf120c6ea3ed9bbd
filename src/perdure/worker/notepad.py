"""What runs have said on the way and the database does not know yet: log lines, artifacts, metrics. Kept by `node`."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from perdure.clock import Clock
from perdure.errors import PerdureError
from perdure.store.answers import LogLine, Notes, Turn
from perdure.store.away import AWAY
from perdure.store.protocols import Store
from perdure.worker.context import JobContext, Told

EVERY_S = 1.0
"""How often runs that go on are asked."""

logger = logging.getLogger("perdure.worker")


class Notepad:
    """Gathers notes for the next turn, and has them again for the one after if that turn fails."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._untold: list[tuple[JobContext, Told]] = []
        self.next = 0.0
        """When runs that go on will be asked again, by `boottime`."""

    def gather(self, ended: Iterable[JobContext], going_on: Iterable[JobContext]) -> Notes | None:
        """What ended runs have said, now; what the others have said, about once a second."""
        contexts = list(ended)
        at = self._clock.boottime()
        if at >= self.next and not self._untold:  # during an outage runs keep their newest lines themselves
            self.next = at + EVERY_S
            contexts += going_on
        self._untold += [(ctx, said) for ctx in contexts if (said := ctx.take_notes()) is not None]
        told = self._untold
        if not told:
            return None
        return Notes(
            lines=[line for _, said in told for line in said.lines],
            artifacts=[(ctx.claim.run_id, said.artifacts) for ctx, said in told if said.artifacts],
            metrics=[(ctx.claim.run_id, said.metrics) for ctx, said in told if said.metrics is not None],
            kept_from=list({line.run_id: line for line in _dropped(told)}.values()),  # of one run the last counts
        )

    def clear(self) -> None:
        """The database has it all."""
        self._untold = []

    def write_alone(self, ended: Iterable[JobContext]) -> None:
        """After a refusal, by itself. What the database cannot take is dropped: it must not stop the node."""
        notes = self.gather(ended, ())
        try:
            if notes is not None:
                self._store.turn(Turn(notes=notes), self._clock.now())
        except AWAY:
            raise
        except PerdureError as error:
            logger.warning("what %d runs had to say was refused and is dropped: %s", len(self._untold), error)
        self.clear()


def _dropped(told: Sequence[tuple[JobContext, Told]]) -> list[LogLine]:
    """For each run that said too much, the line that stands for those dropped."""
    return [
        said.lines[0]._replace(
            line=said.first_kept - 1,
            level="…",
            message=f"{said.first_kept} earlier lines were dropped",
            fields=None,
        )
        for _, said in told
        if said.first_kept and said.lines
    ]
