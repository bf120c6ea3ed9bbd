"""Collects the suite and runs it against one database. Called by `__main__`; pytest runs the same cases one by one.

If a store lacks a protocol, its methods raise NotImplementedError and their tests count as not supported.
"""

from __future__ import annotations

import importlib
import inspect
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from enum import StrEnum
from typing import NamedTuple

from perdure.errors import ConfigError, InvalidInput, SchemaError
from perdure.ops import doctor
from perdure.store.rows import JobFilter
from perdure.testing.contract.case import Case, cases_of
from perdure.testing.contract.rig import NotSupported, Opener, Rig

GROUPS = (
    "jobs",
    "keys",
    "tags",
    "control",
    "retry",
    "supersede",
    "order",
    "claims",
    "finishes",
    "chains",
    "edges",
    "flows",
    "whole_flows",
    "rescue",
    "limits",
    "turns",
    "runs",
    "logs",
    "reads",
    "queues",
    "nodes",
    "locks",
    "schedules",
    "templates",
    "reservations",
    "retention",
    "questions",
    "schema",
    "concurrency",
    "faults",
    "model",
)
"""One file each: the protocols, and what holds across them."""


class Verdict(StrEnum):
    """The result of a case."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_SUPPORTED = "not supported"


class Judged(NamedTuple):
    """A case and its result; `why` is the traceback or the reason."""

    case: Case
    verdict: Verdict
    why: str = ""


def cases(groups: Iterable[str] = GROUPS) -> list[Case]:
    """Every case of these groups, in order."""
    found: list[Case] = []
    for group in groups:
        module = importlib.import_module(f"perdure.testing.contract.{group}")
        tests = [(name, test) for name, test in vars(module).items() if _is_test(name, test)]
        found += cases_of(group, tests)
    return found


def _is_test(name: str, test: object) -> bool:
    return name.startswith("test_") and inspect.isfunction(test)


def require_asserts() -> None:
    """Refuse a Python without asserts (-O, PYTHONOPTIMIZE): any store would pass."""
    if not __debug__:
        raise ConfigError(
            "the contract suite is made of asserts, which this Python leaves out, so that every store would pass; run"
            " it without -O, and without PYTHONOPTIMIZE",
            code="asserts_off",
        )


def run_case(case: Case, rig: Rig) -> None:
    """Run the test, then the doctor, who must find nothing wrong in what it left behind."""
    require_asserts()
    case.run(rig)
    try:
        findings = doctor.examine(rig.store, rig.now)
    except InvalidInput:  # a store without checks is judged by what it returns
        return
    assert doctor.is_healthy(findings), f"the doctor found {findings}"


def judged(chosen: Iterable[Case], make_rig: Callable[[], Rig]) -> Iterator[Judged]:
    """Run cases one after the other in one database and yield their results."""
    for case in chosen:
        rig = make_rig()
        try:
            yield _judge(case, rig)
        finally:
            rig.clear()
            rig.close()


def _judge(case: Case, rig: Rig) -> Judged:
    try:
        run_case(case, rig)
    except (NotSupported, NotImplementedError) as reason:
        return Judged(case, Verdict.NOT_SUPPORTED, str(reason))
    except Exception:  # noqa: BLE001 - any error of a test is its result
        return Judged(case, Verdict.FAILED, traceback.format_exc())
    return Judged(case, Verdict.PASSED)


def is_empty(url: str, opener: Opener) -> bool:
    """Whether the suite may use a database: it holds no job. A missing schema is created."""
    store = opener(url)
    try:
        with suppress(SchemaError):
            return not store.jobs(JobFilter(), None, 1).items
        store.upgrade()
        return not store.jobs(JobFilter(), None, 1).items
    finally:
        store.close()
