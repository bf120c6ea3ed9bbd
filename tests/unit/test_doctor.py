"""The doctor finds what is wrong, all of it and nothing else, and touches nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest

from perdure import Perdure
from perdure.errors import InvalidInput
from perdure.ids import to_uuid
from perdure.ops.doctor import CHECKS, EXAMPLES, Check, Finding, Severity, examine, is_healthy, not_json, not_objects
from perdure.ops.repairs import REPAIRS
from perdure.store.store import SqlStore
from tests.app.contents import contents
from tests.unit.patient import CASES, Case, Patient, healthy

pytestmark = pytest.mark.damaged

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "doctor.md"
CASED = pytest.mark.parametrize("case", CASES, ids=str)


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


def names(findings: list[Finding]) -> list[str]:
    return [found.name for found in findings]


def test_nothing_is_found_in_a_healthy_database(app: Perdure) -> None:
    assert examine(app.store) == []


@CASED
def test_an_injury_is_found_and_nothing_else(case: Case, patient: Patient, app: Perdure) -> None:
    moment = patient.now()
    patient.suffer(*case.statements)

    findings = examine(app.store, moment)

    assert {found.name: sorted(found.examples) for found in findings} == case.expected(patient.ids)


def test_every_check_has_its_query_and_every_query_its_check() -> None:
    folder = files("perdure.store") / "sql"
    texts = [(folder / name).read_text("utf-8") for name in ("doctor.sql", "doctor_links.sql", "doctor_limits.sql")]
    queries = set(re.findall(r"^-- name: (\w+)$", "".join(texts), re.MULTILINE))

    assert queries - {"read_revision"} == {check.name for check in CHECKS}


def test_looking_changes_nothing(patient: Patient, app: Perdure) -> None:
    patient.suffer("UPDATE perdure_ready SET paused = 1 WHERE job_id = :queued")
    before = contents(patient.path)

    examine(app.store)

    assert contents(patient.path) == before


def test_a_finding_says_how_many_there_are_and_shows_a_few(patient: Patient, app: Perdure) -> None:
    patient.suffer("DELETE FROM perdure_outcome", "DELETE FROM perdure_ready")
    [jobs] = patient.rows("SELECT COUNT(*) FROM perdure_job")

    [lost] = [found for found in examine(app.store) if found.name == "job_without_state"]

    assert (lost.count, len(lost.examples)) == (*jobs, EXAMPLES)


def test_examples_are_job_ids_as_people_write_them(patient: Patient, app: Perdure) -> None:
    patient.suffer("UPDATE perdure_ready SET paused = 1 WHERE job_id = :queued")

    [found] = examine(app.store)

    assert found.examples == (str(to_uuid(patient.ids["queued"])),)


def test_the_examples_of_a_queue_are_names(patient: Patient, app: Perdure) -> None:
    patient.suffer("DELETE FROM perdure_queue WHERE name = 'side'")

    [found] = examine(app.store)

    assert found.examples == ("side",)


def test_only_a_violation_makes_a_database_unhealthy() -> None:
    findings = {severity: Finding("x", severity, "", 1, (), None) for severity in Severity}

    assert is_healthy([findings[Severity.WARNING], findings[Severity.INFO]])
    assert not is_healthy(findings.values())


def test_a_scheduled_job_is_overdue_by_the_time_the_caller_gives(app: Perdure) -> None:
    later = app.clock.now() + 2 * 3600 * 1_000_000

    assert names(examine(app.store, type(app.clock.now())(later))) == ["overdue"]


class WithoutChecks(SqlStore):
    def check(self, name: str, now: object, limit: int) -> list[tuple[object, ...]]:
        raise NotImplementedError("its rows are somewhere else")


def test_a_store_that_has_no_checks_cannot_be_examined(app: Perdure) -> None:
    assert isinstance(app.store, SqlStore)
    with pytest.raises(InvalidInput, match=r"WithoutChecks has no check.*somewhere else.*store_unsupported"):
        examine(WithoutChecks(app.store.runner))


@pytest.mark.parametrize("text", ["{", "NaN", "", "{'a': 1}", '{"a": 1} x'])
def test_what_is_not_json_is_told(text: str) -> None:
    assert not_json([None, "1", text])


@pytest.mark.parametrize("text", ["null", "{}", '"\\u0000"', "[" * 100_000 + "]" * 100_000])
def test_json_however_deep_is_let_pass(text: str) -> None:
    assert not not_json([text])


@pytest.mark.parametrize("text", ["{", "[]", "1", "null", '"{}"'])
def test_arguments_that_are_no_object_are_told(text: str) -> None:
    assert not_objects([None, "{}", text])
    assert not not_objects([None, "{}", '{"a": [1]}', "[" * 100_000])


@pytest.mark.parametrize("check", CHECKS, ids=[check.name for check in CHECKS])
def test_an_explanation_is_one_sentence(check: Check) -> None:
    assert re.fullmatch(r"[A-Z][^\n]+\.", check.explanation)
    assert ". " not in check.explanation


def test_every_repair_a_check_names_exists() -> None:
    assert {check.repair for check in CHECKS} - {None} == {repair.name for repair in REPAIRS}


@pytest.mark.parametrize("check", CHECKS, ids=[check.name for check in CHECKS])
def test_the_documentation_has_every_check(check: Check) -> None:
    repair = f"`{check.repair}`" if check.repair else "–"

    assert f"| `{check.name}` | {check.severity} | {check.explanation} | {repair} |" in DOCUMENTATION.read_text("utf-8")
