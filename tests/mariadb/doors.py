"""The user's own transactions on MariaDB, one class for each kind of connection that `tx=` takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import django
import pymysql
import sqlalchemy as sa
from django.conf import settings
from django.db import connections, transaction
from django.db.utils import ConnectionHandler
from pymysql.constants import CLIENT
from pymysql.cursors import DictCursor
from sqlalchemy.orm import Session

from tests.app.doors import Door


def connected(url: str, **options: Any) -> Any:
    parts = urlsplit(url)
    line = parse_qs(parts.query)["unix_socket"][0]
    return pymysql.connect(unix_socket=line, user=parts.username, database=parts.path[1:], **options)


class PyMySQL:
    """As PyMySQL connects by default: the first statement begins the transaction, which is REPEATABLE READ."""

    def __init__(self, url: str, **options: Any) -> None:
        self.tx: Any = connected(url, **options)

    def execute(self, sql: str) -> None:
        with self.tx.cursor() as cursor:
            cursor.execute(sql)

    def commit(self) -> None:
        self.tx.commit()

    def rollback(self) -> None:
        self.tx.rollback()

    def close(self) -> None:
        self.tx.close()


class PyMySQLBegun(PyMySQL):
    """In autocommit mode, after BEGIN."""

    def __init__(self, url: str) -> None:
        super().__init__(url, autocommit=True)
        self.tx.begin()


class OddSettings(PyMySQL):
    """Rows are dicts, an UPDATE counts what it has found, letters are Latin, and backslashes are letters."""

    def __init__(self, url: str) -> None:
        mode = "ANSI,NO_BACKSLASH_ESCAPES,ONLY_FULL_GROUP_BY"
        super().__init__(url, cursorclass=DictCursor, client_flag=CLIENT.FOUND_ROWS, charset="latin1", sql_mode=mode)


class SqlAlchemyConnection:
    def __init__(self, url: str) -> None:
        self._engine = engine_at(url)
        self.tx: Any = self._engine.connect()

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
    def __init__(self, url: str) -> None:
        self._engine = engine_at(url)
        self.tx = Session(self._engine)


def engine_at(url: str, **options: Any) -> sa.Engine:
    return sa.create_engine(url.replace("mysql:", "mysql+pymysql:"), **options)


class DjangoAtomic:
    """Inside `with transaction.atomic(using="jobs"):`."""

    def __init__(self, url: str) -> None:
        self.tx = django_connection(url)
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


def django_connection(url: str) -> Any:
    """Django's connection to a database, known to `atomic(using="jobs")`; on PyMySQL, as its documentation has it."""
    pymysql.version_info = (2, 2, 1, "final", 0)  # the least that Django asks of mysqlclient
    pymysql.install_as_MySQLdb()
    if not settings.configured:
        settings.configure()
        django.setup()
    parts = urlsplit(url)
    database = {
        "ENGINE": "django.db.backends.mysql",
        "NAME": parts.path[1:],
        "USER": parts.username,
        "HOST": parse_qs(parts.query)["unix_socket"][0],
    }
    connections["jobs"] = ConnectionHandler({"default": database})["default"]
    connections["jobs"].alias = "jobs"
    return connections["jobs"]


DOORS: dict[str, Callable[[str], Door]] = {
    "PyMySQL": PyMySQL,
    "PyMySQL, begun": PyMySQLBegun,
    "PyMySQL, odd settings": OddSettings,
    "SQLAlchemy Connection": SqlAlchemyConnection,
    "SQLAlchemy Session": SqlAlchemySession,
    "Django": DjangoAtomic,
}
