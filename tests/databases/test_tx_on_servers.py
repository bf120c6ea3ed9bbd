"""`tx=` and `app.transaction()` on servers: a job and the user's own rows share one transaction, on every connection.
What only one server has is in tests/postgres and tests/mariadb."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from perdure import KeyConflict, Perdure, StoreError, TransactionError
from tests.app.doors import Door, django_connection
from tests.databases.of_each_sort import MARKS, app, made, names, ordered, send, url
from tests.mariadb import doors as on_mariadb
from tests.postgres import doors as on_postgres

__all__ = ["app", "made", "send", "url"]

SERVERS = {"postgres": on_postgres.DOORS, "mariadb": on_mariadb.DOORS}
every_door = pytest.mark.parametrize(
    ("sort", "door"),
    [
        pytest.param(sort, name, marks=MARKS[sort], id=f"{sort}: {name}")
        for sort, doors in SERVERS.items()
        for name in doors
    ],
)
every_server = pytest.mark.parametrize("sort", [pytest.param(sort, marks=MARKS[sort]) for sort in SERVERS])

Begin = Callable[[], Door]


@pytest.fixture
def begin(url: str, sort: str, door: str) -> Iterator[Begin]:
    """Opens the user's transaction, when the test is ready for it."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(SERVERS[sort][door](url)))


# -- the user's own --------------------------------------------------------------------------------------------------


@every_door
def test_a_job_enqueued_first_goes_with_the_rollback(begin: Begin, app: Perdure, send: Any) -> None:
    door = begin()
    send.options(tx=door.tx).enqueue("a")
    door.rollback()
    assert names(app) == []


@every_door
def test_a_job_with_everything_stays_with_the_commit(begin: Begin, app: Perdure, send: Any) -> None:
    door = begin()
    job = send.options(tx=door.tx, tags=["x", "ü"], business_key="b\\'", idempotency_key="😀 ").enqueue(
        "żółw \\ ' \" 😀"
    )
    before = app.get(job)
    door.commit()
    assert (before, app.get(job), names(app)) == (None, job, ["żółw \\ ' \" 😀"])


@every_door
def test_a_job_can_be_edited_in_the_transaction_that_enqueued_it(begin: Begin, app: Perdure, send: Any) -> None:
    door = begin()
    job = send.options(tx=door.tx, tags=["old"]).enqueue("a")
    edited = app.edit(job, payload={"to": "b"}, tags=["new"], tx=door.tx)
    assert (edited.payload, edited.tags, app.get(job)) == ({"to": "b"}, ("new",), None)
    door.commit()
    assert app.get(job) == edited


@every_door
def test_a_job_between_the_users_rows_shares_their_fate(begin: Begin, app: Perdure, send: Any) -> None:
    door = begin()
    door.execute("INSERT INTO orders VALUES (1)")
    send.options(tx=door.tx).enqueue("a")
    door.execute("INSERT INTO orders VALUES (2)")
    door.commit()
    assert (names(app), ordered(app)) == (["a"], [1, 2])


@every_door
def test_a_refused_enqueue_leaves_the_users_transaction_standing(begin: Begin, app: Perdure, send: Any) -> None:
    send.options(business_key="b").enqueue("first")
    door = begin()
    door.execute("INSERT INTO orders VALUES (1)")
    with pytest.raises(KeyConflict):
        send.options(business_key="b", tx=door.tx).enqueue("second")
    door.commit()
    assert (names(app), ordered(app)) == (["first"], [1])


@every_door
def test_an_operation_that_breaks_off_halfway_leaves_nothing_of_it(begin: Begin, app: Perdure, send: Any) -> None:
    old = send.enqueue("old")
    send.options(idempotency_key="taken").enqueue("a")
    door = begin()
    door.execute("INSERT INTO orders VALUES (1)")
    with pytest.raises(KeyConflict):
        app.supersede(old, send.options(idempotency_key="taken").new("a"), tx=door.tx)
    door.commit()
    assert (names(app), ordered(app)) == (["old", "a"], [1])


@every_door
def test_a_key_taken_meanwhile_gives_the_job_that_has_it(begin: Begin, app: Perdure, send: Any) -> None:
    door = begin()
    door.execute("SELECT COUNT(*) FROM orders")
    first = send.options(idempotency_key="k").enqueue("a")
    again = send.options(idempotency_key="k", tx=door.tx).enqueue("a")
    door.commit()
    assert (again.id, again.deduplicated, names(app)) == (first.id, True, ["a"])


@every_door
def test_every_verb_takes_part(begin: Begin, app: Perdure, send: Any) -> None:
    jobs = app.enqueue_many([send.new(str(n)) for n in range(3)])
    door = begin()
    app.pause(jobs[0], tx=door.tx)
    app.move(jobs[2], before=jobs[1], tx=door.tx)
    app.supersede(jobs[1], send.new("other"), tx=door.tx)
    app.enqueue_many([send.new("3"), send.new("4")], tx=door.tx)
    door.rollback()
    assert list(app.jobs(state="queued", queue="mail")) == jobs


@every_door
def test_others_enqueue_into_the_same_queue_meanwhile(begin: Begin, app: Perdure, send: Any) -> None:
    send.enqueue("first")
    door = begin()
    send.options(tx=door.tx).enqueue("mine")
    send.enqueue("other")
    door.commit()
    assert names(app) == ["first", "mine", "other"]


@every_door
def test_a_lane_is_claimed_while_a_transaction_enqueues_into_it(begin: Begin, app: Perdure, send: Any) -> None:
    job = send.enqueue("first")
    door = begin()
    send.options(tx=door.tx).enqueue("mine")
    app.worker(queues=["mail"]).run(until_idle=True)
    ran = app.existing(job).state
    door.rollback()
    assert ran == "completed"


@every_server
def test_sqlalchemy_in_autocommit_mode_is_refused(sort: str, url: str, send: Any) -> None:
    engine_at: Any = on_postgres.engine_at if sort == "postgres" else on_mariadb.engine_at
    engine = engine_at(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection, pytest.raises(TransactionError) as refused:
        send.options(tx=connection).enqueue("a")
    engine.dispose()
    assert refused.value.code == "tx_not_open"


@every_server
def test_django_outside_atomic_is_refused(url: str, send: Any) -> None:
    with closing(django_connection(url)) as connection, pytest.raises(TransactionError) as refused:
        send.options(tx=connection).enqueue("a")
    assert refused.value.code == "tx_not_open"


@every_server
def test_something_else_is_refused(send: Any) -> None:
    with pytest.raises(TransactionError) as refused:
        send.options(tx=object()).enqueue("a")
    assert refused.value.code == "tx_unknown_type"


@every_server
def test_a_connection_to_another_database_is_refused(sort: str, send: Any, request: pytest.FixtureRequest) -> None:
    elsewhere = request.getfixturevalue(f"{sort}_server").new_database()
    plain = {"postgres": on_postgres.Psycopg, "mariadb": on_mariadb.Plain}[sort](elsewhere)
    with closing(plain), pytest.raises(StoreError) as missing:
        send.options(tx=plain.tx).enqueue("a")
    other = Perdure(elsewhere, auto_migrate=True)
    with other.transaction() as tx, pytest.raises(TransactionError) as wrong:
        send.options(tx=tx).enqueue("a")
    other.close()
    assert (missing.value.code, wrong.value.code) == ("schema_missing", "tx_wrong_database")


# -- app.transaction() -----------------------------------------------------------------------------------------------


@every_server
def test_rows_and_jobs_are_committed_together(app: Perdure, send: Any) -> None:
    with app.transaction() as tx:
        tx.execute("INSERT INTO orders VALUES (%s)", (1,))
        send.options(tx=tx).enqueue("a")
        send.enqueue("b")
        tx.execute("INSERT INTO orders VALUES (%(id)s)", {"id": 2})
        assert names(app) == ["a", "b"]
    assert (names(app), ordered(app)) == (["a", "b"], [1, 2])


@every_server
def test_an_error_rolls_back_rows_and_jobs(app: Perdure, send: Any) -> None:
    with pytest.raises(ZeroDivisionError), app.transaction() as tx:
        tx.execute("INSERT INTO orders VALUES (1)")
        send.enqueue("a")
        raise ZeroDivisionError
    assert names(app) == ordered(app) == []


@every_server
def test_a_transaction_inside_another_is_refused_or_part_of_it(app: Perdure, send: Any) -> None:
    with pytest.raises(ZeroDivisionError), app.transaction():
        with pytest.raises(StoreError) as refused, app.transaction():
            pass
        with app.store.transaction(join=True):
            send.enqueue("a")
        raise ZeroDivisionError
    assert (refused.value.code, names(app)) == ("tx_nested", [])


@every_server
def test_a_transaction_cannot_be_used_after_its_end(app: Perdure, send: Any) -> None:
    with app.transaction() as tx:
        pass
    with pytest.raises(TransactionError) as no_statement:
        tx.execute("SELECT 1")
    with pytest.raises(TransactionError) as no_job:
        send.options(tx=tx).enqueue("a")
    assert no_statement.value.code == no_job.value.code == "tx_closed"


@every_server
def test_tasks_begun_inside_share_the_transaction_one_call_at_a_time(app: Perdure, send: Any) -> None:
    async def enqueue_many() -> list[Any]:
        with app.transaction():
            taken = send.options(business_key="taken")
            good = [send.aenqueue("good") for _ in range(20)]
            bad = [taken.aenqueue("bad") for _ in range(20)]
            tasks = [task for pair in zip(good, bad, strict=True) for task in pair]
            return await asyncio.gather(*tasks, return_exceptions=True)

    send.options(business_key="taken").enqueue("first")
    answers = asyncio.run(enqueue_many())
    assert [type(answer) for answer in answers[1::2]] == [KeyConflict] * 20
    assert names(app) == ["first"] + ["good"] * 20
