"""`app.flows`: look at chains, groups, batches and workflows; and for `app` the verbs of whole flows. Calls the
store."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any
from uuid import UUID

from perdure.checks import check_choice, check_name, check_whole
from perdure.errors import InvalidInput, shown
from perdure.flow.planned import FlowHandle, Planned
from perdure.flow.views import Flow, Graph, graph_edge
from perdure.ids import FlowId, parse_id
from perdure.job.flow import FlowRow, FlowState, FlowVerb
from perdure.job.states import State, StateName
from perdure.job.views import Job
from perdure.listing import checked_limit, fits, job_filters, pages, under_all_names
from perdure.names import public
from perdure.store.flow import flow_not_found
from perdure.store.rows import LAST_ID

if TYPE_CHECKING:
    from perdure.app import Perdure

FlowLike = FlowHandle | UUID | str
INNER = frozenset(("change", "existing", "matching", "retry", "view"))
"""What it has for the package's own parts; users are not shown it."""
GRAPH_LIMIT = 1_000
"""Jobs of one flow that a graph shows."""


def flow_id_of(flow: object) -> FlowId:
    match flow:
        case FlowHandle():
            return FlowId(flow.raw_id)
        case UUID() | str():
            return FlowId(_parsed(flow))
        case Job() | Planned():
            raise InvalidInput(f"expected a flow, or its id, not the job {flow.id}", code="flow_invalid")
        case _:
            raise InvalidInput(f"expected a flow, or its id, not {shown(flow)}", code="flow_invalid")


def _parsed(flow: UUID | str) -> bytes:
    try:
        return parse_id(flow)
    except InvalidInput:
        raise InvalidInput(
            f"{shown(flow)} is not the id of a flow; flows of a name are found with app.flows.list(name=…)",
            code="id_invalid",
        ) from None


class Flows:
    """Look at flows. Cancel, pause, resume, retry, wait and explain are verbs of the app, for flows as for jobs."""

    def __init__(self, app: Perdure) -> None:
        self._app = app

    def get(self, flow: FlowLike) -> Flow | None:
        """The flow as it is now. None: no flow has this id."""
        row = self._app.store.flow(flow_id_of(flow))
        return None if row is None else self.view(row)

    def list(
        self, *, state: FlowState | str | None = None, name: str | None = None, limit: int | None = None
    ) -> Iterator[Flow]:
        """Flows that fit, newest first, lazily; those inside others are left out. None means any."""
        if state is not None:
            check_choice(state, "state", builtins.list(FlowState), code="filter_invalid")
        if name is not None:
            check_name(name, "name")
        wanted = None if state is None else FlowState(state).value

        def read(last: FlowRow | None, size: int) -> tuple[builtins.list[FlowRow], FlowRow | None]:
            rows = self._app.store.flows(wanted, name, LAST_ID if last is None else last.id, size)
            return rows, rows[-1] if len(rows) == size else None

        return map(self.view, pages(read, checked_limit(limit)))

    def jobs(
        self, flow: FlowLike, *, state: StateName | State | None = None, limit: int | None = None
    ) -> Iterator[Job]:
        """The jobs that belong to this flow itself, lazily: callbacks, then members by their number."""
        if state is not None:
            check_choice(state, "state", builtins.list(State), code="filter_invalid")
        flow_id, wanted = self.existing(flow).row.id, None if state is None else State(state).value

        most = checked_limit(limit)
        return islice(pages(partial(self._app.store.flow_jobs, flow_id, wanted), most), most)

    def matching(self, flow: FlowLike, filters: Mapping[str, Any], limit: int | None) -> Iterator[Job]:
        """Those of them that fit these filters of `app.jobs`, found by the flow, a page at a time."""
        wanted, most = under_all_names(self._app, job_filters(filters)), checked_limit(limit)
        read = partial(self._app.store.flow_jobs, self.existing(flow).row.id, None)
        return islice((job for job in pages(read, None) if any(fits(job, one) for one in wanted)), most)

    def graph(self, flow: FlowLike, *, limit: int = GRAPH_LIMIT) -> Graph:
        """The flow with its jobs, the flows inside it, and what waits for what, also where that is decided.

        At most `limit` jobs of each flow; `more` says that there are others.
        """
        return self._graph(self.existing(flow), check_whole(limit, "limit", code="limit_invalid"))

    def _graph(self, flow: Flow, limit: int) -> Graph:
        store, flow_id = self._app.store, flow.row.id
        found = builtins.list(self.jobs(flow, limit=limit + 1))
        shown = {job.row.id for job in found[:limit]}
        edges = takewhile(lambda edge: edge.job_id in shown, pages(partial(store.flow_edges, flow_id), None))
        inner = [self._graph(self.view(row), limit) for row in store.inner_flows(flow_id)]
        return Graph(flow, found[:limit], inner, builtins.list(map(graph_edge, edges)), len(found) > limit)

    def seal(self, flow: FlowLike, *, tx: Any = None) -> Flow:
        """No more members come. A batch that was left open ends when its members have. A repeat changes nothing."""
        app, flow_id = self._app, flow_id_of(flow)
        self.existing(flow, tx)
        return self.view(app.store_of(tx).seal_flow(flow_id, app.clock.now()))

    # -- for the app -------------------------------------------------------------------------------------------------

    def existing(self, flow: FlowLike, tx: Any = None) -> Flow:
        """FlowNotFound: there is none."""
        row = self._app.store_of(tx).flow(flow_id_of(flow))
        if row is None:
            raise flow_not_found(flow_id_of(flow))
        return self.view(row)

    def change(self, flow: FlowLike, verb: FlowVerb, tx: Any) -> Flow:
        self.existing(flow, tx)
        return self.view(self._app.store_of(tx).change_flow(flow_id_of(flow), verb, self._app.clock.now()))

    def retry(self, flow: FlowLike, *, again: bool, tx: Any) -> Flow:
        self.existing(flow, tx)
        return self.view(self._app.store_of(tx).retry_flow(flow_id_of(flow), self._app.clock.now(), again=again))

    def view(self, row: FlowRow) -> Flow:
        return Flow(row, self._app.clock.now())

    def __dir__(self) -> builtins.list[str]:
        return public(super().__dir__(), INNER)
