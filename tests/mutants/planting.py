"""The planted bugs as data, and how one is put into a copy of the sources. Used by `make mutants` and an everyday test.

A `*.mutants` file is a list of bugs. Each is found by its text, wherever that stands in the package, so it survives its
file being moved or renamed:

    try: tests/unit/test_retry.py -k delay      the tests most likely to notice those that follow, as pytest takes them
    try: contract claims turns | tests/worker   or groups of the contract suite, on SQLite; several, one after the other
    # A sentence that says what is wrong.
    - the text as it is
    + the text as it will be
    times: 2                                    if the text stands in so many places, all of which are changed
    and:                                        another text that changes too: where a lock and a guard both protect
    equivalent: why no test can notice it       then it is not planted
"""

from __future__ import annotations

import ast
import sqlite3
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from perdure.store.engine import Statements
from perdure.store.sqlite.statements import MARKER, OWN, table
from perdure.store.statements import load, statement_texts
from tests.fresh import new_database

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PACKAGE = Path("src/perdure")
SUFFIXES = (".py", ".sql")


@dataclass
class Mutant:
    """One planted bug."""

    name: str
    tests: str
    old_lines: list[str] = field(default_factory=list[str])
    new_lines: list[str] = field(default_factory=list[str])
    times: int = 1
    equivalent: str | None = None
    also: Mutant | None = None

    @property
    def old(self) -> str:
        return "\n".join(self.old_lines)

    @property
    def new(self) -> str:
        return "\n".join(self.new_lines)


class Stale(Exception):
    """The text of a mutant is not in the sources, or not as often as it says."""


def catalogue() -> list[Mutant]:
    """All planted bugs, in the order in which they are written."""
    return [mutant for file in sorted(HERE.glob("*.mutants")) for mutant in parsed(file.read_text("utf-8"))]


def parsed(text: str) -> list[Mutant]:
    """The bugs of one file. ValueError: a line that means nothing."""
    found: list[Mutant] = []
    tests, latest = "", Mutant("", "")
    for number, line in enumerate(text.splitlines(), 1):
        word, _, rest = line.partition(" ")
        match word:
            case "":
                pass
            case "try:":
                tests = rest
            case "#":
                latest = Mutant(rest, tests)
                found.append(latest)
            case "and:":
                latest.also = Mutant(latest.name, tests)
                latest = latest.also
            case "-":
                latest.old_lines.append(rest)
            case "+":
                latest.new_lines.append(rest)
            case "times:":
                latest.times = int(rest)
            case "equivalent:":
                found[-1].equivalent = rest
            case _:
                raise ValueError(f"line {number} is none of #, -, +, try:, times:, and: and equivalent: {line!r}")
    return found


def sources(root: Path) -> dict[Path, str]:
    """The texts of the package under a root, by their paths in it."""
    return {
        file.relative_to(root): file.read_text("utf-8")
        for file in sorted((root / PACKAGE).rglob("*"))
        if file.suffix in SUFFIXES
    }


def planted(mutant: Mutant, texts: dict[Path, str]) -> dict[Path, str]:
    """The files that change, as they will be."""
    if not mutant.old.strip() or mutant.old == mutant.new:
        raise Stale("it changes nothing")
    count = sum(text.count(mutant.old) for text in texts.values())
    if count != mutant.times:
        raise Stale(f"its text stands {count} times in {PACKAGE}, not {mutant.times}")
    changed = {path: text.replace(mutant.old, mutant.new) for path, text in texts.items() if mutant.old in text}
    return changed if mutant.also is None else {**changed, **planted(mutant.also, {**texts, **changed})}


def folder_of(path: Path) -> str:
    """The part of the package that a file belongs to."""
    return path.relative_to(PACKAGE).parts[0]


def check(path: Path, text: str) -> None:
    """Raise where a changed file is no program any more: a bug that nothing can even start with tests nothing."""
    if path.suffix == ".py":
        ast.parse(text, str(path))
    elif path.parent.name == "sql":
        _prepare(path.name, text)


def _prepare(name: str, text: str) -> None:
    """Let SQLite look at every statement of the file that is not as before."""
    before, connection = _as_before()
    for statement in _statements({**statement_texts(), name: text}).values():
        if statement.sql != before[statement.name].sql:
            connection.execute(f"EXPLAIN {statement.sql}", [None] * len(statement.names))


@cache
def _as_before() -> tuple[Statements, sqlite3.Connection]:
    """The statements without a bug, and an empty database to look at others with."""
    return _statements(statement_texts()), new_database()


def _statements(shared: dict[str, str]) -> Statements:
    return load("\n\n".join([*shared.values(), OWN]), table, MARKER)
