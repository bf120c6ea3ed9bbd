"""`perdure doctor`, as its users see it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.app.contents import contents
from tests.cli.terminal import Perdure, process, refusal
from tests.unit.patient import Patient, ended_and_live

pytestmark = pytest.mark.damaged

UNPAUSED = "UPDATE perdure_ready SET paused = 0 WHERE job_id = :paused"
ORPHANED = "INSERT INTO perdure_tag VALUES (:missing, 'x')"
UNREADABLE = "UPDATE perdure_job SET payload = '{' WHERE id = :queued"
TIED = "UPDATE perdure_ready SET position = 100 WHERE job_id IN (:scheduled, :queued)"


def test_a_healthy_database_is_told_to_be_so(perdure: Perdure, patient: Patient, tmp_path: Path) -> None:
    ran = perdure("doctor", "--url", "jobs.db", cwd=tmp_path)

    assert (ran.status, ran.err) == (0, "")
    assert ran.out.startswith("Healthy: ")


def test_a_violation_is_shown_in_a_table_and_the_status_is_one(patient: Patient, tmp_path: Path) -> None:
    patient.suffer(UNPAUSED)

    ran = process("doctor", "--url", "jobs.db", cwd=tmp_path)

    assert ran.status == 1
    for told in ("pause_disagrees", "violation", "land_again", str(patient.ids["paused"].hex()[:8])):
        assert told in ran.out


def test_an_info_is_shown_but_the_status_is_zero(perdure: Perdure, patient: Patient, tmp_path: Path) -> None:
    patient.suffer(TIED)

    ran = perdure("doctor", "--url", "jobs.db", cwd=tmp_path)

    assert ran.status == 0
    assert "order_tie" in ran.out


def test_programs_get_json(perdure: Perdure, patient: Patient, tmp_path: Path) -> None:
    patient.suffer(UNPAUSED)

    ran = perdure("doctor", "--url", "jobs.db", "--json", cwd=tmp_path)

    told = ran.json()
    assert ran.status == 1
    assert (told["healthy"], told["repaired"]) == (False, {})
    [finding] = told["findings"]
    assert (finding["name"], finding["severity"], finding["count"]) == ("pause_disagrees", "violation", 1)
    assert (len(finding["examples"]), finding["repair"]) == (1, "land_again")


def test_looking_changes_nothing(perdure: Perdure, patient: Patient, tmp_path: Path) -> None:
    patient.suffer(UNPAUSED)
    before = contents(patient.path)

    perdure("doctor", "--url", "jobs.db", cwd=tmp_path)

    assert contents(patient.path) == before


def test_a_repair_shows_what_it_would_do_and_asks(perdure: Perdure, patient: Patient, tmp_path: Path) -> None:
    patient.suffer(UNPAUSED)
    before = contents(patient.path)

    ran = perdure("doctor", "--url", "jobs.db", "--repair", cwd=tmp_path, typed="n\n")

    assert ran.status == 1
    assert "land_again: put jobs whose row contradicts itself where they belong" in ran.out
    assert contents(patient.path) == before


def test_what_was_agreed_to_is_done_and_logged(patient: Patient, tmp_path: Path) -> None:
    patient.suffer(UNPAUSED, ORPHANED)

    ran = process("doctor", "--url", "jobs.db", "--repair", cwd=tmp_path, typed="y\n")

    assert ran.status == 0
    assert "Healthy" in ran.out
    for logged in ("repair land_again: 1 changed", "repair remove_orphan_tags: 1 changed"):
        assert logged in ran.err


def test_nobody_there_to_ask_means_no(perdure: Perdure, patient: Patient, tmp_path: Path) -> None:
    patient.suffer(UNPAUSED)
    before = contents(patient.path)

    ran = perdure("doctor", "--url", "jobs.db", "--repair", cwd=tmp_path)

    assert ran.status == 1
    assert contents(patient.path) == before


def test_yes_asks_nothing(perdure: Perdure, patient: Patient, tmp_path: Path) -> None:
    patient.suffer(UNPAUSED)

    ran = perdure("doctor", "--url", "jobs.db", "--repair", "--yes", "--json", cwd=tmp_path)

    assert ran.status == 0
    assert ran.json() == {"healthy": True, "findings": [], "repaired": {"land_again": 1}, "left": {}}


def test_what_a_repair_brings_to_light_is_repaired_too(perdure: Perdure, patient: Patient, tmp_path: Path) -> None:
    patient.suffer(ended_and_live("running"))

    ran = perdure("doctor", "--url", "jobs.db", "--repair", "--yes", "--json", cwd=tmp_path)

    assert ran.status == 0
    assert ran.json()["repaired"] == {"remove_ended_rows": 1, "close_open_runs": 1}


def test_what_has_no_repair_stays_and_so_does_the_status(perdure: Perdure, patient: Patient, tmp_path: Path) -> None:
    patient.suffer(UNREADABLE)

    ran = perdure("doctor", "--url", "jobs.db", "--repair", "--yes", cwd=tmp_path)

    assert ran.status == 1
    assert "unreadable_payload" in ran.out


def test_a_violation_that_is_left_is_named_with_the_reason(perdure: Perdure, patient: Patient, tmp_path: Path) -> None:
    patient.suffer(UNPAUSED, UNREADABLE, TIED)

    ran = perdure("doctor", "--url", "jobs.db", "--repair", "--yes", cwd=tmp_path)

    assert ran.status == 1
    assert [line for line in ran.out.splitlines() if line.startswith("Left: ")] == [
        "Left: unreadable_payload: there is no safe repair; its explanation says what to do."
    ]


def test_a_repair_that_may_change_nothing_is_no_cure(perdure: Perdure, patient: Patient, tmp_path: Path) -> None:
    patient.suffer(
        UNPAUSED,
        "UPDATE perdure_business_key SET job_id = :queued WHERE key = 'order-1'",
        "UPDATE perdure_ready SET business_key = 'order-1' WHERE job_id = :queued",
        "UPDATE perdure_job SET business_key = 'order-1' WHERE id = :queued",
    )

    ran = perdure("doctor", "--url", "jobs.db", "--repair", "--yes", "--json", cwd=tmp_path)

    told = ran.json()
    assert (ran.status, told["healthy"], told["repaired"]) == (1, False, {"land_again": 1})
    assert list(told["left"]) == ["business_key_not_reserved"]
    assert "reserve_business_keys found nothing that it may change" in told["left"]["business_key_not_reserved"]


def test_what_was_not_agreed_to_is_left(perdure: Perdure, patient: Patient, tmp_path: Path) -> None:
    patient.suffer(UNPAUSED)

    ran = perdure("doctor", "--url", "jobs.db", "--repair", cwd=tmp_path, typed="n\n")

    assert ran.status == 1
    assert "Left: pause_disagrees: its repair land_again was not applied." in ran.out


def test_json_cannot_ask(perdure: Perdure, patient: Patient, tmp_path: Path) -> None:
    ran = perdure("doctor", "--url", "jobs.db", "--repair", "--json", cwd=tmp_path)

    assert (ran.status, ran.out) == (2, "")
    assert "--yes" in ran.err


def test_a_path_without_a_database_is_refused_and_nothing_is_created(tmp_path: Path) -> None:
    ran = process("doctor", "--url", "jobs.db", cwd=tmp_path)

    assert "[database_missing]" in refusal(ran)
    assert list(tmp_path.iterdir()) == []


def test_a_database_that_is_not_perdures_is_refused_and_left_alone(perdure: Perdure, tmp_path: Path) -> None:
    Patient(tmp_path / "jobs.db", {}).suffer("CREATE TABLE mine (x)")
    before = contents(tmp_path / "jobs.db")

    ran = perdure("doctor", "--url", "jobs.db", cwd=tmp_path)

    assert "[schema_missing]" in refusal(ran)
    assert contents(tmp_path / "jobs.db") == before


def test_a_file_that_is_no_database_is_refused(perdure: Perdure, tmp_path: Path) -> None:
    Path(tmp_path, "jobs.db").write_text("this is a letter to my aunt, not a database" * 100)

    assert "[not_a_database]" in refusal(perdure("doctor", "--url", "jobs.db", cwd=tmp_path))
