"""An old and a new release work side by side on one database. Nothing is lost, and nothing fails."""

from __future__ import annotations

import subprocess

from tests.faults.scene import Scene, count, program, said, tell, until


def order(process: subprocess.Popen[str], what: str) -> None:
    tell(process, what)
    assert said(process) == "enqueued"


def test_a_rolling_deploy_loses_and_fails_nothing(scene: Scene) -> None:
    app = scene.app()
    app.queues.list()
    with program("release", scene.path, scene.notes, "old") as old:
        assert said(old) == "ready"
        order(old, "removed 3")
        order(old, "mail 5")
        with program("release", scene.path, scene.notes, "new") as new:
            assert said(new) == "ready"
            for what in ("kept 5", "mail 5", "before 5", "removed 5"):
                order(old, what)
            for what in ("kept 5", "mail 5", "after 5", "added 5"):
                order(new, what)
            until(lambda: count(app, "completed") == 3 + 5 + 40, "both together know everything")
            tell(old, "stop")
            assert said(old) == "stopped"
            assert old.wait() == 0
            for what in ("mail 5", "added 5", "after 5"):
                order(new, what)
            until(lambda: count(app, "completed") == 63)
            tell(new, "stop")
            assert said(new) == "stopped"
    assert {(run.state, run.attempt) for run in app.runs()} == {("completed", 1)}, "nothing was tried in vain"
    ran_by = {
        kind: {str(job.result).split()[0] for job in app.jobs(kind=kind)} for kind in ("removed", "added", "after")
    }
    assert ran_by == {"removed": {"old"}, "added": {"new"}, "after": {"new"}}
    letters = {str(job.result) for job in app.jobs(kind="mail")}
    assert letters <= {"old a b", "new a b", "new c d"}
    assert "new c d" in letters


def test_jobs_of_a_removed_kind_wait_for_someone_who_knows_it(scene: Scene) -> None:
    """Without an old worker they are parked, with the reason; a worker of the old release takes them up again."""
    app = scene.app()
    app.queues.list()
    with program("release", scene.path, scene.notes, "old") as old:
        assert said(old) == "ready"
        with program("release", scene.path, scene.notes, "new") as new:
            assert said(new) == "ready"
            app.queues.pause("default")
            order(old, "removed 4")
            tell(old, "stop")
            assert said(old) == "stopped"
            app.queues.resume("default")
            until(lambda: count(app, "parked") == 4)
            order(new, "kept 2")
            until(lambda: count(app, "completed") == 2, "others go on")
            tell(new, "stop")
            assert said(new) == "stopped"
    assert {job.park_reason for job in app.jobs(state="parked")} == {"unknown_kind"}
    with program("release", scene.path, scene.notes, "old") as old:
        assert said(old) == "ready"
        until(lambda: count(app, "completed") == 6)
        tell(old, "stop")
        assert said(old) == "stopped"
