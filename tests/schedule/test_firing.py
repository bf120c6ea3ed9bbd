"""Workers take what is due: each planned instant once, none lost, whatever clocks, editors and other workers do."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import pytest

from perdure import Perdure, Secret, State
from perdure.clock import ManualClock
from perdure.errors import PerdureError, ScheduleError, TemplateError, TransitionRefused
from perdure.schedule.scheduler import AT_ONCE
from perdure.store.store import SqlStore
from tests.schedule.conftest import START, Firer
from tests.schedule.coverage import check_coverage

A = {"to": "a"}


# -- many workers ----------------------------------------------------------------------------------------------------


def test_eight_workers_over_an_hour_take_every_slot_once(app: Perdure, send: Any, clock: ManualClock) -> None:
    for minutes in (1, 5, 10):
        app.schedule(every=timedelta(minutes=minutes), name=f"every {minutes}", overlap="allow", payload=A)(send)
    workers = [Firer(app) for _ in range(8)]
    for worker in workers:
        worker.look()
    for _ in range(60):
        clock.advance(minutes=1)
        assert sum(worker.look() for worker in workers) >= 1

    for minutes in (1, 5, 10):
        assert check_coverage(app, f"every {minutes}", START) == {"taken": 60 // minutes}


def test_a_thousand_that_are_due_at_once_are_all_taken(app: Perdure, send: Any, clock: ManualClock) -> None:
    for n in range(250):
        app.schedules.put(f"s{n}", every=60, kind=send, payload=A)
    worker = Firer(app)
    worker.look()
    clock.advance(minutes=1)

    assert worker.look() == 250
    assert worker.look() == 0


def test_a_worker_rests_after_a_batch_that_was_full_and_the_last(app: Perdure, send: Any, clock: ManualClock) -> None:
    for n in range(AT_ONCE):
        app.schedules.put(f"s{n}", every=60, kind=send, payload=A)
    worker = Firer(app)
    clock.advance(minutes=1)

    assert [worker.scheduler.look(worker.node) for _ in range(2)] == [AT_ONCE, 0]
    assert worker.scheduler.rest_s() > 0


# -- clocks ----------------------------------------------------------------------------------------------------------


def test_a_clock_that_is_set_back_fires_nothing_twice(app: Perdure, send: Any, clock: ManualClock) -> None:
    app.schedules.put("hourly", "0 * * * *", kind=send, payload=A, overlap="allow")
    worker = Firer(app)
    for _ in range(3):
        clock.advance(hours=1)
        worker.look()
    clock.step(seconds=-3 * 3600)
    for _ in range(4):
        worker.look()
        clock.advance(hours=1)
    worker.look()

    assert check_coverage(app, "hourly", START) == {"taken": 4}


def test_also_not_when_it_is_changed_meanwhile(app: Perdure, send: Any, clock: ManualClock) -> None:
    app.schedules.put("hourly", "0 * * * *", kind=send, payload=A, overlap="allow")
    worker = Firer(app)
    clock.advance(hours=2)
    worker.look()
    clock.step(seconds=-7200)
    app.schedules.put("hourly", "0 */1 * * *", kind=send, payload=A, overlap="allow")
    clock.advance(hours=2)
    worker.look()

    assert len(app.schedules.slots("hourly")) == len({slot.scheduled_for for slot in app.schedules.slots("hourly")})
    assert len(list(app.jobs())) == len(app.schedules.slots("hourly"))


@pytest.mark.parametrize(
    ("catch_up", "taken", "reason"), [("latest", 1, "misfired"), ("none", 0, "misfired"), ("all", 72, "outage")]
)
def test_three_days_without_a_worker(
    app: Perdure, send: Any, clock: ManualClock, catch_up: Any, taken: int, reason: str
) -> None:
    app.schedules.put("hourly", "0 * * * *", kind=send, payload=A, catch_up=catch_up)
    worker = Firer(app)
    worker.look()
    clock.advance(days=3, minutes=10)
    worker.look()

    counts = check_coverage(app, "hourly", START)
    assert counts["taken"] == taken
    assert counts[reason] == 72 - taken
    states = [job.state for job in app.jobs()]
    assert states.count(State.QUEUED) == min(taken, 1)  # the others wait, each for the one before


def test_a_job_of_each_slot_knows_its_instant(app: Perdure, send: Any, clock: ManualClock) -> None:
    app.schedules.put("daily", "0 7 * * *", tz="Europe/Berlin", kind=send, payload=A)
    clock.advance(days=1)
    Firer(app).look()

    [job] = app.jobs()
    assert job.scheduled_for == datetime(2030, 1, 1, 6, 0, tzinfo=UTC)
    assert (job.kind, job.payload) == ("send", A)


def test_jitter_lets_jobs_start_later_and_keeps_the_slot(app: Perdure, send: Any, clock: ManualClock) -> None:
    app.schedules.put("hourly", "0 * * * *", kind=send, payload=A, jitter=600)
    clock.advance(hours=1)
    Firer(app).look()

    [job] = app.jobs()
    assert job.scheduled_for == START + timedelta(hours=1)
    assert job.state == State.SCHEDULED
    assert job.run_at is not None
    assert timedelta(0) < job.run_at - job.scheduled_for < timedelta(minutes=10)


# -- what people do --------------------------------------------------------------------------------------------------


def test_a_change_of_the_time_loses_nothing_that_was_due(app: Perdure, send: Any, clock: ManualClock) -> None:
    app.schedules.put("s", "0 * * * *", kind=send, payload=A, overlap="allow")
    clock.advance(hours=1, seconds=5)
    app.schedules.put("s", "30 * * * *", kind=send, payload=A, overlap="allow")
    clock.advance(minutes=30)
    Firer(app).look()

    assert [slot.scheduled_for.minute for slot in app.schedules.slots("s")] == [30, 0]


def test_a_change_of_the_arguments_keeps_the_next_instant(app: Perdure, send: Any, clock: ManualClock) -> None:
    app.schedules.put("s", "0 * * * *", kind=send, payload=A)
    clock.advance(hours=1, seconds=5)
    app.schedules.put("s", "0 * * * *", kind=send, payload={"to": "b"})
    Firer(app).look()

    [job] = app.jobs()
    assert (job.payload, job.scheduled_for) == ({"to": "b"}, START + timedelta(hours=1))


def test_a_change_between_reading_and_firing_wins(app: Perdure, send: Any, clock: ManualClock) -> None:
    """The worker has read the schedule; then it is edited; then the worker writes."""
    app.schedules.put("s", "0 * * * *", kind=send, payload=A)
    clock.advance(hours=1)
    worker = Firer(app)
    inner = app.store.fire
    edited: list[object] = []

    def fire(*given: Any) -> Any:
        if not edited:
            edited.append(app.schedules.put("s", "0 * * * *", kind=send, payload={"to": "b"}))
        return inner(*given)

    worker.scheduler._store = type("Edited", (SqlStore,), {"fire": lambda _, *given: fire(*given)})(app.store.runner)  # type: ignore[attr-defined]
    worker.look()
    worker.look()

    [job] = app.jobs()
    assert job.payload == {"to": "b"}
    assert check_coverage(app, "s", START) == {"taken": 1}


def test_what_is_planned_while_it_is_switched_off_is_recorded(app: Perdure, send: Any, clock: ManualClock) -> None:
    app.schedules.put("s", "0 * * * *", kind=send, payload=A)
    app.schedules.disable("s")
    clock.advance(hours=5)
    worker = Firer(app)
    assert worker.look() == 0
    assert app.schedules.enable("s").enabled
    clock.advance(hours=1)
    worker.look()

    assert check_coverage(app, "s", START) == {"disabled": 5, "taken": 1}


def test_disable_can_cancel_what_waits(app: Perdure, send: Any, clock: ManualClock) -> None:
    app.schedules.put("s", "0 * * * *", kind=send, payload=A, overlap="queue")
    worker = Firer(app)
    for _ in range(3):
        clock.advance(hours=1)
        worker.look()
    other = send.enqueue("x")
    app.schedules.disable("s", cancel_pending=True)

    assert sorted(job.state for job in app.jobs()) == ["cancelled"] * 3 + ["queued"]
    assert app.existing(other).state == State.QUEUED


def test_a_removed_schedule_is_not_listed_and_keeps_its_record(app: Perdure, send: Any, clock: ManualClock) -> None:
    app.schedules.put("s", "0 * * * *", kind=send, payload=A)
    clock.advance(hours=1)
    Firer(app).look()
    app.schedules.remove("s")

    assert app.schedules.list() == []
    assert [schedule.disabled_reason for schedule in app.schedules.list(all=True)] == ["removed"]
    assert len(app.schedules.slots("s")) == 1
    again = app.schedules.put("s", "0 * * * *", kind=send, payload=A)
    assert (again.enabled, len(app.schedules.slots("s"))) == (True, 1)


def test_a_repeat_of_put_changes_nothing(app: Perdure, send: Any) -> None:
    first = app.schedules.put("s", "0 * * * *", kind=send, payload=A)

    assert app.schedules.put("s", "0 * * * *", kind="send", payload=A) == first


def test_a_put_is_refused_if_somebody_was_faster(app: Perdure, send: Any) -> None:
    first = app.schedules.put("s", "0 * * * *", kind=send, payload=A)
    app.schedules.put("s", "1 * * * *", kind=send, payload=A, expect_version=first.version)

    with pytest.raises(TransitionRefused, match="someone changed it"):
        app.schedules.put("s", "2 * * * *", kind=send, payload=A, expect_version=first.version)


def test_a_renamed_schedule_is_the_same(app: Perdure, send: Any) -> None:
    first = app.schedules.put("s", "0 * * * *", kind=send, payload=A)
    app.schedules.put("taken", "0 * * * *", kind=send, payload=A)

    assert app.schedules.rename("s", "t").id == first.id
    assert app.schedules.get("s") is None
    with pytest.raises(ScheduleError, match="already"):
        app.schedules.rename("t", "taken")


# -- by hand ---------------------------------------------------------------------------------------------------------


def test_a_manual_trigger_takes_the_slot_like_anyone_else(app: Perdure, send: Any, clock: ManualClock) -> None:
    app.schedules.put("s", "0 * * * *", kind=send, payload=A)
    planned = START + timedelta(hours=1)
    by_hand = app.trigger("s", scheduled_for=planned)
    again = app.trigger("s", scheduled_for=planned)
    assert (again.id, again.deduplicated) == (by_hand.id, True)
    app.cancel(by_hand)
    clock.advance(hours=1)
    Firer(app).look()

    assert [job.id for job in app.jobs()] == [by_hand.id]
    assert check_coverage(app, "s", START) == {"taken": 1}


def test_a_manual_trigger_does_not_go_around_the_overlap(app: Perdure, send: Any) -> None:
    app.schedules.put("s", "0 * * * *", kind=send, payload=A)
    job = app.trigger("s")

    with pytest.raises(TransitionRefused, match=str(job.id)) as refused:
        app.trigger("s", scheduled_for=START + timedelta(hours=1))
    assert refused.value.code == "schedule_overlap"
    assert len(list(app.jobs())) == 1


def test_a_backfill_takes_what_was_missed_once(app: Perdure, send: Any, clock: ManualClock) -> None:
    app.schedules.put("s", "0 * * * *", kind=send, payload=A, catch_up="none")
    clock.advance(hours=10, minutes=30)
    Firer(app).look()
    assert list(app.jobs()) == []
    until = START + timedelta(hours=6)

    made = list(app.schedules.backfill("s", START, until))
    again = list(app.schedules.backfill("s", START, until))

    assert [job.scheduled_for for job in made] == [START + timedelta(hours=n) for n in range(6)]
    assert [job.id for job in again] == [job.id for job in made]
    assert all(job.deduplicated for job in again)
    assert [app.existing(job).state for job in made] == ["queued", *["blocked"] * 5]


def test_upkeep_is_not_triggered_by_hand(app: Perdure, send: Any) -> None:
    app.schedules.put("s", "0 * * * *", kind=send, payload=A)
    row = app.store.schedule("s")
    assert row is not None
    app.store.save_schedule(row._replace(source="builtin", version=2), 1)

    with pytest.raises(ScheduleError, match="workers do by themselves"):
        app.trigger("s")


# -- templates -------------------------------------------------------------------------------------------------------


def test_a_schedule_makes_jobs_from_its_template_as_that_is_at_the_time(
    app: Perdure, send: Any, clock: ManualClock
) -> None:
    app.templates.put("letter", "send", {"to": "a", "subject": "old"}, queue="mail", priority=2)
    app.schedules.put("s", "0 * * * *", template="letter", payload={"to": "b"}, priority=5, overlap="allow")
    worker = Firer(app)
    clock.advance(hours=1)
    worker.look()
    app.templates.put("letter", "send", {"to": "a", "subject": "new"}, queue="post", priority=3)
    clock.advance(hours=1)
    worker.look()

    newer, older = app.jobs()
    assert [(job.payload, job.queue, job.priority) for job in (older, newer)] == [
        ({"to": "b", "subject": "old"}, "mail", 5),
        ({"to": "b", "subject": "new"}, "post", 5),
    ]
    assert [template.version for job in (older, newer) if (template := app.templates.of(job))] == [1, 2]
    assert app.trigger("s", scheduled_for=START).payload == {"to": "b", "subject": "new"}


def test_while_its_template_is_archived_a_schedule_makes_nothing_and_says_so(
    app: Perdure, send: Any, clock: ManualClock
) -> None:
    app.templates.put("letter", "send", A)
    app.schedules.put("s", "0 * * * *", template="letter")
    app.templates.archive("letter")
    clock.advance(hours=1)
    worker = Firer(app)
    worker.look()
    with pytest.raises(TemplateError, match="archived"):
        app.trigger("s")
    app.templates.restore("letter")
    clock.advance(hours=1)
    worker.look()

    assert check_coverage(app, "s", START) == {"disabled": 1, "taken": 1}


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ({}, "kind= or template="),
        ({"kind": "send", "template": "letter"}, "one of them"),
        ({"template": "leter"}, "did you mean 'letter'"),
        ({"template": "letter", "payload": {"too": 1}}, "'too' is not a parameter"),
    ],
)
def test_what_a_schedule_cannot_take_from_a_template_is_refused(
    app: Perdure, send: Any, said: dict[str, Any], says: str
) -> None:
    app.templates.put("letter", "send", A)
    with pytest.raises(PerdureError, match=says):
        app.schedules.put("s", "0 * * * *", **said)
    assert app.schedules.list() == []


# -- trouble ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    [
        {"cron": "no cron at all"},
        {"tz": "Atlantis/Central"},
        {"policy": "{"},
        {"plan": "{}"},
        {"cron": None},
    ],
)
def test_one_that_cannot_fire_is_reported_and_delays_no_other(
    app: Perdure, send: Any, clock: ManualClock, caplog: pytest.LogCaptureFixture, damage: dict[str, Any]
) -> None:
    for name in ("a", "bad", "c"):
        app.schedules.put(name, "0 * * * *", kind=send, payload=A)
    row = app.store.schedule("bad")
    assert row is not None
    app.store.save_schedule(row._replace(version=2, **damage), 1)
    clock.advance(hours=1)
    worker = Firer(app)

    assert worker.look() == 2
    bad = app.schedules.get("bad")
    assert bad is not None
    assert bad.problem
    assert "schedule bad rests" in caplog.text
    caplog.clear()
    clock.advance(hours=1)
    worker.look()
    assert "bad" not in caplog.text
    mended = app.schedules.put("bad", "0 * * * *", kind=send, payload=A)
    assert (mended.problem, mended.next_trigger_at) == (None, START + timedelta(hours=3))


@pytest.mark.parametrize("damage", [{"policy": "{"}, {"plan": "{}"}, {"plan": "[]"}])
def test_what_cannot_be_understood_is_not_triggered_by_hand(app: Perdure, send: Any, damage: dict[str, Any]) -> None:
    app.schedules.put("bad", "0 * * * *", kind=send, payload=A)
    row = app.store.schedule("bad")
    assert row is not None
    app.store.save_schedule(row._replace(version=2, **damage), 1)

    with pytest.raises(ScheduleError, match="put it again"):
        app.trigger("bad")
    assert list(app.jobs()) == []


def test_a_name_may_have_blanks(app: Perdure, send: Any) -> None:
    app.schedules.put("every full hour", "0 * * * *", kind=send, payload=A)

    assert app.schedules.preview("every full hour", 1) == [START + timedelta(hours=1)]


def test_a_kind_that_nobody_knows_any_more_is_parked_and_seen(path: Path, clock: ManualClock) -> None:
    old = Perdure(path, durability="normal", clock=clock)

    @old.job
    def gone() -> None: ...

    old.schedules.put("s", "0 * * * *", kind=gone)
    clock.advance(hours=1)
    Firer(old).look()
    new = Perdure(path, durability="normal", clock=clock)
    assert new.worker().run(until_idle=True) == 0

    [job] = new.jobs()
    assert (job.state, job.row.park_reason) == (State.PARKED, "unknown_kind")
    clock.advance(hours=1)
    Firer(new).look()
    assert [missed.reason for missed in new.schedules.missed("s")] == ["overlap"]  # no heap of jobs that nobody can run


def test_a_worker_without_schedules_fires_none(app: Perdure, send: Any, clock: ManualClock) -> None:
    app.schedule("0 * * * *", payload=A)(send)
    app.schedules.put("s", "0 * * * *", kind=send, payload=A)
    clock.advance(hours=1)

    assert app.worker(schedules=False).run(until_idle=True) == 0
    assert list(app.jobs()) == []
    assert app.worker().run(until_idle=True) == 0
    assert [job.state for job in app.jobs()] == [State.COMPLETED]


def test_the_log_says_what_was_fired_and_what_was_missed(
    app: Perdure, send: Any, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="perdure.schedule")
    app.schedules.put("s", "0 * * * *", kind=send, payload=A)
    clock.advance(hours=3)
    Firer(app).look()

    assert (
        "schedule s: missed 2 from 2030-01-01T01:00:00.000000Z to 2030-01-01T02:00:00.000000Z (misfired)" in caplog.text
    )
    assert "for 2030-01-01T03:00:00.000000Z" in caplog.text


# -- how long and how often ------------------------------------------------------------------------------------------


def test_at_most_once_is_never_run_again(app: Perdure, clock: ManualClock) -> None:
    @app.job(retry=5)
    def fail() -> None:
        raise ValueError("no")

    app.schedules.put("s", "0 * * * *", kind=fail, at_most_once=True)
    clock.advance(hours=1)
    Firer(app).look()
    app.worker().run(until_idle=True)

    [job] = app.jobs()
    assert (job.state, job.attempts) == (State.FAILED, 1)


def test_a_run_longer_than_max_runtime_is_stopped_and_the_next_slot_goes_on(app: Perdure, clock: ManualClock) -> None:
    @app.job(retry=5)
    async def hang() -> None:
        await asyncio.get_running_loop().create_future()

    app.schedules.put("s", "0 * * * *", kind=hang, max_runtime=0.05)
    worker = Firer(app)
    for _ in range(2):
        clock.advance(hours=1)
        assert worker.look() == 1
        assert app.worker().run(until_idle=True) == 0

    assert [slot.status for slot in app.schedules.slots("s")] == ["skipped_timeout"] * 2
    assert {run.state for run in app.runs()} == {"timed_out"}
    assert [job.attempts for job in app.jobs()] == [1, 1]


def test_a_failure_after_max_runtime_is_not_retried(app: Perdure, clock: ManualClock) -> None:
    @app.job(retry=5)
    def fail() -> None:
        raise ValueError("no")

    app.schedules.put("s", "0 * * * *", kind=fail, max_runtime=5)  # the first retry would come after 10 s
    clock.advance(hours=1)
    Firer(app).look()
    app.worker().run(until_idle=True)

    [job] = app.jobs()
    assert (job.state, job.attempts) == (State.FAILED, 1)


def test_what_a_dead_worker_left_of_a_slot_that_is_over_is_not_run_again(app: Perdure, clock: ManualClock) -> None:
    ran: list[int] = []

    @app.job
    def work() -> None:
        ran.append(1)

    app.schedules.put("s", "0 * * * *", kind=work, max_runtime=60)
    clock.advance(hours=1)
    worker = Firer(app)
    worker.look()
    [job] = app.jobs()
    assert job.state == State.QUEUED
    with app.transaction() as tx:
        tx.execute("UPDATE perdure_ready SET started_at = ?", (clock.now() - 61_000_000,))
    app.worker().run(until_idle=True)

    assert ran == []
    assert [slot.status for slot in app.schedules.slots("s")] == ["skipped_timeout"]


def test_twice_the_time_out_is_the_usual_max_runtime(app: Perdure, send: Any) -> None:
    with_it = app.schedules.put("s", "0 * * * *", kind=send, payload=A, timeout=30)
    without = app.schedules.put("t", "0 * * * *", kind=send, payload=A)

    assert (with_it.policy.max_runtime_us, without.policy.max_runtime_us) == (60_000_000, None)


# -- looking ---------------------------------------------------------------------------------------------------------


def test_a_preview_gives_the_next_instants_in_the_zone(app: Perdure, send: Any) -> None:
    app.schedules.put("s", "30 2 * * *", tz="Europe/Berlin", kind=send, payload=A)

    first, second = app.schedules.preview("s", 2)
    assert [(at.hour, at.minute, str(at.tzinfo)) for at in (first, second)] == [(2, 30, "Europe/Berlin")] * 2
    assert app.schedules.preview("0 12 * * *", 1) == [START + timedelta(hours=12)]
    assert "02:30" in app.schedules.describe("s")


def test_an_unknown_name_is_refused_with_the_nearest(app: Perdure, send: Any) -> None:
    app.schedules.put("daily", "0 7 * * *", kind=send, payload=A)

    for wrong in (app.trigger, app.schedules.disable, app.schedules.slots, app.schedules.preview):
        with pytest.raises(ScheduleError, match="did you mean 'daily'") as refused:
            wrong("dayly")
        assert refused.value.code == "schedule_unknown"
    assert app.schedules.get("dayly") is None


def test_secrets_of_a_schedule_reach_the_job_and_nobody_else(app: Perdure, clock: ManualClock) -> None:
    got: list[str] = []

    @app.job
    def login(password: Annotated[str, Secret]) -> None:
        got.append(password)

    schedule = app.schedules.put("s", "0 * * * *", kind=login, payload={"password": "hunter2"})
    assert "hunter2" not in repr(schedule)
    clock.advance(hours=1)
    Firer(app).look()
    app.worker().run(until_idle=True)
    assert got == ["hunter2"]


def test_the_verbs_are_there_for_coroutines(app: Perdure, send: Any) -> None:
    async def use() -> tuple[int, str]:
        await app.aio.schedules.put("s", "0 * * * *", kind=send, payload=A)
        job = await app.aio.trigger("s")
        listed = await app.aio.schedules.list()
        return len(listed), job.kind

    assert asyncio.run(use()) == (1, "send")
