"""The schema of a PostgreSQL as its operators see it: checked, printed, applied by hand; and who runs beside whom."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import perdure
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
MORE = Migration(HEAD + 5, "more", "CREATE TABLE {extra} (id integer);\nALTER TABLE {queue} ADD COLUMN note text;\n")

PROGRAM = """
import sys
from perdure import Perdure, PerdureError
app = Perdure(sys.argv[1])

@app.job
def work(n: int = 0) -> int:
    return n

print("ready", flush=True)
for line in sys.stdin:
    try:
        if line == "work\\n":
            app.worker(poll_s=0.02).run(until_idle=True)
        elif line == "upgrade\\n":
            app.store.upgrade()
        else:
            work.enqueue()
    except PerdureError as error:
        print(error.code, flush=True)
    else:
        print("ok", flush=True)
"""


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


# -- older and newer programs on one database ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package that knows one more step."""
    copy = tmp_path_factory.mktemp("newer")
    shutil.copytree(Path(perdure.__file__).parent, copy / "perdure", ignore=shutil.ignore_patterns("__pycache__"))
    step = f"{MORE.revision:04}_{MORE.name}.sql"
    (copy / "perdure" / "store" / "postgres" / "migrations" / step).write_text(MORE.text)
    return copy


class Running:
    """A program that does what it is told."""

    def __init__(self, url: str, package: Path | None = None) -> None:
        folders = [*([str(package)] if package else []), *sys.path]
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, url],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._said() == "ready"

    def do(self, what: str) -> str:
        assert self._process.stdin
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        return self._said()

    def _said(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline().strip()

    def stop(self) -> None:
        self._process.communicate(timeout=60)


def test_a_newer_program_waits_for_the_upgrade_and_an_older_one_that_runs_goes_on_after_it(
    url: str, newer: Path, connection: psycopg.Connection[Any]
) -> None:
    open_store(url).upgrade()
    old, new = Running(url), Running(url, newer)

    said = [old.do("enqueue"), new.do("enqueue"), new.do("upgrade"), new.do("enqueue"), old.do("enqueue")]
    late = Running(url)
    said += [late.do("enqueue"), old.do("work"), new.do("enqueue"), new.do("work")]
    for program in (old, new, late):
        program.stop()

    assert said == ["ok", "schema_older", "ok", "ok", "ok", "schema_newer", "ok", "ok", "ok"]
    ended = connection.execute("SELECT count(*) FROM perdure.outcome WHERE state = 'completed'").fetchone()
    assert ended == (4,)
    revisions = connection.execute("SELECT revision FROM perdure.schema_version ORDER BY 1").fetchall()
    assert revisions == [*((step.revision,) for step in KNOWN), (MORE.revision,)], "with a gap"
