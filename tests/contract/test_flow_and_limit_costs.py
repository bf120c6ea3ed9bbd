"""Neither the size of a flow nor the length of a line costs a worker anything: in steps of SQLite's virtual machine.
Jobs that use neither are finished and claimed with the same statements as if there were no such thing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perdure.job.flow import Edge
from perdure.job.reports import Completed
from perdure.limit.key import key_of
from perdure.store import turn
from perdure.store.rows import Lane, LimitRule, Turn
from perdure.testing.contract.rig import Rig
from tests.contract.steps import Steps, statements_of

SLACK = 60
"""Tens of steps: a tree of a few levels more."""

Prepare = Callable[[Rig, int], None]


def next_turn(rig: Rig, room: int = 5) -> Turn:
    """Complete what can be claimed now, and claim more."""
    done = [rig.report(claim, Completed()) for claim in rig.claim(room)]
    return Turn(done, settle=True, promote=5, lanes=[Lane(rig.queue, room)], claimer=rig.claimer(room))


def members(rig: Rig, count: int) -> None:
    """A flow of so many, and a callback that waits for it."""
    flow = rig.new_flow(open=True)
    rig.store.start_flows([flow], [rig.new(after=(Edge(flow.id),))._replace(flow_id=flow.id)])
    for first in range(0, count, 1_000):
        rig.store.add_members(flow.id, rig.members(flow, min(1_000, count - first), first), rig.now)
    rig.store.seal_flow(flow.id, rig.now)


def parents(rig: Rig, count: int) -> None:
    """So many jobs that one waits for."""
    rig.enqueue(after=tuple(map(Edge, rig.enqueue_many(count))))


def line_of_one_key(rig: Rig, count: int) -> None:
    """So many in line for a key that is full, in front of others that need none."""
    declare(rig, 1)
    for _ in range(0, count, 1_000):
        rig.enqueue_many(min(1_000, count), limit_key=f"{rig.key('tenant')}*1")
    all_in_line(rig)
    rig.enqueue_many(20)


def lines_of_many_keys(rig: Rig, count: int) -> None:
    """So many keys that are full, each with a job in line; and one with room and a few jobs."""
    declare(rig, 1)
    keys = [key_of(rig.key("tenant"), number) for number in range(count)]
    for first in range(0, count, 500):
        rig.store.enqueue([rig.new(limit_key=f"{key}*1") for key in keys[first : first + 500] for _ in (1, 2)])
    all_in_line(rig)
    rig.enqueue_many(20, limit_key=f"{key_of(rig.key('tenant'), 'other')}*1")


def declare(rig: Rig, most: int) -> None:
    rig.store.declare_limits([LimitRule(rig.key("tenant"), "at_once", most)], [rig.kind], rig.now)


def all_in_line(rig: Rig) -> None:
    """Start what may start, until all others stand in line."""
    other = rig.register()
    while rig.execute("SELECT 1 FROM {ready} WHERE state = 'held' AND held_by IS NULL LIMIT 1"):
        rig.claim(100, node=other)
    rig.settle()


SIZES = {
    "a flow with many members": members,
    "a job that waits for many": parents,
    "a long line": line_of_one_key,
    "lines of many keys": lines_of_many_keys,
}


@pytest.fixture
def rigs(tmp_path: Path) -> Iterator[list[Rig]]:
    rigs = [Rig(f"sqlite:///{tmp_path}/{name}.db") for name in ("few", "many")]
    yield rigs
    for rig in rigs:
        rig.close()


@pytest.mark.parametrize("prepare", SIZES.values(), ids=SIZES)
def test_a_turn_costs_the_same_whatever_the_size(rigs: list[Rig], prepare: Prepare, full_size: bool) -> None:
    """Oban Pro's fan-in of 10,000 was quadratic; graphile-worker locked every key at each fetch (PR 558)."""
    costs: list[int] = []
    for rig, count in zip(rigs, (100, 100_000 if full_size else 5_000), strict=True):
        prepare(rig, count)
        wanted, steps = next_turn(rig), Steps(Path(rig.url.removeprefix("sqlite:///")))
        costs.append(steps.worst(turn.turn(wanted, rig.now)))
        steps.close()
        assert wanted.finishes
        assert rig.store.held_by(rig.node), "the turn has claimed nothing"

    few, many = costs
    assert 0 < many <= few + SLACK


# -- jobs that use neither -------------------------------------------------------------------------------------------

PLAIN = [
    "begin_part",
    "delete_ready_of_run",
    "close_run_plainly",
    "insert_plain_outcome",
    "aside_of_lane",
    "claim_head",
    "claim_ready",
    "insert_run",
    "end_part",
]
"""A turn that completes plain jobs and claims others: five writes, each for all of its jobs, and two reads, one of them
about the lane. Whatever is added here is paid for by every job there is."""


def limits_and_flows_of_others(rig: Rig, count: int) -> None:
    """In another queue: a line, and a flow that is under way."""
    declare(rig, 1)
    other = rig.key("other")
    rig.enqueue_many(count, limit_key=f"{rig.key('tenant')}*1", queue=other)
    rig.claim(2, queue=other, node=rig.register())
    flow = rig.new_flow()
    rig.store.start_flows([flow], rig.members(flow, count, queue=other))


@pytest.mark.parametrize("beside", [None, limits_and_flows_of_others], ids=["alone", "beside flows and limits"])
def test_a_turn_of_plain_jobs_has_no_statement_for_flows_and_limits(rigs: list[Rig], beside: Prepare | None) -> None:
    for rig, count in zip(rigs, (1, 100), strict=True):
        if beside is not None:
            beside(rig, 20)
        rig.enqueue_many(2 * count)
        done = [rig.report(claim, Completed()) for claim in rig.claim(count)]
        wanted = Turn(done, lanes=[Lane(rig.queue, count)], claimer=rig.claimer(count))
        path = Path(rig.url.removeprefix("sqlite:///"))

        assert statements_of(path, turn.glance(rig.node, None)) == ["glance"]
        assert statements_of(path, turn.turn(wanted, rig.now)) == PLAIN
        assert len(rig.store.held_by(rig.node)) == count
