"""What a worker does again and again walks an index, whatever PostgreSQL knows about the tables: each statement is
explained in the worker's own transaction. And the statements over arrays."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from perdure import Limit, Perdure
from perdure.store.engine import Statement
from perdure.store.postgres import pipeline
from perdure.store.postgres.arrays import array_form
from perdure.store.postgres.pipeline import Answer, Message, Pipeline
from perdure.store.postgres.statements import WRITING
from perdure.store.tables import tables
from tests.app import by_hand
from tests.postgres.conftest import declare

pytestmark = pytest.mark.postgres

YOUNG = 2_000
SMALL = {"declaration", "limit_look", "limit_rule", "lock", "node", "queue", "reservation", "todo"}
LARGE = "|".join(sorted(tables().keys() - SMALL))
"""Those that grow with the jobs. Not so: what is declared or alive at the moment, of which there are some dozens, and
the two lists of work (`todo`, `limit_look`), of which a turn takes any entries."""
HOT = re.compile(rf"perdure\.({LARGE})\b")
WALKED = rf"Scan (Backward )?using (?!(?:ready_running|run_pkey)\b)\w+ on ({LARGE})\b.*\n(?!\s*Index Cond)"
"""From end to end of an index: what the server does rather than to read a table, which the worker forbids it. Those
that run are few, and of the few runs in a test the server rather reads all."""
WHOLE = re.compile(rf"(Seq Scan|Bitmap Heap Scan) on ({LARGE})\b|Hash Join|Merge Join|{WALKED}")


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


@pytest.mark.parametrize("state", ["young", "analysed"])
def test_a_turn_with_limits_walks_indexes_only(app: Perdure, postgres_url: str, plans: Plans, state: str) -> None:
    @app.job(limit=[Limit("tenant", 2, by="tenant"), Limit("all", 30)])
    def crunch(tenant: int) -> None: ...

    app.store.upgrade()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("ALTER TABLE perdure.ready SET (autovacuum_enabled = off)")
        for _ in range(YOUNG // 500):
            crunch.enqueue_many([{"tenant": number % 50} for number in range(500)])
        if state == "analysed":
            connection.execute("VACUUM ANALYZE")
    plans.found.clear()
    app.worker(concurrency=20).run(until_idle=True)

    shown = "\n\n".join(plans.found.values())
    assert [name for name in ("ready_awake", "ready_line", "ready_pkey") if f"using {name}" not in shown] == []
    assert [plan for plan in plans.found.values() if WHOLE.search(plan)] == []
    assert {job.state for job in app.jobs()} == {"completed"}


@pytest.fixture
def shop(app: Perdure) -> Perdure:
    """Many jobs that wait for others, flows and keys: some that have ended, some that have not."""
    app.store.upgrade()

    @app.job
    def step(number: int = 0) -> int:
        return number

    for _ in range(4):
        step.enqueue_many([{"number": number} for number in range(500)])
        app.group([step.new(number) for number in range(100)], mode="sequential")
    keyed = [step.options(business_key=f"b{n}", idempotency_key=f"i{n}").new(n) for n in range(500)]
    app.enqueue_many(keyed)
    return app


def ends_with_dependents(shop: Perdure) -> None:
    """Members of flows end, and what waits for them goes on."""
    for _ in range(3):
        with shop.batch("all", on_end=shop.kinds.get("step").new()) as batch:
            first = batch.add(shop.kinds.get("step").new())
            batch.add_many([shop.kinds.get("step").new(n) for n in range(20)])
            batch.add(shop.kinds.get("step").new(), after=first)
    shop.worker(concurrency=20, schedules=False).run(until_idle=True)
    assert {flow.state for flow in shop.flows.list()} == {"completed"}


def enqueues_with_keys(shop: Perdure) -> None:
    step = shop.kinds.get("step")
    step.options(business_key="b7", conflict="return").enqueue(7)
    assert step.options(idempotency_key="i8", business_key="b8").enqueue(8).deduplicated
    step.options(idempotency_key="new", business_key="new").enqueue(8)


def enqueues_after_others(shop: Perdure) -> None:
    step = shop.kinds.get("step")
    first = step.enqueue(1)
    for parent in (first, next(iter(shop.flows.list()))):
        step.options(after=parent).enqueue(2)


def rescues(shop: Perdure) -> None:
    by_hand.claim(shop, "default", 20)
    [node] = [found.id for found in shop.store.nodes(10) if found.stopped_at is None]
    shop.store.stop(node, "crash", shop.clock.now())
    with shop.worker().running():
        shop.wait(shop.enqueue("step"), timeout=30)


def retries(shop: Perdure) -> None:
    job = shop.enqueue("step")
    shop.cancel(job)
    shop.retry(job)
    flow = shop.chain(*[shop.kinds.get("step").new(n) for n in range(3)])
    shop.cancel(flow)
    shop.worker().run(until_idle=True)
    shop.retry(flow)


VERBS = [ends_with_dependents, enqueues_with_keys, enqueues_after_others, rescues, retries]


@pytest.mark.parametrize("analysed", [False, True])
@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__)
def test_no_verb_reads_a_large_table_as_a_whole(
    shop: Perdure, postgres_url: str, plans: Plans, verb: Callable[[Perdure], None], analysed: bool
) -> None:
    if analysed:
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
    plans.found.clear()

    verb(shop)

    assert plans.found
    assert [f"{sql}\n{plan}" for sql, plan in plans.found.items() if WHOLE.search(plan)] == []


def test_a_transaction_that_users_share_keeps_its_planner(app: Perdure) -> None:
    app.store.upgrade()
    with app.transaction() as tx:
        assert tx.execute("SHOW enable_seqscan").fetchone() == ("on",)


# -- statements over arrays ------------------------------------------------------------------------------------------

ARRAYS = [statement for statement in WRITING.values() if array_form(statement)]


def test_what_every_turn_of_a_worker_writes_is_written_with_arrays() -> None:
    usual = ("claim_ready", "insert_run", "delete_ready_of_run", "close_run_plainly", "insert_plain_outcome")
    more = ("insert_plain_job", "insert_plain_ready", "insert_job", "insert_ready", "update_ready")
    limited = ("insert_limited_job", "insert_limited_ready", "insert_permit", "free_permit")
    assert [name for name in (*usual, *more, *limited) if array_form(WRITING[name]) is None] == []


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
