"""The first acts of the demo: enqueue, explain, start workers, reorder. Called by `stage`; `killing` comes next.

Each act leaves its numbers in the figures; whether all of it is true is for `proof` to find out.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from perdure.cli.demo import jobs, programme
from perdure.cli.demo.crew import Member
from perdure.cli.demo.watching import LOOK_S, Scene, Watch
from perdure.job.views import Job
from perdure.kind import Draft

AT_ONCE = 10
"""How many jobs each worker of the shop runs at a time; the default of `perdure worker`."""
BATCH = 500
SINGLES = 50
"""Of each batch, so many are enqueued one by one."""


def enqueue(scene: Scene, count: int) -> Job:
    """Fill the shop's queue. Answers the last job."""
    scene.screen.doing("enqueueing")
    figures = scene.figures
    key = jobs.order.options(idempotency_key="order-17")
    first, again = key.enqueue(17), key.enqueue(17)
    doomed = jobs.charge.enqueue(1, card="expired")
    figures.accepted |= {first.id, again.id, doomed.id}
    figures.doomed.add(doomed.id)
    drafts = list(programme.drafts(count))
    figures.parents = 1 + sum(draft.kind.name == jobs.order.name for draft in drafts)
    last = _enqueue_all(scene, drafts)
    scene.screen.say(
        "enqueue",
        f"{len(figures.accepted):,} jobs of {len({draft.kind.name for draft in drafts})} kinds are queued: coroutines,"
        " functions in threads, and one kind in processes of its own. When enqueue returns, a job is on the disk."
        " Some will fail and be tried again, one will fail for good.",
    )
    if again.deduplicated and again.id == first.id:
        scene.screen.say("key", "The idempotency key order-17 was used twice, and there is one job of it.")
    else:
        figures.surprises.append("the same idempotency key made two jobs")
    return last


def _enqueue_all(scene: Scene, drafts: Sequence[Draft]) -> Job:
    last: Job | None = None
    singles, spent_s = 0, 0.0
    for begin in range(0, len(drafts), BATCH):
        scene.interrupts.check()
        batch = drafts[begin : begin + BATCH]
        accepted = scene.app.enqueue_many(batch[:-SINGLES])
        began = time.perf_counter()
        accepted += [scene.app.enqueue_arguments(*draft) for draft in batch[-SINGLES:]]
        spent_s += time.perf_counter() - began
        singles += len(batch[-SINGLES:])
        scene.figures.accepted.update(job.id for job in accepted)
        last = accepted[-1]
    assert last is not None
    scene.figures.single_rate = singles / spent_s
    return last


def explain(scene: Scene, job: Job) -> None:
    scene.screen.say("explain", f'Why does job {tail(job)} not run? app.explain answers: "{scene.app.explain(job)}"')


def begin_work(scene: Scene) -> tuple[Member, Member]:
    """Two workers at the ready; the shop is closed until both are."""
    for queue in (jobs.SHOP, jobs.POST, jobs.EXPRESS):
        scene.app.queues.pause(queue)
    first, second = (scene.crew.start(jobs.POST, jobs.SHOP, concurrency=AT_ONCE) for _ in range(2))
    scene.screen.doing("starting two workers")
    scene.crew.await_start(first, second)
    scene.screen.say(
        "workers", f"Two worker processes have started, {first.pid} and {second.pid}, {AT_ONCE} jobs at a time each."
    )
    return first, second


def reorder(scene: Scene, watch: Watch, job: Job) -> None:
    """Move the last job to the front, open the shop, and see what starts first."""
    app = scene.app
    ahead = app.store.count_ahead(job, 1_000_000)
    app.move(job, to="front")
    watch.start()
    while not (runs := list(app.runs(job))) and not watch.is_stuck:
        scene.interrupts.sleep(LOOK_S)
    if not runs:
        return
    run = runs[-1]
    before = sum(other.started_at < run.started_at for other in app.runs())
    if before > 2 * AT_ONCE:  # more than both workers could have taken at the same moment
        scene.figures.surprises.append(f"{before} jobs started before the one that was moved to the front")
    scene.screen.say(
        "reorder",
        f"Job {tail(job)} stood behind {ahead:,} others. Moved to the front, it started"
        f" {(run.row.started_at - watch.started_at) / 1000:.0f} ms after the queue was opened, with"
        f" {before or 'none'} before it.",
    )


def tail(job: Job) -> str:
    """Enough of an id to find it by; `perdure job` takes it."""
    return str(job.id)[-6:]
