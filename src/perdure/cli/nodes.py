"""`perdure nodes`: the workers, those at work and the last ones that stopped. Asks the store and `ops/workers`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.render import Json, ago, current_time, id_text, print_json, print_table
from perdure.cli.target import App, Url, existing_database, worker_command
from perdure.clock import to_datetime
from perdure.ids import to_uuid

if TYPE_CHECKING:
    from perdure.store.rows import NodeRow

Limit = Annotated[int, typer.Option("--limit", "-n", min=0, metavar="N", help="How many stopped ones to show.")]


def nodes(*, limit: Limit = 5, url: Url = None, app: App = None, json: Json = False) -> None:
    """List the workers that live, and the last ones that stopped."""
    from perdure.ops.forms import node_json
    from perdure.ops.workers import NodeState, node_state
    from perdure.worker.liveness import ProcLiveness

    with existing_database(url, app) as store:
        live = store.live_nodes()
        stopped = [node for node in store.nodes(limit + len(live)) if node.stopped_at is not None][:limit]
        found = [(node, len(store.held_by(node.id))) for node in [*reversed(live), *stopped]]
    now, liveness = current_time(), ProcLiveness()
    states = [node_state(node, now, liveness) for node, _ in found]
    if json:
        print_json([node_json(node, state, running) for (node, running), state in zip(found, states, strict=True)])
    elif not found:
        why = "No worker has run here yet." if limit else "No worker is live."
        print(f"{why} Start one with: {worker_command(url, app)}")
    else:
        columns = ("node", "state", "jobs", "started", "beat", "process", "kinds")
        rows = [_row(node, state, running) for (node, running), state in zip(found, states, strict=True)]
        print_table(
            columns,
            rows,
            keep=("node", "state", "jobs", "started", "beat"),
            clip=("process", "kinds"),
            drop=("kinds", "started", "process", "beat"),
        )
        if NodeState.GONE in states:
            print("gone: its process has ended without signing off; the next worker takes back its jobs.")


def _row(node: NodeRow, state: str, running: int) -> tuple[str, ...]:
    from perdure.ops.forms import kind_names

    beat = ago(to_datetime(node.beat_at))
    if node.stopped_at is not None:
        beat = (node.stop_reason or "stopped").replace("_", " ")
    return (
        id_text(to_uuid(node.id)),
        state,
        str(running),
        ago(to_datetime(node.started_at)),
        beat,
        f"{'?' if node.pid is None else node.pid} on {node.host or '?'}",
        ", ".join(kind_names(node)),
    )
