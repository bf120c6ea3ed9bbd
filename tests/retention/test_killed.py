"""SIGKILL at every statement of a sweep: every job is in the queue or in the archive, and the next sweep goes on."""

from __future__ import annotations

import multiprocessing
import shutil
import signal
from itertools import count
from pathlib import Path

import pytest

from perdure import Job, Perdure
from perdure.ops.doctor import examine
from perdure.upkeep.archive import read_archive
from tests.retention.doomed import sweep, sweep_with

AT_ONCE = 4
forked = multiprocessing.get_context("forkserver")
forked.set_forkserver_preload(["tests.retention.doomed"])


def app_on(path: Path) -> Perdure:
    app = Perdure(path, durability="normal")

    @app.job
    def send(to: str) -> str:
        return to

    return app


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file with five jobs that have ended and two that have not."""
    path = tmp_path / "source.db"
    app = app_on(path)
    for number in range(4):
        app.enqueue("send", {"to": "ann"}, idempotency_key=f"{number}", tags=["a", "b"])
    app.worker(poll_s=0.02).run(until_idle=True)
    app.cancel(app.enqueue("send", {"to": "bob"}))
    for delay in (0, 3600):
        app.enqueue("send", {"to": "cid"}, delay=delay)
    app.close()
    return path


def test_a_sweep_may_die_at_every_statement(source: Path) -> None:
    app = app_on(source)
    before = {str(job.id): job for job in app.jobs()}
    app.close()
    boundaries: list[str] = []
    for first in count(1, AT_ONCE):
        paths = {nth: source.with_name(f"{nth}.db") for nth in range(first, first + AT_ONCE)}
        for path in paths.values():
            shutil.copy(source, path)
        exits = killed_at(paths)
        for nth, path in paths.items():
            boundaries = max(boundaries, reached(path).read_text().splitlines(), key=len)
            look(path, before, f"killed at boundary {nth}: {boundaries[-1]}")
        if 0 in exits:
            break
    for part in ("before DELETE job", "before UPDATE idempotency_key", "before COMMIT"):
        assert any(line.startswith(part) for line in boundaries), part


def reached(path: Path) -> Path:
    return path.with_suffix(".reached")


def killed_at(paths: dict[int, Path]) -> list[int | None]:
    doomed = [forked.Process(target=sweep, args=(path, nth, reached(path))) for nth, path in paths.items()]
    for process in doomed:
        process.start()
    for process in doomed:
        process.join()
        assert process.exitcode in (0, -signal.SIGKILL)
    return [process.exitcode for process in doomed]


def look(path: Path, before: dict[str, Job], when: str) -> None:
    app, folder = app_on(path), path.with_suffix(".archive")
    live = {name for name, job in before.items() if not job.is_final}
    there = {str(job.id): job for job in app.jobs()}
    archived = {one["job"]["id"]: one for one in read_archive(folder)} if folder.exists() else {}

    assert {*there, *archived} == {*before}, when
    assert there == {name: before[name] for name in there}, when
    assert live <= {*there}, when
    assert examine(app.store) == [], when

    sweep_with(app, folder)

    assert {str(job.id) for job in app.jobs()} == live, when
    archived = {one["job"]["id"]: one for one in read_archive(folder)}
    assert {*archived} == {*before} - live, when
    assert all(len(one["runs"]) == (one["job"]["state"] == "completed") for one in archived.values()), when
    again = app.enqueue("send", {"to": "ann"}, idempotency_key="0")
    assert again.deduplicated, when
    assert again.state == "completed", when
    app.close()
