"""A process that archives and prunes, and kills itself at the nth statement."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from perdure import Perdure, Retention
from perdure.clock import Micros
from perdure.kind import Registry
from perdure.upkeep.retention import built_in
from tests.crash.handlers import Place
from tests.crash.points import begin, points


def sweep(path: Path, nth: int, reached: Path) -> None:
    """Everything that has ended is old."""
    app = begin(Place(str(path), path))
    app.store.live_nodes()
    points.arm(nth, reached)
    sweep_with(app, path.with_suffix(".archive"))


def sweep_with(app: Perdure, folder: Path) -> None:
    none = timedelta(0)
    retention = Retention(none, none, none, none, logs=none, records=none, archive=folder)
    prune, archive, _ = built_in(app.store, app.clock, retention, Registry())
    for work in (archive, prune):
        work.begin(Micros(app.clock.now() + 3_600_000_000))
        while work.step() is None:
            pass
