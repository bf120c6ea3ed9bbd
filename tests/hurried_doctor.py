"""The doctor in a hurry, for tests that ask again and again whether all is well on a database server.

Each of his checks is a transaction, and all of them take longer than the few statements they come after. So whatever he
would call a violation is asked for in one statement. That it misses none is shown in `contract/servers`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import psycopg
import pymysql

from perdure.ops.doctor import CHECKS, Severity, examine
from perdure.store.engine import Statement, Statements
from perdure.store.mysql.statements import Flavour, dialect
from perdure.store.postgres.statements import READING
from perdure.store.protocols import Store

Ask = Callable[[str], list[tuple[Any, ...]]]
"""Runs a statement and returns its rows."""

VIOLATIONS = {check.name: check for check in CHECKS if check.severity is Severity.VIOLATION}
SAMPLE = "1000"


class HurriedDoctor:
    """Looks through a connection that is his own, and sees what others have committed."""

    def __init__(self, statements: Statements, ask: Ask) -> None:
        asked = [statements[name] for name, check in VIOLATIONS.items() if check.confirm is None]
        self._question = "\nUNION\n".join(f"SELECT '{one.name}' FROM ({_text(one)}) AS {one.name}" for one in asked)
        self._confirmed = [
            (name, check.confirm, _text(statements[name])) for name, check in VIOLATIONS.items() if check.confirm
        ]
        self.ask = ask

    def suspects(self) -> set[str]:
        """The names of the checks that find something."""
        found = {str(name) for (name,) in self.ask(self._question)}
        for name, confirm, text in self._confirmed:
            if any(confirm(row[2:]) for row in self.ask(text)):
                found.add(name)
        return found

    def require_health(self, store: Store) -> None:
        """If he suspects something, the doctor himself comes and says what it is."""
        suspected = self.suspects()
        assert not suspected, f"{suspected}: the doctor found {examine(store)}"


def on_postgres(connection: psycopg.Connection[Any]) -> HurriedDoctor:
    connection.execute("SET jit = off")  # it takes a second for so long a statement
    connection.commit()
    return HurriedDoctor(READING, lambda sql: connection.execute(sql.encode(), prepare=True).fetchall())


def on_mariadb(connection: pymysql.Connection[Any], flavour: Flavour) -> HurriedDoctor:
    def ask(sql: str) -> list[tuple[Any, ...]]:
        with connection.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())

    return HurriedDoctor(dialect(flavour).reading, ask)


def _text(statement: Statement) -> str:
    """The statement with its parameters, which say how many rows are wanted."""
    assert set(statement.names) <= {"examples", "sample"}
    return re.sub(r"\$\d+|%s", SAMPLE, statement.sql)
