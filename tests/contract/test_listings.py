"""Listings read a bounded part of an index at a time. Here with small bounds, so that few jobs meet all of them."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from perdure.job.reports import Completed, Failed
from perdure.job.states import RunState, State
from perdure.store import admin, read
from perdure.store.open import open_store
from perdure.store.postgres.statements import READING
from perdure.store.rows import JobFilter, RunFilter
from perdure.store.sqlite.statements import STATEMENTS
from perdure.testing.contract import Case, Rig, cases, run_case
from perdure.testing.contract.rig import HOPELESS
from tests.contract.steps import Steps
from tests.postgres_server import PostgresServer

LISTING = [case for case in cases(("reads", "runs", "queues", "tags", "order")) if "closed" not in case.name]


@pytest.fixture(scope="module")
def database(postgres_server: PostgresServer) -> str:
    return _new_database(postgres_server)


def _new_database(server: PostgresServer) -> str:
    url = server.new_database()
    store = open_store(url)
    store.upgrade()
    store.close()
    return url


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    is_sqlite = request.param == "sqlite"
    rig = Rig(f"sqlite:///{tmp_path}/jobs.db" if is_sqlite else request.getfixturevalue("database"))
    yield rig
    rig.clear()
    rig.close()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "SCANNED", 4)
    monkeypatch.setattr(read, "GROUPS", 3)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("case", [case for case in LISTING if case.group == "reads" or "list" in case.name], ids=str)
def test_the_contract_holds_when_every_listing_has_to_go_on_often(case: Case, rig: Rig) -> None:
    run_case(case, rig)


@pytest.mark.usefixtures("small")
def test_a_page_may_be_short_or_empty_and_says_where_to_go_on(rig: Rig) -> None:
    oldest = rig.enqueue(owner="rare")
    rig.enqueue_many(20)
    wanted, spot, sizes = JobFilter(owner="rare"), None, list[int]()
    while not sizes or spot is not None:
        page = rig.store.jobs(wanted, spot, 10)
        sizes.append(len(page.items))
        spot = page.next

    assert sizes == [0, 0, 0, 0, 1]
    assert rig.jobs(wanted) == [oldest]


@pytest.mark.usefixtures("small")
def test_the_jobs_of_a_kind_are_listed_from_however_many_queues(rig: Rig) -> None:
    ids = [rig.enqueue(queue=rig.key(f"queue-{number}")) for number in range(read.GROUPS + 3)]

    assert rig.jobs(JobFilter(kind=rig.kind)) == ids[::-1]


@pytest.mark.usefixtures("small")
def test_small_pages_of_runs_leave_none_out(rig: Rig) -> None:
    claims = [rig.start() for _ in range(3 * read.SCANNED)]
    wanted, spot, found = RunFilter(state=RunState.RUNNING, kind=rig.kind), None, list[bytes]()
    while not found or spot is not None:
        page = rig.store.runs(wanted, spot, 1)
        found += [run.row.id for run in page.items]
        spot = page.next

    assert found == [claim.run_id for claim in reversed(claims)]


# -- counts ----------------------------------------------------------------------------------------------------------


def test_queued_jobs_are_counted_up_to_a_cap_and_it_is_said_that_there_are_more(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "CAPS", (4,))
    rig.enqueue_many(4, queue="exact")
    rig.enqueue_many(5, queue="more")
    rig.enqueue_many(2, delay_s=9, queue="exact")

    told = {queue.name: (queue.queued, queue.live, queue.more_queued, queue.more_live) for queue in rig.store.queues()}
    assert told == {"exact": (4, 6, False, False), "more": (4, 4, True, True)}


@pytest.mark.parametrize("set_aside", [False, True])
def test_other_waiting_jobs_are_counted_up_to_a_cap_of_all_queues(
    set_aside: bool, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "COUNTED", 4)
    for queue, number in (("one", 4), ("two", 1)):
        assert not any(queue.more_live for queue in rig.store.queues())
        for job_id in rig.enqueue_many(number, queue=queue, delay_s=0 if set_aside else 9):
            if set_aside:
                rig.pause(job_id)

    assert [(queue.more_queued, queue.more_live) for queue in rig.store.queues()] == [(False, True)] * 2


def test_with_many_queues_each_is_counted_less_far(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "COUNTED_TOGETHER", 6)
    monkeypatch.setattr(admin, "CAPS", (3, 2, 1))
    for name in ("a", "b", "c"):
        rig.enqueue_many(3, queue=name)

    assert [(queue.queued, queue.more_queued) for queue in rig.store.queues()] == [(2, True)] * 3


# -- what a page costs -----------------------------------------------------------------------------------------------

FILTERS = [
    JobFilter(**{name: value for name, value in given if value is not None})
    for state in (None, *State)
    for given in (
        [("state", state)],
        [("state", state), ("queue", "rare")],
        [("state", state), ("kind", "rare")],
        [("state", state), ("owner", "nobody")],
        [("state", state), ("tag", "t"), ("owner", "nobody")],
        [("state", state), ("queue", "common"), ("kind", "common"), ("owner", "nobody")],
        [("state", state), ("queue", "common"), ("owner", "nobody")],
        [("state", state), ("kind", "common"), ("owner", "nobody")],
    )
]
RUN_FILTERS = [
    RunFilter(state=state, kind=kind, owner=owner)
    for state in (None, *RunState)
    for kind in (None, "common", "rare")
    for owner in (None, "nobody")
]


def _filled(path: Path, number: int) -> Steps:
    """Ended jobs and newer ones that wait, of each sort so many."""
    rig = Rig(f"sqlite:///{path}")
    rig.enqueue(queue="rare", kind="rare")
    common = {"queue": "common", "kind": "common"}
    rig.store.enqueue([rig.new(tags=("t",), **common) for _ in range(number)])  # type: ignore[arg-type]
    claims = rig.claim(number, queue="common")
    reports = [rig.report(claim, Completed() if n % 2 else Failed(HOPELESS)) for n, claim in enumerate(claims)]
    rig.store.finish(reports, rig.now)
    rig.store.enqueue([rig.new(delay_s=60 * (n % 2), **common) for n in range(2 * number)])  # type: ignore[arg-type]
    rig.close()
    return Steps(path)


def test_no_page_takes_longer_with_eight_times_the_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "SCANNED", 50)
    few, many = _filled(tmp_path / "few.db", 250), _filled(tmp_path / "many.db", 2_000)

    most = max(few.worst_page(wanted) for wanted in FILTERS)
    too_long = {wanted: steps for wanted in FILTERS if (steps := many.worst_page(wanted)) > 1.3 * most}
    most_runs = max(few.worst_page(wanted) for wanted in RUN_FILTERS)
    too_long_runs = {wanted: steps for wanted in RUN_FILTERS if (steps := many.worst_page(wanted)) > 1.3 * most_runs}
    few.close()
    many.close()

    assert most > 50
    assert (too_long, too_long_runs) == ({}, {})


def test_counting_takes_no_longer_with_eight_times_the_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "COUNTED", 50)
    monkeypatch.setattr(admin, "CAPS", (50,))
    few, many = _filled(tmp_path / "few.db", 250), _filled(tmp_path / "many.db", 2_000)

    steps = [side.worst(admin.queues()) for side in (few, many)]
    few.close()
    many.close()
    assert 10 < steps[1] < 1.3 * steps[0]


# -- plans -----------------------------------------------------------------------------------------------------------

GUARDED = [
    name
    for name in STATEMENTS
    if re.match(r"list_|reach_|count_(queued|not_queued|ahead)|queues_of|kinds_of", name)
    and name
    not in (
        "list_queues",
        "list_nodes",
        "list_log",
        "list_waited_for",
        "list_declarations",
        "list_templates",
        "list_template_versions",
        "list_reservations",
        "list_rules",
    )
]
BOUNDED = (
    r"SCAN (f|d|g|e|c|w|s|a)",  # what a subquery gave, which had a bound
    r"SCAN q",  # there are few queues
    r"SCAN r USING INDEX perdure_ready_running",  # not more run than workers have places
    r"SCAN perdure_ready USING (COVERING )?INDEX perdure_ready_(claim|due|running|aside)",  # up to LIMIT
)


def test_all_listings_are_guarded() -> None:
    assert len(GUARDED) >= 40


@pytest.fixture(scope="module", params=["no statistics", "statistics of a million jobs"])
def connection(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[sqlite3.Connection]:
    path = tmp_path_factory.mktemp("plans") / "jobs.db"
    _filled(path, 50).close()
    connection = sqlite3.connect(path)
    if request.param != "no statistics":
        connection.execute("ANALYZE")
        for table, index, stat in connection.execute("SELECT tbl, idx, stat FROM sqlite_stat1").fetchall():
            rows, *per_value = map(int, stat.split())
            grown = [1_000_000, *(number if number == 1 else number * 1_000_000 // rows for number in per_value)]
            connection.execute(
                "UPDATE sqlite_stat1 SET stat = ? WHERE tbl = ? AND idx IS ?", (" ".join(map(str, grown)), table, index)
            )
        connection.commit()
        connection.close()
        connection = sqlite3.connect(path)
    yield connection
    connection.close()


@pytest.mark.parametrize("name", GUARDED)
def test_sqlite_reads_no_table_from_its_beginning(connection: sqlite3.Connection, name: str) -> None:
    statement = STATEMENTS[name]
    plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement.sql}", [None] * len(statement.names))]

    assert any(step.startswith(("SCAN", "SEARCH")) for step in plan)
    scans = [step for step in plan if step.startswith("SCAN")]
    assert [step for step in scans if not any(re.fullmatch(bounded, step) for bounded in BOUNDED)] == []


@pytest.fixture(scope="module")
def big(postgres_server: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    """A database whose planner knows of many jobs: half of them have ended, half of them wait."""
    url = _new_database(postgres_server)
    with psycopg.connect(url, autocommit=True, prepare_threshold=None) as connection:
        for statement in MANY_ROWS:
            connection.execute(statement.encode())
        yield connection


MANY_ROWS = (
    """INSERT INTO perdure.job (id, kind, kind_version, owner, queue, payload, business_key, idempotency_key,
        chain_attempt, created_at)
    SELECT ('01900000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'kind-' || n % 5, 1, 'shop',
        'queue-' || n % 7, '{}', 'key-' || n % 10, 'key-' || n, 1, 0 FROM generate_series(1, 60000) AS n""",
    """INSERT INTO perdure.outcome (job_id, life, state, finished_at, rank, position, run_at, queued_at, attempts,
        crashes, max_attempts, version)
    SELECT id, 1, CASE WHEN random() < 0.1 THEN 'failed' ELSE 'completed' END, 0, 0, 0, 0, 0, 1, 0, 3, 1
    FROM perdure.job ORDER BY id LIMIT 30000""",
    """INSERT INTO perdure.run (id, job_id, state, node_id, attempt, life, started_at, wait_ms, traceback)
    SELECT job_id, job_id, state, job_id, 1, 1, 0, 0, repeat('line ', 200) FROM perdure.outcome""",
    """INSERT INTO perdure.ready (job_id, queue, kind, kind_version, state, rank, position, run_at, queued_at, attempts,
        crashes, life, max_attempts, as_new_job, waits_for, paused, cancel_requested, updated_at, version)
    SELECT id, queue, kind, 1, CASE WHEN random() < 0.01 THEN 'paused' WHEN random() < 0.5 THEN 'scheduled'
        ELSE 'queued' END, 0, row_number() OVER (), 0, 0, 0, 0, 1, 3, 0, 0, 0, 0, 0, 1
    FROM perdure.job ORDER BY id DESC LIMIT 30000""",
    "INSERT INTO perdure.tag (job_id, tag) SELECT id, 'tag-' || random()::int FROM perdure.job",
    "INSERT INTO perdure.queue (name, next_position) SELECT DISTINCT queue, 0 FROM perdure.job",
    """INSERT INTO perdure.schedule (id, name, owner, source, kind, kind_version, payload, plan, tz, policy, enabled,
        next_trigger_at, created_at, updated_at, version)
    SELECT id, 'schedule-' || id::text, 'shop', CASE WHEN random() < 0.1 THEN 'code' ELSE 'api' END, kind, 1, '{}',
        '{}', 'UTC', '{}', 1, 0, 0, 0, 1 FROM perdure.job LIMIT 10000""",
    """INSERT INTO perdure.slot (schedule_id, scheduled_for, job_id, created_at)
    SELECT s.id, n, s.id, 0 FROM perdure.schedule AS s CROSS JOIN generate_series(1, 5) AS n""",
    """INSERT INTO perdure.missed (schedule_id, first_at, recorded_at, last_at, instants, reason)
    SELECT s.id, n, 0, n, 1, 'misfired' FROM perdure.schedule AS s CROSS JOIN generate_series(1, 5) AS n""",
    """INSERT INTO perdure.declaration (name, node_id, digest, declared_at)
    SELECT name, id, 'digest', 0 FROM perdure.schedule""",
    """INSERT INTO perdure.archive (job_id, kind, owner, queue, state, created_at, finished_at, archived_at, document)
    SELECT id, kind, owner, queue, 'completed', 0, 0, 0, '{}' FROM perdure.job LIMIT 10000""",
    """INSERT INTO perdure.flow (id, sort, name, owner, parent_id, on_failure, state, attempt, total, completed, failed,
        cancelled, skipped, run_ms, wait_ms, attempts, created_at)
    SELECT id, 'batch', 'flow-' || id::text, 'shop', CASE WHEN random() < 0.5 THEN id END, 'continue', 'running', 1, 1,
        0, 0, 0, 0, 0, 0, 0, 0 FROM perdure.job LIMIT 10000""",
    """INSERT INTO perdure.node (id, beat, started_at, beat_at) SELECT id, 0, 0, 0 FROM perdure.schedule""",
    "VACUUM ANALYZE",
)
LOWEST, HIGHEST = "'00000000-0000-0000-0000-000000000000'::uuid", "'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid"
ASKED = {
    **dict.fromkeys(("from_id", "after", "job_id"), LOWEST),
    **dict.fromkeys(("below", "to_id"), HIGHEST),
    **dict.fromkeys(("rank", "position"), f"'{-(2**63)}'::bigint"),
    **dict.fromkeys(("to_rank", "to_position"), f"{2**63 - 1}::bigint"),
    **dict.fromkeys(("schedule_id", "node_id", "flow_id", "parent_id", "id"), LOWEST),
    "name": "'flow-1'",
    "sequence": "0::bigint",
    "after_name": "'schedule-'",
    "after_id": LOWEST,
    "after_life": "0::bigint",
    "before": "100::bigint",
    "page": "200::bigint",
    "scan": "2500::bigint",
    "groups": "100::bigint",
    "cap": "10001::bigint",
    "queue": "'queue-1'",
    "kind": "'kind-1'",
    "owner": "'nobody'",
    "state": "'failed'",
    "tag": "'tag-1'",
    "business_key": "'key-1'",
    "idempotency_key": "'key-1'",
}


@pytest.mark.postgres
@pytest.mark.parametrize("plan", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("name", GUARDED)
def test_postgres_reads_no_table_from_its_beginning(name: str, plan: str, big: psycopg.Connection[Any]) -> None:
    big.execute(f"SET plan_cache_mode = {plan}".encode())
    given = ", ".join(ASKED[parameter] for parameter in READING[name].names)
    arguments = f"({given})" if given else ""
    big.execute(b"PREPARE asked AS " + READING[name].sql.encode())
    try:
        [(found,)] = big.execute(f"EXPLAIN (FORMAT JSON) EXECUTE asked {arguments}".encode()).fetchall()
    finally:
        big.execute("DEALLOCATE asked")

    nodes = list(_nodes(found[0]["Plan"]))
    read_whole = [node for node in nodes if node["Node Type"] == "Seq Scan" and node["Relation Name"] != "queue"]
    assert read_whole == [], json.dumps(found, indent=1)
    assert [node["Node Type"] for node in nodes if node["Node Type"] in ("Hash Join", "Merge Join")] == []


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for inner in plan.get("Plans", ()):
        yield from _nodes(inner)
