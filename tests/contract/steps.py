"""Counts what SQLite does for an operation, so that tests can say what costs nothing."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from perdure.store import read
from perdure.store.engine import Op, drive
from perdure.store.rows import JobFilter, Page, RunFilter, Spot
from perdure.store.sqlite.driver import SqliteDriver
from perdure.store.sqlite.statements import STATEMENTS


class Steps:
    """Counts what SQLite does, in steps of its virtual machine: the same on every machine."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path)
        self._driver = SqliteDriver(self._connection, STATEMENTS)
        self._count = 0

    def _step(self) -> int:
        self._count += 1
        return 0

    def worst_page(self, wanted: JobFilter | RunFilter) -> int:
        """The most that any page of this listing took, in tens of steps."""
        worst, spot = 0, None
        self._connection.set_progress_handler(self._step, 10)
        while True:
            self._count = 0
            page = drive(self._page(wanted, spot), self._driver)
            worst, spot = max(worst, self._count), page.next
            if spot is None:
                return worst

    def worst(self, op: Op[object]) -> int:
        self._connection.set_progress_handler(self._step, 10)
        self._count = 0
        drive(op, self._driver)
        return self._count

    def _page(self, wanted: JobFilter | RunFilter, spot: Spot | None) -> Op[Page[object]]:
        page: Op[Page[object]] = (
            read.jobs(wanted, spot, 20)  # type: ignore[assignment]
            if isinstance(wanted, JobFilter)
            else read.runs(wanted, spot, 20)
        )
        return page

    def close(self) -> None:
        self._connection.close()
