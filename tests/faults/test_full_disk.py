"""The disk is full, and later is not: nothing is lost, and nobody has to start anything again."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.faults.scene import program, said


@pytest.fixture(scope="module")
def namespace() -> list[str]:
    """How to run a program with mounts of its own, which are gone when it ends."""
    for prefix in (["unshare", "--mount"], ["unshare", "--mount", "--map-root-user"]):
        trial = [*prefix, "mount", "-t", "tmpfs", "none", "/mnt"]
        try:
            subprocess.run(trial, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        return prefix
    pytest.skip("neither root nor a user namespace may mount a tmpfs here")


def test_a_worker_outlives_a_full_disk(tmp_path: Path, namespace: list[str]) -> None:
    with program("work_on_a_full_disk", tmp_path, prefix=namespace) as process:
        assert said(process).startswith("completed 4")
        assert said(process) == "whole"
        assert process.wait() == 0


def test_a_process_that_starts_on_a_full_disk_is_told_so(tmp_path: Path, namespace: list[str]) -> None:
    """Memory mapped from a file that has no block on the disk would kill the process (SIGBUS)."""
    with program("open_on_a_full_disk", tmp_path, prefix=namespace) as process:
        assert said(process) == "gate True"
        assert said(process) == "refused disk_full"
        assert said(process) == "exit code 0"
        assert process.wait() == 0
