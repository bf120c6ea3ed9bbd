"""Programs that fork: what was imported and made before goes on working on both sides, but for a running worker."""

from __future__ import annotations

from tests.faults.scene import Scene, program, said


def test_a_worker_in_a_forked_child_runs_what_its_parent_enqueues(scene: Scene) -> None:
    with program("fork_after_use", scene.path, scene.notes) as process:
        assert said(process) == "child 0 completed 25"
        assert process.wait() == 0


def test_a_worker_started_before_the_fork_says_so_in_the_child(scene: Scene) -> None:
    with program("fork_beside_a_worker", scene.path, scene.notes) as process:
        assert said(process) == "child forked worker_forked"
        assert said(process) == "completed 2"
        assert process.wait() == 0
