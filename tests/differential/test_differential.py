"""The same operations leave the same behind on every database: what was answered at each step, every row of every
table, and what is shown. Only the numbers of places may differ, not the order that they mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from perdure.clock import ManualClock
from perdure.errors import PerdureError
from perdure.ops.doctor import examine, is_healthy
from perdure.store.open import open_store
from perdure.testing.contract.rig import START, Rig
from tests.conftest import SIZE
from tests.differential import flow_story
from tests.differential.flow_story import LONGEST_END, Company, FlowStory, shown
from tests.differential.state import plain, questions, rows_of
from tests.differential.story import Story, Told

SERVERS = {"postgres": "postgres_server", "mariadb": "mariadb_server"}
"""The fixture that starts each server. All are compared with SQLite."""

STEPS = 60
LOOK_EVERY = 10
PER_TEST = 2


class Twins:
    """SQLite and another database, both empty."""

    def __init__(self, *urls: str) -> None:
        self.rigs = [Rig(url) for url in urls]

    def clear(self) -> None:
        for rig in self.rigs:
            rig.clear()

    def rows(self) -> list[dict[str, list[str]]]:
        return [rows_of(rig) for rig in self.rigs]

    def close(self) -> None:
        for rig in self.rigs:
            rig.close()


@pytest.fixture(scope="module", params=[pytest.param(name, marks=getattr(pytest.mark, name)) for name in SERVERS])
def twins(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Twins]:
    url = request.getfixturevalue(SERVERS[request.param]).new_database()
    store = open_store(url)
    store.upgrade()
    store.close()
    twins = Twins(f"sqlite:///{tmp_path_factory.mktemp('twin') / 'jobs.db'}", url)
    yield twins
    twins.close()


T = TypeVar("T")


def answered(step: Callable[[T], object], told: T) -> object:
    try:
        return plain(step(told))
    except PerdureError as refused:
        return plain(refused)


def tell(twins: Twins, seed: int) -> None:
    """One story, compared as it goes. The error names the seed and all steps so far."""
    twins.clear()
    all_told = [Told(rig.store) for rig in twins.rigs]
    story = Story(seed, all_told[0])
    so_far: list[str] = []
    for number in range(1, STEPS + 1):
        name, step = story.step()
        so_far.append(name)
        first, *others = [answered(step, told) for told in all_told]
        assert others == [first] * len(others), f"seed {seed}, step {number} ({name}), after {so_far}"
        if number % LOOK_EVERY == 0:
            first_rows, *other_rows = twins.rows()
            assert other_rows == [first_rows] * len(other_rows), f"seed {seed}, step {number}, after {so_far}"
    first_seen, *others_seen = [questions(told.store, story.rig.now) for told in all_told]
    assert others_seen == [first_seen] * len(others_seen), f"seed {seed}, after {so_far}"
    for told in all_told:
        assert is_healthy(examine(told.store)), f"seed {seed}: {examine(told.store)}"


FLOW_STEPS = 60


def tell_of_flows(twins: Twins, seed: int) -> None:
    """One story of flows and limits, to its end: nobody waits for ever, and nothing of any limit is left in use."""
    twins.clear()
    clock = ManualClock(START)
    all_told = [Company(rig.store, clock, seed) for rig in twins.rigs]
    story = FlowStory(seed, clock, all_told[0])
    so_far: list[str] = []

    def tell(name: str, step: flow_story.Step) -> None:
        so_far.append(name)
        first, *others = [answered(step, told) for told in all_told]
        assert others == [first] * len(others), f"seed {seed}, step {len(so_far)} ({name}), after {so_far}"

    def look() -> None:
        first_rows, *other_rows = twins.rows()
        assert other_rows == [first_rows] * len(other_rows), f"seed {seed}, after {so_far}"
        first_seen, *others_seen = [plain(shown(told, story)) for told in all_told]
        assert others_seen == [first_seen] * len(others_seen), f"seed {seed}, after {so_far}"
        for told in all_told:
            findings = examine(told.store, clock.now())
            assert is_healthy(findings), f"seed {seed}, after {so_far}: {findings}"

    for number in range(1, FLOW_STEPS + 1):
        tell(*story.step())
        if number % LOOK_EVERY == 0:
            look()
    tell("let_go", story.let_go())
    for _ in range(LONGEST_END):
        if not story.left(all_told[0]):
            break
        tell("go_on", story.go_on())
    look()
    assert [story.left(told) for told in all_told] == [[]] * len(all_told), f"seed {seed}, after {so_far}"
    assert twins.rows()[0]["permit"] == [], f"seed {seed}, after {so_far}"


def test_the_same_story_ends_the_same_on_every_database(twins: Twins, full_size: bool) -> None:
    for seed in range(1_000 if full_size else 20):
        tell(twins, seed)


@pytest.mark.parametrize("first", range(0, 1_000 if SIZE == "full" else 8, PER_TEST))
def test_the_same_story_of_flows_ends_the_same_on_every_database(twins: Twins, first: int) -> None:
    for seed in range(first, first + PER_TEST):
        tell_of_flows(twins, seed)
