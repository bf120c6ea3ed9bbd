"""Counts the rows that MariaDB reads for each statement of an operation, and looks at how it means to find them."""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, cast
from unittest.mock import patch

import pymysql
from pymysql.cursors import Cursor, DictCursor

from perdure.store.engine import Result, Statement, row_for
from perdure.store.mysql.driver import MySQLDriver
from perdure.store.statements import GROUP
from perdure.store.tables import tables

SMALL = {
    *("declaration", "limit_look", "limit_rule", "lock", "node", "queue", "reservation", "schedule", "todo"),
    *("archive", "limit_key", "missed", "permit", "slot", "start", "tally", "template", "template_version"),
}
LARGE = re.compile(rf"\bperdure_({'|'.join(sorted(tables().keys() - SMALL))})\b")
"""Tables that grow with the jobs, and have many rows where this is used."""
SLACK, A_ROW = 300, 20
"""How many rows a statement may read, and how many more for each row that it is given, finds or changes: that of each
table which it joins, their indexes, and derived tables."""
_EXPLAINED = re.compile(r"(SELECT|WITH|UPDATE|DELETE|INSERT INTO \w+ (\([^)]*\)\s+)?(SELECT|WITH))\b")
_READ = "SHOW SESSION STATUS LIKE 'Handler_read%'"


class Ran(NamedTuple):
    """One statement, and what it cost."""

    name: str
    sql: str
    reads: int
    touched: int
    whole: list[str]
    """The large tables that it means to read from end to end, when it was run first."""

    @property
    def is_too_much(self) -> bool:
        return bool(self.whole) or self.reads > SLACK + A_ROW * self.touched

    def __str__(self) -> str:
        return f"{self.name}: {self.reads} rows read for {self.touched}, whole tables: {self.whole}\n{self.sql[:3000]}"


@contextmanager
def watched() -> Generator[list[Ran], None, None]:
    """The statements that all stores of this process run meanwhile."""
    seen: list[Ran] = []
    execute, run = MySQLDriver.execute, MySQLDriver._run

    def noting(driver: MySQLDriver, call: tuple[str, Any]) -> Result:
        parts: list[tuple[str, int]] = []

        def counting(one: MySQLDriver, sql: str) -> Result:
            before = _read(one)
            result = run(one, sql)
            parts.append((sql, _read(one) - before - _OWN))
            return result

        with patch.object(MySQLDriver, "_run", counting):
            result = execute(driver, call)
        touched = max(_given(driver._statements[call[0]], call[1]), result.changed, len(result.rows))
        known = {ran.name for ran in seen}
        for sql, reads in parts:
            whole = [] if call[0] in known else _whole(driver, sql)
            seen.append(Ran(call[0], sql, reads, touched, whole))
        return result

    with patch.object(MySQLDriver, "execute", noting):
        yield seen


def _read(driver: MySQLDriver) -> int:
    """How many rows this connection has read until now."""
    with Cursor(driver._connection) as cursor:
        cursor.execute(_READ)
        return sum(int(number) for _, number in cursor.fetchall())


_OWN = 8
"""What it reads to answer that: one row for each sort of read, and the end."""


_LIMITS = {"cap", "groups", "page", "scan"}
"""Parameters that say how many rows a statement may look at."""


def _given(statement: Statement, params: Any) -> int:
    """How many rows it is given, or about how many jobs or keys it is, or how many it may look at."""
    if isinstance(params, list):
        return len(cast("list[object]", params))
    given = dict(zip(statement.names, row_for(statement, params), strict=True))
    limits = [value for name, value in given.items() if name in _LIMITS and isinstance(value, int)]
    keys = [text.count('"') // 2 for text in given.values() if isinstance(text, str) and text.startswith("[")]
    return max([1, *limits, *keys, GROUP if len(given) >= GROUP else 0])


def _whole(driver: MySQLDriver, sql: str) -> list[str]:
    if not LARGE.search(sql) or not _EXPLAINED.match(sql):
        return []
    steps: list[tuple[str, str]] = []
    with DictCursor(driver._connection) as cursor, suppress(pymysql.ProgrammingError):
        cursor.execute(f"EXPLAIN {sql}")
        aliases = {alias or table: table for table, alias in re.findall(r"(perdure_\w+)(?: AS (\w+))?", sql)}
        steps = [(aliases.get(step["table"] or "", ""), step["type"]) for step in cursor.fetchall()]
    return [table for table, way in steps if way == "ALL" and LARGE.fullmatch(table)]
