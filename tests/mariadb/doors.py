"""The user's own transactions on MariaDB, one class for each kind of connection that `tx=` takes."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import django
import pymysql
import pytest
import sqlalchemy as sa
from django.conf import settings
from django.db import connections, transaction
from django.db.utils import ConnectionHandler
from pymysql.constants import CLIENT
from sqlalchemy.orm import Session

from tests.app.doors import Door
from tests.mariadb_server import MUST_RUN


def mysqlclient() -> Any:
    """The driver in C. There is no wheel of it for Linux, so it may be missing."""
    try:
        import_module("MySQLdb.cursors")
        return import_module("MySQLdb")
    except ImportError:
        if os.environ.get(MUST_RUN):
            pytest.fail(_MISSING)
        pytest.skip(_MISSING)


_MISSING = "mysqlclient is not installed (it needs a compiler and libmariadb-dev): pip install mysqlclient"


def pymysql_as_mysqlclient() -> None:
    """As PyMySQL's documentation has it, for Django."""
    pymysql.version_info = (2, 2, 1, "final", 0)  # the least that Django asks of mysqlclient
    pymysql.install_as_MySQLdb()


def connected(url: str, driver: Any = pymysql, **options: Any) -> Any:
    parts = urlsplit(url)
    where: dict[str, Any] = dict(parse_qsl(parts.query)) or {"host": parts.hostname, "port": parts.port or 3306}
    who = {"user": parts.username, "password": parts.password or ""}
    return driver.connect(**where, **who, database=parts.path[1:], **options)


class Plain:
    """As a driver connects by default: the first statement begins the transaction, which is REPEATABLE READ."""

    def __init__(self, url: str, driver: Any = pymysql, **options: Any) -> None:
        self.tx: Any = connected(url, driver, **options)

    def execute(self, sql: str) -> None:
        with self.tx.cursor() as cursor:
            cursor.execute(sql)

    def commit(self) -> None:
        self.tx.commit()

    def rollback(self) -> None:
        self.tx.rollback()

    def close(self) -> None:
        self.tx.close()


class Begun(Plain):
    """In autocommit mode, after BEGIN."""

    def __init__(self, url: str, driver: Any = pymysql) -> None:
        super().__init__(url, driver, autocommit=True)
        self.tx.begin()


class OddSettings(Plain):
    """Rows are dicts, an UPDATE counts what it has found, letters are Latin, and backslashes are letters."""

    def __init__(self, url: str, driver: Any = pymysql) -> None:
        mode = "ANSI,NO_BACKSLASH_ESCAPES,ONLY_FULL_GROUP_BY"
        rows = driver.cursors.DictCursor
        super().__init__(url, driver, cursorclass=rows, client_flag=CLIENT.FOUND_ROWS, charset="latin1", sql_mode=mode)


class SqlAlchemyConnection:
    def __init__(self, url: str, driver: Any = pymysql) -> None:
        self._engine = engine_at(url, driver)
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


def engine_at(url: str, driver: Any = pymysql, **options: Any) -> sa.Engine:
    return sa.create_engine(url.replace("mysql:", f"mysql+{driver.__name__.lower()}:"), **options)


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
    """Django's connection to a database, known to `atomic(using="jobs")`; on PyMySQL if there is no mysqlclient."""
    if find_spec("MySQLdb") is None:
        pymysql_as_mysqlclient()
    if not settings.configured:
        settings.configure()
        django.setup()
    parts = urlsplit(url)
    database = {
        "ENGINE": "django.db.backends.mysql",
        "NAME": parts.path[1:],
        "USER": parts.username,
        "PASSWORD": parts.password or "",
        "HOST": dict(parse_qsl(parts.query)).get("unix_socket", parts.hostname),
        "PORT": parts.port or "",
    }
    connections["jobs"] = ConnectionHandler({"default": database})["default"]
    connections["jobs"].alias = "jobs"
    return connections["jobs"]


DOORS: dict[str, Callable[[str], Door]] = {
    "PyMySQL": Plain,
    "PyMySQL, begun": Begun,
    "PyMySQL, odd settings": OddSettings,
    "mysqlclient": lambda url: Plain(url, mysqlclient()),
    "mysqlclient, begun": lambda url: Begun(url, mysqlclient()),
    "mysqlclient, odd settings": lambda url: OddSettings(url, mysqlclient()),
    "SQLAlchemy Connection": SqlAlchemyConnection,
    "SQLAlchemy Connection, mysqlclient": lambda url: SqlAlchemyConnection(url, mysqlclient()),
    "SQLAlchemy Session": SqlAlchemySession,
    "Django": DjangoAtomic,
}
