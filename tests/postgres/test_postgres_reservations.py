"""Claims that are under way when a queue is reserved: waited for, even where the queue's row is made by it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from perdure import Perdure, ReservationBusy
from perdure.ids import NodeId, RunId
from perdure.job.model import Claim
from perdure.job.reports import Completed
from perdure.store.protocols import Locked
from perdure.store.rows import Claimer, Lane, NewNode
from perdure.testing.contract.rig import Rig
from tests.app import by_hand
from tests.postgres.conftest import declare

pytestmark = pytest.mark.postgres


@pytest.fixture
def rig(postgres_url: str) -> Iterator[Rig]:
    """For its reservations."""
    rig = Rig(postgres_url)
    yield rig
    rig.close()


class Node:
    """One that was registered before, as every worker is."""

    def __init__(self, app: Perdure) -> None:
        self._app = app
        self._id = NodeId(app.ids.new())
        app.store.register(NewNode(self._id, app.clock.now()))

    def claim(self) -> list[Claim]:
        claimer = Claimer(self._id, None, [RunId(self._app.ids.new())], by_hand.LEASE_US)
        return self._app.store.claim([Lane("mail", 1)], claimer, self._app.clock.now())


@pytest.mark.parametrize("queue", ["mail", "*"])
def test_a_reservation_waits_for_claims_under_way(
    app: Perdure, send: Any, other: Perdure, rig: Rig, queue: str
) -> None:
    """The first reservation ever of '*' makes the row that closes it, which no claim under way can see."""
    send.enqueue("a")
    send.enqueue("b")
    node, new = Node(app), rig.reservation(queue)
    with app.transaction():
        [claim] = node.claim()
        with pytest.raises(Locked):
            other.store.reserve(new)

    assert other.store.reserve(new) is None
    assert not other.store.enter_reservation(new.id, rig.until(), rig.now)
    assert node.claim() == []
    by_hand.finish(app, [claim], Completed())
    assert other.store.enter_reservation(new.id, rig.until(), rig.now)
    assert node.claim() == []
    other.store.close_reservation(new.id, "released", rig.now)
    assert len(node.claim()) == 1


@pytest.mark.parametrize("queue", ["mail", "*"])
def test_a_claim_that_comes_while_a_queue_is_being_reserved_gets_nothing(
    app: Perdure, send: Any, other: Perdure, rig: Rig, queue: str
) -> None:
    send.enqueue("a")
    node, new = Node(other), rig.reservation(queue)
    with app.transaction():
        assert app.store.reserve(new) is None
        with pytest.raises(Locked):
            node.claim()
    assert node.claim() == []
    app.store.close_reservation(new.id, "released", rig.now)
    assert len(node.claim()) == 1


def test_who_waits_for_claims_under_way_says_so_when_its_time_is_up(app: Perdure, send: Any, other: Perdure) -> None:
    send.enqueue("a")
    node = Node(app)
    with app.transaction():
        node.claim()
        with pytest.raises(ReservationBusy, match="database_busy"), other.reserve("mail", wait=0.01):
            pass
    assert app.reservations() == []


def test_nobody_waits_to_enqueue_while_a_queue_is_being_reserved(
    app: Perdure, send: Any, other: Perdure, rig: Rig
) -> None:
    send.enqueue("a")
    new = rig.reservation("mail")
    with app.transaction():
        assert app.store.reserve(new) is None
        assert declare(other).enqueue("b").state == "queued"
    app.store.close_reservation(new.id, "released", rig.now)
