"""The guard against SQLite's WAL-reset bug: what it counts, and that it never checkpoints without the writer's lock."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from perdure.store.sqlite.wal import (
    CHECKPOINT_FRAMES,
    NOT_RUN,
    WalMeter,
    _kept_files,
    affected,
    checkpoint_guarded,
)

Connect = Callable[[], sqlite3.Connection]

# Begins to write and waits: a process that has the writer's lock until its standard input ends.
WRITING = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("ready", flush=True)
sys.stdin.read()
"""

# Writes and checkpoints with everyone else for some seconds, then tells rows, checkpoints, longest log.
BUSY = """
import sqlite3, sys, time
from perdure.store.sqlite.gate import gate_for
from perdure.store.sqlite.wal import NOT_RUN, WalMeter, checkpoint_guarded

def connect():
    connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=10)
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute("PRAGMA synchronous = NORMAL")
    return connection

writer, holder = connect(), connect()
gate, meter = gate_for(sys.argv[1]), WalMeter(sys.argv[1])
rows = checkpoints = longest = 0
print("ready", flush=True)
until = time.monotonic() + float(sys.argv[2])
while time.monotonic() < until:
    gate.enter(1)
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("INSERT INTO t (x) VALUES (randomblob(300))")
    writer.execute("UPDATE t SET x = randomblob(300) WHERE id = abs(random()) % 1000")
    writer.execute("COMMIT")
    rows += 1
    if meter.frames() >= 10:
        checkpoints += checkpoint_guarded(writer, holder) != NOT_RUN
    longest = max(longest, meter.frames())
    gate.leave()
print(rows, checkpoints, longest)
"""


# Two hundred rows of most of a page each.
FILL = """
    WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200)
    INSERT INTO t (x) SELECT randomblob(3000) FROM n
"""


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, x)")
    return path


@pytest.fixture
def connect(database: Path) -> Iterator[Connect]:
    connections: list[sqlite3.Connection] = []

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(database, isolation_level=None, timeout=0)
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connections.append(connection)
        return connection

    yield connect
    for connection in connections:
        connection.close()


@pytest.mark.parametrize(
    ("version", "answer"),
    [
        ((3, 6, 23), False),
        ((3, 7, 0), True),
        ((3, 40, 1), True),
        ((3, 44, 5), True),
        ((3, 44, 6), False),
        ((3, 44, 9), False),
        ((3, 45, 0), True),
        ((3, 50, 6), True),
        ((3, 50, 7), False),
        ((3, 51, 0), True),
        ((3, 51, 2), True),
        ((3, 51, 3), False),
        ((3, 54, 1), False),
        ((4, 0, 0), False),
    ],
)
def test_the_versions_with_the_bug_are_known(version: tuple[int, int, int], answer: bool) -> None:
    assert affected(version) is answer


def test_a_database_that_does_not_exist_has_no_frames(tmp_path: Path) -> None:
    assert WalMeter(tmp_path / "none.db").frames() == 0


def test_a_database_nobody_has_written_has_no_frames(database: Path, connect: Connect) -> None:
    connect().execute("SELECT * FROM t")

    assert WalMeter(database).frames() == 0


def test_frames_are_what_sqlite_says_is_not_copied_yet(database: Path, connect: Connect) -> None:
    writer, reader, meter = connect(), connect(), WalMeter(database)
    _write(writer, 30)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM t").fetchone()
    _write(writer, 50)

    _, in_log, copied = writer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()

    assert 0 < copied < in_log  # the reader holds up what came after it
    assert meter.frames() == in_log - copied


def test_frames_of_other_connections_count(database: Path, connect: Connect) -> None:
    connect()
    meter = WalMeter(database)
    meter.frames()

    _write(connect(), 20)

    assert meter.frames() >= 20


def test_frames_not_yet_committed_do_not_count(database: Path, connect: Connect) -> None:
    writer = connect()
    _write(writer, 1)
    before = WalMeter(database).frames()
    writer.execute("PRAGMA cache_size = 1")  # spills pages into the log long before the commit
    writer.execute("BEGIN IMMEDIATE")
    writer.execute(FILL)

    assert Path(f"{database}-wal").stat().st_size > 100 * 4096
    assert WalMeter(database).frames() == before


def test_after_the_log_started_over_only_new_frames_count(database: Path, connect: Connect) -> None:
    writer = connect()
    _write(writer, 30)
    writer.execute("PRAGMA wal_checkpoint(PASSIVE)")

    _write(writer, 1)

    assert 0 < WalMeter(database).frames() < 10


def test_a_meter_follows_its_database_through_closing_and_opening(database: Path, connect: Connect) -> None:
    meter = WalMeter(database)
    first = connect()
    _write(first, 20)
    meter.frames()
    first.close()  # the last connection: SQLite deletes -wal and -shm

    closed = meter.frames()
    _write(connect(), 3)

    assert closed == 0
    assert 3 <= meter.frames() < 20


def test_without_shared_memory_the_size_of_the_log_counts(database: Path, connect: Connect) -> None:
    writer = connect()
    writer.execute("PRAGMA locking_mode = EXCLUSIVE")
    _write(writer, 300)

    in_log = writer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[1]

    assert not Path(f"{database}-shm").exists()
    assert WalMeter(database).frames() == in_log > 0


def test_a_damaged_shared_memory_file_is_not_believed(database: Path) -> None:
    Path(f"{database}-shm").write_bytes(b"\xff" * 96 + bytes(32672))

    assert WalMeter(database).frames() == 0


def test_looking_does_not_take_sqlites_locks_away(database: Path, connect: Connect) -> None:
    writer = connect()
    _write(writer, 1)
    writer.execute("BEGIN IMMEDIATE")

    for _ in range(3):
        WalMeter(database).frames()

    assert _another_process_can_write(database) is False


def test_descriptors_of_deleted_files_are_not_hoarded(tmp_path: Path) -> None:
    for number in range(5):
        path = tmp_path / f"{number}.db"
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("CREATE TABLE t (x)")
            WalMeter(path).frames()

    assert sum(kept.path.startswith(str(tmp_path)) for kept in _kept_files._by_file.values()) == 1


def test_a_guarded_checkpoint_copies_the_log_back(database: Path, connect: Connect) -> None:
    writer, meter = connect(), WalMeter(database)
    _write(writer, CHECKPOINT_FRAMES)
    before = meter.frames()

    in_log, copied = checkpoint_guarded(writer, connect())

    assert before >= CHECKPOINT_FRAMES
    assert in_log == copied == before
    assert meter.frames() == 0


def test_while_a_guarded_checkpoint_runs_nobody_else_can_write(database: Path, connect: Connect) -> None:
    writer, third = connect(), connect()
    _write(writer, 5)
    seen: list[tuple[str, bool]] = []
    writer.set_trace_callback(lambda statement: seen.append((statement, _can_write(third))))

    checkpoint_guarded(writer, connect())

    assert seen == [("PRAGMA wal_checkpoint(PASSIVE)", False)]


def test_nothing_is_checkpointed_while_another_process_writes(database: Path, connect: Connect) -> None:
    writer, holder, meter = connect(), connect(), WalMeter(database)
    _write(writer, 20)
    before = meter.frames()

    with _another_process_writing(database):
        answer = checkpoint_guarded(writer, holder)

    assert answer == NOT_RUN
    assert meter.frames() == before > 0


def test_afterwards_everyone_can_write(database: Path, connect: Connect) -> None:
    checkpoint_guarded(connect(), connect())

    assert _another_process_can_write(database)


def test_a_checkpoint_that_fails_gives_the_writers_lock_back(database: Path, connect: Connect) -> None:
    writer = connect()
    writer.execute("BEGIN")
    writer.execute("SELECT * FROM t").fetchall()  # inside a transaction SQLite refuses to checkpoint

    with pytest.raises(sqlite3.OperationalError):
        checkpoint_guarded(writer, connect())

    assert _another_process_can_write(database)


def test_many_processes_that_write_and_checkpoint_leave_the_file_intact(
    database: Path, full_size: bool, connect: Connect
) -> None:
    seconds = 60 if full_size else 4
    others = [_start(BUSY, database, str(seconds)) for _ in range(3)]

    reports = [[int(number) for number in other.communicate()[0].split()] for other in others]
    rows, checkpoints, longest = zip(*reports, strict=True)

    connection = connect()
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert connection.execute("SELECT count(*) FROM t").fetchone() == (sum(rows),)
    assert sum(checkpoints) > 50
    assert max(longest) < CHECKPOINT_FRAMES


def _write(connection: sqlite3.Connection, transactions: int) -> None:
    for _ in range(transactions):
        connection.execute("INSERT INTO t (x) VALUES (randomblob(100))")


def _can_write(connection: sqlite3.Connection) -> bool:
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError:
        return False
    connection.execute("ROLLBACK")
    return True


def _another_process_can_write(database: Path) -> bool:
    script = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0).execute('BEGIN IMMEDIATE')"
    command = [sys.executable, "-c", script, str(database)]
    return subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0


def _start(script: str, *arguments: str | Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    return process


@contextmanager
def _another_process_writing(database: Path) -> Iterator[None]:
    process = _start(WRITING, database)
    yield
    process.communicate()


# -- something that differs after every commit -----------------------------------------------------------------------


def test_the_state_differs_after_every_commit_whoever_makes_it(database: Path, connect: Connect) -> None:
    meter = WalMeter(database)
    writers = connect(), connect()
    writers[0].execute("INSERT INTO t (x) VALUES (0)")
    states = [meter.state()]
    for number in range(20):
        writers[number % 2].execute("UPDATE t SET x = ?", ((number + 1) % 3,))
        states.append(meter.state())

    assert len(set(states)) == len(states)


def test_the_state_is_the_same_while_nobody_commits(database: Path, connect: Connect) -> None:
    meter, writer, reader = WalMeter(database), connect(), connect()
    writer.execute("INSERT INTO t (x) VALUES (0)")
    before = meter.state()
    reader.execute("SELECT * FROM t").fetchall()
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("INSERT INTO t (x) VALUES (1)")
    during = meter.state()
    writer.execute("ROLLBACK")

    assert before == during == meter.state() == WalMeter(database).state()
    assert before


def test_the_state_differs_when_the_log_starts_over(database: Path, connect: Connect) -> None:
    meter, writer, holder = WalMeter(database), connect(), connect()
    states: list[bytes] = []
    for _ in range(4):
        writer.execute("INSERT INTO t (x) VALUES (0)")
        states.append(meter.state())
        checkpoint_guarded(writer, holder)

    assert len(set(states)) == len(states)


def test_the_state_is_empty_where_nobody_has_the_file_open(database: Path, tmp_path: Path) -> None:
    assert WalMeter(database).state() == b""
    assert WalMeter(tmp_path / "nothing.db").state() == b""


def test_the_state_is_that_of_the_log_that_is_there_now(database: Path, connect: Connect) -> None:
    meter, first = WalMeter(database), connect()
    first.execute("INSERT INTO t (x) VALUES (0)")
    before = meter.state()
    first.close()  # the last one takes the log with it
    closed = meter.state()
    second = connect()
    second.execute("INSERT INTO t (x) VALUES (1)")
    after = meter.state()
    second.execute("INSERT INTO t (x) VALUES (2)")

    assert len({before, closed, after, meter.state()}) == 4
