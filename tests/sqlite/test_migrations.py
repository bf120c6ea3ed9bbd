"""The schema of a file: made once, upgraded once with a copy kept, refused where it is not ours to touch."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import perdure
from perdure import Perdure, SchemaError, StoreError
from perdure.clock import ManualClock
from perdure.ids import JobId, NodeId
from perdure.job.reports import Completed, Finish
from perdure.store.migrate import Migration, migrations_of
from perdure.store.rows import NewNode
from perdure.store.sqlite import schema
from perdure.upkeep.rescue import Rescuer
from perdure.worker.options import WorkerOptions
from tests import revision_1
from tests.app.contents import contents, jobs_in

KNOWN = migrations_of("sqlite")
HEAD = KNOWN[-1].revision
MORE = Migration(HEAD + 1, "more", "CREATE TABLE {extra} (id INTEGER);\nALTER TABLE {queue} ADD COLUMN note TEXT;\n")
BROKEN = Migration(HEAD + 1, "broken", "CREATE TABLE {extra} (id INTEGER);\nCREATE TABLE {job} (id INTEGER);\n")

STARTER = """
import sys
from perdure import Perdure, PerdureError
app = Perdure(sys.argv[1], auto_migrate={"None": None, "False": False}[sys.argv[2]])
print("ready", flush=True)
sys.stdin.readline()
try:
    app.queues.pause(sys.argv[3])
except PerdureError as error:
    print(error.code, flush=True)
else:
    print("ok", flush=True)
"""


@pytest.fixture
def app(path: Path) -> Iterator[Perdure]:
    """Not seen by the doctor at the end: the file may have another schema by then."""
    app = Perdure(path)
    yield app
    app.close()


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


def upgrade(path: Path, *more: Migration, allowed: bool = True) -> schema.Upgrade:
    with opened(path) as connection:
        return schema.upgrade(connection, path, [*KNOWN, *more], allowed=allowed)


def revisions(path: Path) -> list[object]:
    return [row[0] for row in contents(path)["perdure_schema_version"]]


def made_of(path: Path) -> list[tuple[object, ...]]:
    """Every table, index and view with its text, however it is spaced."""
    with opened(path) as connection:
        rows = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name").fetchall()
    return [(sort, name, table, " ".join((sql or "").split())) for sort, name, table, sql in rows]


def backups(path: Path) -> list[Path]:
    return sorted(path.parent.glob(f"{path.name}.backup-*"))


# -- new files -------------------------------------------------------------------------------------------------------


def test_a_new_file_is_made_at_head(app: Perdure, path: Path) -> None:
    app.queues.list()
    assert revisions(path) == [step.revision for step in KNOWN]
    assert backups(path) == []


def test_what_is_written_down_about_a_step(app: Perdure, path: Path) -> None:
    app.queues.list()
    with opened(path) as connection:
        rows = connection.execute("SELECT revision, name, checksum, perdure_version FROM perdure_schema_version")
        assert rows.fetchall() == [(s.revision, s.name, s.checksum, perdure.__version__) for s in KNOWN]


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_new_files_are_private_whatever_the_umask(umask: int, app: Perdure, send: Any, path: Path) -> None:
    before = os.umask(umask)
    try:
        send.enqueue("a")
    finally:
        os.umask(before)
    modes = {entry.name: stat.S_IMODE(entry.stat().st_mode) for entry in path.parent.iterdir()}
    assert modes == dict.fromkeys(("jobs.db", "jobs.db-gate", "jobs.db-shm", "jobs.db-wal"), 0o600)


def test_the_mode_of_an_existing_file_is_left_alone(app: Perdure, send: Any, path: Path) -> None:
    path.touch(mode=0o640)
    path.chmod(0o640)
    send.enqueue("a")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


# -- older files -----------------------------------------------------------------------------------------------------


def test_an_older_file_is_upgraded_and_a_copy_kept(send: Any, app: Perdure, path: Path) -> None:
    send.enqueue("a")
    app.close()
    before = made_of(path)
    answer = upgrade(path, MORE)
    assert (answer.before, answer.after, [answer.backup]) == (HEAD, HEAD + 1, backups(path))
    assert revisions(path)[-1] == HEAD + 1
    assert "perdure_extra" in contents(path)
    assert jobs_in(path) == ['{"to":"a"}']
    (copy,) = backups(path)
    assert made_of(copy) == before
    assert jobs_in(copy) == ['{"to":"a"}']


def test_a_file_of_the_first_schema_becomes_what_a_new_one_is_and_keeps_its_jobs(
    send: Any, app: Perdure, path: Path, tmp_path: Path
) -> None:
    jobs = [send.options(queue="old", delay=delay).enqueue("a") for delay in (0, 60)]
    first = tmp_path / "first.db"
    with opened(first) as connection:
        schema.upgrade(connection, first, KNOWN[:1], allowed=True)
        connection.execute("ATTACH ? AS newest", (str(path),))
        for table in ("job", "ready", "queue"):
            known = ", ".join(name for _, name, *_ in connection.execute(f"PRAGMA main.table_info(perdure_{table})"))
            connection.execute(f"INSERT INTO main.perdure_{table} SELECT {known} FROM newest.perdure_{table}")
    old = Perdure(first)
    assert [job.id for job in old.jobs(queue="old")] == [job.id for job in reversed(jobs)]
    assert [(queue.queued, queue.live) for queue in old.queues.list() if queue.name == "old"] == [(1, 2)]
    old.close()
    assert made_of(first) == made_of(path)
    assert revisions(first) == [step.revision for step in KNOWN]


def test_the_copy_has_what_is_only_in_the_log_yet(send: Any, path: Path) -> None:
    send.enqueue("a")
    assert path.with_name("jobs.db-wal").stat().st_size > 0
    upgrade(path, MORE)
    assert jobs_in(backups(path)[0]) == ['{"to":"a"}']


def test_the_copy_is_private(send: Any, path: Path) -> None:
    send.enqueue("a")
    before = os.umask(0)
    try:
        upgrade(path, MORE)
    finally:
        os.umask(before)
    assert stat.S_IMODE(backups(path)[0].stat().st_mode) == 0o600


def test_a_repeat_does_nothing(send: Any, path: Path) -> None:
    send.enqueue("a")
    upgrade(path, MORE)
    before = contents(path)
    assert upgrade(path, MORE).backup is None
    assert contents(path) == before
    assert len(backups(path)) == 1


def test_a_step_that_fails_leaves_the_old_schema(app: Perdure, send: Any, path: Path) -> None:
    send.enqueue("a")
    before, schema_before = contents(path), made_of(path)
    with pytest.raises(sqlite3.Error):
        upgrade(path, BROKEN)
    assert (contents(path), made_of(path)) == (before, schema_before)
    assert app.get(send.enqueue("b")) is not None


def test_an_upgrade_that_is_not_wanted_is_refused(send: Any, path: Path) -> None:
    send.enqueue("a")
    before = contents(path)
    with pytest.raises(SchemaError) as raised:
        upgrade(path, MORE, allowed=False)
    assert raised.value.code == "schema_older"
    assert (contents(path), backups(path)) == (before, [])


@pytest.mark.parametrize("there", ["nothing", "an empty file", "a file of somebody else"])
def test_without_auto_migrate_no_file_and_no_tables_are_made(path: Path, there: str) -> None:
    if there == "an empty file":
        path.touch()
    elif there == "a file of somebody else":
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE own (id)")
    before = path.read_bytes() if path.exists() else None
    app = Perdure(path, auto_migrate=False)
    with pytest.raises(SchemaError, match="run perdure db upgrade") as raised:
        app.queues.list()
    assert raised.value.code == "schema_missing"
    assert (path.read_bytes() if path.exists() else None) == before
    assert {file.name for file in path.parent.iterdir()} <= {path.name}
    app.store.upgrade()
    assert app.queues.list() == []
    app.close()


# -- files that are not ours to touch --------------------------------------------------------------------------------


def refused(path: Path) -> StoreError:
    before = contents(path)
    with pytest.raises(StoreError) as raised:
        Perdure(path).queues.list()
    assert contents(path) == before
    return raised.value


def test_a_newer_file_is_refused(app: Perdure, send: Any, path: Path) -> None:
    send.enqueue("a")
    app.close()
    upgrade(path, MORE)
    error = refused(path)
    assert (type(error), error.code) == (SchemaError, "schema_newer")
    assert str(HEAD + 1) in error.message


def test_a_file_with_another_history_is_refused(app: Perdure, send: Any, path: Path) -> None:
    send.enqueue("a")
    app.close()
    with opened(path) as connection:
        connection.execute("UPDATE perdure_schema_version SET checksum = 'changed by hand'")
    error = refused(path)
    assert (type(error), error.code) == (SchemaError, "schema_changed")


@pytest.mark.damaged
def test_a_file_that_lost_its_tables_is_refused_when_they_are_needed(app: Perdure, send: Any, path: Path) -> None:
    send.enqueue("a")
    with opened(path) as connection:
        connection.execute("DROP TABLE perdure_ready")
        connection.execute("DROP VIEW perdure_jobs")
    with pytest.raises(SchemaError) as raised:
        send.enqueue("b")
    assert raised.value.code == "schema_missing"


# -- many at once ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package that knows one more step."""
    copy = tmp_path_factory.mktemp("newer")
    shutil.copytree(Path(perdure.__file__).parent, copy / "perdure", ignore=shutil.ignore_patterns("__pycache__"))
    step = f"{MORE.revision:04}_{MORE.name}.sql"
    (copy / "perdure" / "store" / "sqlite" / "migrations" / step).write_text(MORE.text)
    return copy


def start_together(path: Path, package: Path | None, auto_migrate: bool | None = None, count: int = 6) -> list[str]:
    """What so many processes say that open the file at the same moment."""
    folders = [*([str(package)] if package else []), *sys.path]
    starters = [
        subprocess.Popen(
            [sys.executable, "-c", STARTER, str(path), str(auto_migrate), f"queue {number}"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(count)
    ]
    for starter in starters:
        assert starter.stdout
        assert starter.stdout.readline() == "ready\n"
    for starter in starters:
        assert starter.stdin
        starter.stdin.write("\n")
        starter.stdin.flush()
    return [starter.communicate(timeout=60)[0].strip() for starter in starters]


def test_six_processes_make_a_new_file_once(path: Path) -> None:
    assert start_together(path, None) == ["ok"] * 6
    assert revisions(path) == [step.revision for step in KNOWN]
    assert len(contents(path)["perdure_queue"]) == 6


def test_six_processes_upgrade_an_older_file_once(app: Perdure, send: Any, path: Path, newer: Path) -> None:
    send.enqueue("a")
    app.close()
    assert start_together(path, newer) == ["ok"] * 6
    assert revisions(path) == [*[step.revision for step in KNOWN], MORE.revision]
    assert len(backups(path)) == 1
    assert len(contents(path)["perdure_queue"]) == 7
    assert jobs_in(path) == ['{"to":"a"}']


def test_without_auto_migrate_nobody_upgrades(app: Perdure, send: Any, path: Path, newer: Path) -> None:
    send.enqueue("a")
    app.close()
    before = contents(path)
    assert start_together(path, newer, auto_migrate=False, count=2) == ["schema_older"] * 2
    assert (contents(path), backups(path)) == (before, [])


def test_an_older_process_that_is_still_running_goes_on_until_it_opens_anew(
    app: Perdure, send: Any, path: Path, newer: Path
) -> None:
    send.enqueue("a")
    assert start_together(path, newer, count=1) == ["ok"]
    send.enqueue("b")
    app.close()
    with pytest.raises(SchemaError):
        send.enqueue("c")
    assert len(jobs_in(path)) == 2


def test_what_another_upgraded_just_before_is_not_upgraded_again(app: Perdure, path: Path) -> None:
    """The gate is about fairness only: whoever passes it late looks once more, behind the lock."""
    app.queues.pause("x")
    app.close()

    class Overtaken(sqlite3.Connection):
        def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
            if sql == "BEGIN EXCLUSIVE":
                upgrade(path, MORE)
            return super().execute(sql, *parameters)

    with closing(sqlite3.connect(path, isolation_level=None, factory=Overtaken)) as late:
        assert schema.upgrade(late, path, [*KNOWN, MORE]).after == HEAD + 1


# -- from revision 1 -------------------------------------------------------------------------------------------------


def made_at_revision_1(path: Path) -> None:
    """The file as the code of that time left it."""
    with opened(path) as connection:
        schema.upgrade(connection, path, KNOWN[:1])
        for name, columns, rows in revision_1.tables():
            into = f"INSERT INTO perdure_{name} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
            connection.executemany(into, [[one.bytes if isinstance(one, UUID) else one for one in row] for row in rows])


def test_a_file_of_revision_1_is_upgraded_with_all_that_is_in_it(path: Path) -> None:
    made_at_revision_1(path)
    before = contents(path)

    app = Perdure(path)
    nodes = app.store.live_nodes()
    app.close()

    after = contents(path)
    assert revisions(path) == [step.revision for step in KNOWN]
    assert {node.host: node.lease_us for node in nodes} == {"far": None, "near": None}
    waited_for = {depends_on for depends_on, *_ in before["perdure_edge"]}
    assert waited_for, "an edge from before has to be among it"
    for name, rows in before.items():
        if name != "perdure_schema_version":
            kept = [row[: len(old)] for row, old in zip(after[name], rows, strict=True)]
            if name == "perdure_ready":  # a job that others wait for knows it, which is a change of it
                rows = [(*row[:-1], int(str(row[-1])) + (row[0] in waited_for)) for row in rows]  # noqa: PLW2901
            assert kept == rows, name
    assert len(backups(path)) == 1


def test_what_ran_at_revision_1_goes_on_after_the_upgrade(path: Path) -> None:
    """One node's process went on and reports; the other's is silent, and a lease later its jobs go on elsewhere."""
    made_at_revision_1(path)
    clock = ManualClock(datetime(2026, 11, 16, 15, tzinfo=UTC))
    app = Perdure(path, clock=clock, lease_s=5)
    _far, near = sorted(app.store.live_nodes(), key=lambda node: node.host or "")
    own = NodeId(app.ids.new())
    app.store.register(NewNode(own, clock.now(), lease_us=5_000_000))
    rescuer = Rescuer(app.parts()._replace(clock=clock), WorkerOptions(lease_s=5))
    silent: list[float] = []
    for second in range(61):
        app.store.beat(own, clock.now())
        if second % 10 == 0:
            assert app.store.beat(near.id, clock.now())
        if rescuer.look(own):
            silent.append(second)
        clock.advance(seconds=1)

    assert silent == [60], "a node that names no lease has the usual one, however short the observer's"
    assert {node.id for node in app.store.live_nodes()} == {near.id, own}
    held = app.store.held_by(near.id)
    finishes = [Finish(live, Completed('"done"'), JobId(app.ids.new())) for live in held]
    assert [finished.status for finished in app.store.finish(finishes, clock.now())] == ["applied"] * 2
    states = Counter(job.state.value for job in app.jobs())
    assert states == {
        "queued": 5,
        "completed": 4,
        "failed": 1,
        "cancelled": 1,
        "scheduled": 1,
        "paused": 1,
        "parked": 1,
    }
    app.close()


def test_a_file_that_left_wal_mode_is_put_back_into_it(send: Any, app: Perdure, path: Path, tmp_path: Path) -> None:
    send.enqueue("a")
    app.close()
    copy = tmp_path / "copy.db"
    with opened(path) as connection:
        connection.execute("VACUUM INTO ?", (str(copy),))
    with opened(copy) as connection:
        assert connection.execute("PRAGMA journal_mode=DELETE").fetchone() == ("delete",)
    again = Perdure(copy)
    assert len(list(again.jobs())) == 1
    again.queues.pause("mail")
    again.close()
    with opened(copy) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
