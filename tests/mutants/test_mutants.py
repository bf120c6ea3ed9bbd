"""Every planted bug fits the sources as they are. Whether the tests notice it is asked by `make mutants`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from perdure.testing.contract.suite import GROUPS
from tests.mutants.planting import ROOT, Mutant, Stale, catalogue, check, folder_of, parsed, planted, sources

MUTANTS = catalogue()
HELD_TO = {"aio.py", "app.py", "checks.py", "cli", "contrib", "flow", "flows.py", "job", "kind.py", "limit"} | {
    "limits.py",
    "ops",
    "payload",
    "queues.py",
    "schedule",
    "store",
    "templates.py",
    "testing",
    "upkeep",
    "words_of_others.py",
    "worker",
    "workflow.py",
}


@pytest.fixture(scope="module")
def texts() -> dict[Path, str]:
    return sources(ROOT)


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_a_planted_bug_fits_the_sources(mutant: Mutant, texts: dict[Path, str]) -> None:
    for path, text in planted(mutant, texts).items():
        assert folder_of(path) in HELD_TO
        check(path, text)


def test_no_two_planted_bugs_have_the_same_name() -> None:
    assert [name for name, count in Counter(mutant.name for mutant in MUTANTS).items() if count > 1] == []


def test_every_planted_bug_names_tests_that_exist() -> None:
    named = {part for mutant in MUTANTS for part in mutant.tests.split() if part.startswith("tests/")}

    tries = {tried for mutant in MUTANTS for tried in mutant.tests.split(" | ")}
    groups = {part for tried in tries if tried.startswith("contract ") for part in tried.split()[1:]}

    assert [name for name in named if not (ROOT / name.partition("::")[0]).exists()] == []
    assert groups <= set(GROUPS)


def test_a_text_that_is_not_there_is_stale(texts: dict[Path, str]) -> None:
    with pytest.raises(Stale, match="0 times"):
        planted(Mutant("x", "", ["no such text in the package " * 2], ["y"]), texts)


def test_a_text_that_is_there_twice_is_stale(texts: dict[Path, str]) -> None:
    with pytest.raises(Stale, match="not 1"):
        planted(Mutant("x", "", ["def "], ["y"]), texts)


def test_a_file_of_planted_bugs_is_read_as_it_is_written() -> None:
    first, second = parsed("try: tests/x.py -k y\n\n# One.\n- a\n-   b\n+ c\ntimes: 2\n\n# Two.\n- d\nequivalent: so\n")

    assert first == Mutant("One.", "tests/x.py -k y", ["a", "  b"], ["c"], 2)
    assert second == Mutant("Two.", "tests/x.py -k y", ["d"], [], 1, "so")


def test_a_planted_bug_may_change_several_texts_one_after_the_other(texts: dict[Path, str]) -> None:
    path = next(path for path, text in texts.items() if text.startswith('"""'))
    [mutant] = parsed("# Both.\n- one\n+ two\nand:\n- two!\n+ three!\n")

    assert planted(mutant, {path: "one!"}) == {path: "three!"}
