"""What waits for what: edges between jobs, and flows (chains, groups, batches, workflows), which count their members.

The values that `flow`, `app` and store exchange, one field per column, as in `model`, and the pure rules about them.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum, StrEnum
from typing import Any, Literal, NamedTuple

from perdure.clock import Micros
from perdure.ids import FlowId, JobId, NodeId
from perdure.job.states import State


class Needs(StrEnum):
    """Which end of a job, or of a flow, lets those go on that wait for it."""

    SUCCESS = "success"
    """It completed, or its handler said that there was nothing to do (`Skip`)."""
    FAILURE = "failure"
    """It failed for good."""
    END = "end"
    """It ended, however."""


class EdgeState(StrEnum):
    """What has become of an edge."""

    WAITING = "waiting"
    """What it depends on has not ended."""
    MET = "met"
    """It ended as needed."""
    UNMET = "unmet"
    """It ended otherwise: the job that waited for it is skipped."""


class FlowState(StrEnum):
    """Where a flow is in its life."""

    RUNNING = "running"
    """Some of its members have not ended, or it is still being filled."""
    COMPLETED = "completed"
    """Nothing failed, and nothing was cancelled."""
    FAILED = "failed"
    """A member failed for good."""
    CANCELLED = "cancelled"
    """A member was cancelled, and none failed."""


NeedsName = Literal["success", "failure", "end"]
FlowSort = Literal["chain", "group", "batch", "workflow"]
OnFailure = Literal["continue", "stop", "cancel", "pause", "skip"]
"""What a failed member does to its flow. "continue": nothing, the others go on. "stop": those that have not started are
skipped. "cancel": and those that run are asked to stop. "pause": those that have not started are paused. "skip": the
others go on, and the flow does not fail for it."""

UNMET = "Unmet"
"""The type of error of a job that was skipped because what it waited for ended otherwise, or because its condition did
not hold."""
STOPPED = "FlowStopped"
"""The type of error of a job that was skipped because its flow stopped after a failure."""
NEVER_RAN = (UNMET, STOPPED)
"""The types of error of jobs that were skipped without asking their handlers."""


class Trait(IntEnum):
    """What the end of a live job has to look after, as bits, so that the ends of all others look after nothing."""

    HAS_DEPENDENTS = 1
    """Others may wait for it."""
    HAS_CONDITION = 2
    """It runs only if its condition holds when nothing else keeps it waiting."""
    FILLS = 4
    """Its end seals the flows that it fills."""


class Edge(NamedTuple):
    """A job waits for `depends_on`, a job or a flow, to end in a certain way."""

    depends_on: bytes
    needs: NeedsName = "success"


class EdgeRow(NamedTuple):
    """An edge as it is stored. Kept after it is decided: the graph can be shown, and a flow be retried."""

    depends_on: bytes
    job_id: JobId
    needs: str
    state: str


class NewFlow(NamedTuple):
    """A flow that does not exist yet. `open`: more members will come, until it is sealed.

    `filled_by`: the job whose handler adds members; the flow is sealed by its end. `key`: no other live flow has it.
    """

    id: FlowId
    sort: FlowSort
    name: str
    owner: str
    created_at: Micros
    key: str | None = None
    parent_id: FlowId | None = None
    filled_by: JobId | None = None
    on_failure: OnFailure = "continue"
    at_once: int | None = None
    properties: str | None = None
    principal: str | None = None
    open: bool = False


class FlowRow(NamedTuple):
    """A flow as it is stored, with the counts of its members as they are now.

    `total`: the members so far; `sealed_at` None: it is open, and more may come. `running` counts jobs that run; what
    is left of the total waits.
    """

    id: FlowId
    sort: str
    name: str
    owner: str
    key: str | None
    parent_id: FlowId | None
    filled_by: JobId | None
    on_failure: str
    at_once: int | None
    properties: str | None
    principal: str | None
    state: str
    attempt: int
    total: int
    completed: int
    failed: int
    cancelled: int
    skipped: int
    run_ms: int
    wait_ms: int
    attempts: int
    created_at: Micros
    sealed_at: Micros | None
    paused_at: Micros | None
    cancel_requested_at: Micros | None
    finished_at: Micros | None
    running: int = 0

    @classmethod
    def read(cls, row: Sequence[Any]) -> FlowRow:
        """From the columns of the table."""
        return cls(*row)

    @property
    def ended(self) -> int:
        """How many members have ended."""
        return self.completed + self.failed + self.cancelled + self.skipped


class TallyRow(NamedTuple):
    """How members of a flow ended, as one node has counted them. `added`: members that came after the flow was made.

    A retry by hand takes its member's end out again, so a count can be negative; what counts is the sum over all nodes.
    """

    flow_id: FlowId
    node_id: NodeId
    added: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    skipped: int = 0
    run_ms: int = 0
    wait_ms: int = 0
    attempts: int = 0

    @classmethod
    def of(cls, flow_id: FlowId, node_id: NodeId, state: str, count: int = 1) -> TallyRow:
        """So many ends in this state."""
        ends = [count if name == state else 0 for name in ("completed", "failed", "cancelled", "skipped")]
        return cls(flow_id, node_id, 0, *ends)


FlowVerb = Literal["cancel", "pause", "resume"]
"""What can be decided about a whole flow, besides a retry."""


class Source(NamedTuple):
    """What is known of a job or flow that others refer to: its result, how it ended, and for a flow its counts.

    `state` is None while it has not ended, and if there is no such job. `result` is JSON text.
    """

    state: str | None
    result: str | None = None
    error_type: str | None = None
    error: str | None = None
    counts: FlowRow | None = None


def is_met(needs: str, state: str, error_type: str | None) -> bool:
    """Whether an end in this state is what an edge needs. A job that was skipped without asking its handler has not
    succeeded: whoever needs its success is skipped too."""
    match needs:
        case Needs.END:
            return True
        case Needs.FAILURE:
            return state == State.FAILED
        case _:
            return state == State.COMPLETED or (state == State.SKIPPED and error_type not in NEVER_RAN)


def end_state(failed: int, cancelled: int, on_failure: str) -> FlowState:
    """How a flow whose members have all ended has ended itself."""
    if failed and on_failure != "skip":
        return FlowState.FAILED
    return FlowState.CANCELLED if cancelled else FlowState.COMPLETED
