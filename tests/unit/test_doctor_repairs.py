"""Every repair cures what it is named for, decides as Perdure always does, and leaves the healthy alone."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure import Perdure, State
from perdure.errors import InvalidInput
from perdure.ids import to_uuid
from perdure.job.views import Job
from perdure.ops.doctor import CHECKS, examine
from perdure.ops.repairs import BATCH, REPAIRS, repair, repairs_for
from tests.app.contents import contents
from tests.unit.patient import CASES, Case, Patient, ended_and_live, healthy

pytestmark = pytest.mark.damaged

CURES = {check.name: check.repair for check in CHECKS if check.repair}
CURABLE = [case for case in CASES if case.findings and case.findings.keys() <= CURES.keys()]


@pytest.fixture(scope="module")
def model_patient(tmp_path_factory: pytest.TempPathFactory) -> Patient:
    return healthy(tmp_path_factory.mktemp("healthy") / "jobs.db")


@pytest.fixture
def patient(model_patient: Patient, tmp_path: Path) -> Patient:
    return model_patient.copy(tmp_path / "jobs.db")


@pytest.fixture
def app(patient: Patient) -> Iterator[Perdure]:
    app = patient.app()
    yield app
    app.close()


def job(app: Perdure, patient: Patient, name: str) -> Job:
    found = app.get(to_uuid(patient.ids[name]))
    assert found is not None
    return found


@pytest.mark.parametrize("case", CURABLE, ids=str)
def test_the_cures_leave_nothing_to_find(case: Case, patient: Patient, app: Perdure) -> None:
    patient.suffer(*case.statements)

    changed = [repair(app.store, cure.name) for cure in repairs_for(examine(app.store))]

    assert all(changed)
    assert examine(app.store) == []


@pytest.mark.parametrize("name", [cure.name for cure in REPAIRS])
def test_a_healthy_database_is_left_alone(name: str, patient: Patient, app: Perdure) -> None:
    before = contents(patient.path)

    assert repair(app.store, name) == 0

    assert contents(patient.path) == before


def test_a_cure_nobody_knows_is_refused(app: Perdure) -> None:
    with pytest.raises(InvalidInput, match="repair_unknown"):
        repair(app.store, "leeches")


def test_cures_come_in_the_order_in_which_they_are_applied(patient: Patient, app: Perdure) -> None:
    patient.suffer(
        "INSERT INTO perdure_tag VALUES (:missing, 'x')",
        "DELETE FROM perdure_run WHERE job_id = :running",
        "UPDATE perdure_ready SET paused = 0 WHERE job_id = :paused",
    )

    cures = repairs_for(examine(app.store))

    assert [cure.name for cure in cures] == ["settle_running", "land_again", "remove_orphan_tags"]


def test_each_repair_is_logged(patient: Patient, app: Perdure, caplog: pytest.LogCaptureFixture) -> None:
    patient.suffer("INSERT INTO perdure_tag VALUES (:missing, 'x')")
    with caplog.at_level(logging.INFO, "perdure.doctor"):
        repair(app.store, "remove_orphan_tags")
        repair(app.store, "remove_orphan_tags")

    assert [record.getMessage() for record in caplog.records] == ["repair remove_orphan_tags: 1 changed"]


def test_more_than_one_portion_is_repaired_in_one_go(patient: Patient, app: Perdure) -> None:
    work = app.job(name="work")(lambda n: n)
    app.enqueue_many([work.new(n) for n in range(BATCH + 5)])
    patient.suffer("UPDATE perdure_ready SET paused = 1 WHERE state = 'queued'")

    assert repair(app.store, "land_again") > BATCH

    assert examine(app.store) == []


# -- running jobs ----------------------------------------------------------------------------------------------------


def test_a_job_that_runs_without_a_run_gets_a_lost_one_and_waits_again(patient: Patient, app: Perdure) -> None:
    patient.suffer("DELETE FROM perdure_run WHERE job_id = :running")

    repair(app.store, "settle_running")

    settled = job(app, patient, "running")
    [run] = app.runs(settled)
    assert (settled.state, settled.attempts) == (State.QUEUED, 1)
    assert (run.state, run.attempt, run.error_type) == ("lost", 1, "Lost")


def test_its_budget_spent_a_job_without_a_run_fails(patient: Patient, app: Perdure) -> None:
    patient.suffer(
        "DELETE FROM perdure_run WHERE job_id = :running",
        "UPDATE perdure_ready SET attempts = 3 WHERE job_id = :running",
    )

    repair(app.store, "settle_running")

    assert job(app, patient, "running").state == State.FAILED


@pytest.mark.parametrize("ended", ["completed", "cancelled", "skipped"])
def test_a_job_whose_run_has_ended_ends_the_same_way(ended: str, patient: Patient, app: Perdure) -> None:
    patient.suffer(f"UPDATE perdure_run SET state = '{ended}', finished_at = started_at + 1 WHERE job_id = :running")

    repair(app.store, "settle_running")

    assert job(app, patient, "running").state == ended
    assert examine(app.store) == []


@pytest.mark.parametrize("ended", ["failed", "timed_out", "lost", "released"])
def test_a_job_whose_run_came_to_nothing_waits_again(ended: str, patient: Patient, app: Perdure) -> None:
    patient.suffer(f"UPDATE perdure_run SET state = '{ended}', finished_at = started_at + 1 WHERE job_id = :running")

    repair(app.store, "settle_running")

    settled = job(app, patient, "running")
    assert settled.state == State.QUEUED
    assert [run.state for run in app.runs(settled)] == [ended]


def test_the_jobs_of_a_stopped_node_are_rescued(patient: Patient, app: Perdure) -> None:
    patient.suffer("UPDATE perdure_node SET stopped_at = beat_at, stop_reason = 'crash'")

    assert repair(app.store, "rescue_running") == 6

    rescued = job(app, patient, "running")
    assert (rescued.state, rescued.attempts, rescued.crashes) == (State.QUEUED, 1, 1)
    assert job(app, patient, "superseded").state == State.CANCELLED
    assert job(app, patient, "blocked").state == State.QUEUED


def test_after_how_many_crashes_a_job_is_given_up_is_left_to_the_workers(patient: Patient, app: Perdure) -> None:
    patient.suffer(
        "UPDATE perdure_node SET stopped_at = beat_at, stop_reason = 'crash'",
        "UPDATE perdure_ready SET crashes = 7, max_attempts = 99 WHERE job_id = :running",
    )

    repair(app.store, "rescue_running")

    rescued = job(app, patient, "running")
    assert (rescued.state, rescued.crashes) == (State.QUEUED, 8)


def test_a_job_with_neither_node_nor_run_is_left_to_the_repair_that_records_one(patient: Patient, app: Perdure) -> None:
    patient.suffer(
        "UPDATE perdure_ready SET node_id = NULL WHERE job_id = :running",
        "DELETE FROM perdure_run WHERE job_id = :running",
    )

    assert repair(app.store, "rescue_running") == 0
    assert repair(app.store, "settle_running") == 1

    assert examine(app.store) == []


def test_the_run_that_holds_the_job_stays_open(patient: Patient, app: Perdure) -> None:
    patient.suffer(
        "INSERT INTO perdure_run (id, job_id, state, node_id, attempt, life, started_at, wait_ms)"
        " SELECT :missing, job_id, state, node_id, attempt, life, started_at, 0 FROM perdure_run"
        " WHERE job_id = :running"
    )

    repair(app.store, "close_open_runs")

    states = {run.row.id == patient.ids["missing"]: run.state for run in app.runs(job(app, patient, "running"))}
    assert states == {True: "lost", False: "running"}


# -- waiting jobs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("injury", "name", "state"),
    [
        ("UPDATE perdure_ready SET paused = 1 WHERE job_id = :queued", "queued", State.PAUSED),
        ("UPDATE perdure_ready SET paused = 0 WHERE job_id = :paused", "paused", State.QUEUED),
        ("UPDATE perdure_ready SET state = 'queued' WHERE job_id = :blocked", "blocked", State.BLOCKED),
        ("UPDATE perdure_ready SET state = 'held' WHERE job_id = :scheduled", "scheduled", State.SCHEDULED),
        ("UPDATE perdure_ready SET park_reason = NULL WHERE job_id = :parked", "parked", State.QUEUED),
        ("UPDATE perdure_ready SET paused = 1 WHERE job_id = :running", "running", State.RUNNING),
    ],
)
def test_a_job_goes_where_the_one_rule_says(
    injury: str, name: str, state: State, patient: Patient, app: Perdure
) -> None:
    patient.suffer(injury)

    repair(app.store, "land_again")

    assert job(app, patient, name).state == state


def test_a_job_that_waits_for_an_ended_one_is_let_go(patient: Patient, app: Perdure) -> None:
    patient.suffer("UPDATE perdure_edge SET depends_on = :failed WHERE job_id = :blocked")

    repair(app.store, "recount_waits")

    assert job(app, patient, "blocked").state == State.QUEUED


def test_a_job_that_waits_for_more_than_there_is_still_waits_for_what_there_is(patient: Patient, app: Perdure) -> None:
    patient.suffer("UPDATE perdure_ready SET waits_for = 5 WHERE job_id = :blocked")

    repair(app.store, "recount_waits")

    assert (job(app, patient, "blocked").state, patient.rows("SELECT COUNT(*) FROM perdure_edge")) == (
        State.BLOCKED,
        [(2,)],
    )


# -- ends, keys and order --------------------------------------------------------------------------------------------


def test_a_job_without_a_state_is_kept_as_failed_and_can_be_retried(patient: Patient, app: Perdure) -> None:
    patient.suffer("DELETE FROM perdure_ready WHERE job_id = :scheduled")

    repair(app.store, "fail_lost_jobs")

    lost = job(app, patient, "scheduled")
    assert (lost.state, lost.error_type) == (State.FAILED, "Lost")
    assert app.retry(lost).state == State.QUEUED
    assert examine(app.store) == []


def test_a_job_without_a_state_fails_in_the_life_that_it_was_in(patient: Patient, app: Perdure) -> None:
    patient.suffer("DELETE FROM perdure_outcome WHERE job_id = :twice")

    repair(app.store, "fail_lost_jobs")

    assert (job(app, patient, "twice").state, job(app, patient, "twice").life) == (State.FAILED, 2)


def test_the_outcome_counts_where_a_live_row_contradicts_it(patient: Patient, app: Perdure) -> None:
    patient.suffer(ended_and_live("scheduled"))
    assert job(app, patient, "scheduled").state == State.SCHEDULED

    repair(app.store, "remove_ended_rows")

    assert job(app, patient, "scheduled").state == State.CANCELLED


def test_a_key_that_another_live_job_holds_stays_with_it(patient: Patient, app: Perdure) -> None:
    patient.suffer(
        "UPDATE perdure_business_key SET job_id = :queued WHERE key = 'order-1'",
        "UPDATE perdure_ready SET business_key = 'order-1' WHERE job_id = :queued",
        "UPDATE perdure_job SET business_key = 'order-1' WHERE id = :queued",
    )

    assert repair(app.store, "reserve_business_keys") == 0

    assert [found.name for found in examine(app.store)] == ["business_key_not_reserved"]


def test_after_the_counter_was_raised_new_jobs_go_to_the_back(patient: Patient, app: Perdure) -> None:
    patient.suffer("UPDATE perdure_queue SET next_position = 1 WHERE name = 'default'")
    work = app.job(name="work")(lambda: None)

    repair(app.store, "raise_queue_counters")

    newest = work.enqueue()
    assert list(app.jobs(state="queued", queue="default"))[-1].id == newest.id
