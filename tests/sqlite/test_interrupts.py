"""Interrupts (Ctrl-C, exceptions raised by signal handlers) at any moment of a write."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.app.contents import jobs_in


class Told(NamedTuple):
    """What the interrupted program says."""

    acknowledged: list[list[Any]]
    errors: list[str]
    interrupts: int
    path: Path


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory, full_size: bool) -> Told:
    path = tmp_path_factory.mktemp("interrupts") / "jobs.db"
    program = Path(__file__).with_name("interrupted.py")
    ended = subprocess.run(
        [sys.executable, str(program), str(path), str(20_000 if full_size else 1_000)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=170 if not full_size else 1_700,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert not ended.stderr
    return Told(**json.loads(ended.stdout), path=path)


def test_the_program_was_interrupted_often(told: Told) -> None:
    assert told.interrupts > 100


def test_nobody_saw_an_error_that_was_not_theirs(told: Told) -> None:
    assert told.errors == []


def test_every_acknowledged_job_is_there_and_none_twice(told: Told) -> None:
    there = Counter((job["who"], job["number"]) for job in map(json.loads, jobs_in(told.path)))
    assert set(there.values()) == {1}
    assert {(who, number) for who, number in told.acknowledged} <= set(there)


def test_the_file_is_whole(told: Told) -> None:
    with closing(sqlite3.connect(told.path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
