"""Puts together what a worker runs on. Called by `worker`, which starts it and takes it down."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from perdure.store.protocols import Bell
from perdure.upkeep.rescue import Rescuer
from perdure.worker.exclusive import Exclusive
from perdure.worker.executors.pools import Pools
from perdure.worker.executors.port import Inbox
from perdure.worker.node import Node, Parts
from perdure.worker.options import WorkerOptions, WorkerParts
from perdure.worker.shift import Shift
from perdure.worker.stage import Stage
from perdure.worker.stopping import Wish


def new_node(
    parts: WorkerParts, options: WorkerOptions, pools: Pools, inbox: Inbox, state: Callable[[], Mapping[str, Any]]
) -> Node:
    """A node that the database does not know yet."""
    stage = Stage(parts.store, parts.clock, parts.ids, parts.lay_out)
    needs = Parts(
        parts.store,
        parts.kinds,
        parts.clock,
        parts.ids,
        parts.liveness,
        pools,
        inbox,
        stage,
        options.middleware,
        state,
    )
    return Node(needs, options.duty)


def new_exclusive(parts: WorkerParts, options: WorkerOptions, node: Node) -> Exclusive | None:
    """None: this worker shares its work with all others."""
    if options.exclusive is None:
        return None
    return Exclusive(options.exclusive, parts.store, parts.clock, node, options.duty.lease_s)


def new_shift(
    parts: WorkerParts, options: WorkerOptions, node: Node, bell: Bell, wish: Wish, exclusive: Exclusive | None
) -> Shift:
    lease_s, max_crashes = options.duty.lease_s, options.duty.max_crashes
    rescuer = Rescuer(parts.store, parts.clock, parts.ids, parts.liveness, lease_s=lease_s, max_crashes=max_crashes)
    return Shift(
        node,
        rescuer,
        bell,
        parts.clock,
        wish,
        lease_s=lease_s,
        grace_s=options.grace_s,
        may_claim=None if exclusive is None else lambda: exclusive.held,
    )
