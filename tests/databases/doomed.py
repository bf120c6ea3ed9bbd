"""A process that moves a queue and kills itself: at the nth statement it writes to an SQLite file, or after a page."""

from __future__ import annotations

import sqlite3
from functools import partial
from pathlib import Path

from perdure.ops.copying import Progress, copy
from tests.crash.points import Mortal, points
from tests.databases.conftest import side


def move(source: str, target: str, nth: int, reached: Path) -> None:
    vars(sqlite3)["connect"] = partial(sqlite3.connect, factory=Mortal)  # in this process, which is ours alone
    with side(source) as one, side(target) as other:
        one.store.count_rows()
        other.store.count_rows()
        points.arm(nth, reached)
        copy(one, other, _tell, despite_workers=True)


def _tell(step: Progress) -> None:
    points.boundary(f"a page of {step.table} is written")
