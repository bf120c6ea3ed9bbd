"""`tx=` on a file without Perdure's tables, where the user's own row comes first: they are made in his transaction."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from time import sleep
from typing import Any

import aiosqlite
import pytest

from perdure import DatabaseBusy, KeyConflict, Perdure, PerdureError
from perdure.ops.doctor import examine, is_healthy
from perdure.store import migrate
from perdure.store.sqlite import driver, schema
from tests.app.contents import contents, jobs_in
from tests.app.doors import DOORS, Door

Begin = Callable[[], Door]


@pytest.fixture(params=["delete", "wal"])
def orders(path: Path, request: pytest.FixtureRequest) -> None:
    """The user's table, in a file that Perdure has never seen."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA journal_mode={request.param}")
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")


@pytest.fixture(params=DOORS)
def begin(request: pytest.FixtureRequest, path: Path, orders: None) -> Iterator[Begin]:
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(DOORS[request.param](path)))


@pytest.fixture
def mine(path: Path, orders: None) -> Iterator[sqlite3.Connection]:
    """A connection whose transaction has begun with a row of the user's."""
    with closing(sqlite3.connect(path, timeout=2)) as connection:
        connection.execute("INSERT INTO orders VALUES (1)")
        yield connection


def tables_in(path: Path) -> set[str]:
    return {name for name in contents(path) if name.startswith("perdure_")}


def versions(path: Path) -> list[tuple[object, ...]]:
    """What is recorded of each step, without the time."""
    with closing(sqlite3.connect(path)) as connection:
        query = "SELECT revision, name, checksum, perdure_version FROM perdure_schema_version ORDER BY revision"
        return connection.execute(query).fetchall()


def schema_of(path: Path) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        query = "SELECT type, name, sql FROM sqlite_master WHERE name LIKE 'perdure%' ORDER BY 1, 2"
        return connection.execute(query).fetchall()


def test_the_first_job_of_a_file_is_committed_with_the_row_before_it(
    begin: Begin, app: Perdure, send: Any, path: Path
) -> None:
    door = begin()
    door.execute("INSERT INTO orders VALUES (1)")
    first = send.options(tx=door.tx).enqueue("a")
    door.execute("INSERT INTO orders VALUES (2)")
    second = send.options(tx=door.tx, tags=["x"]).enqueue("b")
    door.commit()
    assert contents(path)["orders"] == [(1,), (2,)]
    assert [app.get(first), app.get(second)] == [first, second]
    assert is_healthy(examine(app.store))


def test_a_rollback_takes_the_tables_along_and_the_app_knows(begin: Begin, app: Perdure, send: Any, path: Path) -> None:
    for _ in range(2):
        door = begin()
        door.execute("INSERT INTO orders VALUES (1)")
        send.options(tx=door.tx).enqueue("a")
        door.rollback()
    assert (tables_in(path), contents(path)["orders"]) == (set(), [])
    job = send.enqueue("b")
    assert app.get(job) == job


def test_the_tables_are_those_that_an_upgrade_makes(
    mine: sqlite3.Connection, send: Any, path: Path, tmp_path: Path
) -> None:
    send.options(tx=mine).enqueue("a")
    mine.commit()
    other = Perdure(tmp_path / "other.db")
    other.store.upgrade()
    assert versions(path) == versions(tmp_path / "other.db")
    assert schema_of(path) == schema_of(tmp_path / "other.db")


def test_a_verb_that_is_refused_leaves_the_transaction_usable(
    mine: sqlite3.Connection, app: Perdure, send: Any, path: Path
) -> None:
    with pytest.raises(PerdureError):
        app.cancel("0" * 32, tx=mine)
    mine.execute("INSERT INTO orders VALUES (2)")
    mine.commit()
    assert contents(path)["orders"] == [(1,), (2,)]


def test_keys_hold_inside_the_transaction_that_made_the_tables(mine: sqlite3.Connection, send: Any) -> None:
    first = send.options(tx=mine, business_key="b", idempotency_key="k").enqueue("a")
    assert send.options(tx=mine, idempotency_key="k").enqueue("a").id == first.id
    with pytest.raises(KeyConflict):
        send.options(tx=mine, business_key="b").enqueue("c")


def test_without_auto_migrate_it_says_what_to_do_at_once(mine: sqlite3.Connection, path: Path) -> None:
    app = Perdure(path, auto_migrate=False)

    @app.job
    def send(to: str) -> None: ...

    with pytest.raises(PerdureError, match="perdure db upgrade") as raised:
        send.options(tx=mine).enqueue("a")
    assert raised.value.code == "schema_missing"
    mine.commit()
    assert (tables_in(path), contents(path)["orders"]) == (set(), [(1,)])


def test_an_older_file_is_upgraded_in_the_transaction_after_a_backup(app: Perdure, send: Any, path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        schema.upgrade(connection, path, migrate.migrations_of("sqlite")[:1])
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        connection.execute("INSERT INTO orders VALUES (1)")
        send.options(tx=connection).enqueue("a")
        connection.rollback()
        assert [row[0] for row in versions(path)] == [1]
        connection.execute("INSERT INTO orders VALUES (1)")
        job = send.options(tx=connection).enqueue("a")
        connection.commit()
    assert app.get(job) == job
    backups = list(path.parent.glob("*.backup-*"))
    assert [[row[0] for row in versions(kept)] for kept in backups] == [[1], [1]]


def test_aiosqlite_too(path: Path, orders: None, app: Perdure, send: Any) -> None:
    async def main() -> None:
        async with aiosqlite.connect(path) as connection:
            await connection.execute("INSERT INTO orders VALUES (1)")
            await send.options(tx=connection).aenqueue("lost")
            await connection.rollback()
            await connection.execute("INSERT INTO orders VALUES (1)")
            await send.options(tx=connection).aenqueue("a")
            await connection.commit()

    asyncio.run(main())
    assert (jobs_in(path), contents(path)["orders"]) == (['{"to":"a"}'], [(1,)])
    assert [job.payload for job in app.jobs()] == [{"to": "a"}]


def test_another_thread_waits_for_the_transaction_and_then_finds_the_tables(
    mine: sqlite3.Connection, app: Perdure, send: Any, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It opens the file meanwhile, which is the process's own lock; the transaction must not need that one."""
    waiting = threading.Event()
    real = schema.upgrade

    def wait(seconds: float) -> None:
        waiting.set()
        sleep(seconds)

    def upgrade(*args: Any, **kwargs: Any) -> Any:
        waiting.set()
        return real(*args, **kwargs)

    monkeypatch.setattr(driver, "sleep", wait)
    monkeypatch.setattr(schema, "upgrade", upgrade)
    send.options(tx=mine).enqueue("mine")
    jobs: list[Any] = []
    patient = Perdure(path, busy_timeout_s=60)
    patient.kinds = app.kinds
    thread = threading.Thread(target=lambda: jobs.append(patient.enqueue("send", {"to": "other"})))
    thread.start()
    assert waiting.wait(60)
    send.options(tx=mine).enqueue("mine again")
    mine.commit()
    thread.join(60)
    patient.close()
    assert [job.payload for job in jobs] == [{"to": "other"}]
    assert sorted(jobs_in(path)) == ['{"to":"mine again"}', '{"to":"mine"}', '{"to":"other"}']


def test_another_process_gets_the_tables_once(mine: sqlite3.Connection, app: Perdure, send: Any, path: Path) -> None:
    send.options(tx=mine).enqueue("mine")
    code = f"""
import sqlite3
from perdure import Perdure
app = Perdure({str(path)!r})
@app.job
def send(to: str) -> None: ...
connection = sqlite3.connect({str(path)!r}, timeout=60)
print("begun", flush=True)
connection.execute("INSERT INTO orders VALUES (2)")
send.options(tx=connection).enqueue("other")
connection.commit()
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process:
        assert process.stdout.readline() == "begun\n"
        mine.commit()
        assert process.wait(60) == 0
    assert sorted(jobs_in(path)) == ['{"to":"mine"}', '{"to":"other"}']
    assert contents(path)["orders"] == [(1,), (2,)]
    assert is_healthy(examine(app.store))


def test_a_file_that_was_deleted_and_made_again_gets_its_tables_again(app: Perdure, send: Any, path: Path) -> None:
    send.enqueue("old")
    for file in path.parent.glob("jobs.db*"):
        file.unlink()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        connection.execute("INSERT INTO orders VALUES (1)")
        send.options(tx=connection).enqueue("new")
        connection.commit()
    assert jobs_in(path) == ['{"to":"new"}']


def test_a_transaction_of_this_process_is_not_called_another_process(mine: sqlite3.Connection, send: Any) -> None:
    send.options(tx=mine).enqueue("mine")
    with pytest.raises(DatabaseBusy, match="transaction of this process"):
        Perdure(mine.execute("PRAGMA database_list").fetchone()[2], busy_timeout_s=0.05).get("0" * 32)


def test_a_missing_table_of_the_users_is_not_ours(app: Perdure, send: Any) -> None:
    with app.transaction() as tx:
        with pytest.raises(PerdureError, match="no such table: nothing_here") as raised:
            tx.execute("SELECT * FROM nothing_here")
        with pytest.raises(PerdureError, match=r"no such table: main\.perdure_orders") as also:
            tx.execute("SELECT * FROM main.perdure_orders")
    assert "Perdure tables" not in str(raised.value) + str(also.value)
    assert (raised.value.code, also.value.code) == ("store_error", "store_error")
