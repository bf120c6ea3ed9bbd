"""Built-in work: what is old goes, in short steps, and nothing else does."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import count, pairwise, product
from pathlib import Path
from typing import Any

import pytest

from perdure import ConfigError, Perdure, Retention
from perdure.clock import Micros
from perdure.ids import FlowId, JobId
from perdure.job.reports import Completed, Failed
from perdure.job.states import FINAL, LIVE, State
from perdure.kind import Registry
from perdure.store.rows import JobFilter, LogLine
from perdure.testing.contract.rig import BROKEN, HOPELESS, Rig
from perdure.testing.contract.states import in_state
from perdure.upkeep.archive import REMOVED_AT_ONCE, find_archived
from perdure.upkeep.retention import READ_AT_ONCE, Archive, Prune, QuickCheck, Work, built_in

DAY = timedelta(days=1)
NEVER = Retention(completed=None, cancelled=None, skipped=None, logs=None, records=None)


def done(work: Work, now: Micros) -> dict[str, int]:
    """What it counted at its end."""
    work.begin(now)
    while True:
        counts = work.step()
        if counts is not None:
            return counts


def prune(rig: Rig, retention: Retention | None = None) -> dict[str, int]:
    return done(Prune(rig.store, rig.clock, retention or Retention()), rig.now)


def left(rig: Rig) -> set[JobId]:
    return set(rig.jobs(JobFilter(), 10_000))


@pytest.mark.parametrize("state", sorted(FINAL - {State.FAILED}))
def test_a_job_goes_when_its_ninety_days_are_over(rig: Rig, state: State) -> None:
    job_id = in_state(rig, state)
    rig.clock.advance(days=90)

    assert "jobs" not in prune(rig)
    assert left(rig) == {job_id}

    rig.clock.advance(milliseconds=1)

    assert prune(rig)["jobs"] == 1
    assert left(rig) == set()


@pytest.mark.parametrize("state", sorted(LIVE | {State.FAILED}))
def test_a_job_that_failed_or_has_not_ended_stays_however_old_it_is(rig: Rig, state: State) -> None:
    job_id = in_state(rig, state)
    rig.clock.advance(days=3650)
    everything = rig.job(job_id), rig.runs(job_id)

    prune(rig)

    assert (rig.job(job_id), rig.runs(job_id)) == everything


def test_a_failed_job_goes_where_that_is_wanted(rig: Rig) -> None:
    in_state(rig, State.FAILED)
    rig.clock.advance(days=31)

    assert prune(rig, Retention(failed=30 * DAY)) == {"jobs": 1}


def test_a_job_that_a_new_one_continues_goes_like_a_completed_one(rig: Rig) -> None:
    first = rig.start(as_new_job=True)
    rig.finish(first, Failed(BROKEN))
    rig.clock.advance(days=91)

    assert prune(rig)["jobs"] == 1
    assert [rig.job(job_id).row.retry_of for job_id in left(rig)] == [first.job_id]


def test_the_time_counts_from_the_end_not_from_the_beginning(rig: Rig) -> None:
    claim = rig.start()
    rig.clock.advance(days=91)
    rig.store.beat(rig.node, rig.now)
    rig.finish(claim, Completed())
    rig.clock.advance(days=89)

    assert prune(rig) == {}
    assert left(rig) == {claim.job_id}


def test_the_last_life_counts(rig: Rig) -> None:
    job_id = in_state(rig, State.FAILED)
    rig.clock.advance(days=91)
    rig.store.retry(job_id, rig.now)
    rig.finish(rig.claim_one(), Completed())

    assert prune(rig, Retention(failed=DAY)) == {}

    rig.clock.advance(days=91)

    assert prune(rig, Retention(failed=DAY))["jobs"] == 1


def test_a_job_that_lives_again_is_not_even_tried(rig: Rig) -> None:
    rig.store.retry(in_state(rig, State.CANCELLED), rig.now)
    rig.clock.advance(days=91)

    assert prune(rig) == {}


def test_a_kind_has_its_own_time(rig: Rig) -> None:
    failed = in_state(rig, State.FAILED)
    mine, other = rig.enqueue(), rig.enqueue(kind="other")
    for claim in rig.claim(2):
        rig.finish(claim, Completed())
    rig.clock.advance(days=2)

    assert prune(rig, Retention(kinds={rig.kind: DAY})) == {"jobs": 1}
    assert left(rig) == {other, failed}
    assert rig.store.get(mine) is None


def test_a_kind_can_be_kept_for_ever(rig: Rig) -> None:
    in_state(rig, State.COMPLETED)
    rig.clock.advance(days=3650)

    assert "jobs" not in prune(rig, Retention(kinds={rig.kind: None}))


def test_the_time_of_a_kind_counts_under_its_earlier_names(rig: Rig) -> None:
    app = Perdure(rig.url)

    @app.job(name="send", aliases=["mail"])
    def send() -> None: ...

    in_state(rig, State.COMPLETED, kind="mail")
    rig.clock.advance(days=2)
    work, *_ = built_in(rig.store, rig.clock, Retention(kinds={"send": DAY}), app.kinds)

    assert done(work, rig.now) == {"jobs": 1}


def test_nothing_goes_where_everything_is_to_be_kept(rig: Rig) -> None:
    for state in FINAL:
        in_state(rig, state)
    before = rig.everything()
    rig.clock.advance(days=3650)

    assert prune(rig, NEVER) == {}
    assert rig.everything() == before


def test_log_lines_go_after_seven_days_whatever_job_they_are_of(rig: Rig) -> None:
    claim = rig.start()
    for _ in range(2):
        rig.store.append_log([LogLine(claim.run_id, rig.now, claim.job_id, rig.now, "INFO", "line")])
        rig.clock.advance(days=7, milliseconds=1)

    assert prune(rig) == {"log lines": 2}


def test_a_repeat_finds_nothing_more(rig: Rig) -> None:
    in_state(rig, State.COMPLETED)
    rig.clock.advance(days=100)
    assert prune(rig)
    before = rig.everything()

    assert prune(rig) == {}
    assert rig.everything() == before


def test_nodes_and_locks_that_are_of_no_use_any_more_go(rig: Rig) -> None:
    node = rig.register()
    rig.store.stop(node, "signal", rig.now)
    rig.store.take_lock("report", "me", rig.now, 1_000)
    rig.clock.advance(days=91)
    living = rig.register()

    assert prune(rig) == {"nodes": 1, "locks": 1}
    assert [row.id for row in rig.store.nodes(10)] == [living]


def many_ended(rig: Rig, number: int) -> list[JobId]:
    ids = rig.enqueue_many(number)
    while claims := rig.claim(500):
        rig.store.finish([rig.report(claim, Completed()) for claim in claims], rig.now)
    return ids


def test_no_step_removes_many_jobs_and_all_of_them_go(rig: Rig) -> None:
    number = 2 * READ_AT_ONCE + 50
    many_ended(rig, number)
    rig.clock.advance(days=91)
    work = Prune(rig.store, rig.clock, Retention(records=None))
    work.begin(rig.now)
    sizes = [number]
    while (counts := work.step()) is None:
        sizes.append(int(str(rig.execute("SELECT COUNT(*) FROM {job}")[0][0])))

    assert counts == {"jobs": number}
    assert sizes[-1] == 0
    assert max(before - after for before, after in pairwise(sizes)) == REMOVED_AT_ONCE


def test_jobs_that_stay_do_not_hide_those_behind_them(rig: Rig) -> None:
    failed = rig.enqueue_many(READ_AT_ONCE + 10)
    while claims := rig.claim(500):
        rig.store.finish([rig.report(claim, Failed(BROKEN._replace(permanent=True))) for claim in claims], rig.now)
    completed = many_ended(rig, 10)
    rig.clock.advance(days=91)

    assert prune(rig)["jobs"] == len(completed)
    assert left(rig) == set(failed)


@pytest.mark.parametrize("archive", ["table", None])
def test_a_job_that_is_reopened_meanwhile_stays(rig: Rig, archive: Any) -> None:
    """After it was found, and before it would have been removed."""
    reopened, other = in_state(rig, State.CANCELLED), in_state(rig, State.CANCELLED)
    rig.clock.advance(days=91)
    retention = Retention(archive=archive, records=None)
    work = (Prune if archive is None else Archive)(rig.store, rig.clock, retention)
    work.begin(rig.now)
    assert work.step() is None
    rig.store.retry(reopened, rig.now)
    while (counts := work.step()) is None:
        pass

    assert counts == {"jobs": 1, "jobs passed over": 1}
    assert left(rig) == {reopened}
    assert rig.job(reopened).state == State.QUEUED
    assert rig.store.get(other) is None


def test_it_starts_over_when_it_was_left_in_the_middle(rig: Rig) -> None:
    many_ended(rig, 2 * REMOVED_AT_ONCE)
    rig.clock.advance(days=91)
    work = Prune(rig.store, rig.clock, Retention(records=None))
    work.begin(rig.now)
    for _ in range(2):
        assert work.step() is None

    assert done(work, rig.now) == {"jobs": REMOVED_AT_ONCE}
    assert left(rig) == set()


def test_two_may_sweep_at_once(rig: Rig) -> None:
    many_ended(rig, 2 * REMOVED_AT_ONCE)
    rig.clock.advance(days=91)
    both = [Prune(rig.store, rig.clock, Retention(records=None)) for _ in range(2)]
    for work in both:
        work.begin(rig.now)
    counts: list[dict[str, int]] = []
    while len(counts) < 2:
        counts += [found for work in both if (found := work.step()) is not None]

    assert sum(found["jobs"] for found in counts if "jobs" in found) == 2 * REMOVED_AT_ONCE
    assert left(rig) == set()


def test_it_rests_nine_times_as_long_as_it_works(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    in_state(rig, State.COMPLETED)
    rig.clock.advance(days=91)
    times = count(0, 0.002)
    monkeypatch.setattr(rig.clock, "boottime", lambda: next(times))
    work = Prune(rig.store, rig.clock, Retention())
    work.begin(rig.now)
    work.step()

    assert work.rest_s == pytest.approx(0.018)


# -- archive ---------------------------------------------------------------------------------------------------------


def test_old_jobs_go_into_the_archive_and_pruning_leaves_them_alone(rig: Rig) -> None:
    old = in_state(rig, State.COMPLETED)
    rig.clock.advance(days=91)
    new = in_state(rig, State.COMPLETED)
    retention = Retention(archive="table", records=None)

    assert prune(rig, retention) == {}
    assert done(Archive(rig.store, rig.clock, retention), rig.now) == {"jobs": 1}
    assert left(rig) == {new}
    assert rig.store.archived(old) is not None


def test_old_jobs_go_to_files(rig: Rig, tmp_path: Path) -> None:
    ids = many_ended(rig, REMOVED_AT_ONCE + 1)
    rig.clock.advance(days=91)
    folder = tmp_path / "archive"

    assert done(Archive(rig.store, rig.clock, Retention(archive=folder)), rig.now) == {"jobs": len(ids)}
    assert left(rig) == set()
    [file] = folder.iterdir()
    assert len(file.read_text().splitlines()) == len(ids)
    found = find_archived(rig.store, folder, ids[0])
    assert found is not None
    assert found["job"]["state"] == "completed"


def test_nothing_is_archived_where_nothing_was_asked_for(rig: Rig) -> None:
    in_state(rig, State.COMPLETED)
    rig.clock.advance(days=91)

    assert done(Archive(rig.store, rig.clock, Retention()), rig.now) == {}


# -- the doctor ------------------------------------------------------------------------------------------------------


def test_a_healthy_database_gives_no_findings(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    in_state(rig, State.COMPLETED)

    assert done(QuickCheck(rig.store, rig.clock), rig.now) == {}
    assert caplog.records == []


@pytest.mark.damaged
def test_what_the_doctor_finds_is_counted_and_logged(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.enqueue()
    rig.execute("UPDATE {ready} SET paused = 1")

    with caplog.at_level(logging.WARNING, "perdure.worker"):
        assert done(QuickCheck(rig.store, rig.clock), rig.now) == {"pause_disagrees": 1}
    assert "pause_disagrees" in caplog.text


def test_an_error_of_the_doctor_is_raised(rig: Rig) -> None:
    class Unable:
        def check(self, *_: object) -> Sequence[tuple[object, ...]]:
            raise NotImplementedError("no checks here")

    store: Any = Unable()
    work = QuickCheck(store, rig.clock)
    work.begin(rig.now)

    with pytest.raises(Exception, match="no checks here"):
        while work.step() is None:
            pass


# -- settings --------------------------------------------------------------------------------------------------------


def test_every_piece_of_work_has_a_name_and_a_time(rig: Rig) -> None:
    works = built_in(rig.store, rig.clock, Retention(), Registry())

    assert [work.name for work in works] == ["perdure.prune", "perdure.archive", "perdure.check"]
    assert all(len(work.every.split()) == 5 for work in works)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"completed": 90}, "completed must be a timedelta"),
        ({"logs": -DAY}, "logs must be a timedelta, not negative"),
        ({"kinds": {"send": "30d"}}, "'send'"),
        ({"kinds": [DAY]}, "kinds must be a dict"),
        ({"archive": "folder"}, "archive must be None"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_name(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Retention(**wrong)


def test_the_app_takes_the_setting_and_has_a_usual_one(tmp_path: Path) -> None:
    assert Perdure(tmp_path / "jobs.db").config.retention == Retention()
    assert Perdure(tmp_path / "jobs.db", retention=NEVER).config.retention == NEVER
    with pytest.raises(ConfigError, match=r"retention must be Retention\(…\)"):
        Perdure(tmp_path / "jobs.db", retention="90d")  # type: ignore[arg-type]


def test_the_usual_times_are_those_of_the_documents() -> None:
    usual = Retention()

    assert (usual.completed, usual.cancelled, usual.skipped, usual.records) == (90 * DAY,) * 4
    assert (usual.failed, usual.logs, usual.archive) == (None, 7 * DAY, None)
    assert usual.shortest == 90 * DAY
    assert NEVER.shortest is None
    assert replace(NEVER, failed=DAY).shortest == DAY


def test_every_combination_of_end_and_age_is_judged_as_the_setting_says(rig: Rig) -> None:
    """Not only one after the other: all of them in one database."""
    retention = Retention(completed=10 * DAY, cancelled=20 * DAY, skipped=30 * DAY, failed=40 * DAY, records=None)
    ages = {State.COMPLETED: 10, State.CANCELLED: 20, State.SKIPPED: 30, State.FAILED: 40}
    made: dict[JobId, tuple[State, int]] = {}
    for age, state in product(range(45, 0, -5), sorted(FINAL)):
        made[in_state(rig, state)] = state, age
        rig.clock.advance(days=5 * (state == max(FINAL)))
    rig.clock.advance(milliseconds=1)
    prune(rig, retention)

    assert left(rig) == {job_id for job_id, (state, age) in made.items() if age < ages[state]}


# -- flows -----------------------------------------------------------------------------------------------------------


def completed_flow(rig: Rig, jobs: int = 3) -> FlowId:
    """A flow, and one inside it, all of whose jobs are completed."""
    outer = rig.new_flow()
    inner = rig.new_flow(parent_id=outer.id)
    rig.store.start_flows([outer, inner], [*rig.members(outer, jobs), *rig.members(inner, 2)])
    while claims := rig.claim(100):
        rig.store.finish([rig.report(claim, Completed()) for claim in claims], rig.now)
    return outer.id


def test_a_flow_goes_whole_when_it_is_old_enough(rig: Rig) -> None:
    flow_id = completed_flow(rig, REMOVED_AT_ONCE + 3)
    rig.clock.advance(days=90)
    assert prune(rig) == {}
    assert rig.store.flow(flow_id) is not None

    rig.clock.advance(milliseconds=1)

    assert prune(rig) == {"jobs": REMOVED_AT_ONCE + 5, "flows": 2}
    assert (left(rig), rig.store.flow(flow_id)) == (set(), None)


def test_a_member_that_is_old_enough_waits_for_its_flow(rig: Rig) -> None:
    flow_id, _ = rig.start_flow(2)
    rig.finish(rig.claim_one(), Completed())
    rig.clock.advance(days=3650)

    assert prune(rig) == {}

    rig.finish(rig.claim_one(), Completed())
    assert prune(rig) == {}
    assert rig.flow(flow_id).state == "completed"


def test_a_flow_in_which_a_job_failed_stays_like_a_failed_job(rig: Rig) -> None:
    flow_id, members = rig.start_flow(2)
    rig.finish(rig.claim_one(), Failed(HOPELESS))
    rig.finish(rig.claim_one(), Completed())
    rig.clock.advance(days=3650)

    assert prune(rig) == {}
    assert left(rig) == set(members)

    assert prune(rig, Retention(failed=30 * DAY)) == {"jobs": 2, "flows": 1}
    assert rig.store.flow(flow_id) is None


def test_a_flow_is_archived_whole(rig: Rig) -> None:
    completed_flow(rig)
    jobs = left(rig)
    rig.clock.advance(days=91)

    done(Archive(rig.store, rig.clock, Retention(archive="table")), rig.now)

    assert left(rig) == set()
    assert all(rig.store.archived(job_id) is not None for job_id in jobs)
