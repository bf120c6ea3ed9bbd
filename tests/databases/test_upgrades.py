"""The schema of a PostgreSQL as its operators see it: checked, printed, applied by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from perdure import Perdure, SchemaError
from perdure.store import migrate
from perdure.store.migrate import Migration
from perdure.store.open import open_store
from perdure.store.postgres.statements import NAMING
from perdure.store.rows import Fact
from tests.cli.terminal import process
from tests.postgres_server import PostgresServer

pytestmark = pytest.mark.postgres

KNOWN = migrate.migrations_of("postgres")
HEAD = KNOWN[-1].revision


@pytest.fixture
def url(postgres_server: PostgresServer) -> str:
    return postgres_server.new_database()


@pytest.fixture
def connection(url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


def at_revision(connection: psycopg.Connection[Any], steps: list[Migration]) -> None:
    for statement in (statement for step in steps for statement in migrate.statements_of(step, NAMING)):
        connection.execute(statement.encode())


def facts(url: str) -> dict[str, Fact]:
    store = open_store(url)
    try:
        return {fact.name: fact for fact in store.facts()}
    finally:
        store.close()


# -- checked ---------------------------------------------------------------------------------------------------------


def test_a_database_without_tables_is_a_problem_and_nothing_is_made(
    url: str, connection: psycopg.Connection[Any], tmp_path: Path
) -> None:
    ran = process("db", "check", "--url", url, "--json", cwd=tmp_path)

    assert ran.status == 1
    assert facts(url)["schema"].value == "no Perdure tables"
    assert connection.execute("SELECT to_regnamespace('perdure')").fetchone() == (None,)


def test_an_older_database_is_a_problem_that_names_its_steps(url: str, connection: psycopg.Connection[Any]) -> None:
    at_revision(connection, KNOWN[:1])

    schema = facts(url)["schema"]

    assert (schema.value, schema.verdict) == (f"revision 1, the newest is {HEAD}", "problem")
    for step in KNOWN[1:]:
        assert f"{step.revision} ({step.name})" in schema.note
    with pytest.raises(SchemaError, match="still to do: 2") as refused:
        Perdure(url).queues.list()
    assert refused.value.code == "schema_older"


def test_a_sound_database_says_what_its_user_may(url: str, tmp_path: Path) -> None:
    open_store(url).upgrade()

    ran = process("db", "check", "--url", url, cwd=tmp_path)

    assert ran.status == 0
    assert "who may read, enqueue, work, upgrade" in ran.out


@pytest.mark.parametrize(
    ("damage", "fact", "told"),
    [
        ("DROP INDEX perdure.job_one_successor", "objects", "index job_one_successor"),
        ("DROP TABLE perdure.tag", "objects", "table tag"),
        ("DROP SEQUENCE perdure.position CASCADE", "objects", "sequence position"),
        ("UPDATE perdure.schema_version SET checksum = 'x' WHERE revision = 2", "schema", "revision"),
        ("INSERT INTO perdure.schema_version VALUES (99, 'later', 'x', 0, '9')", "schema", "revision 99"),
    ],
)
def test_damage_is_found(damage: str, fact: str, told: str, url: str, connection: psycopg.Connection[Any]) -> None:
    open_store(url).upgrade()
    connection.execute(damage.encode())

    found = facts(url)[fact]

    assert found.verdict == "problem"
    assert told in found.value


# -- applied by hand -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [0, 1])
def test_what_is_printed_can_be_applied_by_hand(
    before: int, url: str, connection: psycopg.Connection[Any], tmp_path: Path
) -> None:
    at_revision(connection, KNOWN[:before])
    printed = process("db", "sql", "--url", url, cwd=tmp_path).out

    connection.execute(printed.encode())

    store = open_store(url)
    assert "0 steps done" in store.upgrade()
    store.close()
    assert {fact.verdict for name, fact in facts(url).items() if name in ("schema", "objects")} == {"ok"}
    assert process("db", "sql", "--url", url, cwd=tmp_path).out.startswith("-- nothing to do")


def test_what_is_printed_is_applied_as_a_whole_or_not_at_all(
    url: str, connection: psycopg.Connection[Any], tmp_path: Path
) -> None:
    connection.execute("CREATE SCHEMA perdure")
    connection.execute("CREATE TABLE perdure.template (mine integer)")  # in the way of the last step
    printed = process("db", "sql", "--dialect", "postgres", cwd=tmp_path).out

    with pytest.raises(psycopg.Error):
        connection.execute(printed.encode())
    connection.execute("ROLLBACK")

    found = connection.execute("SELECT relname FROM pg_class WHERE relnamespace = 'perdure'::regnamespace").fetchall()
    assert found == [("template",)]
