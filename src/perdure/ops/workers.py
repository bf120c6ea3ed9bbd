"""Which workers could run a job, and whether each is alive. Called by `explain` and `perdure nodes`; asks the store for
its nodes, and /proc about those of this host."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple, cast

from perdure.clock import Micros
from perdure.job.model import json_of
from perdure.job.views import Job
from perdure.store.protocols import Store
from perdure.store.rows import NodeRow
from perdure.text import distance, short_id
from perdure.worker.liveness import ProcLiveness

SHOWN = 3


class Crew(NamedTuple):
    """The live nodes, and those of them that serve a job's queue, that have its kind, and that do both.

    Of the live ones, `silent` have not been heard of for their lease, and the processes of `gone` have ended.
    """

    live: list[NodeRow]
    serving: list[NodeRow]
    knowing: list[NodeRow]
    able: list[NodeRow]
    silent: list[NodeRow]
    gone: list[NodeRow]

    @property
    def awake(self) -> list[NodeRow]:
        """The live ones that are neither silent nor gone."""
        return [node for node in self.live if node not in self.silent and node not in self.gone]

    @property
    def ready(self) -> list[NodeRow]:
        """Those that are able and awake: they will take the job."""
        return [node for node in self.awake if node in self.able]


def crew_for(store: Store, job: Job, now: Micros) -> Crew:
    live, liveness = store.live_nodes(), ProcLiveness()
    serving = [node for node in live if serves(node, job.queue)]
    knowing = [node for node in live if has_kind(node, job.kind, job.kind_version)]
    return Crew(
        live,
        serving,
        knowing,
        able=[node for node in serving if node in knowing],
        silent=[node for node in live if node.is_silent(now)],
        gone=[node for node in live if liveness.is_gone(node)],
    )


class NodeState(StrEnum):
    """The state of a node, as far as it can be known from here: it is live until it is declared stopped."""

    LIVE = "live"
    SILENT = "silent"
    """Not heard of for its lease: dead, or only slow."""
    GONE = "gone"
    """Its process has ended without signing off, which is known of this machine's processes only; another worker takes
    back what it held."""
    STOPPED = "stopped"
    """It has signed off, or was declared dead."""


def node_state(node: NodeRow, now: Micros, liveness: ProcLiveness) -> NodeState:
    if node.stopped_at is not None:
        return NodeState.STOPPED
    if liveness.is_gone(node):
        return NodeState.GONE
    return NodeState.SILENT if node.is_silent(now) else NodeState.LIVE


# -- what a node says of itself --------------------------------------------------------------------------------------


def serves(node: NodeRow, queue: str) -> bool:
    """Whether the node was started for this queue, or for all."""
    queues = _parsed(node.queues)
    return not isinstance(queues, list) or queue in queues


def has_kind(node: NodeRow, kind: str, version: int) -> bool:
    """Whether the node has the kind in this version or a later one; a node that names none takes any."""
    kinds = kinds_of(node)
    return kinds is None or kinds.get(kind, 0) >= version


def kinds_of(node: NodeRow) -> dict[str, int] | None:
    """The kinds that the node names, with their versions. None: it names none, and may have any."""
    kinds = _parsed(node.kinds)
    if not isinstance(kinds, dict):
        return None
    return {name: version for name, version in cast("dict[str, Any]", kinds).items() if isinstance(version, int)}


def _parsed(text: str | None) -> Any:
    """What a node wrote as JSON. None: nothing, or another release wrote it in another way."""
    try:
        return json_of(text)
    except ValueError:
        return None


# -- in words --------------------------------------------------------------------------------------------------------


def summary(crew: Crew, job: Job, now: Micros) -> str:
    if not crew.live:
        return "no worker is live"
    if crew.able:
        return about(crew.able, now)
    if crew.knowing:
        return f"{about(crew.knowing, now)}: for other queues only"
    return f"no live worker has {kind_of(job)}"


def silence(nodes: Sequence[NodeRow], crew: Crew, now: Micros) -> str:
    """That none of these nodes, all of them silent or gone, was heard of lately."""
    last = max(nodes, key=lambda node: node.beat_at)
    if len(nodes) > 1:
        return (
            f"none of the {len(nodes)} workers for it was heard of lately, the last one {distance(last.beat_at, now)}"
        )
    if last in crew.gone:
        return f"the process of the only worker for it has ended; it was last heard of {distance(last.beat_at, now)}"
    return f"the only worker for it was last heard of {distance(last.beat_at, now)}"


def about(nodes: Sequence[NodeRow], now: Micros) -> str:
    """A few of the nodes, each with its last sign of life."""
    named = [f"{name_of(node)}, last beat {distance(node.beat_at, now)}" for node in nodes[:SHOWN]]
    more = [f"and {len(nodes) - SHOWN} more"] if len(nodes) > SHOWN else []
    return "; ".join(named + more)


def name_of(node: NodeRow) -> str:
    """The node as people can find it: its id's tail, machine and process."""
    place = " ".join(
        part for part in (node.host and f"on {node.host}", None if node.pid is None else f"pid {node.pid}") if part
    )
    return f"node {short_id(node.id)}" + (f" {place}" if place else "")


def kind_of(job: Job) -> str:
    """The job's kind, with its version where that matters."""
    return f"kind {job.kind!r}" + (f" in version {job.kind_version} or later" if job.kind_version > 1 else "")
