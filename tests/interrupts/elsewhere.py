"""Somebody else who writes to the database while a program is interrupted."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing, suppress

from perdure.store.open import is_sqlite


def commit_elsewhere(url: str, over: threading.Event) -> None:
    """Somebody else writes: a snapshot that is still held is an old one from now on."""
    if not is_sqlite(url):
        return
    with closing(sqlite3.connect(url, isolation_level=None)) as connection:
        connection.execute("PRAGMA wal_autocheckpoint=0")
        connection.execute("CREATE TABLE IF NOT EXISTS elsewhere (n INTEGER)")
        while not over.wait(0.002):
            with suppress(sqlite3.OperationalError):
                connection.execute("INSERT INTO elsewhere VALUES (1)")
