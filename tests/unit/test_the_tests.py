"""What the tests rely on: `make test` runs every suite whatever one does; no test leaves a broken database behind."""

from __future__ import annotations

import fcntl
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from perdure import Perdure
from tests import postgres_server, run_suites
from tests.conftest import complaint_about
from tests.needs import MUST_RUN
from tests.worker.patience import eventually

PASSES = "def test_it() -> None: ..."

BEGIN = """
import subprocess, sys, threading
from pathlib import Path

def wait_for_ever() -> None:
    Path("{marker}").touch()
    threading.Event().wait()
"""

IN_A_TEST = """
def test_it() -> None:
    wait_for_ever()
"""

IN_A_THREAD_AT_THE_END = """
def test_it() -> None:
    threading.Thread(target=wait_for_ever).start()
"""

CHILD = """
import fcntl, signal, sys
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)  # as long as this process lives
print("locked", flush=True)
signal.pause()
"""

LEAVES_A_CHILD = f"""
CHILD = {CHILD!r}

def start_child() -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CHILD, "{{lock}}"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "locked\\n"
    return child

def test_it() -> None:
    global child
    child = start_child()
    Path("{{pid}}").write_text(str(child.pid))
"""

IN_A_CHILD = (
    LEAVES_A_CHILD
    + """
    Path("{marker}").touch()
    child.wait()
"""
)

HANGS = {"a_test": IN_A_TEST, "a_thread": IN_A_THREAD_AT_THE_END, "a_child": IN_A_CHILD}


@pytest.fixture
def suites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of suites. One that has made its marker is given up."""
    folder = tmp_path / "tests"
    monkeypatch.setattr(run_suites, "TESTS", folder)
    monkeypatch.setattr(run_suites, "is_too_long", lambda name, _: marker(folder, name).exists())
    return folder


def marker(folder: Path, suite: str) -> Path:
    return folder.parent / f"{suite} hangs"


def write(folder: Path, suite: str, text: str) -> None:
    (folder / suite).mkdir(parents=True)
    for name in ("marker", "lock", "pid"):
        path = marker(folder, suite) if name == "marker" else folder.parent / name
        text = text.replace(f"{{{name}}}", str(path))
    (folder / suite / f"test_{suite}.py").write_text(text)


def counted(out: str) -> dict[str, tuple[int, int]]:
    """How many tests of each suite passed, and how many failed, as the table says."""
    rows = [line.split() for line in out[out.index("wall time") :].splitlines()[1:]]
    return {row[0]: (int(row[5]), int(row[6])) for row in rows if len(row) == 8 and row[2] == row[4] == "s"}


def is_locked(folder: Path) -> bool:
    """Whether the child lives. Its number would say so of a zombie too."""
    with (folder.parent / "lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_suites_that_hang_are_killed_and_fail_and_the_others_go_on(
    suites: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, text in HANGS.items():
        write(suites, name, BEGIN + text)
    write(suites, "a_good_one", PASSES)

    assert run_suites.main([]) == 1

    out = capfd.readouterr().out
    assert counted(out) == {
        "a_child": (0, 1),
        "a_good_one": (1, 0),
        "a_test": (0, 1),
        "a_thread": (1, 1),
        "all": (2, 3),
    }
    for name in HANGS:
        assert f"{name} has not ended after" in out
        said = out[out.index(f"── {name} ──") : out.index(f"{name} has not ended after")]
        assert "most recent call first" in said
        assert f"test_{name}.py" in said
    assert "a_good_one has not ended" not in out
    assert not is_locked(suites)


def test_what_a_suite_leaves_running_holds_up_nobody(suites: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A process that outlives it has its output open."""
    write(suites, "leaves_a_child", BEGIN + LEAVES_A_CHILD)

    try:
        assert run_suites.main(["-W", "ignore"]) == 0
        assert is_locked(suites)
    finally:
        os.kill(int((suites.parent / "pid").read_text()), signal.SIGKILL)
    assert counted(capfd.readouterr().out)["leaves_a_child"] == (1, 0)


def test_what_tests_have_left_is_kept_of_a_suite_that_failed(
    suites: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    write(suites, "passes", "def test_it(tmp_path) -> None: (tmp_path / 'note').touch()")
    write(suites, "fails", "def test_it(tmp_path) -> None: assert (tmp_path / 'note').mkdir()")

    assert run_suites.main([]) == 1

    (kept,) = tmp_path.rglob("note")
    assert f"What its tests have left is in {kept.parents[1]}\n" in capfd.readouterr().out


def test_what_tests_had_to_do_without_is_named_at_the_end_or_fails_them(
    suites: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Here a driver that cannot be imported."""
    (tmp_path / "MySQLdb.py").write_text("raise ImportError('it is broken')")
    root = Path(run_suites.__file__).parents[1]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(root), *sys.path]))
    write(suites, "passes", PASSES)
    write(suites, "needs", "from tests.needs import Need, need\ndef test_it(): need(Need.MYSQLCLIENT)")

    monkeypatch.delenv(MUST_RUN, raising=False)
    assert run_suites.main([]) == 0
    out = capfd.readouterr().out
    assert "1 passed, 0 failed, 1 skipped" in out
    assert "NOT TESTED: mysqlclient: it is broken;" in out[out.index("1 passed") :]

    monkeypatch.setenv(MUST_RUN, "1")
    assert run_suites.main([]) == 1
    assert "1 passed, 1 failed, 0 skipped" in capfd.readouterr().out


def test_the_limit_is_far_more_than_a_suite_takes() -> None:
    assert not run_suites.is_too_long("any", 600)
    assert run_suites.is_too_long("any", 24 * 3_600)


def test_whoever_ends_the_run_ends_its_suites(suites: Path) -> None:
    write(suites, "a_child", BEGIN + IN_A_CHILD)
    program = suites / "run_suites.py"
    program.write_text(Path(run_suites.__file__).read_text())
    with subprocess.Popen([sys.executable, str(program)], stdout=subprocess.DEVNULL) as run:
        eventually(marker(suites, "a_child").exists)
        assert is_locked(suites)
        run.send_signal(signal.SIGTERM)
        assert run.wait(60) == 128 + signal.SIGTERM
    eventually(lambda: not is_locked(suites))


# -- every test ends with a look at its databases --------------------------------------------------------------------


@pytest.fixture
def healthy_file(tmp_path: Path) -> Path:
    app = Perdure(tmp_path / "jobs.db")
    app.job(name="work")(lambda: None)
    app.enqueue_many([app.kinds.get("work").new() for _ in range(200)])
    app.close()
    return tmp_path / "jobs.db"


def test_a_healthy_database_is_nothing_to_complain_about(healthy_file: Path) -> None:
    assert complaint_about(healthy_file) is None


@pytest.mark.damaged
def test_what_the_doctor_finds_is_complained_about(healthy_file: Path) -> None:
    with closing(sqlite3.connect(healthy_file)) as connection, connection:
        connection.execute("DELETE FROM perdure_job")

    assert "the doctor found" in str(complaint_about(healthy_file))


@pytest.mark.damaged
@pytest.mark.parametrize("part", ["table", "index", "header", "end"])
def test_a_broken_file_is_complained_about(healthy_file: Path, part: str) -> None:
    """Not taken for a file in which the doctor finds nothing."""
    content = bytearray(healthy_file.read_bytes())
    if part == "end":
        content = content[: len(content) // 2]
    else:
        page, size = first_page(healthy_file, part)
        content[(page - 1) * size : page * size] = b"\xff" * size
    healthy_file.write_bytes(content)

    assert complaint_about(healthy_file) is not None


def first_page(file: Path, part: str) -> tuple[int, int]:
    names = {"table": "perdure_job", "index": "perdure_ready_claim", "header": "sqlite_schema"}
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (size,) = connection.execute("PRAGMA page_size").fetchone()
        found = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (names[part],)).fetchone()
        return (1 if found is None else found[0]), size


@pytest.mark.damaged
@pytest.mark.parametrize(("sort", "code"), [("folder", "database_path"), ("text", "not_a_database")])
def test_a_file_that_cannot_be_read_is_complained_about(tmp_path: Path, sort: str, code: str) -> None:
    file = tmp_path / "jobs.db"
    if sort == "folder":
        file.mkdir()
    else:
        file.write_text("this is no database" * 100)

    assert f"[{code}]" in str(complaint_about(file))


@pytest.mark.parametrize("sort", ["empty", "of somebody else", "newer"])
def test_a_file_that_is_not_ours_to_judge_is_passed_over(tmp_path: Path, sort: str) -> None:
    file = tmp_path / "other.db"
    file.touch()
    if sort == "newer":
        Perdure(file).queues.pause("mail")
    if sort != "empty":
        newer = "INSERT INTO perdure_schema_version VALUES (99, 'from_the_future', 'x', 1, '9.0')"
        with closing(sqlite3.connect(file)) as connection, connection:
            connection.execute(newer if sort == "newer" else "CREATE TABLE mine (x)")

    assert complaint_about(file) is None


# -- which PostgreSQL ------------------------------------------------------------------------------------------------


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where a system has its PostgreSQLs, and this one has none. Not pytest's tmp_path: others may read it."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        folder.chmod(0o755)
        monkeypatch.setattr(postgres_server, "INSTALLED", folder)
        monkeypatch.setenv("PATH", str(folder))
        monkeypatch.delenv(postgres_server.WANTED, raising=False)
        yield folder


def installed(system: Path, version: str, programs: Sequence[str] = ("initdb", "postgres")) -> Path:
    folder = system / version / "bin"
    folder.mkdir(parents=True)
    for name in programs:
        (folder / name).write_text(f"#!/bin/sh\necho '{name} (PostgreSQL) {version} (Debian)'\n")
        (folder / name).chmod(0o755)
    return folder


def test_the_newest_postgresql_of_the_system_is_taken(system: Path) -> None:
    made = [installed(system, version) for version in ("9.6.24", "13.0", "18beta1", "15.18")]

    taken = postgres_server.found()

    assert isinstance(taken, postgres_server.Programs)
    assert (taken.folder, taken.version) == (made[2], "18beta1")


def test_as_root_another_user_runs_it(system: Path) -> None:
    installed(system, "15.18")

    taken = postgres_server.found()

    assert isinstance(taken, postgres_server.Programs)
    assert (taken.owner is None) == (os.geteuid() != 0)


@pytest.mark.parametrize(
    ("version", "programs"), [("12.22", ("initdb", "postgres")), ("15.18", ("postgres",)), ("15.18", ("initdb",))]
)
def test_without_one_that_can_be_used_it_is_the_wheels(version: str, programs: Sequence[str], system: Path) -> None:
    installed(system, version, programs)

    assert "the system has none" in postgres_server.which()


@pytest.mark.skipif(os.geteuid() != 0, reason="whoever is not root runs it himself")
def test_one_that_the_other_user_cannot_reach_is_not_used(system: Path) -> None:
    installed(system, "15.18").chmod(0o700)

    assert "that we can run" in postgres_server.which()


def test_the_wheels_can_be_asked_for(system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(system, "15.18")
    monkeypatch.setenv(postgres_server.WANTED, "wheel")

    assert "wheel" in postgres_server.which()
