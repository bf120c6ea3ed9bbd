"""`perdure db …`, as its users see it."""

from __future__ import annotations

import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

import perdure as library
from perdure.ops.doctor import examine
from perdure.store.migrate import migrations_of
from perdure.store.sqlite import schema
from tests.app.contents import contents
from tests.cli.terminal import Perdure, Ran, process, refusal
from tests.unit.patient import Patient

HEAD = migrations_of("sqlite")[-1].revision


def facts(ran: Ran) -> dict[str, dict[str, str]]:
    return {fact["name"]: fact for fact in ran.json()["facts"]}


def damage(patient: Patient) -> None:
    """Wipe a page in the middle of the file."""
    query = "SELECT page_size, rootpage FROM pragma_page_size, sqlite_master WHERE name = 'perdure_job'"
    [(page, root)] = patient.rows(query)
    with patient.path.open("r+b") as file:
        file.seek((int(str(root)) - 1) * int(str(page)))
        file.write(bytes(int(str(page))))


# -- upgrade ---------------------------------------------------------------------------------------------------------


def test_upgrade_makes_a_new_database(tmp_path: Path) -> None:
    ran = process("db", "upgrade", "--url", "jobs.db", cwd=tmp_path)

    assert (ran.status, ran.out) == (0, f"created {tmp_path}/jobs.db at schema revision {HEAD}\n")
    assert stat.S_IMODE((tmp_path / "jobs.db").stat().st_mode) == 0o600


def test_a_repeated_upgrade_has_nothing_to_do(perdure: Perdure, patient: Patient, tmp_path: Path) -> None:
    before = contents(patient.path)

    ran = perdure("db", "upgrade", "--url", "jobs.db", cwd=tmp_path)

    assert (ran.status, ran.out) == (
        0,
        f"nothing to do: {tmp_path}/jobs.db is at schema revision {HEAD}, the newest\n",
    )
    assert contents(patient.path) == before


# -- check -----------------------------------------------------------------------------------------------------------


def test_a_sound_database_is_told_to_be_so(patient: Patient, tmp_path: Path) -> None:
    patient.path.chmod(0o600)
    ran = process("db", "check", "--url", "jobs.db", "--json", cwd=tmp_path)

    assert ran.status == 0
    assert ran.json()["sound"]
    assert [fact["name"] for fact in ran.json()["facts"]] == [
        "file",
        "schema",
        "objects",
        "integrity",
        "journal_mode",
        "synchronous",
        "wal",
        "sqlite",
        "wal_reset_guard",
        "file_mode",
        "filesystem",
    ]
    assert {fact["verdict"] for fact in ran.json()["facts"]} == {"ok"}


def test_people_get_a_table(perdure: Perdure, patient: Patient, tmp_path: Path) -> None:
    ran = perdure("db", "check", "--url", "jobs.db", cwd=tmp_path)

    assert ran.status == 0
    for told in ("integrity", "journal_mode", "wal", sqlite3.sqlite_version, "FULL"):
        assert told in ran.out


def test_the_guard_names_its_limit_where_it_is_needed(perdure: Perdure, patient: Patient, tmp_path: Path) -> None:
    from perdure.store.sqlite.driver import guarded

    guard = facts(perdure("db", "check", "--url", "jobs.db", "--json", cwd=tmp_path))["wal_reset_guard"]

    assert (guard["value"] == "active") == guarded()
    assert ("wal_autocheckpoint=0" in guard["note"]) == guarded()


def test_frames_that_are_not_copied_back_are_counted(patient: Patient, tmp_path: Path) -> None:
    with closing(sqlite3.connect(patient.path)) as connection, connection:
        connection.execute("CREATE TABLE mine (x)")
        connection.commit()

        wal = facts(process("db", "check", "--url", "jobs.db", "--json", cwd=tmp_path))["wal"]

    frames = int(wal["value"].split()[0])
    assert frames > 0
    assert not wal["value"].endswith(" 0 bytes")


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602])
def test_a_file_that_others_may_read_is_a_warning(
    perdure: Perdure, patient: Patient, tmp_path: Path, mode: int
) -> None:
    patient.path.chmod(mode)

    ran = perdure("db", "check", "--url", "jobs.db", "--json", cwd=tmp_path)

    assert ran.status == 0
    told = facts(ran)["file_mode"]
    assert (told["value"], told["verdict"]) == (f"{mode:04o}", "warning")


@pytest.mark.parametrize(("durability", "level", "verdict"), [("normal", "NORMAL", "warning"), ("full", "FULL", "ok")])
def test_an_app_that_does_not_wait_for_the_disk_is_a_warning(
    perdure: Perdure, patient: Patient, tmp_path: Path, durability: str, level: str, verdict: str
) -> None:
    (tmp_path / "careless.py").write_text(
        f"from perdure import Perdure\n\napp = Perdure({str(patient.path)!r}, durability={durability!r})\n"
    )

    ran = perdure("db", "check", "--app", "careless:app", "--json", cwd=tmp_path)

    assert ran.status == 0
    synchronous = facts(ran)["synchronous"]
    assert (synchronous["value"], synchronous["verdict"]) == (level, verdict)
    assert ("power cut" in synchronous["note"]) == (verdict == "warning")


def test_a_file_with_another_journal_is_a_warning(perdure: Perdure, patient: Patient, tmp_path: Path) -> None:
    with closing(sqlite3.connect(patient.path)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")

    ran = perdure("db", "check", "--url", "jobs.db", "--json", cwd=tmp_path)

    assert ran.status == 0
    journal = facts(ran)["journal_mode"]
    assert (journal["value"], journal["verdict"]) == ("delete", "warning")


def test_a_long_log_is_a_warning(
    perdure: Perdure, patient: Patient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(sqlite3.connect(patient.path)) as connection:
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute("CREATE TABLE mine (x)")
        connection.execute("DROP TABLE mine")
        verdicts = []
        for most in (1_000_000, 0):
            monkeypatch.setattr(schema, "LONG_WAL_FRAMES", most)
            verdicts.append(facts(perdure("db", "check", "--url", "jobs.db", "--json", cwd=tmp_path))["wal"]["verdict"])

    assert verdicts == ["ok", "warning"]


@pytest.mark.damaged
def test_a_damaged_file_is_a_problem(perdure: Perdure, patient: Patient, tmp_path: Path) -> None:
    damage(patient)

    ran = perdure("db", "check", "--url", "jobs.db", "--json", cwd=tmp_path)

    assert ran.status == 1
    assert facts(ran)["integrity"]["verdict"] == "problem"


def test_a_database_that_is_not_perdures_is_a_problem_and_left_alone(perdure: Perdure, tmp_path: Path) -> None:
    Patient(tmp_path / "jobs.db", {}).suffer("CREATE TABLE mine (x)")
    before = contents(tmp_path / "jobs.db")

    ran = perdure("db", "check", "--url", "jobs.db", "--json", cwd=tmp_path)

    assert ran.status == 1
    assert facts(ran)["schema"]["value"] == "no Perdure tables"
    assert contents(tmp_path / "jobs.db") == before


def test_a_newer_database_is_a_problem(perdure: Perdure, patient: Patient, tmp_path: Path) -> None:
    patient.suffer("INSERT INTO perdure_schema_version VALUES (99, 'from_the_future', 'x', 1, '9.0')")

    schema = facts(perdure("db", "check", "--url", "jobs.db", "--json", cwd=tmp_path))["schema"]

    assert (schema["value"], schema["verdict"]) == (f"revision 99, the newest is {HEAD}", "problem")


@pytest.mark.damaged
def test_an_index_that_somebody_removed_is_a_problem(perdure: Perdure, patient: Patient, tmp_path: Path) -> None:
    patient.suffer("DROP INDEX perdure_job_one_successor", "DROP VIEW perdure_runs")

    ran = perdure("db", "check", "--url", "jobs.db", "--json", cwd=tmp_path)

    assert ran.status == 1
    assert facts(ran)["objects"]["value"] == "missing: index perdure_job_one_successor, view perdure_runs"


def test_checking_creates_nothing(perdure: Perdure, tmp_path: Path) -> None:
    ran = perdure("db", "check", "--url", "jobs.db", cwd=tmp_path)

    assert "[database_missing]" in refusal(ran)
    assert list(tmp_path.iterdir()) == []


# -- sql -------------------------------------------------------------------------------------------------------------


def test_the_printed_sql_makes_a_database_that_perdure_takes_for_its_own(tmp_path: Path) -> None:
    ran = process("db", "sql", cwd=tmp_path)
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
        connection.executescript(ran.out)

    app = library.Perdure(tmp_path / "jobs.db")
    assert examine(app.store) == []
    assert app.store.upgrade().startswith("nothing to do")
    app.close()


def test_the_statements_are_printed_as_the_database_gets_them(perdure: Perdure, tmp_path: Path) -> None:
    ran = perdure("db", "sql", "--statements", cwd=tmp_path)

    assert "-- statement: claim_ready\n-- UPDATE perdure_ready\n" in ran.out


def test_the_sql_of_a_server_is_printed_without_one(perdure: Perdure, tmp_path: Path) -> None:
    ran = perdure("db", "sql", "--dialect", "postgres", "--statements", cwd=tmp_path)

    assert ran.status == 0
    assert "CREATE TABLE perdure.job (" in ran.out
    assert "-- statement: claim_ready\n-- UPDATE perdure.ready\n" in ran.out


def test_an_unknown_dialect_is_refused(perdure: Perdure, tmp_path: Path) -> None:
    assert "[dialect_unknown]" in refusal(perdure("db", "sql", "--dialect", "dbase", cwd=tmp_path))


def test_the_steps_after_a_revision_upgrade_an_older_file_by_hand(tmp_path: Path) -> None:
    path, known = tmp_path / "jobs.db", migrations_of("sqlite")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        schema.upgrade(connection, path, known[:1])
    lacking = process("db", "sql", "--url", "jobs.db", cwd=tmp_path)
    later = process("db", "sql", "--after", "1", cwd=tmp_path)
    assert "CREATE TABLE perdure_job (" not in lacking.out
    assert [line for line in later.out.splitlines() if line.startswith(("CREATE", "ALTER", "DROP"))] == [
        line for line in lacking.out.splitlines() if line.startswith(("CREATE", "ALTER", "DROP"))
    ]

    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(lacking.out)

    assert process("db", "check", "--url", "jobs.db", cwd=tmp_path).status == 0
    assert process("db", "sql", "--url", "jobs.db", cwd=tmp_path).out == "-- nothing to do: there are no such steps\n"
    assert process("db", "upgrade", "--url", "jobs.db", cwd=tmp_path).out.startswith("nothing to do")


def test_the_rights_of_a_user_are_printed_as_sql(perdure: Perdure, tmp_path: Path) -> None:
    printed = perdure("db", "grants", "--role", 'we"b', "--for", "enqueue", cwd=tmp_path).out

    assert 'GRANT USAGE ON SCHEMA perdure TO "we""b";\n' in printed
    assert 'GRANT SELECT, INSERT ON perdure.ready TO "we""b";\n' in printed
    assert "UPDATE ON perdure." not in printed  # on no table; only on the sequence that says who sleeps


# -- backup ----------------------------------------------------------------------------------------------------------


def test_a_backup_is_a_database_of_its_own_that_only_its_owner_may_read(patient: Patient, tmp_path: Path) -> None:
    ran = process("db", "backup", "copy.db", "--url", "jobs.db", cwd=tmp_path)

    copy = tmp_path / "copy.db"
    assert (ran.status, stat.S_IMODE(copy.stat().st_mode)) == (0, 0o600)
    assert contents(copy) == contents(patient.path)


def test_a_backup_has_what_is_still_in_the_log(patient: Patient, tmp_path: Path) -> None:
    with closing(sqlite3.connect(patient.path)) as connection:
        connection.execute("CREATE TABLE mine (x)")
        connection.commit()

        process("db", "backup", "copy.db", "--url", "jobs.db", cwd=tmp_path)

        assert "mine" in contents(tmp_path / "copy.db")


@pytest.mark.damaged
def test_a_backup_overwrites_nothing(perdure: Perdure, patient: Patient, tmp_path: Path) -> None:
    (tmp_path / "copy.db").write_text("precious")

    ran = perdure("db", "backup", "copy.db", "--url", "jobs.db", cwd=tmp_path)

    assert "[backup_exists]" in refusal(ran)
    assert (tmp_path / "copy.db").read_text() == "precious"


def test_a_backup_into_a_missing_folder_is_refused(perdure: Perdure, patient: Patient, tmp_path: Path) -> None:
    ran = perdure("db", "backup", "no/copy.db", "--url", "jobs.db", cwd=tmp_path)

    assert "[backup_unwritable]" in refusal(ran)


@pytest.mark.damaged
def test_a_failed_backup_leaves_nothing_behind(perdure: Perdure, patient: Patient, tmp_path: Path) -> None:
    damage(patient)

    ran = perdure("db", "backup", "copy.db", "--url", "jobs.db", cwd=tmp_path)

    assert "[database_corrupt]" in refusal(ran)
    assert not (tmp_path / "copy.db").exists()


def test_backing_up_nothing_creates_nothing(perdure: Perdure, tmp_path: Path) -> None:
    ran = perdure("db", "backup", "copy.db", "--url", "jobs.db", cwd=tmp_path)

    assert "[database_missing]" in refusal(ran)
    assert list(tmp_path.iterdir()) == []


def test_a_server_is_backed_up_with_its_own_tool(perdure: Perdure, tmp_path: Path) -> None:
    url = "postgresql://user:hunter2@localhost:1/jobs"

    line = refusal(perdure("db", "backup", "copy.db", "--url", url, cwd=tmp_path))

    assert "pg_dump" in line
    assert "[backup_unsupported]" in line
