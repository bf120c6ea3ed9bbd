"""`perdure health`: for probes. Asks the store alone and imports as little as it can: it runs every few seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from perdure.cli.render import Json, current_time, one_line, print_json, visible
from perdure.cli.target import App, Url, database
from perdure.errors import StoreError
from perdure.text import counted

if TYPE_CHECKING:
    from perdure.store.protocols import Store

MaxBeatAge = Annotated[
    float | None,
    typer.Option(
        "--max-beat-age",
        min=0,
        metavar="SECONDS",
        help="How long ago a worker may have been heard of; without it, each worker's own lease (60 s by default).",
    ),
]


class Probe(NamedTuple):
    """What the probe found. `beat_age_s`: since the last beat of any live worker."""

    healthy: bool
    database: bool
    live_nodes: int
    beat_age_s: float | None
    why: str


def health(*, max_beat_age: MaxBeatAge = None, url: Url = None, app: App = None, json: Json = False) -> None:
    """Tell whether the database answers and a worker lives. Exits with 0 if so, with 1 if not, with 2 if it cannot
    tell: no database was named, or no driver for it is installed."""
    with database(url, app) as store:
        try:
            found = _look(store, max_beat_age)
        except StoreError as error:
            found = Probe(False, False, 0, None, f"the database does not answer: {one_line(str(error))}")
    if json:
        print_json(found._asdict())
    else:
        print(visible(f"{'healthy' if found.healthy else 'unhealthy'}: {found.why}"))
    raise typer.Exit(0 if found.healthy else 1)


def _look(store: Store, max_beat_age: float | None) -> Probe:
    from perdure.worker.liveness import ProcLiveness

    store.require_current()
    nodes = store.live_nodes()
    there = [node for node in nodes if not ProcLiveness().is_gone(node)]
    if not there:
        why = "no worker is registered" if not nodes else "the process of every worker has ended"
        return Probe(False, True, 0, None, f"the database answers, but {why}")
    now = current_time()
    age = max(0.0, (now - max(node.beat_at for node in there)) / 1_000_000)
    workers = counted(len(there), "worker")
    is_one_awake = not all(node.is_silent(now) for node in there) if max_beat_age is None else age <= max_beat_age
    if not is_one_awake:
        return Probe(False, True, len(there), age, f"{workers}, but the last beat is {age:.1f} s ago")
    return Probe(True, True, len(there), age, f"the database answers, {workers}, last beat {age:.1f} s ago")
