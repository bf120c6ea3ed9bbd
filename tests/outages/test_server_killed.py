"""The server dies under load and comes back: nothing acknowledged is lost, and every worker goes on by itself."""

from __future__ import annotations

from pathlib import Path

from perdure.clock import SystemClock
from tests import history
from tests.faults.scene import until
from tests.outages.company import Company, heard, stopped
from tests.outages.server import Server

LEASE_S = 2.0


def test_a_killed_server_loses_nothing_and_keeps_nobody_waiting(
    server: Server, company: Company, full_size: bool
) -> None:
    enqueuer = company.start("enqueue", "shop")
    assert heard(enqueuer) == "ready"
    company.hire(2)
    company.all_work(0, within_s=60)
    for _ in range(20 if full_size else 3):
        server.kill()
        server.start()
        since = len(company.starts())
        company.all_work(since)
    enqueued, errors = map(int, stopped(enqueuer))
    company.rest()
    company.check()
    assert enqueued == len(history.events(company.notes, "enqueued")) > 0
    assert errors > 0, "nobody noticed that the server was gone"


def test_an_outage_longer_than_the_lease_declares_nobody_dead(
    server: Server, company: Company, tmp_path: Path, full_size: bool
) -> None:
    """Jobs that run meanwhile go on, and end once, in their first attempt."""
    go = tmp_path / "go"
    jobs = company.app.enqueue_many([company.app.draft("linger", {"until": str(go)}, {}) for _ in range(2)])
    for job in jobs:
        history.note(company.notes, "enqueued", job=job.id)
    company.hire(2, lease_s=LEASE_S)
    until(lambda: len(company.starts()) == 2, "both of them run")
    for outage in range(3 if full_size else 1):
        server.kill()
        SystemClock().wait(2 * LEASE_S)
        server.start()
        enqueuer = company.start("enqueue", f"shop {outage}")
        assert heard(enqueuer) == "ready"
        company.all_work(len(company.starts()))
        stopped(enqueuer)
    SystemClock().wait(2 * LEASE_S)  # had anybody been suspected, he would have been declared dead by now
    go.touch()
    company.rest()
    company.check()
    assert {(run.state, run.attempt) for run in company.app.runs()} == {("completed", 1)}
    assert {node.stop_reason for node in company.app.store.nodes(100)} == {"clean_shutdown"}
