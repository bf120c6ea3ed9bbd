"""The quick acts: how soon a job starts, and how many a second. Called by `stage`, after `killing`."""

from __future__ import annotations

import time

from perdure.cli.demo import jobs
from perdure.cli.demo.crew import Member
from perdure.cli.demo.figures import percentile
from perdure.cli.demo.watching import Scene, Watch
from perdure.job.views import Job

PINGS = 150
EVERY_S = 0.008
AT_ONCE = 200
BATCH = 500


def begin(scene: Scene) -> Member:
    """A worker for the express queue, not waited for."""
    return scene.crew.start(jobs.EXPRESS, concurrency=AT_ONCE)


def latency(scene: Scene) -> None:
    """Single jobs, one every few milliseconds, for a worker that waits for them."""
    _ping(scene)  # which a new worker imports and builds a few things for; not one of the figures
    watch = Watch(scene, 1, jobs.EXPRESS)
    watch.start()
    watch.until_ended()
    sent = [_ping(scene) for _ in range(PINGS)]
    Watch(scene, PINGS, jobs.EXPRESS).until_ended()
    results = [scene.app.existing(job).result for job in sent]
    scene.figures.latencies_s = [result for result in results if isinstance(result, float)]
    if scene.figures.latencies_s:
        middle = percentile(scene.figures.latencies_s, 50) * 1000
        scene.screen.say(
            "latency", f"Half of {PINGS} single jobs began within {middle:.1f} ms of the call, in another process."
        )


def _ping(scene: Scene) -> Job:
    job = jobs.ping.enqueue(time.monotonic())
    scene.figures.accepted.add(job.id)
    scene.interrupts.sleep(EVERY_S)
    return job


def sprint(scene: Scene, count: int) -> None:
    """Jobs that do nothing: what is left is the queue itself."""
    app, figures = scene.app, scene.figures
    app.queues.pause(jobs.EXPRESS)
    drafts = [jobs.nothing.new() for _ in range(count)]
    spent_s = 0.0
    for first in range(0, count, BATCH):
        scene.interrupts.check()
        began = time.perf_counter()
        accepted = app.enqueue_many(drafts[first : first + BATCH])
        spent_s += time.perf_counter() - began
        figures.accepted.update(job.id for job in accepted)
    figures.batch_rate = count / spent_s
    watch = Watch(scene, count, jobs.EXPRESS)
    watch.start()
    watch.until_ended()
    figures.empty, figures.empty_rate = count, watch.rate(app.runs(kind=jobs.nothing.name))
    scene.screen.say("sprint", f"{count:,} empty jobs at {figures.empty_rate:,.0f} jobs/s, by one worker process.")
