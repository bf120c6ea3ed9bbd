"""Operations inside a transaction that is open already: ours (`database`) or the user's (`tx`)."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from perdure.store.sql.dialects.sqlite.sql import STATEMENTS
from perdure.store.sql.drivers.sqlite import SqliteDriver
from perdure.store.sql.engine import RELEASE, ROLLBACK_TO, SAVEPOINT, Make, drive

T = TypeVar("T")


class Transaction:
    """An open transaction. One of ours is joined by plain calls on the same thread or task."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.driver = SqliteDriver(connection, STATEMENTS)

    def execute(self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> sqlite3.Cursor:
        """Run a statement of the user's own in it."""
        return self.connection.execute(sql, parameters)

    def run(self, make: Make[T]) -> T:
        """Run an operation inside; on an error nothing of it remains, and the transaction goes on."""
        self.driver.execute(SAVEPOINT)
        try:
            answer = drive(make(), self.driver)
        except BaseException:
            if self.connection.in_transaction:
                self.driver.execute(ROLLBACK_TO)
                self.driver.execute(RELEASE)
            raise
        self.driver.execute(RELEASE)
        return answer
