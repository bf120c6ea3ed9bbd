"""Jobs that take their worker along, each time: they are failed with the reason, and their neighbours are not."""

from __future__ import annotations

import pytest

from perdure import State
from tests.crash.workers import Scene, ended


@pytest.mark.parametrize(
    "how", ["kill", pytest.param("exit", marks=pytest.mark.rare), pytest.param("abort", marks=pytest.mark.rare)]
)
def test_a_poison_job_is_failed_after_three_crashes_and_innocents_complete(scene: Scene, how: str) -> None:
    first = scene.enqueue("nap", times=3, ms=200)
    (poison,) = scene.enqueue("poison", how=how)
    rest = [*scene.enqueue("work", times=6, ms=100), *scene.enqueue("nap", times=6, ms=100)]
    deaths = 0
    while True:
        worker = scene.worker(concurrency=4, max_crashes=3, until_idle=True)
        ended(worker)
        if worker.exitcode == 0:
            break
        deaths += 1
        assert deaths <= 3, scene.log.read_text()

    found = scene.now(poison)
    assert (deaths, found.state, found.error_type) == (3, State.FAILED, "NodeLost")
    assert "died while it ran this job" in (found.error or "")
    assert [run.state.value for run in scene.app.runs(poison)] == ["lost"] * 3
    for job in map(scene.now, [*first, *rest]):
        assert (job.state, job.error) == (State.COMPLETED, None)
        assert job.crashes <= 2, "an innocent was charged with the third crash"
    assert any(scene.now(job).crashes for job in first), "nobody ran beside the poison job"


def test_two_suspects_never_run_at_once_on_a_node(scene: Scene) -> None:
    """Twice the two run, and kill, together; then each by itself."""
    poison = scene.enqueue("poison", times=2, how="kill")
    while True:
        worker = scene.worker(concurrency=4, max_crashes=3, until_idle=True)
        ended(worker)
        if worker.exitcode == 0:
            break

    assert {scene.now(job).state for job in poison} == {State.FAILED}
    pids = [{one["pid"] for one in scene.noted("start") if one["attempt"] == attempt} for attempt in (1, 2, 3)]
    assert list(map(len, pids)) == [1, 1, 2]
