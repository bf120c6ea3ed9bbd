"""Queues (list, pause), nodes (one row per worker process lifetime) and named locks. Called through `store`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, cast

from perdure.clock import Micros
from perdure.ids import NodeId
from perdure.job.model import readable
from perdure.store.engine import Call, Op, Tell
from perdure.store.rows import NewNode, NodeRow, QueueRow
from perdure.store.write import ring

EVERYTHING = "*"

COUNTED = 10_000
"""Counting stops here: for scheduled jobs of all queues together, and for those set aside (paused, parked, …)."""
COUNTED_TOGETHER = 25_000
CAPS = (10_000, 5_000, 2_000, 1_000, 500, 200, 100)
"""Limits for counting the queued jobs of one queue: the first that keeps all queues together below
COUNTED_TOGETHER, or the last."""


def queues() -> Op[list[QueueRow]]:
    """Every queue ever used, by name; also `*` (all queues) once it was paused."""
    rows = (yield Call("list_queues")).rows
    cap = next((cap for cap in CAPS if cap * len(rows) <= COUNTED_TOGETHER), CAPS[-1])
    queued: dict[str, int] = dict((yield Call("count_queued", {"cap": cap + 1})).rows)
    others: dict[str, Counter[str]] = {"running": Counter(), "scheduled": Counter(), "aside": Counter()}
    for sort, queue, number in (yield Call("count_not_queued", {"cap": COUNTED + 1})).rows:
        others[sort][queue] += number
    uncounted = any(others[sort].total() > COUNTED for sort in ("scheduled", "aside"))
    return [_counted(row, queued.get(row[0], 0), others, cap, uncounted=uncounted) for row in rows]


def _counted(
    row: Sequence[Any], queued: int, others: Mapping[str, Counter[str]], cap: int, *, uncounted: bool
) -> QueueRow:
    name, paused_at, concurrency, reserved_until = row
    more = queued > cap
    queued = min(queued, cap)
    live = queued + sum(counts[name] for counts in others.values())
    running = others["running"][name]
    counted = (name, paused_at, concurrency, reserved_until, queued, running, live, more, more or uncounted)
    return readable(QueueRow, counted)[0]


def pause_queue(queue: str, paused_at: Micros | None) -> Op[bool]:
    """From the commit on no claim takes a job of a paused queue; running jobs are not stopped.

    False: nothing changed; a repeat keeps the time of the first pause.
    """
    yield Call("ensure_queue", {"queue": queue})
    paused_since = (yield Call("read_queue", {"queue": queue})).rows[0][1]
    if (paused_since is None) == (paused_at is None):
        return False
    yield Call("set_queue_pause", {"queue": queue, "paused_at": paused_at})
    if paused_at is None:
        yield from ring([queue])
    return True


def register(node: NewNode) -> Op[None]:
    """A node that is not registered claims nothing."""
    yield Call("register_node", {**node._asdict(), **node.process._asdict()})


def beat(node_id: NodeId, now: Micros) -> Op[bool]:
    """False: the node was declared dead, or stopped; it must register again under a new id."""
    return (yield Call("beat_node", {"node_id": node_id, "now": now})).changed == 1


def stop(node_id: NodeId, reason: str, now: Micros, seen_beat: int | None = None) -> Op[bool]:
    """Declare a node stopped. With `seen_beat`, only if it has not beaten since. False: nothing was changed."""
    params = {"node_id": node_id, "reason": reason, "now": now, "beat": seen_beat}
    stopped = (yield Call("stop_node", params)).changed == 1
    if stopped:
        yield Tell("look_for_node", {"now": now, "node_id": node_id})
    return stopped


def live_nodes() -> Op[list[NodeRow]]:
    """Every node that has not been declared stopped."""
    return [readable(NodeRow, row)[0] for row in (yield Call("live_nodes")).rows]


def nodes_left_behind() -> Op[list[NodeId]]:
    """Nodes that are stopped, or unknown, and still hold running jobs."""
    return [node_id for (node_id,) in (yield Call("nodes_left_behind")).rows]


def nodes(limit: int) -> Op[list[NodeRow]]:
    """The newest nodes first."""
    rows = (yield Call("list_nodes", {"page": limit})).rows
    return [readable(NodeRow, row)[0] for row in rows]


def take_lock(name: str, owner: str, now: Micros, ttl_us: int) -> Op[bool]:
    """True: held by `owner` until now + ttl. An expired lease can be taken; the owner's own is extended."""
    params = {"name": name, "owner": owner, "now": now, "expires_at": now + ttl_us}
    if (yield Call("take_over_lock", params)).changed == 1:
        return True
    return (yield Call("insert_lock", params)).changed == 1


def renew_lock(name: str, owner: str, now: Micros, ttl_us: int) -> Op[bool]:
    """False: the lease has expired or belongs to someone else; nothing was changed."""
    params = {"name": name, "owner": owner, "now": now, "expires_at": now + ttl_us}
    return (yield Call("renew_lock", params)).changed == 1


def release_lock(name: str, owner: str) -> Op[bool]:
    """False: `owner` did not hold it."""
    return (yield Call("release_lock", {"name": name, "owner": owner})).changed == 1


def lock_holder(name: str, now: Micros) -> Op[str | None]:
    """Who holds the lease now. None: nobody."""
    rows = (yield Call("read_lock", {"name": name})).rows
    if not rows or cast("Micros", rows[0][1]) <= now:
        return None
    return cast("str", rows[0][0])


def begin_writing() -> Op[None]:
    yield Call("begin_writing")


def revision() -> Op[int]:
    """The newest migration that the database has."""
    rows = (yield Call("read_revision")).rows
    return cast("int | None", rows[0][0]) or 0
