"""Eight processes enqueue while four work: every job runs once."""

from __future__ import annotations

from contextlib import ExitStack

from tests.faults.scene import Scene, count, program, said, tell, until
from tests.history import events


def test_eight_enqueue_while_four_drain(scene: Scene, full_size: bool) -> None:
    each = 2_500 if full_size else 60
    app = scene.app()
    app.queues.list()  # the file is there before anyone starts
    with ExitStack() as stack:
        workers = [stack.enter_context(program("drain", scene.path, scene.notes)) for _ in range(4)]
        makers = [stack.enter_context(program("enqueue_many", scene.path, scene.notes, each)) for _ in range(8)]
        for maker in makers:
            tell(maker)
        assert [said(maker) for maker in makers] == [f"enqueued {each}"] * 8
        until(lambda: count(app, "queued") + count(app, "running") == 0)
        for worker in workers:
            tell(worker, "stop")
        ran = [int(said(worker).removeprefix("ran ")) for worker in workers]
        assert [process.wait() for process in (*makers, *workers)] == [0] * 12
    starts = events(scene.notes, "start")
    assert sum(ran) == len(starts) == len({one["job"] for one in starts}) == count(app, "completed") == 8 * each
