"""The contract suite on a database server: one store for all cases, whose connections and prepared statements are kept,
and one database, emptied after each. Used by test_postgres and test_mariadb."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from perdure.ops.doctor import CHECKS, Severity, examine, is_healthy
from perdure.store.engine import Statement, Statements
from perdure.store.open import open_store
from perdure.store.protocols import Store
from perdure.testing.contract import Case, NotSupported, Rig
from tests.unit.patient import CASES, case, ready
from tests.unit.patient import Case as Damage

Ask = Callable[[str], list[tuple[Any, ...]]]
"""Runs a statement and returns its rows."""
Hurt = Callable[[Damage], AbstractContextManager[Ask]]
"""Does that damage to a healthy database; it is undone in the end."""

VIOLATIONS = {check.name: check for check in CHECKS if check.severity is Severity.VIOLATION}
SAMPLE = "1000"


class Hurry:
    """The doctor in a hurry: each of his checks is a transaction, and all of them took longer than the contract's case
    they came after. So whatever he would call a violation is asked for in one statement."""

    def __init__(self, statements: Statements) -> None:
        asked = [statements[name] for name, check in VIOLATIONS.items() if check.confirm is None]
        self._question = "\nUNION\n".join(f"SELECT '{one.name}' FROM ({_text(one)}) AS {one.name}" for one in asked)
        self._confirmed = [
            (name, check.confirm, _text(statements[name])) for name, check in VIOLATIONS.items() if check.confirm
        ]

    def suspects(self, ask: Ask) -> set[str]:
        """The names of the checks that find something."""
        found = {str(name) for (name,) in ask(self._question)}
        for name, confirm, text in self._confirmed:
            if any(confirm(row[2:]) for row in ask(text)):
                found.add(name)
        return found


class Server:
    """A database with Perdure's tables, the store that all cases use, and a connection which sees what they have
    committed."""

    def __init__(self, url: str, store: Store, statements: Statements, ask: Ask) -> None:
        self.url = url
        self.store = store
        self._doctor = Hurry(statements)
        self._ask = ask

    def keeps_the_contract(self, case: Case, rig: Rig) -> None:
        """As `run_case` does it."""
        try:
            case.run(rig)
        except NotSupported as reason:
            pytest.skip(str(reason))
        if self._doctor.suspects(self._ask):
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


NOT_HERE = {"queue_missing"}
"""One sequence serves all queues, which need no row."""
DAMAGES = [
    *(
        one
        for one in {str(one): one for one in CASES}.values()
        if not {"queue_counter_behind", *NOT_HERE} & one.findings.keys()
    ),
    case(ready("scheduled", "position = 9000000"), queue_counter_behind="default"),
]
"""One for each set of findings: whether a check finds all that it should is shown elsewhere."""


def missed(doctor: Hurry, hurt: Hurt) -> dict[str, set[str]]:
    """Damages of which the doctor in a hurry does not say the same as the doctor, and what he says."""
    assert VIOLATIONS.keys() - NOT_HERE <= {name for damage in DAMAGES for name in damage.findings}
    wrong = {}
    for damage in DAMAGES:
        with hurt(damage) as ask:
            told = doctor.suspects(ask)
        if told != damage.findings.keys() & VIOLATIONS.keys():
            wrong["; ".join(damage.statements)] = told
    return wrong


def in_words(damage: Damage, words: Callable[[str], str]) -> Iterator[tuple[str, list[str]]]:
    """The statements of a damage with markers for the ids, and the names of those."""
    for statement in damage.statements:
        yield re.sub(r":(\w+)", "%s", words(statement)), re.findall(r":(\w+)", statement)
