"""`perdure flows`, `perdure flow` and `perdure seal`: chains, groups, batches and workflows. Asks `app.flows`."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.filters import Limit
from perdure.cli.render import Json, ago, id_text, print_fields, print_json, print_table, visible
from perdure.cli.target import App, Url, existing_app
from perdure.errors import FlowNotFound, shown

if TYPE_CHECKING:
    from perdure.app import Perdure
    from perdure.flow.views import Flow

LISTED = 20

State = Annotated[
    str | None,
    typer.Option("--state", "-s", metavar="STATE", help="In this state: running, completed, failed or cancelled."),
]
Name = Annotated[str | None, typer.Option("--name", metavar="NAME", help="Of this name.")]
FlowName = Annotated[
    str, typer.Argument(metavar="ID", help="The flow's id, or the last 4 or more characters of it; or its name.")
]


def flows(
    *,
    state: State = None,
    name: Name = None,
    limit: Limit = None,
    url: Url = None,
    app: App = None,
    json: Json = False,
) -> None:
    """List chains, groups, batches and workflows, the newest first.

    Those that fit, 20 of them, or as many as --limit says. Flows inside others are shown by perdure flow ID.
    """
    from perdure.ops.forms import flow_json
    from perdure.ops.graph import members

    wanted = limit or LISTED
    with existing_app(url, app) as perdure:
        found = list(islice(perdure.flows.list(state=state, name=name), wanted + 1))
    if json:
        print_json(list(map(flow_json, found[:wanted])))
        return
    if not found:
        print(
            "No flows" + (" like that." if state or name else " yet: app.workflow, chain, group and batch make them.")
        )
        return
    rows = [
        (
            id_text(flow.id),
            flow.sort,
            flow.name,
            flow.state.value,
            members(flow),
            ago(flow.created_at),
        )
        for flow in found[:wanted]
    ]
    columns = ("id", "sort", "name", "state", "members", "created")
    print_table(columns, rows, keep=("id", "state", "created"), clip=("members",), drop=("sort", "created", "members"))
    if len(found) > wanted:
        print(f"The newest {wanted}; --limit N shows more.")


def seal(id: FlowName, *, url: Url = None, app: App = None, json: Json = False) -> None:
    """Close an open flow: no more members come, and it ends when those that it has have ended.

    A batch is open while its block runs, or if it was left so. A repeat changes nothing.
    """
    from perdure.ops.forms import flow_json
    from perdure.ops.graph import standing

    with existing_app(url, app) as perdure:
        sealed = perdure.flows.seal(existing_flow(perdure, id).id)
    if json:
        print_json(flow_json(sealed))
    else:
        print(visible(f"{sealed.sort} {sealed.name} {id_text(sealed.id)} is sealed: {standing(sealed)}"))


def existing_flow(perdure: Perdure, id: str) -> Flow:
    """FlowNotFound: none has this id, or name."""
    from perdure.ops.lookup import find_flow_or_name

    row = find_flow_or_name(perdure.store, id)
    if row is None:
        raise FlowNotFound(f"no flow is called {shown(id)}, or has an id that ends so; perdure flows lists them")
    return perdure.flows.view(row)


def flow(id: FlowName, *, url: Url = None, app: App = None, json: Json = False) -> None:
    """Show a flow: how it stands, and its graph.

    Each job is drawn below the one that it waits for last. Many alike are one line.
    """
    from perdure.ops.forms import graph_json
    from perdure.ops.graph import drawn, standing

    with existing_app(url, app) as perdure:
        graph = perdure.flows.graph(existing_flow(perdure, id))
    if json:
        print_json(graph_json(graph))
        return
    found = graph.flow
    properties = ", ".join(f"{name}={value}" for name, value in found.properties.items())
    print_fields(
        [
            (found.sort, found.name),
            ("id", str(found.id)),
            ("state", standing(found)),
            ("key", found.key),
            ("properties", properties or None),
            ("created", ago(found.created_at)),
            ("ends", None if found.eta is None else f"about {ago(found.eta)}"),
            ("finished", None if found.finished_at is None else ago(found.finished_at)),
        ]
    )
    print()
    for line in drawn(graph)[1:]:
        print(visible(line))
