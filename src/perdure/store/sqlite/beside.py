"""Writes of an ORM on another connection while a transaction of ours is open in the same thread: on one SQLite file
they would wait for it, and it for them. So they are refused at once, and so is a transaction of ours while Django has
one open here that holds the file. Used by `database`.

SQLAlchemy and Django tell before they run a statement; neither is imported here. A plain `sqlite3` connection does not.
"""

from __future__ import annotations

import re
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from perdure.errors import TransactionError
from perdure.store.sqlite.files import Identity, identity_of
from perdure.store.transaction import open_here

_READS = re.compile(
    r"\s*(?:(?:SELECT|VALUES|EXPLAIN|PRAGMA|SAVEPOINT|RELEASE|ROLLBACK|COMMIT)\b|BEGIN\s*\Z)", re.IGNORECASE
)
_CHANGES = re.compile(r"\b(?:INSERT|UPDATE|DELETE|REPLACE)\b", re.IGNORECASE)
_known: list[Any] = []
"""SQLAlchemy, once it has been asked to tell us."""


def refuse_to_wait_for_this_thread(path: Path) -> None:
    """To call before a transaction of ours begins in this thread.

    Only where Django's transaction surely keeps other writers out: it has begun as a writer (`transaction_mode`). One
    that began as a reader may have written or not, which `sqlite3` does not tell.
    """
    ours = identity_of(path)
    for connection in _of_django():
        opened = connection.connection
        writes = str(getattr(connection, "transaction_mode", None)).upper() in ("IMMEDIATE", "EXCLUSIVE")
        is_open = writes and isinstance(opened, sqlite3.Connection) and opened.in_transaction
        if is_open and ours is not None and _file_of(opened) == ours:
            raise TransactionError(
                "a transaction of Django is open in this thread on the same SQLite file; one of Perdure beside it would"
                " wait for it, and it for that one. Open it as ctx.transaction(session=connection), which joins both,"
                " give tx=connection to the calls inside Django's, or end Django's first",
                code="tx_beside",
            )


def refuse_writes_beside(until: ExitStack) -> None:
    """To call when a transaction of ours has begun in this thread; `until` is closed when it ends."""
    library = sys.modules.get("sqlalchemy")
    if library is not None and not _known:
        _known.append(library)
        library.event.listen(library.engine.Engine, "before_cursor_execute", _before_sqlalchemy)
    for connection in _of_django():
        until.enter_context(connection.execute_wrapper(_around_django))


def _before_sqlalchemy(connection: Any, cursor: Any, statement: str, *rest: object) -> None:
    del rest
    if open_here.get() is not None and connection.dialect.name == "sqlite":
        _check(getattr(cursor, "connection", None), statement, "a Session or Connection of SQLAlchemy")


def _of_django() -> Iterator[Any]:
    library = sys.modules.get("django.db")
    with suppress(Exception):  # Django is there, but not set up
        if library is not None:
            yield from [connection for connection in library.connections.all() if connection.vendor == "sqlite"]


def _around_django(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
    _check(context["connection"].connection, sql, "a connection of Django")
    return execute(sql, params, many, context)


def _check(connection: Any, sql: str, whose: str) -> None:
    writes = not _READS.match(sql) and (sql.lstrip()[:4].upper() != "WITH" or _CHANGES.search(sql))
    if not writes or not isinstance(connection, sqlite3.Connection):
        return
    identity = _file_of(connection)
    ours = [database for database, inside in (open_here.get() or {}).items() if hasattr(inside, "give_up")]
    if identity is not None and identity in [identity_of(getattr(database, "path", "")) for database in ours]:
        raise TransactionError(
            f"{whose} would write beside the open transaction of Perdure in this thread; on one SQLite file each would"
            " wait for the other. Write with tx.execute(…), or open it as ctx.transaction(session=…), which joins both",
            code="tx_beside",
        )


def _file_of(connection: sqlite3.Connection) -> Identity | None:
    return identity_of(sqlite3.Cursor(connection).execute("PRAGMA database_list").fetchone()[2])
