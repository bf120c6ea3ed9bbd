"""Databases that cannot be opened, read or written: each its own error, and what is there stays as it was."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from perdure import ConfigError, DatabaseBusy, DatabaseUnavailable, Perdure, PerdureError
from tests.app.children import in_child
from tests.app.contents import contents, jobs_in

HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
"""

NOBODY = 65534


def error_of(url: Any, **knobs: Any) -> PerdureError:
    """What the first call on an app at this URL raises."""
    with pytest.raises(PerdureError) as raised:
        Perdure(url, **knobs).queues.list()
    return raised.value


def test_an_app_without_a_database_says_how_to_name_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PERDURE_URL", raising=False)
    error = error_of(None)
    assert (type(error), error.code) == (ConfigError, "url_missing")
    assert "PERDURE_URL" in error.message


def test_the_environment_names_the_database(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    monkeypatch.setenv("PERDURE_URL", str(path))
    app = Perdure()
    assert app.queues.list() == []
    app.close()
    assert path.exists()


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("", "url_missing"),
        (":memory:", "url_invalid"),
        ("sqlite://jobs.db", "url_invalid"),
        ("sqlite:///", "url_invalid"),
        ("sqlite://[", "url_invalid"),
        ("oracle://host/name", "url_unsupported"),
        (5, "url_invalid"),
        (b"jobs.db", "url_invalid"),
        ("~nobody-of-this-name/jobs.db", "url_invalid"),
    ],
)
def test_a_url_that_cannot_work_is_a_config_error(url: Any, code: str) -> None:
    error = error_of(url)
    assert (type(error), error.code) == (ConfigError, code)


@pytest.mark.parametrize(
    ("knobs", "code"),
    [
        ({"colour": "red"}, "config_unknown"),
        ({"durability": "maybe"}, "config_invalid"),
        ({"busy_timeout_s": 0}, "config_invalid"),
        ({"busy_timeout_s": "5"}, "config_invalid"),
        ({"busy_timeout_s": float("nan")}, "config_invalid"),
        ({"max_payload_bytes": -1}, "config_invalid"),
        ({"queue": ""}, "config_invalid"),
        ({"queue": "*"}, "config_invalid"),
        ({"queue": "q" * 129}, "config_invalid"),
        ({"name": "\ud800"}, "config_invalid"),
        ({"auto_migrate": "no"}, "config_invalid"),
        ({"imports": "shop.jobs"}, "config_invalid"),
        ({"imports": ["shop.jobs", 5]}, "config_invalid"),
        ({"imports": 5}, "config_invalid"),
        ({"lease_s": "60"}, "config_invalid"),
        ({"lease_s": True}, "config_invalid"),
        ({"listen_url": 5}, "config_invalid"),
        ({"retention": "90d"}, "config_invalid"),
        ({"allow_network_filesystem": 1}, "config_invalid"),
    ],
)
def test_a_setting_that_cannot_work_is_named(knobs: dict[str, Any], code: str, path: Path) -> None:
    error = error_of(path, **knobs)
    assert (type(error), error.code) == (ConfigError, code)
    assert next(iter(knobs)) in error.message
    assert not path.exists()


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    error = error_of(tmp_path / "missing" / "jobs.db")
    assert (type(error), error.code) == (DatabaseUnavailable, "database_path")
    assert str(tmp_path / "missing") in error.message
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_no_database(tmp_path: Path) -> None:
    error = error_of(tmp_path)
    assert (type(error), error.code) == (DatabaseUnavailable, "database_path")
    assert list(tmp_path.iterdir()) == []


def test_a_path_through_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    error = error_of(tmp_path / "file" / "jobs.db")
    assert (type(error), error.code) == (DatabaseUnavailable, "database_path")


def test_a_path_no_system_can_have_is_refused(tmp_path: Path) -> None:
    error = error_of(f"{tmp_path}/jobs\0.db")
    assert (type(error), error.code) == (DatabaseUnavailable, "database_path")


def test_an_endless_path_is_refused(tmp_path: Path) -> None:
    error = error_of(tmp_path / ("x" * 5000))
    assert (type(error), error.code) == (DatabaseUnavailable, "database_path")


@pytest.mark.damaged
def test_a_file_that_is_no_database_is_left_as_it_is(path: Path) -> None:
    path.write_text("Dear diary, " * 1000)
    error = error_of(path)
    assert (type(error), error.code) == (DatabaseUnavailable, "not_a_database")
    assert path.read_text() == "Dear diary, " * 1000


@pytest.mark.damaged
def test_a_damaged_database_is_reported_as_such(path: Path) -> None:
    app = Perdure(path)
    app.job(name="note")(_note).enqueue_many([{"text": "x" * 1000} for _ in range(200)])
    app.close()
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * (path.stat().st_size - 8192))
    with pytest.raises(DatabaseUnavailable) as raised:
        list(app.jobs())
    assert raised.value.code == "database_corrupt"
    app.close()


def _note(text: str) -> None: ...


def test_an_empty_file_becomes_a_database(path: Path) -> None:
    path.touch()
    app = Perdure(path)
    assert app.queues.list() == []
    app.close()


def test_the_users_own_tables_may_be_there_already(path: Path, app: Perdure, send: Any) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE job (id)")
        connection.execute("INSERT INTO job VALUES (1)")
        connection.commit()
    send.enqueue("a")
    assert contents(path)["job"] == [(1,)]


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Another process holds the write lock."""
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == "held\n"
        try:
            yield
        finally:
            holder.communicate("")


def test_a_database_locked_past_the_time_out_is_busy(tmp_path: Path) -> None:
    app = Perdure(tmp_path / "own.db", busy_timeout_s=0.05)
    app.store.upgrade()
    before = contents(tmp_path / "own.db")
    with held(tmp_path / "own.db"), pytest.raises(DatabaseBusy) as raised:
        app.queues.pause("mail")
    assert raised.value.code == "database_busy"
    assert contents(tmp_path / "own.db") == before
    app.close()


def test_a_busy_database_can_still_be_read(app: Perdure, send: Any, path: Path) -> None:
    job = send.enqueue("a")
    with held(path):
        assert app.get(job) == job


def test_a_busy_database_is_written_once_it_is_free(app: Perdure, send: Any, path: Path) -> None:
    app.store.upgrade()
    with held(path):
        pass
    send.enqueue("a")
    assert jobs_in(path) == ['{"to":"a"}']


def test_a_new_app_on_a_busy_database_is_told_so(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (x)")
    with held(path):
        error = error_of(path, busy_timeout_s=0.05)
    assert (type(error), error.code) == (DatabaseBusy, "database_busy")
    assert list(contents(path)) == ["t"]


# -- rights ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that every user can get to; pytest's own are closed to others."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def as_nobody(act: Callable[[], str]) -> str:
    """What `act` answers without root's power to write everything."""

    def weakly() -> str:
        if os.getuid() == 0:
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        return act()

    return in_child(weakly)


def code_of(act: Callable[[], object]) -> str:
    try:
        act()
    except PerdureError as error:
        return f"{type(error).__name__} {error.code}"
    return "no error"


def test_a_folder_without_rights_is_refused(shared: Path) -> None:
    Perdure(shared / "warm-up.db").close()
    answer = as_nobody(lambda: code_of(Perdure(shared / "jobs.db").queues.list))
    assert answer == "DatabaseUnavailable database_permission"
    assert not (shared / "jobs.db").exists()


def test_a_read_only_file_is_refused(shared: Path) -> None:
    path = shared / "jobs.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (x)")
    path.chmod(0o444)
    assert as_nobody(lambda: code_of(Perdure(path).queues.list)) == "DatabaseUnavailable database_readonly"
    assert list(contents(path)) == ["t"]


def test_a_read_only_job_file_takes_no_job(shared: Path) -> None:
    path = shared / "jobs.db"
    app = Perdure(path)
    app.queues.pause("mail")
    for file in (shared, *shared.iterdir()):
        if os.getuid() == 0:
            os.chown(file, NOBODY, NOBODY)
    path.chmod(0o444)
    before = contents(path)
    answer = as_nobody(lambda: code_of(lambda: Perdure(path).queues.pause("post")))
    assert answer == "DatabaseUnavailable database_readonly"
    assert contents(path) == before
    app.close()


def test_a_file_that_may_not_be_read_is_refused(shared: Path) -> None:
    path = shared / "jobs.db"
    app = Perdure(path)
    app.queues.pause("mail")
    app.close()
    assert path.stat().st_mode & 0o777 == 0o600
    if os.getuid() != 0:
        path.chmod(0)
    answer = as_nobody(lambda: code_of(Perdure(path).queues.list))
    assert answer == "DatabaseUnavailable database_unreachable"
