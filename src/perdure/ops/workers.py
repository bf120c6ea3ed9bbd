"""Which live workers could take a job. Asked by `explain`; asks the store for its nodes.

A node is live until it is declared stopped. One that is silent may be dead or only slow: its last beat is told, and
nothing is concluded from it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from perdure.clock import Micros
from perdure.ids import to_uuid
from perdure.job.job import Job
from perdure.ops.spans import counted, distance
from perdure.store.answers import NodeRow
from perdure.store.protocols import Store

SHOWN = 3
_TAIL = 8


class Crew(NamedTuple):
    """The live nodes, and those of them that serve a job's queue, that have its kind, and that do both."""

    live: list[NodeRow]
    serving: list[NodeRow]
    knowing: list[NodeRow]
    able: list[NodeRow]


def crew_for(store: Store, job: Job) -> Crew:
    live = store.live_nodes()
    serving = [node for node in live if serves(node, job.queue)]
    knowing = [node for node in live if has_kind(node, job.kind, job.kind_version)]
    return Crew(live, serving, knowing, [node for node in serving if node in knowing])


def serves(node: NodeRow, queue: str) -> bool:
    """Whether the node was started for this queue, or for all."""
    return node.queues is None or f",{queue}," in f",{node.queues},"


def has_kind(node: NodeRow, kind: str, version: int) -> bool:
    """Whether the node has the kind in this version or a later one; a node that names none takes any."""
    if node.kinds is None:
        return True
    found = re.search(rf"(?:^|,){re.escape(kind)}(?: v(\d+))?(?:,|$)", node.kinds)
    return found is not None and int(found[1] or 1) >= version


def about(nodes: list[NodeRow], now: Micros) -> str:
    """A few of the nodes, each with its last sign of life."""
    named = [f"{name_of(node)}, last beat {distance(node.beat_at, now)}" for node in nodes[:SHOWN]]
    more = [f"and {len(nodes) - SHOWN} more"] if len(nodes) > SHOWN else []
    return "; ".join(named + more)


def name_of(node: NodeRow) -> str:
    """The node as people can find it: its id's tail, machine and process."""
    place = " ".join(
        part for part in (node.host and f"on {node.host}", None if node.pid is None else f"pid {node.pid}") if part
    )
    return f"node {to_uuid(node.id).hex[-_TAIL:]}" + (f" {place}" if place else "")


def summary(crew: Crew, now: Micros) -> str:
    """Who could run the job, in a few words."""
    if not crew.live:
        return "no worker is live"
    if not crew.serving:
        return f"{counted(len(crew.live), 'worker')} live, none for this queue"
    if not crew.able:
        return f"{counted(len(crew.serving), 'live worker')} for this queue, none with this kind"
    return about(crew.able, now)
