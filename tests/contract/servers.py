"""The contract suite on a database server: one store for all cases, whose connections and prepared statements are kept,
and one database, emptied after each. Used by test_postgres and test_mariadb."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

import pytest

from perdure.store.open import open_store
from perdure.store.protocols import Store
from perdure.testing.contract import Case, NotSupported, Rig
from tests.hurried_doctor import VIOLATIONS, HurriedDoctor
from tests.unit.patient import CASES, case, ready
from tests.unit.patient import Case as Damage

Hurt = Callable[[Damage], AbstractContextManager[None]]
"""Does that damage to a healthy database; it is undone in the end."""


class Server(NamedTuple):
    """A database with Perdure's tables, the store that all cases use, and the doctor who comes after each."""

    url: str
    store: Store
    doctor: HurriedDoctor

    def keeps_the_contract(self, case: Case, rig: Rig) -> None:
        """As `run_case` does it."""
        try:
            case.run(rig)
        except NotSupported as reason:
            pytest.skip(str(reason))
        self.doctor.require_health(rig.store)


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


def missed(doctor: HurriedDoctor, hurt: Hurt, *, unseen: str = "") -> dict[str, set[str]]:
    """Damages of which the doctor in a hurry does not say the same as the doctor, and what he says. `unseen`: what this
    server cannot find."""
    assert VIOLATIONS.keys() - NOT_HERE <= {name for damage in DAMAGES for name in damage.findings}
    wrong = {}
    for damage in DAMAGES:
        with hurt(damage):
            told = doctor.suspects()
        if told != (damage.findings.keys() & VIOLATIONS.keys()) - {unseen}:
            wrong["; ".join(damage.statements)] = told
    return wrong


def in_words(damage: Damage, words: Callable[[str], str]) -> Iterator[tuple[str, list[str]]]:
    """The statements of a damage with markers for the ids, and the names of those."""
    for statement in damage.statements:
        yield re.sub(r":(\w+)", "%s", words(statement)), re.findall(r":(\w+)", statement)
