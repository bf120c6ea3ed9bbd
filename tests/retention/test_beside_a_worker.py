"""Pruning and archiving while a worker drains: what lives is not touched, what is old is gone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure import Perdure, Retention
from perdure.clock import ManualClock, SystemClock
from perdure.ids import IdFactory
from perdure.job.reports import Completed
from perdure.ops.doctor import examine
from perdure.store.rows import JobFilter
from perdure.testing.contract.rig import Rig
from perdure.upkeep.retention import Archive, Prune

OLD = timedelta(days=100)


def fill(rig: Rig, number: int) -> None:
    """Jobs that ended a hundred days ago, by their ids too."""
    clock = rig.clock = ManualClock(datetime.now(UTC) - OLD)
    rig.ids = IdFactory(lambda: clock.now() // 1_000, pause=lambda: clock.advance(milliseconds=1))
    for first in range(0, number, 1_000):
        rig.enqueue_many(min(1_000, number - first))
        claims = rig.claim(1_000)
        rig.store.finish([rig.report(claim, Completed()) for claim in claims], rig.now)


@pytest.mark.parametrize("archive", [None, "table"])
def test_a_worker_drains_while_old_jobs_go(rig: Rig, full_size: bool, archive: Any) -> None:
    old, live = (1_000_000, 100_000) if full_size else (5_000, 500)
    fill(rig, old)
    app = Perdure(rig.url, durability="normal")

    @app.job
    def count(number: int) -> int:
        return number

    jobs = app.enqueue_many([count.new(number) for number in range(live)])
    clock = SystemClock()
    work = (Prune if archive is None else Archive)(rig.store, clock, Retention(archive=archive))
    swept: dict[str, int] = {}
    sweeping = threading.Thread(target=_sweep, args=(work.begin, work.step, clock, swept))
    sweeping.start()
    app.worker(poll_s=0.02).run(until_idle=True)
    sweeping.join()

    assert swept["jobs"] == old
    assert rig.store.jobs(JobFilter(state="completed"), None, 1).items
    assert [job.result for job in map(app.existing, jobs[:: max(1, live // 500)])] == list(
        range(0, live, max(1, live // 500))
    )
    assert sum(1 for _ in app.jobs(state="completed")) == live
    assert sum(1 for _ in app.runs()) == live
    if archive is not None:
        assert sum(1 for _ in app.archived_jobs()) == old
    assert examine(rig.store) == []
    app.close()


def _sweep(begin: Callable[..., None], step: Callable[[], Any], clock: SystemClock, swept: dict[str, int]) -> None:
    begin(clock.now())
    while (counts := step()) is None:
        pass
    swept.update(counts)
