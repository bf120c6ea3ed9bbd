"""Worker process lifetimes. Protocol `NodeOperations`."""

from __future__ import annotations

from perdure.errors import StoreError
from perdure.ids import NodeId
from perdure.job.reports import Completed
from perdure.store.rows import NewNode, NodeRow, Process
from perdure.testing.contract.case import raises
from perdure.testing.contract.rig import Rig


def _node(rig: Rig, node_id: NodeId) -> NodeRow:
    [found] = [node for node in rig.store.nodes(100) if node.id == node_id]
    return found


def test_a_registered_node_is_listed_as_it_was_given(rig: Rig) -> None:
    node_id = NodeId(rig.ids.new())
    rig.store.register(
        NewNode(
            node_id,
            rig.now,
            Process("host", 42, "123", "boot", "ns"),
            kinds="send",
            queues="mail,print",
            lease_us=5_000_000,
        )
    )

    assert _node(rig, node_id) == NodeRow(
        node_id, "send", 0, rig.now, rig.now, None, None, "host", 42, "123", "boot", "ns", "mail,print", 5_000_000
    )
    assert _node(rig, node_id) in rig.store.live_nodes()


def test_a_lease_may_be_very_long_or_not_be_said(rig: Rig) -> None:
    nodes = [NodeId(rig.ids.new()) for _ in range(2)]
    for node_id, lease_us in zip(nodes, (10**18, None), strict=True):
        rig.store.register(NewNode(node_id, rig.now, lease_us=lease_us))

    assert [_node(rig, node_id).lease_us for node_id in nodes] == [10**18, None]


def test_a_node_id_is_registered_once(rig: Rig) -> None:
    node_id = rig.register()

    with raises(StoreError, "unique_violation"):
        rig.store.register(NewNode(node_id, rig.now, Process("another")))

    assert _node(rig, node_id).host == "here"


def test_the_newest_nodes_are_listed_first_up_to_the_limit(rig: Rig) -> None:
    nodes = [rig.register() for _ in range(3)]

    assert [node.id for node in rig.store.nodes(2)] == [nodes[2], nodes[1]]


def test_a_beat_is_counted_and_dated(rig: Rig) -> None:
    node_id = rig.register()
    started = rig.now
    rig.clock.advance(seconds=10)

    assert rig.store.beat(node_id, rig.now)
    assert rig.store.beat(node_id, rig.now)

    node = _node(rig, node_id)
    assert (node.beat, node.beat_at, node.started_at) == (2, rig.now, started)


def test_a_node_that_is_not_registered_cannot_beat_or_stop(rig: Rig) -> None:
    nobody = NodeId(rig.ids.new())

    assert not rig.store.beat(nobody, rig.now)
    assert not rig.store.stop(nobody, "crash", rig.now)


def test_a_stopped_node_stays_stopped(rig: Rig) -> None:
    node_id = rig.register()
    stopped = rig.now

    assert rig.store.stop(node_id, "clean_shutdown", rig.now)
    rig.clock.advance(seconds=1)
    assert not rig.store.beat(node_id, rig.now)
    assert not rig.store.stop(node_id, "crash", rig.now)

    node = _node(rig, node_id)
    assert (node.stopped_at, node.stop_reason, node.beat) == (stopped, "clean_shutdown", 0)


def test_a_node_that_has_beaten_since_is_not_declared_dead(rig: Rig) -> None:
    node_id = rig.register()
    seen = _node(rig, node_id).beat
    rig.store.beat(node_id, rig.now)

    assert not rig.store.stop(node_id, "crash", rig.now, seen)
    assert _node(rig, node_id).stopped_at is None
    assert rig.store.beat(node_id, rig.now)


def test_a_node_that_has_not_beaten_since_is_declared_dead(rig: Rig) -> None:
    node_id = rig.register()
    rig.store.beat(node_id, rig.now)

    assert rig.store.stop(node_id, "crash", rig.now, 1)
    assert not rig.store.beat(node_id, rig.now)


def test_the_living_are_those_not_declared_stopped(rig: Rig) -> None:
    first, stopped, dead, last = (rig.register() for _ in range(4))
    rig.store.stop(stopped, "clean_shutdown", rig.now)
    rig.store.stop(dead, "crash", rig.now)
    rig.store.beat(last, rig.now)

    assert rig.store.live_nodes() == [_node(rig, first), _node(rig, last)]


def test_a_node_that_stopped_with_jobs_in_hand_has_left_them_behind(rig: Rig) -> None:
    nodes = alive, dead, clean, _ = [rig.register() for _ in range(4)]
    rig.enqueue_many(6)
    for node in (alive, dead, clean):
        rig.claim(2, node=node)
    assert rig.store.nodes_left_behind() == []

    for node in nodes[1:]:
        rig.store.stop(node, "crash" if node is dead else "clean_shutdown", rig.now)
    assert sorted(rig.store.nodes_left_behind()) == sorted([dead, clean])

    rig.rescue(dead, room=1)
    assert sorted(rig.store.nodes_left_behind()) == sorted([dead, clean])
    rig.rescue(dead)
    rig.rescue(clean)
    assert rig.store.nodes_left_behind() == []


def test_a_node_that_nobody_knows_has_left_its_jobs_behind(rig: Rig) -> None:
    node = rig.register()
    rig.enqueue()
    rig.claim_one(node=node)
    rig.execute("DELETE FROM {node} WHERE started_at = :now", now=rig.now)

    assert rig.store.nodes_left_behind() == [node]
    rig.rescue(node)


def test_a_running_job_without_any_node_is_nobodys_to_rescue(rig: Rig) -> None:
    """This cannot happen; the doctor reports it, and a rescue must not fail on it."""
    claim = rig.start()
    rig.execute("UPDATE {ready} SET node_id = NULL WHERE queue = :queue", queue=rig.queue)

    assert rig.store.nodes_left_behind() == []
    rig.finish(claim, Completed())
