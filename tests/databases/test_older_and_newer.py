"""Programs of two versions on one server: which of them runs, which waits, and which is refused."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

import perdure
from perdure.store import migrate
from tests.databases.conftest import Makers
from tests.history import table_at
from tests.mariadb_server import connected

FOLDERS = {"postgres": "postgres", "mariadb": "mysql"}
"""Where the steps of each are."""
GAP = 5
MORE = "CREATE TABLE {extra} (id integer);\nALTER TABLE {queue} ADD COLUMN note text;\n"

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


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package that knows one more step."""
    copy = tmp_path_factory.mktemp("newer")
    shutil.copytree(Path(perdure.__file__).parent, copy / "perdure", ignore=shutil.ignore_patterns("__pycache__"))
    for folder in FOLDERS.values():
        step = f"{revisions(folder)[-1] + GAP:04}_more.sql"
        (copy / "perdure" / "store" / folder / "migrations" / step).write_text(MORE)
    return copy


def revisions(folder: str) -> list[int]:
    return [step.revision for step in migrate.migrations_of(folder)]


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


def column(url: str, question: str) -> list[object]:
    """What that server answers. No app of ours may look: the schema is newer than it."""
    connection: Any = psycopg.connect(url) if url.startswith("postgres") else connected(url)
    with closing(connection), connection.cursor() as cursor:
        cursor.execute(question)
        return [value for (value,) in cursor.fetchall()]


@pytest.mark.parametrize("sort", [pytest.param(sort, marks=getattr(pytest.mark, sort)) for sort in FOLDERS])
def test_a_newer_program_waits_for_the_upgrade_and_an_older_one_that_runs_goes_on_after_it(
    sort: str, newer: Path, new: Makers
) -> None:
    url = new(sort)
    old, new_one = Running(url), Running(url, newer)

    said = [old.do("enqueue"), new_one.do("enqueue"), new_one.do("upgrade"), new_one.do("enqueue"), old.do("enqueue")]
    late = Running(url)
    said += [late.do("enqueue"), old.do("work"), new_one.do("enqueue"), new_one.do("work")]
    for program in (old, new_one, late):
        program.stop()

    assert said == ["ok", "schema_older", "ok", "ok", "ok", "schema_newer", "ok", "ok", "ok"]
    assert column(url, f"SELECT state FROM {table_at(url, 'outcome')}") == ["completed"] * 4
    known = revisions(FOLDERS[sort])
    done = column(url, f"SELECT revision FROM {table_at(url, 'schema_version')} ORDER BY revision")
    assert done == [*known, known[-1] + GAP], "with a gap"
