"""Connections to PostgreSQL: lost, refused, forked, and what users are told."""

from __future__ import annotations

import gc
import os
import threading
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from perdure import ConfigError, DatabaseBusy, DatabaseUnavailable, Perdure, StoreError
from perdure.store.engine import Call, Op, Serialization
from perdure.store.open import open_store
from perdure.store.pool import SIZE
from perdure.store.protocols import ConnectionLost
from perdure.store.server import ATTEMPTS
from tests.app import by_hand
from tests.postgres.conftest import declare

pytestmark = pytest.mark.postgres

KILL = "PERFORM pg_terminate_backend(pg_backend_pid());"
GIVE_WAY = "RAISE EXCEPTION 'not now' USING ERRCODE = '40P01';"


@pytest.fixture
def connection(app: Perdure, postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    app.store.upgrade()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        yield connection


def on_insert(connection: psycopg.Connection[Any], action: str, *, times: int, at_commit: bool = False) -> None:
    """Let the first so many inserts of a job come to grief; a sequence counts them, whatever is rolled back."""
    connection.execute("CREATE SEQUENCE tries")
    connection.execute(
        f"""CREATE FUNCTION grief() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
            IF nextval('tries') <= {times} THEN {action} END IF; RETURN NULL; END$$""".encode()
    )
    deferred = "CONSTRAINT TRIGGER grief AFTER INSERT ON perdure.job DEFERRABLE INITIALLY DEFERRED"
    trigger = deferred if at_commit else "TRIGGER grief AFTER INSERT ON perdure.job"
    connection.execute(f"CREATE {trigger} FOR EACH ROW EXECUTE FUNCTION grief()".encode())


def tries(connection: psycopg.Connection[Any]) -> Any:
    row = connection.execute("SELECT last_value FROM tries").fetchone()
    return None if row is None else row[0]


def backend(app: Perdure) -> Any:
    """The server process behind the connection that the app uses next."""
    with app.transaction() as tx:
        return tx.execute("SELECT pg_backend_pid()").fetchone()[0]


# -- lost ------------------------------------------------------------------------------------------------------------


def test_connections_that_died_while_idle_are_replaced(
    app: Perdure, send: Any, connection: psycopg.Connection[Any]
) -> None:
    first = send.enqueue("a")
    connection.execute("SELECT pg_terminate_backend(%s)", (backend(app),))
    assert app.get(first) == first
    connection.execute("SELECT pg_terminate_backend(%s)", (backend(app),))
    with app.transaction():
        send.enqueue("b")
    assert len(list(app.jobs())) == 2


@pytest.mark.parametrize("action", [KILL, GIVE_WAY], ids=["connection lost", "deadlock"])
def test_what_ended_before_its_commit_is_run_again(
    app: Perdure, send: Any, connection: psycopg.Connection[Any], action: str
) -> None:
    on_insert(connection, action, times=2)
    job = send.options(idempotency_key="k", tags=["t"]).enqueue("a")
    assert (tries(connection), list(app.jobs())) == (3, [job])


def test_a_connection_lost_during_the_commit_is_not_tried_again(
    app: Perdure, send: Any, connection: psycopg.Connection[Any]
) -> None:
    on_insert(connection, KILL, times=1, at_commit=True)
    with pytest.raises(ConnectionLost) as lost:
        send.enqueue("a")
    assert (lost.value.code, tries(connection)) == ("connection_lost", 1)
    assert send.enqueue("b").state == "queued"


def test_a_deadlock_found_at_the_commit_is_tried_again(
    app: Perdure, send: Any, connection: psycopg.Connection[Any]
) -> None:
    on_insert(connection, GIVE_WAY, times=1, at_commit=True)
    job = send.enqueue("a")
    assert (tries(connection), list(app.jobs())) == (2, [job])


def test_nobody_tries_for_ever(app: Perdure, send: Any, connection: psycopg.Connection[Any]) -> None:
    on_insert(connection, GIVE_WAY, times=1_000)
    with pytest.raises(Serialization):
        send.enqueue("a")
    assert (tries(connection), list(app.jobs())) == (ATTEMPTS, [])


def test_a_connection_that_is_always_lost_is_a_database_out_of_reach(
    app: Perdure, send: Any, connection: psycopg.Connection[Any]
) -> None:
    on_insert(connection, KILL, times=1_000)
    with pytest.raises(DatabaseUnavailable) as gone:
        send.enqueue("a")
    assert (gone.value.code, tries(connection)) == ("database_unreachable", ATTEMPTS)


def test_a_frozen_process_holds_its_locks_for_a_limited_time(app: Perdure) -> None:
    with app.transaction() as tx:
        assert tx.execute("SHOW idle_in_transaction_session_timeout").fetchone() == ("1min",)


# -- refused ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ann:hunter2@localhost:1/jobs?connect_timeout=2",
        "postgresql://ann:hunter2@/jobs?host=/nowhere",
        "postgresql://ann@localhost:1/jobs?password=hunter2",
        "postgresql://ann:hunter2@x:hunter2@localhost/jobs",
        "postgresql://ann:hunter2@localhost/jobs?nonsense=1",
    ],
)
def test_an_unreachable_server_is_named_without_its_password(url: str) -> None:
    with pytest.raises((DatabaseUnavailable, ConfigError)) as refused:
        open_store(url).upgrade()
    assert refused.value.code in {"database_unreachable", "url_invalid"}
    assert "hunter2" not in "".join(traceback.format_exception(refused.value)).replace(url, "")
    assert "hunter2" not in repr(Perdure(url))


def test_a_server_that_does_not_run_is_said_once() -> None:
    with pytest.raises(DatabaseUnavailable) as refused:
        open_store("postgresql://ann@127.0.0.1:1/jobs").upgrade()
    assert refused.value.message.endswith(
        "port 1 failed: Connection refused; check that the server runs, and host, port, user and password of the"
        " database URL"
    )


def test_a_database_that_is_not_there_is_named(postgres_url: str) -> None:
    with pytest.raises(DatabaseUnavailable, match="nowhere") as refused:
        open_store(postgres_url.replace("/postgres?", "/nowhere?")).upgrade()
    assert refused.value.code == "database_unreachable"


def test_a_key_held_for_too_long_is_a_busy_database(app: Perdure, send: Any, other: Perdure) -> None:
    with app.transaction():
        send.options(business_key="b").enqueue("a")
        with pytest.raises(DatabaseBusy):
            declare(other).options(business_key="b").enqueue("a")
    assert len(list(app.jobs())) == 1


def test_a_value_that_does_not_fit_is_refused(app: Perdure, send: Any) -> None:
    send.enqueue("a")
    [taken] = by_hand.claim(app, "mail")
    assert taken.live.node_id is not None
    with pytest.raises(StoreError) as refused:
        app.store.beat(taken.live.node_id, type(app.clock.now())(2**70))
    assert refused.value.code == "value_invalid"


def test_half_a_surrogate_pair_is_refused(app: Perdure) -> None:
    with pytest.raises(StoreError) as refused:
        app.store.take_lock("\ud800", "ann", app.clock.now(), 1)
    assert refused.value.code == "value_invalid"


def test_a_normal_durability_does_not_wait_for_the_disk(app: Perdure, postgres_url: str) -> None:
    app.store.upgrade()
    lax = Perdure(postgres_url, durability="normal")
    with lax.transaction() as tx, app.transaction() as strict:
        assert tx.execute("SHOW synchronous_commit").fetchone() == ("off",)
        assert strict.execute("SHOW synchronous_commit").fetchone() == ("on",)
    lax.close()


def test_full_durability_flushes_on_a_server_that_would_not(
    connection: psycopg.Connection[Any], postgres_url: str
) -> None:
    connection.execute("ALTER DATABASE postgres SET synchronous_commit = off")
    strict = Perdure(postgres_url)
    try:
        with strict.transaction() as tx:
            assert tx.execute("SHOW synchronous_commit").fetchone() == ("on",)
    finally:
        strict.close()
        connection.execute("ALTER DATABASE postgres RESET synchronous_commit")


# -- the pool --------------------------------------------------------------------------------------------------------


def refused() -> Op[None]:
    yield Call("list_nodes", {"page": 1})
    raise StoreError("refused")


def test_one_thread_needs_one_connection(app: Perdure, send: Any) -> None:
    pids = set()
    for _ in range(3):
        send.enqueue("a")
        list(app.jobs())
        with pytest.raises(StoreError, match="refused"):
            app.store.runner.write(refused)  # type: ignore[attr-defined]  # beneath the protocol
        pids.add(backend(app))
    assert len(pids) == 1


def test_a_process_has_a_limited_number_of_connections(
    app: Perdure, send: Any, connection: psycopg.Connection[Any]
) -> None:
    with ThreadPoolExecutor(40) as threads:
        list(threads.map(send.enqueue, [str(n) for n in range(200)]))
    query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'perdure'"
    row = connection.execute(query).fetchone()
    assert row is not None
    assert 1 <= row[0] <= SIZE


def test_nobody_waits_for_ever_for_a_connection(other: Perdure) -> None:
    release = threading.Event()
    held = threading.Barrier(SIZE + 1)

    def hold() -> None:
        with other.transaction():
            held.wait()
            release.wait()

    with ThreadPoolExecutor(SIZE) as threads:
        holders = [threads.submit(hold) for _ in range(SIZE)]
        held.wait()
        try:
            with pytest.raises(DatabaseBusy, match="connections"):
                declare(other).enqueue("a")
        finally:
            release.set()
    assert [holder.result() for holder in holders] == [None] * SIZE
    assert declare(other).enqueue("b").state == "queued"


def test_a_closed_app_opens_again(app: Perdure, send: Any, connection: psycopg.Connection[Any]) -> None:
    send.enqueue("a")
    app.close()
    query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'perdure'"
    while connection.execute(query).fetchone() != (0,):
        pass
    send.enqueue("b")
    assert len(list(app.jobs())) == 2


def test_opening_starts_no_thread(app: Perdure, send: Any) -> None:
    before = threading.enumerate()
    send.enqueue("a")
    assert threading.enumerate() == before


# -- fork ------------------------------------------------------------------------------------------------------------


def in_child(work: Any) -> str:
    """What a forked child's work answers, or how it failed."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = str(work())
        except BaseException as error:  # noqa: BLE001 - told to the parent
            answer = repr(error)
        os.write(write, answer.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return answer


def test_a_forked_child_uses_connections_of_its_own(app: Perdure, send: Any) -> None:
    send.enqueue("parent")
    ours = backend(app)

    def child() -> Any:
        send.enqueue("child")
        theirs = backend(app)
        app.close()
        gc.collect()
        return theirs

    theirs = in_child(child)
    assert theirs.isdigit()
    assert theirs != str(ours) == str(backend(app))
    assert [job.payload for job in app.jobs(state="queued", queue="mail")] == [{"to": "parent"}, {"to": "child"}]


def test_a_child_forked_inside_a_transaction_leaves_it_alone(app: Perdure, send: Any) -> None:
    def child() -> str:
        job = send.enqueue("child")
        return f"{job.state} outside"

    send.enqueue("first of its queue")
    with app.transaction() as tx:
        send.enqueue("parent")
        assert in_child(child) == "queued outside"
        assert "in the process that opened it" in in_child(lambda: tx.execute("ROLLBACK TO SAVEPOINT x"))
        send.enqueue("parent again")
    assert len(list(app.jobs())) == 4
