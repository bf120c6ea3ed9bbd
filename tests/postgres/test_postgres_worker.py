"""A worker on PostgreSQL: values and rows that it cannot have, and how much it takes in a turn."""

from __future__ import annotations

import pytest

from perdure import JobContext, Perdure
from perdure.clock import Micros
from perdure.ops.doctor import examine, is_healthy
from perdure.store.rows import Turn, Turned
from perdure.store.store import SqlStore
from tests.worker.bodies import declared, last_run, messages

pytestmark = pytest.mark.postgres


def work(app: Perdure) -> None:
    assert app.worker(queues=["default"]).run(until_idle=True) == 0
    assert is_healthy(examine(app.store))


def test_what_no_database_holds_is_replaced(app: Perdure) -> None:
    def body(ctx: JobContext) -> None:
        ctx.log.info("a\0b\ud800")
        ctx.progress(1, note="a\0b")
        ctx.artifact("a\0b")
        raise OSError("a\0b\ud800")

    job = declared(app, "plain", body, retry=1).enqueue()
    work(app)
    assert messages(app, job) == ["a�b?"]
    run = last_run(app, job)
    assert (run.error_message, run.artifacts, run.metrics["progress"]["note"]) == ("a�b?", ["a�b"], "a�b")


# -- rows that somebody else has written into ------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["queued", "scheduled"])
@pytest.mark.parametrize(
    "change",
    [
        "timeout_ms = 4611686018427387904",
        "attempts = -1",
        "attempts = 2147483647",
        "max_attempts = 0",
        "crashes = -1",
        "version = 9223372036854775807",
        "run_at = -9223372036854775808",
        "queued_at = 9223372036854775807",
        "life = 2147483647",
    ],
)
def test_a_number_that_cannot_be_hurts_its_own_job_only(app: Perdure, change: str, state: str) -> None:
    ran: list[int] = []

    @app.job(timeout=60)
    def work(number: int) -> None:
        ran.append(number)

    jobs = [work.options(delay=0.000_001 if state == "scheduled" else None).enqueue(number) for number in range(5)]
    with app.transaction() as tx:
        tx.execute(f"UPDATE perdure.ready SET {change} WHERE job_id = %s", (jobs[1].id,))

    assert app.worker().run(until_idle=True) == 0

    assert sorted({*ran, 1}) == [0, 1, 2, 3, 4]
    bad = app.existing(jobs[1])
    assert bad.state in ("completed", "parked")
    named = {example for found in examine(app.store) for example in found.examples}
    if change.startswith("version"):  # setting it aside makes it a version again
        assert (named, bad.state, bad.version) == (set(), "parked", 1)
    else:
        assert named == {str(bad.id)}
    if bad.state == "parked":
        assert app.cancel(bad).state == "cancelled"


@pytest.mark.parametrize("state", ["queued", "parked"])
def test_a_live_row_without_its_job_keeps_no_worker_from_ending(app: Perdure, other: Perdure, state: str) -> None:
    @app.job
    def work(number: int) -> int:
        return number

    orphan = work.enqueue(0)
    if state == "parked":
        assert other.worker().run(until_idle=True) == 0
        assert app.existing(orphan).state == "parked"
    job = work.enqueue(1)
    with app.transaction() as tx:
        tx.execute("DELETE FROM perdure.job WHERE id = %s", (orphan.id,))

    assert app.worker().run(until_idle=True) == 0

    assert app.existing(job).result == 1
    assert [(found.name, found.examples) for found in examine(app.store)] == [("live_without_job", (str(orphan.id),))]


def test_a_worker_with_many_jobs_ends_and_takes_half_of_them_in_a_turn(
    app: Perdure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handlers of one half run while the server works on the other."""
    turn, seen = SqlStore.turn, list[tuple[int, int]]()

    def noting(store: SqlStore, wanted: Turn, now: Micros) -> Turned:
        seen.append((len(wanted.finishes), sum(lane.room for lane in wanted.lanes)))
        return turn(store, wanted, now)

    @app.job
    async def aside() -> None: ...

    aside.enqueue_many([{}] * 500)
    monkeypatch.setattr(SqlStore, "turn", noting)
    assert app.worker(concurrency=200).run(until_idle=True) == 0
    assert [max(column) for column in zip(*seen, strict=True)] == [100, 100]
