"""The user's own transactions on MariaDB, one class for each kind of connection that `tx=` takes."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pymysql
import sqlalchemy as sa
from pymysql.constants import CLIENT

from tests.app.doors import DjangoAtomic, Door, SqlAlchemyConnection, SqlAlchemySession
from tests.needs import Need, need


def mysqlclient() -> Any:
    """The driver in C. There is no wheel of it for Linux, so it may be missing."""
    need(Need.MYSQLCLIENT)
    return import_module("MySQLdb")


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


def engine_at(url: str, driver: Any = pymysql, **options: Any) -> sa.Engine:
    return sa.create_engine(url.replace("mysql:", f"mysql+{driver.__name__.lower()}:"), **options)


DOORS: dict[str, Callable[[str], Door]] = {
    "PyMySQL": Plain,
    "PyMySQL, begun": Begun,
    "PyMySQL, odd settings": OddSettings,
    "mysqlclient": lambda url: Plain(url, mysqlclient()),
    "mysqlclient, begun": lambda url: Begun(url, mysqlclient()),
    "mysqlclient, odd settings": lambda url: OddSettings(url, mysqlclient()),
    "SQLAlchemy Connection": lambda url: SqlAlchemyConnection(engine_at(url)),
    "SQLAlchemy Connection, mysqlclient": lambda url: SqlAlchemyConnection(engine_at(url, mysqlclient())),
    "SQLAlchemy Session": lambda url: SqlAlchemySession(engine_at(url)),
    "Django": DjangoAtomic,
}
