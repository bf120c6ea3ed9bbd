"""Somebody's own transaction stays open, for an hour if he likes: what it holds keeps no worker from its turns."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from perdure.ids import FlowId
from perdure.job.flow import Edge
from perdure.job.reports import Completed
from perdure.job.states import State, Verb
from perdure.job.transitions import cancel
from perdure.store.protocols import Store
from perdure.store.rows import Lane, Turn
from perdure.testing.contract.rig import Rig
from tests.interleaving.stage import LOOK_S, PATIENCE_S
from tests.interleaving.theatre import Theatre

Holds = Callable[[Store], object]


def _takes_turns(rig: Rig, count: int = 3) -> int:
    """As a node does, with the work list in each turn. Returns how many jobs it has claimed."""
    turn = Turn(settle=True, lanes=[Lane(rig.queue, 1)], claimer=rig.claimer(1))
    return sum(len(rig.store.turn(turn, rig.now).claims) for _ in range(count))


def _sealed_again_by_another(rig: Rig) -> tuple[FlowId, Holds]:
    """Who leaves word to look at it, too."""
    flow_id, _ = rig.start_flow(1)
    return flow_id, lambda store: store.seal_flow(flow_id, rig.now)


def _waited_for_by_another(rig: Rig) -> tuple[FlowId, Holds]:
    flow_id, _ = rig.start_flow(1)
    new = [rig.new(after=(Edge(flow_id),))]
    return flow_id, lambda store: store.enqueue(new)


@pytest.mark.parametrize("scene", [_sealed_again_by_another, _waited_for_by_another])
def test_a_flow_that_is_held_ends_afterwards(theatre: Theatre, scene: Callable[[Rig], tuple[FlowId, Holds]]) -> None:
    rig, other = theatre.rig(), theatre.another()
    flow_id, holds = scene(rig)
    claim = rig.claim_one()
    rig.enqueue()
    with other.transaction():
        holds(other)
        turned = rig.store.turn(Turn([rig.report(claim, Completed())]), rig.now)
        rig.store.turn(Turn(flows=[flow_id]), rig.now)
        rig.store.turn(Turn(flows=turned.flows), rig.now)
        assert _takes_turns(rig) == 1, "a worker waits for a transaction that is none of its business"
        assert rig.flow(flow_id).finished_at is None
    rig.settle()
    assert rig.flow(flow_id).state == "completed"


def test_an_inner_flow_ends_while_a_member_of_the_outer_is_being_cancelled(theatre: Theatre) -> None:
    rig, other = theatre.rig(), theatre.another()
    outer = rig.new_flow()
    inner = rig.new_flow(parent_id=outer.id, open=True)
    [last, member] = (*rig.members(inner, 1), *rig.members(outer, 1))
    rig.store.start_flows([outer, inner], [last, member])
    rig.finish(rig.claim_one(), Completed())
    rig.execute("UPDATE {flow} SET sealed_at = created_at")
    with other.transaction():
        other.change(member.id, Verb.CANCEL, cancel, rig.now)
        rig.store.turn(Turn(flows=[inner.id]), rig.now)
        assert rig.flow(inner.id).state == "completed"
    rig.settle()
    assert (rig.flow(outer.id).state, rig.flow(outer.id).completed) == ("cancelled", 1)


def test_what_is_to_be_done_with_a_flow_that_is_held_keeps_nothing_else_waiting(theatre: Theatre) -> None:
    rig, other = theatre.rig(), theatre.another()
    held, _ = rig.start_flow(2)
    free, [member] = rig.start_flow(1)
    for flow_id in (held, free):
        of = rig.id_of(flow_id.hex())
        rig.execute(
            f"INSERT INTO {{todo}} (what, subject, cause, reached, created_at) VALUES ('stop', {of}, {of}, NULL, 0)"
        )
    with other.transaction():
        other.change_flow(held, "pause", rig.now)
        rig.store.turn(Turn(settle=True), rig.now)
        assert rig.job(member).state == State.SKIPPED, "the work list stops at what is held"
    rig.settle()
    assert rig.flow(held).skipped == 2


def test_word_that_is_left_while_somebody_works_on_the_same_entry_is_not_lost(theatre: Theatre) -> None:
    rig, other = theatre.rig(), theatre.another()
    flow_id, _ = rig.start_flow(1, open=True)
    rig.store.change_flow(flow_id, "pause", rig.now)
    entry = f"FROM {rig.table('todo')} WHERE what = 'look'"
    with ThreadPoolExecutor(1) as pool:
        with other.transaction() as tx:
            assert tx.execute(f"SELECT what {entry} FOR UPDATE").fetchall()
            left = pool.submit(rig.store.seal_flow, flow_id, rig.now)
            deadline = time.monotonic() + PATIENCE_S
            while not left.done() and not theatre.waiting():
                assert time.monotonic() < deadline
                time.sleep(LOOK_S)
            tx.execute(f"DELETE {entry}")
        left.result()
    assert rig.execute(f"SELECT what {entry}"), "nobody looks at the flow any more"
    rig.store.change_flow(flow_id, "resume", rig.now)
