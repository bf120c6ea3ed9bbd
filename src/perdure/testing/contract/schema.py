"""The store as a whole: transactions, upgrades, opening and closing. Protocol `StoreLifecycle`."""

from __future__ import annotations

from perdure.errors import KeyConflict, PerdureError, TransitionRefused
from perdure.job.reports import Completed, Failed
from perdure.job.states import State
from perdure.limit.key import key_of
from perdure.store.engine import UniqueViolation
from perdure.store.rows import Ended, Firing, LimitRule, LogLine, Missed, NewSlot
from perdure.testing.contract.case import each, raises
from perdure.testing.contract.rig import BROKEN, Rig
from perdure.testing.contract.schedules import saved
from perdure.testing.contract.states import in_state

UNIQUE = (
    ("job", "id"),
    ("job", "auto_retry_of"),
    ("ready", "job_id"),
    ("run", "id"),
    ("outcome", "job_id", "life"),
    ("queue", "name"),
    ("tag", "job_id", "tag"),
    ("job_log", "run_id", "line"),
    ("idempotency_key", "kind", "key"),
    ("business_key", "key"),
    ("edge", "depends_on", "job_id"),
    ("node", "id"),
    ("lock", "name"),
    ("schedule", "id"),
    ("schedule", "name"),
    ("slot", "schedule_id", "scheduled_for"),
    ("missed", "schedule_id", "first_at", "recorded_at"),
    ("declaration", "name", "node_id"),
    ("template", "id"),
    ("template", "name"),
    ("template_version", "template_id", "version"),
    ("reservation", "id"),
    ("reservation", "queue"),
    ("archive", "job_id"),
    ("flow", "id"),
    ("flow", "live_key"),
    ("tally", "flow_id", "node_id"),
    ("todo", "what", "subject", "cause"),
    ("limit_rule", "name"),
    ("limit_key", "key"),
    ("permit", "key", "holder"),
    ("start", "key", "at", "start_id"),
    ("limit_look", "look_id", "key"),
)
"""Each table and its unique columns."""


class ChangedMyMind(Exception):
    """Leaves a block."""


def test_calls_in_a_transaction_are_there_when_it_commits(rig: Rig) -> None:
    running = rig.start()
    with rig.store.transaction():
        job_id = rig.enqueue()
        rig.finish(running, Completed())

    assert rig.job(job_id).state == State.QUEUED
    assert rig.job(running.job_id).state == State.COMPLETED


def test_nothing_of_a_transaction_is_left_when_it_is_left_by_an_error(rig: Rig) -> None:
    running = rig.start(business_key=rig.key("b"))
    before = rig.everything()

    with raises(ChangedMyMind), rig.store.transaction():
        rig.enqueue(idempotency_key=rig.key("k"), tags=("t",))
        rig.finish(running, Completed())
        rig.store.pause_queue(rig.queue, rig.now)
        raise ChangedMyMind

    assert rig.everything() == before
    assert rig.enqueue(idempotency_key=rig.key("k"))


def test_calls_in_a_transaction_see_what_it_has_done(rig: Rig) -> None:
    with rig.store.transaction():
        job_id = rig.enqueue()
        claim = rig.claim_one()

        assert claim.job_id == job_id
        assert rig.job(job_id).state == State.RUNNING
        assert len(rig.runs(job_id)) == 1


def test_others_see_a_transaction_only_after_its_commit(rig: Rig) -> None:
    other = rig.opener(rig.url)
    new = rig.new()
    with rig.store.transaction() as tx:
        rig.store.within(tx).enqueue([new])
        seen_inside = _read_elsewhere(rig, new.id)

    assert not seen_inside
    assert other.get(new.id) is not None


def _read_elsewhere(rig: Rig, job_id: bytes) -> bool:
    """Read on another thread, which is not inside the transaction."""
    from concurrent.futures import ThreadPoolExecutor

    from perdure.ids import JobId

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(rig.store.get, JobId(job_id)).result() is not None


def test_a_refusal_inside_a_transaction_takes_nothing_else_with_it(rig: Rig) -> None:
    holder = rig.enqueue(business_key=rig.key("b"))
    with rig.store.transaction() as tx:
        first = rig.enqueue()
        with raises(KeyConflict):
            rig.store.within(tx).enqueue([rig.new(), rig.new(business_key=rig.key("b"))])
        with raises(TransitionRefused):
            rig.store.within(tx).delete(holder)
        second = rig.enqueue()

    assert rig.in_order() == [holder, first, second]


def test_a_transaction_inside_another_is_refused(rig: Rig) -> None:
    with rig.store.transaction():
        job_id = rig.enqueue()
        with raises(PerdureError, "tx_nested"), rig.store.transaction():
            pass

    assert rig.in_order() == [job_id]


def test_a_transaction_may_join_another_and_shares_its_fate(rig: Rig) -> None:
    before = rig.everything()
    with raises(ChangedMyMind), rig.store.transaction():
        with rig.store.transaction(join=True):
            rig.enqueue()
        raise ChangedMyMind

    assert rig.everything() == before


def test_a_closed_store_opens_again_when_it_is_used(rig: Rig) -> None:
    job_id = rig.enqueue()
    rig.store.close()
    rig.store.close()

    assert rig.job(job_id).state == State.QUEUED
    assert rig.claim_one().job_id == job_id


def test_what_one_store_writes_another_on_the_same_database_reads(rig: Rig) -> None:
    job_id = rig.enqueue()

    assert rig.opener(rig.url).get(job_id) == rig.job(job_id)


def test_an_upgrade_of_the_newest_schema_does_nothing(rig: Rig) -> None:
    rig.enqueue()
    before = rig.everything()

    assert rig.store.upgrade()
    assert rig.store.upgrade() == rig.store.upgrade()
    assert rig.everything() == before


@each(*UNIQUE)
def test_no_two_rows_have_the_same_key(rig: Rig, table: str, *columns: str) -> None:
    _two_of_each(rig)
    before = rig.everything()
    # in two steps: MySQL reads no table in a subquery of its own UPDATE
    first = "SELECT f.v FROM (SELECT {} AS v FROM {{{}}} ORDER BY {} LIMIT 1) AS f"
    values = [first.format(_known(column), table, ", ".join(columns)) for column in columns]
    same = ", ".join(f"{column} = ({value})" for column, value in zip(columns, values, strict=True))

    with raises(UniqueViolation):
        rig.execute(f"UPDATE {{{table}}} SET {same}")  # noqa: S608 - names of our own

    assert rig.everything() == before
    assert len(rig.tables()[table]) >= 2


def _known(column: str) -> str:
    """A value of it that every row has."""
    return "id" if column == "auto_retry_of" else column


def _two_of_each(rig: Rig) -> None:
    """At least two rows in every table."""
    for name in ("a", "b"):
        queue = rig.key(name)
        rig.store.enqueue(
            [rig.new(queue=queue, business_key=queue, idempotency_key=queue, tags=("x", "y"))],
        )
        [claim] = rig.claim(queue=queue, node=rig.register())
        rig.store.append_log([LogLine(claim.run_id, 1, claim.job_id, rig.now, "INFO", "line", None)])
        rig.store.take_lock(queue, "owner", rig.now, 60_000_000)
        rig.store.declare(rig.register(), {name: "digest"}, rig.now)
        missed = Missed(rig.now, rig.now, 1, "misfired", rig.now)
        taken = NewSlot(rig.now, None, None, None)
        rig.store.fire([Firing(saved(rig, name), [taken], [missed], None)], None, rig.now)
        rig.store.put_template(rig.new_template(queue), rig.now)
        ended = in_state(rig, State.CANCELLED)
        rig.store.archive([Ended(ended, 1, "cancelled", rig.now, None, rig.kind)], rig.now)
        in_state(rig, State.BLOCKED)
        rig.finish(rig.start(as_new_job=True), Failed(BROKEN, 60_000_000))
        rig.reserve(queue)
        rate = LimitRule(rig.key(f"rate-{name}"), "sliding", 5, 1_000_000)
        rig.store.declare_limits([rate], [queue], rig.now)
        rig.store.set_limit(queue, 2, key_of(queue, 1), rig.now)
        rig.store.set_limit(queue, 2, None, rig.now)
        for key in (queue, rate.name):
            rig.store.take_hold(key, 1, rig.ids.new(), rig.now, 60_000_000)
        _, [member, other] = rig.start_flow(2, key=queue)
        rig.pause(other)
        rig.cancel(member)
