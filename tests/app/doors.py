"""The user's own transactions, one class for each kind of connection that `tx=` takes."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import django
import sqlalchemy as sa
from django.conf import settings
from django.db import connections, transaction
from django.db.utils import ConnectionHandler
from sqlalchemy.orm import Session

from tests.django_databases import entry, need_mysqlclient


class Door(Protocol):
    """A connection with a transaction that is open, or begins by itself with the first statement."""

    tx: Any

    def execute(self, sql: str) -> None: ...

    def commit(self) -> None: ...

    def rollback(self) -> None: ...

    def close(self) -> None: ...


class Sqlite3:
    """The module's own connection; `begin` is what the user says first, if anything."""

    def __init__(self, path: Path, begin: str | None = None, isolation_level: str | None = "") -> None:
        self.tx = sqlite3.connect(path, isolation_level=isolation_level)  # type: ignore[arg-type]
        if begin:
            self.tx.execute(begin)

    def execute(self, sql: str) -> None:
        self.tx.execute(sql)

    def commit(self) -> None:
        self.tx.commit()

    def rollback(self) -> None:
        self.tx.rollback()

    def close(self) -> None:
        self.tx.close()


def _refusing(cursor: object, row: object) -> object:
    raise AssertionError("Perdure trusted the row factory of a connection that is not its own")


class OddFactories(Sqlite3):
    """Rows and texts come as the user likes them, and the connection class is the user's own."""

    def __init__(self, path: Path) -> None:
        class Own(sqlite3.Connection):
            def cursor(self) -> sqlite3.Cursor:  # type: ignore[override]  # takes no factory
                return super().cursor()

        self.tx = sqlite3.connect(path, factory=Own)
        self.tx.row_factory = _refusing
        self.tx.text_factory = bytes


class SqlAlchemyConnection:
    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self.tx: Any = self.begun()

    def begun(self) -> Any:
        return self._engine.connect()

    def execute(self, sql: str) -> None:
        self.tx.execute(sa.text(sql))

    def commit(self) -> None:
        self.tx.commit()

    def rollback(self) -> None:
        self.tx.rollback()

    def close(self) -> None:
        self.tx.close()
        self._engine.dispose()


class SqlAlchemySession(SqlAlchemyConnection):
    def begun(self) -> Any:
        return Session(self._engine)


def django_connection(where: Path | str, **options: object) -> Any:
    """Django's connection to a file, or to a server by its URL, known to `atomic(using="jobs")`."""
    if str(where).startswith("mysql:"):
        need_mysqlclient()
    if not settings.configured:
        settings.configure()
        django.setup()
    connections["jobs"] = ConnectionHandler({"default": entry(str(where), **options)})["default"]
    connections["jobs"].alias = "jobs"
    return connections["jobs"]


class DjangoAtomic:
    """Inside `with transaction.atomic(using="jobs"):`."""

    def __init__(self, where: Path | str, **options: object) -> None:
        self.tx = django_connection(where, **options)
        self._atomic = transaction.atomic(using="jobs")
        self._atomic.__enter__()

    def execute(self, sql: str) -> None:
        with self.tx.cursor() as cursor:
            cursor.execute(sql)

    def commit(self) -> None:
        self._atomic.__exit__(None, None, None)

    def rollback(self) -> None:
        error = RuntimeError("rolled back by the user")
        self._atomic.__exit__(type(error), error, None)

    def close(self) -> None:
        self.tx.close()


class DjangoByHand(DjangoAtomic):
    """With Django's autocommit switched off."""

    def __init__(self, path: Path) -> None:
        self.tx = django_connection(path)
        transaction.set_autocommit(False, using="jobs")

    def commit(self) -> None:
        transaction.commit(using="jobs")

    def rollback(self) -> None:
        transaction.rollback(using="jobs")


DOORS: dict[str, Callable[[Path], Door]] = {
    "sqlite3": Sqlite3,
    "sqlite3-begin": lambda path: Sqlite3(path, "BEGIN"),
    "sqlite3-begin-immediate": lambda path: Sqlite3(path, "BEGIN IMMEDIATE", "IMMEDIATE"),
    "sqlite3-isolation-none": lambda path: Sqlite3(path, "BEGIN", None),
    "sqlite3-odd-factories": OddFactories,
    "sqlalchemy-connection": lambda path: SqlAlchemyConnection(sa.create_engine(f"sqlite:///{path}")),
    "sqlalchemy-session": lambda path: SqlAlchemySession(sa.create_engine(f"sqlite:///{path}")),
    "django-atomic": DjangoAtomic,
    "django-immediate": lambda path: DjangoAtomic(path, transaction_mode="IMMEDIATE"),
    "django-by-hand": DjangoByHand,
}
