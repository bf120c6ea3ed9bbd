"""What a worker does again and again walks an index, whatever PostgreSQL knows about the tables: each statement is
explained in the worker's own transaction. And the statements over arrays."""

from __future__ import annotations

import re
from typing import Any

import psycopg
import pytest

from perdure import Perdure
from perdure.store.engine import Statement
from perdure.store.postgres import pipeline
from perdure.store.postgres.arrays import array_form
from perdure.store.postgres.pipeline import Answer, Message, Pipeline
from perdure.store.postgres.statements import WRITING
from tests.app import by_hand
from tests.postgres.conftest import declare

pytestmark = pytest.mark.postgres

YOUNG = 2_000
HOT = re.compile(r"perdure\.(ready|run|job|outcome)\b")
WHOLE = re.compile(r"(Seq Scan|Bitmap Heap Scan) on (ready|run|job|outcome)\b|Hash Join|Merge Join")


class Plans:
    """The plans of all statements about the large tables that a store has run since."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}

    def note(self, sent: Pipeline, message: Message) -> None:
        if not HOT.search(message.sql.decode()) or message.sql.startswith(b"INSERT"):
            return
        setting = Answer()
        assert _exchange_one(sent, Message(b"SHOW transaction_read_only", steady=False), setting) is None
        if setting.rows == [("on",)]:
            return  # a look around: see test_postgres_schema
        answer = Answer()
        asked = message._replace(sql=b"EXPLAIN " + message.sql, steady=False)
        assert _exchange_one(sent, asked, answer) is None
        self.found[message.sql.decode()] = "\n".join(row[0] for row in answer.rows)


def _exchange_one(sent: Pipeline, message: Message, answer: Answer) -> Any:
    sent.add(message, answer)
    return _exchange(sent)


_exchange = Pipeline.exchange


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> Plans:
    """Each message is explained where it is sent: in its transaction, with its settings and values."""
    plans = Plans()

    def explaining(sent: Pipeline) -> Any:
        waiting, sent._waiting = sent._waiting, []
        for message, answer in waiting:
            if sent.connection.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS:
                plans.note(sent, message)
            failure = _exchange_one(sent, message, answer)
            if failure is not None:
                return failure
        return None

    monkeypatch.setattr(pipeline.Pipeline, "exchange", explaining)
    return plans


def fill(app: Perdure, count: int) -> None:
    send = declare(app)
    for start in range(0, count, 500):
        send.enqueue_many([{"to": str(n)} for n in range(start, start + 500)])


@pytest.mark.parametrize("state", ["empty", "vacuumed when empty", "young", "analysed"])
def test_a_turn_walks_indexes_only(app: Perdure, postgres_url: str, plans: Plans, state: str) -> None:
    app.store.upgrade()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("ALTER TABLE perdure.ready SET (autovacuum_enabled = off)")
        if state == "vacuumed when empty":
            connection.execute("VACUUM ANALYZE")
        fill(app, 500 if state == "empty" else YOUNG)
        if state == "analysed":
            connection.execute("VACUUM ANALYZE")
    plans.found.clear()
    app.worker(concurrency=20).run(until_idle=True)

    shown = "\n\n".join(plans.found.values())
    assert [name for name in ("ready_claim", "ready_pkey", "run_pkey") if f"using {name}" not in shown] == []
    assert [plan for plan in plans.found.values() if WHOLE.search(plan)] == []


def test_a_transaction_that_users_share_keeps_its_planner(app: Perdure) -> None:
    app.store.upgrade()
    with app.transaction() as tx:
        assert tx.execute("SHOW enable_seqscan").fetchone() == ("on",)


# -- statements over arrays ------------------------------------------------------------------------------------------

ARRAYS = [statement for statement in WRITING.values() if array_form(statement)]


def test_what_every_turn_of_a_worker_writes_is_written_with_arrays() -> None:
    usual = ("claim_ready", "insert_run", "delete_ready_of_run", "close_run_plainly", "insert_plain_outcome")
    more = ("insert_plain_job", "insert_plain_ready", "insert_job", "insert_ready", "update_ready")
    assert [name for name in (*usual, *more) if array_form(WRITING[name]) is None] == []


@pytest.mark.parametrize("statement", ARRAYS, ids=[statement.name for statement in ARRAYS])
def test_every_statement_over_arrays_has_the_types_of_its_columns(
    app: Perdure, postgres_url: str, statement: Statement
) -> None:
    """PostgreSQL finds out the types of a statement for one row by itself."""
    app.store.upgrade()
    form = array_form(statement)
    assert form is not None
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(b"PREPARE one AS " + statement.sql.encode())
        connection.execute(b"PREPARE many AS " + form.sql)
        found = connection.execute("SELECT name, parameter_types::text[] FROM pg_prepared_statements").fetchall()
    types: dict[str, list[str]] = dict(found)
    wanted = [name.replace("integer", "bigint").replace("smallint", "bigint") for name in types["one"]]
    assert types["many"] == [f"{name}[]" for name in form.types]
    assert list(form.types) == wanted


@pytest.mark.parametrize("count", [1, 2, 3, 500])
def test_jobs_of_a_list_are_written_as_they_were_given(app: Perdure, count: int) -> None:
    send = declare(app)
    jobs = send.enqueue_many([{"to": f"ü{n}\x00", "subject": "'{,}\"\\"} for n in range(count)])
    assert [(job.payload or {})["to"] for job in map(app.existing, jobs)] == [f"ü{n}\x00" for n in range(count)]
    assert {claim.live.job_id for claim in by_hand.claim(app, "mail", count)} == {job.id.bytes for job in jobs}
