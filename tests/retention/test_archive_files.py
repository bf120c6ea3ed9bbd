"""The archive in files: on the disk before the jobs go, and readable whatever happened in between."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure import ConfigError, InvalidInput, Perdure, Retention
from perdure.ids import JobId, to_uuid
from perdure.job.states import State
from perdure.store.rows import LAST_ID, Ended
from perdure.testing.contract.rig import Rig
from perdure.testing.contract.states import in_state
from perdure.upkeep import archive
from perdure.upkeep.archive import FileArchive, FolderArchive, append, find_archived, read_archive


@pytest.fixture
def app(rig: Rig, tmp_path: Path) -> Iterator[Perdure]:
    app = Perdure(rig.url, clock=rig.clock, store=rig.store, retention=Retention(archive=tmp_path / "archive"))
    yield app
    app.close()


def ended(rig: Rig, number: int = 1) -> list[Ended]:
    for _ in range(number):
        in_state(rig, State.CANCELLED)
    return rig.store.ended(None, LAST_ID, 1_000)


def names(path: Path) -> list[str]:
    return [one["job"]["id"] for one in read_archive(path)]


def text(job_id: JobId) -> str:
    return str(to_uuid(job_id))


def test_a_job_is_on_the_disk_before_it_is_removed(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    [one] = ended(rig)
    sync, remove = os.fsync, rig.store.remove

    def synced(descriptor: int) -> None:
        seen.append("synced")
        sync(descriptor)

    def removed(*args: Any) -> list[JobId]:
        seen.append("removed")
        return remove(*args)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(rig.store, "remove", removed)

    FileArchive(rig.store, rig.clock, tmp_path / "old.jsonl").put([one])

    assert seen == ["synced", "synced", "removed"]  # the file, and its name in the folder


def test_a_job_that_lives_again_is_neither_removed_nor_read_as_gone(rig: Rig, tmp_path: Path) -> None:
    [one] = ended(rig)
    rig.store.retry(one.job_id, rig.now)

    assert FileArchive(rig.store, rig.clock, tmp_path / "old.jsonl").put([one]) == []
    assert not (tmp_path / "old.jsonl").exists()
    assert rig.job(one.job_id).state == State.QUEUED


def test_a_job_that_was_written_and_not_removed_is_written_again_and_read_once(rig: Rig, tmp_path: Path) -> None:
    """As after a crash between the two."""
    [one] = ended(rig)
    file = FileArchive(rig.store, rig.clock, tmp_path / "old.jsonl")
    append(file.path, archive._line(rig.store.documents([one], rig.now)[0]))
    rig.clock.advance(days=1)

    assert file.put([one]) == [one.job_id]

    assert len(file.path.read_text().splitlines()) == 2
    [read] = read_archive(file.path)
    assert read["archived_at"].startswith("2030-01-02")


@pytest.mark.parametrize("torn", [b'{"archived_at":"2030', b"\xff\xfe", b"null", b'{"job":{"id":7}}', b'{"job":[]}'])
def test_a_line_that_was_not_finished_spoils_no_other(rig: Rig, tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "old.jsonl"
    first, second = ended(rig, 2)
    file = FileArchive(rig.store, rig.clock, path)
    file.put([first])
    with path.open("ab") as tail:
        tail.write(torn)
    file.put([second])

    assert names(path) == [text(second.job_id), text(first.job_id)]


def test_a_file_is_for_its_owner_only(rig: Rig, tmp_path: Path) -> None:
    FileArchive(rig.store, rig.clock, tmp_path / "deep" / "old.jsonl").put(ended(rig))

    assert (tmp_path / "deep" / "old.jsonl").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "deep").stat().st_mode & 0o777 == 0o700


def test_two_that_archive_into_one_folder_have_files_of_their_own(rig: Rig, tmp_path: Path) -> None:
    first, second, third = ended(rig, 3)
    one, other = (FolderArchive(rig.store, rig.clock, tmp_path / "archive") for _ in range(2))
    one.put([first])
    other.put([second])
    one.put([third])

    assert len(list((tmp_path / "archive").iterdir())) == 2
    assert sorted(names(tmp_path / "archive")) == sorted(text(end.job_id) for end in (first, second, third))


def test_a_file_that_is_long_is_not_continued(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "FILE_BYTES", 10)
    folder = FolderArchive(rig.store, rig.clock, tmp_path / "archive")
    for end in ended(rig, 2):
        folder.put([end])

    assert len(list((tmp_path / "archive").iterdir())) == 2


def test_nothing_is_removed_where_the_file_cannot_be_written(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file, not a folder")
    [one] = ended(rig)

    with pytest.raises(ConfigError) as caught:
        FolderArchive(rig.store, rig.clock, tmp_path / "taken").put([one])
    assert caught.value.code == "archive_unwritable"
    assert rig.job(one.job_id).state == State.CANCELLED


def test_a_file_that_is_not_there_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as caught:
        list(read_archive(tmp_path / "nowhere.jsonl"))
    assert caught.value.code == "archive_unreadable"


def test_the_app_archives_where_its_setting_says_and_reads_there(rig: Rig, app: Perdure, tmp_path: Path) -> None:
    [one] = ended(rig)

    assert app.archive(state="cancelled") == 1

    assert [json.loads(line)["job"]["id"] for line in _lines(tmp_path / "archive")] == [text(one.job_id)]
    found = app.archived(text(one.job_id))
    assert found is not None
    assert found["job"]["state"] == "cancelled"
    assert [document["job"]["id"] for document in app.archived_jobs()] == [text(one.job_id)]
    assert app.archived(text(one.job_id), at="table") is None
    assert app.get(text(one.job_id)) is None


def _lines(folder: Path) -> list[str]:
    return [line for file in folder.iterdir() for line in file.read_text().splitlines()]


@pytest.mark.parametrize("where", ["table", "folder", "file.jsonl"])
def test_what_is_archived_can_be_read_wherever_it_went(rig: Rig, app: Perdure, tmp_path: Path, where: str) -> None:
    at = where if where == "table" else str(tmp_path / where)
    ends = ended(rig, 3)

    assert app.archive(state="cancelled", to=at, limit=2) == 2
    assert app.archive(state="cancelled", to=at) == 1

    read = list(app.archived_jobs(at=at))
    assert sorted(one["job"]["id"] for one in read) == sorted(text(end.job_id) for end in ends)
    assert app.archived(text(ends[0].job_id), at=at) in read
    assert len(list(app.archived_jobs(at=at, limit=1))) == 1
    assert set(read[0]) == {"archived_at", "job", "outcomes", "runs", "logs"}


def test_a_job_that_is_nowhere_is_none(rig: Rig, app: Perdure, tmp_path: Path) -> None:
    (tmp_path / "archive").mkdir()
    nobody = JobId(rig.ids.new())

    assert app.archived(text(nobody)) is None
    assert find_archived(rig.store, "table", nobody) is None
