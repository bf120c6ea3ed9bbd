"""A worker that is killed around the instant of a schedule, and started again: the instant has exactly one job.

The clock is the machine's own here: what is tried is when a real worker wakes up, fires and runs.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime

from perdure import State
from tests.crash.workers import Scene, kill

AHEAD_S = 1.0
"""From declaring a schedule to its instant: by then the worker is there and knows it."""
EVERYDAY_MS = (-50, -5, 0, 5)
"""At -5 nobody is there at the instant: a worker takes longer than that to start."""
FULL_MS = (*EVERYDAY_MS, *range(-500, 501, 50))


def test_a_restart_around_the_instant_leaves_it_with_one_job(scene: Scene, full_size: bool) -> None:
    for offset_ms in sorted(set(FULL_MS if full_size else EVERYDAY_MS)):
        straddled(scene, f"tick {offset_ms:+} ms", offset_ms / 1_000)

    assert len(list(scene.app.jobs())) == len(scene.app.schedules.list())


def straddled(scene: Scene, name: str, offset_s: float) -> None:
    """One schedule for one instant; the worker dies `offset_s` after it, and the next one is started at once."""
    instant = datetime.fromtimestamp(time.time() + AHEAD_S, UTC)
    scene.app.schedules.put(name, at=instant, kind="work", payload={"ms": 20})
    first = scene.worker()
    scene.until(lambda: first.pid in {node.pid for node in scene.app.store.live_nodes()}, "the worker is there")
    await_moment(instant.timestamp() + offset_s)
    kill(first)
    second = scene.worker()
    scene.until(lambda: scene.app.schedules.slots(name) and scene.is_done(), "its job has ended")
    kill(second)

    [slot] = scene.app.schedules.slots(name)
    [job] = [job for job in scene.app.jobs() if job.scheduled_for == slot.scheduled_for]
    assert (slot.scheduled_for, slot.status) == (instant, State.COMPLETED)
    assert job.state == State.COMPLETED
    assert scene.app.schedules.missed(name) == []


def await_moment(at: float) -> None:
    """To the millisecond."""
    while (left := at - time.time()) > 0:
        time.sleep(left / 2)
