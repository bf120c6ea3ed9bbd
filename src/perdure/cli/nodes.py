"""`perdure nodes`: the worker processes, those at work and the last ones that stopped. Asks the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.show import Json, ago, id_text, print_json, print_table
from perdure.cli.target import App, Url, existing
from perdure.clock import SystemClock, to_datetime
from perdure.ids import to_uuid
from perdure.store.tallies import SILENT_US

if TYPE_CHECKING:
    from perdure.store.answers import NodeRow

Limit = Annotated[int, typer.Option("--limit", "-n", min=0, metavar="N", help="How many stopped ones to show.")]


def nodes(*, limit: Limit = 5, url: Url = None, app: App = None, json: Json = False) -> None:
    """List the workers that live, and the last ones that stopped."""
    from perdure.cli.plain import plain_node

    with existing(url, app) as store:
        live = store.live_nodes()
        stopped = [node for node in store.nodes(limit + len(live)) if node.stopped_at is not None][:limit]
        found = [(node, len(store.held_by(node.id))) for node in [*reversed(live), *stopped]]
    now = SystemClock().now()
    if json:
        print_json([plain_node(node, _state(node, now), running) for node, running in found])
    elif not found:
        print("No worker has run here yet. Start one with: perdure worker MODULE:APP")
    else:
        columns = ("node", "state", "jobs", "started", "beat", "process", "kinds")
        rows = [_row(node, _state(node, now), running) for node, running in found]
        print_table(columns, rows, keep=("node", "state", "jobs", "started", "beat"), clip=("process", "kinds"))


def _state(node: NodeRow, now: int) -> str:
    if node.stopped_at is not None:
        return "stopped"
    return "silent" if now - node.beat_at > SILENT_US else "live"


def _row(node: NodeRow, state: str, running: int) -> tuple[str, ...]:
    from perdure.cli.plain import kind_names

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
