"""What is told waits for the next question or the commit, and travels with it: order, errors, guards, what is lost."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from perdure import Limit, Perdure, StoreError
from perdure.clock import ServerClock
from perdure.ids import JobId, NodeId, RunId
from perdure.job.model import Claim
from perdure.job.reports import Completed, Finish
from perdure.store.engine import BEGIN_PART, UNDO_PART, Call, Op, Outrun, Tell, UniqueViolation
from perdure.store.postgres.driver import PostgresDriver
from perdure.store.postgres.pipeline import Pipeline
from perdure.store.postgres.statements import WRITING
from perdure.store.protocols import ConnectionLost
from perdure.store.rows import Claimer, Lane, LimitRule, NewNode, Turn
from tests.postgres.test_postgres_connection import KILL, on_insert, tries

pytestmark = pytest.mark.postgres

NOBODY = bytes(15) + b"\x01"


@pytest.fixture
def connection(app: Perdure, postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    app.store.upgrade()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def driver(connection: psycopg.Connection[Any]) -> Iterator[PostgresDriver]:
    """In a transaction that is rolled back."""
    connection.execute("BEGIN")
    yield PostgresDriver(Pipeline(connection, prepares=True), WRITING)
    connection.execute("ROLLBACK")


@pytest.fixture
def exchanges(monkeypatch: pytest.MonkeyPatch) -> list[list[bytes]]:
    """The statements of each exchange."""
    seen: list[list[bytes]] = []
    exchange = Pipeline.exchange

    def noting(sent: Pipeline) -> Any:
        if sent._waiting:
            seen.append([message.sql for message, _ in sent._waiting])
        return exchange(sent)

    monkeypatch.setattr(Pipeline, "exchange", noting)
    return seen


# -- how often -------------------------------------------------------------------------------------------------------


def test_a_turn_takes_two_exchanges(app: Perdure, send: Any, exchanges: list[list[bytes]]) -> None:
    send.enqueue_many([{"to": str(n)} for n in range(20)])
    node = NodeId(app.ids.new())
    app.store.register(NewNode(node, app.clock.now()))
    first = app.store.turn(wanted(app, node, []), app.clock.now())
    exchanges.clear()
    assert len(app.store.turn(wanted(app, node, first.claims), app.clock.now()).claims) == 10
    assert len(exchanges) == 2
    assert exchanges[0][0].startswith(b"BEGIN")
    assert exchanges[1][-1] == b"COMMIT"


def test_a_turn_of_plain_jobs_has_as_many_statements_for_one_as_for_a_hundred(
    app: Perdure, send: Any, exchanges: list[list[bytes]]
) -> None:
    """And as if there were no flows and limits: five writes, and two reads, of which one is about the lane."""
    node = NodeId(app.ids.new())
    app.store.register(NewNode(node, app.clock.now()))
    for count in (1, 100):
        send.enqueue_many([{"to": str(n)} for n in range(2 * count)])
        first = app.store.turn(wanted(app, node, [], count), app.clock.now())
        exchanges.clear()
        assert len(app.store.turn(wanted(app, node, first.claims, count), app.clock.now()).claims) == count
        verbs = [[sql.split()[0].decode() for sql in messages] for messages in exchanges]
        assert verbs == [
            ["BEGIN", "SELECT", "SAVEPOINT", "WITH", "WITH", "INSERT", "SELECT", "SELECT"],
            ["WITH", "INSERT", "RELEASE", "COMMIT"],
        ]


def test_a_turn_of_limited_jobs_takes_two_exchanges_more(app: Perdure, exchanges: list[list[bytes]]) -> None:
    """One locks the keys and reads what is free of them, and what their limits mean; one reads the line."""

    @app.job(queue="mail", limit=Limit("mail", 10))
    def post() -> None: ...

    app.store.declare_limits([LimitRule("mail", "at_once", 10)], ["post"], app.clock.now())
    post.enqueue_many([{}] * 40)
    node = NodeId(app.ids.new())
    app.store.register(NewNode(node, app.clock.now()))
    held = app.store.turn(wanted(app, node, []), app.clock.now()).claims
    exchanges.clear()

    assert len(app.store.turn(wanted(app, node, held), app.clock.now()).claims) == len(held) == 10
    verbs = [[sql.split()[0].decode() for sql in messages] for messages in exchanges]
    assert verbs[1:] == [
        ["SAVEPOINT", "WITH", "SELECT", "SELECT", "SELECT"],
        ["RELEASE", "SELECT"],
        ["INSERT", "WITH", "INSERT", "RELEASE", "COMMIT"],
    ]


def wanted(app: Perdure, node: NodeId, held: list[Claim], room: int = 10) -> Turn:
    run_ids = [RunId(run_id) for run_id in app.ids.new_many(room)]
    ends = [Finish(claim.live, Completed(), JobId(app.ids.new())) for claim in held]
    return Turn(ends, lanes=[Lane("mail", room)], claimer=Claimer(node, app.kinds.versions(), run_ids, 60_000_000))


def test_an_enqueue_takes_two_exchanges_however_many_jobs_it_has(
    app: Perdure, send: Any, exchanges: list[list[bytes]]
) -> None:
    send.enqueue("the first of its queue")
    exchanges.clear()
    send.enqueue("a")
    send.enqueue_many([{"to": "a"}] * 300)
    assert [len(messages) for messages in exchanges] == [3, 3, 3, 3]


def test_the_time_is_asked_for_in_an_exchange_that_is_made_anyway(
    app: Perdure, send: Any, exchanges: list[list[bytes]]
) -> None:
    send.enqueue("the first of its queue")
    exchanges.clear()
    assert isinstance(app.clock, ServerClock)
    app.clock._ask_at_ns = 0  # as after a minute
    send.enqueue("a")
    assert [len(messages) for messages in exchanges] == [4, 3]
    assert [sql for sql in exchanges[0] if b"clock_timestamp" in sql]
    assert not app.clock.is_due


# -- order, answers, errors ------------------------------------------------------------------------------------------


def test_what_was_told_is_run_before_the_next_question_and_answered_with_it(driver: PostgresDriver) -> None:
    told = driver.tell(Tell("insert_tag", [(NOBODY, "a"), (NOBODY, "b")]))
    with pytest.raises(AttributeError):
        told.changed  # noqa: B018 - not known yet
    assert driver.execute(("delete_tags", {"job_id": NOBODY})).changed == 2
    assert told.changed == 2


def test_after_an_error_nothing_is_run_and_a_part_can_be_undone(driver: PostgresDriver) -> None:
    edge = (NOBODY, NOBODY, "end", "waiting")
    driver.execute(("insert_edge", edge))
    driver.tell(BEGIN_PART)
    driver.tell(Tell("insert_tag", (NOBODY, "before")))
    driver.tell(Tell("insert_edge", edge))
    driver.tell(Tell("remove_waits_of_flow", {"id": NOBODY}))
    with pytest.raises(UniqueViolation):
        driver.execute(("delete_tags", {"job_id": NOBODY}))
    driver.tell(UNDO_PART)
    assert driver.execute(("delete_tags", {"job_id": NOBODY})).changed == 0
    assert driver.execute(("remove_waits_of_flow", {"id": NOBODY})).changed == 1


def test_a_statement_that_was_skipped_before_it_was_prepared_is_prepared_the_next_time(driver: PostgresDriver) -> None:
    edge = (NOBODY, NOBODY, "end", "waiting")
    driver.execute(("insert_edge", edge))
    driver.tell(BEGIN_PART)
    driver.tell(Tell("insert_edge", edge))
    for _ in range(2):
        with pytest.raises(UniqueViolation):
            driver.execute(("insert_tag", (NOBODY, "a")))
        driver.tell(UNDO_PART)
        driver.tell(Tell("insert_edge", edge))
    driver.drop()
    driver.execute(UNDO_PART[:2])
    assert driver.execute(("insert_tag", (NOBODY, "a"))).changed == 1


def refused() -> Op[None]:
    yield Call("insert_edge", (NOBODY, NOBODY, "end", "waiting"))
    yield Tell("insert_edge", (NOBODY, NOBODY, "end", "waiting"))
    raise StoreError("refused")


def test_what_a_failed_operation_has_told_is_not_sent_with_its_undoing(app: Perdure) -> None:
    app.store.upgrade()
    with app.transaction() as tx:
        with pytest.raises(StoreError, match="refused"):
            app.store.runner.write(refused)  # type: ignore[attr-defined]  # beneath the protocol
        assert tx.execute("SELECT COUNT(*) FROM perdure.edge").fetchone() == (0,)


@pytest.mark.parametrize("rows", [1, 2, 30])
def test_a_guard_that_fails_stops_all_that_is_behind_it(driver: PostgresDriver, rows: int) -> None:
    keys = [(f"key {n}", NOBODY) for n in range(rows)]
    driver.execute(("reserve_business_key", keys[1:]))
    driver.tell(BEGIN_PART)
    driver.tell(Tell("free_business_key", keys, rows))
    with pytest.raises(Outrun):
        driver.execute(("insert_tag", (NOBODY, "behind")))
    driver.tell(UNDO_PART)
    assert driver.execute(("delete_tags", {"job_id": NOBODY})).changed == 0
    assert driver.execute(("free_business_key", keys)).changed == rows - 1


def test_a_statement_that_the_user_deallocated_is_prepared_again(app: Perdure, send: Any) -> None:
    send.enqueue("a")
    with app.transaction() as tx:
        tx.execute("DEALLOCATE ALL")
    send.enqueue("b")
    assert len(list(app.jobs())) == 2


def test_what_is_prepared_outlives_a_users_drop_in_the_middle_of_a_transaction(app: Perdure, send: Any) -> None:
    """psycopg prepares what it has seen five times, and removes all that is prepared after a DROP."""
    with app.transaction() as tx:
        send.enqueue("a")
        for _ in range(6):
            tx.execute("SELECT 1")
        tx.execute("CREATE TABLE passing (n int)")
        tx.execute("DROP TABLE passing")
        tx.execute("SELECT 2")
        send.enqueue("b")
    assert len(list(app.jobs())) == 2


# -- the commit ------------------------------------------------------------------------------------------------------


def guarded_at_the_end(rounds: list[int]) -> Op[None]:
    rounds.append(1)
    yield Call("insert_tag", (NOBODY, "a"))
    yield Tell("delete_tags", {"job_id": NOBODY}, 2 - len(rounds[2:]))


def test_a_guard_that_fails_with_the_commit_commits_nothing_and_the_operation_runs_again(
    app: Perdure, connection: psycopg.Connection[Any]
) -> None:
    rounds: list[int] = []
    app.store.runner.write(lambda: guarded_at_the_end(rounds))  # type: ignore[attr-defined]  # beneath the protocol
    assert len(rounds) == 3
    assert connection.execute("SELECT COUNT(*) FROM perdure.tag").fetchone() == (0,)


def test_a_connection_lost_before_a_commit_that_was_sent_with_it_is_tried_again(
    app: Perdure, send: Any, connection: psycopg.Connection[Any]
) -> None:
    """The server says which statement was the last, so it is known that the COMMIT behind it was not run."""
    send.enqueue("the first of its queue")
    on_insert(connection, KILL, times=2)
    job = send.enqueue("a")
    assert (tries(connection), len(list(app.jobs()))) == (3, 2)
    assert app.get(job) == job


def test_a_reply_to_commit_that_does_not_come_is_told_as_unknown(
    app: Perdure, send: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    send.enqueue("the first of its queue")
    exchange = Pipeline.exchange

    def cut(sent: Pipeline) -> Any:
        if sent._waiting and sent._waiting[-1][0].sql == b"COMMIT":
            sent.connection.pgconn.finish()
        return exchange(sent)

    monkeypatch.setattr(Pipeline, "exchange", cut)
    with pytest.raises(ConnectionLost, match="may have been written"):
        send.enqueue("a")
    monkeypatch.undo()
    assert len(list(app.jobs())) == 1


def test_idle_connections_that_have_all_died_are_replaced_at_once(
    app: Perdure, send: Any, connection: psycopg.Connection[Any]
) -> None:
    with ThreadPoolExecutor(20) as threads:
        list(threads.map(send.enqueue, [str(n) for n in range(100)]))
    end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'perdure'"
    connection.execute(end)
    assert send.enqueue("a").state == "queued"


# -- the user's connection -------------------------------------------------------------------------------------------


def test_an_error_on_the_users_connection_leaves_it_usable(app: Perdure, send: Any, postgres_url: str) -> None:
    app.store.upgrade()
    with psycopg.connect(postgres_url) as own:
        with pytest.raises(StoreError):
            app.store.within(own).take_lock("\ud800", "ann", app.clock.now(), 1)
        send.options(tx=own).enqueue("a")
        assert own.pgconn.pipeline_status == psycopg.pq.PipelineStatus.OFF
    assert len(list(app.jobs())) == 1


def test_nothing_is_prepared_on_the_users_connection(app: Perdure, send: Any, postgres_url: str) -> None:
    app.store.upgrade()
    with psycopg.connect(postgres_url) as own:
        for _ in range(7):
            send.options(tx=own).enqueue("a")
        ours = "SELECT COUNT(*) FROM pg_prepared_statements WHERE name LIKE 'perdure%'"
        assert own.execute(ours).fetchone() == (0,)
