"""`tx=`: a job and the user's own rows share one transaction, whatever kind of connection carries it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from perdure import JobNotFound, KeyConflict, Perdure, StoreError, TransitionRefused
from perdure.store.sqlite.wal import affected
from tests.app import by_hand
from tests.app.contents import contents, jobs_in
from tests.app.doors import DOORS, Door


@pytest.fixture(autouse=True)
def orders(app: Perdure, path: Path) -> None:
    """The user's own table, beside Perdure's."""
    app.store.upgrade()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")


@pytest.fixture(params=DOORS)
def begin(request: pytest.FixtureRequest, path: Path) -> Iterator[Callable[[], Door]]:
    """Opens the user's transaction, when the test is ready for it."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(DOORS[request.param](path)))


Begin = Callable[[], Door]


def orders_in(path: Path) -> list[object]:
    return [row[0] for row in contents(path)["orders"]]


def test_a_job_enqueued_first_goes_with_the_rollback(begin: Begin, send: Any, path: Path) -> None:
    door = begin()
    send.options(tx=door.tx).enqueue("a")
    door.rollback()
    assert jobs_in(path) == []


def test_a_job_enqueued_first_stays_with_the_commit(begin: Begin, send: Any, path: Path) -> None:
    door = begin()
    send.options(tx=door.tx).enqueue("a")
    door.commit()
    assert jobs_in(path) == ['{"to":"a"}']


def test_a_job_can_be_edited_in_the_transaction_that_enqueued_it(
    begin: Begin, app: Perdure, send: Any, path: Path
) -> None:
    door = begin()
    job = send.options(tx=door.tx, tags=["old"]).enqueue("a")
    edited = app.edit(job, payload={"to": "b"}, tags=["new"], tx=door.tx)
    assert (edited.payload, edited.tags, app.get(job)) == ({"to": "b"}, ("new",), None)
    assert app.edit(job, tx=door.tx) == edited
    again = app.edit(job, queue="other", tx=door.tx)
    door.commit()
    assert app.get(job) == again


def test_an_edit_goes_with_the_rollback(begin: Begin, app: Perdure, send: Any) -> None:
    job = send.enqueue("a")
    door = begin()
    app.edit(job, payload={"to": "b"}, tx=door.tx)
    door.rollback()
    assert app.get(job) == job


def test_an_edit_sees_what_the_transaction_did_to_the_job(begin: Begin, app: Perdure, send: Any) -> None:
    job = send.enqueue("a")
    door = begin()
    app.cancel(job, tx=door.tx)
    with pytest.raises(TransitionRefused, match="ended"):
        app.edit(job, payload={"to": "b"}, tx=door.tx)
    door.rollback()
    assert app.edit(job, payload={"to": "b"}).payload == {"to": "b"}


def test_a_job_that_is_nowhere_cannot_be_edited_in_a_transaction(begin: Begin, app: Perdure) -> None:
    door = begin()
    with pytest.raises(JobNotFound):
        app.edit("0" * 32, payload={}, tx=door.tx)
    door.rollback()


def test_nobody_sees_the_job_before_the_commit(begin: Begin, app: Perdure, send: Any, path: Path) -> None:
    door = begin()
    job = send.options(tx=door.tx).enqueue("a")
    before = app.get(job)
    door.commit()
    assert (before, app.get(job)) == (None, job)


def test_a_job_in_the_middle_of_the_users_rows_shares_their_rollback(begin: Begin, send: Any, path: Path) -> None:
    door = begin()
    door.execute("INSERT INTO orders VALUES (1)")
    send.options(tx=door.tx, tags=["x"], business_key="b").enqueue("a")
    door.execute("INSERT INTO orders VALUES (2)")
    door.rollback()
    assert jobs_in(path) == orders_in(path) == []
    assert contents(path)["perdure_business_key"] == contents(path)["perdure_tag"] == []


def test_a_job_in_the_middle_of_the_users_rows_shares_their_commit(begin: Begin, send: Any, path: Path) -> None:
    door = begin()
    door.execute("INSERT INTO orders VALUES (1)")
    send.options(tx=door.tx).enqueue("a")
    door.execute("INSERT INTO orders VALUES (2)")
    door.commit()
    assert (jobs_in(path), orders_in(path)) == (['{"to":"a"}'], [1, 2])


def test_a_refused_job_leaves_the_users_transaction_usable(begin: Begin, send: Any, path: Path) -> None:
    send.options(business_key="b").enqueue("live")
    door = begin()
    door.execute("INSERT INTO orders VALUES (1)")
    with pytest.raises(KeyConflict):
        send.options(tx=door.tx, business_key="b").enqueue("refused")
    door.execute("INSERT INTO orders VALUES (2)")
    door.commit()
    assert (jobs_in(path), orders_in(path)) == (['{"to":"live"}'], [1, 2])


def test_an_enqueue_that_breaks_off_leaves_nothing_of_the_job(begin: Begin, send: Any, path: Path) -> None:
    before = contents(path)
    door = begin()
    door.execute("CREATE TRIGGER full BEFORE INSERT ON perdure_ready BEGIN SELECT RAISE(ABORT, 'full'); END")
    door.execute("INSERT INTO orders VALUES (1)")
    with pytest.raises(StoreError, match="full"):
        send.options(tx=door.tx, tags=["x"], idempotency_key="k").enqueue("a")
    door.execute("INSERT INTO orders VALUES (2)")
    door.commit()
    assert contents(path) == before | {"orders": [(1,), (2,)]}


def test_a_duplicate_is_found_through_the_users_connection(begin: Begin, send: Any) -> None:
    door = begin()
    first = send.options(tx=door.tx, idempotency_key="k", tags=["é", "x"]).enqueue("a")
    again = send.options(tx=door.tx, idempotency_key="k").enqueue("a")
    assert (again.id, again.deduplicated, again.payload, again.tags) == (first.id, True, {"to": "a"}, ("x", "é"))


def test_many_jobs_go_with_one_rollback(begin: Begin, app: Perdure, send: Any, path: Path) -> None:
    door = begin()
    app.enqueue_many([send.new("a"), send.options(queue="mail").new("b")], tx=door.tx)
    send.options(tx=door.tx).enqueue_many([{"to": "c"}])
    app.enqueue("send", {"to": "d"}, tx=door.tx)
    door.rollback()
    assert jobs_in(path) == []


VERBS: dict[str, Callable[[Perdure, Any, Any, Any], Any]] = {
    "cancel": lambda app, send, job, tx: app.cancel(job, tx=tx),
    "pause": lambda app, send, job, tx: app.pause(job, tx=tx),
    "move": lambda app, send, job, tx: app.move(job, to="front", tx=tx),
    "set_priority": lambda app, send, job, tx: app.set_priority(job, 3, tx=tx),
    "supersede": lambda app, send, job, tx: app.supersede(job, send.new("instead"), tx=tx),
    "edit": lambda app, send, job, tx: app.edit(job, payload={"to": "edited"}, tags=["x"], tx=tx),
    "edit nothing": lambda app, send, job, tx: app.edit(job, tx=tx),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_goes_with_the_rollback(verb: str, begin: Begin, app: Perdure, send: Any, path: Path) -> None:
    send.enqueue("first")
    job = send.options(business_key="b").enqueue("second")
    before = contents(path)
    door = begin()
    VERBS[verb](app, send, job, door.tx)
    door.rollback()
    assert contents(path) == before


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_takes_effect_with_the_commit(verb: str, begin: Begin, app: Perdure, send: Any) -> None:
    send.enqueue("first")
    job = send.enqueue("second")
    door = begin()
    answer = VERBS[verb](app, send, job, door.tx)
    door.commit()
    assert app.get(job) == answer


def test_a_paused_job_is_resumed_with_the_commit(begin: Begin, app: Perdure, send: Any) -> None:
    job = app.pause(send.enqueue("a"))
    door = begin()
    app.resume(job, tx=door.tx)
    door.commit()
    assert app.existing(job).state == "queued"


@pytest.mark.parametrize("as_new", [False, True])
def test_a_retry_goes_with_the_rollback(as_new: bool, begin: Begin, app: Perdure, send: Any, path: Path) -> None:
    job = app.cancel(send.enqueue("a"))
    before = contents(path)
    door = begin()
    app.retry(job, as_new=as_new, tx=door.tx)
    door.rollback()
    assert contents(path) == before


def test_a_deletion_goes_with_the_rollback(begin: Begin, app: Perdure, send: Any, path: Path) -> None:
    job = send.options(idempotency_key="k", tags=["x"]).enqueue("a")
    by_hand.complete(app)
    before = contents(path)
    door = begin()
    app.delete(job, tx=door.tx)
    door.rollback()
    assert contents(path) == before


def test_a_borrowed_connection_makes_no_checkpoints_where_they_can_corrupt(path: Path, send: Any) -> None:
    with closing(sqlite3.connect(path)) as connection:
        send.options(tx=connection).enqueue("a")
        connection.commit()
        (pages,) = connection.execute("PRAGMA wal_autocheckpoint").fetchone()
    assert pages == (0 if affected(sqlite3.sqlite_version_info[:3]) else 1000)


def test_a_borrowed_connection_keeps_its_factories(path: Path, send: Any) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory, connection.text_factory = sqlite3.Row, bytes
        send.options(tx=connection).enqueue("a")
        assert (connection.row_factory, connection.text_factory) == (sqlite3.Row, bytes)
