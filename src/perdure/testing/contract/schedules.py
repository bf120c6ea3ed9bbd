"""What runs by the clock: each planned instant is taken once, and none is lost. Protocol `ScheduleOperations`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from perdure.clock import Micros
from perdure.errors import TransitionRefused
from perdure.ids import JobId
from perdure.job.model import Failure, Origin, plan_json
from perdure.job.reports import Completed, Failed, TimedOut
from perdure.job.states import State
from perdure.store.rows import Fired, Firing, Missed, NewSlot, ScheduleRow
from perdure.testing.contract.case import raises
from perdure.testing.contract.rig import BROKEN, Rig

MINUTE = 60_000_000
THREADS = 8


def new_schedule(rig: Rig, name: str = "daily", **changes: object) -> ScheduleRow:
    """A schedule whose first instant is now."""
    row = ScheduleRow(
        id=rig.ids.new(),
        name=rig.key(name),
        owner=rig.key("owner"),
        source="api",
        template_id=None,
        kind=rig.kind,
        kind_version=1,
        payload='{"n":1}',
        secrets=None,
        plan=plan_json(rig.new().plan),
        cron=None,
        every_us=MINUTE,
        at=None,
        tz="UTC",
        starts_at=None,
        ends_at=None,
        policy="{}",
        description=None,
        digests=None,
        declared_at=None,
        enabled=1,
        disabled_reason=None,
        disabled_at=None,
        problem=None,
        last_trigger_at=None,
        next_trigger_at=rig.now,
        created_at=rig.now,
        updated_at=rig.now,
        version=1,
    )
    return row._replace(**changes)  # type: ignore[arg-type]


def saved(rig: Rig, name: str = "daily", **changes: object) -> ScheduleRow:
    row = new_schedule(rig, name, **changes)
    assert rig.store.save_schedule(row, None)
    return row


def read(rig: Rig, row: ScheduleRow) -> ScheduleRow:
    found = rig.store.schedule(row.name)
    assert found is not None
    return found


def new_slot(rig: Rig, row: ScheduleRow, at: Micros, overlap: str = "skip") -> NewSlot:
    job = rig.new()._replace(origin=Origin(schedule_id=row.id, scheduled_for=at))
    return NewSlot(at, Micros(at - MINUTE), Micros(at + MINUTE), job, overlap)


def fire(rig: Rig, row: ScheduleRow, *, overlap: str = "skip", missed: Sequence[Missed] = ()) -> Fired:
    """Take the next instant of the schedule."""
    assert row.next_trigger_at is not None
    slot = new_slot(rig, row, row.next_trigger_at, overlap)
    firing = Firing(row, [slot], missed, Micros(row.next_trigger_at + MINUTE))
    return rig.store.fire([firing], rig.node, rig.now)[0]


def due_names(rig: Rig) -> list[str]:
    return [row.name for row in rig.store.due_schedules(rig.now, 1_000) if row.name.endswith(rig.mark)]


# -- schedules -------------------------------------------------------------------------------------------------------


def test_a_schedule_is_there_as_it_was_given(rig: Rig) -> None:
    row = saved(rig, cron="0 7 * * *", every_us=None, tz="Europe/Berlin", secrets='{"k":"s"}', description="d")

    assert rig.store.schedule(row.name) == row
    assert rig.store.schedule(rig.key("other")) is None


def test_a_name_is_given_once(rig: Rig) -> None:
    row = saved(rig)

    assert not rig.store.save_schedule(new_schedule(rig), None)
    assert rig.store.schedule(row.name) == row


def test_a_change_is_made_only_from_the_version_it_was_decided_on(rig: Rig) -> None:
    row = saved(rig)
    changed = row._replace(payload='{"n":2}', version=2)
    assert rig.store.save_schedule(changed, 1)

    assert not rig.store.save_schedule(row._replace(payload='{"n":3}', version=2), 1)
    assert rig.store.schedule(row.name) == changed


def test_what_was_missed_is_recorded_together_with_the_change(rig: Rig) -> None:
    row = saved(rig)
    missed = Missed(rig.now, Micros(rig.now + MINUTE), 2, "disabled", rig.now)

    assert not rig.store.save_schedule(row._replace(version=3), 2, [missed])
    assert rig.store.missed(row.id, Micros(rig.now + 1), 10) == []
    assert rig.store.save_schedule(row._replace(version=2), 1, [missed])
    assert rig.store.missed(row.id, Micros(rig.now + 1), 10) == [missed]


def test_schedules_are_listed_by_name_in_pages(rig: Rig) -> None:
    rows = [saved(rig, name) for name in ("c", "a", "b")]
    rows.sort(key=lambda row: row.name)
    before = chr(ord("a") - 1)

    first = rig.store.schedules(before, 1_000)
    mine = [row for row in first if row.name.endswith(rig.mark)]

    assert mine == rows
    assert rig.store.schedules(rows[0].name, 1)[0].name > rows[0].name


def test_only_enabled_schedules_whose_time_has_come_are_due(rig: Rig) -> None:
    late = saved(rig, "late", next_trigger_at=Micros(rig.now - MINUTE))
    now = saved(rig, "now")
    saved(rig, "later", next_trigger_at=Micros(rig.now + 1))
    saved(rig, "off", enabled=0)
    saved(rig, "over", next_trigger_at=None)

    assert due_names(rig) == [late.name, now.name]
    assert rig.store.next_trigger() == late.next_trigger_at


def test_a_schedule_is_found_by_its_id_whatever_it_is_called(rig: Rig) -> None:
    row = saved(rig)
    renamed = row._replace(name=rig.key("renamed"), version=2)
    assert rig.store.save_schedule(renamed, 1)

    assert rig.store.schedule_by_id(row.id) == renamed
    assert rig.store.schedule_by_id(rig.ids.new()) is None


def test_schedules_that_are_late_or_have_a_problem_are_in_trouble(rig: Rig) -> None:
    late = Micros(rig.now - MINUTE)
    resting = saved(rig, "a", problem="it cannot be read", next_trigger_at=None)
    overdue = saved(rig, "b", next_trigger_at=late)
    saved(rig, "on time", next_trigger_at=Micros(late + 1))
    saved(rig, "off", next_trigger_at=late, problem="it cannot be read", enabled=0)
    saved(rig, "over", next_trigger_at=None)

    found = rig.store.schedules_in_trouble(late, 1_000)

    assert [row for row in found if row.name.endswith(rig.mark)] == [resting, overdue]
    assert len(rig.store.schedules_in_trouble(late, 1)) == 1


# -- firing ----------------------------------------------------------------------------------------------------------


def test_a_slot_is_taken_with_its_job_and_the_schedule_moves_on(rig: Rig) -> None:
    row = saved(rig)

    fired = fire(rig, row)

    [job_id] = fired.jobs
    assert fired.applied
    assert fired.slots == (row.next_trigger_at,)
    job = rig.job(job_id)
    assert (job.state, job.row.schedule_id, job.row.scheduled_for) == (State.QUEUED, row.id, row.next_trigger_at)
    after = read(rig, row)
    assert (after.last_trigger_at, after.next_trigger_at) == (rig.now, rig.now + MINUTE)
    [slot] = rig.store.slots(row.id, Micros(rig.now + 1), 10)
    assert (slot.job_id, slot.node_id, slot.status) == (job_id, rig.node, State.QUEUED)
    assert (slot.previous_at, slot.following_at) == (rig.now - MINUTE, rig.now + MINUTE)


def test_who_comes_second_takes_nothing(rig: Rig) -> None:
    row = saved(rig)
    fire(rig, row)
    before = rig.everything()

    assert fire(rig, row) == Fired(applied=False)
    assert rig.everything() == before


def test_a_schedule_that_was_changed_or_switched_off_is_not_fired_as_it_was(rig: Rig) -> None:
    changed, off = saved(rig, "changed"), saved(rig, "off")
    assert rig.store.save_schedule(changed._replace(payload='{"n":2}', version=2), 1)
    assert rig.store.save_schedule(off._replace(enabled=0, version=2), 1)
    assert rig.node
    before = rig.everything()

    assert not fire(rig, changed).applied
    assert not fire(rig, off).applied
    assert rig.everything() == before


def test_one_that_cannot_be_fired_keeps_no_other_from_it(rig: Rig) -> None:
    stale, fresh = saved(rig, "stale"), saved(rig, "fresh")
    fire(rig, stale)
    slots = [Firing(row, [new_slot(rig, row, rig.now)], (), Micros(rig.now + MINUTE)) for row in (stale, fresh)]

    fired = rig.store.fire(slots, rig.node, rig.now)

    assert [one.applied for one in fired] == [False, True]
    assert len(fired[1].jobs) == 1


def test_an_instant_that_was_taken_by_hand_is_passed_over(rig: Rig) -> None:
    row = saved(rig)
    by_hand = rig.store.take_slot(row.id, new_slot(rig, row, rig.now), rig.now)

    fired = fire(rig, row)

    assert fired == Fired(applied=True)
    assert [slot.job_id for slot in rig.store.slots(row.id, Micros(rig.now + 1), 10)] == [by_hand.row.id]
    assert read(rig, row).next_trigger_at == rig.now + MINUTE


def test_a_problem_is_kept_and_the_schedule_rests(rig: Rig) -> None:
    row = saved(rig)

    rig.store.fire([Firing(row, (), (), None, "it cannot be understood")], rig.node, rig.now)

    after = read(rig, row)
    assert (after.next_trigger_at, after.problem) == (None, "it cannot be understood")
    assert due_names(rig) == []


def test_nothing_is_planned_any_more_after_the_last_instant(rig: Rig) -> None:
    row = saved(rig)
    firing = Firing(row, [new_slot(rig, row, rig.now)], (), None)

    assert len(rig.store.fire([firing], rig.node, rig.now)[0].jobs) == 1
    assert read(rig, row).next_trigger_at is None


def test_stretches_that_were_missed_are_kept_with_the_firing(rig: Rig) -> None:
    row = saved(rig)
    missed = Missed(Micros(rig.now - 10 * MINUTE), Micros(rig.now - MINUTE), 10, "misfired", rig.now)
    long = Missed(Micros(rig.now - 99 * MINUTE), Micros(rig.now - 11 * MINUTE), None, "outage", rig.now)

    fire(rig, row, missed=[long, missed])

    assert rig.store.missed(row.id, rig.now, 10) == [missed, long]
    assert rig.store.missed(row.id, missed.first_at, 10) == [long]


def test_while_a_job_of_the_schedule_is_live_skip_takes_nothing(rig: Rig) -> None:
    row = saved(rig)
    fire(rig, row)
    rig.clock.advance(minutes=1)

    fired = fire(rig, read(rig, row))

    assert fired == Fired(applied=True, overlapped=(rig.now,))
    assert rig.store.missed(row.id, Micros(rig.now + 1), 10) == [Missed(rig.now, rig.now, 1, "overlap", rig.now)]
    assert len(rig.in_order()) == 1
    rig.finish(rig.claim_one(), Completed())
    rig.clock.advance(minutes=1)
    assert len(fire(rig, read(rig, row)).jobs) == 1


def test_instants_skipped_one_after_the_other_are_one_stretch(rig: Rig) -> None:
    row = saved(rig)
    fire(rig, row)
    for _ in range(3):
        rig.clock.advance(minutes=1)
        fire(rig, read(rig, row))
    last = rig.now
    rig.finish(rig.claim_one(), Completed())
    rig.clock.advance(minutes=1)
    fire(rig, read(rig, row))
    rig.clock.advance(minutes=1)
    fire(rig, read(rig, row))

    assert [(one.first_at, one.last_at, one.instants) for one in rig.store.missed(row.id, Micros(rig.now + 1), 10)] == [
        (rig.now, rig.now, 1),
        (last - 2 * MINUTE, last, 3),
    ]


def test_with_queue_the_job_waits_for_the_one_before(rig: Rig) -> None:
    row = saved(rig)
    [first] = fire(rig, row, overlap="queue").jobs
    rig.clock.advance(minutes=1)
    [second] = fire(rig, read(rig, row), overlap="queue").jobs
    rig.clock.advance(minutes=1)
    [third] = fire(rig, read(rig, row), overlap="queue").jobs

    assert [rig.job(job_id).state for job_id in (first, second, third)] == ["queued", "blocked", "blocked"]
    rig.finish(rig.claim_one(), Completed())
    assert [rig.job(job_id).state for job_id in (second, third)] == ["queued", "blocked"]
    rig.finish(rig.claim_one(), Completed())
    assert rig.job(third).state == State.QUEUED


def test_with_allow_jobs_run_side_by_side(rig: Rig) -> None:
    row = saved(rig)
    fire(rig, row, overlap="allow")
    rig.clock.advance(minutes=1)
    fire(rig, read(rig, row), overlap="allow")

    assert len(rig.in_order()) == 2


def test_a_retry_as_a_new_job_still_counts_as_live(rig: Rig) -> None:
    row = saved(rig)
    slot = new_slot(rig, row, rig.now)
    assert slot.job is not None
    as_new = slot._replace(job=slot.job._replace(plan=slot.job.plan._replace(as_new_job=1)))
    rig.store.fire([Firing(row, [as_new], (), Micros(rig.now + MINUTE))], rig.node, rig.now)
    rig.finish(rig.claim_one(), Failed(BROKEN))
    rig.clock.advance(minutes=1)

    assert fire(rig, read(rig, row)).overlapped == (rig.now,)
    [taken] = rig.store.slots(row.id, rig.now, 10)
    assert taken.successor is not None
    successor = rig.job(taken.successor)
    assert successor.row.scheduled_for == taken.scheduled_for
    assert rig.store.slot_of(successor.row.id) == taken


def test_threads_that_fire_the_same_instant_make_one_job(rig: Rig) -> None:
    row = saved(rig)
    start = threading.Barrier(THREADS)
    firings = [
        Firing(row, [new_slot(rig, row, rig.now, "allow")], (), Micros(rig.now + MINUTE)) for _ in range(THREADS)
    ]

    def begin(firing: Firing) -> Fired:
        start.wait()
        return rig.store.fire([firing], rig.node, rig.now)[0]

    with ThreadPoolExecutor(THREADS) as pool:
        fired = list(pool.map(begin, firings))

    assert sorted(one.applied for one in fired) == [False] * (THREADS - 1) + [True]
    assert len(rig.in_order()) == 1


def test_a_worker_and_a_person_do_not_take_the_same_instant(rig: Rig) -> None:
    row = saved(rig)
    start = threading.Barrier(2)
    taken: list[JobId] = []

    def at_once(call: Callable[[], object]) -> object:
        start.wait()
        return call()

    def by_hand() -> None:
        taken.append(rig.store.take_slot(row.id, new_slot(rig, row, rig.now, "allow"), rig.now).row.id)

    def by_worker() -> None:
        taken.extend(fire(rig, row, overlap="allow").jobs)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(at_once, (by_hand, by_worker)))

    assert len(set(taken)) == 1
    assert len(rig.store.slots(row.id, Micros(rig.now + 1), 10)) == 1


# -- by hand ---------------------------------------------------------------------------------------------------------


def test_a_slot_that_is_taken_gives_its_job(rig: Rig) -> None:
    row = saved(rig)
    first = rig.store.take_slot(row.id, new_slot(rig, row, rig.now), rig.now)
    before = rig.everything()

    again = rig.store.take_slot(row.id, new_slot(rig, row, rig.now), rig.now)

    assert (again.row.id, first.deduplicated, again.deduplicated) == (first.row.id, False, True)
    assert rig.everything() == before
    assert read(rig, row).last_trigger_at == rig.now


def test_by_hand_there_is_no_way_around_the_overlap(rig: Rig) -> None:
    row = saved(rig)
    rig.store.take_slot(row.id, new_slot(rig, row, rig.now), rig.now)
    before = rig.everything()

    with raises(TransitionRefused, "schedule_overlap"):
        rig.store.take_slot(row.id, new_slot(rig, row, Micros(rig.now + 1)), rig.now)
    assert rig.everything() == before


# -- slots -----------------------------------------------------------------------------------------------------------


def test_slots_are_listed_newest_first_with_what_became_of_their_jobs(rig: Rig) -> None:
    row = saved(rig)
    for end in (
        Completed(),
        Failed(BROKEN._replace(permanent=True)),
        TimedOut(Failure("MaxRuntime", "long", None, True)),
    ):
        fire(rig, read(rig, row))
        rig.finish(rig.claim_one(), end)
        rig.clock.advance(minutes=1)

    slots = rig.store.slots(row.id, rig.now, 10)

    assert [slot.status for slot in slots] == ["skipped_timeout", "failed", "completed"]
    assert [slot.scheduled_for for slot in slots] == [rig.now - n * MINUTE for n in (1, 2, 3)]
    assert rig.store.slots(row.id, slots[0].scheduled_for, 1) == [slots[1]]


def test_a_job_knows_its_slot(rig: Rig) -> None:
    row = saved(rig)
    [job_id] = fire(rig, row).jobs

    slot = rig.store.slot_of(job_id)

    assert slot is not None
    assert slot.scheduled_for == rig.now
    assert rig.store.slot_of(rig.enqueue()) is None


def test_upkeep_takes_a_slot_without_a_job_and_notes_what_it_did(rig: Rig) -> None:
    row = saved(rig, source="builtin")
    slot = NewSlot(rig.now, None, None, None)
    fired = rig.store.fire([Firing(row, [slot], (), Micros(rig.now + MINUTE))], rig.node, rig.now)[0]
    assert fired == Fired(applied=True, slots=(rig.now,))
    [taken] = rig.store.slots(row.id, Micros(rig.now + 1), 10)
    assert (taken.job_id, taken.status) == (None, "running")

    assert rig.store.note_slot(row.id, rig.now, "done", '{"jobs":3}')

    [taken] = rig.store.slots(row.id, Micros(rig.now + 1), 10)
    assert (taken.status, taken.note) == ("done", '{"jobs":3}')
    assert not rig.store.note_slot(row.id, Micros(rig.now + 1), "done", None)


def test_the_waiting_jobs_of_a_schedule_are_found(rig: Rig) -> None:
    row, other = saved(rig), saved(rig, "other")
    fire(rig, row, overlap="allow")
    rig.claim_one()
    rig.clock.advance(minutes=1)
    [waiting] = fire(rig, read(rig, row), overlap="allow").jobs
    fire(rig, other)

    assert rig.store.pending_of(row.id, 10) == [waiting]


# -- declarations ----------------------------------------------------------------------------------------------------


def test_a_worker_learns_what_the_code_of_the_other_live_ones_declares(rig: Rig) -> None:
    one, two, dead = rig.register(), rig.register(), rig.register()
    name = rig.key("daily")
    rig.store.declare(dead, {name: "old"}, rig.now)
    rig.store.stop(dead, "crash", rig.now)

    assert name not in rig.store.declare(one, {name: "new"}, rig.now)
    assert rig.store.declare(two, {}, rig.now)[name] == {"new"}
    assert rig.store.declare(one, {}, rig.now).get(name) is None
    assert name not in rig.store.declare(two, {}, rig.now)


def test_the_declared_schedules_of_an_app_are_found(rig: Rig) -> None:
    row = saved(rig, source="code")
    saved(rig, "off", source="code", enabled=0)
    saved(rig, "api")
    saved(rig, "others", source="code", owner=rig.key("else"))

    assert rig.store.declared_schedules(row.owner) == [row]
