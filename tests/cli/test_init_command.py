"""`perdure init`: what it writes runs exactly as it says."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from perdure import Perdure as App
from perdure.ops.doctor import examine
from tests.cli.terminal import Perdure, refusal, surroundings


@pytest.fixture
def shell(tmp_path: Path) -> dict[str, str]:
    """An environment in which `perdure` and `python` are this package and this interpreter, as after an install."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "perdure").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m perdure "$@"\n')
    (programs / "python").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    for program in programs.iterdir():
        program.chmod(0o700)
    return surroundings({"PATH": f"{programs}:{os.environ['PATH']}"})


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def run(command: str, cwd: Path, shell: dict[str, str]) -> str:
    done = subprocess.run(command, shell=True, cwd=cwd, env=shell, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def commands_in(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.startswith("  ")]


def test_the_commands_it_prints_run_as_printed(empty: Path, shell: dict[str, str]) -> None:
    printed = commands_in(run("perdure init", empty, shell))
    assert len(printed) == 2

    for command in printed:
        run(command, empty, shell)
    run("python jobs.py", empty, shell)
    run(printed[1], empty, shell)

    app = App(empty / "jobs.db")
    assert [(job.state, job.result) for job in app.jobs()] == [("completed", "Hello, world!")] * 2
    assert [line.message for line in app.logs(next(app.jobs()))] == ["attempt 1"]
    assert examine(app.store) == []
    app.close()


def test_what_it_writes_is_clean(empty: Path, perdure: Perdure) -> None:
    perdure("init", "my_jobs.py", cwd=empty)

    assert perdure("check", "my_jobs:app", cwd=empty).status == 0
    linting = [sys.executable, "-m", "ruff", "check", "--select", "E,F,I,ANN,B,UP", "--isolated", "my_jobs.py"]
    assert subprocess.run(linting, cwd=empty, capture_output=True, check=False).returncode == 0


def test_another_folder_is_named_in_the_commands(empty: Path, shell: dict[str, str]) -> None:
    (empty / "sub").mkdir()

    printed = commands_in(run("perdure init sub/work.py", empty, shell))

    assert [command.split(" && ")[0] for command in printed] == ["cd sub"] * 2
    assert "world" not in run(printed[0], empty, shell)


def test_an_existing_file_is_left_as_it_is(perdure: Perdure, empty: Path) -> None:
    (empty / "jobs.py").write_text("mine = 1\n")

    assert "[file_exists]" in refusal(perdure("init", cwd=empty))
    assert (empty / "jobs.py").read_text() == "mine = 1\n"


@pytest.mark.parametrize("name", ["jobs.txt", "my-jobs.py", "missing/jobs.py", ".py"])
def test_a_file_that_cannot_be_is_refused(perdure: Perdure, empty: Path, name: str) -> None:
    assert "[file_invalid]" in refusal(perdure("init", name, cwd=empty))
    assert list(empty.iterdir()) == []
