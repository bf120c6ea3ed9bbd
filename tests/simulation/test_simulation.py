"""Nodes that die, freeze, lose answers and clocks, in seeded histories: nothing is lost, nothing happens twice unsaid.

A failure names its seed, and PERDURE_SEED=1234 runs that one alone. Seeds 43 and 53 found that a connection lost twice
in a row was taken for a refusal; the test at the end keeps it, whatever becomes of the seeds.
With flows and limits every seed has got another history.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from perdure import State
from perdure.store.protocols import ConnectionLost
from tests import history
from tests.conftest import SIZE
from tests.simulation.faults import Fault
from tests.simulation.world import World, run_history

STEPS = 80
EVERYDAY = 200
FULL = 2_500
PER_TEST = 10

OWN = os.environ.get("PERDURE_SEED")
FIRST = range(int(OWN), int(OWN) + 1) if OWN else range(0, FULL if SIZE == "full" else EVERYDAY, PER_TEST)


@pytest.mark.parametrize("first", FIRST, ids=lambda first: f"seeds_from_{first}")
def test_every_history_ends_with_nothing_lost_and_nothing_unexplained(
    tmp_path: Path, template: Path, first: int
) -> None:
    for seed in range(first, first + 1 if OWN else first + PER_TEST):
        folder = tmp_path / str(seed)
        folder.mkdir()
        try:
            found = run_history(folder, template, seed, STEPS)
        except Exception as error:
            error.add_note(f"this was seed {seed}; PERDURE_SEED={seed} runs it alone")
            raise
        assert found == [], f"seed {seed}; PERDURE_SEED={seed} runs it alone"
        shutil.rmtree(folder)


def test_the_same_seed_gives_the_same_history(tmp_path: Path, template: Path) -> None:
    notes: list[str] = []
    for copy in ("one", "other"):
        (tmp_path / copy).mkdir()
        assert run_history(tmp_path / copy, template, 12, STEPS) == []
        notes.append((tmp_path / copy / "notes").read_text())
    assert notes[0] == notes[1]
    assert notes[0].count('"start"') > 10


@pytest.mark.parametrize("how", ["before", "after"])
def test_a_connection_lost_again_and_again_is_no_refusal(tmp_path: Path, template: Path, how: str) -> None:
    world = World(tmp_path, template, seed=1)
    world.is_draining = True  # nobody else does anything
    proc = world.start()
    proc.executor.pick = lambda: ("ok", 0.0)
    job = world.kinds[0].enqueue(n=0)
    history.note(world.notes, "enqueued", job=job.id)
    proc.node.turn()
    proc.executor.progress()
    proc.runner.fault = Fault(0, how, ConnectionLost, times=4)
    for _ in range(6):
        proc.node.turn()
    assert world.plain.existing(job).state == State.COMPLETED
    assert world.problems() == []
    world.close()
