"""`perdure db copy`: a queue moved from any database to any, with all that is in it, and refused where it must be."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import psycopg
import pytest

from perdure import ConfigError, Perdure, PerdureError, StoreError
from perdure.clock import SystemClock
from perdure.ids import ReservationId
from perdure.ops.copying import Progress, copy, reopen
from perdure.ops.doctor import examine, is_healthy
from perdure.store import copy as copies
from perdure.store.rows import ReservationRow
from perdure.store.sqlite.statements import STATEMENTS
from perdure.store.tables import tables
from tests.app.by_hand import claim
from tests.databases.conftest import PAIRS, Makers, Told, compared, copied, fill, rows_of, side
from tests.unit.patient import LEASE_US


def app_on(url: str) -> Perdure:
    app = Perdure(url)

    @app.job(queue="line")
    def work(n: int = 0) -> int:
        return n

    return app


def refusal(source: str, target: str) -> PerdureError:
    """A copy that is refused, and has written nothing."""
    before = rows_of(source), rows_of(target)
    with pytest.raises(PerdureError) as refused:
        copied(source, target, despite_workers=False)
    assert (rows_of(source), rows_of(target)) == before
    return refused.value


def is_closed(url: str) -> str | None:
    """The code with which a writer is refused; None: it can write."""
    app = app_on(url)
    try:
        app.enqueue("work")
    except PerdureError as error:
        return error.code
    finally:
        app.close()
    return None


# -- what arrives ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_every_row_of_every_table_arrives_as_it_was(
    left: str, right: str, new: Makers, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = new(left), new(right)
    fill(source)
    before = rows_of(source)
    assert [name for name, rows in before.items() if not rows] == []
    monkeypatch.setattr(copies, "FIRST_ROOM", 1)  # many pages, also of little
    monkeypatch.setattr(copies, "MOST_ROOM", 3)

    counts = copied(source, target)

    assert compared(rows_of(target)) == compared(before)
    assert counts == {name: len(rows) + (name == "queue") for name, rows in before.items()}, "and the pause of all"
    app = Perdure(target)
    assert is_healthy(examine(app.store))
    app.close()


@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_jobs_keep_their_order_and_new_ones_come_behind_them(left: str, right: str, new: Makers) -> None:
    source, target = new(left), new(right)
    app = app_on(source)
    jobs = [app.enqueue("work", {"n": number}).id for number in range(5)]
    jobs.insert(0, app.move(jobs.pop(), to="front").id)
    app.close()

    copied(source, target)
    app = app_on(target)
    jobs.append(app.enqueue("work", {"n": 9}).id)
    order = [UUID(bytes=taken.job_id) for taken in claim(app, "line")]
    app.close()

    assert order == jobs


@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_a_key_that_was_taken_is_taken_in_the_copy(left: str, right: str, new: Makers) -> None:
    source, target = new(left), new(right)
    app = app_on(source)
    first = app.enqueue("work", idempotency_key="once")
    app.close()

    copied(source, target)
    app = app_on(target)
    again = app.enqueue("work", idempotency_key="once")
    app.close()

    assert (again.id, again.deduplicated) == (first.id, True)


@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_what_ran_when_its_worker_died_is_rescued_from_the_copy(left: str, right: str, new: Makers) -> None:
    source, target = new(left), new(right)
    fill(source)  # two jobs of each of two nodes that never sign off

    copied(source, target)
    app = app_on(target)
    ran = [live.job_id for node in app.store.live_nodes() for live in app.store.held_by(node.id)]
    for node in app.store.live_nodes():
        app.store.stop(node.id, "dead", app.clock.now())
    app.worker(poll_s=0.02).run(until_idle=True)
    ended = {job.row.id: job.state for job in app.jobs() if job.row.id in ran}
    app.close()

    assert len(ran) == 6
    assert set(ended.values()) <= {"completed", "cancelled"}
    assert [state.value for state in ended.values()].count("completed") >= 2


def test_progress_is_told_table_by_table(new: Makers, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = new("sqlite"), new("sqlite")
    app = app_on(source)
    for number in range(5):
        app.enqueue("work", {"n": number})
    app.close()
    monkeypatch.setattr(copies, "FIRST_ROOM", 2)
    monkeypatch.setattr(copies, "MOST_ROOM", 2)
    told = Told()

    with side(source) as one, side(target) as other:
        copy(one, other, told)

    assert [(step.done, step.of) for step in told.steps if step.table == "job"] == [(2, 5), (4, 5), (5, 5)]


def test_a_page_of_large_rows_has_few_of_them(new: Makers, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = new("sqlite"), new("sqlite")
    app = app_on(source)
    for number in range(40):
        app.enqueue("work", {"n": number}, queue="q" * 128)
    app.close()
    monkeypatch.setattr(copies, "FIRST_ROOM", 4)
    monkeypatch.setattr(copies, "PAGE_CHARACTERS", 2_000)
    told = Told()

    with side(source) as one, side(target) as other:
        copy(one, other, told)

    pages = [step.done for step in told.steps if step.table == "job"]
    assert max(after - before for before, after in zip([0, *pages], pages, strict=False)) < 16


# -- who may use which -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_the_source_is_closed_in_the_end_and_the_target_open(left: str, right: str, new: Makers) -> None:
    source, target = new(left), new(right)
    fill(source)

    copied(source, target)

    assert is_closed(source) == "database_moved"
    assert is_closed(target) is None
    app = Perdure(source)
    assert [queue.name for queue in app.queues.list() if queue.paused] != [], "it can be read"
    app.close()


def test_a_worker_of_a_closed_database_does_not_start(new: Makers) -> None:
    source, target = new("sqlite"), new("sqlite")
    fill(source)
    copied(source, target)
    app = app_on(source)

    with pytest.raises(StoreError, match="use that database") as refused:
        app.worker().run(until_idle=True)

    assert refused.value.code == "database_moved"
    app.close()


@pytest.mark.parametrize("sort", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def test_a_process_that_had_the_source_open_takes_no_job_of_it_any_more(sort: str, new: Makers) -> None:
    source, target = new(sort), new("sqlite")
    app = app_on(source)
    app.enqueue("work")

    with side(source) as one, side(target) as other:
        copy(one, other, lambda _: None)
        assert claim(app, "line") == []

    app.close()


@pytest.mark.parametrize("paused", [True, False])
def test_the_copy_is_paused_only_if_somebody_had_paused_the_source(paused: bool, new: Makers) -> None:
    source, target = new("sqlite"), new("sqlite")
    app = app_on(source)
    app.enqueue("work")
    if paused:
        app.queues.pause("*")
    app.close()

    copied(source, target)

    app = Perdure(target)
    assert {queue.name: queue.paused for queue in app.queues.list()} == {"*": paused, "line": False}
    app.close()


def test_a_source_that_is_opened_again_goes_on(new: Makers) -> None:
    source, target = new("sqlite"), new("sqlite")
    fill(source)
    before = rows_of(source)
    copied(source, target)

    with side(source) as one:
        closed = reopen(one)
        again = reopen(one)

    assert closed is not None
    assert (closed.other, again) == (target, None)
    assert compared(rows_of(source)) == compared(before)
    app = Perdure(source)
    assert [queue.name for queue in app.queues.list() if queue.paused] == ["side"]
    app.close()
    assert is_closed(source) is None


def test_an_unfinished_copy_is_not_opened_by_hand(new: Makers) -> None:
    target = new("sqlite")
    with side(target) as other:
        other.store.close_for(copies.mark(copies.COPY, "elsewhere"), SystemClock().now(), pause=False)
        with pytest.raises(StoreError) as refused:
            reopen(other)

    assert refused.value.code == "copy_unfinished"
    assert is_closed(target) == "copy_unfinished"


# -- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_a_target_that_was_used_is_refused(left: str, right: str, new: Makers) -> None:
    source, target = new(left), new(right)
    fill(source)
    app = app_on(target)
    app.queues.pause("mine")
    app.close()
    with side(source) as one:  # so that only the target is at fault
        for node in one.store.live_nodes():
            one.store.stop(node.id, "gone", SystemClock().now())

    error = refusal(source, target)

    assert (type(error), error.code) == (ConfigError, "copy_target_used")
    assert "queue 1" in error.message


def test_a_source_whose_workers_live_is_refused(new: Makers) -> None:
    source, target = new("sqlite"), new("sqlite")
    fill(source)

    error = refusal(source, target)

    assert error.code == "copy_source_in_use"
    assert "2 workers" in error.message


def test_a_source_with_a_reserved_queue_is_refused(new: Makers) -> None:
    source, target = new("sqlite"), new("sqlite")
    app = app_on(source)
    now = app.clock.now()
    made_by = (ReservationId(app.ids.new()), "gpu", "ann", "active", now, None)
    app.store.reserve(ReservationRow(*made_by, now + LEASE_US, LEASE_US, LEASE_US))  # type: ignore[arg-type]
    app.close()

    error = refusal(source, target)

    assert error.code == "copy_source_in_use"
    assert "gpu by ann" in error.message


@pytest.mark.parametrize("sort", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def test_a_database_is_not_copied_to_itself(sort: str, new: Makers) -> None:
    url = new(sort)

    assert refusal(url, url).code == "copy_same_database"
    assert is_closed(url) is None


def test_an_unfinished_copy_of_another_source_is_refused(new: Makers) -> None:
    source, target = new("sqlite"), new("sqlite")
    with side(target) as other:
        other.store.close_for(copies.mark(copies.COPY, "elsewhere"), SystemClock().now(), pause=False)

    assert refusal(source, target).code == "copy_unfinished"


def test_a_source_that_was_moved_elsewhere_is_refused_and_one_that_was_moved_here_is_done(new: Makers) -> None:
    source, target, third = new("sqlite"), new("sqlite"), new("sqlite")
    fill(source)
    copied(source, target)

    assert refusal(source, third).code == "database_moved"
    assert copied(source, target) == {}


@pytest.mark.damaged
def test_a_row_that_the_target_cannot_hold_is_named(new: Makers, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue("postgres_server")
    source, target = new("sqlite"), new("postgres")
    app = app_on(source)
    app.enqueue("work")
    with app.store.transaction() as tx:
        tx.execute("UPDATE perdure_ready SET attempts = 'many'")
    app.close()

    with pytest.raises(StoreError, match="table ready") as refused:
        copied(source, target)

    assert refused.value.code == "copy_row_invalid"


# -- while others write ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_what_is_enqueued_meanwhile_tears_nothing_and_is_not_left_behind(left: str, right: str, new: Makers) -> None:
    """By a process that had the source open before: it is neither in the copy nor forgotten."""
    source, target = new(left), new(right)
    fill(source)
    late = app_on(source)
    late.queues.list()

    def enqueue(step: object) -> None:
        if not enqueued:
            enqueued.append(late.enqueue("work").id)

    enqueued: list[Any] = []
    with side(source) as one, side(target) as other:
        with pytest.raises(StoreError, match=r"job .* now") as refused:
            copy(one, other, enqueue, despite_workers=True)
        assert refused.value.code == "copy_outrun"
        late.close()
        copy(one, other, lambda _: None, despite_workers=True)

    app = Perdure(target)
    assert app.get(enqueued[0]) is not None
    assert [queue.name for queue in app.queues.list() if queue.paused] == ["side"], "as it was before the first attempt"
    app.close()


def test_what_somebody_enqueued_into_the_copy_is_not_removed(new: Makers) -> None:
    source, target = new("sqlite"), new("sqlite")
    fill(source)
    early = app_on(target)
    early.queues.list()
    enqueued: list[Any] = []

    def enqueue(step: object) -> None:
        if not enqueued:
            enqueued.append(early.enqueue("work").id)

    with side(source) as one, side(target) as other:
        with pytest.raises(StoreError, match="not as it should be") as refused:
            copy(one, other, enqueue, despite_workers=True)
        assert refused.value.code == "copy_differs"
        with pytest.raises(ConfigError, match=str(enqueued[0])):
            copy(one, other, enqueue, despite_workers=True)
    assert early.get(enqueued[0]) is not None
    early.close()


@pytest.mark.parametrize("sort", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def test_an_unfinished_copy_that_is_emptied_stays_one(sort: str, new: Makers) -> None:
    url = new(sort)
    fill(url)
    with side(url) as one:
        closed = one.store.close_for(copies.mark(copies.COPY, "elsewhere"), SystemClock().now(), pause=False)
        one.store.empty(tables())

        assert one.store.closure() == closed
        assert set(one.store.count_rows().values()) == {0}


@pytest.mark.postgres
def test_a_copy_begins_anew_when_the_connection_to_its_source_is_lost(new: Makers) -> None:
    source, target = new("postgres"), new("sqlite")
    fill(source)
    before, lost = rows_of(source), Told()

    def lose(step: Progress) -> None:
        if step.table == "run" and not lost.steps:
            lost(step)
            with psycopg.connect(source, autocommit=True) as connection:
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )

    with side(source) as one, side(target) as other:
        copy(one, other, lose, despite_workers=True)

    assert lost.steps != []
    assert compared(rows_of(target)) == compared(before)


# -- the list of tables ----------------------------------------------------------------------------------------------


@pytest.mark.postgres
def test_postgres_has_every_table_column_and_key_that_is_copied(new: Makers) -> None:
    with psycopg.connect(new("postgres")) as connection:
        found = connection.execute(
            """
            SELECT c.table_name, array_agg(c.column_name::text), min(k.columns)
            FROM information_schema.columns AS c
            JOIN (
                SELECT u.table_name, string_agg(u.column_name, ', ' ORDER BY u.ordinal_position) AS columns
                FROM information_schema.key_column_usage AS u
                JOIN information_schema.table_constraints AS t USING (constraint_schema, constraint_name)
                WHERE t.constraint_type = 'PRIMARY KEY'
                GROUP BY u.table_name
            ) AS k ON k.table_name = c.table_name
            WHERE c.table_schema = 'perdure' AND c.is_generated = 'NEVER'
            GROUP BY c.table_name"""
        ).fetchall()
    known = {name: (set(columns), key) for name, columns, key in found if name != "schema_version"}

    assert set(known) == set(tables())
    for name, table in tables().items():
        columns, key = known[name]
        assert key == ", ".join(table.key), name
        assert set(table.columns) <= columns, name
        if name != "node":  # how its workers sleep is each database's own affair
            assert columns == set(table.columns), name


def test_a_table_is_read_by_its_key_alone(new: Makers) -> None:
    with side(new("sqlite")) as one, one.store.transaction() as tx:
        for table in tables().values():
            for shared in range(1, len(table.key) + 1):
                statement = STATEMENTS[f"page:{table.name}:{shared}"]
                plan = tx.execute(f"EXPLAIN QUERY PLAN {statement.sql}", [None] * len(statement.names)).fetchall()  # type: ignore[attr-defined]
                steps = [row[3] for row in plan]
                assert len(steps) == 1, (table.name, steps)
                assert steps[0].startswith("SEARCH"), (table.name, steps)
