"""Counts what SQLite does for an operation, so that tests can say what costs nothing."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from perdure.store import read
from perdure.store.engine import Op, Pair, Result, drive
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


class Noting(SqliteDriver):
    """Notes the names of the statements it runs, each once for all its rows."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__(connection, STATEMENTS)
        self.seen: list[str] = []

    def execute(self, call: Pair) -> Result:
        self.seen.append(call[0])
        return super().execute(call)


def statements_of(path: Path, op: Op[object]) -> list[str]:
    """The statements of an operation, in their order. It is committed."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        driver = Noting(connection)
        connection.execute("BEGIN IMMEDIATE")
        drive(op, driver)
        connection.execute("COMMIT")
    return driver.seen
