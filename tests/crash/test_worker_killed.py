"""Workers killed with SIGKILL at any moment: their jobs go on elsewhere at once, and every job ends once."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from perdure import Job, State
from tests.crash.workers import Scene, kill

QUEUES = {"nap": "default", "work": "default", "toil": "apart"}
ROOM = {"default": 7, "apart": 1}
"""One child a worker: they take long to start."""


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.rare)])
def test_every_job_of_workers_killed_at_random_moments_completes_once(scene: Scene, seed: int, full_size: bool) -> None:
    chance = random.Random(seed)
    kills = 120 if full_size else 20 if scene.thrift == 1 else 5
    jobs: list[Job] = []
    for _ in range(kills * 30):
        kind = chance.choices(("nap", "work", "toil"), (10, 10, 1))[0]
        jobs += scene.enqueue(kind, queue=QUEUES[kind], ms=chance.choice((0, 3, 30)))
    workers = [scene.worker(queues=ROOM) for _ in range(2)]
    for _ in range(kills):
        wait_for_a_start(scene)
        time.sleep(chance.uniform(0, 0.1))  # the moment of death; nothing waits for it
        if scene.is_done():
            jobs += scene.enqueue("nap", times=50, ms=20)
        victim = workers.pop(chance.randrange(len(workers)))
        kill(victim)
        workers.append(scene.worker(queues=ROOM))
    for worker in workers:
        kill(worker)
    scene.drain(queues=ROOM)
    assert {scene.now(job).state for job in jobs} == {State.COMPLETED}
    assert any(run.state == "lost" for run in scene.app.runs())


def wait_for_a_start(scene: Scene) -> None:
    seen = len(scene.noted("start"))
    scene.until(lambda: len(scene.noted("start")) > seen or scene.is_done(), "a handler starts")


@pytest.mark.parametrize("kind", ["linger", pytest.param("loiter", marks=pytest.mark.rare)])
def test_a_killed_workers_job_starts_again_on_the_same_host(scene: Scene, kind: str) -> None:
    (job,) = scene.enqueue(kind)
    first = scene.worker()
    scene.until(lambda: scene.noted("start", job), "the job runs")
    second = scene.worker()
    scene.until(lambda: len(scene.app.store.live_nodes()) == 2, "the second worker is there")
    died = time.monotonic()
    kill(first)
    scene.until(lambda: len(scene.noted("start", job)) == 2, "the job runs again")
    print(f"started again {time.monotonic() - died:.2f} s after the kill")  # noqa: T201 - shown with -s
    scene.until(lambda: scene.now(job).is_final, "the job ends")
    kill(second)
    assert scene.now(job).result == "attempt 2"
    (lost,) = [run for run in scene.app.runs(job) if run.state == "lost"]
    assert lost.error_type == "NodeLost"


def test_a_job_in_a_process_of_its_own_dies_with_its_worker(scene: Scene) -> None:
    (job,) = scene.enqueue("toil", ms=1_000)
    first = scene.worker()
    scene.until(lambda: scene.noted("step", job), "the job works")
    child = scene.noted("start", job)[0]["pid"]
    assert child != first.pid
    kill(first)
    scene.until(lambda: not Path(f"/proc/{child}").exists(), "the child is gone")
    seen = len(scene.noted("step", job))
    scene.drain()
    assert {one["pid"] for one in scene.noted("step", job)[seen:]} == {scene.noted("start", job)[1]["pid"]}
    assert [run.state.value for run in scene.app.runs(job)].count("lost") == 1
    assert scene.now(job).state == State.COMPLETED
