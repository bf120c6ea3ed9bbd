"""EXPLAIN guards on SQLite: no question reads a whole table, however many jobs and runs there are."""

from __future__ import annotations

import itertools
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.job.reports import Completed
from perdure.store.sqlite.statements import STATEMENTS
from perdure.testing.contract import Rig

QUESTIONS = [name for name in STATEMENTS if name.startswith("ask_")]

SMALL = {
    "SCAN q": "there are few queues",
    "SCAN x": "goes on for :cap rows, in the order of the key",
    "SCAN r USING INDEX perdure_ready_running": "not more run than workers have places",
}
"""What may be gone through from its beginning, and why."""


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    path = tmp_path_factory.mktemp("questions") / "jobs.db"
    rig = Rig(f"sqlite:///{path}")
    rig.enqueue_many(50)
    for claim in rig.claim(20):
        rig.finish(claim, Completed())
    rig.close()
    connection = sqlite3.connect(Path(path))
    yield connection
    connection.close()


def plan_of(connection: sqlite3.Connection, name: str) -> list[str]:
    statement = STATEMENTS[name]
    bound = [None] * len(statement.names)
    return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement.sql}", bound)]


def test_there_are_six_questions() -> None:
    assert len(QUESTIONS) == 6


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_question_goes_through_no_table_from_its_beginning(connection: sqlite3.Connection, name: str) -> None:
    plan = plan_of(connection, name)
    own = {step.split(maxsplit=1)[1] for step in plan if step.startswith(("MATERIALIZE", "CO-ROUTINE"))}

    scans = [step for step in plan if step.startswith("SCAN") and step.removeprefix("SCAN ") not in own]
    assert [step for step in scans if step not in SMALL] == []


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_rows_a_question_looks_at_are_read_in_order_and_not_sorted(
    connection: sqlite3.Connection, name: str
) -> None:
    """Where a table is read up to :cap, it goes by its own name: were it sorted, all of it would be read."""
    plan = plan_of(connection, name)
    sorted_after = [
        step
        for step, following in itertools.pairwise(plan)
        if re.match(r"(SEARCH|SCAN) perdure_", step) and "TEMP B-TREE" in following
    ]

    assert sorted_after == []


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("ask_outstanding", "SEARCH r USING PRIMARY KEY (job_id<?)"),
        ("ask_failures", "SEARCH perdure_outcome USING INDEX perdure_outcome_failed (finished_at>?)"),
        ("count_failed", "SEARCH perdure_outcome USING INDEX perdure_outcome_failed (finished_at>?)"),
        ("ask_stuck", "SEARCH perdure_ready USING INDEX perdure_ready_aside (state=?)"),
        ("ask_stuck", "SEARCH perdure_ready USING INDEX perdure_ready_due (run_at<?)"),
        ("ask_stuck", "SEARCH r USING COVERING INDEX perdure_ready_claim (queue=?)"),
        ("ask_stuck", "SEARCH perdure_run USING PRIMARY KEY (id>?)"),
        ("ask_durations", "SEARCH perdure_run USING PRIMARY KEY (id>?)"),
        ("ask_duplicates", "SEARCH perdure_job USING INDEX sqlite_autoindex_perdure_job_1 (id>?)"),
        ("ask_duplicates", "SEARCH o USING PRIMARY KEY (job_id=?)"),
        ("ask_duplicates", "SEARCH perdure_run USING INDEX perdure_run_by_state (state=? AND id>?)"),
        ("ask_ran", "SEARCH perdure_run USING PRIMARY KEY (id>?)"),
    ],
)
def test_a_question_begins_with_its_index(connection: sqlite3.Connection, name: str, step: str) -> None:
    assert step in plan_of(connection, name)
