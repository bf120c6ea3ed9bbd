"""`exclusive=`: one worker of a name works, the others stand by and take over."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from perdure import JobContext, Perdure
from perdure.clock import ManualClock, Micros
from perdure.ids import NodeId
from perdure.store.rows import NewNode
from perdure.worker.heartbeat import Exclusive
from tests.worker.patience import eventually, seen_by_the_doctor

LEASE_S = 60.0


class Here:
    """A node as the lease sees it."""

    def __init__(self, app: Perdure) -> None:
        self.id = NodeId(app.ids.new())
        lease_us = round(app.config.lease_s * 1_000_000)
        app.store.register(NewNode(self.id, app.clock.now(), lease_us=lease_us))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime(2030, 1, 1, tzinfo=UTC))


def candidate(app: Perdure, clock: ManualClock) -> tuple[Exclusive, Here]:
    node = Here(app)
    return Exclusive("leader", app.parts()._replace(clock=clock), node, LEASE_S), node  # type: ignore[arg-type]


def test_one_of_two_holds_the_name(app: Perdure, clock: ManualClock) -> None:
    (first, _), (second, _) = candidate(app, clock), candidate(app, clock)

    assert (first.keep(), second.keep()) == (True, False)
    assert (first.held, second.held) == (True, False)


def test_a_hold_that_is_renewed_lasts(app: Perdure, clock: ManualClock) -> None:
    (first, _), (second, _) = candidate(app, clock), candidate(app, clock)
    first.keep()

    for _ in range(20):
        clock.advance(seconds=LEASE_S / 5)
        assert (first.keep(), second.keep()) == (False, False)
        assert first.held


def test_a_hold_that_is_not_renewed_ends_here_before_another_can_take_it(app: Perdure, clock: ManualClock) -> None:
    (first, _), (second, _) = candidate(app, clock), candidate(app, clock)
    first.keep()

    clock.advance(seconds=LEASE_S)
    assert not first.held
    assert second.keep()
    first.keep()
    assert (first.held, second.held) == (False, True)


class Slow(ManualClock):
    """Time passes while the database is asked."""

    def now(self) -> Micros:
        self.advance(seconds=5)
        return super().now()


def test_a_hold_counts_from_before_it_was_asked_for(app: Perdure) -> None:
    clock = Slow(datetime(2030, 1, 1, tzinfo=UTC))
    first, _ = candidate(app, clock)
    asked_at = clock.boottime()
    first.keep()
    assert first.held

    clock.advance(seconds=asked_at + LEASE_S - clock.boottime())
    assert not first.held


def test_a_released_name_is_taken_at_the_next_look(app: Perdure, clock: ManualClock) -> None:
    (first, _), (second, _) = candidate(app, clock), candidate(app, clock)
    first.keep()
    second.keep()
    first.release()

    assert second.keep()
    assert not first.held


def test_the_name_of_a_dead_node_is_free_at_once(app: Perdure, clock: ManualClock) -> None:
    (first, node), (second, _) = candidate(app, clock), candidate(app, clock)
    first.keep()
    app.store.stop(node.id, "crash", clock.now())

    assert second.keep()


def test_a_node_that_comes_back_under_another_id_takes_the_name_anew(app: Perdure, clock: ManualClock) -> None:
    first, node = candidate(app, clock)
    first.keep()
    old, node.id = node.id, NodeId(app.ids.new())

    assert first.keep()
    assert app.store.lock_holder("worker:leader", clock.now()) == node.id.hex() != old.hex()


def test_other_names_are_no_matter(app: Perdure, clock: ManualClock) -> None:
    first, node = candidate(app, clock)
    other = Exclusive("other", app.parts()._replace(clock=clock), node, LEASE_S)  # type: ignore[arg-type]

    assert (first.keep(), other.keep()) == (True, True)


# -- whole workers ---------------------------------------------------------------------------------------------------


def test_the_next_worker_takes_over_when_the_first_stops(path: Path) -> None:
    app = Perdure(path, durability="normal", lease_s=3, busy_timeout_s=1)
    ran: list[str] = []

    @app.job
    def note(ctx: JobContext) -> None:
        ran.append(str(ctx.run.node_id))

    with app.worker(exclusive="one").running() as first, app.worker(exclusive="one").running() as second:
        assert (first.health().standby, second.health().standby) == (False, True)
        app.wait(note.enqueue(), timeout=60)
        assert ran == [str(first.health().node_id)]
        first.stop()
        app.wait(note.enqueue(), timeout=60)
        assert second.health().healthy
    assert ran == [str(first.health().node_id), str(second.health().node_id)]
    assert app.store.lock_holder("worker:one", app.clock.now()) is None
    seen_by_the_doctor(app)


def test_a_worker_keeps_its_place_until_its_last_job_has_ended(path: Path) -> None:
    app = Perdure(path, durability="normal", lease_s=3, busy_timeout_s=1)
    entered, go = threading.Event(), threading.Event()

    @app.job
    def hold() -> None:
        entered.set()
        go.wait(60)

    job = hold.enqueue()
    with app.worker(exclusive="one").running() as first:
        assert entered.wait(60)
        first.stop()
        with app.worker(exclusive="one").running() as second:
            eventually(lambda: second.health().turn_age_s is not None)
            assert (first.health().standby, second.health().standby) == (False, True)
            go.set()
            app.wait(job, timeout=60)
            eventually(lambda: not second.health().standby)
    seen_by_the_doctor(app)


def test_a_worker_that_lost_its_place_claims_nothing_until_it_has_it_again(path: Path) -> None:
    app = Perdure(path, durability="normal", lease_s=1.2, busy_timeout_s=0.4)

    @app.job
    def note() -> None: ...

    with app.worker(exclusive="one").running() as worker:
        thief = Here(app)  # never beats, so that it is taken for dead after a while
        now = app.clock.now()
        holder = app.store.lock_holder("worker:one", now)
        assert holder is not None
        app.store.release_lock("worker:one", holder)
        assert app.store.take_lock("worker:one", thief.id.hex(), now, 3600 * 10**6)
        eventually(lambda: worker.health().standby)
        app.wait(note.enqueue(), timeout=60)
        assert not worker.health().standby
    seen_by_the_doctor(app)
