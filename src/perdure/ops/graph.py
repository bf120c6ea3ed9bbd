"""The graph of a flow as lines of text: who waits for whom, and how each stands. Pure; used by `perdure flow`.

A job stands below the one that it waits for last; others that it waits for are named beside it. Many jobs of one kind
that wait for the same are one line with counts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from uuid import UUID

from perdure.flow.views import Flow, Graph
from perdure.job.views import Job
from perdure.text import counted, first_line, short_id

MARKS = {
    "completed": "✓",
    "failed": "✗",
    "cancelled": "✗",
    "skipped": "–",
    "running": "▶",
}
"""Whoever waits has `○`."""
WAITING, PAUSED, STOPPING = "waiting", "paused", "asked to stop"
TOGETHER = 6
"""So many jobs of one kind below the same one, without others below them, are drawn as one line."""
FAILED_SHOWN = 3
_NOTE = 100
_WHOLE_ID, _ID_TAIL = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{4}([0-9a-f]{8})"), r"\1"
"""Others are named in a line as they are drawn."""


class _Node(NamedTuple):
    """A job, or a flow inside the flow, and what it waits for: ids and the ends it needs."""

    id: UUID
    name: str
    state: str
    note: str
    waits: dict[UUID, str]
    inner: Graph | None = None

    def line(self, beside: str = "") -> str:
        """`beside`: what it needs of others, said before the reason."""
        tail = "" if self.inner is not None else f" {self.id.hex[-8:]} {self.state}"
        return f"{MARKS.get(self.state, '○')} {self.name}{tail}{beside}{self.note}"


def drawn(graph: Graph) -> list[str]:
    """The flow, line by line."""
    return [heading(graph.flow), *_body(graph)]


def heading(flow: Flow) -> str:
    """One line about a flow: `nightly 8a6f8317 (workflow) running: 3 of 9 ended, 1 failed`."""
    return f"{flow.name} {short_id(flow.raw_id)} ({flow.sort}) {standing(flow)}"


def standing(flow: Flow) -> str:
    """How a flow stands: `running: 3 of 9 ended (2 completed, 1 failed), 1 running`."""
    ends = {name: getattr(flow, name) for name in ("completed", "failed", "cancelled", "skipped")}
    told = ", ".join(f"{count:,} {name}" for name, count in ends.items() if count)
    if flow.is_final:
        return f"{flow.state}: {counted(flow.added, 'member')}" + (f" ({told})" if told else "")
    running = f", {flow.running:,} running" if flow.running else ""
    ended = f"{flow.ended:,} of {flow.added:,} ended" + (f" ({told})" if told else "")
    still_open = ", open: more may come" if flow.is_open else ""
    return f"{_word(flow)}: {ended}{running}{still_open}"


def members(flow: Flow) -> str:
    """The same for a column: `2 of 3, 1 failed, paused`. What nobody mentions has completed."""
    counts = {name: getattr(flow, name) for name in ("failed", "cancelled", "skipped", "running")}
    told = [f"{count:,} {name}" for name, count in counts.items() if count]
    if not flow.is_final and _word(flow) in (PAUSED, STOPPING):
        told.append(_word(flow))
    if flow.is_open:
        told.append("open")
    return ", ".join([f"{flow.ended:,} of {flow.added:,}", *told])


def _word(flow: Flow) -> str:
    """How it stands, more finely than by its state, which is `running` from the start."""
    if flow.is_final:
        return flow.state.value
    if flow.cancel_requested:
        return STOPPING
    if flow.paused_at is not None:
        return PAUSED
    return "running" if flow.running or flow.ended else WAITING


def _body(graph: Graph) -> Iterator[str]:
    nodes = {node.id: node for node in _nodes(graph)}
    callbacks = [node for node in nodes.values() if graph.flow.id in node.waits]
    members = {node.id: node for node in nodes.values() if graph.flow.id not in node.waits}
    yield from _tree(_below(members, None, _homes(members)))
    if graph.more:
        yield f"… and more: perdure jobs --flow {short_id(graph.flow.raw_id)} lists them"
    for node in callbacks:
        yield f"after it, on {node.waits[graph.flow.id]}: {node.line()}"


def _nodes(graph: Graph) -> Iterator[_Node]:
    waits: dict[UUID, dict[UUID, str]] = {}
    for edge in graph.edges:
        waits.setdefault(edge.job, {})[edge.depends_on] = edge.needs
    for job in graph.jobs:
        yield _Node(job.id, job.kind, job.state.value, _note(job), waits.get(job.id, {}))
    for inner in graph.inner:
        flow = inner.flow
        own = {flow.id, *(job.id for job in inner.jobs), *(one.flow.id for one in inner.inner)}
        around = {edge.depends_on: edge.needs for edge in inner.edges if edge.depends_on not in own}
        if flow.filled_by is not None:
            around[flow.filled_by] = "end"
        state = "running" if _has_begun(inner) and _word(flow) == WAITING else _word(flow)
        yield _Node(flow.id, heading(flow), state, "", around, inner)


def _has_begun(graph: Graph) -> bool:
    """Something of it, or of a flow inside it, runs or has ended."""
    return bool(graph.flow.running or graph.flow.ended) or any(map(_has_begun, graph.inner))


def _note(job: Job) -> str:
    if job.state in ("failed", "skipped") and job.error:
        return f": {_WHOLE_ID.sub(_ID_TAIL, first_line(job.error))[:_NOTE]}"
    return ""


def _homes(nodes: dict[UUID, _Node]) -> dict[UUID, UUID | None]:
    """Below which node each one is drawn: of those that it waits for, the one furthest from the beginning."""
    depth: dict[UUID, int] = {}
    left = dict(nodes)
    while left:  # in rounds: those first whose parents are known
        ready = [node for node in left.values() if not any(one in left for one in node.waits)] or list(left.values())
        for node in ready:
            depth[node.id] = 1 + max((depth.get(one, 0) for one in node.waits if one in nodes), default=-1)
            del left[node.id]
    return {
        node.id: max((one for one in node.waits if one in nodes), key=lambda one: depth[one], default=None)
        for node in nodes.values()
    }


class _Branch(NamedTuple):
    """A node, or several alike, and what is below it."""

    line: str
    below: Sequence[_Branch]
    inside: Sequence[str] = ()


def _below(nodes: dict[UUID, _Node], parent: UUID | None, homes: dict[UUID, UUID | None]) -> list[_Branch]:
    """What is drawn below a node. No recursion deeper than the graph is long: chains are drawn flat by `_tree`."""
    children: dict[UUID | None, list[UUID]] = {}
    for node_id, home in homes.items():
        children.setdefault(home, []).append(node_id)
    made: dict[UUID, _Branch] = {}
    order = [parent]
    for at in order:
        order.extend(children.get(at, ()))
    for at in reversed(order[1:]):
        assert at is not None
        below = [made[one] for one in children.get(at, ())]
        made[at] = _branch(nodes, at, homes[at], _together([nodes[one] for one in children.get(at, ())], below))
    top = children.get(parent, ())
    return _together([nodes[one] for one in top], [made[one] for one in top])


def _branch(nodes: dict[UUID, _Node], at: UUID, home: UUID | None, below: Sequence[_Branch]) -> _Branch:
    node = nodes[at]
    need = [] if home is None or node.waits[home] == "success" else [f"on {node.waits[home]}"]
    also = [_short(nodes[one]) for one in node.waits if one != home and one in nodes]
    beside = ", ".join([*need, *([f"also after {', '.join(also)}"] if also else [])])
    inside = [] if node.inner is None else list(_inside(node.inner))
    return _Branch(node.line(f" ({beside})" if beside else ""), below, inside)


def _inside(graph: Graph) -> Iterator[str]:
    """A flow inside another one: all of it if it is small, else the first that failed."""
    if len(graph.jobs) <= TOGETHER:
        yield from _body(graph)
        return
    failed = [node for node in _nodes(graph) if node.state == "failed"]
    yield from (node.line() for node in failed[:FAILED_SHOWN])
    if len(failed) > FAILED_SHOWN:
        yield f"… and {len(failed) - FAILED_SHOWN:,} more that failed"


def _short(node: _Node) -> str:
    return node.name if node.inner is None else node.inner.flow.name


def _together(nodes: Sequence[_Node], branches: Sequence[_Branch]) -> list[_Branch]:
    """The same, with many leaves of one kind as one line."""
    alone = Counter(
        node.name for node, branch in zip(nodes, branches, strict=True) if not branch.below and node.inner is None
    )
    kept: list[_Branch] = []
    states: dict[str, Counter[str]] = {}
    for node, branch in zip(nodes, branches, strict=True):
        if branch.below or node.inner is not None or alone[node.name] <= TOGETHER:
            kept.append(branch)
            continue
        if node.name not in states:
            states[node.name] = Counter()
            kept.append(_Branch(node.name, ()))
        states[node.name][node.state] += 1
    return [_summed(branch, states) for branch in kept]


def _summed(branch: _Branch, states: dict[str, Counter[str]]) -> _Branch:
    if branch.line not in states:
        return branch
    counts = states[branch.line]
    told = ", ".join(f"{count:,} {state}" for state, count in counts.most_common())
    worst = next((state for state in ("failed", "running") if counts[state]), max(counts))
    return _Branch(f"{MARKS.get(worst, '○')} {branch.line} × {counts.total():,}: {told}", ())


def _tree(branches: Sequence[_Branch]) -> Iterator[str]:
    """A chain goes straight down; only where it forks are lines indented."""
    waiting = [(branches, "", 0)]
    while waiting:
        at, before, number = waiting.pop()
        if number == len(at):
            continue
        waiting.append((at, before, number + 1))
        forks, last = len(at) > 1, number == len(at) - 1
        branch = at[number]
        yield f"{before}{('└─' if last else '├─') if forks else ''}{branch.line}"
        inner = before + (("  " if last else "│ ") if forks else "")
        yield from (f"{inner}┊ {line}" for line in branch.inside)
        if branch.below:
            waiting.append((branch.below, inner, 0))
