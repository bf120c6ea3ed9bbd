"""The doctor: looks for broken promises, changes nothing. Called by `perdure doctor` and at the end of every test.

What it looks for is in `checks`, how it is put right in `repairs`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import cast
from uuid import UUID

from perdure.clock import Micros, SystemClock
from perdure.errors import InvalidInput
from perdure.ids import to_uuid
from perdure.ops.checks import CHECKS, Check, Severity
from perdure.store.protocols import Store
from perdure.store.sql.engine import Call, Op
from perdure.store.sql.store import Runner, SqlStore

EXAMPLES = 5
SAMPLE = 10_000
"""How many of the newest payloads and results are read, where the database cannot tell by itself which to read."""
LONG_AGO_US = 300 * 1_000_000


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be. `examples`: a few ids (of jobs, or names of queues), as text."""

    name: str
    severity: Severity
    explanation: str
    count: int
    examples: tuple[str, ...]
    repair: str | None


def examine(store: Store, now: Micros | None = None) -> list[Finding]:
    """Everything that is wrong, in the order of `CHECKS`. Empty: nothing is.

    Only reads. Each check sees one consistent snapshot, so work that goes on meanwhile gives no false findings.
    """
    runner = runner_of(store)
    params = look_params(SystemClock().now() if now is None else now)
    findings: list[Finding] = []
    for check in CHECKS:
        found = runner.read(partial(_look, check, params))
        if found is not None:
            findings.append(found)
    return findings


def is_healthy(findings: Iterable[Finding]) -> bool:
    """True if none of them is a violation."""
    return all(found.severity is not Severity.VIOLATION for found in findings)


def look_params(now: Micros, examples: int = EXAMPLES) -> dict[str, object]:
    """What the queries of all checks take."""
    return {"examples": examples, "sample": SAMPLE, "long_ago": now - LONG_AGO_US}


def runner_of(store: Store) -> Runner:
    """What runs operations on the store's database."""
    if not isinstance(store, SqlStore):
        raise InvalidInput(
            f"the doctor reads SQL databases, and {type(store).__name__} is not one; give it a store of open_store",
            code="store_unsupported",
        )
    return store.runner


def _look(check: Check, params: dict[str, object]) -> Op[Finding | None]:
    rows = (yield Call(check.name, params)).rows
    if check.confirm is not None:
        rows = [row for row in rows if check.confirm(row[2:])]
    if not rows:
        return None
    count = len(rows) if check.confirm is not None else cast("int", rows[0][1])
    examples = tuple(_text(row[0]) for row in rows[:EXAMPLES])
    return Finding(check.name, check.severity, check.explanation, count, examples, check.repair)


def _text(example: object) -> str:
    if isinstance(example, bytes) and len(example) == 16:
        return str(to_uuid(example))
    return str(example) if isinstance(example, (str, UUID)) else repr(example)
