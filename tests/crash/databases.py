"""Databases for scenes, by dialect: how one is made, copied to be harmed in another way, and removed."""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from perdure.store.open import open_store
from tests.mariadb_server import KEPT, MariaDBServer, connected
from tests.postgres_server import PostgresServer


class Databases(ABC):
    """Those of one dialect."""

    thrift = 12
    """Everyday tests do so many times less here: most of what they try is the same on every database."""

    @abstractmethod
    def made(self, path: Path) -> str:
        """The URL of an empty one with our tables. On SQLite it is this file."""

    @abstractmethod
    def copied(self, url: str, path: Path) -> str:
        """The URL of another one with all that this one has."""

    @abstractmethod
    def remove(self, url: str) -> None: ...

    @abstractmethod
    def execute(self, url: str, sql: str) -> None:
        """As a user, and commit."""


class Files(Databases):
    thrift = 1

    def made(self, path: Path) -> str:
        return str(path)

    def copied(self, url: str, path: Path) -> str:
        with closing(sqlite3.connect(url)) as source, closing(sqlite3.connect(path)) as target:
            source.backup(target)
        return str(path)

    def remove(self, url: str) -> None:
        """The test's folder is removed as a whole, after a last look at it."""

    def execute(self, url: str, sql: str) -> None:
        with closing(sqlite3.connect(url)) as connection:
            connection.execute(sql)
            connection.commit()


class OnPostgres(Databases):
    """A copy has the original as its template."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server

    def made(self, path: Path) -> str:
        return upgraded(self._server.new_database())

    def copied(self, url: str, path: Path) -> str:
        self._throw_out(url)
        return self._server.new_database(template=name_of(url))

    def remove(self, url: str) -> None:
        self._server.execute(f"DROP DATABASE {name_of(url)} WITH (FORCE)")

    def execute(self, url: str, sql: str) -> None:
        with psycopg.connect(url) as connection:
            connection.execute(sql.encode())

    def _throw_out(self, url: str) -> None:
        """Whoever is connected: nobody may use a template. It takes him a moment to go."""
        theirs = f"FROM pg_stat_activity WHERE datname = '{name_of(url)}'"
        with psycopg.connect(self._server.url("template1"), autocommit=True) as connection:
            while connection.execute(f"SELECT pg_terminate_backend(pid, 1000) {theirs}".encode()).fetchall():
                pass


class OnMariaDB(Databases):
    """To make all tables takes a second: they are emptied and used again."""

    def __init__(self, server: MariaDBServer) -> None:
        self._server = server
        self._empty: list[str] = []

    def made(self, path: Path) -> str:
        return self._empty.pop() if self._empty else upgraded(self._server.new_database())

    def copied(self, url: str, path: Path) -> str:
        copy, source = self.made(path), name_of(url)
        with closing(connected(copy)) as connection, connection.cursor() as cursor:
            cursor.execute(_COLUMNS, (source, KEPT))
            for table, columns in cursor.fetchall():
                cursor.execute(f"CREATE TABLE IF NOT EXISTS {table} LIKE {source}.{table}")
                cursor.execute(f"INSERT INTO {table} ({columns}) SELECT {columns} FROM {source}.{table}")
            cursor.execute(f"SELECT next_not_cached_value FROM {source}.perdure_position")
            for (place,) in cursor.fetchall():
                cursor.execute(f"DO SETVAL(perdure_position, {place})")
            connection.commit()
        return copy

    def remove(self, url: str) -> None:
        self._server.empty(url)
        self._empty.append(url)

    def execute(self, url: str, sql: str) -> None:
        with closing(connected(url)) as connection, connection.cursor() as cursor:
            cursor.execute(sql)
            connection.commit()


_COLUMNS = """
SELECT c.table_name, GROUP_CONCAT('`', c.column_name, '`')
FROM information_schema.columns AS c
JOIN information_schema.tables AS t ON t.table_schema = c.table_schema AND t.table_name = c.table_name
WHERE c.table_schema = %s AND t.table_type = 'BASE TABLE' AND c.is_generated = 'NEVER' AND c.table_name NOT IN %s
GROUP BY c.table_name"""


def name_of(url: str) -> str:
    return urlsplit(url).path[1:]


def upgraded(url: str) -> str:
    store = open_store(url)
    store.upgrade()
    store.close()
    return url
