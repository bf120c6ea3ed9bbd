"""`perdure db copy` and `db reopen`, as their users see them."""

from __future__ import annotations

from pathlib import Path

from perdure import Perdure as App
from tests.app.contents import contents
from tests.cli.terminal import Perdure, process, refusal


def queue_in(folder: Path, jobs: int = 3) -> None:
    app = App(folder / "jobs.db")

    @app.job
    def send(to: str) -> None: ...

    for number in range(jobs):
        send.enqueue(str(number))
    app.close()


def test_a_queue_is_moved_and_what_was_done_is_told(tmp_path: Path) -> None:
    queue_in(tmp_path)

    ran = process("db", "copy", "--from", "jobs.db", "--to", "new.db", cwd=tmp_path)

    assert ran.status == 0
    assert "job    3" in ran.out
    assert f"Moved to {tmp_path}/new.db, and verified." in ran.out
    assert f"{tmp_path}/jobs.db is closed and paused" in ran.out
    assert "job: 3 of 3 rows\n" in ran.err
    app = App(tmp_path / "new.db")
    assert [job.payload for job in app.jobs()] == [{"to": "2"}, {"to": "1"}, {"to": "0"}]
    app.close()


def test_a_program_gets_the_counts(tmp_path: Path, perdure: Perdure) -> None:
    queue_in(tmp_path)

    told = perdure("db", "copy", "--from", "jobs.db", "--to", "new.db", "--json", cwd=tmp_path).json()

    assert (told["from"], told["to"]) == (f"{tmp_path}/jobs.db", f"{tmp_path}/new.db")
    assert (told["rows"]["job"], told["rows"]["ready"], told["rows"]["run"]) == (3, 3, 0)


def test_a_repeat_has_nothing_to_do(tmp_path: Path) -> None:
    queue_in(tmp_path)
    command = ("db", "copy", "--from", "jobs.db", "--to", "new.db")
    process(*command, cwd=tmp_path)
    before = contents(tmp_path / "new.db")

    ran = process(*command, cwd=tmp_path)

    assert (ran.status, ran.out.split(":")[0]) == (0, "nothing to do")
    assert contents(tmp_path / "new.db") == before


def test_after_a_move_the_old_file_can_be_looked_at_but_nothing_enqueued(tmp_path: Path) -> None:
    queue_in(tmp_path)
    process("db", "copy", "--from", "jobs.db", "--to", "new.db", cwd=tmp_path)

    looked = process("jobs", "--url", "jobs.db", "--json", cwd=tmp_path)
    line = refusal(process("queues", "resume", "*", "--url", "jobs.db", cwd=tmp_path))

    assert len(looked.json()) == 3
    assert f"were moved to {tmp_path}/new.db" in line
    assert "[database_moved]" in line


def test_a_move_that_was_given_up_is_undone(tmp_path: Path) -> None:
    queue_in(tmp_path)
    process("db", "copy", "--from", "jobs.db", "--to", "new.db", cwd=tmp_path)

    ran = process("db", "reopen", "--url", "jobs.db", cwd=tmp_path)
    again = process("db", "reopen", "--url", "jobs.db", cwd=tmp_path)

    assert ran.out == f"open again. Do not use {tmp_path}/new.db as well: the same jobs would run twice.\n"
    assert again.out == "nothing to do: it is open\n"
    assert process("queues", "pause", "default", "--url", "jobs.db", cwd=tmp_path).status == 0


def test_a_source_that_is_not_there_is_refused_and_nothing_is_made(tmp_path: Path, perdure: Perdure) -> None:
    line = refusal(perdure("db", "copy", "--from", "jobs.db", "--to", "new.db", cwd=tmp_path))

    assert "[database_missing]" in line
    assert list(tmp_path.iterdir()) == []


def test_after_a_failure_the_way_back_is_told(tmp_path: Path, perdure: Perdure) -> None:
    queue_in(tmp_path)
    process("db", "copy", "--from", "jobs.db", "--to", "new.db", cwd=tmp_path)

    ran = perdure("db", "copy", "--from", "jobs.db", "--to", "third.db", cwd=tmp_path)

    assert (ran.status, "[database_moved]" in ran.err) == (2, True)
    assert "give up the move: perdure db reopen --url jobs.db\n" in ran.err


def test_no_password_is_shown(tmp_path: Path, perdure: Perdure) -> None:
    queue_in(tmp_path)
    url = "postgresql://user:hunter2@localhost:1/jobs"

    ran = perdure("db", "copy", "--from", "jobs.db", "--to", url, cwd=tmp_path)

    assert "[database_unreachable]" in refusal(ran)
    assert "hunter2" not in ran.out + ran.err


def test_a_store_that_is_not_of_perdure_is_refused(tmp_path: Path, perdure: Perdure) -> None:
    queue_in(tmp_path)

    line = refusal(perdure("db", "copy", "--from", "jobs.db", "--to", "mongodb://localhost/jobs", cwd=tmp_path))

    assert "[url_unsupported]" in line
