"""docs/requirements.md has every requirement of the sources once, in order, and names only tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "requirements.md"

COUNTS = {1: 109, 2: 51, 3: 44, 4: 91, 5: 68}
"""How many requirements each source has."""

PARTS = {
    "schedules",
    "reservations",
    "flow",
    "limits",
    "events",
    "handlers",
    "dashboard",
    "archive",
    "server performance",
    "MongoDB",
}
"""What may come later."""

_NAMED = re.compile(r"`((?:tests|perdure)/[\w/]+\.py)::(test_\w+)`")
_LATER = re.compile(r"later: ([\w ]+?)(?: \(.+\))?")
_OTHERWISE = re.compile(r"(?:by design|not tested yet): .+")


class Row(NamedTuple):
    """One line of the tables."""

    id: str
    requirement: str
    where: tuple[str, ...]


def rows() -> list[Row]:
    lines = [line for line in DOCUMENT.read_text("utf-8").splitlines() if line.startswith("| S")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [Row(id_, requirement, tuple(where.split("<br>"))) for id_, requirement, where in cells]


def named_tests() -> dict[str, set[str]]:
    """The tests the document names, by file."""
    named: dict[str, set[str]] = {}
    for path, test in _NAMED.findall(DOCUMENT.read_text("utf-8")):
        named.setdefault(path, set()).add(test)
    return named


@cache
def functions_in(path: Path) -> frozenset[str]:
    """Every function and method of a file."""
    tree = ast.parse(path.read_text("utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_every_requirement_is_there_once_and_in_order() -> None:
    wanted = [f"S{source}-{number:02}" for source, count in COUNTS.items() for number in range(1, count + 1)]

    assert [row.id for row in rows()] == wanted


def test_every_requirement_is_said_in_a_few_words() -> None:
    assert [row.id for row in rows() if not 1 <= len(row.requirement.split()) <= 12] == []


def test_every_requirement_says_where_it_stands_in_a_known_way() -> None:
    unclear = {row.id: part for row in rows() for part in row.where if not _is_clear(part)}

    assert unclear == {}


def _is_clear(part: str) -> bool:
    if later := _LATER.fullmatch(part):
        return later[1] in PARTS
    return bool(_NAMED.fullmatch(part) or _OTHERWISE.fullmatch(part))


def test_no_requirement_names_more_than_three_tests() -> None:
    assert [row.id for row in rows() if sum(bool(_NAMED.fullmatch(part)) for part in row.where) > 3] == []


@pytest.mark.parametrize("path", named_tests())
def test_the_named_tests_exist_in(path: str) -> None:
    file = ROOT / path if path.startswith("tests/") else ROOT / "src" / path

    assert named_tests()[path] - functions_in(file) == set()


def test_what_others_suffered_is_shown_by_tests_that_exist() -> None:
    page = (ROOT / "docs" / "internals.md").read_text("utf-8").split("## What others suffered")[1].split("\n## ")[0]
    places = [ROOT / "tests", ROOT / "src" / "perdure" / "testing"]
    known = {name for place in places for file in place.rglob("*.py") for name in _functions(file)}
    named = set(re.findall(r"`(?:…_)?([a-z]+(?:_[a-z0-9]+){2,})(?: \([\w ]+\))?`", page))

    assert len(named) >= 40
    assert [name for name in sorted(named) if not any(one.endswith(name) for one in known)] == []


def _functions(file: Path) -> list[str]:
    return re.findall(r"^def (\w+)\(", file.read_text("utf-8"), re.MULTILINE)
