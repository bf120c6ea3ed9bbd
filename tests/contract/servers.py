"""The contract suite on a database server: one store for all cases, whose connections and prepared statements are kept,
and one database, emptied after each. Used by test_postgres and test_mariadb."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from perdure.ops.doctor import CHECKS, Severity, examine, is_healthy
from perdure.store.engine import Statement, Statements
from perdure.store.open import open_store
from perdure.store.protocols import Store
from perdure.testing.contract import Case, NotSupported, Rig

Ask = Callable[[str], list[tuple[Any, ...]]]
"""Runs a statement and returns its rows; on one connection, which sees what others have committed."""

VIOLATIONS = [check for check in CHECKS if check.severity is Severity.VIOLATION]
SAMPLE = "1000"


class Server:
    """A database with Perdure's tables, the store that all cases use, and the doctor in a hurry.

    Each check of the doctor is a transaction of its own, and all of them took longer than the case they came after.
    So whatever he would call a violation is asked for in one statement, and he himself only where it finds something.
    """

    def __init__(self, url: str, store: Store, statements: Statements, ask: Ask) -> None:
        self.url = url
        self.store = store
        self._ask = ask
        asked = [statements[check.name] for check in VIOLATIONS if check.confirm is None]
        self._question = "\nUNION ALL\n".join(f"SELECT 1 FROM ({_text(one)}) AS {one.name}" for one in asked)
        self._confirmed = [
            (check.confirm, _text(statements[check.name])) for check in VIOLATIONS if check.confirm is not None
        ]

    def is_suspicious(self) -> bool:
        """Whether the doctor has to come."""
        return bool(self._ask(self._question)) or any(
            confirm(row[2:]) for confirm, text in self._confirmed for row in self._ask(text)
        )

    def keeps_the_contract(self, case: Case, rig: Rig) -> None:
        """As `run_case` does it."""
        try:
            case.run(rig)
        except NotSupported as reason:
            pytest.skip(str(reason))
        if self.is_suspicious():
            findings = examine(rig.store, rig.now)
            assert is_healthy(findings), f"the doctor found {findings}"


def _text(statement: Statement) -> str:
    """The statement with its parameters, which say how many rows are wanted."""
    assert set(statement.names) <= {"examples", "sample"}
    return re.sub(r"\$\d+|%s", SAMPLE, statement.sql)


@contextmanager
def prepared(url: str) -> Iterator[Store]:
    store = open_store(url)
    store.upgrade()
    yield store
    store.close()


@contextmanager
def rig_on(server: Server) -> Iterator[Rig]:
    """A rig with the store of all; what a case opens besides is its own."""
    rig = Rig(server.url, lambda _: server.store)
    rig.opener = open_store
    yield rig
    rig.clear()


def finds_what_is_wrong(server: Server, rig: Rig) -> None:
    """The question of all checks has the answer of the checks: what cannot be read, and a job that is lost."""
    rig.enqueue()
    assert not server.is_suspicious()
    rig.execute("UPDATE {job} SET payload = '{'")
    assert server.is_suspicious()
    rig.execute("UPDATE {job} SET payload = '{}'")
    assert not server.is_suspicious()
    rig.execute("DELETE FROM {ready}")
    assert server.is_suspicious()
