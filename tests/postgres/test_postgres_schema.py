"""The schema on PostgreSQL: made once, refused where unfit, and understood by every statement."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from perdure import Perdure, SchemaError
from perdure.ids import JobId, NodeId
from perdure.job.reports import Completed, Finish
from perdure.ops.doctor import examine, is_healthy
from perdure.store import migrate
from perdure.store.open import open_store
from perdure.store.postgres.session import VERSIONS
from perdure.store.postgres.statements import LOCK_KEY, NAMING, READING, WRITING
from perdure.store.protocols import StoreSettings
from perdure.store.rows import NewNode
from perdure.store.sqlite.statements import STATEMENTS as SQLITE
from tests import revision_1
from tests.app import by_hand
from tests.postgres.conftest import declare
from tests.postgres.processes import at_once, open_and_enqueue
from tests.postgres_server import PostgresServer

pytestmark = pytest.mark.postgres

KNOWN = migrate.migrations_of("postgres")


@pytest.fixture
def connection(postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        yield connection


def catalogue(url: str) -> list[tuple[Any, ...]]:
    """Every column, index, view and sequence of Perdure, as PostgreSQL describes it."""
    with psycopg.connect(url) as connection:
        columns = """
            SELECT table_name, column_name, ordinal_position, data_type, is_nullable, collation_name
            FROM information_schema.columns WHERE table_schema = 'perdure' ORDER BY 1, 3"""
        indexes = "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'perdure' ORDER BY 1"
        views = "SELECT viewname, definition FROM pg_views WHERE schemaname = 'perdure' ORDER BY 1"
        sequences = "SELECT * FROM information_schema.sequences WHERE sequence_schema = 'perdure' ORDER BY 3"
        found = [connection.execute(query).fetchall() for query in (columns, indexes, views)]
        rows: list[tuple[Any, ...]] = [row for part in found for row in part]
        return rows + [row[2:] for row in connection.execute(sequences.encode())]


# -- making it -------------------------------------------------------------------------------------------------------


def test_a_server_is_not_migrated_unasked(postgres_url: str, connection: psycopg.Connection[Any]) -> None:
    app = Perdure(postgres_url)
    with pytest.raises(SchemaError, match="perdure db upgrade") as refused:
        declare(app).enqueue("a")
    assert refused.value.code == "schema_missing"
    assert connection.execute("SELECT to_regnamespace('perdure')").fetchone() == (None,)


def test_a_worker_without_tables_says_so_once_and_before_it_does_anything(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    begun: list[str] = []
    worker = Perdure(postgres_url).worker(before_start=[lambda: begun.append("hook")])
    with pytest.raises(SchemaError, match="perdure db upgrade"):
        worker.run(until_idle=True)
    assert begun == []
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_an_upgrade_makes_the_schema_and_a_repeat_does_nothing(postgres_url: str) -> None:
    store = open_store(postgres_url)
    assert f"{len(KNOWN)} steps done" in store.upgrade()
    before = catalogue(postgres_url)
    assert "0 steps done" in store.upgrade()
    app = Perdure(postgres_url)
    assert declare(app).enqueue("a").state == "queued"
    app.close()
    assert catalogue(postgres_url) == before


def test_six_processes_that_start_together_make_it_once(postgres_url: str, connection: psycopg.Connection[Any]) -> None:
    jobs = at_once(open_and_enqueue, postgres_url, processes=6)
    assert connection.execute("SELECT revision FROM perdure.schema_version").fetchall() == [
        (step.revision,) for step in KNOWN
    ]
    assert connection.execute("SELECT count(DISTINCT id) FROM perdure.job").fetchone() == (len(set(jobs)),) == (6,)


def test_a_starter_waits_for_an_upgrade_under_way(postgres_url: str, connection: psycopg.Connection[Any]) -> None:
    store = open_store(postgres_url)
    starter = threading.Thread(target=store.upgrade)
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK_KEY,))
        starter.start()
        waiting = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        while connection.execute(waiting).fetchone() is None:
            assert starter.is_alive()
        assert connection.execute("SELECT to_regnamespace('perdure')").fetchone() == (None,)
    starter.join()
    assert connection.execute("SELECT count(*) FROM perdure.schema_version").fetchone() == (len(KNOWN),)


def test_a_schema_made_by_the_administrator_is_used(postgres_server: PostgresServer) -> None:
    """An app whose user may not create schemas, only what is in its own."""
    url = postgres_server.new_database()
    with psycopg.connect(url) as admin:
        admin.execute("CREATE ROLE modest LOGIN")
        admin.execute("CREATE SCHEMA perdure AUTHORIZATION modest")
    app = Perdure(url.replace("//postgres:", "//modest:"), auto_migrate=True)
    job = declare(app).enqueue("a")
    assert [taken.job_id for taken in by_hand.claim(app, "mail")] == [job.row.id]
    app.close()


def test_the_tables_have_the_columns_of_sqlite(postgres_url: str) -> None:
    def columns(dialect: str) -> list[list[str]]:
        text = migrate.migrations_of(dialect)[0].text
        tables = text.split("CREATE TABLE ")[1:]
        return [[line.split()[0] for line in table.split(";")[0].splitlines()] for table in tables]

    assert columns("postgres") == columns("sqlite")


# -- refusing it -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ("INSERT INTO perdure.schema_version VALUES (9999, 'later', 'x', 0, '99')", "schema_newer"),
        ("UPDATE perdure.schema_version SET checksum = 'other'", "schema_changed"),
    ],
)
def test_a_schema_that_is_not_ours_is_refused(
    postgres_url: str, connection: psycopg.Connection[Any], change: str, code: str
) -> None:
    open_store(postgres_url).upgrade()
    connection.execute(change.encode())
    app = Perdure(postgres_url, auto_migrate=True)
    with pytest.raises(SchemaError) as refused:
        declare(app).enqueue("a")
    assert refused.value.code == code


def test_a_schema_dropped_under_an_open_app_is_missed(
    app: Perdure, send: Any, connection: psycopg.Connection[Any]
) -> None:
    send.enqueue("a")
    connection.execute("DROP SCHEMA perdure CASCADE")
    with pytest.raises(SchemaError) as refused:
        send.enqueue("b")
    assert refused.value.code == "schema_missing"


# -- using it --------------------------------------------------------------------------------------------------------


def test_every_statement_is_understood(app: Perdure, connection: psycopg.Connection[Any]) -> None:
    app.store.upgrade()
    refused: dict[str, str] = {}
    for name, statement in {**WRITING, **{f"reading {name}": text for name, text in READING.items()}}.items():
        if statement.sql.split()[0] in ("SELECT", "WITH", "INSERT", "UPDATE", "DELETE"):
            try:
                connection.execute(b"PREPARE one AS " + statement.sql.encode())
                connection.execute("DEALLOCATE one")
            except psycopg.Error as error:
                refused[name] = str(error)
    assert refused == {}


def test_both_dialects_run_the_same_statements_with_the_same_parameters() -> None:
    """A statement written otherwise may need fewer of them, never others."""
    assert WRITING.keys() - SQLITE.keys() == {"read_identity", "read_bell_bit", "read_time"}
    strange = {name: set(WRITING[name].names) - set(text.names) for name, text in SQLITE.items()}
    assert {name: names for name, names in strange.items() if names} == {}


def test_a_claim_walks_its_index_and_sorts_nothing(app: Perdure, connection: psycopg.Connection[Any]) -> None:
    app.store.upgrade()
    connection.execute("SET enable_seqscan = off")
    connection.execute(b"PREPARE claim AS " + WRITING["claim_head"].sql.encode())
    values = {
        "queue": "'mail'",
        "now": "1",
        "node_id": "gen_random_uuid()",
        "room": "10",
        "most_crashes": "0",
        "last_attempts": "0",
    }
    given = ", ".join(values[name] for name in WRITING["claim_head"].names)
    connection.execute("SET plan_cache_mode = force_generic_plan")
    plan = "\n".join(row[0] for row in connection.execute(f"EXPLAIN EXECUTE claim ({given})".encode()))
    walk = plan.rpartition("LockRows")[2]
    assert "Index Scan using ready_claim" in walk
    assert "Sort" not in walk


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("glance", "ready_claim"),
        ("glance", "ready_parked"),
        ("glance", "ready_due"),
        ("glance", "ready_running"),
        ("held_by_node", "ready_running"),
        ("overdue_jobs", "ready_deadline"),
        ("nodes_left_behind", "ready_running"),
    ],
)
def test_a_look_around_walks_an_index(name: str, index: str, app: Perdure, connection: psycopg.Connection[Any]) -> None:
    app.store.upgrade()
    connection.execute("SET enable_seqscan = off")
    connection.execute("SET enable_bitmapscan = off")
    connection.execute("SET plan_cache_mode = force_generic_plan")
    connection.execute(b"PREPARE look AS " + READING[name].sql.encode())
    values = {"now": "1", "node_id": "gen_random_uuid()", "room": "10"}
    given = ", ".join(values[name] for name in READING[name].names)
    arguments = f"({given})" if given else ""
    plan = "\n".join(row[0] for row in connection.execute(f"EXPLAIN EXECUTE look {arguments}".encode()))
    assert re.search(rf"Index (Only )?Scan using {index}\b", plan), plan


def test_a_queue_with_few_jobs_beside_large_ones_is_found_without_reading_those(
    app: Perdure, send: Any, connection: psycopg.Connection[Any]
) -> None:
    for number in range(4):
        kind = send.options(queue=f"large {number}")
        app.enqueue_many(kind.new(str(each)) for each in range(500))
    send.options(queue="small").enqueue("a")
    connection.execute("ANALYZE")
    for mode in ("force_generic_plan", "force_custom_plan"):
        connection.execute(f"SET plan_cache_mode = {mode}".encode())
        connection.execute(b"PREPARE look AS " + READING["glance"].sql.encode())
        explained = connection.execute("EXPLAIN EXECUTE look (gen_random_uuid())")
        plan = "\n".join(row[0] for row in explained)
        connection.execute("DEALLOCATE look")
        assert not re.search(r"Seq Scan on (ready|job)\b", plan), plan


def test_people_read_uuids_and_iso_times(app: Perdure, send: Any, connection: psycopg.Connection[Any]) -> None:
    job = send.options(tags=["t"]).enqueue("a")
    by_hand.complete(app, '"ok"', "mail")
    query = "SELECT id, state, queue, payload, result, created_at FROM perdure.jobs"
    created = job.created_at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    assert connection.execute(query).fetchall() == [(job.id, "completed", "mail", '{"to":"a"}', '"ok"', created)]
    runs = connection.execute("SELECT job_id, state, params_snapshot FROM perdure.runs").fetchall()
    assert runs == [(job.id, "completed", '{"to":"a"}')]


def test_people_see_the_template_of_a_run_as_it_was(
    app: Perdure, send: Any, connection: psycopg.Connection[Any]
) -> None:
    app.templates.put("news", "send", {"to": "a"}, queue="mail")
    app.templates.enqueue("news")
    by_hand.complete(app, '"ok"', "mail")
    app.templates.put("news", "send", {"to": "b"}, queue="mail")
    query = """
        SELECT t.name, t.version, t.latest, t.payload, t.archived_at
        FROM perdure.runs AS r
        JOIN perdure.templates AS t ON t.id = r.template_id AND t.version = r.template_version
    """
    assert connection.execute(query).fetchall() == [("news", 1, 2, '{"to":"a"}', None)]


def test_secrets_are_in_no_view(app: Perdure, connection: psycopg.Connection[Any]) -> None:
    app.store.upgrade()
    for view in ("jobs", "runs", "templates", "schedules", "slots"):
        shown = connection.execute(f"SELECT * FROM perdure.{view}".encode()).description or []
        assert "secrets" not in [column.name for column in shown]


def test_nothing_is_opened_before_the_first_use() -> None:
    open_store("postgresql://nobody@localhost:1/nowhere", StoreSettings(auto_migrate=True))


# -- storage ---------------------------------------------------------------------------------------------------------


def test_beats_and_renewed_locks_stay_on_their_page(app: Perdure, connection: psycopg.Connection[Any]) -> None:
    node = NodeId(app.ids.new())
    app.store.register(NewNode(node, app.clock.now()))
    app.store.take_lock("lock", "ann", app.clock.now(), 1)
    with app.transaction() as tx:
        for _ in range(10):
            app.store.beat(node, app.clock.now())
            app.store.take_lock("lock", "ann", app.clock.now(), 1)
        found = tx.execute("SELECT relname, n_tup_upd, n_tup_hot_upd FROM pg_stat_xact_user_tables WHERE n_tup_upd > 0")
        assert sorted(found.fetchall()) == [("lock", 10, 10), ("node", 10, 10)]
        room = tx.execute("SELECT reloptions FROM pg_class WHERE oid = 'perdure.node'::regclass")  # for more nodes
        assert room.fetchone() == (["fillfactor=50"],)


def test_a_run_that_completes_stays_on_its_page(app: Perdure) -> None:
    declare(app).enqueue_many([{"to": "ann"}] * 100)
    with app.transaction() as tx:
        assert by_hand.complete(app, queue="mail") == 100
        found = tx.execute("SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_xact_user_tables WHERE relname = 'run'")
        ((updated, in_place),) = found.fetchall()
        assert updated == 100
        assert in_place >= 90  # a row grows when it ends, so that a full page has no room for the last few


def test_dead_live_rows_are_removed_after_a_number_not_after_a_share_of_the_table(
    app: Perdure, connection: psycopg.Connection[Any]
) -> None:
    app.store.upgrade()
    row = connection.execute("SELECT reloptions FROM pg_class WHERE oid = 'perdure.ready'::regclass").fetchone()
    assert row is not None
    assert {"autovacuum_vacuum_scale_factor=0", "autovacuum_vacuum_threshold=10000"} <= set(row[0])


# -- from revision 1 -------------------------------------------------------------------------------------------------


def made_at_revision_1(connection: psycopg.Connection[Any]) -> None:
    """The database as the code of that time left it."""
    first = KNOWN[0]
    for statement in migrate.script(first.text, NAMING):
        connection.execute(statement.encode())
    written = (first.revision, first.name, first.checksum, 0, "0")
    connection.execute(f"INSERT INTO {VERSIONS} VALUES (%s, %s, %s, %s, %s)".encode(), written)
    for name, columns, rows in revision_1.tables():
        into = f"INSERT INTO perdure.{name} ({', '.join(columns)}) VALUES ({', '.join(['%s'] * len(columns))})"
        with connection.cursor() as cursor:
            cursor.executemany(into.encode(), rows)
    connection.execute("SELECT setval('perdure.position', (SELECT max(position) FROM perdure.ready))")


def test_a_database_of_the_first_schema_becomes_what_a_new_one_is(
    postgres_server: PostgresServer, postgres_url: str, connection: psycopg.Connection[Any]
) -> None:
    made_at_revision_1(connection)
    fresh = postgres_server.new_database()
    for url in (postgres_url, fresh):
        open_store(url).upgrade()
    assert catalogue(postgres_url) == catalogue(fresh)


def test_a_database_of_revision_1_is_refused_until_it_is_upgraded_and_then_goes_on_with_all_that_is_in_it(
    postgres_url: str, connection: psycopg.Connection[Any]
) -> None:
    made_at_revision_1(connection)
    app = Perdure(postgres_url)
    with pytest.raises(SchemaError, match="perdure db upgrade") as refused:
        app.store.live_nodes()
    assert refused.value.code == "schema_older"

    assert f"{len(KNOWN) - 1} step" in open_store(postgres_url).upgrade()

    waited_for = {row[0] for name, _, rows in revision_1.tables() if name == "edge" for row in rows}
    for name, columns, rows in revision_1.tables():
        query = f"SELECT {', '.join(columns)} FROM perdure.{name}".encode()
        expected = [list(row) for row in rows]
        for row in expected if name == "ready" else ():
            row[columns.index("version")] += row[0] in waited_for  # it knows now that others wait for it
        assert sorted(map(list, connection.execute(query).fetchall()), key=repr) == sorted(expected, key=repr), name
    nodes = app.store.live_nodes()
    assert {node.host: node.lease_us for node in nodes} == {"far": None, "near": None}
    held = [live for node in nodes for live in app.store.held_by(node.id)]
    finishes = [Finish(live, Completed('"done"'), JobId(app.ids.new())) for live in held]
    assert [finished.status for finished in app.store.finish(finishes, app.clock.now())] == ["applied"] * 4
    assert declare(app).enqueue("a").state == "queued"
    assert is_healthy(examine(app.store))
    app.close()
