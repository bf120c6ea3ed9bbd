"""Connections that the server ends: again and again, or because nothing comes from the other side."""

from __future__ import annotations

import time

from perdure import Perdure
from perdure.clock import SystemClock
from perdure.ids import NodeId
from perdure.worker.loop import SPLIT_FROM
from tests.faults.scene import until
from tests.outages.company import Company, heard, stopped
from tests.outages.server import Server, state_of

EVERY_S = 0.05
PATIENCE_S = 30.0


def test_backends_that_are_terminated_all_the_time_lose_nothing(
    server: Server, company: Company, full_size: bool
) -> None:
    enqueuer = company.start("enqueue", "shop")
    assert heard(enqueuer) == "ready"
    company.hire(2)
    company.all_work(0, within_s=60)
    ended, end = 0, time.monotonic() + (60 if full_size else 4)
    while time.monotonic() < end:
        ended += server.end_connections()
        SystemClock().wait(EVERY_S)
    company.all_work(len(company.starts()))
    enqueued, _ = map(int, stopped(enqueuer))
    company.rest()
    company.check()
    assert ended > 20
    assert enqueued > 0


def test_a_worker_with_two_turns_under_way_loses_nothing_when_their_connections_end(
    server: Server, company: Company, full_size: bool
) -> None:
    jobs, most = (20_000, 2_000) if full_size else (1_000, 300)
    step = company.app.kinds.find("step")
    assert step is not None
    step.enqueue_many([{"n": n} for n in range(jobs)])
    company.hire(1, concurrency=SPLIT_FROM)
    ended = 0
    while ended < most and any(True for _ in company.app.jobs(state="queued", limit=1)):
        ended += server.end_connections()
        SystemClock().wait(EVERY_S / 10)
    company.rest()
    company.check()
    assert ended > 5
    assert len(company.starts()) >= jobs


def test_a_worker_that_stands_still_inside_of_a_beat_can_be_declared_dead(server: Server, company: Company) -> None:
    """The server ends its transaction, before others get tired of waiting for the row of that node."""
    frozen = company.start("stand_still")
    node = NodeId(bytes.fromhex(heard(frozen)))
    until(lambda: state_of(frozen.pid) == "T", "it stands still")
    patient = Perdure(server.url, busy_timeout_s=PATIENCE_S)
    assert patient.store.stop(node, "unknown", patient.clock.now())
    patient.close()
