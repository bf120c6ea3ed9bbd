"""An ORM that writes on a connection of its own while a job's transaction is open on the same SQLite file."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from django.db import connections, transaction
from sqlalchemy.orm import Session

from perdure import JobContext, Perdure, TransactionError
from tests.app.doors import django_connection
from tests.worker.bodies import ran


@pytest.fixture(autouse=True)
def orders(app: Perdure) -> None:
    with app.transaction() as tx:
        tx.execute("CREATE TABLE orders (item TEXT)")


def with_session(path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{path}")
    try:
        with Session(engine) as session:
            assert session.scalar(sa.text("SELECT count(*) FROM orders")) == 0
            session.execute(sa.text("INSERT INTO orders VALUES ('beside')"))
            session.commit()
    finally:
        engine.dispose()


def with_django(connection: Any) -> None:
    with transaction.atomic(using="jobs"), connection.cursor() as cursor:
        cursor.execute("WITH x AS (SELECT 'beside') INSERT INTO orders SELECT * FROM x")


def test_a_session_is_refused_at_once_and_neither_is_committed(app: Perdure, path: Path) -> None:
    def body(ctx: JobContext) -> None:
        with ctx.transaction() as tx:
            tx.execute("INSERT INTO orders VALUES ('ours')")
            with_session(path)

    check_refused(app, path, body)


@pytest.mark.parametrize("mode", ["DEFERRED", "IMMEDIATE"])
def test_so_is_django(app: Perdure, path: Path, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    django_connection(path)  # makes sure that Django is set up
    monkeypatch.setitem(connections.settings, "jobs", {})  # as if DATABASES named it

    def body(ctx: JobContext) -> None:
        connection = django_connection(path, transaction_mode=mode)  # of this thread
        try:
            with ctx.transaction() as tx:
                tx.execute("INSERT INTO orders VALUES ('ours')")
                with_django(connection)
        finally:
            connection.close()

    check_refused(app, path, body)


@pytest.mark.parametrize("mode", ["IMMEDIATE", "exclusive"])
def test_ours_is_refused_at_once_beside_one_of_django_that_holds_the_file(
    app: Perdure, path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    django_connection(path)
    monkeypatch.setitem(connections.settings, "jobs", {})
    connection = django_connection(path, transaction_mode=mode)
    try:
        with transaction.atomic(using="jobs"):
            with pytest.raises(TransactionError, match="Django") as raised, app.transaction():
                raise AssertionError
            assert raised.value.code == "tx_beside"
        with app.transaction() as tx:  # it has ended, and nothing of the refused one is left
            tx.execute("INSERT INTO orders VALUES ('ours')")
    finally:
        connection.close()


def test_django_s_transactions_that_only_read_or_are_in_another_file_do_not_matter(
    app: Perdure, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    django_connection(path)
    monkeypatch.setitem(connections.settings, "jobs", {})
    for file, mode in ((path, "DEFERRED"), (tmp_path / "other.db", "IMMEDIATE")):
        connection = django_connection(file, transaction_mode=mode)
        try:
            with transaction.atomic(using="jobs"), connection.cursor() as cursor:
                cursor.execute("SELECT * FROM sqlite_master")
                with app.transaction() as tx:
                    tx.execute("INSERT INTO orders VALUES ('ours')")
        finally:
            connection.close()


def check_refused(app: Perdure, path: Path, body: Callable[[JobContext], None]) -> None:
    job = ran(app, "plain", body, retry=1)
    assert job.state == "failed"
    assert "tx_beside" in (job.error or "")
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT * FROM orders").fetchall() == []


def test_it_is_refused_beside_the_apps_own_transaction_too(app: Perdure, path: Path) -> None:
    with pytest.raises(TransactionError) as raised, app.transaction() as tx:
        tx.execute("INSERT INTO orders VALUES ('ours')")
        with_session(path)
    assert raised.value.code == "tx_beside"


def test_another_file_and_other_times_are_nobodys_business(app: Perdure, path: Path, tmp_path: Path) -> None:
    other = sa.create_engine(f"sqlite:///{tmp_path}/other.db")
    with app.transaction() as tx, other.begin() as connection:
        tx.execute("SELECT 1")
        connection.execute(sa.text("CREATE TABLE orders (item TEXT)"))
    other.dispose()
    with_session(path)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT * FROM orders").fetchall() == [("beside",)]
