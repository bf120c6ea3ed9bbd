"""EXPLAIN guards on SQLite: statements that must not slow down as the database grows stay on their indexes."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.store.sqlite.statements import STATEMENTS
from perdure.testing.contract import Rig


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    """A database with jobs in it, whose planner knows nothing of their number: as most users' databases are."""
    path = tmp_path_factory.mktemp("explain") / "jobs.db"
    rig = Rig(f"sqlite:///{path}")
    rig.enqueue_many(50)
    rig.enqueue_many(50, delay_s=60)
    rig.claim(10)
    rig.close()
    connection = sqlite3.connect(Path(path))
    yield connection
    connection.close()


def plan_of(connection: sqlite3.Connection, name: str) -> list[str]:
    statement = STATEMENTS[name]
    bound = [None] * len(statement.names)
    return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement.sql}", bound)]


def on(plan: list[str], table: str) -> list[str]:
    """How the plan reads a table, or an alias of one."""
    return [step for step in plan if re.match(rf"(SEARCH|SCAN) {table}\b", step)]


def test_a_claim_reads_the_head_of_its_index_and_sorts_nothing(connection: sqlite3.Connection) -> None:
    plan = plan_of(connection, "claim_head")

    assert on(plan, "r") == ["SEARCH r USING INDEX perdure_ready_claim (queue=?)"]
    assert not any("TEMP B-TREE" in step for step in plan)


def test_parked_jobs_are_claimed_from_their_index_and_nothing_is_sorted(connection: sqlite3.Connection) -> None:
    plan = plan_of(connection, "claim_parked")

    assert on(plan, "r") == ["SEARCH r USING INDEX perdure_ready_parked (queue=? AND kind=? AND kind_version=?)"]
    assert not any("TEMP B-TREE" in step for step in plan)


@pytest.mark.parametrize(
    ("name", "table", "index"),
    [
        ("next_parked_kind", "r", "perdure_ready_parked"),
        ("held_by_node", "perdure_ready", "perdure_ready_running"),
        ("overdue_jobs", "perdure_ready", "perdure_ready_deadline"),
        ("list_flows_in_state", "perdure_flow", "perdure_flow_by_state"),
        ("due_jobs", "perdure_ready", "perdure_ready_due"),
        ("running_of_node", "perdure_ready", "perdure_ready_running"),
        ("first_in_rank", "perdure_ready", "perdure_ready_claim"),
        ("neighbours_before", "perdure_ready", "perdure_ready_claim"),
        ("neighbours_after", "perdure_ready", "perdure_ready_claim"),
        ("list_log", "perdure_job_log", "perdure_job_log_by_job"),
        ("due_schedules", "perdure_schedule", "perdure_schedule_due"),
        ("next_trigger", "perdure_schedule", "perdure_schedule_due"),
        ("live_of_schedule", "perdure_job", "perdure_job_by_schedule"),
        ("pending_of_schedule", "j", "perdure_job_by_schedule"),
    ],
)
def test_a_listing_or_a_look_uses_its_index(connection: sqlite3.Connection, name: str, table: str, index: str) -> None:
    steps = on(plan_of(connection, name), table)

    assert len(steps) == 1
    assert re.match(rf"SEARCH {table} USING (COVERING )?INDEX {index}\b", steps[0])


@pytest.mark.parametrize(
    "name", ["waiting_edges", "waiting_edges_from", "settled_edges", "settle_edge", "open_edge", "move_edges"]
)
def test_those_who_wait_for_a_job_are_found_by_its_key(connection: sqlite3.Connection, name: str) -> None:
    (step,) = on(plan_of(connection, name), "perdure_edge")

    assert re.match(r"SEARCH perdure_edge USING (COVERING INDEX \w+|PRIMARY KEY) \(depends_on=\?", step)


@pytest.mark.parametrize(
    ("name", "table", "by"),
    [
        ("read_waits", "perdure_edge", r"INDEX \w+ \(job_id=\?"),
        ("edges_of_jobs", "perdure_edge", r"INDEX \w+ \(job_id=\?"),
        ("these_live", "perdure_ready", r"INDEX \w+ \(job_id=\?\)|PRIMARY KEY \(job_id=\?\)"),
        ("tallies_of_flow", "perdure_tally", r"PRIMARY KEY \(flow_id=\?\)"),
        ("read_flow", "perdure_tally", r"PRIMARY KEY \(flow_id=\?\)"),
        ("look_for_node", "perdure_tally", r"INDEX perdure_tally_by_node \(node_id=\?\)"),
        ("flow_with_key", "perdure_flow", r"INDEX perdure_flow_live_key \(live_key=\?\)"),
        ("flows_filled_by", "perdure_flow", r"INDEX perdure_flow_filled_by \(filled_by=\?\)"),
        ("list_inner_flows", "perdure_flow", r"INDEX perdure_flow_inside \(parent_id=\?\)"),
        ("list_members", "perdure_job", r"INDEX perdure_job_by_flow \(flow_id=\? AND \(sequence,id\)>\(\?,\?\)\)"),
        ("list_callbacks", "perdure_job", r"INDEX perdure_job_by_flow \(flow_id=\? AND sequence=\?\)"),
        ("flow_ends", "j", r"INDEX perdure_job_by_flow \(flow_id=\?\)"),
    ],
)
def test_what_belongs_to_a_flow_is_found_by_an_index(
    connection: sqlite3.Connection, name: str, table: str, by: str
) -> None:
    """So the cost of an end does not depend on the size of its flow, nor on how many there are."""
    (step, *_) = on(plan_of(connection, name), table)

    assert re.search(rf"^SEARCH {table} USING (COVERING )?({by})", step), step


def test_a_glance_takes_one_step_into_its_index_for_each_queue(connection: sqlite3.Connection) -> None:
    """So it costs the same with a thousand jobs or a million."""
    plan = plan_of(connection, "glance")
    assert on(plan, "r") == [
        "SEARCH r USING COVERING INDEX perdure_ready_claim (queue=?)",
        "SEARCH r USING INDEX perdure_ready_parked (queue=?)",
        "SEARCH r USING INDEX perdure_ready_awake (queue=?)",
    ]
    assert on(plan, "q") == ["SCAN q"] * 3
    due, cancelled = on(plan, "perdure_ready")
    assert "USING COVERING INDEX perdure_ready_due" in due
    assert cancelled == "SEARCH perdure_ready USING INDEX perdure_ready_running (node_id=?)"


def test_the_keys_of_a_deleted_job_are_found_by_a_step_for_each_kind(connection: sqlite3.Connection) -> None:
    """And not by reading all keys there ever were."""
    steps = [step for step in plan_of(connection, "settle_idempotency_key") if re.search(r"(SCAN|SEARCH)", step)]

    assert steps
    assert all(re.search(r"USING PRIMARY KEY|SCAN known", step) for step in steps)


@pytest.mark.parametrize("name", ["live_nodes", "nodes_left_behind"])
def test_a_look_after_other_nodes_reads_no_waiting_job_and_no_dead_node(
    connection: sqlite3.Connection, name: str
) -> None:
    steps = [step for step in plan_of(connection, name) if step.startswith(("SCAN", "SEARCH"))]

    assert steps
    assert all(re.search(r"INDEX perdure_(ready_running|node_alive)\b|PRIMARY KEY", step) for step in steps)


@pytest.mark.parametrize(
    "name",
    [
        "due_jobs",
        "overdue_jobs",
        "list_log",
        "neighbours_after",
        "neighbours_before",
        "next_parked_kind",
    ],
)
def test_a_page_is_read_in_order_and_not_sorted(connection: sqlite3.Connection, name: str) -> None:
    assert not any("TEMP B-TREE" in step for step in plan_of(connection, name))


@pytest.mark.parametrize(
    "name",
    [
        "read_live",
        "update_ready",
        "delete_ready",
        "delete_ready_of_run",
        "claim_ready",
        "respace",
        "close_run",
        "note_metrics",
        "trim_log",
        "beat_node",
        "stop_node",
        "read_job",
    ],
)
def test_a_single_row_is_found_by_its_key(connection: sqlite3.Connection, name: str) -> None:
    plan = plan_of(connection, name)

    assert plan
    assert not any(step.startswith("SCAN") for step in plan)
