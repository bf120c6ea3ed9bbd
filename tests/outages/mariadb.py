"""MariaDB as a server that a test may kill, from the system's `mariadbd`."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pymysql

from tests import mariadb_server
from tests.needs import Need, need
from tests.outages.proxy import LOCAL
from tests.outages.server import Server

DATABASE = "jobs"
WRITTEN = "--innodb-flush-log-at-trx-commit=1"
"""What is committed has left the server's own memory: SIGKILL does not lose it."""


class MariaDB(Server):
    isolation = "SELECT LOWER(REPLACE(@@tx_isolation, '-', ' '))"

    @classmethod
    def give(cls, folder: Path) -> None:
        """It runs as whoever runs the tests."""

    @property
    def line(self) -> Path:
        return self.folder / "line"

    @property
    def url(self) -> str:
        return mariadb_server.url_of(self.line, DATABASE)

    def url_at(self, port: int, host: str = LOCAL) -> str:
        return f"mysql://root@{host}:{port}/{DATABASE}"

    def install(self) -> None:
        need(Need.MARIADB)
        mariadb_server.install(self.data)

    def launched(self) -> subprocess.Popen[bytes]:
        return mariadb_server.start(self.data, self.line, self.log, WRITTEN)

    def clear_away(self) -> None:
        """It leaves nothing elsewhere."""

    def answers(self) -> bool:
        with suppress(OSError, pymysql.OperationalError), self.connect():  # PyMySQL would not close a refused socket
            self._execute(f"CREATE DATABASE IF NOT EXISTS {DATABASE}")
            return True
        return False

    @contextmanager
    def user(self) -> Iterator[pymysql.Connection[Any]]:
        with closing(mariadb_server.connected(self.url)) as connection:
            yield connection
            connection.commit()

    def isolate(self, level: str) -> None:
        self._execute(f"SET GLOBAL TRANSACTION ISOLATION LEVEL {level}")

    def end_connections(self) -> int:
        theirs = f"SELECT id FROM information_schema.processlist WHERE db = '{DATABASE}'"
        ended = 0
        for (number,) in self._execute(theirs):
            with suppress(pymysql.OperationalError):  # it has just gone
                self._execute(f"KILL {number}")
                ended += 1
        return ended

    def _execute(self, statement: str) -> list[tuple[Any, ...]]:
        everywhere = mariadb_server.url_of(self.line)
        with closing(mariadb_server.connected(everywhere)) as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())
