"""What `tx=` refuses: a connection on which a job would not share the fate of the user's rows."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from perdure import DatabaseBusy, Perdure, PerdureError, TransactionError
from tests.app.contents import contents, jobs_in
from tests.app.doors import django_connection


@pytest.fixture(autouse=True)
def made(app: Perdure) -> None:
    app.store.upgrade()


@pytest.fixture
def opened(path: Path) -> Iterator[Callable[..., Any]]:
    """Opens connections to the app's file, or another, and closes them afterwards."""
    with ExitStack() as stack:

        def connect(file: Path | str = path, **options: Any) -> Any:
            return stack.enter_context(closing(sqlite3.connect(file, **options)))

        yield connect


@pytest.fixture
def engine(path: Path) -> Iterator[sa.Engine]:
    engine = sa.create_engine(f"sqlite:///{path}")
    yield engine
    engine.dispose()


def refusal(send: Any, tx: object) -> str:
    """The code of the error that enqueueing with this transaction raises."""
    with pytest.raises(TransactionError) as raised:
        send.options(tx=tx).enqueue("a")
    return raised.value.code


def test_a_connection_in_autocommit_mode_has_no_transaction_to_join(opened: Any, send: Any, path: Path) -> None:
    assert refusal(send, opened(isolation_level=None)) == "tx_not_open"
    assert jobs_in(path) == []


def test_sqlalchemy_in_autocommit_mode_has_no_transaction_to_join(engine: sa.Engine, send: Any) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        assert refusal(send, connection) == "tx_not_open"


def test_django_outside_atomic_has_no_transaction_to_join(path: Path, send: Any) -> None:
    with closing(django_connection(path)) as connection:
        assert refusal(send, connection) == "tx_not_open"


def test_a_closed_connection_is_refused(opened: Any, send: Any) -> None:
    connection = opened()
    connection.close()
    assert refusal(send, connection) == "tx_closed"


def test_a_closed_sqlalchemy_connection_is_refused(engine: sa.Engine, send: Any) -> None:
    connection = engine.connect()
    connection.close()
    assert refusal(send, connection) == "tx_closed"


def test_a_session_that_has_to_be_begun_by_hand_is_refused_before_that(engine: sa.Engine, send: Any) -> None:
    with Session(engine, autobegin=False) as session:
        assert refusal(send, session) == "tx_unusable"


def test_a_session_without_a_database_is_refused(send: Any) -> None:
    with Session() as session:
        assert refusal(send, session) == "tx_unusable"


def test_a_connection_to_another_file_is_refused(opened: Any, send: Any, tmp_path: Path) -> None:
    assert refusal(send, opened(tmp_path / "other.db")) == "tx_wrong_database"


def test_a_connection_to_a_file_that_is_gone_is_refused(opened: Any, send: Any, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    connection = opened(other)
    connection.execute("CREATE TABLE t (x)")
    other.unlink()
    assert refusal(send, connection) == "tx_wrong_database"


def test_a_connection_to_memory_is_refused(opened: Any, send: Any) -> None:
    assert refusal(send, opened(":memory:")) == "tx_wrong_database"


def test_the_same_file_under_another_name_is_accepted(opened: Any, send: Any, path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(path)
    connection = opened(link)
    send.options(tx=connection).enqueue("a")
    connection.commit()
    assert jobs_in(path) == ['{"to":"a"}']


def test_the_transaction_of_an_app_on_another_file_is_refused(send: Any, tmp_path: Path) -> None:
    other = Perdure(tmp_path / "other.db")
    with other.transaction() as tx:
        assert refusal(send, tx) == "tx_wrong_database"
    assert list(other.jobs()) == []
    other.close()


def test_a_transaction_that_is_over_is_refused(app: Perdure, send: Any) -> None:
    with app.transaction() as tx:
        pass
    assert refusal(send, tx) == "tx_closed"


def test_a_connection_of_another_thread_is_refused(path: Path, send: Any) -> None:
    theirs: list[sqlite3.Connection] = []
    thread = threading.Thread(target=lambda: theirs.append(sqlite3.connect(path)))
    thread.start()
    thread.join()
    assert refusal(send, theirs[0]) == "tx_thread"


@pytest.mark.parametrize("what", [5, "jobs.db", object(), sqlite3, {}])
def test_what_is_no_connection_is_refused(what: object, send: Any) -> None:
    assert refusal(send, what) == "tx_unknown_type"


def test_a_reader_that_someone_has_overtaken_cannot_become_a_writer(opened: Any, send: Any, path: Path) -> None:
    connection = opened()
    connection.execute("BEGIN")
    connection.execute("SELECT * FROM perdure_job").fetchall()
    send.enqueue("overtakes")
    assert refusal(send, connection) == "tx_cannot_upgrade"
    connection.rollback()
    assert jobs_in(path) == ['{"to":"overtakes"}']


def test_a_database_that_someone_else_writes_is_busy(opened: Any, send: Any) -> None:
    writer = opened(isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    with pytest.raises(DatabaseBusy):
        send.options(tx=opened(timeout=0)).enqueue("a")


def test_a_refused_enqueue_leaves_no_transaction_behind(opened: Any, send: Any) -> None:
    connection = opened()
    send.options(business_key="b").enqueue("live")
    with pytest.raises(PerdureError):
        send.options(tx=connection, business_key="b").enqueue("a")
    assert not connection.in_transaction


REFUSED: dict[str, Callable[[Any], object]] = {
    "autocommit": lambda opened: opened(isolation_level=None),
    "memory": lambda opened: opened(":memory:"),
    "number": lambda opened: 5,
}


@pytest.mark.parametrize("tx", REFUSED)
def test_every_verb_refuses_what_enqueue_refuses(tx: str, app: Perdure, send: Any, opened: Any, path: Path) -> None:
    job = send.enqueue("a")
    before = contents(path)
    given = REFUSED[tx](opened)
    verbs: list[Callable[[], object]] = [
        lambda: app.cancel(job, tx=given),
        lambda: app.pause(job, tx=given),
        lambda: app.resume(job, tx=given),
        lambda: app.retry(job, tx=given),
        lambda: app.retry(job, as_new=True, tx=given),
        lambda: app.move(job, to="back", tx=given),
        lambda: app.set_priority(job, 1, tx=given),
        lambda: app.supersede(job, send.new("b"), tx=given),
        lambda: app.edit(job, queue="other", tx=given),
        lambda: app.delete(job, tx=given),
        lambda: app.enqueue_many([send.new("b")], tx=given),
    ]
    for verb in verbs:
        with pytest.raises(TransactionError):
            verb()
    assert contents(path) == before
