"""Workers on several machines: one is cut off, one has a wrong clock, all of them lose the server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from perdure import Perdure
from perdure.ids import to_uuid
from perdure.ops.doctor import examine, is_healthy
from perdure.store.rows import NodeRow
from tests import history
from tests.outages.company import Company
from tests.outages.network import Machine, machine, node_on
from tests.outages.server import Server
from tests.worker.patience import eventually

LEASE_S = 3.0


@pytest.fixture
def app(company: Company) -> Iterator[Perdure]:
    """In the end all that happened to its jobs can be explained."""
    yield company.app
    assert is_healthy(examine(company.app.store))
    assert history.problems(company.notes, company.app, handlers_note=False) == []


@pytest.fixture
def hold(app: Perdure) -> Any:
    @app.job(name="hold")
    def hold() -> str:
        raise NotImplementedError

    return hold


def nodes(app: Perdure) -> dict[str, NodeRow]:
    return {str(to_uuid(row.id)): row for row in app.store.nodes(100)}


@pytest.mark.parametrize(
    "cut",
    [Machine.lose_what_it_sends, Machine.lose_what_is_sent_to_it],
    ids=["its words are lost", "it hears nothing"],
)
def test_a_node_that_is_cut_off_one_way_is_rescued_from_and_ends_nothing(
    app: Perdure, hold: Any, server: Server, cut: Any
) -> None:
    with (
        machine() as first,
        machine() as second,
        node_on(first, server, "cut off", lease_s=LEASE_S) as away,
    ):
        job = hold.enqueue()
        assert away.read("started") == "1"
        with node_on(second, server, "there", lease_s=LEASE_S) as there:
            cut(first)
            assert there.read("started") == "2"
            assert nodes(app)[away.id].stop_reason == "unknown"
            first.heal()
            away.let_jobs_end()  # what it reports now is too late
            there.let_jobs_end()
            eventually(lambda: app.existing(job).state == "completed")
            eventually(lambda: away.process.poll() is not None or _has_a_new_id(app, away.id, there.id))
    assert app.existing(job).result == "there"
    assert [run.state for run in app.runs(job)] == ["completed", "lost"]


def _has_a_new_id(app: Perdure, *known: str) -> bool:
    return bool(nodes(app).keys() - set(known))


def test_clocks_five_minutes_apart_declare_nobody_dead(app: Perdure, hold: Any, server: Server) -> None:
    with (
        machine() as first,
        machine() as second,
        node_on(first, server, "fast", lease_s=LEASE_S, offset_s=300) as fast,
        node_on(second, server, "slow", lease_s=LEASE_S, offset_s=-300) as slow,
    ):
        fast.let_jobs_end()
        slow.let_jobs_end()
        jobs = [hold.enqueue() for _ in range(20)]
        eventually(lambda: all(app.existing(job).state == "completed" for job in jobs))
        # six beats are a lease: each has been silent to the other for two leases, if it is judged by the wall clock
        eventually(lambda: min(nodes(app)[each.id].beat for each in (fast, slow)) >= 12)
        assert all(nodes(app)[each.id].stopped_at is None for each in (fast, slow))
    assert all(len(list(app.runs(job))) == 1 for job in jobs)


def test_an_outage_longer_than_the_lease_declares_nobody_dead(app: Perdure, hold: Any, server: Server) -> None:
    with (
        machine() as first,
        machine() as second,
        node_on(first, server, "one", lease_s=LEASE_S) as one,
        node_on(second, server, "two", lease_s=LEASE_S) as two,
    ):
        jobs = [hold.enqueue() for _ in range(4)]
        eventually(lambda: all(app.existing(job).state == "running" for job in jobs))
        for cable in (first, second):
            cable.pull_the_plug()
        threading.Event().wait(2 * LEASE_S)
        for cable in (first, second):
            cable.heal()
        one.let_jobs_end()
        two.let_jobs_end()
        eventually(lambda: all(app.existing(job).state == "completed" for job in jobs))
        assert [row.stop_reason for row in nodes(app).values()] == [None, None]
    assert [run.attempt for job in jobs for run in app.runs(job)] == [1, 1, 1, 1]
