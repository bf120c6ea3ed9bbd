"""Nodes: one row per worker process lifetime. Called by the worker and by rescue through `store`."""

from __future__ import annotations

from perdure.clock import Micros
from perdure.ids import NodeId
from perdure.job.model import readable
from perdure.store.answers import NodeRow, Process
from perdure.store.sql.engine import Call, Op


def register(
    node_id: NodeId,
    kinds: str | None,
    process: Process,
    now: Micros,
    queues: str | None = None,
    lease_us: int | None = None,
) -> Op[None]:
    """A node that is not registered claims nothing."""
    known = {"id": node_id, "kinds": kinds, "queues": queues, "lease_us": lease_us, "now": now, **process._asdict()}
    yield Call("register_node", known)


def beat(node_id: NodeId, now: Micros) -> Op[bool]:
    """False: the node was declared dead, or stopped; it must come back under a new id."""
    return (yield Call("beat_node", {"node_id": node_id, "now": now})).changed == 1


def stop(node_id: NodeId, reason: str, now: Micros, seen_beat: int | None = None) -> Op[bool]:
    """Declare a node stopped. With `seen_beat`, only if it has not beaten since. False: nothing was changed."""
    params = {"node_id": node_id, "reason": reason, "now": now, "beat": seen_beat}
    return (yield Call("stop_node", params)).changed == 1


def alive() -> Op[list[NodeRow]]:
    """Every node that has not been declared stopped."""
    return [readable(NodeRow, row)[0] for row in (yield Call("live_nodes")).rows]


def left_behind() -> Op[list[NodeId]]:
    """Nodes that are stopped, or unknown, and still hold running jobs."""
    return [node_id for (node_id,) in (yield Call("nodes_left_behind")).rows]


def listing(limit: int) -> Op[list[NodeRow]]:
    """The newest nodes first."""
    rows = (yield Call("list_nodes", {"page": limit})).rows
    return [readable(NodeRow, row)[0] for row in rows]
