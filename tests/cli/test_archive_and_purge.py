"""`perdure purge` and `perdure archive`: ended jobs go because somebody says so, and can be read in the archive."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perdure import Job
from perdure import Perdure as App
from tests.cli.terminal import Perdure, refusal

URL = {"PERDURE_URL": "shop.db"}


@pytest.fixture
def failed(here: App) -> list[Job]:
    """Two mails that could not be sent, and one that was."""
    jobs = [here.enqueue("send", {"to": "nobody", "token": "hush"}) for _ in range(2)]
    here.enqueue("send", {"to": "ann"})
    here.worker(poll_s=0.02).run(until_idle=True)
    return jobs


def test_purge_says_how_many_it_would_remove_where_nobody_can_be_asked(
    perdure: Perdure, here: App, failed: list[Job], folder: Path
) -> None:
    ran = perdure("purge", "--state", "failed", cwd=folder, **URL)

    assert refusal(ran) == (
        "perdure: this would purge 2 jobs and nobody can be asked here; add --yes to do it [not_confirmed]"
    )
    assert all(here.get(job) for job in failed)


def test_purge_removes_the_jobs_that_fit(perdure: Perdure, here: App, failed: list[Job], folder: Path) -> None:
    ran = perdure("purge", "--state", "failed", "--kind", "send", "--yes", cwd=folder, **URL)

    assert (ran.status, ran.out) == (0, "2 jobs removed for good.\n")
    assert [job.state for job in here.jobs()] == ["completed"]
    again = perdure("purge", "--state", "failed", "--yes", cwd=folder, **URL)
    assert again.out.startswith("No jobs to purge")


def test_purge_as_json(perdure: Perdure, failed: list[Job], folder: Path) -> None:
    ran = perdure("purge", "--state", "failed", "--limit", "1", "--yes", "--json", cwd=folder, **URL)

    assert ran.json() == {"verb": "purge", "changed": 1, "skipped": 0, "more": False}


def test_young_jobs_are_not_purged(perdure: Perdure, here: App, failed: list[Job], folder: Path) -> None:
    ran = perdure("purge", "--state", "failed", "--older-than", "1d", "--yes", cwd=folder, **URL)

    assert ran.out.startswith("No jobs to purge")
    assert all(here.get(job) for job in failed)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("purge", "--kind", "send", "--yes"), "say which jobs to purge: --state completed, failed"),
        (("purge", "--state", "queued", "--yes"), "state"),
        (("purge", "--state", "failed", "--older-than", "soon"), "--older-than 'soon' is no time span"),
        (("archive", "show", "xyz"), "'xyz' is no id"),
        (("archive", "show", "0123abcd"), "the archive has no job '0123abcd'"),
        (("archive", "--from", "nowhere.jsonl"), "nowhere.jsonl cannot be read"),
        (("archive", "list"), "did you mean perdure archive?"),
    ],
)
def test_what_cannot_be_is_refused(
    perdure: Perdure, here: App, folder: Path, arguments: tuple[str, ...], said: str
) -> None:
    here.enqueue("resize", {"width": 1})

    assert said in refusal(perdure(*arguments, cwd=folder, **URL))


def test_jobs_are_moved_into_the_archive_listed_and_shown(
    perdure: Perdure, here: App, failed: list[Job], folder: Path
) -> None:
    assert perdure("archive", cwd=folder, **URL).out == "The archive is empty.\n"

    ran = perdure("archive", "put", "--state", "failed", "--yes", cwd=folder, **URL)

    assert (ran.status, ran.out) == (0, "2 jobs moved into the archive.\n")
    listed = perdure("archive", "--json", cwd=folder, **URL).json()
    assert [one["id"] for one in listed] == [str(job.id) for job in reversed(failed)]
    table = perdure("archive", "--state", "failed", cwd=folder, **URL).out
    assert str(failed[0].id) in table
    assert "ValueError: there is no such address" in table
    assert perdure("archive", "--kind", "resize", cwd=folder, **URL).out == "There are no such jobs in the archive.\n"
    for name in (str(failed[0].id), failed[0].id.hex[-8:]):
        shown = perdure("archive", "show", name, cwd=folder, **URL).out
        assert '{"to": "nobody"' in shown
        assert "sending to nobody" in shown
        assert "hush" not in shown
    whole = perdure("archive", "show", str(failed[0].id), "--json", cwd=folder, **URL).json()
    assert [run["state"] for run in whole["runs"]] == ["failed", "failed"]
    assert "hush" not in json.dumps(whole)
    assert here.get(failed[0]) is None


def test_jobs_are_moved_to_a_file_and_read_from_it(
    perdure: Perdure, here: App, failed: list[Job], folder: Path
) -> None:
    file = folder / "old.jsonl"

    assert perdure("archive", "put", "--state", "failed", "--to", str(file), "--yes", cwd=folder, **URL).status == 0
    assert perdure("archive", "put", "--state", "completed", "--to", str(file), "--yes", cwd=folder, **URL).status == 0

    assert len(file.read_text().splitlines()) == 3
    assert "hush" not in file.read_text()
    listed = perdure("archive", "--from", str(file), "--json", cwd=folder, **URL).json()
    assert {one["state"] for one in listed} == {"failed", "completed"}
    assert perdure("archive", "show", str(failed[0].id), "--from", str(file), cwd=folder, **URL).status == 0
    assert list(here.jobs()) == []
