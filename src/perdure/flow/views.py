"""`Flow` and `Graph`: a flow as users see it. Made by `flows` and `workflow` from the store's rows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from perdure.clock import Micros, to_datetime
from perdure.flow.planned import FlowHandle
from perdure.ids import to_uuid
from perdure.job.flow import EdgeRow, FlowRow, FlowState
from perdure.job.model import json_of
from perdure.job.references import success_rate
from perdure.job.views import Column, Job, time_of, uuid_of
from perdure.names import public
from perdure.words_of_others import OF_A_FLOW, refuse

INNER = frozenset(("raw_id", "row"))
"""What a flow has for the package's own parts; users are not shown it."""

ENDED_FOR_ETA = 10
"""So many members say how fast it goes; fewer say little."""

_set = object.__setattr__


class Flow(FlowHandle):
    """A chain, group, batch or workflow as it was when it was read. Frozen: read it again to see what became of it."""

    __slots__ = ("_read_at", "deduplicated", "row")

    row: FlowRow
    """Every stored field, undecoded."""
    _read_at: Micros
    deduplicated: bool
    """True: another live flow had the key, and this is that one."""

    def __init__(self, row: FlowRow, read_at: Micros, *, deduplicated: bool = False) -> None:
        _set(self, "row", row)
        _set(self, "_read_at", read_at)
        _set(self, "deduplicated", deduplicated)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Flow is frozen; change the flow itself through the app (tried to set {name!r})")

    @property
    def raw_id(self) -> bytes:
        return self.row.id

    sort = Column[str]()
    """chain, group, batch or workflow."""

    @property
    def name(self) -> str:
        """As it was called when it was planned. Not unique."""
        return self.row.name

    owner = Column[str]()
    """The name of the app that made it."""
    key = Column[str | None]()
    """`key=`: no other live flow has it."""
    parent_id = Column(uuid_of)
    """The flow it is a member of."""
    filled_by = Column(uuid_of)
    """The job whose handler adds its members; its end seals the flow."""
    on_failure = Column[str]()
    """continue, stop, cancel, pause or skip: what a failed member does to it."""
    at_once = Column[int | None]()
    """How many of its members may run at once. None: no limit."""
    principal = Column[str | None]()
    """On whose behalf it was made."""
    state = Column(FlowState)
    """running, also before any member has started; or how it has ended."""
    attempt = Column[int]()
    """1 at first; each retry of the whole flow adds 1."""
    completed = Column[int]()
    """How many members have completed."""
    failed = Column[int]()
    """How many members have failed for good."""
    cancelled = Column[int]()
    """How many members were cancelled."""
    skipped = Column[int]()
    """How many members were skipped: what they needed could not come, or there was nothing to do."""
    running = Column[int]()
    """How many members run now."""
    run_ms = Column[int]()
    """How long the attempts of its members took, together."""
    wait_ms = Column[int]()
    """How long its members were ready to start before they started, together."""
    attempts = Column[int]()
    """How many attempts its members had, together."""
    created_at = Column(to_datetime)
    """When it was written."""
    sealed_at = Column(time_of)
    """Since when no more members may be added from outside. None: it is open."""
    paused_at = Column(time_of)
    """Since when it is paused. None: it is not."""
    finished_at = Column(time_of)
    """When it ended. None: it has not."""

    @property
    def is_final(self) -> bool:
        """It has ended, however."""
        return self.state is not FlowState.RUNNING

    @property
    def is_open(self) -> bool:
        """More members may be added."""
        return self.row.sealed_at is None and not self.is_final

    @property
    def added(self) -> int:
        """How many members it has so far: jobs, and flows inside it."""
        return self.row.total

    @property
    def total(self) -> int | None:
        """How many members it has. None: it is open, and more may come."""
        return None if self.is_open else self.row.total

    @property
    def cancel_requested(self) -> bool:
        """Somebody has cancelled it; members that run are asked to stop."""
        return self.row.cancel_requested_at is not None

    @property
    def properties(self) -> dict[str, Any]:
        """What `properties=` said when it was made."""
        return json_of(self.row.properties) or {}

    @property
    def ended(self) -> int:
        """How many members have ended, however."""
        return self.row.ended

    @property
    def waiting(self) -> int | None:
        """Members that have neither ended nor run now. None: it is open."""
        return None if self.total is None else max(0, self.total - self.row.ended - self.row.running)

    @property
    def progress(self) -> float | None:
        """From 0 to 1. None: it is open, so nobody knows."""
        if self.total is None:
            return None
        return self.row.ended / self.total if self.total else 1.0

    @property
    def success_rate(self) -> float:
        """Completed members, of those that completed, failed or were cancelled: from 0 to 1."""
        return success_rate(self.row)

    @property
    def eta(self) -> datetime | None:
        """When it ends if it goes on as until now. None: nobody can say. It has ended, is open, paused or cancelled,
        nothing of it runs now, or fewer than ten of its members have ended."""
        if self.is_final or self.total is None or self.row.ended < ENDED_FOR_ETA or not self.row.running:
            return None
        if self.paused_at is not None or self.cancel_requested:
            return None
        passed = self._read_at - self.row.created_at
        left = max(0, self.total - self.row.ended)
        return to_datetime(Micros(self._read_at + passed * left // self.row.ended))

    if not TYPE_CHECKING:  # else type checkers would accept any name

        def __getattr__(self, name: str) -> Any:
            """Only asked for what is not there."""
            refuse(self, name, OF_A_FLOW, "a flow")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Flow) and self.row == other.row

    def __hash__(self) -> int:
        return hash(self.row.id)

    def __dir__(self) -> list[str]:
        return public(super().__dir__(), INNER)

    def __repr__(self) -> str:
        open_end = "+" if self.is_open else ""
        return f"<Flow {self.id} {self.sort} {self.name} {self.state} {self.ended}/{self.added}{open_end}>"


class GraphEdge(NamedTuple):
    """`job` waits, or waited, for `depends_on`, a job or a flow, to end as `needs` says: waiting, met or unmet."""

    depends_on: UUID
    job: UUID
    needs: str
    state: str


class Graph(NamedTuple):
    """A flow with its own jobs, the flows inside it, and what waits for what. `more`: there are more jobs or edges."""

    flow: Flow
    jobs: Sequence[Job]
    inner: Sequence[Graph]
    edges: Sequence[GraphEdge]
    more: bool = False


def graph_edge(row: EdgeRow) -> GraphEdge:
    return GraphEdge(to_uuid(row.depends_on), to_uuid(row.job_id), row.needs, row.state)
